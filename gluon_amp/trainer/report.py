"""What one step did, and how many steps were skipped."""

from dataclasses import dataclass
from typing import Optional, Tuple


@dataclass(frozen=True)
class StepReport:
    """What one step did.

    Attributes
    ----------
    applied : bool
        False when the step was skipped and undone.
    loss_scale, next_loss_scale : float
        The scale its gradients carried, and the one that the next backward pass will use.
    grad_norm : float or None
        What `Trainer.clip_global_norm` returned for this step.
    overflow : tuple of str
        Names of the parameters whose gradients were not finite.
    skipped_total : int
        Steps skipped so far, this one included.

    Examples
    --------
    >>> import gluon_amp as amp
    >>> report = amp.StepReport(applied=False, loss_scale=1024.0, next_loss_scale=512.0)
    >>> report.applied, report.next_loss_scale, report.grad_norm, report.overflow
    (False, 512.0, None, ())
    """

    applied: bool
    loss_scale: float
    next_loss_scale: float
    grad_norm: Optional[float] = None
    overflow: Tuple[str, ...] = ()
    skipped_total: int = 0


@dataclass(frozen=True)
class Skips:
    """How many steps were skipped; frozen, and replaced whole.

    Attributes
    ----------
    total : int
        Since the first step.
    at_floor : int
        In a row, at a scale that could not go lower.
    """

    total: int = 0
    at_floor: int = 0

    def with_one_more(self, at_floor: bool) -> "Skips":
        """Return the counts after another skip, at the lowest scale or above it."""
        return Skips(self.total + 1, self.at_floor + 1 if at_floor else 0)
