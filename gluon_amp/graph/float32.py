"""The float32 graph of one with casts of its own, as those of MXNet's float16 recipe."""

import re
from typing import Iterator, Mapping, Optional

from gluon_amp.base.messages import reason_of
from gluon_amp.graph.symbol_json import Json, every_node, from_json, to_json

import mxnet as mx

# Attributes with a dtype, and what replaces those of 16 bits, by their names and their numbers
DTYPE_ATTRS = ("dtype", "out_dtype", "__dtype__")
WIDE = {"float16": "float32", "bfloat16": "float32", "2": "0", "12": "0"}


def in_float32(symbol: mx.sym.Symbol, kept: Optional[str] = None) -> mx.sym.Symbol:
    """Return a symbol whose variables and operators declare float32 in place of 16 bits.

    So the user's own casts to float16 do nothing. Nodes with the attribute `kept` stay, and so does
    `Custom`, whose attributes are the user's. A symbol without 16 bits is returned itself.
    """
    json = to_json(symbol)
    narrow = [node for node in narrow_nodes(json) if kept not in node["attrs"]]
    for node in narrow:
        wide = {name: WIDE.get(node["attrs"].get(name)) for name in DTYPE_ATTRS}
        node["attrs"].update({name: dtype for name, dtype in wide.items() if dtype})
    return from_json(json, like=symbol) if narrow else symbol


def narrow_nodes(json: Json) -> Iterator[Json]:
    """Yield the nodes that declare a dtype of 16 bits, those in the bodies of loops too."""
    for node in every_node(json):
        if node["op"] != "Custom" and any(node["attrs"].get(name) in WIDE for name in DTYPE_ATTRS):
            yield node


def type_conflict(symbol: mx.sym.Symbol, dtypes: Mapping[str, str]) -> str:
    """Return the node where types conflict and how; '' if stock MXNet can infer all types.

    `dtypes` are those of the variables; those left out are float32.
    """
    try:
        symbol.infer_type_partial(**{n: dtypes.get(n, "float32") for n in symbol.list_inputs()})
    except mx.MXNetError as error:
        at = re.search(r"Error in operator (\S+?): ", str(error))
        return f"node {at[1] if at else 'unknown'}: {reason_of(error).split('): ')[-1]}"
    return ""
