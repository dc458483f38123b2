"""What a run has come to: the results of its epochs, and the counts of the unfinished one."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional

from gluon_amp.files.schema import COUNT, NONE, Either, Leaf
from gluon_amp.recipes.meters import Mean, TopK

# A mean over no images is NaN.
REAL = Leaf("a number", lambda v: isinstance(v, (int, float)) and not isinstance(v, bool))

# What `Counts.state` and `History.state` return, for `schema.check`.
COUNTS = {
    **dict.fromkeys(("right", "images", "loss_images", "skipped"), COUNT),
    **dict.fromkeys(("loss", "seconds", "waited"), REAL),
}
HISTORY = {
    "trained": [
        {
            **dict.fromkeys(("accuracy", "loss", "seconds", "waited"), REAL),
            **dict.fromkeys(("images", "skipped"), COUNT),
        }
    ],
    "validated": [
        Either(
            "a validation or None",
            (NONE, {"top1": REAL, "top5": REAL, "images": COUNT, "unreadable": COUNT}),
        )
    ],
    "steps": COUNT,
    "skipped": COUNT,
}


@dataclass(frozen=True)
class EpochResult:
    """What one epoch of training came to.

    Attributes
    ----------
    accuracy : float
        Share of right answers during training, 0 to 1.
    loss : float
        Mean over the images of the steps that were applied.
    images : int
    seconds : float
        Until the devices had finished.
    waited : float
        Seconds of these in which the devices had nothing to do but wait for images.
    skipped : int
        Steps undone because of an overflow.
    """

    accuracy: float
    loss: float
    images: int
    seconds: float
    waited: float
    skipped: int

    @property
    def images_per_second(self) -> float:
        return self.images / self.seconds


@dataclass(frozen=True)
class Validation:
    """Shares of right answers, 0 to 1, the images they are over, and those that were unreadable."""

    top1: float
    top5: float
    images: int
    unreadable: int = 0


@dataclass
class Counts:
    """Of an epoch that is under way."""

    accuracy: TopK = field(default_factory=lambda: TopK(1))
    loss: Mean = field(default_factory=Mean)
    skipped: int = 0
    seconds: float = 0.0
    waited: float = 0.0

    def result(self) -> EpochResult:
        """Return the epoch's result; waits for the devices."""
        return EpochResult(
            self.accuracy.share, self.loss.value, self.accuracy.images, self.seconds, self.waited,
            self.skipped,
        )  # fmt: skip

    def state(self) -> Dict[str, Any]:
        """Return what `restored` takes; waits for the devices."""
        return {
            "right": self.accuracy.right, "images": self.accuracy.images,
            "loss": self.loss.sum, "loss_images": self.loss.images,
            "skipped": self.skipped, "seconds": self.seconds, "waited": self.waited,
        }  # fmt: skip

    @classmethod
    def restored(cls, state: Dict[str, Any]) -> "Counts":
        """Return the counts of which this is the `state`."""
        return cls(
            TopK(1, state["images"], state["right"]), Mean(state["loss_images"], state["loss"]),
            state["skipped"], state["seconds"], state["waited"],
        )  # fmt: skip


@dataclass
class History:
    """The epochs of a run so far; `validated` has None for those that were not validated."""

    trained: List[EpochResult] = field(default_factory=list)
    validated: List[Optional[Validation]] = field(default_factory=list)
    steps: int = 0
    skipped: int = 0

    @property
    def best_epoch(self) -> Optional[int]:
        """The first epoch with the highest top-1; None before the first validation."""
        scores = {e: v.top1 for e, v in enumerate(self.validated) if v is not None}
        return max(scores, key=scores.__getitem__) if scores else None

    def state(self) -> Dict[str, Any]:
        """Return numbers, strings, None, lists and dicts, for `restored`."""
        return dataclasses.asdict(self)

    @classmethod
    def restored(cls, state: Dict[str, Any]) -> "History":
        """Return the history of which this is the `state`."""
        return cls(
            [EpochResult(**result) for result in state["trained"]],
            [result and Validation(**result) for result in state["validated"]],
            state["steps"],
            state["skipped"],
        )
