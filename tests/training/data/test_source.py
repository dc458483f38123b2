"""What all data sets share."""

import pytest

from gluon_amp.training.data import describe_unreadable


@pytest.mark.parametrize(
    "names, sentence",
    [
        (["b"], "1 unreadable image: b"),
        (["c", "b", "a"], "3 unreadable images: a, b, c"),
        (["e", "d", "c", "b", "a"], "5 unreadable images: a, b, c and 2 more"),
    ],
)
def test_a_message_about_unreadable_images(names, sentence):
    assert describe_unreadable(names) == sentence
