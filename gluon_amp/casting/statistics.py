"""BatchNorm's running statistics: which parameters they are, and which passes use them.

Every forward pass, cast or not, hybridized or not, calls `data` of its parameters. So a parameter
that is watched notifies the listeners of each training pass that is about to use it.
"""

from typing import Callable, Iterable, List

from mxnet import autograd, gluon
from mxnet.ndarray import NDArray

# Called with the statistics that a training pass is about to use.
listeners: List[Callable[[Iterable[gluon.Parameter]], None]] = []


def is_statistic(parameter: gluon.Parameter) -> bool:
    """Return whether operators, and not the optimizer, write this parameter."""
    return parameter.grad_req == "null" and not parameter._differentiable


class Statistic(gluon.Parameter):
    """A running statistic that notifies the listeners of each training pass that uses it."""

    def data(self, ctx=None):
        """As `gluon.Parameter.data`."""
        data = super().data(ctx)
        if autograd.is_recording() and autograd.is_training():
            notify([self])
        return data


def notify(statistics: Iterable[gluon.Parameter]) -> None:
    """Notify the listeners that a training pass is about to use these statistics."""
    for listener in listeners:
        listener(statistics)


def watch(parameters: Iterable[gluon.Parameter]) -> None:
    """Make the statistics among these parameters notify the listeners."""
    for parameter in parameters:
        if is_statistic(parameter) and type(parameter) is gluon.Parameter:
            parameter.__class__ = Statistic


def unwatch(parameters: Iterable[gluon.Parameter]) -> None:
    """Undo `watch`."""
    for parameter in parameters:
        if type(parameter) is Statistic:
            parameter.__class__ = gluon.Parameter


def arrays_of(parameters: Iterable[gluon.Parameter]) -> List[NDArray]:
    """Return the arrays of these parameters on all devices; uninitialized ones have none."""
    return [array for p in parameters if p._data is not None for array in p.list_data()]
