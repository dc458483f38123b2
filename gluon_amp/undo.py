"""What a skipped step has to put back besides the parameters: statistics that the forward writes.

BatchNorm's running mean and variance take in a batch before anyone can know that its gradients
overflow: on a CPU during the backward pass, on a GPU already in the forward. A skip would leave
them infinite or half moved, and only validation would show it.
"""

from mxnet import autograd


def is_statistic(parameter) -> bool:
    """Whether the forward pass, and not the optimizer, writes this parameter."""
    return parameter.grad_req == "null" and not parameter._differentiable


class Snapshot:
    """Copies of statistics as they were when a step began; buffers are used again and again."""

    def __init__(self):
        self._copies = {}
        self._taken = {}

    def take(self, parameters) -> None:
        """Copy what was not yet copied since the last `clear`; uninitialized ones wait.

        Parameters
        ----------
        parameters : iterable of Parameter
        """
        missing = [p for p in parameters if id(p) not in self._taken and p._data is not None]
        if not missing:
            return
        with autograd.pause():
            for parameter in missing:
                arrays = parameter.list_data()
                copies = self._copies.get(id(parameter))
                if copies is None or not all(map(_alike, arrays, copies)):
                    copies = [array.copy() for array in arrays]
                    self._copies[id(parameter)] = copies
                else:
                    for array, copy in zip(arrays, copies):
                        array.copyto(copy)
                # The parameter itself is kept, as its id names it only while it lives.
                self._taken[id(parameter)] = parameter

    def restore(self) -> None:
        """Write the copies back."""
        for key, parameter in self._taken.items():
            for array, copy in zip(parameter.list_data(), self._copies[key]):
                copy.copyto(array)

    def clear(self) -> None:
        """Begin the next step: nothing has been copied yet."""
        self._taken = {}


def _alike(array, copy) -> bool:
    same_place = array.context == copy.context
    return same_place and array.shape == copy.shape and array.dtype == copy.dtype
