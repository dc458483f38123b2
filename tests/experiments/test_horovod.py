"""Jobs of two workers without Horovod, and the versions on the page."""

import signal
import sys

import pytest

from experiments.horovod import __main__ as command
from experiments.horovod.launch import Kill, run

# Starts two workers, and ends when one has; prints what they print.
LAUNCHER = f"""#!{sys.executable}
import os, signal, subprocess, sys
command = sys.argv[sys.argv.index("localhost:2") + 1 :]
workers = [subprocess.Popen(command, env=dict(os.environ, HOROVOD_RANK=str(i))) for i in range(2)]
pid, status = os.wait()
for worker in workers:
    if worker.poll() is None:
        worker.kill()
sys.exit(status and 1)
"""
# One write, so that the two lines do not mix.
WORKER = """
import os, time
os.write(1, f"ready {os.environ['HOROVOD_RANK']}\\n".encode())
time.sleep(%d)
"""


@pytest.mark.parametrize(
    "seconds, timeout, kill, status",
    [(0, 60, None, 0), (99, 60, Kill(1, "ready 1"), 1), (99, 2, None, -signal.SIGKILL)],
    ids=["ends", "is killed where the log says so", "takes too long"],
)
def test_a_job_that(seconds, timeout, kill, status, tmp_path):
    (tmp_path / "horovodrun").write_text(LAUNCHER)
    (tmp_path / "horovodrun").chmod(0o755)
    (tmp_path / "python").symlink_to(sys.executable)
    ended = run(tmp_path / "python", ["-c", WORKER % seconds], timeout=timeout, kill=kill)
    assert ended.status == status and ended.seconds < 30 and ended.log[0].startswith("ready")


def test_the_page_names_the_versions():
    assert command.parts()["versions"] == "Python 3.11, horovod 0.28.1, mxnet 1.9.1, numpy 1.23.5"
