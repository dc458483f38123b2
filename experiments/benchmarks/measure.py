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
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence

from experiments import ROOT
from experiments.benchmarks.suites import Case, Suite
from experiments.standalone import command_line, waiting

# A sample is the median of as many runs as fit into this time, at least one.
SECONDS_PER_SAMPLE = 0.3
# The first runs allocate memory and compile oneDNN's kernels.
WARM_UP_RUNS = 3


class BenchmarkError(command_line.UsageError):
    """A case cannot run on this machine; the message is one sentence for the user."""


def output_of(command: Sequence[str], what: str, **variables: str) -> str:
    """Return what a command prints, with more variables in its environment.

    One that fails is a `BenchmarkError` that begins with `what`.
    """
    done = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
        raise BenchmarkError(f"{what}: {lines[-1]}")
    return done.stdout


@dataclass(frozen=True)
class Measured:
    """Time and memory of a case."""

    case: Case
    seconds: List[float]  # a sample for each round
    mebibytes: float  # peak memory of the process
    parameters: int  # number of trained parameters
    products: int = 0  # multiply-adds, of the cases of plain MXNet that run a network


def measure(
    suite: Suite,
    rounds: int,
    progress: Callable[[str], None],
    peer_python: Optional[Path] = None,
    failed: Optional[Dict[str, str]] = None,
) -> List[Measured]:
    """Time all cases of a suite; `progress` is called with one line of text at each step.

    `peer_python` is the interpreter of the cases of PyTorch. A case that cannot run is a
    `BenchmarkError`. If there is a dict `failed`, it is left out instead, and the dict gets the
    reason by the case's label.
    """

    def each(cases: Sequence[Case], action: Callable[[Case], Any]) -> Dict[Case, Any]:
        """Return what the action returns for each case, without those in which it fails."""
        results = {}
        for case in cases:
            try:
                results[case] = action(case)
            except BenchmarkError as error:
                if failed is None:
                    raise
                failed[case.label] = str(error)
        return results

    def in_turns(group: Sequence[Case]) -> List[Measured]:
        with contextlib.ExitStack() as stack:
            workers = each(group, lambda case: stack.enter_context(_worker(case, peer_python)))
            ready = each(list(workers), lambda case: workers[case](0))  # they start side by side
            runs = each(list(ready), lambda case: runs_per_sample(workers[case](WARM_UP_RUNS)))
            samples: Dict[Case, List[float]] = {case: [] for case in runs}
            for turn in range(rounds):
                progress(f"  round {turn + 1} of {rounds}")
                done = each(list(samples), lambda case: workers[case](runs[case]))
                samples = {c: [*samples[c], statistics.median(s)] for c, s in done.items()}
            figures = each(list(samples), lambda case: workers[case](None))
        return [Measured(case, samples[case], **own) for case, own in figures.items()]

    measured = []
    for number, group in enumerate(suite.groups, 1):
        progress(f"{suite.title}: group {number} of {len(suite.groups)}")
        measured += in_turns(group)
    return measured


def runs_per_sample(warm_up: List[float]) -> int:
    """Return how many runs make a sample, from the seconds of the first runs."""
    return max(1, round(SECONDS_PER_SAMPLE / min(warm_up)))


@contextlib.contextmanager
def _worker(case: Case, peer_python: Optional[Path]) -> Iterator[Callable[[Optional[int]], Any]]:
    """Start the process of a case; yield a function that sends a message and returns the reply."""
    connection, there = multiprocessing.Pipe()
    peer = case.library in ("pytorch", "torch.compile")
    program = [str(peer_python) if peer else sys.executable, "-m"]
    program.append(f"experiments.benchmarks.{'peer_torch' if peer else 'work'}")
    with there:
        process = subprocess.Popen(
            [*program, json.dumps(asdict(case)), str(there.fileno())],
            pass_fds=[there.fileno()],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
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
        return reply

    def request(message: Optional[int]) -> Any:
        if pauses:
            process.send_signal(signal.SIGCONT)
        with contextlib.suppress(ConnectionError):  # receiving reports it
            connection.send(message)
        reply = receive()
        reply = receive() if reply is None else reply  # the first one says that it is ready
        if pauses:
            process.send_signal(signal.SIGSTOP)
        return reply

    try:
        yield request
    finally:
        process.send_signal(signal.SIGCONT)
        connection.close()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
