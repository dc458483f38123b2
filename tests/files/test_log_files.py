"""Files of numbers beside a training: an error of the system ends them, and nothing else."""

import logging
import sys

import pytest

from gluon_amp.base.messages import UsageError
from gluon_amp.files.log_files import LogFiles, event_writer


class Closed:
    """Stands in for TensorBoard's writer, which needs a package of an extra."""

    count = 0

    def close(self):
        self.count += 1


@pytest.fixture
def files():
    files = LogFiles("The files of a test", logging.getLogger("gluon_amp"))
    files.writer = Closed()
    return files


WARNING = "The files of a test cannot be written any more (No space left on device): training con"


def test_a_full_disk_closes_both_with_one_warning(files, caplog):
    files.file, writer = open("/dev/full", "w"), files.writer  # noqa: SIM115
    file = files.file
    with files.writing():
        file.write("1\n")
        file.flush()
    assert (files.file, files.writer, writer.count, file.closed) == (None, None, 1, True)
    files.close()
    assert caplog.text.count(WARNING) == 1


def test_a_full_disk_at_the_end_gives_the_same_warning(files, caplog):
    files.file = open("/dev/full", "w")  # noqa: SIM115
    with files.writing():
        files.file.write("1\n")
    files.close()
    assert caplog.text.count(WARNING) == 1


def test_files_are_whole_when_they_are_closed(files, tmp_path):
    files.file, writer = open(tmp_path / "log", "w"), files.writer  # noqa: SIM115
    with files.writing():
        files.file.write("1\n")
    files.close()
    assert (tmp_path / "log").read_text() == "1\n" and writer.count == 1


def test_an_error_of_the_program_is_raised(files):
    with pytest.raises(KeyError, match="loss"), files.writing():
        raise KeyError("loss")
    assert files.writer.count == 0


def test_events_without_tensorboard_are_refused(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(UsageError) as caught:
        event_writer(tmp_path, "--tensorboard")
    assert str(caught.value) == (
        "--tensorboard needs tensorboardX: run `pip install 'gluon-amp[tensorboard]'`."
    )
