"""The room as a whole."""

from gluon_amp import base


def test_the_room_says_what_it_holds():
    assert "The import of MXNet" in base.__doc__
