"""Is the accuracy the same? Means and deviations over seeds, and the two tests that can answer.

Welch's t test can only show that two means differ; that it does not, with few seeds, shows nothing.
An equivalence test (two one-sided tests, TOST) shows that they lie within a margin of each other:
Schuirmann, "A comparison of the two one-sided tests procedure and the power approach" (1987).
The arithmetic is that of statsmodels.
"""

import math
import statistics
from dataclasses import dataclass
from typing import Optional, Sequence

from gluon_amp.command_line import UsageError

CONFIDENCE = 0.95  # of the interval; the tests reject at 1 - CONFIDENCE
POWER = 0.8
MOST_SEEDS = 1000


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation; `sd` is None for a single value."""

    mean: float
    sd: Optional[float]
    count: int


@dataclass(frozen=True)
class Comparison:
    """The mean of one sample less that of another.

    Attributes
    ----------
    difference : float
        In the unit of the samples.
    low, high : float or None
        Its 95 % confidence interval: Welch's, or that of paired differences.
    t, p : float or None
        The t of the same test and its two-sided p-value: small where the means differ.
    p_tost : float or None
        Of the equivalence test: small where they differ by less than the margin.
    margin : float
        The largest difference that counts as none, either way.

    All but `difference` and `margin` are None where nothing varies, or a sample has one value.
    """

    difference: float
    margin: float
    low: Optional[float] = None
    high: Optional[float] = None
    t: Optional[float] = None
    p: Optional[float] = None
    p_tost: Optional[float] = None

    @property
    def equivalent(self) -> Optional[bool]:
        """Whether equivalence within the margin is shown; None where it cannot be tested."""
        return None if self.p_tost is None else self.p_tost < 1 - CONFIDENCE

    @property
    def differs(self) -> Optional[bool]:
        """Whether a difference is shown; None where it cannot be tested."""
        return None if self.p is None else self.p < 1 - CONFIDENCE

    def __str__(self) -> str:
        if self.equivalent is None:
            return "not tested"
        if self.equivalent:
            return "equivalent, though different" if self.differs else "equivalent"
        return "different" if self.differs else "undecided"


def statsmodels():
    """Return statsmodels' tests of means and its power of them.

    Raises
    ------
    UsageError
        It is not installed.
    """
    try:
        from statsmodels.stats import power, weightstats
    except ImportError:
        raise UsageError(
            "statsmodels is not installed: run `pip install 'gluon-amp[results]'`."
        ) from None
    return weightstats, power


def spread(values: Sequence[float]) -> Spread:
    """Return mean and standard deviation of at least one value."""
    sd = statistics.stdev(values) if len(values) > 1 else None
    return Spread(statistics.fmean(values), sd, len(values))


def compare(values: Sequence[float], reference: Sequence[float], margin: float) -> Comparison:
    """Test the mean of `values` against that of `reference`, without assuming equal variances.

    Parameters
    ----------
    values, reference : sequence of float
        One number for each seed; they need not be equally many.
    margin : float
        Above 0, in the unit of the values.
    """
    difference = statistics.fmean(values) - statistics.fmean(reference)
    spreads = (spread(values).sd, spread(reference).sd)
    if None in spreads or not any(spreads):
        return Comparison(difference, margin)
    weightstats, _ = statsmodels()
    samples = (list(values), list(reference))
    pair = weightstats.CompareMeans(*map(weightstats.DescrStatsW, samples))
    low, high = pair.tconfint_diff(alpha=1 - CONFIDENCE, usevar="unequal")
    t, p, _ = pair.ttest_ind(usevar="unequal")
    p_tost, _, _ = weightstats.ttost_ind(*samples, -margin, margin, usevar="unequal")
    return Comparison(difference, margin, *map(float, (low, high, t, p, p_tost)))


def compare_pairs(values: Sequence[float], reference: Sequence[float], margin: float) -> Comparison:
    """Test the mean difference of pairs, such as two runs from the same initial weights.

    What a seed does to both runs of a pair drops out, so fewer seeds tell more.

    Parameters
    ----------
    values, reference : sequence of float
        One number for each seed, in the same order of seeds.
    margin : float
        Above 0, in the unit of the values.

    Raises
    ------
    ValueError
        They are not equally many.
    """
    if len(values) != len(reference):
        raise ValueError(f"{len(values)} values cannot be paired with {len(reference)}.")
    differences = [value - other for value, other in zip(values, reference)]
    found = spread(differences)
    if not found.sd:
        return Comparison(found.mean, margin)
    weightstats, _ = statsmodels()
    sample = weightstats.DescrStatsW(differences)
    low, high = sample.tconfint_mean(alpha=1 - CONFIDENCE)
    t, p, _ = sample.ttest_mean()
    p_tost, _, _ = sample.ttost_mean(-margin, margin)
    return Comparison(found.mean, margin, *map(float, (low, high, t, p, p_tost)))


def power(sd: float, margin: float, seeds: int) -> float:
    """Return the probability that equivalence is shown where the true means are equal.

    Parameters
    ----------
    sd : float
        Standard deviation from seed to seed, of both samples.
    margin : float
        Of the equivalence test.
    seeds : int
        In each sample, at least 2.

    Both one-sided tests must reject, and by symmetry each misses equally often. That they can miss
    at once is left out, which makes the power of two or three seeds a little too low.
    """
    if sd == 0:
        return 1.0
    _, tests = statsmodels()
    one_sided = tests.TTestIndPower().power(
        margin / sd, seeds, 1 - CONFIDENCE, alternative="larger"
    )
    return max(0.0, 2 * float(one_sided) - 1)


def seeds_needed(sd: float, margin: float, wanted: float = POWER) -> int:
    """Return how many seeds each configuration needs for that power, 2 at least.

    Raises
    ------
    UsageError
        More than `MOST_SEEDS`.
    """
    for seeds in range(2, MOST_SEEDS + 1):
        if power(sd, margin, seeds) >= wanted:
            return seeds
    raise UsageError(
        f"an sd of {sd:g} from seed to seed is too much for a margin of {margin:g}: more than "
        f"{MOST_SEEDS} seeds would be needed, so widen --margin."
    )


def sd_bound(sd: float, count: int, confidence: float = 0.8) -> float:
    """Return the upper confidence limit of a standard deviation estimated from `count` values.

    A pilot of few seeds finds an sd that is too small every other time; planning with this limit
    keeps the power. The limit is that of the chi-square distribution.
    """
    from scipy.stats import chi2

    return sd * math.sqrt((count - 1) / chi2.ppf(1 - confidence, count - 1))
