"""BatchNorm's running statistics: which parameters they are, and when a pass uses them.

Each forward pass, cast or not, hybridized or not, calls `Parameter.data`. The class `Statistic`
notifies listeners there.
"""

from typing import Callable, Iterable, List

from mxnet import autograd, gluon
from mxnet.ndarray import NDArray

# Each is called with the statistics that a training pass is about to use.
listeners: List[Callable[[Iterable[gluon.Parameter]], None]] = []


def is_statistic(parameter: gluon.Parameter) -> bool:
    """Return whether operators, and not the optimizer, write this parameter."""
    return parameter.grad_req == "null" and not parameter._differentiable


class Statistic(gluon.Parameter):
    """A running statistic that notifies the listeners of each training pass that uses it."""

    def data(self, ctx=None):
        """As `gluon.Parameter.data`; notifies the listeners."""
        data = super().data(ctx)
        if autograd.is_recording() and autograd.is_training():
            notify([self])
        return data


def notify(statistics: Iterable[gluon.Parameter]) -> None:
    """Notify the listeners that a training pass is about to use these statistics."""
    for listener in listeners:
        listener(statistics)


def watch(parameters: Iterable[gluon.Parameter]) -> None:
    """Change the class of the statistics among these parameters to `Statistic`."""
    for parameter in parameters:
        if is_statistic(parameter) and type(parameter) is gluon.Parameter:
            parameter.__class__ = Statistic


def unwatch(parameters: Iterable[gluon.Parameter]) -> None:
    """Undo `watch`."""
    for parameter in parameters:
        if type(parameter) is Statistic:
            parameter.__class__ = gluon.Parameter


def arrays_of(parameters: Iterable[gluon.Parameter]) -> List[NDArray]:
    """Return the arrays of the initialized ones of these parameters, on all devices."""
    return [array for p in parameters if p._data is not None for array in p.list_data()]
