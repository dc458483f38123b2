"""What one step did, and how many steps were skipped."""

from dataclasses import dataclass
from typing import Optional, Tuple

from gluon_amp.base.messages import scale_text


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
