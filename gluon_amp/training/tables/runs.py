"""Trains the runs of a table, each in a process and in a directory of its own.

A run is finished when its directory has a run.json with a result, which is written last and
atomically. Finished runs are not repeated; others resume from their last checkpoint.
"""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Set, Tuple

from gluon_amp.base.hardware import count_cores
from gluon_amp.base.locks import lock
from gluon_amp.base.messages import UsageError
from gluon_amp.files import atomic
from gluon_amp.training.command_line import SIGNALS, handling_signals
from gluon_amp.training.runs.interruption import RunInterruptedError
from gluon_amp.training.tables.designs import Design, Options
from gluon_amp.training.tables.machine import describe, versions
from gluon_amp.training.tables.record import (
    LOG,
    RUN,
    SUMMARY,
    Configuration,
    RunRecord,
    read,
    read_json,
)

STARTED, ERRORS = "begun.json", "errors.txt"
RESUME = "run the same command again to resume"


@dataclasses.dataclass(frozen=True)
class Job:
    """A run to train: `arguments` are the program's, `folder` is the run's directory."""

    configuration: Configuration
    seed: int
    folder: Path
    program: Options  # what Python runs, as in ("-m", "gluon_amp", "train")
    arguments: Options

    @property
    def finished(self) -> bool:
        """Whether the directory has a result."""
        path = self.folder / RUN
        return path.exists() and read_json(path).get("failure", "") is None


def jobs(
    design: Design, output: Path, seeds: Sequence[int], devices: int, extra: Options = ()
) -> List[Job]:
    """Return the runs of a design, seed by seed, so that a slow hour affects every row alike."""
    result = []
    for seed in seeds:
        for configuration, options in design.rows:
            if configuration.batch % devices:
                raise UsageError(
                    f"a batch of {configuration.batch} cannot be shared by {devices} devices: use "
                    "a number of GPUs that divides it."
                )
            folder = output / configuration.name / f"seed-{seed}"
            arguments = [*design.options, *options, "--seed", str(seed)]
            arguments += ["--batch-size", str(configuration.batch // devices), *extra]
            arguments += ["--summary-json", f"{folder}/{SUMMARY}"]
            expanded = tuple(text.replace("{folder}", str(folder)) for text in arguments)
            program = ("-m", "gluon_amp", design.command)
            result.append(Job(configuration, seed, folder, program, expanded))
    return result


@contextmanager
def alone_in(output: Path) -> Iterator[int]:
    """Lock a directory; yield the descriptor. Runs inherit it, as they may outlive this process."""
    output.mkdir(parents=True, exist_ok=True)
    with open(output / ".lock", "w") as file:
        if lock(file) is False:
            raise UsageError(
                f"another process is training in {output}: wait for it, or end it (`fuser "
                f"{output}/.lock` prints its number)."
            )
        yield file.fileno()


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise `RunInterruptedError` at the first SIGTERM, Ctrl-C or SIGHUP; the second one kills."""

    def interrupt(number: int, _frame: object) -> None:
        for each in SIGNALS:
            if signal.getsignal(each) is interrupt:
                signal.signal(each, signal.SIG_DFL)
        raise RunInterruptedError(number, RESUME)

    with handling_signals(SIGNALS, interrupt):
        yield


class Runner:
    """Trains runs, `parallel` at a time; they inherit the descriptor `lock` (see `alone_in`)."""

    def __init__(self, parallel: int, lock: int, log: Callable[[str], None] = print):
        self.parallel = parallel
        self._lock = lock
        self._log = log
        self._guard = threading.Lock()
        self._running: Set[subprocess.Popen] = set()
        self._stopped = False

    def train(self, wanted: Sequence[Job]) -> None:
        """Train those runs that are not finished, and log a line when one has ended."""
        for job in wanted:
            before = _started(job).get("arguments", job.arguments)
            if tuple(before) != job.arguments:
                raise UsageError(
                    f"{job.folder} was trained with other options ({' '.join(before)}): choose "
                    "another --output, or remove it."
                )
        missing = [job for job in wanted if not job.finished]
        if len(missing) < len(wanted):
            self._log(f"{len(wanted) - len(missing)} of {len(wanted)} runs are finished already")
        start = time.monotonic()
        with ThreadPoolExecutor(self.parallel) as pool:
            try:
                records = pool.map(self._train_one, missing)
                for done, (job, record) in enumerate(zip(missing, records), 1):
                    seconds = time.monotonic() - start
                    left = seconds / done * (len(missing) - done)
                    result = record.failure or f"{record.top1:.2f} %"
                    self._log(
                        f"[{done}/{len(missing)}] {job.configuration.label}, seed {job.seed}: "
                        f"{result}, about {left / 60:.0f} min left"
                    )
            except BaseException:
                self.stop()
                raise

    def stop(self) -> None:
        """Terminate the processes that are running, and start no other."""
        with self._guard:
            self._stopped = True
            for process in self._running:
                process.terminate()

    def _train_one(self, job: Job) -> RunRecord:
        job.folder.mkdir(parents=True, exist_ok=True)
        # the times of a resumed run are compared only if no part of it shared the machine
        parallel = max(self.parallel, _started(job).get("parallel", 1))
        started = {"arguments": job.arguments, "parallel": parallel}
        atomic.write(job.folder / STARTED, json.dumps(started).encode())
        status, peak_memory, errors = self._run(job)
        if status < 0:
            name = signal.Signals(-status).name
            raise RuntimeError(f"{job.folder} was killed by signal {name}: {RESUME}.")
        reason = errors[-1] if errors else "no reason"
        if status == 2:
            raise UsageError(f"{reason.rstrip('.')}; options for the runs go after --.")
        self._write(job, reason if status else None, peak_memory)
        return read(job.folder)

    def _run(self, job: Job) -> Tuple[int, int, List[str]]:
        """Run the program; return its status, its peak memory in bytes, and what stderr got."""
        with open(job.folder / LOG, "a") as log, open(job.folder / ERRORS, "w+") as errors:
            with self._guard:
                if self._stopped:
                    raise RuntimeError("stopped.")
                process = subprocess.Popen(
                    [sys.executable, *job.program, *job.arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=errors,
                    env=_environment(self.parallel),
                    pass_fds=[self._lock],
                    # only this process receives Ctrl-C; `stop` passes it on
                    start_new_session=True,
                )
                self._running.add(process)
            _, status, usage = os.wait4(process.pid, 0)
            with self._guard:
                self._running.discard(process)
            process.returncode = _exit_code(status)
            errors.seek(0)
            lines = [line for line in errors.read().splitlines() if line.strip()]
        return process.returncode, usage.ru_maxrss * 1024, lines

    def _write(self, job: Job, failure: Optional[str], peak_memory: int) -> None:
        devices = "" if failure else read_json(job.folder / SUMMARY)["devices"]
        about = {
            "configuration": dataclasses.asdict(job.configuration),
            "seed": job.seed,
            "program": job.program,
            "hardware": describe(devices),
            "versions": versions(),
            "date": datetime.now(timezone.utc).date().isoformat(),
            "parallel": _started(job)["parallel"],
            "peak_memory": None if "gpu" in devices else peak_memory,
            "failure": failure,
        }
        text = json.dumps(about, indent=2, ensure_ascii=False) + "\n"
        atomic.write(job.folder / RUN, text.encode())


def _started(job: Job) -> Dict[str, Any]:
    """Return the arguments that a run was started with, and how many runs shared the machine."""
    path = job.folder / STARTED
    return read_json(path) if path.exists() else {}


def _environment(parallel: int) -> Dict[str, str]:
    """Divide the cores among the runs, unless the user has set the number of threads."""
    environment = dict(os.environ)
    if parallel > 1 and count_cores():
        environment.setdefault("OMP_NUM_THREADS", str(max(1, count_cores() // parallel)))
    return environment


def _exit_code(status: int) -> int:
    """Convert a status as `subprocess` does, also of a signal that made a run save and exit."""
    if os.WIFSIGNALED(status):
        return -os.WTERMSIG(status)
    code = os.WEXITSTATUS(status)
    return 128 - code if code - 128 in SIGNALS else code
