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


@dataclass(frozen=True)
class Row:
    """A configuration over its seeds. A value that does not apply is None.

    Attributes
    ----------
    configuration : Configuration
    seeds : tuple of int
        Seeds of the finished runs.
    top1 : Spread or None
        Accuracy in percent after the last epoch.
    curve : tuple of Spread
        Top-1 error in percent after each epoch.
    seconds, samples_per_second, peak_memory, skipped, steps : float or None
        Means over the seeds (see `RunRecord`).
    emulated : bool
        Whether float16 was emulated, so that the times are not those of real float16.
    comparison : Comparison or None
        Of the top-1 accuracy with the first row's.
    speed_up : float or None
        The first row's time over this row's; None if one is missing or emulated.
    failures : tuple of str
        The reason of each failed run.
    """

    configuration: Configuration
    seeds: Tuple[int, ...]
    top1: Optional[Spread] = None
    curve: Tuple[Spread, ...] = ()
    seconds: Optional[float] = None
    samples_per_second: Optional[float] = None
    peak_memory: Optional[float] = None
    skipped: Optional[float] = None
    steps: Optional[float] = None
    emulated: bool = False
    comparison: Optional[Comparison] = None
    speed_up: Optional[float] = None
    failures: Tuple[str, ...] = ()


@dataclass(frozen=True)
class Table:
    """Rows that may be compared.

    Attributes
    ----------
    source : str
        'measured' or 'published'.
    data, model, hardware : str
        Those of every row.
    margin : float
        Of the equivalence test, percentage points.
    rows : tuple of Row
        The first is the reference.
    """

    source: str
    data: str
    model: str
    hardware: str
    margin: float
    rows: Tuple[Row, ...]

    def as_dict(self) -> Dict:
        """Return the table as values for JSON, with the tests' verdicts in words."""
        result = dataclasses.asdict(self)
        for row, values in zip(self.rows, result["rows"]):
            values["verdict"] = None if row.comparison is None else str(row.comparison)
        return result


def check_comparable(runs: Sequence[RunRecord]) -> None:
    """Raise `UsageError` if one table cannot hold these runs."""
    for field, plural in SAME_IN_ALL.items():
        values = sorted({getattr(run, field) for run in runs if run.failure is None})
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
        Names of the configurations, the reference first. Runs of other configurations are left
        out.
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
    check_comparable(finished)
    groups = {name: [run for run in runs if run.configuration.name == name] for name in order}
    rows: List[Row] = []
    tops = {name: [run.top1 for run in group if not run.failure] for name, group in groups.items()}
    for name, group in groups.items():
        if not group:
            continue
        row = _row(group)
        if rows and row.top1 and tops[order[0]]:
            comparison = compare(tops[name], tops[order[0]], margin)
            row = dataclasses.replace(row, comparison=comparison, speed_up=speed_up(row, rows[0]))
        elif not rows and name == order[0]:
            row = dataclasses.replace(row, speed_up=speed_up(row, row))
        rows.append(row)
    first = finished[0]
    return Table("measured", first.data, first.model, first.hardware, margin, tuple(rows))


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

    def mean(field: str) -> Optional[float]:
        values = [getattr(run, field) for run in finished]
        return None if None in values else spread(values).mean

    return Row(
        configuration,
        tuple(run.seed for run in finished),
        spread([run.top1 for run in finished]),
        tuple(spread(errors) for errors in zip(*(run.errors for run in finished))),
        mean("seconds"),
        mean("samples_per_second"),
        mean("peak_memory"),
        mean("skipped"),
        mean("steps"),
        any(run.emulated for run in finished),
        failures=failures,
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
    first = rows[0]
    rows = [
        dataclasses.replace(
            row,
            speed_up=speed_up(row, first),
            comparison=None
            if row is first
            else compare([row.top1.mean], [first.top1.mean], margin),
        )
        for row in rows
    ]
    hardware = "8 NVIDIA V100 (AWS p3.16xlarge)"
    return Table("published", "imagenet", "resnet50_v1", hardware, margin, tuple(rows))
