"""SIGTERM, SIGHUP and Ctrl-C."""

import os
import signal
import subprocess
import sys

import pytest

from gluon_amp.training.runs.interruption import Interruption, RunInterruptedError
from tests.training.runs.scripts import environment


@pytest.mark.parametrize(
    "number, status, name, again",
    [
        (signal.SIGINT, 130, "Ctrl-C", "press again"),
        (signal.SIGHUP, 129, "SIGHUP", "send it again"),
    ],
)
def test_the_first_signal_is_noted_and_announced_and_the_handler_put_back(
    number, status, name, again, capfd, default_signals
):
    before = signal.getsignal(number)
    interruption = Interruption()
    with interruption.noticing():
        interruption.leave_after("done")
        os.kill(os.getpid(), number)
        with pytest.raises(RunInterruptedError, match=rf"^interrupted by {name}: done\.$") as left:
            interruption.leave_after("done")
    assert (interruption.number, left.value.status) == (number, status)
    assert signal.getsignal(number) is before
    assert capfd.readouterr().err == f"{name}: finishing this batch; {again} to stop now\n"


TWICE = """
import os, signal
from gluon_amp_console import enter_without_mxnet
enter_without_mxnet()
from gluon_amp.training.runs.interruption import Interruption
with Interruption(quiet=True).noticing():
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGTERM)
    print("alive")
"""


def test_the_second_signal_ends_the_process_at_once():
    done = subprocess.run(
        [sys.executable, "-c", TWICE], env=environment(), capture_output=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (143, b"", b"")
