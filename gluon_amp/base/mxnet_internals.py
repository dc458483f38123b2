"""Names that MXNet 1.9.1 keeps private and gluon_amp needs, each with the reason.

Attributes of MXNet's objects are listed in pyproject.toml, under `flake8-self`.
"""

from mxnet.base import _LIB as LIB
from mxnet.base import check_call
from mxnet.gluon.block import _check_same_symbol_type as check_same_symbol_type
from mxnet.gluon.block import _flatten as flatten
from mxnet.gluon.block import _regroup as regroup
from mxnet.gluon.rnn.rnn_layer import _RNNLayer as RNNLayer
from mxnet.model import _create_kvstore as create_kvstore
from mxnet.ndarray import _internal as internal_operators
from mxnet.ndarray._internal import _imperative_invoke as imperative_invoke
from mxnet.ndarray.sparse import _ndarray_cls as array_of_handle
from mxnet.symbol.numpy import _Symbol as NumpySymbol

# What marks a graph's JSON as one of MXNet 1.9.1: it upgrades a graph without a version.
GRAPH_VERSION = {"mxnet_version": ["int", 10901]}

__all__ = [
    "GRAPH_VERSION",
    "LIB",  # the C API: `MXNDArrayWaitToWrite`, `MXNDArrayGetData`, operators by their handles
    "NumpySymbol",  # the class that tells symbols of `mx.sym.np` from those of `mx.sym`
    "RNNLayer",  # what LSTM, GRU and RNN have in common
    "array_of_handle",  # an array of the class that its storage type needs
    "check_call",
    "check_same_symbol_type",  # what Gluon groups a graph's outputs with
    "create_kvstore",  # how Module makes a kvstore of the name of one
    "flatten",  # how Gluon flattens the arguments of a call, and `regroup` the outputs
    "imperative_invoke",  # calls an operator by its handle
    "internal_operators",  # operators without a public function, as `_multi_lamb_update`
    "regroup",
]
