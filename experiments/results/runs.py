"""Trains what a table needs: each run is a process of its own, in a directory of its own.

A run is finished once it has a run.json with a result, written last and at once; finished runs are
not repeated, and one that was killed or failed goes on from its last checkpoint.
"""

import dataclasses
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Callable, Dict, Iterator, List, Sequence, Set

from experiments import ROOT
from experiments.results.machine import describe
from experiments.results.recipes import Experiment, Options
from experiments.results.record import LOG, RUN, SUMMARY, Configuration, Run, read, read_json
from gluon_amp.command_line import UsageError
from gluon_amp.files import atomic
from gluon_amp.hardware import count_cores
from gluon_amp.recipes.interruption import SIGNALS, RunInterruptedError

BEGUN = "begun.json"
AGAIN = "run the same command again to go on."
# The second is what a terminal sends when it is closed.
STOPPING = (*SIGNALS, signal.SIGHUP)


@dataclasses.dataclass(frozen=True)
class Job:
    """A run to make: `arguments` are the script's, `folder` is its directory."""

    configuration: Configuration
    seed: int
    folder: Path
    script: Path
    arguments: Options

    @property
    def finished(self) -> bool:
        path = self.folder / RUN
        return path.exists() and read_json(path).get("failure", "") is None


def jobs(
    experiment: Experiment, output: Path, seeds: Sequence[int], devices: int, extra: Options = ()
) -> List[Job]:
    """Return the runs of an experiment, seed by seed, so that a slow hour hits every row alike.

    Parameters
    ----------
    output : Path
        Holds a directory for each configuration, and in it one for each seed.
    devices : int
        Share a batch.
    extra : tuple of str
        More options for the script; they win.

    Raises
    ------
    UsageError
        A batch cannot be shared by so many devices.
    """
    made = []
    for seed in seeds:
        for configuration, options in experiment.rows:
            if configuration.batch % devices:
                raise UsageError(
                    f"a batch of {configuration.batch} cannot be shared by {devices} devices: use "
                    "a number of GPUs that divides it."
                )
            folder = output / configuration.name / f"seed-{seed}"
            given = [*experiment.options, *options, "--seed", str(seed)]
            given += ["--batch-size", str(configuration.batch // devices), *extra]
            given += ["--summary-json", f"{folder}/{SUMMARY}"]
            arguments = tuple(text.replace("{folder}", str(folder)) for text in given)
            script = ROOT / "scripts" / experiment.script
            made.append(Job(configuration, seed, folder, script, arguments))
    return made


@contextmanager
def alone_in(output: Path) -> Iterator[int]:
    """Lock a directory; yields the lock's descriptor, for the runs to hold, too.

    So a run that outlives this process keeps the next one from writing to the same files.

    Raises
    ------
    UsageError
        Somebody else works there.
    """
    output.mkdir(parents=True, exist_ok=True)
    with open(output / ".lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UsageError(
                f"another run is at work in {output}: wait for its end, or end it (`fuser "
                f"{output}/.lock` has its number)."
            ) from None
        yield lock.fileno()


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise `RunInterruptedError` at the first SIGTERM, Ctrl-C or SIGHUP; the second kills."""

    def take(number: int, _frame: object) -> None:
        for each in before:
            signal.signal(each, signal.SIG_DFL)
        raise RunInterruptedError(number, f"interrupted by signal {number}: {AGAIN}")

    # what is ignored, such as SIGHUP under nohup, stays so
    before = {number: signal.getsignal(number) for number in STOPPING}
    before = {number: old for number, old in before.items() if old is not signal.SIG_IGN}
    try:
        for number in before:
            signal.signal(number, take)
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


class Runner:
    """Makes runs, `parallel` at a time.

    Parameters
    ----------
    parallel : int
        More than one, and the runs have no times: see `experiments.results.record.Run`.
    lock : int
        Descriptor that the runs keep open.
    tell : callable
        Called with one line when a run has ended.
    """

    def __init__(self, parallel: int, lock: int, tell: Callable[[str], None] = print):
        self.parallel = parallel
        self._lock = lock
        self._tell = tell
        self._guard = threading.Lock()
        self._running: Set[subprocess.Popen] = set()
        self._stopped = False

    def make(self, wanted: Sequence[Job]) -> None:
        """Make those runs that are not finished.

        Raises
        ------
        UsageError
            A run was begun with other options, or a script refused its options.
        RuntimeError
            A run was killed; what it was doing is kept.
        """
        for job in wanted:
            _check_same(job)
        missing = [job for job in wanted if not job.finished]
        if len(missing) < len(wanted):
            self._tell(f"{len(wanted) - len(missing)} of {len(wanted)} runs are finished already")
        started, done = time.monotonic(), 0
        with ThreadPoolExecutor(self.parallel) as pool:
            try:
                for job, run in zip(missing, pool.map(self._make_one, missing)):
                    done += 1
                    took = time.monotonic() - started
                    left = took / done * (len(missing) - done)
                    result = run.failure or f"{run.top1:.2f} %"
                    self._tell(
                        f"[{done}/{len(missing)}] {job.configuration.label}, seed {job.seed}: "
                        f"{result}, about {left / 60:.0f} min left"
                    )
            except BaseException:
                self.stop()
                raise

    def stop(self) -> None:
        """End the runs that are being made, and begin no other."""
        with self._guard:
            self._stopped = True
            for process in self._running:
                process.terminate()

    def _make_one(self, job: Job) -> Run:
        job.folder.mkdir(parents=True, exist_ok=True)
        # of a run in several parts, each counts
        parallel = max(self.parallel, _begun(job).get("parallel", 1))
        begun = {"arguments": job.arguments, "parallel": parallel}
        atomic.write(job.folder / BEGUN, json.dumps(begun).encode())
        command = [sys.executable, str(job.script), *job.arguments]
        environment = _environment(self.parallel)
        with open(job.folder / LOG, "a") as log, open(job.folder / "errors.txt", "w+") as errors:
            with self._guard:
                if self._stopped:
                    raise RuntimeError("stopped.")
                process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=errors,
                    env=environment, pass_fds=[self._lock],
                    start_new_session=True,  # Ctrl-C reaches this process alone, which passes it on
                )  # fmt: skip
                self._running.add(process)
            _, status, usage = os.wait4(process.pid, 0)
            with self._guard:
                self._running.discard(process)
            process.returncode = code = _exit_code(status)
            errors.seek(0)
            told = [line for line in errors.read().splitlines() if line.strip()] or ["no reason"]
        if code < 0:
            name = signal.Signals(-code).name
            raise RuntimeError(f"{job.folder} was killed by signal {name}: {AGAIN}")
        if code == 2:
            raise UsageError(f"{told[-1].rstrip('.')}; its options stand after --.")
        self._write(job, told[-1] if code else None, usage.ru_maxrss * 1024)
        return read(job.folder)

    def _write(self, job: Job, failure, peak_memory: int) -> None:
        devices = ""
        if failure is None:
            devices = read_json(job.folder / SUMMARY)["devices"]
        about = {
            "configuration": dataclasses.asdict(job.configuration),
            "seed": job.seed,
            "script": job.script.name,
            "hardware": describe(devices),
            "parallel": _begun(job)["parallel"],
            "peak_memory": None if "gpu" in devices else peak_memory,
            "failure": failure,
        }
        text = json.dumps(about, indent=2, ensure_ascii=False) + "\n"
        atomic.write(job.folder / RUN, text.encode())


def _begun(job: Job) -> Dict:
    """Return the arguments that a run was begun with, and how many shared the machine."""
    path = job.folder / BEGUN
    return read_json(path) if path.exists() else {}


def _check_same(job: Job) -> None:
    before = tuple(_begun(job).get("arguments", job.arguments))
    if before != job.arguments:
        raise UsageError(
            f"{job.folder} was trained with other options ({' '.join(before)}): give another "
            "--output, or remove it."
        )


def _environment(parallel: int) -> Dict[str, str]:
    """Share the cores out, where the user has not."""
    made = dict(os.environ)
    if parallel > 1 and count_cores():
        made.setdefault("OMP_NUM_THREADS", str(max(1, count_cores() // parallel)))
    return made


def _exit_code(status: int) -> int:
    """Read a status of `os.wait4` as `subprocess` does: negative for a signal.

    Also for one that made the script save and leave (`RunInterruptedError.status`).
    """
    if os.WIFSIGNALED(status):
        return -os.WTERMSIG(status)
    code = os.WEXITSTATUS(status)
    return 128 - code if code - 128 in SIGNALS else code
