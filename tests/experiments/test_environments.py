"""Virtual environments: what is installed in which order, and what is missing."""

import shutil
import subprocess
import sys

import pytest

from experiments import environments
from experiments.clients.families import D2L, SOCKEYE
from gluon_amp.base.messages import UsageError


@pytest.fixture
def commands(monkeypatch, tmp_path):
    """The commands that would be run."""
    called = []

    def succeed(command, **_):
        called.append(" ".join(command[1:]))
        (tmp_path / "sockeye").mkdir(exist_ok=True)
        return subprocess.CompletedProcess(command, 0)

    for name in ("CLIENTS", "HOROVOD"):
        monkeypatch.setattr(environments, name, tmp_path)
    monkeypatch.setattr(environments.subprocess, "run", succeed)
    monkeypatch.setattr(environments, "find_python", lambda version: sys.executable)
    monkeypatch.setattr(shutil, "which", lambda tool: tool)
    return called


def test_complete_requirements_are_all_that_is_installed_and_once(commands, monkeypatch):
    python = environments.of_client(SOCKEYE)
    assert len(commands) == 2 and "install --no-deps -r" in commands[1]
    assert environments.of_client(SOCKEYE) == python and len(commands) == 2
    monkeypatch.setattr(environments, "find_python", lambda version: None)
    with pytest.raises(UsageError, match=r"d2l needs python3\.8: install it\."):
        environments.of_client(D2L)


def test_horovod_is_built_after_what_it_is_built_with(commands, monkeypatch):
    environments.of_horovod()
    _, first, horovod, _ = commands
    assert "-c" in first and "mxnet==1.9.1" in first and "numpy==1.23.5" in first
    assert horovod.endswith("install --no-build-isolation --no-cache-dir horovod==0.28.1")
    monkeypatch.setattr(shutil, "which", lambda tool: None if tool == "c++" else tool)
    with pytest.raises(UsageError, match=r"built from its sources: install g\+\+\."):
        environments.of_horovod()
