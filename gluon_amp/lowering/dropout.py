"""Dropout whose backward pass can run again, with the same mask.

While the loss scale is searching, a backward pass that overflowed runs again at a lower scale. The
second pass of MXNet's Dropout drops nothing: its mask is intact, but a flag of the operator is lost
(`dropout_passthrough_` in src/operator/nn/dropout-inl.h). So Dropout is applied to ones, which
returns the mask, or ones where nothing is dropped. The product with the data has the values,
gradients and random numbers of Dropout of the data, and no gradient reaches Dropout itself.
"""

from typing import FrozenSet, List, Optional

from gluon_amp.graph import Entry, Json, Writer, variables
from gluon_amp.lowering.typed_graph import TypedGraph


def make_repeatable(graph: TypedGraph, frozen: FrozenSet[str], scaled: bool) -> TypedGraph:
    """Return a graph of the same values and gradients whose backward pass can run again.

    It is `graph` itself if it has no Dropout, computes no gradients, or if these have no loss
    scale. `frozen` are the variables that get no gradient.
    """
    learns = not frozen.issuperset(variables(graph.json))
    return graph.by(_product) if scaled and learns else graph


def _product(out: Writer, i: int, node: Json, inputs: List[Entry]) -> Optional[Entry]:
    if node["op"] != "Dropout":
        return None
    name = node["name"]
    ones = out.emit("ones_like", f"{name}_ones", inputs[0])
    mask = out.copy({**node, "name": f"{name}_mask"}, [ones])
    mask = out.emit("BlockGrad", f"{name}_constant", mask)
    return out.emit("elemwise_mul", name, inputs[0], mask)
