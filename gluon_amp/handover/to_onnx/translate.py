"""A network as an ONNX model: every operator that reads data translated, all others computed."""

import re
from typing import Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence, Set, Tuple

import numpy as np

from gluon_amp import graph
from gluon_amp.base.messages import UsageError
from gluon_amp.graph import NUMPY_NAMES, tuple_of
from gluon_amp.handover.network import Edge, Network
from gluon_amp.handover.to_onnx import (
    activations,
    attention,
    detection,
    elementwise,
    layers,
    norms,
    pooling,
    recurrent,
    reductions,
    sampling,
    shapes,
)
from gluon_amp.handover.to_onnx.writer import Batch, Node, Tensor, UntranslatableError, Writer
from gluon_amp.policy import op_table

TRANSLATIONS: Dict[str, Callable] = {
    **elementwise.TRANSLATIONS,
    **activations.TRANSLATIONS,
    **reductions.TRANSLATIONS,
    **shapes.TRANSLATIONS,
    **layers.TRANSLATIONS,
    **pooling.TRANSLATIONS,
    **norms.TRANSLATIONS,
    **recurrent.TRANSLATIONS,
    **attention.TRANSLATIONS,
    **detection.TRANSLATIONS,
    **sampling.TRANSLATIONS,
}

# Inputs of which an operator needs the shape alone
SHAPES_ALONE = {
    **dict.fromkeys("zeros_like ones_like shape_array size_array".split(), (0,)),
    **dict.fromkeys("_contrib_arange_like _contrib_MultiBoxPrior _npi_full_like".split(), (0,)),
    **dict.fromkeys("slice_like reshape_like broadcast_like".split(), (1,)),
    "Crop": (1,),
    "_contrib_BilinearResize2D": (1,),
}


class Translated(NamedTuple):
    """What the writer has, and the name of every edge of the network that is in it."""

    writer: Writer
    names: Dict[Edge, str]
    tensors: Dict[Edge, Tensor]
    inputs: Dict[str, Tensor]


def translate(
    network: Network,
    batch_axes: Dict[str, Optional[int]],
    evaluate: Callable[[Sequence[Edge]], List[np.ndarray]],
) -> Translated:
    """Translate a network; `evaluate` returns the values of edges that do not depend on data.

    `batch_axes` has the axis of each input that follows the batch. Raise `UsageError` for an
    operator without a translation.
    """
    tensors, batch = _tensors(network, batch_axes)
    constant = _constants(network, tensors)
    read = _read(network, constant)
    frontier = sorted(edge for edge in read if edge[0] in constant)
    values = dict(zip(frontier, evaluate(frontier) if frontier else []))
    writer, names = Writer(batch), {}
    for edge in frontier:
        node = network.nodes[edge[0]]
        names[edge] = writer.constant(values[edge], node["name"])
        tensors[edge] = tensors[edge]._replace(value=values[edge], name=names[edge])
    outputs: Dict[int, List[int]] = {}
    for i, k in sorted(read):
        outputs.setdefault(i, []).append(k)
    variables, used = {}, set()
    for i, json in enumerate(network.nodes):
        if json["op"] == "null" and i not in constant and (i, 0) in tensors:
            names[i, 0] = json["name"]
            tensors[i, 0] = tensors[i, 0]._replace(name=json["name"])
            variables[json["name"]] = tensors[i, 0]
            used.update([json["name"]] if i in outputs else [])
        if i not in outputs or i in constant or json["op"] == "null":
            continue
        found = _translated(_node(network, i, tensors, outputs[i]), writer)
        for k, name in enumerate([found] if isinstance(found, str) else found):
            if (i, k) in tensors:
                names[i, k] = name
                tensors[i, k] = tensors[i, k]._replace(name=name)
    used.update([batch.input] if writer.reads_batch else [])
    inputs = {name: variables[name] for name in network.inputs if name in used}
    return Translated(writer, names, tensors, inputs)


def canonical(op: str) -> str:
    """Return the name under which an operator of mx.np is translated, or its own."""
    rest = re.sub(r"^_np[ix]?_", "", op)
    older = rest.replace("less", "lesser").replace("around", "round")
    options = [op, NUMPY_NAMES.get(op, op), rest, older]
    options += [f"{prefix}{one}" for one in (rest, older) for prefix in ("broadcast_", "_")]
    return next((one for one in options if one in TRANSLATIONS), op)


def _tensors(
    network: Network, batch_axes: Dict[str, Optional[int]]
) -> Tuple[Dict[Edge, Tensor], Batch]:
    """Return what is known of each edge: its shape, dtype, and how it follows the batch."""
    shapes, dtypes = network.shapes(network.inputs), network.dtypes()
    there = {*graph.variables(network.json)}
    followed = {n: axis for n, axis in batch_axes.items() if axis is not None and n in there}
    if not followed:
        none = {edge: (0,) * len(shape) for edge, shape in shapes.items()}
        return _with(shapes, none, dtypes), Batch("", 0, 1)
    name, axis = next(iter(followed.items()))
    batch = Batch(name, axis, network.inputs[name].shape[axis])
    larger = [with_batch(network.inputs, batch_axes, batch.size + more) for more in (1, 2)]
    first, second = map(network.shapes, larger)
    for edge, shape in shapes.items():
        if len(shape) != len(first[edge]):
            path, op = network.path_of(edge[0]) or "net", network.nodes[edge[0]]["op"]
            raise UsageError(
                f"block {path}, operator {op}, returns {len(shape)} axes for a batch of "
                f"{batch.size}, and {len(first[edge])} for one more: name the axes to squeeze."
            )
    growth = {
        edge: tuple(b - a if c - b == b - a else -1 for a, b, c in zip(*sizes))
        for edge, *sizes in ((edge, shapes[edge], first[edge], second[edge]) for edge in shapes)
    }
    return _with(shapes, growth, dtypes), batch


def _with(shapes: dict, growth: dict, dtypes: dict) -> Dict[Edge, Tensor]:
    return {e: Tensor(tuple(shapes[e]), growth[e], dtypes[e]) for e in shapes}


def with_batch(
    inputs: Dict[str, np.ndarray], batch_axes: Dict[str, Optional[int]], size: int
) -> Dict[str, np.ndarray]:
    """Return the inputs for a batch of another size: samples repeated, or left out."""
    return {
        name: array
        if batch_axes[name] is None
        else np.take(array, np.arange(size) % array.shape[batch_axes[name]], batch_axes[name])
        for name, array in inputs.items()
    }


def _constants(network: Network, tensors: Dict[Edge, Tensor]) -> Set[int]:
    """Return the nodes whose values depend neither on the inputs nor on the batch's size."""
    constant: Set[int] = set()
    outputs_of: Dict[int, List[Tensor]] = {}
    for (i, _), tensor in tensors.items():
        outputs_of.setdefault(i, []).append(tensor)
    for i, node in enumerate(network.nodes):
        if node["op"] == "null":
            if node["name"] in network.parameters:
                constant.add(i)
            continue
        alone = SHAPES_ALONE.get(canonical(node["op"]), ())
        depends = [entry[0] for k, entry in enumerate(node["inputs"]) if k not in alone]
        outputs = outputs_of.get(i, [])
        if node["op"] in ("shape_array", "size_array"):
            outputs = [tensors[tuple(node["inputs"][0][:2])]]  # its sizes are the values
        # MXNet infers an unknown size from what reads the node, so that it cannot run by itself
        unknown = not network.numpy and 0 in tuple_of(node["attrs"].get("shape", "None"))
        fixed = (
            not unknown
            and all(one.fixed for one in outputs)
            and all(k in constant for k in depends)
        )
        if fixed and not _draws(node):
            constant.add(i)
    return constant


def _draws(node: dict) -> bool:
    """Return whether an operator or its body draws random numbers in inference."""
    if node["op"] == "Dropout":
        return node["attrs"].get("mode") == "always"
    inside = (one for body in node.get("subgraphs", ()) for one in body["nodes"])
    return node["op"] in op_table.RANDOM or any(map(_draws, inside))


def _read(network: Network, constant: Iterable[int]) -> Set[Edge]:
    """Return the edges that are needed, back from the outputs to the data."""
    found: Set[Edge] = set()
    pending = list(network.outputs)
    while pending:
        edge = pending.pop()
        if edge in found:
            continue
        found.add(edge)
        if edge[0] not in constant:
            node = network.nodes[edge[0]]
            alone = SHAPES_ALONE.get(canonical(node["op"]), ())
            pending += [tuple(e[:2]) for k, e in enumerate(node["inputs"]) if k not in alone]
    return found


def _node(network: Network, i: int, tensors: Dict[Edge, Tensor], outputs: List[int]) -> Node:
    json = network.nodes[i]
    first = tensors[i, outputs[0]]
    returned = [tensors.get((i, k), first) for k in range(max(outputs) + 1)]
    inputs = [tensors[tuple(entry[:2])] for entry in json["inputs"]]
    op = canonical(json["op"])
    return Node(op, json["name"], network.path_of(i), json["attrs"], inputs, returned)


def _translated(node: Node, writer: Writer):
    writer.prefix = node.name
    where = f"block {node.path or 'net'}, operator {node.op}"
    try:
        if node.op in op_table.RANDOM and node.op not in TRANSLATIONS:
            raise UntranslatableError("it draws random numbers")
        if node.op not in TRANSLATIONS:
            raise UntranslatableError("ONNX has no such operator, or no translation is known")
        found = TRANSLATIONS[node.op](node, writer)
        if not isinstance(found, str) and len(found) < len(node.outputs):
            raise UntranslatableError("the use of its second output")
        return found
    except UntranslatableError as reason:
        raise UsageError(
            f"{where} has no translation to ONNX ({reason}): replace it by other operators, or "
            "export the net up to that block."
        ) from None
