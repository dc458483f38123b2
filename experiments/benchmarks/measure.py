"""Times the cases of a suite in turns, so that a disturbance of the machine affects all of them.

This process computes nothing. It does not import MXNet, which would hold memory and threads.
"""

import contextlib
import json
import multiprocessing
import os
import signal
import statistics
import subprocess
import sys
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

from experiments import ROOT
from experiments.benchmarks.suites import Case, Ratio, Suite
from experiments.standalone import command_line, waiting

# A sample is the median of as many runs as fit into this time, at least one.
SECONDS_PER_SAMPLE = 0.3
# The first runs allocate memory and compile oneDNN's kernels.
WARM_UP_RUNS = 3


class BenchmarkError(command_line.UsageError):
    """A case cannot run on this machine; the message is one sentence for the user."""


def output_of(case: Case, command: Sequence[str], **variables: str) -> str:
    """Return what a command prints that runs a case, with more variables in its environment.

    One that fails is a `BenchmarkError`.
    """
    done = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
        raise BenchmarkError(f"{case.label}: {lines[-1]}")
    return done.stdout


@dataclass(frozen=True)
class Measured:
    """Time and memory of a case."""

    case: Case
    seconds: List[float]  # a sample for each round
    mebibytes: float  # peak memory of the process
    parameters: int  # number of trained parameters
    flop: int = 0  # operations of all products in one run, if they are counted
    moved: int = 0  # bytes that these products and the update read and write at least

    @property
    def median(self) -> float:
        """Median of the samples in seconds."""
        return statistics.median(self.seconds)

    @property
    def images_per_second(self) -> Optional[float]:
        """Images per second; None for a case without images."""
        return self.case.images / self.median if self.case.images else None


@dataclass(frozen=True)
class MeasuredRatio:
    """A ratio and its value in each round."""

    ratio: Ratio
    values: List[float]

    @property
    def median(self) -> float:
        """Median of the values."""
        return statistics.median(self.values)

    @property
    def verdict(self) -> str:
        """The stricter bound that the median meets, 'aim' or 'must'; else 'missed'; '' if none."""
        if self.ratio.must is None:
            return ""
        sign = -1 if self.ratio.larger_is_better else 1
        for name in ("aim", "must"):
            if sign * self.median <= sign * getattr(self.ratio, name):
                return name
        return "missed"


def measure(
    suite: Suite,
    rounds: int,
    progress: Callable[[str], None],
    peer_python: Optional[Path] = None,
    failed: Optional[Dict[str, str]] = None,
) -> List[Measured]:
    """Time all cases of a suite.

    Parameters
    ----------
    suite : Suite
    rounds : int
    progress : callable
        Called with one line of text at each step.
    peer_python : Path, optional
        The interpreter of the cases of PyTorch.
    failed : dict of str to str, optional
        Filled with the reasons, by label, why cases could not run. They are left out.

    Raises
    ------
    BenchmarkError
        A case cannot run, and `failed` is None.
    """
    measured = []
    for number, group in enumerate(suite.groups, 1):
        progress(f"{suite.title}: group {number} of {len(suite.groups)}")
        measured += _Group(group, progress, peer_python, failed).measure(rounds)
    return measured


def ratios(suite: Suite, measured: List[Measured]) -> List[MeasuredRatio]:
    """Return the ratios of the measured cases: of times for each round, of memory once."""
    by_label = {one.case.label: one for one in measured}
    result = []
    for ratio in suite.ratios:
        if not {ratio.over, ratio.under} <= by_label.keys():
            continue
        over, under = by_label[ratio.over], by_label[ratio.under]
        if ratio.figure == "seconds":
            values = [a / b for a, b in zip(over.seconds, under.seconds)]
        else:
            values = [getattr(over, ratio.figure) / getattr(under, ratio.figure)]
        result.append(MeasuredRatio(ratio, values))
    return result


def runs_per_sample(warm_up: List[float]) -> int:
    """Return how many runs make a sample, from the seconds of the first runs."""
    return max(1, round(SECONDS_PER_SAMPLE / min(warm_up)))


class _Group:
    """The cases that take turns. One that fails is left out from then on, or raises."""

    def __init__(
        self,
        cases: List[Case],
        progress: Callable[[str], None],
        peer_python: Optional[Path],
        failed: Optional[Dict[str, str]],
    ):
        self.cases = cases
        self.progress = progress
        self.peer_python = peer_python
        self.failed = failed

    def measure(self, rounds: int) -> List[Measured]:
        with contextlib.ExitStack() as stack:

            def start(case: Case) -> Callable[[Optional[int]], Any]:
                self.progress(f"  preparing {case.label}")
                return stack.enter_context(_worker(case, self.peer_python))

            workers = self._each(self.cases, start)
            runs = self._each(workers, lambda one: runs_per_sample(workers[one](WARM_UP_RUNS)))
            samples: Dict[Case, List[float]] = {one: [] for one in runs}
            for number in range(rounds):
                self.progress(f"  round {number + 1} of {rounds}")
                turn = self._each(samples, lambda one: statistics.median(workers[one](runs[one])))
                samples = {one: [*samples[one], seconds] for one, seconds in turn.items()}
            figures = self._each(samples, lambda one: workers[one](None))
        return [Measured(one, samples[one], **figure) for one, figure in figures.items()]

    def _each(self, cases: Iterable[Case], action: Callable[[Case], Any]) -> Dict[Case, Any]:
        """Return what the action returns for each case, without those in which it fails."""
        results = {}
        for case in cases:
            try:
                results[case] = action(case)
            except BenchmarkError as error:
                if self.failed is None:
                    raise
                self.failed[case.label] = str(error)
        return results


@contextlib.contextmanager
def _worker(case: Case, peer_python: Optional[Path]) -> Iterator[Callable[[Optional[int]], Any]]:
    """Start the process of a case; yield a function that sends a message and returns the reply."""
    connection, process = _start(case, peer_python)
    # Threads that wait actively would take the cores from the case whose turn it is
    pauses = os.environ.get(waiting.VARIABLE, "").lower() == "active"

    def receive() -> Any:
        try:
            reply = connection.recv()
        except (EOFError, ConnectionError):
            raise BenchmarkError(
                f"{case.label}: its process died with status {process.wait()}; "
                "is there enough memory for --batch-size and --pixels?"
            ) from None
        if isinstance(reply, str):
            raise BenchmarkError(reply)
        if pauses:
            process.send_signal(signal.SIGSTOP)
        return reply

    def request(message: Optional[int]) -> Any:
        if pauses:
            process.send_signal(signal.SIGCONT)
        with contextlib.suppress(ConnectionError):  # receiving reports it
            connection.send(message)
        return receive()

    try:
        receive()  # the process is ready
        yield request
    finally:
        process.send_signal(signal.SIGCONT)
        connection.close()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _start(case: Case, peer_python: Optional[Path]) -> Tuple[Connection, subprocess.Popen]:
    here, there = multiprocessing.Pipe()
    if case.library == "pytorch":
        # isolated, so that this folder's modules do not hide those of the standard library
        program = [str(peer_python), "-I", str(Path(__file__).with_name("peer_torch.py"))]
    else:
        program = [sys.executable, "-m", "experiments.benchmarks.work"]
    with there:
        process = subprocess.Popen(
            [*program, json.dumps(asdict(case)), str(there.fileno())],
            pass_fds=[there.fileno()],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
    return here, process
