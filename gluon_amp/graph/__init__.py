"""A symbol's graph as a value: read, rewritten and differentiated, without policies and devices."""

from gluon_amp.graph.attribute_values import flag, integer, integers, is_set, number
from gluon_amp.graph.attributes import (
    ACCUMULATE_ATTR,
    ACCUMULATING,
    BLOCK_ATTR,
    FUSED_ATTR,
    OWN_ATTRS,
    PINNED_ATTR,
    ROUNDED_ATTR,
    ROUNDING_ATTR,
    Rounding,
    without_own_attributes,
)
from gluon_amp.graph.float32 import WIDE, in_float32, narrow_nodes, type_conflict
from gluon_amp.graph.op_names import classic
from gluon_amp.graph.symbol_json import (
    CASTS,
    MX_DTYPE_CODES,
    Edge,
    Entry,
    Json,
    edge_dtypes,
    edge_of,
    edges_of,
    every_node,
    from_json,
    needed,
    readers_of,
    source_of,
    to_json,
    variables,
    with_bodies,
)
from gluon_amp.graph.writer import Rule, Writer, pruned

__all__ = ["ACCUMULATE_ATTR", "ACCUMULATING", "BLOCK_ATTR", "FUSED_ATTR", "OWN_ATTRS"]
__all__ += ["PINNED_ATTR", "ROUNDED_ATTR", "ROUNDING_ATTR", "Rounding", "without_own_attributes"]
__all__ += ["classic", "flag", "integer", "integers", "is_set", "number"]
__all__ += ["WIDE", "in_float32", "narrow_nodes", "type_conflict"]
__all__ += ["CASTS", "MX_DTYPE_CODES", "Edge", "Entry", "Json"]
__all__ += ["edge_dtypes", "edge_of", "edges_of", "every_node"]
__all__ += ["from_json", "needed", "readers_of", "source_of", "to_json", "variables", "with_bodies"]
__all__ += ["Rule", "Writer", "pruned"]
