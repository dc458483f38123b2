"""Whether the losses of a policy are within the spread of float32's over the seeds."""

import math
import statistics
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Sequence

LAST = 5  # the final loss is the mean of this many last steps'


def final_loss(losses: Sequence[float]) -> float:
    """Return the mean loss of the last steps."""
    return statistics.fmean(losses[-LAST:])


@dataclass(frozen=True)
class Comparison:
    """The runs of one policy beside those of float32 with the same seeds.

    Attributes
    ----------
    losses : list of float
        The final loss of each seed.
    difference : float
        The policy's final loss minus float32's of the same seed, where it is largest in size.
    spread : float
        The largest minus the smallest final loss of float32 over its seeds.
    seconds : float
        Median seconds of a step, over the runs.
    ratio : float
        The seconds of float32 divided by those of the policy.
    error : str, optional
        Why there is no result; the numbers are then NaN.
    """

    losses: List[float]
    difference: float
    spread: float
    seconds: float
    ratio: float
    error: Optional[str] = None

    @property
    def within(self) -> bool:
        """Whether each difference is at most the spread; NaN never is."""
        return abs(self.difference) <= self.spread


def compare(policy: Sequence[Dict[str, Any]], float32: Sequence[Dict[str, Any]]) -> Comparison:
    """Compare the records of a policy with those of float32, which have at least the same seeds."""
    error = next((r["error"] for r in [*float32, *policy] if "error" in r), None)
    if error:
        return Comparison([], math.nan, math.nan, math.nan, math.nan, error)
    reference = {record["seed"]: final_loss(record["losses"]) for record in float32}
    losses = [final_loss(record["losses"]) for record in policy]
    differences = [loss - reference[r["seed"]] for loss, r in zip(losses, policy)]
    # not max: it may pass over NaN
    largest = sorted(differences, key=lambda d: (math.isnan(d), abs(d)))[-1]
    seconds, seconds32 = (
        statistics.median(r["step_seconds"] for r in s) for s in (policy, float32)
    )
    spread = max(reference.values()) - min(reference.values())
    return Comparison(losses, largest, spread, seconds, seconds32 / seconds)
