"""The room that runs Horovod, without Horovod: its requirements, its jobs and its page."""

import shutil
import signal
import stat
import sys

import pytest

from experiments.horovod import __main__ as command
from experiments.horovod import environment
from experiments.horovod.digits import Result
from experiments.horovod.launch import Kill, run
from gluon_amp.base.messages import UsageError

# Starts two workers, and ends when one has; prints what they print.
LAUNCHER = """#!{python}
import os, signal, subprocess, sys
command = sys.argv[sys.argv.index("localhost:2") + 1 :]
workers = [subprocess.Popen(command, env=dict(os.environ, HOROVOD_RANK=str(i))) for i in range(2)]
pid, status = os.wait()
for worker in workers:
    worker.kill()
sys.exit(status and 1)
"""


@pytest.fixture
def python(tmp_path):
    """A Python beside which there is a launcher."""
    launcher = tmp_path / "horovodrun"
    launcher.write_text(LAUNCHER.format(python=sys.executable))
    launcher.chmod(launcher.stat().st_mode | stat.S_IXUSR)
    (tmp_path / "python").symlink_to(sys.executable)
    return tmp_path / "python"


# One write, so that the two lines do not mix.
WORKER = """
import os, time
os.write(1, f"ready {os.environ['HOROVOD_RANK']}\\n".encode())
time.sleep(%d)
"""


def test_a_job_that_ends(python):
    ended = run(python, ["-c", WORKER % 0], timeout=60)
    assert ended.status == 0 and ended.log[0].startswith("ready")


@pytest.mark.parametrize("worker", [0, 1])
def test_a_worker_is_killed_where_the_log_says_so(python, worker):
    kill = Kill(worker, f"ready {worker}", signal.SIGKILL)
    ended = run(python, ["-c", WORKER % 99], timeout=60, kill=kill)
    assert ended.status == 1 and ended.seconds < 30


def test_a_job_that_does_not_end_is_killed(python):
    ended = run(python, ["-c", WORKER % 99], timeout=2)
    assert ended.status == -signal.SIGKILL and ended.seconds < 30


def test_horovod_is_installed_after_what_it_is_built_with():
    first, horovod, last = environment.groups()
    assert {"mxnet==1.9.1", "numpy==1.23.5"} <= set(first)
    assert horovod == ["horovod==0.28.1"]
    assert all("==" in requirement for requirement in (*first, *last))


def test_a_missing_compiler_is_named(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda tool: None if tool == "c++" else tool)
    with pytest.raises(UsageError, match=r"built from its sources: install g\+\+\."):
        environment.prepare()


def test_the_page_has_a_row_for_each_dtype():
    page = command.render([Result("float16", 98.5, 144, 1, 30.4, [0.51, 1.04])])
    assert "| float16 | 98.50 % | 144 | 1 | 30 s | 0.5 s and 1.0 s |" in page
    assert "horovod 0.28.1, mxnet 1.9.1, numpy 1.23.5" in page
    assert "{" not in page
