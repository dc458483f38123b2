"""A symbol's graph as a value: read, rewritten and differentiated, without policies and devices."""

# ruff: noqa: F401, which takes the names that other rooms import from here for unused

from gluon_amp.graph.attributes import (
    BLOCK_ATTR,
    FUSED_ATTR,
    OWN_ATTRS,
    PINNED_ATTR,
    ROUNDED_ATTR,
    STUDY_ATTR,
    without_own_attributes,
)
from gluon_amp.graph.float32 import WIDE, in_float32, narrow_nodes, type_conflict
from gluon_amp.graph.symbol_json import (
    CASTS,
    MX_DTYPE_CODES,
    NUMPY_NAMES,
    edge_dtypes,
    flag,
    from_json,
    needed,
    readers_of,
    source_of,
    to_json,
    tuple_of,
    variables,
)
from gluon_amp.graph.writer import Rule, Writer, pruned
