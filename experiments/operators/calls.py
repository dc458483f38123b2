"""How every operator can be called: shapes of its inputs and attributes, from `calls.txt`."""

import json
import re
from collections import defaultdict
from pathlib import Path

from experiments.operators.registered import registered

import mxnet as mx


class Ids(tuple):
    """The shape of an input that holds indices, lengths or conditions."""


def ids(*shape):
    return Ids(shape)


# The groups of "lr wd: 0.1": values of arguments without a default, where `calls.txt` has none
REQUIRED = """
    lr wd eps brightness contrast saturation hue: 0.1; lrs wds learning_rates: (0.1,);
    x y top bot left right start low: 0; N num stop high range_max w h: 3; width height: 2;
    loc scale prob logit shape a size: None; value eta t is_logit: 1; etas: (1.0,);
    step_count: (1,); alpha: (0.1,0.1,0.1); dimensions: (2,3); min_factor: 0.5; max_factor: 1.5
"""
# Values of arguments that are no enumerations, but decide what is computed
VALUES = """
    axis: 1 -1; axes: (0,) (1,); p: 0.0 0.9; ord: 1 2; stride dilate: (2,2); pad: (1,1);
    grad_scale: 2.0; scalar: 0.3; flag: 0 1 2
"""


def _groups(text):
    """Return {'lr': ['0.1'], 'wd': ['0.1']} for 'lr wd: 0.1'."""
    pairs = (group.split(":") for group in text.split(";"))
    return {name: values.split() for names, values in pairs for name in names.split()}


def _shape(text):
    shape = [int(size) for size in text.lstrip("i").split("x")]
    return Ids(shape) if text[0] == "i" else tuple(shape)


def _listed():
    """Return the calls of each operator in `calls.txt`."""
    found = defaultdict(list)
    text = Path(__file__).with_name("calls.txt").read_text(encoding="utf-8")
    for line in re.sub(r"^#.*\n|\n (?= )", "", text, flags=re.M).splitlines():
        names, _, call = line.partition(": ")
        shapes, _, attrs = call.partition("; ")
        shapes = [_shape(shape) for shape in shapes.split() if shape != "-"]
        for name in names.split():
            found[name].append((shapes, dict(attr.split("=") for attr in attrs.split())))
    return found


# MXNet 1.9.1 requires a certain dtype of these inputs
ID_DTYPES = {
    "CTCLoss": "float32",
    "batch_take": "int32",
    "_npi_insert_tensor": "int64",
    "_npi_bincount": "int32",
    "_contrib_hawkesll": "int32",
}

CALLS = _listed()
REQUIRED, VALUES = _groups(REQUIRED), _groups(VALUES)
REGISTERED = registered()
CANONICAL = sorted({operator.canonical for operator in REGISTERED.values()})
NETWORK = [name for name in CANONICAL if not name.startswith("_backward_")]


def calls(op):
    """Return all calls of an operator that are tried: shapes of its inputs, and attributes.

    After those in `calls.txt` come calls that differ from the first one in one argument.
    """
    operator, count = REGISTERED[op], 2 if REGISTERED[op].count else len(REGISTERED[op].inputs)
    required = {name for name, kind in operator.arguments if kind.endswith("required")}
    required = {name: REQUIRED[name][0] for name in sorted(required & REQUIRED.keys())}
    ordinary = ([(2, 3)] * count, {operator.count: "2"} if operator.count else {})
    found = [(shapes, {**required, **attrs}) for shapes, attrs in CALLS.get(op, [ordinary])]
    shapes, first = found[0]
    for name, kind in operator.arguments:
        values = (
            re.findall(r"\w+", kind[: kind.find("}")]) if kind[0] == "{" else VALUES.get(name, ())
        )
        if kind.startswith("boolean"):
            values = ("True", "False")
        if not name.startswith(("cudnn", "is_int")):
            found += [(shapes, {**first, name: v}) for v in values if v != first.get(name)]
    return found


def call(op):
    """Return the first call of an operator: shapes of its inputs, and attributes."""
    return calls(op)[0]


def node(op, shapes=None, attrs=None):
    """A symbol of one operator with inputs x0, x1, ..., called as in `call` or otherwise."""
    if shapes is None:
        shapes, attrs = call(op)
    nodes = [{"op": "null", "name": f"x{i}", "inputs": []} for i in range(len(shapes))]
    inputs = [[i, 0, 0] for i in range(len(shapes))]
    nodes.append({"op": op, "name": "node", "inputs": inputs})
    nodes[-1]["attrs"] = {name: str(value) for name, value in attrs.items()}
    graph = {
        "nodes": nodes,
        "arg_nodes": list(range(len(shapes))),
        "heads": [[len(nodes) - 1, 0, 0]],
        "attrs": {"mxnet_version": ["int", 10901]},
    }
    return mx.sym.load_json(json.dumps(graph))
