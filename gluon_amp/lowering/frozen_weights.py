"""Gradients on a CPU for the biases of dense layers whose weight is frozen.

oneDNN computes the gradients of a dense layer's weight and bias together. If the weight's gradient
is not requested, MXNet 1.9.1 skips both and does not write the bias's gradient
(`MKLDNNFullyConnectedBackward` in src/operator/nn/mkldnn/mkldnn_fully_connected.cc). In such layers
a separate operator adds the bias. Convolutions are not affected.
"""

from typing import FrozenSet, List, Optional

from gluon_amp.graph import Entry, Json, Writer, source_of
from gluon_amp.lowering.typed_graph import TypedGraph


def separate_biases(graph: TypedGraph, frozen: FrozenSet[str]) -> TypedGraph:
    """Return a graph of the same values, in which a separate operator adds such biases.

    It is `graph` itself if no dense layer has a weight in `frozen` and a bias that is not in it.
    """
    old = graph.json["nodes"]
    chosen = {i for i, node in enumerate(old) if _has_frozen_weight(old, node, frozen)}
    # the sum broadcasts, so it does not imply the shape of the bias
    biases = {_variable(old, old[i]["inputs"][2][0]): old[i]["attrs"] for i in chosen}

    def separated(out: Writer, i: int, node: Json, inputs: List[Entry]) -> Optional[Entry]:
        if i in biases:
            shape = {"__shape__": f"({biases[i]['num_hidden']},)"}
            return out.copy({**node, "attrs": {**node["attrs"], **shape}}, inputs)
        low = graph.edges.get((i, 0)) == "bfloat16"
        return _product_and_sum(out, node, inputs, low) if i in chosen else None

    return graph.by(separated)


def _product_and_sum(out: Writer, node: Json, inputs: List[Entry], low: bool) -> Entry:
    """Write a dense layer as a matrix product and a sum, which is float32 if the layer is not."""
    name, (data, weight, bias) = node["name"], inputs
    attrs = {**node["attrs"], "no_bias": "True"}
    product = out.emit("FullyConnected", f"{name}_product", data, weight, **attrs)
    if not low:
        return _sum(out, name, product, bias)
    # MXNet has no sum in bfloat16 that broadcasts.
    product = out.emit("amp_cast", f"{name}_product_float32", product, dtype="float32")
    bias = out.emit("amp_cast", f"{name}_bias_float32", bias, dtype="float32")
    total = _sum(out, f"{name}_sum", product, bias)
    return out.emit("amp_cast", name, total, dtype="bfloat16")


def _sum(out: Writer, name: str, product: Entry, bias: Entry) -> Entry:
    """Write the sum of a product and a bias so that MXNet infers the product's shape from it, too.

    MXNet does not infer the shapes of what it broadcasts.
    """
    zeros = out.emit("zeros_like", f"{name}_zeros", product)
    biases = out.emit("_npi_add", f"{name}_biases", zeros, bias)
    return out.emit("elemwise_add", name, product, biases)


def _has_frozen_weight(nodes: List[Json], node: Json, frozen: FrozenSet[str]) -> bool:
    if node["op"] != "FullyConnected" or len(node["inputs"]) < 3:
        return False
    variables = (_variable(nodes, node["inputs"][k][0]) for k in (1, 2))
    weight, bias = (None if i is None else nodes[i]["name"] for i in variables)
    return weight in frozen and bias not in frozen


def _variable(nodes: List[Json], i: int) -> Optional[int]:
    """Return the variable that a tensor is computed from, None if it is computed from several."""
    source = source_of(nodes, i, through=None)
    return source if nodes[source]["op"] == "null" else None
