"""Attributes of our own in a graph, which the cast pass writes and the lowering reads."""

from gluon_amp.graph.symbol_json import every_node, from_json, to_json

import mxnet as mx

# Attribute with the path of a node's block: `cast` sets it while tracing, `apply` removes it.
BLOCK_ATTR = "__gluon_amp_block__"

# Attribute of the products that a policy studies: see `policy.study`
STUDY_ATTR = "__gluon_amp_study__"

# Attribute of the operators in a bfloat16 graph that the policy's own pins keep in float32
PINNED_ATTR = "__gluon_amp_pinned__"

# Attribute of the products of a graph that runs in float32 by our own operators
FUSED_ATTR = "__gluon_amp_fused__"

# Attribute of the casts of rounded values, of which the emulation rounds the gradients alone
ROUNDED_ATTR = "__gluon_amp_rounded__"

# All attributes of ours, which a graph for others leaves out
OWN_ATTRS = (BLOCK_ATTR, STUDY_ATTR, PINNED_ATTR, FUSED_ATTR, ROUNDED_ATTR)


def without_own_attributes(symbol: mx.sym.Symbol) -> mx.sym.Symbol:
    """Return a cast graph without `OWN_ATTRS`, for a file."""
    graph = to_json(symbol)
    for node in every_node(graph):
        for name in OWN_ATTRS:
            node["attrs"].pop(name, None)
    return from_json(graph, like=symbol)
