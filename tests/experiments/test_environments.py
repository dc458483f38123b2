"""Virtual environments: what is installed in which order, and what is missing."""

import shutil
import subprocess
import sys

import pytest

from experiments import environments
from experiments.clients.families import D2L, SOCKEYE
from gluon_amp.base.messages import UsageError


def test_what_is_installed_and_what_is_missing(monkeypatch, tmp_path):
    commands, folder = [], tmp_path / "sockeye"

    def succeed(command, **_):
        commands.append(" ".join(command[1:]))
        folder.mkdir(exist_ok=True)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(environments, "CLIENTS", tmp_path)
    monkeypatch.setattr(environments, "HOROVOD", folder)
    monkeypatch.setattr(environments, "HANDOVER", folder)
    monkeypatch.setattr(environments.subprocess, "run", succeed)
    monkeypatch.setattr(environments, "find_python", lambda version: sys.executable)
    monkeypatch.setattr(shutil, "which", lambda tool: tool)
    python = environments.of_client(SOCKEYE)
    assert len(commands) == 2 and "install --no-deps -r" in commands[1]
    assert environments.of_client(SOCKEYE) == python and len(commands) == 2  # nothing has changed
    environments.of_horovod()
    _, first, horovod, _ = commands[2:]
    assert "-c" in first and "mxnet==1.9.1" in first and "numpy==1.23.5" in first
    assert horovod.endswith("install --no-build-isolation --no-cache-dir horovod==0.28.1")
    environments.of_handover()
    own, theirs = commands[-2:]
    assert "[cpu,gluoncv,test,export]" in own and theirs.endswith(
        "experiments/handover/requirements.txt"
    )
    monkeypatch.setattr(environments, "find_python", lambda version: None)
    with pytest.raises(UsageError, match=r"d2l needs python3\.8: install it\."):
        environments.of_client(D2L)
    monkeypatch.setattr(shutil, "which", lambda tool: None if tool == "c++" else tool)
    with pytest.raises(UsageError, match=r"built from its sources: install g\+\+\."):
        environments.of_horovod()
