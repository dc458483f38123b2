"""Gradients that MXNet adds to what their array holds, where its operators fail to add them.

With `grad_req='add'`, and in the body of a loop, the operator that reads a variable is asked to add
its gradient to the variable's gradient array (kAddTo). In MXNet 1.9.1 many operators do not:

- `amp_cast` on a CPU, other than to or from float16, adds nothing;
- `clip`, `reverse`, `split` and others write instead of adding, and `mean` also divides the sum
  that it finds;
- the operands of `x + y` have one gradient in common, and the second array gets a copy of what the
  first one holds after the addition;
- `_cond` writes no gradient of what only its other branch reads, so that an array keeps that of the
  last step, and newly allocated gradient memory keeps arbitrary values.

So a variable is copied before such an operator reads it, since the gradient of a copy is added
correctly. Operators that add correctly, which include all that read large weights, read the
variable itself. Casts to bfloat16 become gluon_amp's own operator, which adds (`native/casts.cc`),
where it is available. Both branches of a `_cond` read all its inputs.
"""

import json
from typing import Dict, List, Tuple

from gluon_amp.lowering import float16_emulation, native
from gluon_amp.policy.graph import VERSION, edge_dtypes, from_json, to_json

import mxnet as mx

# What `amp_cast` from float32 to bfloat16 does, with a gradient that is added
BFLOAT16 = "_gluon_amp_bfloat16"

# Operators that add the gradients of all their inputs as kAddTo asks; loops and branches do where
# their bodies do. The tests run each of them.
ADDING = frozenset(
    (
        "BatchNorm",
        "Cast",
        "Convolution",
        "Deconvolution",
        "Embedding",
        "FullyConnected",
        "GroupNorm",
        "InstanceNorm",
        "LayerNorm",
        "LeakyReLU",
        "RNN",
        "_cond",
        "_copy",
        "_foreach",
        "_while_loop",
        "batch_dot",
        "dot",
        BFLOAT16,
        float16_emulation.NARROW,
        float16_emulation.ROUND,
        float16_emulation.ROUND_RELU,
        float16_emulation.WIDEN,
    )
)

# Attribute of a variable that is written between the forward and the backward pass, which reads it
# as it is then: it is not copied.
WRITTEN_ATTR = "__gluon_amp_written_before_backward__"

# Attributes that say, for each body of an operator, which inputs its variables are.
BODY_INPUTS = {
    "_cond": ("cond_input_locs", "then_input_locs", "else_input_locs"),
    "_while_loop": ("cond_input_locs", "func_input_locs"),
}
# Attributes of `_foreach` that say, one after the other, which variable of the body each input is.
FOREACH_VARIABLES = ("in_data_locs", "in_state_locs", "remain_locs")


def separate(symbol: mx.sym.Symbol, dtypes: Dict[str, object], device_type: str) -> mx.sym.Symbol:
    """Return a symbol of the same values and gradients whose gradients can be added.

    Parameters
    ----------
    symbol : Symbol
        A lowered graph.
    dtypes : dict of str to dtype
        Dtypes of all variables.
    device_type : str
        As `Context.device_type`; a GPU's `amp_cast` adds its gradient.

    Returns
    -------
    Symbol
        `symbol` itself where only operators of `ADDING` read variables.
    """
    graph = to_json(symbol)
    separated = _separate(graph, dtypes, device_type, symbol)
    return symbol if separated is graph else from_json(separated, like=symbol)


def _separate(
    graph: dict, dtypes: Dict[str, object], device_type: str, like: mx.sym.Symbol
) -> dict:
    edges = edge_dtypes(graph, dtypes, like)
    written = set(from_json({"attrs": VERSION, **graph}, like=like).list_auxiliary_states())
    written |= {node["name"] for node in graph["nodes"] if WRITTEN_ATTR in node.get("attrs", {})}
    nodes, places, copies, changed = [], [], {}, False

    def emit(node: dict) -> int:
        nodes.append(node)
        return len(nodes) - 1

    def is_variable(entry: list) -> bool:
        return nodes[entry[0]]["op"] == "null" and nodes[entry[0]]["name"] not in written

    for i, node in enumerate(graph["nodes"]):
        inputs = [[places[source], *rest] for source, *rest in node["inputs"]]
        adds = node["op"] in ADDING
        if node["op"] == "amp_cast" and is_variable(inputs[0]):
            before, after = edges[tuple(node["inputs"][0][:2])], edges.get((i, 0))
            adds = device_type == "gpu" or "float16" in (before, after)
            if before == after and not adds:  # readers read the variable
                places.append(inputs[0][0])
                changed = True
                continue
            if (before, after) == ("float32", "bfloat16") and native.available():
                node = {**node, "op": BFLOAT16, "attrs": {}}
                adds = changed = True
        if "subgraphs" in node:
            new = _with_bodies(i, node, edges, device_type, like)
            changed = changed or new is not node
            node = new
        if not adds:
            for k, (source, out, *_) in enumerate(node["inputs"]):
                if is_variable(inputs[k]) and "float" in edges[source, out]:
                    variable = inputs[k][0]
                    if variable not in copies:
                        name = f"{nodes[variable]['name']}_copy"
                        copies[variable] = emit(_node("_copy", name, inputs[k]))
                    inputs[k] = [copies[variable], 0, 0]
                    changed = True
        places.append(emit({**node, "inputs": inputs}))
    heads = [[places[source], *rest] for source, *rest in graph["heads"]]
    for k, (source, *_) in enumerate(graph["heads"]):
        if nodes[heads[k][0]]["op"] == "null" != graph["nodes"][source]["op"]:  # cast is gone
            heads[k] = [emit(_node("_copy", graph["nodes"][source]["name"], heads[k])), 0, 0]
    return {**graph, "nodes": nodes, "heads": heads} if changed else graph


# -------------------------------------------------------------------------- loops and branches


def _with_bodies(i: int, node: dict, edges: Dict, device_type: str, like: mx.sym.Symbol) -> dict:
    """Return a loop or branch whose bodies' gradients can be added and are written in full."""
    read = [edges[source, out] for source, out, *_ in node["inputs"]]
    floats = [k for k, dtype in enumerate(read) if "float" in dtype]
    outputs = range(int(node["attrs"]["num_outputs"]))
    output = next((k for k in outputs if "float" in edges.get((i, k), "")), None)
    attrs, bodies = dict(node["attrs"]), []
    for n, body in enumerate(node["subgraphs"]):
        places = _places(node, n)
        unread = [k for k in floats if k not in places]
        if node["op"] == "_cond" and n > 0 and unread and output is not None:
            body, places = _reading(body, places, unread, output, like)
            attrs[BODY_INPUTS["_cond"][n]] = str(places)
        dtypes = {name: read[k] for name, k in zip(_variables(body), places)}
        bodies.append(_separate(body, dtypes, device_type, like))
    same = all(a is b for a, b in zip(bodies, node["subgraphs"]))
    return node if same else {**node, "attrs": attrs, "subgraphs": bodies}


def _places(node: dict, n: int) -> List[int]:
    """Return which input of an operator each variable of its body number `n` is."""
    if node["op"] in BODY_INPUTS:
        return json.loads(node["attrs"][BODY_INPUTS[node["op"]][n]])
    variables = [v for key in FOREACH_VARIABLES for v in json.loads(node["attrs"][key])]
    return [variables.index(v) for v in range(len(variables))]


def _variables(body: dict) -> List[str]:
    return [node["name"] for node in body["nodes"] if node["op"] == "null"]


def _node(op: str, name: str, *inputs: list, **attrs: str) -> dict:
    return {"op": op, "name": name, "attrs": attrs, "inputs": [list(entry) for entry in inputs]}


def _reading(
    body: dict, places: List[int], unread: List[int], output: int, like: mx.sym.Symbol
) -> Tuple[dict, List[int]]:
    """Make a branch read inputs without an effect; return it and the sources of its variables.

    Zeros are added to one of its outputs; the gradient of `zeros_like` is zeros.
    """
    sources = dict(zip(_variables(body), places))
    nodes, zeros = list(body["nodes"]), []

    def emit(op: str, name: str, *inputs: list, **attrs: str) -> list:
        nodes.append(_node(op, name, *inputs, **attrs))
        return [len(nodes) - 1, 0, 0]

    for k in unread:
        name = f"unread{k}"
        sources[name] = k
        zero = emit("zeros_like", f"{name}_zeros", emit("null", name))
        zeros.append(emit("sum", f"{name}_zero", zero))
    total = emit("add_n", "unread_zero", *zeros, num_args=str(len(zeros)))
    heads = list(body["heads"])
    heads[output] = emit("broadcast_add", "unread_added", heads[output], total)
    body = {**body, "nodes": nodes, "heads": heads}
    order = from_json({"attrs": VERSION, **body}, like=like).list_inputs()
    return body, [sources[name] for name in order]
