"""The state of a step: frozen values that are replaced whole, and which calls may follow.

A trainer holds a `StepState`. Its phase says what a call leads to, and any other call raises here:

========  ==========  =========================  ========================  ============
phase     backward()  backward(accumulate=True)  clip, allreduce, unscale  step, update
========  ==========  =========================  ========================  ============
READY     WRITTEN     SUMMED                     raise                     raise
WRITTEN   WRITTEN     raise                      WRITTEN                   READY
SUMMED    raise       SUMMED                     REPLACED                  READY
REPLACED  raise       raise                      REPLACED                  READY
========  ==========  =========================  ========================  ============

Without a loss scale, or with the pass of another trainer that has the same one, a READY trainer has
gradients too. WRITTEN gradients that were reduced or unscaled have to be overwritten by a later
pass, which only MXNet's marks show: see `StepState.after_writes`. In any phase, averaged
weights and parameters that were cast raise: `guards.check_own_weights`, `Options.check_dtypes`.

A `Pass` belongs to the loss scale: trainers that share a scale may step on the passes of another.
"""

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Iterable, Mapping, NamedTuple, Optional, Tuple

from gluon_amp.base.writes import version
from gluon_amp.casting import snapshots
from gluon_amp.trainer.loss_scale import LossScale

from mxnet import gluon
from mxnet.ndarray import NDArray


class Phase(Enum):
    """Where the gradients of a step are."""

    READY = "no backward pass ran since the last step"
    WRITTEN = "backward passes wrote the parameters' gradients"
    SUMMED = "backward(accumulate=True) added them to float32 sums"
    REPLACED = "the sums are in the place of the parameters' gradients"


# The fields of a `Pass` that all passes of a step have in common, whatever their scales
OF_A_STEP = ("beside_others", "retried", "written")


class Found(NamedTuple):
    """What is known about a backward pass that has run: see `first_scale`."""

    scale: float  # the loss scale in its gradients
    # The largest one at which it fits, if that was looked for; 0 if there is none
    fitting: Optional[float] = None
    retried: bool = False  # whether it overflowed and was repeated at a scale that fits
    not_repeated: str = ""  # why it was not


@dataclass(frozen=True)
class Pass:
    """The backward passes since a trainer's last step."""

    scale: float  # the loss scale in the gradients
    # Those of the loss scale when the first pass began. Another trainer's step may have changed
    # them by now.
    began: float = 1.0
    searching: bool = False
    at_floor: bool = False
    # Whether another trainer's passes, with the same loss scale, waited for their step then
    beside_others: bool = False
    retried: bool = False  # whether a pass overflowed and was repeated at a scale that fits
    # What these passes wrote to running statistics; a skip undoes it.
    written: Tuple[snapshots.Snapshots, ...] = ()
    losses: Tuple[NDArray, ...] = ()  # of the last pass
    # Why an overflowed pass was not repeated, while the loss scale is searching
    not_repeated: str = ""
    # The largest scale at which each pass fits, found by replays while the loss scale is
    # searching; 0 if there is none, and None if no pass was replayed or finite.
    fitting: Optional[float] = None

    @classmethod
    def at(cls, scale: LossScale, **fields: Any) -> "Pass":
        """Return one that begins with the present scale."""
        present = scale.checked_scale()
        return cls(present, present, scale.searching, scale.at_floor, **fields)

    def with_written(self, written: snapshots.Snapshots) -> "Pass":
        """Return it with one more write to running statistics."""
        return replace(self, written=snapshots.followed_by(self.written, written))

    def with_backward(self, losses: Iterable[NDArray], found: Found) -> "Pass":
        """Return it with one more backward pass."""
        known = [one for one in (self.fitting, found.fitting) if one is not None]
        return replace(
            self,
            scale=found.scale if found.retried else self.scale,
            retried=self.retried or found.retried,
            losses=tuple(one.detach() for one in losses),
            fitting=min(known, default=None),
            not_repeated=self.not_repeated or found.not_repeated,
        )


@dataclass(frozen=True)
class Gradients:
    """What a trainer has done to its gradients since the last backward pass wrote them."""

    # Weights, by their `id`, whose gradients were fresh when they were reduced, measured or
    # unscaled. MXNet's own marks are cleared then. So a mark that is set now comes from a later
    # backward pass.
    fresh: Mapping[int, NDArray] = field(default_factory=dict)
    reduced: bool = False  # whether they are exchanged and reduced over devices and workers
    # What they were divided by: a power of two before the reduction, or the loss scale.
    divisor: float = 1.0
    clip_factor: float = 1.0  # their factor in the update
    norm: Optional[float] = None  # the result of `clip_global_norm`
    # The versions of gradients, by their `id`, that `clip_global_norm` found to be finite.
    finite: Mapping[int, Optional[int]] = field(default_factory=dict)

    def after(self, fresh: Iterable[NDArray], **changes: Any) -> "Gradients":
        """Return it after changes; MXNet's marks of these weights were cleared for them."""
        return replace(self, fresh={**self.fresh, **{id(one): one for one in fresh}}, **changes)

    def still_finite(self, gradients: Iterable[NDArray]) -> bool:
        """Return whether gradients are known to be finite, without a look at their elements."""
        versions = [(version(grad), self.finite.get(id(grad))) for grad in gradients]
        return all(now is not None and now == then for now, then in versions)

    def is_fresh(self, weight: NDArray) -> bool:
        """Return whether a backward pass has written the weight's gradient since the last step."""
        return weight._fresh_grad or id(weight) in self.fresh


@dataclass(frozen=True)
class StepState:
    """What a trainer did since its last step."""

    phase: Phase = Phase.READY
    own: Optional[Pass] = None  # this trainer's passes, if it has a loss scale
    stepped_on: Optional[Pass] = None  # the last one with its loss scale when the last step ended
    gradients: Gradients = field(default_factory=Gradients)
    losses: Tuple[NDArray, ...] = ()  # of all passes, for `on_step`
    kept: int = 0  # passes of `backward(accumulate=True)` that are in the sums
    dropped: int = 0  # and those that were left out
    has_summed: bool = False  # whether any step used sums

    @property
    def summed(self) -> int:
        """The number of passes of `backward(accumulate=True)`, kept and dropped."""
        return self.kept + self.dropped

    # ------------------------------------------------------------------ backward passes

    def after_backward(self, accumulate: bool, scales_may_differ: bool) -> "StepState":
        """Return it once a backward pass of this kind has begun.

        `scales_may_differ` tells whether other workers have other scales once they use sums. Raise
        `RuntimeError` if the pass cannot be added to those of its step.
        """
        if self.phase is Phase.REPLACED:
            raise RuntimeError(
                "A backward pass follows clip_global_norm, allreduce_grads or unscale, which use "
                "the sums of backward(accumulate=True): call step first."
            )
        phase = Phase.SUMMED if accumulate else Phase.WRITTEN
        if self.phase not in (Phase.READY, phase):
            raise RuntimeError(
                "The backward passes of one step have to be all with accumulate=True or all "
                "without: call step between them."
            )
        if self.has_summed and not accumulate and scales_may_differ:
            raise RuntimeError(
                "With several workers, a training with backward(accumulate=True) has to use it "
                "in each step: the loss scales of its workers may differ."
            )
        return replace(self, phase=phase, has_summed=self.has_summed or accumulate)

    def counting(self, kept: bool) -> "StepState":
        """Return it with one more pass of `backward(accumulate=True)`, kept or dropped."""
        return replace(self, kept=self.kept + kept, dropped=self.dropped + (not kept))

    def begin_pass(self, scale: LossScale, afresh: bool) -> Pass:
        """Return the pass to which a backward pass belongs that begins now.

        If `afresh`, it has the present scale, whatever earlier passes of the step have.
        """
        if self.own is None:
            return Pass.at(scale, beside_others=scale.pass_is_pending)
        if afresh:
            return Pass.at(scale, **{name: getattr(self.own, name) for name in OF_A_STEP})
        return self.own

    # ------------------------------------------------------------------ what a step uses

    def find_pass(self, scale: LossScale) -> Optional[Pass]:
        """Return what a step would be made on, this trainer's passes or another's, if any."""
        last = scale.last_pass
        if self.own is None and last is not self.stepped_on:
            # Replays show where the gradients of the trainer fit that ran them, and no others.
            return replace(last, fitting=None)
        return self.own

    def current_pass(self, scale: LossScale) -> Pass:
        """Return what a step would be made on; raise `RuntimeError` if there is nothing."""
        current = self.find_pass(scale)
        if current is None:
            raise RuntimeError(
                "There is no scaled backward pass to step on: call trainer.backward(loss) in place "
                "of loss.backward(), once or more before each step, so that the gradients carry the"
                " loss scale (in an Estimator, batch_processor=amp.BatchProcessor() does)."
            )
        return current

    def after_writes(self, written: Mapping[int, str]) -> "StepState":
        """Return it once later backward passes wrote gradients that were looked at before.

        `written` has the `grad_req` of each weight, by its `id`, whose gradient was written. Raise
        `RuntimeError` if a pass added to gradients that were reduced or unscaled before, or wrote
        only some of them.
        """
        done = self.gradients
        overwritten = all(written.get(key) == "write" for key in done.fresh)
        if not overwritten and (done.reduced or done.divisor != 1):
            raise RuntimeError(
                "A backward pass wrote into gradients that were reduced or unscaled already, "
                "which mixes two units: call clip_global_norm, allreduce_grads and unscale "
                "after the last backward pass of a step."
            )
        return replace(self, gradients=Gradients())

    def check_written(self, parameters: Iterable[gluon.Parameter]) -> None:
        """Raise `UserWarning` if no backward pass has written the gradient of a parameter."""
        for param in parameters:
            if not all(map(self.gradients.is_fresh, param.list_data())):
                raise UserWarning(
                    f"No backward pass has written the gradient of {param.name} on every device "
                    "since the last step: call step(..., ignore_stale_grad=True) if a part of the "
                    "parameters is left out on purpose."
                )

    def ended(self, scale: LossScale) -> "StepState":
        """Return the state after a step."""
        return StepState(stepped_on=scale.last_pass, has_summed=self.has_summed)
