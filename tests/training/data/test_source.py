"""What all data sets share."""

import os

import pytest

from gluon_amp.training.data.source import read_file


def test_a_fifo_is_refused_and_does_not_block(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", tmp_path):
        with pytest.raises(OSError, match="not a regular file"):
            read_file(path)
