"""Search for the first loss scale: replays of a backward pass at lower scales, by bisection.

An overflow does not show at which scale the gradients fit. Halving the scale until they fit costs
one step each time, and a short run has few.

The pass is then repeated at the scale that is found, and the step is made with its gradients. A
replay with head gradients of zero finds a loss that ignores them.
"""

import functools
import math
from contextlib import contextmanager
from typing import Callable, Iterable, Iterator, List, Optional, Tuple

from gluon_amp.base.array_kinds import set_to_zero
from gluon_amp.graph import op_table
from gluon_amp.graph.runs_once import find_runs_once
from gluon_amp.graph.tape import Tape, memory_of
from gluon_amp.optimizer.arrays import all_finite, all_zero, doublings, head_gradients, multiply
from gluon_amp.trainer.passes import clear_fresh, mark_fresh

import mxnet as mx
from mxnet import MXNetError, autograd
from mxnet.ndarray import NDArray

# Returns whether the gradients of a pass at this scale are finite.
Fits = Callable[[float], bool]

IGNORED_HEADS = (
    "The loss ignores its head gradient, as SoftmaxOutput does, so that no loss scale reaches the "
    "gradients: pass loss_scale=None to the Trainer, or use a loss such as "
    "gluon.loss.SoftmaxCrossEntropyLoss."
)


def largest_power(
    low: float, high: float, fits: Fits, doublings: Callable[[], float] = lambda: math.inf
) -> Optional[float]:
    """Return the largest power of two from `low` to `high` that fits; None if there is none.

    A number that fits has to fit together with all below it. `doublings` returns how often the last
    one that fits can be doubled at most, if that is known: there it probably fits, too.
    """
    first, last = int(math.log2(low)), int(math.log2(high))
    below, above = first - 1, last + 1
    middle = (below + above) // 2
    while above - below > 1:
        fitted = fits(2.0**middle)
        below, above = (middle, above) if fitted else (below, middle)
        more = doublings() if fitted else math.inf
        if more == 0:
            break
        middle = int(middle + more) if middle + more < above else (below + above) // 2
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

    `why_not` says why the pass cannot be repeated. It is empty if a second run has the same
    gradients: those of dropout have the same masks. A pass can be replayed, only to see where it
    fits, if it runs no code that is unknown.
    """

    def __init__(
        self,
        tape: Optional[Tape],
        weights: List[NDArray],
        run: Callable[[float], None],
        may_repeat: bool,
    ):
        self._weights, self._run = weights, run
        own = {memory_of(weight.grad): weight.grad for weight in weights}
        # All gradients that the pass writes, whoever owns them
        gradients = tape.gradients if tape else own.values()
        self.written = [own.get(memory_of(one), one) for one in gradients]
        self.why_not, self._replays = _judge(tape, weights)
        added = set(map(memory_of, tape.added)) if tape else set()
        self._added = [one for one in self.written if memory_of(one) in added]
        repeats = may_repeat and not self.why_not
        self._before = [one.copy() for one in self._added] if repeats else []
        self._results: List[NDArray] = []  # what the pass wrote, while replays are in its place

    def reached(self) -> List[NDArray]:
        """Return the trainer's gradients that the pass has written."""
        return [weight.grad for weight in self._weights if weight._fresh_grad]

    def holds(
        self, scale: float, condition: Callable[[List[NDArray]], bool], gradients: List[NDArray]
    ) -> bool:
        """Return whether a condition holds for gradients of the pass at a scale.

        `restore` ends the replays. Raise `MXNetError` for a pass that cannot be replayed.
        """
        if not self._replays:
            raise MXNetError(self.why_not)
        if not gradients:
            return True
        if not self._results:
            self._results = [one.copy() for one in self.written]
            set_to_zero(self.written)
        set_to_zero(self._added)
        self._run(scale)
        return condition(gradients)

    def restore(self) -> None:
        """Restore all buffers: other trainers and users may need what the pass wrote there."""
        for gradient, result in zip(self.written, self._results):
            result.copyto(gradient)
        self._results = []

    def search(self, low: float, high: float, tried: float) -> Optional[float]:
        """Return the largest scale from `low` to `high` at which the pass fits; 0 if none does.

        Most passes after the first one of a step fit at `high`, so it is tried first, unless the
        pass itself overflowed there: `tried` is its scale. Gradients that the trainer does not own
        count too, unless they fit nowhere. Return None if that is not known, as the pass cannot be
        replayed, or replays of it have other gradients.
        """
        if not high:
            return 0.0  # an earlier pass of the step fits nowhere
        written, own = self.written, self.reached()
        overflowed = tried == high and not self._added and not all_finite(self._results or written)
        for gradients in (written, own) if len(own) < len(written) else (own,):
            fits = functools.partial(self.holds, condition=all_finite, gradients=gradients)
            try:
                if not overflowed and fits(high):
                    return high
                more = functools.partial(doublings, gradients)
                found = largest_power(low, high / 2, fits, more)
            except MXNetError:  # that of a loop, too, which MXNet runs backward only once
                return None
            overflowed = False
            if found:
                return found
        return None if self.why_not else 0.0

    def repeat(self, scale: float, factor: float) -> None:
        """Run the pass again, and leave its gradients where the first one wrote them.

        Buffers get what they held before the first one, times a factor, where gradients are added.
        """
        if factor != 1:
            multiply(self._before, factor)
        for gradient, before in zip(self._added, self._before):
            before.copyto(gradient)
        self._run(scale)


def _judge(tape: Optional[Tape], weights: List[NDArray]) -> Tuple[str, bool]:
    """Return why a pass cannot be repeated, if so, and whether it can be replayed at all."""
    graphs = tape and tape.graphs()
    if not graphs:
        return "MXNet does not show the operators of the pass", False
    device = weights[0].context.device_type if weights else "cpu"
    once = next(filter(None, (find_runs_once(one, device) for one in graphs)), None)
    if once is None:
        return "", True
    known = not op_table.has("code", once)
    reason = "has other gradients in a second backward pass" if known else "runs code of its own"
    return f"the operator {once} {reason}", known


@contextmanager
def replays(
    losses: Iterable[NDArray],
    tape: Optional[Tape],
    weights: Iterable[NDArray],
    run: Callable[[float], None],
    retain_graph: bool,
    may_repeat: bool,
) -> Iterator[KeptPass]:
    """Keep the graph of the backward pass that runs inside, and yield what replays it."""
    losses = [one.as_nd_ndarray() for one in losses]
    contexts = {one.context for one in losses}
    weights = [weight for weight in weights if weight.context in contexts]
    kept = KeptPass(tape, weights, run, may_repeat)
    marked = clear_fresh(weights)
    try:
        yield kept
    finally:
        with autograd.pause():  # users may call backward() while recording
            kept.restore()
        mark_fresh(marked)
    if not retain_graph:
        free_graph(losses)


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
