"""Shapes that may be unknown."""

from gluon_amp.base.shapes import shape_fits


def test_a_shape_fits_where_it_is_equal_or_unknown():
    for own in ((2, 3), (0, 3), (2, -1), None):
        assert shape_fits(own, (2, 3)) is True
    assert shape_fits((), ()) is True
    for other in ((2, 4), (2, 0), (2, 3, 1)):
        assert shape_fits((2, 3), other) is False
