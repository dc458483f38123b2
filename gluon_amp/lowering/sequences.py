"""Computes what sequence models use beside dense layers by gluon_amp's C++ library.

On a CPU, MXNet computes the gradient of LayerNorm forty times as slowly as necessary, copies splits
element by element, and divides each small product of a `batch_dot` among the threads
(`kernels/src/sequences.cc`). The replacements are for tensors in float32, as the policies have
them, LayerNorm, softmax and log_softmax for the last axis. LayerNorm and GELU between casts read
and write bfloat16 themselves. Their values are rounded where the casts round them. A log_softmax of
which the loss picks one class is not written. A softmax also multiplies by the number that scales
the scores of an attention.
"""

from typing import Dict, List, Optional

from gluon_amp.base.registry import canonical
from gluon_amp.graph import CASTS, Writer, flag, readers_of
from gluon_amp.lowering import blocked
from gluon_amp.lowering.typed_graph import TypedGraph

BATCH_DOT, SPLIT = "_gluon_amp_batch_dot", "_gluon_amp_split"
LAYER_NORM, GELU = "_gluon_amp_layer_norm", "_gluon_amp_gelu"
SOFTMAX, LOG_SOFTMAX = "_gluon_amp_softmax", "_gluon_amp_log_softmax"
PICKED = "_gluon_amp_picked_log_softmax"

READ_BFLOAT16 = (LAYER_NORM, GELU)

Attributes = Dict[str, str]

LEAST = 1e-30  # of a softmax's scale; float32 has it and its inverse


def use_row_kernels(graph: TypedGraph) -> TypedGraph:
    """Return a graph of the same values that uses these operators of the C++ library.

    It is `graph` itself if nothing is replaced, or if there is no C++ library or no oneDNN.
    """
    old, edges, out, results = graph.json["nodes"], graph.edges, Writer(), {}
    if not blocked.available():
        return graph
    readers = readers_of(graph.json)

    def is_cast(i: Optional[int], after: str) -> bool:
        before = edges[tuple(old[i]["inputs"][0][:2])] if i and old[i]["op"] in CASTS else None
        return {before, after} == {"bfloat16", "float32"} and edges.get((i, 0)) == after

    for i, node in enumerate(old):
        replacement = _picked(old, readers, node) or _replacement(node) or node
        if replacement["op"] in (SOFTMAX, LOG_SOFTMAX):
            replacement = _scaling(old, readers, replacement)
        if any(edges[tuple(e[:2])] != "float32" for e in replacement["inputs"]):
            replacement = node
        inputs, number = replacement["inputs"], len(out.nodes)
        if replacement["op"] in READ_BFLOAT16:
            if is_cast(inputs[0][0], "float32"):
                inputs = [old[inputs[0][0]]["inputs"][0], *inputs[1:]]
            narrows = [reader for reader, _ in readers.get(i, [])]
            low = len(narrows) == 1 and is_cast(narrows[0], "bfloat16")
            replacement["attrs"]["dtype"] = results[number, 0] = "bfloat16" if low else "float32"
            if low:
                out.replaced[narrows[0], 0] = [number, 0, 0]
        elif (i, 0) in out.replaced:  # a cast of what it writes itself
            out.numbers.append(out.replaced[i, 0][0])
            continue
        elif replacement is not node:
            results[number, 0] = "float32"
        out.numbers.append(number)
        out.copy(replacement, [out.remap(entry) for entry in inputs])
    if not results:
        return graph
    new = graph.rewritten(out.graph(graph.json), {**graph.kept(out), **results})
    return new.pruned()


def _replacement(node: dict) -> Optional[dict]:
    """Return the operator of the C++ library that computes what a node does in float32, if any."""
    op, attributes_of = REPLACEMENTS.get(canonical(node["op"]), (None, None))
    attrs = attributes_of(node["attrs"]) if op else None
    return None if attrs is None else {**node, "op": op, "attrs": attrs}


def _picked(nodes: List[dict], readers: Dict[int, List[tuple]], node: dict) -> Optional[dict]:
    """Return the operator of a pick and the log_softmax that it alone reads, if a node is one."""
    if canonical(node["op"]) != "pick":
        return None
    (i, *_), label = node["inputs"]
    source, attrs = nodes[i], node["attrs"]
    if canonical(source["op"]) != "log_softmax" or _softmax(source["attrs"]) != {"scale": "1.0"}:
        return None
    clips_last = attrs.get("axis", "-1") == "-1" and attrs.get("mode", "clip") == "clip"
    if len(readers[i]) > 1 or not clips_last:
        return None
    attrs = {"keepdims": attrs.get("keepdims", "False")}
    return {**node, "op": PICKED, "inputs": [source["inputs"][0], label], "attrs": attrs}


def _scaling(nodes: List[dict], readers: Dict[int, List[tuple]], node: dict) -> dict:
    """Return a softmax that also multiplies by the number before it, or the same node."""
    ((i, *_),) = node["inputs"]
    source = nodes[i]
    op = canonical(source["op"])
    if op not in ("_mul_scalar", "_div_scalar") or len(readers[i]) > 1:
        return node
    factor = float(source["attrs"]["scalar"])
    scale = float(node["attrs"]["scale"]) * (factor if op == "_mul_scalar" else _inverse(factor))
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
    temperature = attrs.get("temperature", "None")
    scale = 1.0 if temperature == "None" else _inverse(float(temperature))
    plain = plain and scale and attrs.get("dtype", "None") in ("None", "float32")
    return {"scale": repr(scale)} if plain else None


def _split(attrs: Attributes, count: str = "num_outputs") -> Optional[Attributes]:
    if flag(attrs, "squeeze_axis") or int(attrs.get(count, "0")) < 1:
        return None
    return {"axis": attrs.get("axis", "1"), "num_outputs": attrs[count]}


def _split_v2(attrs: Attributes) -> Optional[Attributes]:
    return _split({"axis": "0", **attrs}, "sections")


# Operator of MXNet: what replaces it, and a function of its attributes that returns those of the
# replacement, or None if there is none
REPLACEMENTS: Dict[str, tuple] = {
    "batch_dot": (BATCH_DOT, _batch_dot),
    "LayerNorm": (LAYER_NORM, _layer_norm),
    "LeakyReLU": (GELU, _gelu),
    "SliceChannel": (SPLIT, _split),
    "_split_v2": (SPLIT, _split_v2),
    "softmax": (SOFTMAX, _softmax),
    "log_softmax": (LOG_SOFTMAX, _softmax),
}
