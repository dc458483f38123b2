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


@pytest.mark.parametrize("flush", [True, False])
def test_a_full_disk_closes_both_with_one_warning(files, caplog, flush):
    file, writer = open("/dev/full", "w"), files.writer  # noqa: SIM115
    files.file = file
    with files.writing():
        file.write("1\n")
        if flush:
            file.flush()
    files.close()  # where the system sees the error at the latest
    assert (files.file, files.writer, writer.count, file.closed) == (None, None, 1, True)
    warning = "The files of a test cannot be written any more (No space left on device): training"
    assert caplog.text.count(warning) == 1


def test_files_are_whole_when_they_are_closed(files, tmp_path):
    files.file = open(tmp_path / "log", "w")  # noqa: SIM115
    with files.writing():
        files.file.write("1\n")
    with pytest.raises(KeyError, match="loss"), files.writing():
        raise KeyError("loss")  # an error of the program closes nothing
    files.close()
    assert (tmp_path / "log").read_text() == "1\n" and files.writer.count == 1


def test_events_without_tensorboard_are_refused(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(UsageError) as caught:
        event_writer(tmp_path, "--tensorboard")
    assert str(caught.value) == (
        "--tensorboard needs tensorboardX: run `pip install -c constraints.txt "
        "'gluon-amp[tensorboard]'`."
    )
