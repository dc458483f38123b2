"""SIGTERM and Ctrl-C."""

import os
import signal
import subprocess
import sys

import pytest

from gluon_amp.training.runs.interruption import Interruption, RunInterruptedError
from tests.training.runs.scripts import environment


def test_the_first_signal_is_noted_and_announced_and_the_handler_put_back(capfd):
    before = signal.getsignal(signal.SIGINT)
    with Interruption() as interruption:
        interruption.leave_after("done")
        assert interruption.number is None
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(RunInterruptedError, match=r"^interrupted by signal 2: done\.$") as left:
            interruption.leave_after("done")
    assert (interruption.number, left.value.status) == (signal.SIGINT, 130)
    assert signal.getsignal(signal.SIGINT) is before
    notice = "signal 2: the run saves and ends after this batch or validation;\na second signal"
    assert capfd.readouterr().err.startswith(notice)


TWICE = """
import importlib.util, os, signal, sys
spec = importlib.util.spec_from_file_location("interruption", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
with module.Interruption(quiet=True):
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGTERM)
    print("alive")
"""


def test_the_second_signal_ends_the_process_at_once():
    path = sys.modules[Interruption.__module__].__file__  # loaded alone, without MXNet
    done = subprocess.run(
        [sys.executable, "-c", TWICE, path], env=environment(), capture_output=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (143, b"", b"")
