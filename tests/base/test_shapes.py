"""Shapes that may be unknown."""

import pytest

from gluon_amp.base.shapes import shape_fits


@pytest.mark.parametrize(
    "own, other, fits",
    [
        ((2, 3), (2, 3), True),
        ((2, 3), (2, 4), False),
        ((0, 3), (2, 3), True),
        ((2, -1), (2, 3), True),
        ((2, 3), (2, 0), False),
        ((2, 3), (2, 3, 1), False),
        ((), (), True),
        (None, (2, 3), True),
    ],
)
def test_a_shape_fits_where_it_is_equal_or_unknown(own, other, fits):
    assert shape_fits(own, other) is fits
