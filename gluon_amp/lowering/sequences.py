"""Computes what sequence models use beside dense layers by gluon_amp's C++ library.

On a CPU, MXNet computes the gradient of LayerNorm forty times as slowly as necessary, copies splits
element by element, and divides each small product of a `batch_dot` among the threads
(`kernels/src/sequences.cc`). The replacements are for tensors in float32, as the policies have
them, LayerNorm, softmax and log_softmax for the last axis. LayerNorm and GELU between casts read
and write bfloat16 themselves. Their values are rounded where the casts round them. A log_softmax of
which the loss picks one class is not written. A softmax also multiplies by the number that scales
the scores of an attention.
"""

from typing import Callable, Dict, List, Optional, Tuple

from gluon_amp.graph import (
    CASTS,
    Edge,
    Entry,
    Json,
    Writer,
    edge_of,
    flag,
    integer,
    is_set,
    number,
    readers_of,
)
from gluon_amp.graph import own_operators as own
from gluon_amp.lowering import blocked
from gluon_amp.lowering.typed_graph import TypedGraph

READ_BFLOAT16 = (own.LAYER_NORM, own.GELU)

Attributes = Dict[str, str]
Readers = Dict[int, List[Tuple[Optional[int], int]]]

LEAST = 1e-30  # of a softmax's scale; float32 has it and its inverse


def use_row_kernels(graph: TypedGraph) -> TypedGraph:
    """Return a graph of the same values that uses these operators of the C++ library.

    It is `graph` itself if nothing is replaced, or if there is no C++ library or no oneDNN.
    """
    if not blocked.available():
        return graph
    old, edges, readers = graph.json["nodes"], graph.edges, readers_of(graph.json)
    results: Dict[Edge, str] = {}

    def is_cast(i: Optional[int], after: str) -> bool:
        if i is None or old[i]["op"] not in CASTS or edges.get((i, 0)) != after:
            return False
        return {edges[edge_of(old[i]["inputs"][0])], after} == {"bfloat16", "float32"}

    def replaced(out: Writer, i: int, node: Json, remapped: List[Entry]) -> Optional[Entry]:
        if (i, 0) in out.replaced:  # a cast of what the node before writes itself
            return out.replaced[i, 0]
        new = _picked(old, readers, node) or _replacement(node)
        if new is None:
            return None
        if new["op"] in (own.SOFTMAX, own.LOG_SOFTMAX):
            new = _scaling(old, readers, new)
        if any(edges[edge_of(entry)] != "float32" for entry in new["inputs"]):
            return None
        inputs, dtype = new["inputs"], "float32"
        if new["op"] in READ_BFLOAT16:
            if is_cast(inputs[0][0], "float32"):
                inputs = [old[inputs[0][0]]["inputs"][0], *inputs[1:]]
            (narrow, _), *others = readers.get(i, [(None, 0)])
            if narrow is not None and not others and is_cast(narrow, "bfloat16"):
                dtype = "bfloat16"
                out.replaced[narrow, 0] = [len(out.nodes), 0, 0]
            new["attrs"]["dtype"] = dtype
        entry = out.copy(new, [out.remap(one) for one in inputs])
        results[edge_of(entry)] = dtype
        return entry

    new = graph.by(replaced, results)
    return new if new is graph else new.pruned()


def _replacement(node: Json) -> Optional[Json]:
    """Return the operator of the C++ library that computes what a node does in float32, if any."""
    if node["op"] not in REPLACEMENTS:
        return None
    op, attributes_of = REPLACEMENTS[node["op"]]
    attrs = attributes_of(node["attrs"])
    return None if attrs is None else {**node, "op": op, "attrs": attrs}


def _picked(nodes: List[Json], readers: Readers, node: Json) -> Optional[Json]:
    """Return the operator of a pick and the log_softmax that it alone reads, if a node is one."""
    if node["op"] != "pick":
        return None
    (i, *_), label = node["inputs"]
    source, attrs = nodes[i], node["attrs"]
    if source["op"] != "log_softmax" or _softmax(source["attrs"]) != {"scale": "1.0"}:
        return None
    clips_last = attrs.get("axis", "-1") == "-1" and attrs.get("mode", "clip") == "clip"
    if len(readers[i]) > 1 or not clips_last:
        return None
    attrs = {"keepdims": attrs.get("keepdims", "False")}
    return {
        **node,
        "op": own.PICKED_LOG_SOFTMAX,
        "inputs": [source["inputs"][0], label],
        "attrs": attrs,
    }


def _scaling(nodes: List[Json], readers: Readers, node: Json) -> Json:
    """Return a softmax that also multiplies by the number before it, or the same node."""
    ((i, *_),) = node["inputs"]
    source = nodes[i]
    op = source["op"]
    if op not in ("_mul_scalar", "_div_scalar") or len(readers[i]) > 1:
        return node
    factor = number(source["attrs"], "scalar")
    scale = number(node["attrs"], "scale") * (factor if op == "_mul_scalar" else _inverse(factor))
    if not LEAST < scale < 1 / LEAST:
        return node
    return {**node, "inputs": source["inputs"], "attrs": {"scale": repr(scale)}}


def _batch_dot(attrs: Attributes) -> Attributes:
    return {name: attrs.get(name, "False") for name in ("transpose_a", "transpose_b")}


def _gelu(attrs: Attributes) -> Optional[Attributes]:
    return {} if attrs.get("act_type") == "gelu" else None


def _layer_norm(attrs: Attributes) -> Optional[Attributes]:
    if attrs.get("axis", "-1") != "-1" or flag(attrs, "output_mean_var"):
        return None
    return {"eps": attrs.get("eps", "1e-05")}


def _inverse(x: float) -> float:
    """Return 1 / x, or 0 if one of the two is too small or x is negative."""
    return 1 / x if LEAST < x < 1 / LEAST else 0.0


def _softmax(attrs: Attributes) -> Optional[Attributes]:
    plain = attrs.get("axis", "-1") == "-1" and not flag(attrs, "use_length")
    scale = _inverse(number(attrs, "temperature")) if is_set(attrs, "temperature") else 1.0
    plain = plain and scale != 0 and attrs.get("dtype", "None") in ("None", "float32")
    return {"scale": repr(scale)} if plain else None


def _split(attrs: Attributes, count: str = "num_outputs") -> Optional[Attributes]:
    if flag(attrs, "squeeze_axis") or integer(attrs, count) < 1:
        return None
    return {"axis": attrs.get("axis", "1"), "num_outputs": attrs[count]}


def _split_v2(attrs: Attributes) -> Optional[Attributes]:
    return _split({"axis": "0", **attrs}, "sections")


# Operator of MXNet: what replaces it, and a function of its attributes that returns those of the
# replacement, or None if there is none
REPLACEMENTS: Dict[str, Tuple[str, Callable[[Attributes], Optional[Attributes]]]] = {
    "batch_dot": (own.BATCH_DOT, _batch_dot),
    "LayerNorm": (own.LAYER_NORM, _layer_norm),
    "LeakyReLU": (own.GELU, _gelu),
    "SliceChannel": (own.SPLIT, _split),
    "_split_v2": (own.SPLIT, _split_v2),
    "softmax": (own.SOFTMAX, _softmax),
    "log_softmax": (own.LOG_SOFTMAX, _softmax),
}
