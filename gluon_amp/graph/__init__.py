"""A symbol's graph as a value: read, rewritten and differentiated, without policies and devices."""

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
from gluon_amp.graph.symbol_json import (
    CASTS,
    MX_DTYPE_CODES,
    NUMPY_NAMES,
    edge_dtypes,
    from_json,
    needed,
    readers_of,
    source_of,
    to_json,
    tuple_of,
    variables,
)
from gluon_amp.graph.writer import Writer, pruned

__all__ = [
    "ACCUMULATE_ATTR",
    "ACCUMULATING",
    "BLOCK_ATTR",
    "CASTS",
    "FUSED_ATTR",
    "MX_DTYPE_CODES",
    "NUMPY_NAMES",
    "OWN_ATTRS",
    "PINNED_ATTR",
    "ROUNDED_ATTR",
    "ROUNDING_ATTR",
    "Rounding",
    "Writer",
    "edge_dtypes",
    "from_json",
    "needed",
    "pruned",
    "readers_of",
    "source_of",
    "to_json",
    "tuple_of",
    "variables",
    "without_own_attributes",
]
