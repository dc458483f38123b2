"""What a format would do to literal numbers."""

import math

import numpy as np
import pytest

from gluon_amp.base.formats import FORMATS
from gluon_amp.inspection.format_effects import effect_of

FLOAT16 = FORMATS["float16"]


def test_the_effect_of_literal_numbers():
    # Two zeros do not count; 2**-25 is half of the smallest float16 and becomes 0, 1e5 infinity.
    effect = effect_of(np.array([0, 0, 1, 2**-25, 2**-20, 1e5], np.float32), FLOAT16)
    error = 2**-25 / math.sqrt(1 + 2**-40 + 2**-50)
    assert effect._asdict() == {
        "underflow": 0.25,
        "overflow": 0.25,
        "error": pytest.approx(error),
        "subnormal": 0.5,
        "scale": 1.0,
    }
    assert effect_of(np.array([0.0, -0.0], np.float32), FLOAT16) == (0, 0, 0, 0, 1)


def test_a_format_of_8_bits_has_a_power_of_two_for_the_tensor():
    # 448 is the largest E4M3, so 2 is brought to 256 by 2**7. 2**-17 * 2**7 is half the smallest.
    effect = effect_of(np.array([2, 2**-17, 2**-16], np.float32), FORMATS["float8_e4m3"])
    assert (effect.scale, effect.underflow, effect.overflow) == (128.0, 1 / 3, 0.0)


@pytest.mark.parametrize("value", [-math.inf, math.nan])
def test_what_is_not_finite_overflows_every_format(value):
    for format_ in FORMATS.values():
        effect = effect_of(np.array([value, 1], np.float32), format_)
        assert (effect.overflow, effect.error) == (0.5, 0.0)
