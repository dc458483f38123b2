"""Means and standard deviations over seeds, and tests whether two means differ or are equivalent.

Welch's t test can only show that two means differ. With few seeds, its failure to do so means
nothing. An equivalence test (two one-sided tests, TOST) shows that two means differ by less than a
margin: Schuirmann, "A comparison of the two one-sided tests procedure and the power approach"
(1987). statsmodels computes both.
"""

import statistics
from dataclasses import dataclass
from typing import Any, Optional, Sequence

from gluon_amp.base.messages import UsageError, from_extra

CONFIDENCE = 0.95  # of the interval; the tests reject at 1 - CONFIDENCE
POWER = 0.8
MAX_SEEDS = 1000
# Nats. They are a factor of 1.01 of the geometric mean of the right answers' probabilities, and of
# the perplexity of a text.
CROSS_ENTROPY_MARGIN = 0.01


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation; `sd` is None for a single value."""

    mean: float
    sd: Optional[float]
    count: int


@dataclass(frozen=True)
class Comparison:
    """The mean of one sample minus that of another; tests that cannot be made are None."""

    difference: float
    margin: float  # largest difference, in either direction, that counts as none
    # 95 % confidence interval of the difference: Welch's, or that of paired differences
    low: Optional[float] = None
    high: Optional[float] = None
    t: Optional[float] = None  # t statistic of the same test
    p: Optional[float] = None  # its two-sided p-value: small if the means differ
    p_tost: Optional[float] = None  # small if the means differ by less than the margin
    paired: bool = False  # whether the test is that of paired differences

    @property
    def equivalent(self) -> Optional[bool]:
        """Whether the means are equivalent within the margin; None if this cannot be tested."""
        return None if self.p_tost is None else self.p_tost < 1 - CONFIDENCE

    @property
    def differs(self) -> Optional[bool]:
        """Whether the means differ; None if this cannot be tested."""
        return None if self.p is None else self.p < 1 - CONFIDENCE

    def __str__(self) -> str:
        if self.equivalent is None:
            return "not tested"
        if self.equivalent:
            return "significant, but within the margin" if self.differs else "equivalent"
        return "different" if self.differs else "undecided"


def statsmodels() -> Any:
    """Return statsmodels' modules with tests of means and with the power of tests."""
    with from_extra("results", "statsmodels is not installed"):
        from statsmodels.stats import power, weightstats
    return weightstats, power


def spread(values: Sequence[float]) -> Spread:
    """Return the mean and the standard deviation of one or more values."""
    sd = statistics.stdev(values) if len(values) > 1 else None
    return Spread(statistics.fmean(values), sd, len(values))


def compare(values: Sequence[float], reference: Sequence[float], margin: float) -> Comparison:
    """Test the mean of `values` against that of `reference`, without assuming equal variances."""
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
    tests = (float(low), float(high), float(t), float(p), float(p_tost))
    return Comparison(difference, margin, *tests)


def compare_pairs(values: Sequence[float], reference: Sequence[float], margin: float) -> Comparison:
    """Test the mean difference of pairs: an effect of the seed on both cancels."""
    if len(values) != len(reference):
        raise ValueError(f"{len(values)} values cannot be paired with {len(reference)}.")
    differences = [value - other for value, other in zip(values, reference)]
    paired = spread(differences)
    if not paired.sd:
        return Comparison(paired.mean, margin, paired=True)
    weightstats, _ = statsmodels()
    sample = weightstats.DescrStatsW(differences)
    low, high = sample.tconfint_mean(alpha=1 - CONFIDENCE)
    t, p, _ = sample.ttest_mean()
    p_tost, _, _ = sample.ttost_mean(-margin, margin)
    tests = (float(low), float(high), float(t), float(p), float(p_tost))
    return Comparison(paired.mean, margin, *tests, paired=True)


@dataclass(frozen=True)
class EpochsComparison:
    """Epochs to a target, minus those of another sample; tests that cannot be made are None."""

    difference: float  # of the means
    p_fewer: Optional[float] = None  # one-sided: small if the runs need fewer epochs
    p_more: Optional[float] = None  # one-sided: small if they need more

    @property
    def accepted(self) -> bool:
        """Whether MLPerf's rule accepts the runs: they are not faster than the reference."""
        if self.p_fewer is None:
            return self.difference >= 0
        return self.p_fewer > 1 - CONFIDENCE


def compare_epochs(values: Sequence[float], reference: Sequence[float]) -> EpochsComparison:
    """Test epochs to a target by MLPerf's rule, and in the other direction as well.

    The rule is that of MLPerf Training's reference convergence points: a submission must not need
    fewer epochs than the reference, by Student's one-sided t test of independent samples with equal
    variances at the 5 % level (mlcommons/logging, ``mlperf_logging/rcp_checker/rcp_checker.py``,
    ``_find_p_value``). If no value varies, the mean itself must not be lower. MLPerf leaves out
    each sample's fastest and slowest run; here every run counts.
    """
    difference = statistics.fmean(values) - statistics.fmean(reference)
    spreads = (spread(values).sd, spread(reference).sd)
    if None in spreads or not any(spreads):
        return EpochsComparison(difference)
    weightstats, _ = statsmodels()
    p_fewer, p_more = (
        weightstats.ttest_ind(list(values), list(reference), alternative, usevar="pooled")[1]
        for alternative in ("smaller", "larger")
    )
    return EpochsComparison(difference, float(p_fewer), float(p_more))


def power(sd: float, margin: float, seeds: int, paired: bool = False) -> float:
    """Return the probability that the test shows equivalence if the true means are equal.

    `sd` is that of both samples, or of paired differences. Both one-sided tests must reject, and by
    symmetry each fails equally often. The result neglects that both can fail at once, so the power
    of two or three seeds is a little too low.
    """
    if sd == 0:
        return 1.0
    _, tests = statsmodels()
    test = tests.TTestPower() if paired else tests.TTestIndPower()
    one_sided = test.power(margin / sd, seeds, 1 - CONFIDENCE, alternative="larger")
    return max(0.0, 2 * float(one_sided) - 1)


def seeds_needed(sd: float, margin: float, paired: bool = False) -> int:
    """Return how many seeds each configuration needs for a power of `POWER`, at least 2."""
    for seeds in range(2, MAX_SEEDS + 1):
        if power(sd, margin, seeds, paired) >= POWER:
            return seeds
    raise UsageError(
        f"a standard deviation of {sd:g} between seeds is too large for a margin of {margin:g}: "
        f"more than {MAX_SEEDS} seeds would be needed, so widen --margin."
    )
