"""Makes a table of runs: a row for each configuration, each compared with the first row.

Times are not compared if float16 was emulated or if runs shared the machine. A table holds runs of
one data set, one network and one kind of hardware.
"""

import dataclasses
from dataclasses import dataclass
from typing import Dict, List, Optional, Sequence, Tuple

from experiments.results.record import Configuration, RunRecord
from experiments.results.statistics import Comparison, Spread, compare, spread
from gluon_amp.command_line import UsageError

SAME_IN_ALL = {"data": "data sets", "model": "networks", "hardware": "hardware"}
MEANS = ("seconds", "samples_per_second", "peak_memory", "skipped", "steps")


@dataclass(frozen=True)
class Row:
    """A configuration over its seeds. A value that does not apply is None."""

    configuration: Configuration
    seeds: Tuple[int, ...]  # of the finished runs
    top1: Optional[Spread] = None  # accuracy in percent after the last epoch
    curve: Tuple[Spread, ...] = ()  # top-1 error in percent after each epoch
    # means over the seeds (see `RunRecord`)
    seconds: Optional[float] = None
    samples_per_second: Optional[float] = None
    peak_memory: Optional[float] = None
    skipped: Optional[float] = None
    steps: Optional[float] = None
    emulated: bool = False  # whether the times are not those of real float16
    comparison: Optional[Comparison] = None  # of the top-1 accuracy with the first row's
    # the first row's time over this row's; None if one is missing or emulated
    speed_up: Optional[float] = None
    failures: Tuple[str, ...] = ()  # the reason of each failed run


@dataclass(frozen=True)
class Table:
    """Rows that may be compared."""

    source: str  # 'measured' or 'published'
    data: str
    model: str
    hardware: str
    margin: float  # of the equivalence test, percentage points
    rows: Tuple[Row, ...]  # the first is the reference

    def as_dict(self) -> Dict:
        """Return the table as values for JSON, with the tests' verdicts in words."""
        result = dataclasses.asdict(self)
        for row, values in zip(self.rows, result["rows"]):
            values["verdict"] = None if row.comparison is None else str(row.comparison)
        return result


def _check_comparable(finished: Sequence[RunRecord]) -> None:
    for field, plural in SAME_IN_ALL.items():
        values = sorted({getattr(run, field) for run in finished})
        if len(values) > 1:
            raise UsageError(
                f"one table cannot mix {plural}, but there are runs of {' and of '.join(values)}: "
                "use a separate --output directory for each."
            )


def tabulate(runs: Sequence[RunRecord], order: Sequence[str], margin: float) -> Table:
    """Make a table of runs.

    Parameters
    ----------
    runs : sequence of RunRecord
        In any order.
    order : sequence of str
        Names of the configurations, the reference first. Other runs are left out.
    margin : float
        Of the equivalence test, percentage points.

    Raises
    ------
    UsageError
        No run has a result, or the runs cannot be compared.
    """
    runs = [run for run in runs if run.configuration.name in order]
    finished = [run for run in runs if run.failure is None]
    if not finished:
        reasons = sorted({run.failure for run in runs})
        raise UsageError(f"no run has a result{': ' if reasons else '.'}{'; '.join(reasons)}")
    _check_comparable(finished)
    groups = [[run for run in runs if run.configuration.name == name] for name in order]
    rows = [_row(group) for group in groups if group]
    if groups[0]:  # else the reference is missing
        tops = [[run.top1 for run in group if run.failure is None] for group in groups if group]
        rows = _compared(rows, tops, margin)
    first = finished[0]
    return Table("measured", first.data, first.model, first.hardware, margin, tuple(rows))


def _compared(rows: List[Row], tops: List[List[float]], margin: float) -> List[Row]:
    """Compare each row with the first. `tops` has the accuracies of the runs of each."""
    first, *others = rows
    result = [dataclasses.replace(first, speed_up=speed_up(first, first))]
    for row, top1 in zip(others, tops[1:]):
        if top1 and tops[0]:
            comparison = compare(top1, tops[0], margin)
            row = dataclasses.replace(row, comparison=comparison, speed_up=speed_up(row, first))
        result.append(row)
    return result


def speed_up(row: Row, reference: Row) -> Optional[float]:
    """Return how many times faster a row trains; None if a time is missing or emulated."""
    if row.emulated or reference.emulated or not (row.seconds and reference.seconds):
        return None
    return reference.seconds / row.seconds


def _row(runs: Sequence[RunRecord]) -> Row:
    finished = sorted((run for run in runs if run.failure is None), key=lambda run: run.seed)
    failures = tuple(run.failure for run in runs if run.failure is not None)
    configuration = runs[0].configuration
    if not finished:
        return Row(configuration, (), failures=failures)

    values = {name: [getattr(run, name) for run in finished] for name in MEANS}
    means = {name: None if None in of else spread(of).mean for name, of in values.items()}
    return Row(
        configuration,
        tuple(run.seed for run in finished),
        spread([run.top1 for run in finished]),
        tuple(spread(errors) for errors in zip(*(run.errors for run in finished))),
        emulated=any(run.emulated for run in finished),
        failures=failures,
        **means,
    )


# https://mxnet.apache.org/versions/1.9.1/api/faq/float16, "Training results": top-1 in percent
# after 90 epochs and hours to train, at a learning rate of 0.4 for batches of 1024, 0.8 for 2048.
FAQ = (
    (Configuration("float32-1024", "float32, batch 1024", "float32", 1024), 76.18, 11.8),
    (Configuration("float16-1024", "float16, batch 1024", "float16", 1024), 76.34, 7.3),
    (Configuration("float16-2048", "float16, batch 2048", "float16", 2048), 76.29, 6.5),
)


def published(margin: float) -> Table:
    """Return the table of MXNet's float16 FAQ. It has one run of each row, so there is no test."""
    rows = [
        Row(configuration, (0,), spread([top1]), seconds=3600 * hours)
        for configuration, top1, hours in FAQ
    ]
    rows = _compared(rows, [[top1] for _, top1, _ in FAQ], margin)
    hardware = "8 NVIDIA V100 (AWS p3.16xlarge)"
    return Table("published", "imagenet", "resnet50_v1", hardware, margin, tuple(rows))
