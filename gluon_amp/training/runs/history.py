"""The results of a run: those of its epochs, and the counts of the unfinished epoch."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional

from gluon_amp.files import schema
from gluon_amp.files.schema import COUNT, NONE, Either, Leaf
from gluon_amp.training.runs.meters import Mean, TopK

# A mean over no images is NaN.
REAL = Leaf("a number", lambda v: isinstance(v, (int, float)) and not isinstance(v, bool))


@dataclass(frozen=True)
class EpochResult:
    """The result of one epoch of training."""

    accuracy: float  # share of right answers during training, from 0 to 1
    loss: float  # mean over the images of the applied steps
    images: int
    seconds: float  # until the devices had finished
    waited: float  # seconds, of those, in which the devices waited for images
    skipped: int  # steps skipped because of an overflow

    @property
    def images_per_second(self) -> float:
        return self.images / self.seconds


@dataclass(frozen=True)
class Validation:
    """The result of a validation; `top1` and `top5` are shares from 0 to 1."""

    top1: float
    top5: float
    cross_entropy: float  # mean over the images that were read, in nats, computed in float32
    images: int  # without those that could not be read
    unreadable: int = 0


@dataclass
class Counts:
    """Counts of the unfinished epoch; `EpochResult` explains the fields."""

    accuracy: TopK = field(default_factory=lambda: TopK(1))
    loss: Mean = field(default_factory=Mean)
    skipped: int = 0
    seconds: float = 0.0
    waited: float = 0.0

    def result(self) -> EpochResult:
        """Return the epoch's result; waits for the devices."""
        return EpochResult(
            accuracy=self.accuracy.share,
            loss=self.loss.value,
            images=self.accuracy.images,
            seconds=self.seconds,
            waited=self.waited,
            skipped=self.skipped,
        )

    def state(self) -> Dict[str, Any]:
        """Return numbers for `restored`; waits for the devices."""
        return {
            "right": self.accuracy.right,
            "images": self.accuracy.images,
            "loss": self.loss.sum,
            "loss_images": self.loss.images,
            "skipped": self.skipped,
            "seconds": self.seconds,
            "waited": self.waited,
        }

    @classmethod
    def restored(cls, state: Dict[str, Any]) -> "Counts":
        """Return the counts whose `state` this is."""
        return cls(
            accuracy=TopK(1, state["images"], state["right"]),
            loss=Mean(state["loss_images"], state["loss"]),
            skipped=state["skipped"],
            seconds=state["seconds"],
            waited=state["waited"],
        )


@dataclass
class History:
    """The epochs of a run so far; `validated` holds None for epochs without a validation."""

    trained: List[EpochResult] = field(default_factory=list)
    validated: List[Optional[Validation]] = field(default_factory=list)
    steps: int = 0
    skipped: int = 0
    # With --ema-decay, as `validated`; shorter if the run went on without it
    averaged: List[Optional[Validation]] = field(default_factory=list)

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
        """Return the history whose `state` this is."""
        return cls(
            [EpochResult(**result) for result in state["trained"]],
            [result and Validation(**result) for result in state["validated"]],
            state["steps"],
            state["skipped"],
            [result and Validation(**result) for result in state.get("averaged", [])],
        )


def _schema(results: type) -> Dict[str, Leaf]:
    return {f.name: COUNT if f.type is int else REAL for f in dataclasses.fields(results)}


# The schemas of `Counts.state` and `History.state`, for `schema.check`.
COUNTS = {
    **dict.fromkeys(("right", "images", "loss_images", "skipped"), COUNT),
    **dict.fromkeys(("loss", "seconds", "waited"), REAL),
}
_VALIDATIONS = [Either("a validation or None", (NONE, _schema(Validation)))]
HISTORY = {
    "trained": [_schema(EpochResult)],
    "validated": _VALIDATIONS,
    "steps": COUNT,
    "skipped": COUNT,
    "averaged": schema.Optional(_VALIDATIONS),  # not in older files
}
