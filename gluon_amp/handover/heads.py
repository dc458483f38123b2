"""Loss heads, such as `SoftmaxOutput`, as what they compute in inference, without their labels."""

from typing import Dict, List, Optional

from gluon_amp import graph

import mxnet as mx

# Operators of one input in place of the heads that return a function of each element
ELEMENTWISE = {
    "LinearRegressionOutput": "_copy",
    "MAERegressionOutput": "_copy",
    "SVMOutput": "_copy",
    "LogisticRegressionOutput": "sigmoid",
}


def in_inference(json: dict) -> dict:
    """Return a graph with the same values in inference that reads no label of a head."""
    out = graph.Writer()
    out.rewrite(json, _without_label)
    kept, _ = graph.pruned(out.graph(json))
    return kept


def _without_label(out: graph.Writer, i: int, node: dict, inputs: List[list]) -> Optional[list]:
    name, op, attrs = node["name"], node["op"], node["attrs"]
    path = {key: value for key, value in attrs.items() if key == graph.BLOCK_ATTR}
    if op == "SoftmaxOutput":
        return _softmax(name, attrs, inputs[0], out, path)
    return out.emit(ELEMENTWISE[op], name, inputs[0], **path) if op in ELEMENTWISE else None


def inference_symbol(symbol: mx.sym.Symbol) -> mx.sym.Symbol:
    """Return a symbol that reads no label of a head."""
    return graph.from_json(in_inference(graph.to_json(symbol)), like=symbol)


def _softmax(
    name: str, attrs: Dict[str, str], data: List[int], out: graph.Writer, path: Dict[str, str]
) -> List[int]:
    """Add the softmax over channels, over the last axis, or over all of a sample."""
    for flag, axis in (("multi_output", "1"), ("preserve_shape", "-1")):
        if graph.flag(attrs, flag):
            return out.emit("softmax", name, data, axis=axis, **path)
    flat = out.emit("Flatten", f"{name}_flat", data, **path)
    flat = out.emit("softmax", f"{name}_of_flat", flat, axis="-1", **path)
    return out.emit("reshape_like", name, flat, data, **path)
