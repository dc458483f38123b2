"""The learning rate as a pure function of epoch and batch.

Skipped steps do not delay it, and a resumed run uses the rates of an uninterrupted one.
"""

import math
from dataclasses import dataclass
from typing import Callable, Dict, Tuple

POLY_POWER = 2

# The factor of the learning rate at a progress from 0, the end of the warm-up, to 1, the end of the
# run.
SHAPES: Dict[str, Callable[[float], float]] = {
    "cosine": lambda progress: (1 + math.cos(math.pi * progress)) / 2,
    "linear": lambda progress: 1 - progress,
    "poly": lambda progress: (1 - progress) ** POLY_POWER,
    "constant": lambda progress: 1.0,
}


@dataclass(frozen=True)
class Schedule:
    """The learning rate of every batch of a run."""

    rate: float  # after the warm-up, before any decay
    epochs: int
    batches: int  # in an epoch
    mode: str = "step"  # 'step', or a name in `SHAPES`
    # In these the rate rises linearly; the last batch of the warm-up has the full rate.
    warmup_epochs: float = 0
    decay: float = 0.1  # in mode 'step', the factor of each decay
    # Epochs that begin with a decay, counted from 0, warm-up included
    decay_epochs: Tuple[int, ...] = (30, 60, 80)
    warmup_rate: float = 0.0  # where the warm-up begins; the first batch is already above it

    def __call__(self, epoch: int, batch: int) -> float:
        """Return the learning rate of batch `batch` in epoch `epoch`, both counted from 0."""
        if epoch + batch / self.batches < self.warmup_epochs:
            # counted to the end of the batch, as a first batch with a rate of 0 would be wasted
            progress = min(1, (epoch + (batch + 1) / self.batches) / self.warmup_epochs)
            return self.warmup_rate + (self.rate - self.warmup_rate) * progress
        if self.mode == "step":
            return self.rate * self.decay ** sum(start <= epoch for start in self.decay_epochs)
        after = epoch + batch / self.batches - self.warmup_epochs
        return self.rate * SHAPES[self.mode](after / (self.epochs - self.warmup_epochs))

    def __str__(self) -> str:
        """Return the schedule in words."""
        decay = self.mode
        if self.mode == "step":
            epochs = ", ".join(map(str, self.decay_epochs)) or "no epoch"
            decay = f"×{self.decay:g} at {epochs}"
        return f"{decay}, epochs {self.epochs}, warm-up {self.warmup_epochs:.3g}"
