"""Float32 sums of the gradients of several backward passes, of which one update is made.

A float16 sum overflows, or loses what is small beside it, and one overflowed pass spoils it. Here
each pass is checked and divided by its own scale, which is exact. A pass that is not finite is left
out (asked for in DeepSpeed 2768 and Megatron-LM 4028).
"""

from typing import Dict, Iterable, Set, Tuple

import numpy as np

from gluon_amp.base.array_kinds import of_kind, set_to_zero, zeros_like
from gluon_amp.optimizer.arrays import add_scaled, multiply
from gluon_amp.optimizer.base import cast, dense

from mxnet import gluon
from mxnet.ndarray import NDArray


class GradientSums:
    """The sums of a trainer's gradients; each belongs to a weight on one device.

    Between steps their memory is kept, until `free`.
    """

    def __init__(self):
        self._gradients: Dict[gluon.Parameter, list] = {}  # while sums are in their place
        self.free()
        self.end()

    def free(self) -> None:
        """Free the memory."""
        # By the id of the weight, which is kept so that no other array gets its id
        self._arrays: Dict[int, Tuple[NDArray, NDArray]] = {}

    def end(self) -> None:
        """Begin the sums of another step, and put the gradients back in their place."""
        for parameter, gradients in self._gradients.items():
            parameter._grad = gradients
        self._added: Set[int] = set()
        self._not_finite: Set[int] = set()  # of the last pass that was dropped
        self._gradients = {}
        self.kept = self.dropped = 0

    @property
    def passes(self) -> int:
        """The number of passes of this step, kept and dropped."""
        return self.kept + self.dropped

    @property
    def in_use(self) -> bool:
        """Whether the sums are in the place of the parameters' gradients."""
        return bool(self._gradients)

    def add(self, weights: Iterable[NDArray], scale: float) -> None:
        """Add the gradients of weights, divided by the scale that they carry."""
        weights, sums = list(weights), []
        gradients = [dense(weight.grad) for weight in weights]
        for weight, gradient in zip(weights, gradients):
            sums.append(self._array(weight, np.promote_types(gradient.dtype, "float32")))
            if id(weight) not in self._added:
                set_to_zero(sums[-1:])
                self._added.add(id(weight))
        add_scaled(sums, gradients, 1 / scale)
        self.kept += 1

    def drop(self, not_finite: Iterable[NDArray]) -> None:
        """Leave out a pass; `not_finite` are the weights whose gradients were not."""
        self._not_finite = set(map(id, not_finite))
        self.dropped += 1

    def put(self, parameters: Iterable[gluon.Parameter]) -> None:
        """Put the sums in the place of these parameters' gradients until the end of the step.

        They stand for all passes: where some were dropped, for as many passes like the others. If
        none was kept, what was not finite is infinite.
        """
        for parameter in parameters:
            sums = [self._sum(weight) for weight in parameter.list_data()]
            self._gradients[parameter] = parameter._grad
            parameter._grad = sums
        if self.kept and self.dropped:
            sums = (one for p in self._gradients for one in p.list_grad())
            multiply(sums, self.passes / self.kept)

    def _sum(self, weight: NDArray) -> NDArray:
        total = self._array(weight, np.promote_types(weight.dtype, "float32"))
        if id(weight) not in self._added:
            total[:] = np.inf if id(weight) in self._not_finite and not self.kept else 0
        return of_kind(total, weight)

    def _array(self, weight: NDArray, dtype: np.dtype) -> NDArray:
        if id(weight) not in self._arrays:
            self._arrays[id(weight)] = weight, zeros_like(cast(weight.as_nd_ndarray(), dtype))
        return self._arrays[id(weight)][1]
