"""Statistics over seeds, against published numbers, tables and simulation."""

import math

import numpy as np
import pytest

from gluon_amp.base.messages import UsageError
from gluon_amp.training.tables.statistics import (
    compare,
    compare_epochs,
    compare_pairs,
    power,
    seeds_needed,
    spread,
)


def sample(mean, sd, count):
    """Return values with exactly this mean and standard deviation."""
    values = np.random.RandomState(count).normal(size=count)
    values = (values - values.mean()) / values.std(ddof=1)
    return mean + sd * values


def nvidia(epochs):
    """Top-1 in percent over eight seeds, float16 and float32, of NVIDIA's ResNet-50 for MXNet.

    DeepLearningExamples, MxNet/Classification/RN50v1.5/README.md, "Training stability test".
    """
    means = {
        50: (76.308, 0.073, 76.329, 0.094),
        90: (77.150, 0.098, 77.313, 0.085),
        250: (78.460, 0.078, 78.483, 0.065),
    }
    mixed, mixed_sd, single, single_sd = means[epochs]
    return sample(mixed, mixed_sd, 8), sample(single, single_sd, 8)


def test_spread_of_four_values():
    result = spread([97.0, 98.0, 98.0, 99.0])
    assert result.mean == 98.0
    assert result.sd == pytest.approx(math.sqrt(2 / 3))
    assert result.count == 4
    assert spread([97.5]).sd is None


def test_welch_of_nvidias_eight_seeds():
    for epochs, t in ((50, -0.50), (90, -3.55), (250, -0.64)):
        assert compare(*nvidia(epochs), margin=0.3).t == pytest.approx(t, abs=0.005)


def test_nvidias_ninety_epochs_differ_and_are_yet_within_the_margin():
    result = compare(*nvidia(90), margin=0.3)
    assert result.difference == pytest.approx(-0.163)
    assert result.p == pytest.approx(0.0033, abs=1e-4)
    # by hand: se = sqrt(0.098²/8 + 0.085²/8) = 0.04586, df = 13.73, t(0.975) = 2.149
    assert result.low == pytest.approx(-0.163 - 2.149 * 0.04586, abs=1e-4)
    assert result.high == pytest.approx(-0.163 + 2.149 * 0.04586, abs=1e-4)
    # by hand: (0.3 - 0.163) / 0.04586 = 2.987, one-sided with df = 13.73
    assert result.p_tost == pytest.approx(0.0050, abs=1e-4)
    assert str(result) == "significant, but within the margin"
    assert str(compare(*nvidia(90), margin=0.1)) == "different"
    assert str(compare([98.0] * 8, sample(98.0, 0.3, 8), 0.5)) == "equivalent"


def test_no_difference_found_is_not_equivalence():
    result = compare([97.0, 98.0, 99.0], [97.1, 98.1, 99.1], margin=0.5)
    assert result.differs is False and result.equivalent is False
    assert str(result) == "undecided"


@pytest.mark.parametrize("values, reference", [([97.0], [97.5, 98.0]), ([97.0] * 3, [98.0] * 3)])
def test_what_cannot_be_tested(values, reference):
    result = compare(values, reference, 0.5)
    assert result.difference < 0
    assert result.t is None and result.equivalent is None and result.differs is None
    assert str(result) == "not tested"


def test_pairs_with_one_difference_are_not_tested():
    result = compare_pairs([2.0, 3.0], [1.0, 2.0], margin=0.5)
    assert (result.difference, str(result)) == (1.0, "not tested")


def test_pairs_need_equal_lengths():
    with pytest.raises(ValueError, match="3 values cannot be paired with 2"):
        compare_pairs([1.0, 2.0, 3.0], [1.0, 2.0], margin=0.5)


@pytest.mark.parametrize("sd, margin, seeds", [(0.3, 0.5, 7), (0.5, 0.5, 18), (0.1, 0.3, 3)])
def test_seeds_needed(sd, margin, seeds):
    """Near the textbook's 2 (z(0.95) + z(0.90))² (sd / margin)² + 1 = 7.2, 18.1 and 2.9."""
    assert seeds_needed(sd, margin) == seeds
    assert power(sd, margin, seeds) >= 0.8 > power(sd, margin, seeds - 1)
    assert seeds_needed(0.0, margin) == 2
    with pytest.raises(UsageError, match="more than 1000 seeds .* widen --margin"):
        seeds_needed(5.0, 0.1)


def test_seeds_needed_for_pairs():
    """Near the textbook's (z(0.95) + z(0.90))² (sd / margin)² + z(0.95)² / 2 = 9.9 for 0.5."""
    assert seeds_needed(0.5, 0.5, paired=True) == 11
    assert power(0.5, 0.5, 11, paired=True) >= 0.8 > power(0.5, 0.5, 10, paired=True)


def test_mlperfs_rule():
    """t = 1 / sqrt(2 / 3) = 1.2247 with 4 degrees of freedom, for equal variances of 1."""
    faster = compare_epochs([9, 10, 11], [10, 11, 12])
    assert faster.difference == -1
    assert faster.p_fewer == pytest.approx(0.1440, abs=1e-4)
    assert faster.p_more == pytest.approx(1 - faster.p_fewer)
    assert faster.accepted
    # t = 3 / sqrt(2 / 3) = 3.674: p = 0.0107
    much_faster = compare_epochs([7, 8, 9], [10, 11, 12])
    assert much_faster.p_fewer == pytest.approx(0.0107, abs=1e-4)
    assert not much_faster.accepted
    assert compare_epochs([13, 14, 15], [10, 11, 12]).accepted  # slower runs are not refused
    # pooled variance (2 + 2 * 28) / 3, t = -4 / sqrt(58 / 3 * 5 / 6) = -0.9965 with 3 degrees
    assert compare_epochs([9, 11], [10, 12, 20]).p_fewer == pytest.approx(0.1962, abs=1e-4)


def test_mlperfs_rule_where_nothing_varies():
    for epochs, accepted in ((4, False), (5, True), (6, True)):
        for values, reference in (([epochs] * 3, [5] * 3), ([epochs], [5])):
            test = compare_epochs(values, reference)
            assert (test.p_fewer, test.p_more, test.accepted) == (None, None, accepted)
