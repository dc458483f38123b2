"""Search for the first loss scale: replays of a backward pass at lower scales, by bisection.

An overflow does not show at which scale the gradients fit. Halving the scale until they fit costs
one step each time, and a short run has few.

The pass is then repeated at the scale that is found, and the step is made with its gradients. A
replay with head gradients of zero finds a loss that ignores them.
"""

import functools
import gc
import math
from contextlib import contextmanager
from typing import Callable, Dict, Iterable, Iterator, List, Optional

from gluon_amp.base.array_kinds import set_to_zero
from gluon_amp.optimizer.arrays import all_finite, all_zero, head_gradients, restored
from gluon_amp.trainer import repeatable
from gluon_amp.trainer.passes import clear_fresh, mark_fresh

import mxnet as mx
from mxnet import MXNetError, autograd
from mxnet.ndarray import NDArray

# Returns whether the gradients of a pass at this scale are finite.
Fits = Callable[[float], bool]

VARIABLE = "var"  # MXNet names an array with a gradient so, with a number, and others null1
ARRAY_CLASSES = (NDArray, mx.np.ndarray)

IGNORED_HEADS = (
    "The loss ignores its head gradient, as SoftmaxOutput does, so that no loss scale reaches the "
    "gradients: pass loss_scale=None to the Trainer, or use a loss such as "
    "gluon.loss.SoftmaxCrossEntropyLoss."
)


def largest_power(low: float, high: float, fits: Fits) -> Optional[float]:
    """Return the largest power of two from `low` to `high` that fits; None if there is none.

    A number that fits has to fit together with all below it.
    """
    first, last = int(math.log2(low)), int(math.log2(high))
    below, above = first - 1, last + 1
    while above - below > 1:
        middle = (below + above) // 2
        if fits(2.0**middle):
            below = middle
        else:
            above = middle
    return None if below < first else 2.0**below


def check_heads(kept: "KeptPass") -> None:
    """Raise `ValueError` for a pass that ignores its head gradients, which no scale can reach.

    Gradients of zero have to follow from head gradients of zero.
    """
    try:
        scalable = kept.holds(0.0, all_zero, kept.reached())
    except MXNetError:  # the pass cannot be replayed, see `KeptPass.search`
        return
    if not scalable:
        raise ValueError(IGNORED_HEADS)


class KeptPass:
    """A backward pass whose graph is kept, so that it can run again at other scales.

    `run` runs it at a scale, into the present gradient buffers. `autograd.grad` would compute in
    arrays of its own, and there oneDNN's gradient of a deconvolution crashes
    (`lowering/deconvolution`). On a CPU a replay writes running statistics.
    """

    def __init__(
        self,
        losses: List[NDArray],
        weights: List[NDArray],
        run: Callable[[float], None],
        may_repeat: bool,
    ):
        self._losses, self._weights, self._run = losses, weights, run
        # All gradients that the pass writes, as far as they can be found
        self.written: List[NDArray] = []
        self._error: Optional[MXNetError] = None
        try:
            self.written = [one.grad for one in variables_of(losses, weights)]
        except MXNetError as error:
            self._error = error
        # What the pass may add to; MXNet does not show which gradients are added
        self._before = [one.copy() for one in self.written] if may_repeat else []

    def reached(self) -> List[NDArray]:
        """Return the trainer's gradients that the pass has written."""
        return [weight.grad for weight in self._weights if weight._fresh_grad]

    def holds(
        self, scale: float, condition: Callable[[List[NDArray]], bool], gradients: List[NDArray]
    ) -> bool:
        """Return whether a condition holds for gradients of the pass at a scale.

        All buffers are restored, as other trainers and users may need what the pass wrote there.
        """
        if self._error is not None:
            raise self._error
        if not gradients:
            return True
        with restored(self.written):
            set_to_zero(self.written)  # for grad_req="add"
            self._run(scale)
            return condition(gradients)

    def search(self, low: float, high: float) -> Optional[float]:
        """Return the largest scale from `low` to `high` at which the pass fits; 0 if none does.

        Most passes after the first one of a step fit at `high`, so it is tried first. Gradients
        that the trainer does not own count too, unless they fit nowhere. Return None if the pass
        cannot be replayed: MXNet runs the backward pass of foreach, while_loop and cond only once,
        or see `variables_of`.
        """
        if not high:
            return 0.0  # an earlier pass of the step fits nowhere
        written, own = self.written, self.reached()
        for gradients in (written, own) if len(own) < len(written) else (own,):
            fits = functools.partial(self.holds, condition=all_finite, gradients=gradients)
            try:
                found = high if fits(high) else largest_power(low, high / 2, fits)
            except MXNetError:
                return None
            if found:
                return found
        return 0.0

    def can_repeat(self) -> bool:
        """Return whether a second run of the pass has the same dropout masks and states."""
        return repeatable.can_repeat(self._losses)

    def repeat(self, scale: float, factor: float) -> None:
        """Run the pass again, and leave its gradients where the first one wrote them.

        Buffers get what they held before the first one, times a factor, where gradients are added.
        """
        for gradient, before in zip(self.written, self._before):
            before *= factor
            before.copyto(gradient)
        self._run(scale)


@contextmanager
def replays(
    losses: Iterable[NDArray],
    weights: Iterable[NDArray],
    run: Callable[[float], None],
    retain_graph: bool,
    may_repeat: bool,
) -> Iterator[KeptPass]:
    """Keep the graph of the backward pass that runs inside, and yield what replays it."""
    losses = [one.as_nd_ndarray() for one in losses]
    contexts = {one.context for one in losses}
    weights = [weight for weight in weights if weight.context in contexts]
    marked = clear_fresh(weights)
    try:
        yield KeptPass(losses, weights, run, may_repeat)
    finally:
        mark_fresh(marked)
    if not retain_graph:
        free_graph(losses)


def variables_of(losses: List[NDArray], likely: Iterable[NDArray]) -> List[NDArray]:
    """Return the arrays with gradients that a backward pass of losses writes.

    Those that are not among the likely ones are found among all of Python's arrays: inputs of the
    net, or the weights of another trainer. Raise `MXNetError` if one is not found, as it was
    deleted or has another gradient by now.
    """
    names = {name for loss in losses for name in autograd.get_symbol(loss).list_arguments()}
    names = {name for name in names if name.startswith(VARIABLE)}
    found: Dict[str, NDArray] = {}
    for arrays in (lambda: likely, _all_arrays):
        if names.difference(found):
            marked = (one for one in arrays() if one.grad is not None)
            found.update((autograd.get_symbol(one).name, one) for one in marked)
    if names.difference(found):
        raise MXNetError("The pass writes gradients that are out of reach, so it is not replayed.")
    return [found[name] for name in names]


def _all_arrays() -> List[NDArray]:
    return [one for one in gc.get_objects() if type(one) in ARRAY_CLASSES]


def free_graph(losses: List[NDArray]) -> None:
    """Free the graph of losses, as a backward pass without `retain_graph` does.

    Otherwise the activations stay in memory for as long as the caller keeps a loss, usually until
    the next forward pass is over. The backward pass that frees it here computes nothing but the
    gradient of a constant.
    """
    constants = head_gradients(losses, 0.0)
    with mx.util.np_shape(True):  # losses of `mx.np` can have the shape ()
        for constant in constants:
            constant.attach_grad()
        with autograd.record():
            sums = [one + constant for one, constant in zip(losses, constants)]
        autograd.grad(sums, constants)
