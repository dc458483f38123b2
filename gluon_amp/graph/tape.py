"""Reads what a backward pass will run and write, from the graph that autograd has recorded.

MXNet's C API returns the operators of that graph and the names of its variables, but none of its
arrays, and nothing of a hybridized block. Both are read from memory: `nnvm::Node` and
`Imperative::AGInfo` (include/nnvm/node.h, include/mxnet/imperative.h), and the graph of a
`CachedOp` (src/imperative/cached_op.h) of MXNet 1.9.1. The first call checks these places with a
graph of its own. Where they do not hold, for another build of MXNet, no graph is read.
"""

import ctypes
import functools
from typing import Dict, Iterable, List, NamedTuple, Optional, Sequence, Set, Tuple

from gluon_amp.base.array_kinds import of_user_kind
from gluon_amp.base.memory import NO_SUCH_PLACE, Reader, by_file, word
from gluon_amp.base.mxnet_internals import LIB, array_of_handle, check_call
from gluon_amp.graph.symbol_json import Json, to_json

import mxnet as mx
from mxnet import autograd, nd
from mxnet.base import NDArrayHandle, SymbolHandle

# Bytes from the beginning of an object to a member
_OPERATOR, _NAME, _PARSED, _INPUTS, _INFO = 0, 8, 64, 120, 168  # of `nnvm::Node`
_ADDS = 3  # of `OpReqType`
_NODE = 24  # from one `nnvm::NodeEntry` of a vector to the next; each begins with its node
_GRAD_REQ, _ARRAYS, _GRADIENTS = 8, 32, 56  # of `Imperative::AGInfo`
_OFFSET = 64  # of `NDArray`, in the memory to which its first member points
_GRAPH = 96  # of `CachedOp`: the outputs of its graph, which is all that a symbol consists of
_VALUE = 8  # of `dmlc::any`, which begins with its type

_CACHED_OP = "_CachedOp"


class _Places(NamedTuple):
    """What a recorded graph consists of: names, and addresses by the names of nodes."""

    names: Set[str]  # of the variables
    operators: Set[str]
    arrays: Dict[str, int]  # of the variables
    gradients: Dict[str, int]
    added: Set[str]  # the names of those that are added to what is there
    graphs: Dict[str, int]  # of the hybridized blocks


class Tape:
    """The recorded graph of losses.

    It keeps the graph's arrays, so it should not live longer than the pass.

    Attributes
    ----------
    written : list of NDArray
        What the operators write beside their results: auxiliary states, as BatchNorm's statistics.
        Those that the backward pass does not read are left out.
    gradients : list of NDArray
        The gradients that the backward pass writes, whoever owns them.
    added : list of NDArray
        Those of them that it adds to what is there (`grad_req="add"`).
    """

    def __init__(self, symbols: Sequence[mx.sym.Symbol]) -> None:
        self._symbols = symbols
        self._places = places = _places(symbols, word)
        # in the order of the graph, which is that of other passes through the same net
        self._states = {name: None for one in symbols for name in one.list_auxiliary_states()}
        written = [places.arrays[name] for name in self._states if name in places.arrays]
        self.written = list(map(_array, written))
        self.gradients = list(map(_array, places.gradients.values()))
        self.added = [_array(places.gradients[name]) for name in places.added]

    def reads(self, array: nd.NDArray) -> bool:
        """Return whether an operator has read an array."""
        return _name(array) in self._places.names

    def writes(self, array: nd.NDArray) -> bool:
        """Return whether an operator writes an array."""
        return _name(array) in self._states

    def writes_early(self, array: nd.NDArray) -> bool:
        """Return whether an operator may have written an array in the forward pass.

        On a CPU, BatchNorm and all others but `Custom` write in the backward pass alone
        (src/operator/nn/batch_norm.cc); `make operators` measures it. On a GPU,
        cudnnBatchNormalizationForwardTraining writes in the forward pass.
        """
        early = not array.context.device_type.startswith("cpu") or self._runs_custom
        return self.writes(array) and early

    @functools.cached_property
    def _runs_custom(self) -> bool:
        inside = map(to_json, map(_symbol, self._places.graphs.values()))
        names = {node["op"] for graph in inside for node in graph["nodes"]}
        return "Custom" in names | self._places.operators

    def graphs(self) -> Optional[List[Json]]:
        """Return the graphs as `to_json` does; None if MXNet cannot write one of the operators.

        The operator of a hybridized block has the block's graph under "subgraphs".
        """
        try:
            graphs = list(map(to_json, self._symbols))
            bodies = {name: to_json(_symbol(at)) for name, at in self._places.graphs.items()}
        except mx.MXNetError:
            return None
        for node in (node for graph in graphs for node in graph["nodes"]):
            if node["op"] == _CACHED_OP:
                node["subgraphs"] = [bodies[node["name"]]]
        return graphs


def read(losses: Iterable[nd.NDArray]) -> Optional[Tape]:
    """Return the recorded graph of losses; None if none was recorded, or it cannot be read."""
    try:
        symbols = [autograd.get_symbol(one) for one in losses]
    except mx.MXNetError:
        return None
    return Tape(symbols) if symbols and _readable() else None


def memory_of(array: nd.NDArray) -> Tuple[int, int]:
    """Return what two arrays have in common that are the same part of the same memory."""
    if not _readable():
        return id(array), 0
    return word(array.handle.value), word(array.handle.value + _OFFSET)


def _name(array: nd.NDArray) -> Optional[str]:
    """Return the name of an array's variable; None if no recorded operator has read it."""
    try:
        return str(autograd.get_symbol(array).name)
    except mx.MXNetError:
        return None


def _places(symbols: Iterable[mx.sym.Symbol], word: Reader) -> _Places:
    places, seen = _Places(set(), set(), {}, {}, set(), {}), set()
    pending = [node for one in symbols for node in _nodes(one.handle.value, word)]
    while pending:
        node = pending.pop()
        if node in seen:
            continue
        seen.add(node)
        pending += _nodes(node + _INPUTS, word)
        at, name = word(node + _OPERATOR), _text(node + _NAME, word)
        if at:
            operator = _text(at, word)
            places.operators.add(operator)
            if operator == _CACHED_OP:
                places.graphs[name] = word(node + _PARSED + _VALUE) + _GRAPH
        elif word(node + _INFO):  # otherwise the graph was freed
            places.names.add(name)
            info = word(node + _INFO + _VALUE)
            array, gradient = word(info + _ARRAYS), word(info + _GRADIENTS)
            if word(array):  # MXNet keeps no memory that the backward pass does not need
                places.arrays[name] = array
            request = word(info + _GRAD_REQ) & 0xFFFFFFFF
            if gradient and request:
                places.gradients[name] = gradient
                if request == _ADDS:
                    places.added.add(name)
    return places


def _nodes(entries: int, word: Reader) -> List[int]:
    """Return the nodes of a vector of entries."""
    return [word(entry) for entry in range(word(entries), word(entries + 8), _NODE)]


def _text(string: int, word: Reader) -> str:
    """Return a string of C++, whose length is in front of its characters."""
    start = word(string)
    length = word(start - 24)
    if length > 256:
        raise ValueError("no name of MXNet")
    words = (word(start + k).to_bytes(8, "little") for k in range(0, length, 8))
    return b"".join(words)[:length].decode()


def _array(address: int) -> nd.NDArray:
    """Return an array on the memory of one that the graph keeps."""
    handle = NDArrayHandle()
    check_call(LIB.MXShallowCopyNDArray(ctypes.c_void_p(address), ctypes.byref(handle)))
    return of_user_kind(array_of_handle(handle))


def _symbol(outputs: int) -> mx.sym.Symbol:
    """Return a symbol with the nodes of a graph."""
    handle = SymbolHandle()
    check_call(LIB.MXShallowCopySymbol(ctypes.c_void_p(outputs), ctypes.byref(handle)))
    return mx.sym.Symbol(handle)


@functools.lru_cache(maxsize=None)
def _readable() -> bool:
    """Return whether all is where it is expected, tried with a graph that is known."""
    x = mx.sym.var("x")
    body = mx.sym.BatchNorm(mx.sym.exp(mx.sym.exp(x)), name="norm")
    data, *own = arrays = [nd.ones(shape) for shape in ((2, 3), (3,), (3,), (3,), (3,))]
    marked, gradients, part = own[:2], [nd.zeros((3,)), nd.zeros((3,))], data[1]
    autograd.mark_variables(marked, gradients, ["write", "add"])
    with autograd.record():
        out = nd.CachedOp(body)(*arrays) * 2
    symbol = autograd.get_symbol(out)
    try:
        with by_file() as word:
            found = _places([symbol], word)
            (graph,) = found.graphs.values()
            (norm,) = _nodes(graph, word)
            names = [autograd.get_symbol(array).name for array in own]
            return (
                _text(norm + _NAME, word) == "norm"
                and _text(word(norm + _OPERATOR), word) == "BatchNorm"
                and all(word(found.arrays[n]) == word(a.handle.value) for n, a in zip(names, own))
                and {name: word(at) for name, at in found.gradients.items()}
                == {n: word(g.handle.value) for n, g in zip(names, gradients)}
                and found.added == {names[1]}
                and [word(one.handle.value + _OFFSET) for one in (data, part)] == [0, 12]
            )
    except NO_SUCH_PLACE:
        return False
