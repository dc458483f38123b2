"""A HybridBlock that was not cast and contains a cast child: what it runs and what it saves.

Its graph holds what the child runs on its device, emulation operators included. Whatever MXNet
saves of the block (`export`, `save`, the estimator's checkpoints) reads `_cached_graph`, so while
such a graph exists, the block's class is a subclass that returns another graph there: the block
traced again, with the child's plain graph.
"""

import contextlib
import sys
import threading
from typing import Optional

from gluon_amp.casting.parameters import cast_class, saved_as_stored, stock_class

import mxnet as mx
from mxnet.gluon import HybridBlock
from mxnet.gluon.block import _check_same_symbol_type, _flatten

_state = threading.local()


class StockParent:
    """Mixed into the class of a traced block that is not cast and contains a cast child."""

    @property
    def _cached_graph(self):
        traced = vars(self)["_cached_graph"]
        return _saved_graph(self, "plain") if traced and self._cached_op else traced

    @_cached_graph.setter
    def _cached_graph(self, traced):
        vars(self)["_cached_graph"] = traced

    def _clear_cached_op(self):
        self.__class__ = stock_class(self)
        del self._amp_inputs
        self._clear_cached_op()

    def export(self, path, epoch=0, remove_amp_cast=True):
        if remove_amp_cast or not self._cached_op:
            return super().export(path, epoch, remove_amp_cast)
        stock = stock_class(self)
        run = self.__class__, vars(self)["_cached_graph"]
        vars(self)["_cached_graph"] = _saved_graph(self, "cast")
        self.__class__ = stock
        try:
            with saved_as_stored(self.collect_params().values()):
                return self.export(path, epoch, False)
        finally:
            self.__class__, self._cached_graph = run


def watch_tracing_parent() -> bool:
    """Return whether a block that is not cast is tracing its cast child, and make it a StockParent.

    MXNet does not say which block traces, so the stack is searched for its frame.
    """
    frame = sys._getframe()
    while frame:
        if frame.f_code is HybridBlock._get_graph.__code__:
            traced = frame.f_locals
            parent = traced["self"]
            if not isinstance(parent, StockParent):
                parent.__class__ = cast_class(StockParent, type(parent))
            parent._amp_inputs = tuple(
                traced[name] for name in ("symbol_inputs", "grouped_inputs", "params")
            )
            return True
        frame = frame.f_back
    return False


def saved_form() -> Optional[str]:
    """Return which graph of a cast child is asked for, 'plain' or 'cast'; None while not saving."""
    return getattr(_state, "form", None)


@contextlib.contextmanager
def _saving(form: str):
    _state.form = form
    try:
        yield
    finally:
        _state.form = None


def _saved_graph(parent: HybridBlock, form: str) -> tuple:
    """Trace a block again, with its cast children's graphs in the given form."""
    inputs, arguments, params = parent._amp_inputs
    with _saving(form), parent.name_scope():
        out = parent.hybrid_forward(mx.symbol, *arguments, **params)
    out, _ = _flatten(out, "output")
    return inputs, mx.sym.Group(out, _check_same_symbol_type(out))
