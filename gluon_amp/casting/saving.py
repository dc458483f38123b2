"""A HybridBlock that was not cast and contains a cast child: what it runs and what it saves.

Its graph contains the graph that the child runs on its device, with the operators of the float16
emulation. MXNet saves a block (`export`, `save`, the estimator's checkpoints) from `_cached_graph`.
So while the block has such a graph, its class is a subclass in which `_cached_graph` is another
graph: that of a second trace, with the child's plain graph.
"""

import contextlib
import sys
import threading
from typing import Optional

from gluon_amp.base.mxnet_internals import check_same_symbol_type, flatten
from gluon_amp.casting.classes import Mixin, cast_class, stock_class
from gluon_amp.casting.parameters import saved_as_stored

import mxnet as mx
from mxnet.gluon import HybridBlock

_state = threading.local()


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

    def export(self, path, epoch=0, remove_amp_cast=True):
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
        with _saving(form), self.name_scope():
            out = self.hybrid_forward(mx.symbol, *arguments, **params)
        out, _ = flatten(out, "output")
        return inputs, mx.sym.Group(out, check_same_symbol_type(out))


def prepare_tracing_parent() -> bool:
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


def saved_form() -> Optional[str]:
    """Return the form of a cast child's graph to save, 'plain' or 'cast'; None while not saving."""
    return getattr(_state, "form", None)


@contextlib.contextmanager
def _saving(form: str):
    _state.form = form
    try:
        yield
    finally:
        _state.form = None
