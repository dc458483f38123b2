"""Where a trainer's gradients are, and what is done to all of them.

They are the parameters' own arrays, which backward passes write, or float32 sums of the passes of
`backward(accumulate=True)` in their place. A float16 sum overflows, or loses what is small beside
it, and one overflowed pass spoils it. So each pass is checked and divided by its own scale, which
is exact. A pass that is not finite is left out (asked for in DeepSpeed 2768 and Megatron-LM 4028).

Over devices and workers, MXNet's kvstore adds gradients up, or a class with a reduction of its own,
such as Horovod's trainer. The kvstore adds float16 on CPUs in a scalar loop, so `reduce` adds these
gradients up itself.
"""

import logging
import math
from typing import Callable, Dict, Iterable, Iterator, List, Optional, Set, Tuple

import numpy as np

from gluon_amp.base.array_kinds import of_kind, set_to_zero, zeros_like
from gluon_amp.base.host import on_cpu
from gluon_amp.base.writes import version
from gluon_amp.optimizer.arrays import add_scaled, add_up, all_finite, finite, multiply, square_sums
from gluon_amp.optimizer.base import cast, dense

import mxnet as mx
from mxnet import gluon
from mxnet.ndarray import NDArray

logger = logging.getLogger("gluon_amp")

Named = List[Tuple[str, List[NDArray]]]  # names of parameters, each with some of its gradients


class GradientArrays:
    """The gradients of a trainer's initialized parameters, on all devices."""

    def __init__(self, trainer: gluon.Trainer):
        self._trainer = trainer
        self._own: Dict[gluon.Parameter, list] = {}  # of parameters with sums in their place
        # By the id of the weight, which is kept so that no other array gets its id
        self._sums: Dict[int, Tuple[NDArray, NDArray]] = {}
        self._added: Set[int] = set()  # weights with a sum of this step
        self._not_finite: Set[int] = set()  # those of the last pass that was dropped
        self._keys_of_sums: Set[int] = set()  # those that the kvstore has

    def __iter__(self) -> Iterator[NDArray]:
        return (grad for param in self.trained() for grad in param.list_grad())

    def trained(self) -> List[gluon.Parameter]:
        """Return the initialized parameters that have gradients."""
        params = self._trainer._params
        return [p for p in params if p.grad_req != "null" and p._data is not None]

    def weights(self) -> List[NDArray]:
        """Return the arrays of these parameters on all devices."""
        return [array for param in self.trained() for array in param.list_data()]

    def newly_written(self) -> Dict[int, str]:
        """Return the `grad_req` of each weight, by its `id`, that has MXNet's mark now."""
        marked = ((p.grad_req, w) for p in self.trained() for w in p.list_data() if w._fresh_grad)
        return {id(weight): grad_req for grad_req, weight in marked}

    def used(self, is_fresh: Callable[[NDArray], bool]) -> Named:
        """Return those that a step uses, with the names of their parameters.

        A reduction adds stale gradients to fresh ones, so both count there. Where it crosses
        workers, this worker cannot know which are fresh on others. All count then, so that all
        workers decide alike.
        """
        used = []
        for param in self.trained():
            pairs = list(zip(param.list_data(), param.list_grad()))
            fresh = [grad for data, grad in pairs if is_fresh(data)]
            reduced = self.cross_workers or (self._trainer._kvstore is not None and fresh)
            used.append((param.name, [grad for _, grad in pairs] if reduced else fresh))
        return used

    def measure(self, used: Named) -> Tuple[float, Dict[int, Optional[int]]]:
        """Return the norm of gradients as they are, and the versions of their arrays by `id`.

        There are no versions if not all gradients are finite.
        """
        grads = [grad for _, arrays in used for grad in arrays]
        sums = square_sums(grads)
        if self.are_exchanged:  # all devices hold the same gradients, of which one copy counts
            first = self._trainer.contexts[:1]
            counted = [one for one, grad in zip(sums, grads) if grad.context in first]
        else:
            counted = sums
        versions = {id(grad): version(grad) for grad in grads} if np.isfinite(sums).all() else {}
        return math.sqrt(sum(counted)), versions

    def set_to_zero(self) -> None:
        """Set all to zero, and clear MXNet's marks.

        Also those that later passes overwrite: one that no pass wrote would overflow again.
        """
        for param in self.trained():
            set_to_zero(param.list_grad())
            clear_fresh(param.list_data())

    # ------------------------------------------------------------------ sums of passes

    def add_pass(self, weights: Iterable[NDArray], scale: float, checked: bool) -> bool:
        """Add gradients that the last pass wrote to their sums, divided by the pass's scale.

        If they are `checked` and not all finite, drop the pass, and return False. The arrays of the
        sums are kept between steps.
        """
        reached = [weight for weight in weights if weight._fresh_grad]
        grads = [weight.grad for weight in reached]
        if checked and not all_finite(grads):
            flags = finite(grads)
            self._not_finite = {id(one) for one, fits in zip(reached, flags) if not fits}
            set_to_zero(grads)
            logger.info("Backward pass left out: gradients overflowed at loss scale %g.", scale)
            return False
        grads, sums = [dense(grad) for grad in grads], []
        for weight, gradient in zip(reached, grads):
            sums.append(self._sum_of(weight, np.promote_types(gradient.dtype, "float32")))
            if id(weight) not in self._added:
                set_to_zero(sums[-1:])
                self._added.add(id(weight))
        add_scaled(sums, grads, 1 / scale)
        return True

    def put_sums(self, kept: int, dropped: int) -> None:
        """Put the sums in the place of the parameters' gradients until the end of the step.

        They stand for all passes: where some were dropped, for as many passes like the others. If
        none was kept, what was not finite is infinite.
        """
        for param in self.trained():
            sums = []
            for weight in param.list_data():
                total = self._sum_of(weight, np.promote_types(weight.dtype, "float32"))
                if id(weight) not in self._added:
                    total[:] = np.inf if id(weight) in self._not_finite and not kept else 0
                sums.append(of_kind(total, weight))
            self._own[param], param._grad = param._grad, sums
        if kept and dropped:
            multiply((one for p in self._own for one in p.list_grad()), (kept + dropped) / kept)

    def _sum_of(self, weight: NDArray, dtype: np.dtype) -> NDArray:
        if id(weight) not in self._sums:
            self._sums[id(weight)] = weight, zeros_like(cast(weight.as_nd_ndarray(), dtype))
        return self._sums[id(weight)][1]

    def free_sums(self) -> None:
        """Free the memory of the sums."""
        self._sums = {}

    def end_step(self) -> None:
        """Put the parameters' own gradients back in their place, and begin other sums."""
        for param, gradients in self._own.items():
            param._grad = gradients
        self._own, self._added, self._not_finite = {}, set(), set()

    # ------------------------------------------------------------------ devices and workers

    @property
    def has_own_reduction(self) -> bool:
        """Whether another class, such as Horovod's, has a reduction of its own."""
        return type(self._trainer)._allreduce_grads is not gluon.Trainer._allreduce_grads

    @property
    def are_exchanged(self) -> bool:
        """Whether gradients are exchanged at all, between devices or workers."""
        return self._trainer._kvstore is not None or self.has_own_reduction

    @property
    def are_sums(self) -> bool:
        """Whether sums of passes are in the place of the parameters' gradients."""
        return bool(self._own)

    @property
    def cross_workers(self) -> bool:
        """Whether a reduction may exchange gradients with other workers."""
        store = self._trainer._kvstore
        return self.has_own_reduction or bool(store and store.num_workers > 1)

    def divide(self) -> float:
        """Divide them before a reduction so that no float16 sum overflows; return the divisor.

        It is a power of two at least as high as their number: exact, apart from underflow. `reduce`
        divides those that it adds up itself.
        """
        divisor = 2.0 ** (self._summands() - 1).bit_length()
        # Another class may sum float32 gradients in float16, as Horovod does on request.
        if divisor == 1 or not (
            self.has_own_reduction or any(np.dtype(grad.dtype) == np.float16 for grad in self)
        ):
            return 1.0
        others = set(self.trained()).difference(self._added_here())
        multiply((grad for param in others for grad in param.list_grad()), 1 / divisor)
        return divisor

    def _summands(self) -> int:
        """Return how many gradients of each parameter are added up; 1 if that is not known."""
        if self.has_own_reduction:
            # Horovod's trainer adds up one gradient of each process, divided by a factor already.
            workers = getattr(self._trainer, "_process_set", None)
            factor = getattr(self._trainer, "_gradient_predivide_factor", 1)
            return math.ceil(workers.size() / factor) if workers else 1
        store = self._trainer._kvstore
        return len(self._trainer.contexts) * store.num_workers if store else 1

    def reduce(self, divisor: float = 1.0) -> None:
        """Add them up over devices and workers, once `divide` has returned this divisor."""
        here = [] if self.are_sums else self._added_here()
        if self.are_sums and not self.has_own_reduction:
            self._reduce_sums()
        elif not here:
            self._trainer._allreduce_grads()
        else:
            add_up([param.list_grad() for param in here], 1 / divisor)
            others = set(self.trained()).difference(here)
            for index, param in enumerate(self._trainer._params):
                if param in others:
                    self._trainer._kvstore.pushpull(index, param.list_grad(), priority=-index)

    def _reduce_sums(self) -> None:
        """Reduce sums as a trainer reduces gradients, under other keys: their dtype may differ."""
        store, params = self._trainer._kvstore, self._trainer._params
        for index, param in enumerate(params if store else ()):
            if param.grad_req != "null":
                key, sums = len(params) + index, param.list_grad()
                if key not in self._keys_of_sums:
                    store.broadcast(key, zeros_like(sums[0]), list(map(zeros_like, sums)))
                    self._keys_of_sums.add(key)
                store.pushpull(key, sums, priority=-index)

    def _added_here(self) -> List[gluon.Parameter]:
        """Return the parameters whose gradients `reduce` adds up: float16, on this process's CPUs.

        The bits are those of the kvstore. One that is not of the kind "device" adds more than two
        gradients in another order, so it keeps them.
        """
        trainer, trained = self._trainer, self.trained()
        store = trainer._kvstore
        if type(store) is not mx.kvstore.KVStore or self.cross_workers:
            return []
        in_order = len(trainer.contexts) == 2 or "device" in store.type
        if trainer._compression_params or not in_order or any(g.stype != "default" for g in self):
            return []
        half = [all(on_cpu(g) and g.dtype == np.float16 for g in p.list_grad()) for p in trained]
        return [param for param, is_half in zip(trained, half) if is_half]


def mark_fresh(weights: Iterable[NDArray]) -> None:
    """Set the marks by which MXNet knows that a backward pass wrote these weights' gradients."""
    for weight in weights:
        weight._fresh_grad = True


def clear_fresh(weights: Iterable[NDArray]) -> list:
    """Clear these marks, and return the weights that had one."""
    marked = [weight for weight in weights if weight._fresh_grad]
    for weight in marked:
        weight._fresh_grad = False
    return marked
