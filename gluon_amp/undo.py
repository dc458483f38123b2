"""What a skipped step has to put back besides the parameters: statistics that the forward writes.

BatchNorm's running mean and variance take in a batch before anyone can know that its gradients
overflow: on a CPU during the backward pass, on a GPU already in the forward. A skip would leave
them infinite or half moved, and only validation would show it.
"""

from collections import defaultdict
from typing import Dict, Iterable, List, Tuple

from mxnet import autograd, nd
from mxnet.gluon import Parameter
from mxnet.ndarray import NDArray


def is_statistic(parameter) -> bool:
    """Whether the forward pass, and not the optimizer, writes this parameter."""
    return parameter.grad_req == "null" and not parameter._differentiable


class Snapshot:
    """Copies of statistics as they were when a step began; buffers are used again and again.

    All arrays of a device and dtype are copied by one operator: a ResNet-50 has 106, and as many
    calls from Python would take longer than all else that a loss scale does.
    """

    def __init__(self):
        self._buffers: Dict[Tuple, NDArray] = {}
        self._taken: Dict[int, Parameter] = {}
        self._copies: List[Tuple[List[Tuple[Parameter, int]], NDArray]] = []

    def take(self, parameters: Iterable[Parameter]) -> None:
        """Copy what was not yet copied since the last `clear`; uninitialized ones wait.

        Parameters
        ----------
        parameters : iterable of Parameter
        """
        missing = [p for p in parameters if id(p) not in self._taken and p._data is not None]
        groups = defaultdict(list)
        for parameter in missing:
            # The parameter itself is kept, as its id names it only while it lives.
            self._taken[id(parameter)] = parameter
            for place, array in enumerate(parameter.list_data()):
                groups[array.context, array.dtype].append((parameter, place))
        with autograd.pause():
            for kind, places in groups.items():
                arrays = [_flat(parameter.list_data()[place]) for parameter, place in places]
                key = (*kind, sum(array.size for array in arrays))
                self._buffers[key] = buffer = nd.concat(
                    *arrays, dim=0, out=self._free(key)
                )  # fmt: skip
                self._copies.append((places, buffer))

    def _free(self, key: Tuple):
        """Return a buffer of a step before; None where there is none that is not in use."""
        buffer = self._buffers.get(key)
        in_use = any(buffer is copy for _, copy in self._copies)
        return None if in_use else buffer

    def restore(self) -> None:
        """Write the copies back."""
        for places, buffer in self._copies:
            start = 0
            for parameter, place in places:
                array = parameter.list_data()[place]
                buffer[start : start + array.size].reshape(array.shape).copyto(array)
                start += array.size

    def clear(self) -> None:
        """Begin the next step: nothing has been copied yet."""
        self._taken = {}
        self._copies = []


def _flat(array: NDArray) -> NDArray:
    return array if array.ndim == 1 else array.reshape(-1)
