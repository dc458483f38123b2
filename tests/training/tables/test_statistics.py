"""Statistics over seeds, where they differ from those of the committed tables.

`documents/test_figures.py` computes these again, from pairs of runs.
"""

import numpy as np
import pytest

from gluon_amp.training.tables.statistics import (
    compare,
    compare_epochs,
    compare_pairs,
    power,
    seeds_needed,
)


def sample(mean, sd, count):
    """Return values with exactly this mean and standard deviation."""
    values = np.random.RandomState(count).normal(size=count)
    values = (values - values.mean()) / values.std(ddof=1)
    return mean + sd * values


def nvidia():
    """Top-1 in percent over eight seeds of 90 epochs, float16 and float32, of ResNet-50 for MXNet.

    DeepLearningExamples, MxNet/Classification/RN50v1.5/README.md, "Training stability test".
    """
    return sample(77.150, 0.098, 8), sample(77.313, 0.085, 8)


def test_nvidias_ninety_epochs_differ_and_are_yet_within_the_margin():
    result = compare(*nvidia(), margin=0.3)
    assert result.difference == pytest.approx(-0.163)
    assert result.t == pytest.approx(-3.55, abs=0.005)
    assert result.p == pytest.approx(0.0033, abs=1e-4)
    # by hand: se = sqrt(0.098²/8 + 0.085²/8) = 0.04586, df = 13.73, t(0.975) = 2.149
    assert result.low == pytest.approx(-0.163 - 2.149 * 0.04586, abs=1e-4)
    assert result.high == pytest.approx(-0.163 + 2.149 * 0.04586, abs=1e-4)
    # by hand: (0.3 - 0.163) / 0.04586 = 2.987, one-sided with df = 13.73
    assert result.p_tost == pytest.approx(0.0050, abs=1e-4)
    assert str(result) == "significant, but within the margin"


@pytest.mark.parametrize("values, reference", [([97.0], [97.5, 98.0]), ([97.0] * 3, [98.0] * 3)])
def test_what_cannot_be_tested(values, reference):
    result = compare(values, reference, 0.5)
    assert result.difference < 0
    assert result.t is None and result.equivalent is None and result.differs is None
    assert str(result) == "not tested"


def test_pairs_with_one_difference_are_not_tested_and_others_are_no_pairs():
    result = compare_pairs([2.0, 3.0], [1.0, 2.0], margin=0.5)
    assert (result.difference, str(result)) == (1.0, "not tested")
    with pytest.raises(ValueError, match="3 values cannot be paired with 2"):
        compare_pairs([1.0, 2.0, 3.0], [1.0, 2.0], margin=0.5)


@pytest.mark.parametrize("sd, margin, paired, seeds", [(0.5, 0.5, False, 18), (0.5, 0.5, True, 11)])
def test_seeds_needed(sd, margin, paired, seeds):
    """Near the textbook's 2 (z(0.95) + z(0.90))² (sd / margin)² + 1 = 18.1.

    For pairs it is (z(0.95) + z(0.90))² (sd / margin)² + z(0.95)² / 2 = 9.9.
    """
    assert seeds_needed(sd, margin, paired) == seeds
    assert power(sd, margin, seeds, paired) >= 0.8 > power(sd, margin, seeds - 1, paired)
    assert seeds_needed(0.0, margin) == 2


def test_mlperfs_rule_where_nothing_varies():
    for epochs, accepted in ((4, False), (5, True), (6, True)):
        for values, reference in (([epochs] * 3, [5] * 3), ([epochs], [5])):
            test = compare_epochs(values, reference)
            assert (test.p_fewer, test.p_more, test.accepted) == (None, None, accepted)
