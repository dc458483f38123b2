"""Search for the first loss scale: replays of a backward pass at lower scales, by bisection.

An overflow does not show at which scale the gradients fit. Halving the scale until they fit costs
one step each time, and a short run has few.

The pass is then repeated at the scale that is found, and the step is made with its gradients. A
replay with head gradients of zero finds a loss that ignores them.
"""

import functools
import logging
import math
from typing import Callable, List, Optional, Sequence, Tuple

from gluon_amp.base.array_kinds import set_to_zero
from gluon_amp.casting.snapshots import Snapshots
from gluon_amp.graph import op_table
from gluon_amp.graph.runs_once import find_runs_once
from gluon_amp.graph.tape import Tape, memory_of
from gluon_amp.optimizer.arrays import (
    all_finite,
    all_zero,
    doublings,
    head_gradients,
    multiply,
    restored,
)
from gluon_amp.trainer.gradients import GradientArrays, clear_fresh, mark_fresh
from gluon_amp.trainer.loss_scale import GUESS, FiniteCheck, LossScale
from gluon_amp.trainer.state import Found, Pass

import mxnet as mx
from mxnet import MXNetError, autograd
from mxnet.ndarray import NDArray

logger = logging.getLogger("gluon_amp")

# Returns whether the gradients of a pass at this scale are finite.
Fits = Callable[[float], bool]

IGNORED_HEADS = (
    "The loss ignores its head gradient, as SoftmaxOutput does, so that no loss scale reaches the "
    "gradients: pass loss_scale=None to the Trainer, or use a loss such as "
    "gluon.loss.SoftmaxCrossEntropyLoss."
)

# Why a pass was not repeated: see `StepReport.not_repeated`
NOT_KEPT = "its graph was not kept, as in amp.scale_loss or in a pass for each device"
BESIDE_OTHERS = "another trainer's gradients with the same loss scale waited for their step"


class FirstScale:
    """The search of one trainer: it runs backward passes, and finds the scale at which they fit."""

    def __init__(self, scale: LossScale, gradients: GradientArrays):
        self._scale, self._gradients = scale, gradients
        # Whether the losses multiply their head gradients, which only a scale needs
        self._heads_checked = isinstance(scale, FiniteCheck)

    @property
    def needs_graph(self) -> bool:
        """Whether the next pass has to be kept, so that it can run again."""
        return self._scale.searching or not self._heads_checked

    def run(
        self,
        run: Callable[[float], None],
        began: Pass,
        losses: Sequence[NDArray],
        tape: Optional[Tape],
        written: Snapshots,
        retain_graph: bool = False,
        check_heads: bool = False,
    ) -> Found:
        """Run a backward pass, and repeat it at a lower scale if it overflows.

        `run` runs it at a scale and keeps its graph, which is freed here unless the caller is to
        retain it. `began` is the pass to which it belongs, and `written` what it writes to running
        statistics.
        """
        contexts = {one.context for one in losses}
        weights = [one for one in self._gradients.weights() if one.context in contexts]
        kept = KeptPass(tape, weights, run, may_repeat=began.searching)
        marked = clear_fresh(weights)
        try:
            run(began.scale)
            # Wait for the pass first: on a CPU it writes statistics without MXNet's engine knowing.
            fits = all_finite([*self._gradients, *kept.written])
            # Users may call backward() while recording.
            with autograd.pause(), restored(array for one in written for array in one.arrays):
                if check_heads and not self._heads_checked:
                    kept.check_heads()
                    self._heads_checked = True
                found = self._search(kept, began, fits)
        finally:
            with autograd.pause():
                kept.restore()
            mark_fresh(marked)
        if not retain_graph:
            free_graph([one.as_nd_ndarray() for one in losses])
        return found

    def _search(self, kept: "KeptPass", began: Pass, fits: bool) -> Found:
        """Look where a pass fits, and repeat it there if it overflowed."""
        found = Found(began.scale)
        if began.searching:
            # Only a lower scale than that of the earlier passes is of interest.
            high = began.scale if began.fitting is None else min(began.scale, began.fitting)
            low = self._scale.min_scale
            fitting = began.scale if fits else kept.search(low, high, began.scale)
            found = found._replace(fitting=fitting)
        why_not = kept.why_not or (BESIDE_OTHERS if began.beside_others else "")
        if fits:
            return found
        if why_not or not found.fitting:
            return found._replace(not_repeated=why_not)
        self._scale.lower_to(found.fitting)
        lower = self._scale.checked_scale()
        if lower >= began.scale:
            return found
        self._repeat(kept, began, lower)
        return found._replace(scale=lower, retried=True)

    def _repeat(self, kept: "KeptPass", began: Pass, lower: float) -> None:
        """Repeat an overflowed pass at a lower scale, which has a margin.

        The gradients of earlier passes of the step are brought to it. With the margin, a sum of
        finite gradients is finite.
        """
        factor = lower / began.scale if began.losses else 1.0  # what a user adds to has no scale
        kept.restore()
        if factor != 1:
            multiply(self._gradients, factor)  # those that the pass adds to are set by `repeat`
        kept.repeat(lower, factor)
        logger.info(
            "Backward pass repeated: gradients overflowed at loss scale %g and fit at %g.",
            began.scale,
            lower,
        )

    # ------------------------------------------------------------------ workers

    def fitting(self, overflowed: Pass) -> Optional[float]:
        """Return the largest scale at which passes fit, the same on all workers without sums.

        None if there is none. Call it after an overflow: gradients are overwritten.
        """
        own = overflowed.fitting
        if own is None:
            own = overflowed.scale * GUESS if all_finite(overflowed.losses) else 0.0
        return self._smallest_of_workers(own, overflowed.began)

    def agree(self, current: Pass) -> float:
        """Bring the gradients of all workers to one scale, and return it.

        Each of them may have repeated its own pass.
        """
        if not current.searching or not self._gradients.cross_workers or self._gradients.are_sums:
            return current.scale
        with restored(self._gradients):
            scale = self._smallest_of_workers(current.scale, current.began)
        if scale is None:
            return current.scale
        if scale < current.scale:
            multiply(self._gradients, scale / current.scale)
        if scale < current.began:
            self._scale.scale = scale
        return min(scale, current.scale)

    def _smallest_of_workers(self, own: float, high: float) -> Optional[float]:
        """Return the smallest of all workers' scales up to `high`, or None if one of them is 0.

        Gradients are overwritten: workers can exchange nothing else.
        """
        gradients = self._gradients
        exchanged = [p.list_grad() for p in gradients.trained()]
        exchanged = [grads for grads in exchanged if grads[0].stype == "default"]
        # Where they use sums, each has a loss scale of its own, and looks where its passes fit.
        if not gradients.cross_workers or not exchanged or gradients.are_sums:
            return own or None

        def fits_everywhere(candidate: float) -> bool:
            for grads in exchanged:
                for grad in grads:
                    grad[:] = 0 if candidate <= own else math.inf
            gradients.reduce()
            return all_finite(exchanged[0])

        if fits_everywhere(high):
            return high
        return largest_power(self._scale.min_scale, high / 2, fits_everywhere)


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

    def check_heads(self) -> None:
        """Raise `ValueError` for a pass that ignores its head gradients, which no scale can reach.

        Gradients of zero have to follow from head gradients of zero.
        """
        try:
            scalable = self.holds(0.0, all_zero, self.reached())
        except MXNetError:  # the pass cannot be replayed, see `search`
            return
        if not scalable:
            raise ValueError(IGNORED_HEADS)

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
