"""What one step did; how many were skipped; the log line, the cause and the error of a skip."""

import logging
from dataclasses import dataclass
from itertools import chain
from typing import Iterable, Optional, Tuple

from gluon_amp.base.messages import first_few, scale_text
from gluon_amp.optimizer.arrays import all_finite, finite
from gluon_amp.trainer.state import Pass

from mxnet import gluon

logger = logging.getLogger("gluon_amp")


@dataclass(frozen=True)
class StepReport:
    """What one step did.

    Attributes
    ----------
    applied : bool
        False when the step was skipped and undone.
    loss_scale, next_loss_scale : float
        The scale of this step's gradients, and that of the next backward pass.
    grad_norm : float or None
        The result of `Trainer.clip_global_norm`, if it was called for this step.
    overflow : tuple of str
        Names of the parameters whose gradients were not finite.
    skipped_total : int
        The number of skipped steps so far, with this one.
    retried : bool
        True when a backward pass of the step overflowed and was repeated at a lower scale, which
        happens before the first finite step.
    not_repeated : str
        Why an overflowed pass before the first finite step was not repeated, so that the step was
        skipped; empty otherwise.
    passes, dropped : int
        How many passes of `backward(accumulate=True)` the update is made of, and how many were left
        out; 1 and 0 without it.
    loss : float or None
        The mean of the losses of the step's backward passes, if the trainer has an `on_step`.

    Examples
    --------
    >>> import gluon_amp as amp
    >>> report = amp.StepReport(applied=False, loss_scale=1024.0, next_loss_scale=512.0)
    >>> report
    StepReport(skipped, scale 1024 → 512)
    """

    applied: bool
    loss_scale: float
    next_loss_scale: float
    grad_norm: Optional[float] = None
    overflow: Tuple[str, ...] = ()
    skipped_total: int = 0
    retried: bool = False
    not_repeated: str = ""
    passes: int = 1
    dropped: int = 0
    loss: Optional[float] = None

    def __repr__(self) -> str:
        scales = dict.fromkeys(map(scale_text, (self.loss_scale, self.next_loss_scale)))
        parts = ["applied" if self.applied else "skipped"]
        parts += ["retried"] if self.retried else []
        parts.append(f"scale {' → '.join(scales)}")
        if self.dropped:
            parts.append(f"{self.dropped} of {self.passes + self.dropped} passes dropped")
        if self.grad_norm is not None:
            parts.append(f"gradient norm {self.grad_norm:.4g}")
        if self.overflow:
            count, more = len(self.overflow), ", …" if len(self.overflow) > 1 else ""
            of = f"{count} parameter{'s' if count > 1 else ''}"
            parts.append(f"overflow in {of}: {self.overflow[0]}{more}")
        if self.not_repeated:
            parts.append(f"not repeated: {self.not_repeated}")
        return f"StepReport({', '.join(parts)})"


@dataclass(frozen=True)
class Skips:
    """How many steps were skipped; frozen, and replaced whole."""

    total: int = 0  # since the first step
    in_vain: int = 0  # in a row, where a lower scale was not possible or would not have helped

    def with_one_more(self, in_vain: bool) -> "Skips":
        """Return the counts after another skip."""
        return Skips(self.total + 1, self.in_vain + 1 if in_vain else 0)


def log_skip(report: StepReport, cause: str) -> None:
    """Log a skip in one line; without an overflow, with its cause."""
    if report.overflow:
        names = first_few(report.overflow, limit=5)
        cause = f"gradients of {names} overflowed at loss scale {report.loss_scale:g}"
        cause += f" (not repeated: {report.not_repeated})" if report.not_repeated else ""
    message = "Step skipped: %s; next scale %g, %d skipped so far."
    logger.info(message, cause, report.next_loss_scale, report.skipped_total)


def too_many_skips(report: StepReport, in_vain: int, limit: str, cause: str) -> Exception:
    """Return the error after `in_vain` skips in a row; `limit` says why no lower scale helps."""
    return FloatingPointError(
        f"{in_vain} steps in a row overflowed, the last at loss scale {report.loss_scale:g}, "
        f"{limit}, in the gradients of {first_few(report.overflow, limit=5)}: "
        f"{cause}; amp.diagnose(net, loss_fn, data, label) finds the block."
    )


def cause_of_overflow(parameters: Iterable[gluon.Parameter], overflowed: Pass) -> Tuple[str, bool]:
    """Return what is known about an overflow without another pass through the network.

    And whether a lower loss scale may help.
    """
    values = {p.name: p.list_data()[0] for p in parameters if p._data is not None}
    infinite = [name for name, fits in zip(values, finite(values.values())) if not fits]
    if infinite:
        return f"the parameter {infinite[0]} is not finite itself, so load a finite one", False
    # The loss alone is not enough: a ReLU turns NaN into 0.
    written = chain.from_iterable(overflowed.written)
    after = [one.after for one in written if one.after is not None]
    if not all_finite([*overflowed.losses, *after]):
        return (
            "the forward pass is not finite already, so look for infinite data and for overflow"
            " in the network",
            False,
        )
    return "the forward pass looks finite, so it is probably its gradient that overflows", True
