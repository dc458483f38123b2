"""The backward passes of a step, and what was done to their gradients: two frozen values.

A `Pass` belongs to the loss scale: trainers that share a scale may step on the passes of another.
`Gradients` belong to one trainer. Both are replaced whole, and end with the step.
"""

import threading
from dataclasses import dataclass, field, replace
from typing import Any, Iterable, Mapping, Optional, Tuple

from gluon_amp.base.writes import version
from gluon_amp.casting import snapshots
from gluon_amp.trainer.loss_scale import LossScale

from mxnet.ndarray import NDArray

# Passes are replaced, and scales updated, under one lock: GluonCV runs backward passes in threads,
# and trainers in several threads may share a scale.
_LOCK = threading.RLock()


# The fields of a `Pass` that all passes of a step have in common, whatever their scales
OF_A_STEP = ("beside_others", "retried", "written")


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
    def at(cls, scale: LossScale) -> "Pass":
        """Return one that begins with the present scale."""
        present = scale.checked_scale()
        return cls(present, present, scale.searching, scale.at_floor)

    def with_written(self, written: snapshots.Snapshots) -> "Pass":
        """Return it with one more write to running statistics."""
        return replace(self, written=snapshots.followed_by(self.written, written))

    def with_backward(
        self,
        losses: Iterable[NDArray],
        fitting: Optional[float],
        retried_at: Optional[float] = None,
        not_repeated: str = "",
    ) -> "Pass":
        """Return it with one more backward pass, where that fits, and where it was repeated."""
        known = [one for one in (self.fitting, fitting) if one is not None]
        losses = tuple(one.detach() for one in losses)
        passed = replace(
            self,
            losses=losses,
            fitting=min(known, default=None),
            not_repeated=self.not_repeated or not_repeated,
        )
        return passed if retried_at is None else replace(passed, scale=retried_at, retried=True)


class Passes:
    """The passes of one trainer, beside those of others that share its loss scale."""

    def __init__(self, scale: LossScale):
        self._scale = scale
        self.end()

    def begin(self, afresh: bool = False) -> Pass:
        """Return the pass to which a backward pass belongs that begins now.

        If `afresh`, it has the present scale, whatever earlier passes of the step have.
        """
        with _LOCK:
            if self._own is None:
                beside = self._scale.pass_is_pending
                self._own = replace(Pass.at(self._scale), beside_others=beside)
            elif afresh:
                kept = {name: getattr(self._own, name) for name in OF_A_STEP}
                self._own = replace(Pass.at(self._scale), **kept)
            self._scale.begin_pass(self._own)
            return self._own

    def extend(
        self,
        written: snapshots.Snapshots,
        losses: Iterable[NDArray],
        fitting: Optional[float] = None,
        ended: bool = True,
        retried_at: Optional[float] = None,
        not_repeated: str = "",
    ) -> None:
        """Add a backward pass that has ended, or whose end will not be known."""
        with _LOCK:  # so that they are added in the order in which they ended
            written = snapshots.ended(written) if ended else written
            passed = self._own.with_backward(losses, fitting, retried_at, not_repeated)
            self._own = self._scale.last_pass = passed.with_written(written)

    def current(self) -> Optional[Pass]:
        """Return what a step would be made on, this trainer's passes or another's, if any."""
        last = self._scale.last_pass
        if self._own is None and last is not self._stepped_on:
            # Replays show where the gradients of the trainer fit that ran them, and no others.
            return replace(last, fitting=None)
        return self._own

    def add_write(self, written: snapshots.Snapshots) -> None:
        """Add a write that has ended to the current pass, which is this trainer's own then."""
        with _LOCK:
            current = self.current()
            self._own = current and current.with_written(snapshots.ended(written))

    def rescale(self, scale: float) -> None:
        """Set the loss scale in the gradients of the current passes, which were multiplied."""
        with _LOCK:
            self._own = self._scale.last_pass = replace(self.current(), scale=scale)

    def report(self, finite: bool, fitting: Optional[float] = None) -> None:
        """Update the scale, which counts each pass once."""
        with _LOCK:
            self._scale.update_once(finite, fitting)

    def end(self) -> None:
        """Forget all passes up to now."""
        self._own: Optional[Pass] = None
        self._stepped_on = self._scale.last_pass


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

    def after(self, weights: Iterable[NDArray], **changes: Any) -> "Gradients":
        """Return them after changes, and clear MXNet's marks of these weights."""
        fresh = {id(weight): weight for weight in clear_fresh(weights)}
        return replace(self, fresh={**self.fresh, **fresh}, **changes)

    def still_finite(self, gradients: Iterable[NDArray]) -> bool:
        """Return whether gradients are known to be finite, without a look at their elements."""
        versions = [(version(grad), self.finite.get(id(grad))) for grad in gradients]
        return bool(versions) and all(now is not None and now == then for now, then in versions)

    def is_fresh(self, weight: NDArray) -> bool:
        """Return whether a backward pass has written the weight's gradient since the last step."""
        return weight._fresh_grad or id(weight) in self.fresh


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
