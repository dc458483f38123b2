"""Calls of a cast block on symbols, and what a parent that is not cast runs and saves.

Three kinds of callers of a cast block need three graphs. A user gets the cast graph. A parent that
is traced in order to run needs the graph that the device can run, with the operators of the float16
emulation. A parent that is saved needs the graph for the file.

MXNet saves a block (`export`, `save`, the estimator's checkpoints) from `_cached_graph`. So while a
parent has such a graph, its class is a subclass in which `_cached_graph` is another graph: that of
a second trace, with the child's plain graph.
"""

import contextlib
import copy
import sys
import threading
from typing import Any, Iterator, List, Optional, Tuple

from gluon_amp import graph
from gluon_amp.base.mxnet_internals import NumpySymbol, check_same_symbol_type, flatten, regroup
from gluon_amp.casting.arguments import arrays_in
from gluon_amp.casting.classes import Mixin, cast_class, stock_class
from gluon_amp.casting.parameters import contexts_of, dtype_of, frozen_names, saved_as_stored
from gluon_amp.lowering import lower

import mxnet as mx
from mxnet.gluon import HybridBlock

# `form` of the graphs to save, "plain" or "cast", while a parent is saved
_state = threading.local()


def compose(block: HybridBlock, *args: Any) -> Any:
    """Return the outputs of a cast block for symbols: one of its graphs, with these as inputs."""
    inputs, symbol = block._get_graph(*args)
    form = getattr(_state, "form", None)
    if form == "plain":
        symbol = block._cached_graph[1]
        check_types(block, symbol)
    elif form == "cast":
        symbol = graph.without_own_attributes(symbol)
        check_types(block, symbol, low=True)
    elif _prepare_tracing_parent():
        symbol = _lowered(block, inputs, symbol)
    else:
        symbol = _without_float16_variables(symbol)
    # Copies of NumPy's symbols share their nodes, which composing changes, and are not iterable.
    composed = copy.copy(symbol.as_nd_ndarray())
    read = composed.list_inputs()
    composed._compose(**{s.name: a for s, a in zip(inputs, arrays_in(args)) if s.name in read})
    outputs = list(composed)
    if isinstance(symbol, NumpySymbol):
        outputs = [output.as_np_ndarray() for output in outputs]
    return regroup(outputs, block._out_format)


def check_types(block: HybridBlock, symbol: mx.sym.Symbol, low: bool = False) -> None:
    """Raise if stock MXNet cannot run a graph of a cast block that is about to be written.

    The file has float32 parameters, or if `low` is true those of the block.
    """
    dtypes = {p.name: dtype_of(p) for p in block.collect_params().values()}
    dtypes.update(zip((s.name for s in block._cached_graph[0]), vars(block)["_amp"].key.dtypes))
    wide = {name: graph.WIDE.get(dtype, dtype) for name, dtype in dtypes.items()}
    conflict = graph.type_conflict(symbol, dtypes if low else wide)
    if conflict:
        raise TypeError(f"export() wrote nothing, as stock MXNet cannot run the graph: {conflict}.")


def _lowered(block: HybridBlock, inputs: list, symbol: mx.sym.Symbol) -> mx.sym.Symbol:
    """Return the graph that the block's device can run, for float32 inputs."""
    params = block.collect_params().values()
    dtypes = {s.name: "float32" for s in inputs}
    dtypes.update((p.name, dtype_of(p)) for p in params)
    devices = {ctx.device_type for p in params for ctx in contexts_of(p)}
    device = "gpu" if "gpu" in devices else "cpu"
    scaled = vars(block)["_amp"].policy.needs_loss_scale
    return lower(symbol, dtypes, device, frozen_names(params), scaled=scaled)


def _without_float16_variables(symbol: mx.sym.Symbol) -> mx.sym.Symbol:
    """Return a cast graph that casts the float16 variables, whose own dtype MXNet then infers.

    So it also runs with float32 values, which a block that is not cast reads of a shared parameter.
    `Symbol.save` removes the casts, so the saved graph is float32.
    """

    def cast(out: graph.Writer, i: int, node: dict, inputs: List[list]) -> Optional[list]:
        attrs = dict(node["attrs"])
        if node["op"] != "null" or attrs.get("__dtype__") != graph.MX_DTYPE_CODES["float16"]:
            return None
        del attrs["__dtype__"]
        entry = out.copy({**node, "attrs": attrs}, inputs)
        return out.emit("amp_cast", f"{node['name']}_cast_float16", entry, dtype="float16")

    old, new = graph.to_json(symbol), graph.Writer()
    new.rewrite(old, cast)
    return graph.from_json(new.graph(old), like=symbol)


class StockParent(Mixin):
    """Mixed into the class of a traced block that is not cast and contains a cast child.

    Its attribute `_amp_inputs` has the inputs of the trace: variables, arguments, parameters.
    """

    @property
    def _cached_graph(self):
        running = vars(self)["_cached_graph"]
        return self._saved_graph("plain") if running and self._cached_op else running

    @_cached_graph.setter
    def _cached_graph(self, running):
        vars(self)["_cached_graph"] = running

    def _clear_cached_op(self):
        self.__class__ = stock_class(self)
        del self._amp_inputs
        self._clear_cached_op()

    def export(self, path: str, epoch: int = 0, remove_amp_cast: bool = True) -> Tuple[str, str]:
        if remove_amp_cast or not self._cached_op:
            return super().export(path, epoch, remove_amp_cast)
        cls, running = type(self), vars(self)["_cached_graph"]
        vars(self)["_cached_graph"] = self._saved_graph("cast")
        self.__class__ = stock_class(self)
        try:
            with saved_as_stored(self.collect_params().values()):
                return self.export(path, epoch, False)
        finally:
            self.__class__, self._cached_graph = cls, running

    def _saved_graph(self, form: str) -> tuple:
        """Trace this block again, with the graphs of its cast children in the given form."""
        inputs, arguments, params = self._amp_inputs
        with saving(form), self.name_scope():
            out = self.hybrid_forward(mx.symbol, *arguments, **params)
        out, _ = flatten(out, "output")
        return inputs, mx.sym.Group(out, check_same_symbol_type(out))


def _prepare_tracing_parent() -> bool:
    """Make the block that is tracing its cast child a StockParent; return whether there is one.

    This searches the stack for the block, as nothing else leads to it. The child is called with
    symbols alone. MXNet's thread-local `_BlockScope` contains no block whose prefix is empty, and
    is the same whether MXNet traces a block in order to run it or a user calls it on a symbol. A
    thread-local of our own would have to be set by the parent, which may be created after the cast,
    and whose class is MXNet's or the user's until now.
    """
    frame = sys._getframe()
    while frame:
        if frame.f_code is HybridBlock._get_graph.__code__:
            trace = frame.f_locals
            parent = trace["self"]
            if not isinstance(parent, StockParent):
                parent.__class__ = cast_class(StockParent, type(parent))
            vars(parent)["_amp_inputs"] = tuple(
                trace[name] for name in ("symbol_inputs", "grouped_inputs", "params")
            )
            return True
        frame = frame.f_back
    return False


@contextlib.contextmanager
def saving(form: str) -> Iterator[None]:
    _state.form = form
    try:
        yield
    finally:
        _state.form = None
