"""The wait policy of OpenMP's threads: which program starts anew, and with what."""

import os
import sys

import pytest

from gluon_amp.base.startup import waiting
from gluon_amp.training.runs import script
from gluon_amp.training.runs.recipe import read


class StartedError(Exception):
    """What the tests do in place of the start of a program."""


@pytest.fixture
def started(monkeypatch):
    """Return the arguments of `os.execve`, which raises here; no policy is in the environment."""
    calls = []

    def start(*arguments):
        calls.append(arguments)
        raise StartedError

    monkeypatch.setattr(os, "execve", start)
    monkeypatch.delenv(waiting.VARIABLE, raising=False)
    monkeypatch.setattr(sys, "argv", ["train.py", "--wait-policy", "passive"])
    monkeypatch.setattr(sys, "orig_argv", ["python", "-u", *sys.argv], raising=False)
    return calls


def test_the_program_starts_anew_with_its_arguments(started):
    with pytest.raises(StartedError):
        waiting.apply("passive")
    ((program, arguments, environment),) = started
    assert program == sys.executable
    assert arguments == [sys.executable, "-u", "train.py", "--wait-policy", "passive"]
    assert environment == {**os.environ, "OMP_WAIT_POLICY": "passive"}
    assert "OMP_WAIT_POLICY" not in os.environ


def test_nothing_starts_without_a_policy_or_against_the_users_own(started, monkeypatch):
    waiting.apply(None)
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    waiting.apply("passive")
    assert started == []


def test_a_caller_whose_arguments_are_not_the_processs_is_refused(started, capsys):
    with pytest.raises(StartedError):
        script.run(read, None)
    assert script.run(read, ["--wait-policy", "active"]) == 2
    assert "--wait-policy active is for a process of its own: set OMP_WAIT_POLICY" in (
        capsys.readouterr().err
    )
    assert len(started) == 1
