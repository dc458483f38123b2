"""Attributes of our own in a graph, which the cast pass writes and the lowering reads."""

import json
from typing import NamedTuple, Optional, Tuple

from gluon_amp.graph.symbol_json import Json, every_node, from_json, to_json

import mxnet as mx

# Attribute with the path of a node's block: `cast` sets it while tracing, `apply` removes it.
BLOCK_ATTR = "__gluon_amp_block__"

# Attribute of the matrix products in a cast graph whose emulation accumulates in float16
ACCUMULATE_ATTR = "__gluon_amp_accumulate__"
ACCUMULATING = ("Convolution", "FullyConnected", "dot", "batch_dot")

# Attribute of the products whose operands and gradients the emulation rounds: `Rounding.to_text`
ROUNDING_ATTR = "__gluon_amp_rounding__"

# Attribute of the operators in a bfloat16 graph that the policy's own pins keep in float32
PINNED_ATTR = "__gluon_amp_pinned__"

# Attribute of the products of a graph that runs in float32 by our own operators
FUSED_ATTR = "__gluon_amp_fused__"

# Attribute of the casts of rounded values, of which the emulation rounds the gradients alone
ROUNDED_ATTR = "__gluon_amp_rounded__"

# All attributes of ours, which a graph for others leaves out
OWN_ATTRS = (BLOCK_ATTR, ACCUMULATE_ATTR, ROUNDING_ATTR, PINNED_ATTR, FUSED_ATTR, ROUNDED_ATTR)


class Rounding(NamedTuple):
    """How a product of a format for study is rounded."""

    key: str  # the product's name among those of its net, the same in all traces
    compute: str  # the format of the operands
    gradients: str  # and of the gradient of the result
    wide: Tuple[str, ...]  # the directions, as in `policy.study`, in which it stays in float32

    def to_text(self) -> str:
        return json.dumps(self)

    @classmethod
    def of(cls, node: Json) -> Optional["Rounding"]:
        """Return the rounding of a node, or None."""
        text = node["attrs"].get(ROUNDING_ATTR)
        return cls(*json.loads(text)) if text else None


def without_own_attributes(symbol: mx.sym.Symbol) -> mx.sym.Symbol:
    """Return a cast graph without `OWN_ATTRS`, for a file."""
    graph = to_json(symbol)
    for node in every_node(graph):
        for name in OWN_ATTRS:
            node["attrs"].pop(name, None)
    return from_json(graph, like=symbol)
