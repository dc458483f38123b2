"""Starts workers with horovodrun, and kills one of them."""

import contextlib
import os
import signal
import subprocess
import threading
import time
import uuid
from pathlib import Path
from typing import List, NamedTuple, Optional, Sequence

from experiments import ROOT

MARK = "GLUON_AMP_JOB"  # a variable by which the processes of a job are found


class Kill(NamedTuple):
    """Kill a worker as soon as the log contains a text."""

    worker: int
    when: str


class Ended(NamedTuple):
    """How a job ended."""

    status: int  # that of horovodrun; negative if the job took too long
    log: List[str]  # the lines of its two streams
    seconds: float  # since its start, or since the kill


def run(
    python: Path,
    command: Sequence[str],
    timeout: float,
    count: int = 2,
    kill: Optional[Kill] = None,
) -> Ended:
    """Start `count` workers on this machine, over Gloo, and wait for their end.

    The command has the arguments of `python` in each worker. The job is killed after `timeout`
    seconds.
    """
    options = f"--gloo --network-interface lo -np {count} -H localhost:{count}"
    mark = uuid.uuid4().hex
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([str(python.parent), os.environ["PATH"]]),
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        MARK: mark,
    }
    started, log = time.monotonic(), []
    with subprocess.Popen(
        [str(python.with_name("horovodrun")), *options.split(), str(python), *command],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
    ) as process:
        watch = threading.Timer(timeout, end, [process.pid])
        watch.start()
        try:
            for line in process.stdout:
                log.append(line.rstrip())
                if kill and kill.when in line:
                    os.kill(find(mark, kill.worker), signal.SIGKILL)
                    started, kill = time.monotonic(), None
        finally:
            watch.cancel()
            end(process.pid)
    return Ended(process.returncode, log, time.monotonic() - started)


def end(group: int) -> None:
    """Kill horovodrun; the processes that it started end when it is gone."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def find(mark: str, worker: int) -> int:
    """Return the process of a worker, which is older than those that it has started.

    If there is none, that is a `RuntimeError`.
    """
    wanted = {f"{MARK}={mark}".encode(), f"HOROVOD_RANK={worker}".encode()}
    for number in sorted(int(path.name) for path in Path("/proc").glob("[0-9]*")):
        with contextlib.suppress(OSError):  # it has ended, or belongs to another user
            variables = Path(f"/proc/{number}/environ").read_bytes().split(b"\0")
            if wanted <= set(variables):
                return number
    raise RuntimeError(f"worker {worker} has ended already.")
