"""Gradients that are added to those in their arrays, where MXNet's operators fail to add them.

With `grad_req='add'`, and in the body of a loop, MXNet requests that the operator that reads a
variable adds its gradient to the variable's gradient array (kAddTo). In MXNet 1.9.1 many operators
do not:

- `amp_cast` on a CPU, other than to or from float16, adds nothing;
- `clip`, `reverse`, `split` and others overwrite the array, and `mean` also divides the sum that is
  already there;
- the operands of `x + y` share one gradient, and the second array gets a copy of what the first one
  holds after the addition; with `static_alloc`, both are garbage if one operand is a variable that
  gets no gradient;
- `_cond` does not write the gradients of inputs that only its other branch reads: an array keeps
  the gradient of the last step, and newly allocated gradient memory is uninitialized.

So a variable is copied before such an operator reads it, since the gradient of a copy is added
correctly. Operators that add correctly read the variable itself; they include all that read large
weights. If gluon_amp's C++ library is available, a cast to bfloat16 is replaced by an operator that
adds (`kernels/src/casts.cc`). Both branches of a `_cond` read all its inputs.
"""

import json
from typing import Dict, List, Optional, Tuple

from gluon_amp import kernels
from gluon_amp.graph import Entry, Json, Writer, edge_of, from_json, integer, op_table, variables
from gluon_amp.graph import own_operators as own
from gluon_amp.lowering.typed_graph import TypedGraph

# Attribute of a variable that is written between the forward and the backward pass. The backward
# pass needs the new value, so the variable is not copied.
WRITTEN_ATTR = "__gluon_amp_written_before_backward__"

# Attributes that list, for each body of an operator, which input each of its variables is
BODY_INPUTS = {
    "_cond": ("cond_input_locs", "then_input_locs", "else_input_locs"),
    "_while_loop": ("cond_input_locs", "func_input_locs"),
}
# Attributes of `_foreach` that together list which variable of the body each input is
FOREACH_VARIABLES = ("in_data_locs", "in_state_locs", "remain_locs")


def make_addable(graph: TypedGraph, device_type: str) -> TypedGraph:
    """Return a graph of the same values and gradients whose gradients can be added.

    It is `graph` itself if only operators with the word `adds` read variables.
    """
    old, edges = graph
    written = set(from_json(old).list_auxiliary_states())
    written |= {node["name"] for node in old["nodes"] if WRITTEN_ATTR in node["attrs"]}
    copies: Dict[int, Entry] = {}  # of new variables

    def is_variable(out: Writer, entry: Entry) -> bool:
        node = out.nodes[entry[0]]
        return node["op"] == "null" and node["name"] not in written

    def copy_of(out: Writer, entry: Entry) -> Entry:
        if entry[0] not in copies:
            copies[entry[0]] = out.emit("_copy", f"{out.nodes[entry[0]]['name']}_copy", entry)
        return list(copies[entry[0]])

    def addable(out: Writer, i: int, node: Json, inputs: List[Entry]) -> Optional[Entry]:
        adds = op_table.has("adds", node["op"], node["attrs"], device_type)
        if node["op"] == "amp_cast" and is_variable(out, inputs[0]):
            before, after = edges[edge_of(node["inputs"][0])], edges.get((i, 0))
            adds = adds or "float16" in (before, after)
            if before == after and not adds:  # drop the cast: its readers read the variable
                return inputs[0]
            if (before, after) == ("float32", "bfloat16") and kernels.available():
                return out.copy({**node, "op": own.BFLOAT16, "attrs": {}}, inputs)
        new = _with_addable_bodies(i, node, graph, device_type) if "subgraphs" in node else node
        read = [
            copy_of(out, entry)
            if not adds and is_variable(out, entry) and "float" in edges[edge_of(old_entry)]
            else entry
            for entry, old_entry in zip(inputs, node["inputs"])
        ]
        return None if new is node and read == inputs else out.copy(new, read)

    return _with_named_outputs(graph, graph.by(addable))


def _with_named_outputs(old: TypedGraph, new: TypedGraph) -> TypedGraph:
    """Return a new graph whose outputs have the names of the old ones.

    An output that was a cast and is a variable now needs an operator of the cast's name.
    """
    if new is old:
        return old
    out, heads = Writer(), list(new.json["heads"])
    out.nodes = list(new.json["nodes"])
    for k, (source, *_) in enumerate(old.json["heads"]):
        node = old.json["nodes"][source]
        if out.nodes[heads[k][0]]["op"] == "null" != node["op"]:
            heads[k] = out.emit("_copy", node["name"], heads[k])
    return new.rewritten({**new.json, "nodes": out.nodes, "heads": heads}, new.edges)


# -------------------------------------------------------------------------- loops and branches


def _with_addable_bodies(i: int, node: Json, graph: TypedGraph, device_type: str) -> Json:
    """Return a loop or branch whose bodies' gradients are all written, and added correctly."""
    input_dtypes = [graph.edges[edge_of(entry)] for entry in node["inputs"]]
    floats = [k for k, dtype in enumerate(input_dtypes) if "float" in dtype]
    outputs = range(integer(node["attrs"], "num_outputs"))
    float_output = next((k for k in outputs if "float" in graph.edges.get((i, k), "")), None)
    attrs, bodies = dict(node["attrs"]), []
    for n, body in enumerate(node["subgraphs"]):
        sources = _input_numbers(node, n)
        unread = [k for k in floats if k not in sources]
        if node["op"] == "_cond" and n > 0 and unread and float_output is not None:
            body, sources = _read_inputs(body, sources, unread, float_output)
            attrs[BODY_INPUTS["_cond"][n]] = str(sources)
        dtypes = {name: input_dtypes[k] for name, k in zip(variables(body), sources)}
        bodies.append(make_addable(TypedGraph.of(body, dtypes), device_type).json)
    same = all(a is b for a, b in zip(bodies, node["subgraphs"]))
    return node if same else {**node, "attrs": attrs, "subgraphs": bodies}


def _input_numbers(node: Json, n: int) -> List[int]:
    """Return which input of an operator each variable of its body number `n` is."""
    if node["op"] in BODY_INPUTS:
        return json.loads(node["attrs"][BODY_INPUTS[node["op"]][n]])
    variables = [v for key in FOREACH_VARIABLES for v in json.loads(node["attrs"][key])]
    return [variables.index(v) for v in range(len(variables))]


def _read_inputs(
    body: Json, sources: List[int], unread: List[int], output: int
) -> Tuple[Json, List[int]]:
    """Make a branch read more inputs, without an effect on its values.

    The zeros of each input in `unread` are added to the branch's output number `output`, which is
    float. Their gradient is zero. Return the branch, and which input each of its variables is, as
    `sources` for `body`.
    """
    by_name = dict(zip(variables(body), sources))
    out, zeros = Writer(), []
    out.nodes = list(body["nodes"])
    for k in unread:
        name = f"unread{k}"
        by_name[name] = k
        zero = out.emit("zeros_like", f"{name}_zeros", out.emit("null", name))
        zeros.append(out.emit("sum", f"{name}_zero", zero))
    total = out.emit("add_n", "unread_zero", *zeros, num_args=str(len(zeros)))
    heads = list(body["heads"])
    heads[output] = out.emit("broadcast_add", "unread_added", heads[output], total)
    body = {**body, "nodes": out.nodes, "heads": heads}
    order = from_json(body).list_inputs()
    return body, [by_name[name] for name in order]
