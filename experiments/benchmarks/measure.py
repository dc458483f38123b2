"""Times the cases of a suite in turns, so that a disturbance of the machine affects all of them.

This process computes nothing. It does not import MXNet, which would hold memory and threads.
"""

import contextlib
import multiprocessing
import statistics
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterator, List, Optional

from experiments.benchmarks.suites import Case, Ratio, Suite
from experiments.standalone import command_line

# A sample is the median of as many runs as fit into this time, at least one.
SECONDS_PER_SAMPLE = 0.3
# The first runs allocate memory and compile oneDNN's kernels.
WARM_UP_RUNS = 3


class BenchmarkError(command_line.UsageError):
    """A case cannot run on this machine; the message is one sentence for the user."""


@dataclass(frozen=True)
class Measured:
    """Time and memory of a case."""

    case: Case
    seconds: List[float]  # a sample for each round
    mebibytes: float  # peak memory of the process
    parameters: int  # number of trained parameters

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


def measure(suite: Suite, rounds: int, progress: Callable[[str], None]) -> List[Measured]:
    """Time all cases of a suite; `progress` is called with one line of text at each step.

    A case that cannot run is a `BenchmarkError`.
    """
    measured = []
    for number, group in enumerate(suite.groups, 1):
        progress(f"{suite.title}: group {number} of {len(suite.groups)}")
        measured += _measure_group(group, rounds, progress)
    return measured


def ratios(suite: Suite, measured: List[Measured]) -> List[MeasuredRatio]:
    """Return the ratios of a suite: of times for each round, of memory once."""
    by_label = {one.case.label: one for one in measured}
    result = []
    for ratio in suite.ratios:
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


def _measure_group(
    cases: List[Case], rounds: int, progress: Callable[[str], None]
) -> List[Measured]:
    with contextlib.ExitStack() as stack:
        workers = []
        for case in cases:
            progress(f"  preparing {case.label}")
            workers.append(stack.enter_context(_worker(case)))
        runs = [runs_per_sample(worker(WARM_UP_RUNS)) for worker in workers]
        samples: List[List[float]] = [[] for _ in workers]
        for number in range(rounds):
            progress(f"  round {number + 1} of {rounds}")
            for worker, count, seconds in zip(workers, runs, samples):
                seconds.append(statistics.median(worker(count)))
        figures: List[Dict[str, Any]] = [worker(None) for worker in workers]
    return [Measured(c, s, **f) for c, s, f in zip(cases, samples, figures)]


@contextlib.contextmanager
def _worker(case: Case) -> Iterator[Callable[[Optional[int]], Any]]:
    """Start the process of a case; yield a function that sends a message and returns the reply."""
    here, there = multiprocessing.Pipe()
    spawn = multiprocessing.get_context("spawn")
    process = spawn.Process(target=_serve, args=(case, there), daemon=True)
    process.start()
    there.close()

    def receive() -> Any:
        try:
            reply = here.recv()
        except EOFError:
            process.join()
            raise BenchmarkError(
                f"{case.label}: its process died with status {process.exitcode}; "
                "is there enough memory for --batch-size and --pixels?"
            ) from None
        if isinstance(reply, str):
            raise BenchmarkError(reply)
        return reply

    def request(message: Optional[int]) -> Any:
        here.send(message)
        return receive()

    try:
        receive()  # the process is ready
        yield request
    finally:
        here.close()
        process.join(5)
        if process.is_alive():
            process.kill()
            process.join()


def _serve(case: Case, connection) -> None:
    from experiments.benchmarks.work import serve

    serve(case, connection)
