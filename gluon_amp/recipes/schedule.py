"""The learning rate as a pure function of epoch and batch.

A function of the position, not of the number of updates made: skipped steps do not delay it, and a
resumed run gets the same rates as an uninterrupted one.
"""

import math
from dataclasses import dataclass
from typing import Callable, Dict, Tuple

POLY_POWER = 2

# Share of the learning rate left when a share `done` of the epochs after the warm-up is over.
SHAPES: Dict[str, Callable[[float], float]] = {
    "cosine": lambda done: (1 + math.cos(math.pi * done)) / 2,
    "linear": lambda done: 1 - done,
    "poly": lambda done: (1 - done) ** POLY_POWER,
    "constant": lambda done: 1.0,
}


@dataclass(frozen=True)
class Schedule:
    """Learning rate of every batch of a run.

    Attributes
    ----------
    rate : float
        The rate after warm-up, before any decay.
    epochs, batches : int
        Epochs of the run, batches of an epoch.
    mode : str
        'step', or one of `SHAPES`, which fall from the end of the warm-up to the end of the run.
    warmup_epochs : float
        Fewer than `epochs`. The rate rises linearly, from the first batch's share to the full rate
        at their last batch.
    decay : float
        'step': the rate is multiplied by this ...
    decay_epochs : tuple of int
        ... from the first batch of each of these epochs on, counted from 0 and from the start of
        the run, warm-up included.
    warmup_rate : float
        Where the warm-up begins.
    """

    rate: float
    epochs: int
    batches: int
    mode: str = "step"
    warmup_epochs: float = 0
    decay: float = 0.1
    decay_epochs: Tuple[int, ...] = (30, 60, 80)
    warmup_rate: float = 0.0

    def __post_init__(self) -> None:
        if self.warmup_epochs >= self.epochs:
            raise ValueError(
                f"warmup_epochs is {self.warmup_epochs}, expected fewer than the {self.epochs} "
                "epochs of the run."
            )

    def __call__(self, epoch: int, batch: int) -> float:
        """Return the learning rate of batch `batch` in epoch `epoch`, both counted from 0."""
        if epoch + batch / self.batches < self.warmup_epochs:
            # counted to the end of the batch, so that the first one is not wasted on a rate of 0
            done = min(1, (epoch + (batch + 1) / self.batches) / self.warmup_epochs)
            return self.warmup_rate + (self.rate - self.warmup_rate) * done
        if self.mode == "step":
            return self.rate * self.decay ** sum(at <= epoch for at in self.decay_epochs)
        after = epoch + batch / self.batches - self.warmup_epochs
        return self.rate * SHAPES[self.mode](after / (self.epochs - self.warmup_epochs))

    def __str__(self) -> str:
        """Say the schedule in words."""
        how = self.mode
        if self.mode == "step":
            at = ", ".join(map(str, self.decay_epochs)) or "no epoch"
            how = f"×{self.decay:g} at {at}"
        return f"{how}, epochs {self.epochs}, warm-up {self.warmup_epochs:.3g}"
