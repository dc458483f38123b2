"""What all data sets share."""

import os

import pytest

from gluon_amp.training.data import describe_unreadable
from gluon_amp.training.data.source import read_file


@pytest.mark.parametrize(
    "names, sentence",
    [
        (["b"], "1 unreadable image: b"),
        (["e", "d", "c", "b", "a"], "5 unreadable images: a, b, c and 2 more"),
    ],
)
def test_a_message_about_unreadable_images(names, sentence):
    assert describe_unreadable(names) == sentence


def test_a_fifo_is_refused_and_does_not_block(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", tmp_path):
        with pytest.raises(OSError, match="not a regular file"):
            read_file(path)
