"""Times the cases of a suite in turn, so that whatever disturbs the machine disturbs all of them.

This process computes nothing and does not import MXNet, which would hold memory and threads.
"""

import contextlib
import multiprocessing
import statistics
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterator, List, Optional

from experiments.benchmarks.suites import Case, Ratio, Suite

# A sample is the median of as many runs as this takes, at least one.
SECONDS_PER_SAMPLE = 0.3
# The first runs allocate memory, and oneDNN compiles its kernels in them.
WARM_UP_RUNS = 3


class BenchmarkError(RuntimeError):
    """A case cannot run here; the message is one sentence for the user."""


@dataclass(frozen=True)
class Measured:
    """What came of a case.

    Attributes
    ----------
    case : Case
    seconds : list of float
        A sample for each round.
    mebibytes : float
        The most memory its process has held.
    parameters : int
        How many its network trains.
    """

    case: Case
    seconds: List[float]
    mebibytes: float
    parameters: int

    @property
    def median(self) -> float:
        """Median of the samples in seconds."""
        return statistics.median(self.seconds)

    @property
    def images_per_second(self) -> Optional[float]:
        """None where no images are worked on."""
        return self.case.images / self.median if self.case.images else None


@dataclass(frozen=True)
class MeasuredRatio:
    """A ratio, its median over the rounds and its extremes."""

    ratio: Ratio
    values: List[float]

    @property
    def median(self) -> float:
        """Median of the values."""
        return statistics.median(self.values)

    @property
    def verdict(self) -> str:
        """Which bound the median keeps: 'aim', 'must', or 'missed'; '' where there are none."""
        if self.ratio.must is None:
            return ""
        sign = -1 if self.ratio.larger_is_better else 1
        for name in ("aim", "must"):
            if sign * self.median <= sign * getattr(self.ratio, name):
                return name
        return "missed"


def measure(suite: Suite, rounds: int, tell: Callable[[str], None]) -> List[Measured]:
    """Time all cases of a suite.

    Parameters
    ----------
    suite : Suite
    rounds : int
        How often each case gets its turn.
    tell : callable
        Takes a line on what is being done.

    Raises
    ------
    BenchmarkError
        A case cannot run.
    """
    measured = []
    for number, group in enumerate(suite.groups, 1):
        tell(f"{suite.title}: group {number} of {len(suite.groups)}")
        measured += _measure_group(group, rounds, tell)
    return measured


def ratios(suite: Suite, measured: List[Measured]) -> List[MeasuredRatio]:
    """Return the ratios of a suite: of times round by round, of memory once."""
    of = {one.case.label: one for one in measured}
    found = []
    for ratio in suite.ratios:
        over, under = of[ratio.over], of[ratio.under]
        if ratio.figure == "seconds":
            values = [a / b for a, b in zip(over.seconds, under.seconds)]
        else:
            values = [getattr(over, ratio.figure) / getattr(under, ratio.figure)]
        found.append(MeasuredRatio(ratio, values))
    return found


def _measure_group(cases: List[Case], rounds: int, tell: Callable[[str], None]) -> List[Measured]:
    with contextlib.ExitStack() as stack:
        workers = []
        for case in cases:
            tell(f"  preparing {case.label}")
            workers.append(stack.enter_context(_worker(case)))
        runs = [_runs_for(worker(WARM_UP_RUNS)) for worker in workers]
        samples: List[List[float]] = [[] for _ in workers]
        for number in range(rounds):
            tell(f"  round {number + 1} of {rounds}")
            for worker, times, taken in zip(workers, runs, samples):
                taken.append(statistics.median(worker(times)))
        figures: List[Dict[str, Any]] = [worker(None) for worker in workers]
    return [Measured(c, s, **f) for c, s, f in zip(cases, samples, figures)]


def _runs_for(warm_up: List[float]) -> int:
    return max(1, round(SECONDS_PER_SAMPLE / min(warm_up)))


@contextlib.contextmanager
def _worker(case: Case) -> Iterator[Callable[[Optional[int]], Any]]:
    """Start the process of a case; yield what sends it a message and returns its answer."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=_serve, args=(case, there), daemon=True
    )
    process.start()
    there.close()

    def answer() -> Any:
        try:
            received = here.recv()
        except EOFError:
            process.join()
            raise BenchmarkError(
                f"{case.label}: its process died with status {process.exitcode}; "
                "is there enough memory for --batch-size and --pixels?"
            ) from None
        if isinstance(received, str):
            raise BenchmarkError(received)
        return received

    def ask(message: Optional[int]) -> Any:
        here.send(message)
        return answer()

    try:
        answer()  # that it is ready
        yield ask
    finally:
        here.close()
        process.join(5)
        if process.is_alive():
            process.kill()
            process.join()


def _serve(case: Case, connection) -> None:
    from experiments.benchmarks.work import serve

    serve(case, connection)
