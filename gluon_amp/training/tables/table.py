"""Makes a table of runs: a row for each configuration, compared with its controls.

A row is compared with the reference at its own batch, and with the first row. Times are not
compared if float16 was emulated or if runs shared the machine.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Sequence, Tuple

from gluon_amp.base.messages import UsageError
from gluon_amp.training.tables import statistics
from gluon_amp.training.tables.record import Configuration, RunRecord

SAME_IN_ALL = {"data": "data sets", "model": "networks", "hardware": "hardware"}
MEANS = ("seconds", "samples_per_second", "peak_memory", "skipped", "steps")


@dataclass(frozen=True)
class Contrast:
    """A row compared with another one, as pairs if both have the same seeds."""

    reference: str  # name of the other row's configuration
    label: str  # the same in words
    same_batch: bool
    top1: statistics.Comparison  # percentage points
    cross_entropy: Optional[statistics.Comparison] = None  # nats
    epochs: Optional[statistics.EpochsComparison] = None  # to the target; None if not tested


@dataclass(frozen=True)
class Row:
    """A configuration over its seeds. A value that does not apply is None."""

    configuration: Configuration
    seeds: Tuple[int, ...]  # of the finished runs
    top1: Optional[statistics.Spread] = None  # accuracy in percent after the last epoch
    cross_entropy: Optional[statistics.Spread] = None  # nats; None if a run has none
    curve: Tuple[statistics.Spread, ...] = ()  # top-1 error in percent after each epoch
    # of each run, until the target is reached; None if it never is
    epochs: Tuple[Optional[int], ...] = ()
    # means over the seeds (see `RunRecord`)
    seconds: Optional[float] = None
    samples_per_second: Optional[float] = None
    peak_memory: Optional[float] = None
    skipped: Optional[float] = None
    steps: Optional[float] = None
    emulated: bool = False  # whether the times are not those of real float16
    parallel: int = 1  # the most runs at a time that one of these was trained among
    # with the reference at the row's batch, if there is one, and with the first row
    contrasts: Tuple[Contrast, ...] = ()
    # the first row's time over this row's; None if one is missing, emulated or of shared runs
    speed_up: Optional[float] = None
    failures: Tuple[str, ...] = ()  # the reason of each failed run


@dataclass(frozen=True)
class Table:
    """Rows that may be compared, and the runs that they summarize."""

    source: str  # 'measured' or 'published'
    data: str
    model: str
    hardware: str
    margin: float  # of the equivalence test of accuracies, percentage points
    cross_entropy_margin: float  # of that of validation cross-entropies, nats
    # accuracy in percent, the lowest with which a run of the first row ended; None if none did
    target: Optional[float]
    runs: Tuple[RunRecord, ...]
    rows: Tuple[Row, ...]  # the first is the reference

    @property
    def dates(self) -> str:
        """The first and the last date of a run, in words; empty if none was recorded."""
        dates = sorted({run.date for run in self.runs if run.date})
        return " to ".join(dict.fromkeys((*dates[:1], *dates[-1:])))

    def as_dict(self) -> Dict:
        """Return the table as values for JSON, with the tests' verdicts in words."""
        result = dataclasses.asdict(self)
        for row, values in zip(self.rows, result["rows"]):
            for contrast, written in zip(row.contrasts, values["contrasts"]):
                for name in ("top1", "cross_entropy"):
                    if written[name] is not None:
                        written[name]["verdict"] = str(getattr(contrast, name))
                if contrast.epochs is not None:
                    written["epochs"]["accepted"] = contrast.epochs.accepted
        return result


def restored(values: Dict) -> Table:
    """Return the table of a results.json: its runs are compared again."""
    try:
        runs = [RunRecord.restored(run) for run in values["runs"]]
        margins = values["margin"], values["cross_entropy_margin"]
        order = [row["configuration"]["name"] for row in values["rows"]]
        return tabulate(runs, order, *margins, values["source"])
    except (KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"the file is not a results.json with the values of each run ({error!r}): make it with "
            "`gluon-amp results`."
        ) from None


def _check_comparable(finished: Sequence[RunRecord]) -> None:
    for field, plural in SAME_IN_ALL.items():
        values = sorted({getattr(run, field) for run in finished})
        if len(values) > 1:
            raise UsageError(
                f"one table cannot mix {plural}, but there are runs of {' and of '.join(values)}: "
                "use a separate --output directory for each."
            )


def tabulate(
    runs: Sequence[RunRecord],
    order: Sequence[str],
    margin: float,
    cross_entropy_margin: float = statistics.CROSS_ENTROPY_MARGIN,
    source: str = "measured",
) -> Table:
    """Make a table of runs; `order` names the configurations, the reference first."""
    groups = [
        sorted((run for run in runs if run.configuration.name == name), key=lambda run: run.seed)
        for name in order
    ]
    runs = [run for group in groups for run in group]
    finished = [run for run in runs if run.failure is None]
    if not finished:
        reasons = sorted({run.failure for run in runs if run.failure is not None})
        raise UsageError(f"no run has a result{': ' if reasons else '.'}{'; '.join(reasons)}")
    _check_comparable(finished)
    results = [[run for run in group if run.failure is None] for group in groups]
    target = min((run.top1 for run in results[0]), default=None)
    rows = [
        _row(group[0].configuration, group, result, target)
        for group, result in zip(groups, results)
        if group
    ]
    results = [result for group, result in zip(groups, results) if group]
    if groups[0]:  # else the reference is missing
        rows = [
            dataclasses.replace(
                row,
                speed_up=speed_up(row, rows[0]),
                contrasts=tuple(
                    _contrast(row, result, rows[n], results[n], margin, cross_entropy_margin)
                    for n in _references(rows, number)
                    if result and results[n]
                ),
            )
            for number, (row, result) in enumerate(zip(rows, results))
        ]
    first = finished[0]
    margins = (margin, cross_entropy_margin)
    about = (source, first.data, first.model, first.hardware)
    return Table(*about, *margins, target, tuple(runs), tuple(rows))


def _references(rows: Sequence[Row], number: int) -> List[int]:
    """Return the first row of the row's batch and the reference's data type, and the first row."""
    first, own = rows[0].configuration, rows[number].configuration
    same = [
        n
        for n, row in enumerate(rows)
        if (row.configuration.dtype, row.configuration.batch) == (first.dtype, own.batch)
    ]
    return [n for n in dict.fromkeys([*same[:1], 0]) if n != number]


def _contrast(
    row: Row,
    runs: Sequence[RunRecord],
    reference: Row,
    others: Sequence[RunRecord],
    margin: float,
    cross_entropy_margin: float,
) -> Contrast:
    test = statistics.compare_pairs if row.seeds == reference.seeds else statistics.compare
    top1 = test([run.top1 for run in runs], [run.top1 for run in others], margin)
    cross_entropy = epochs = None
    if row.cross_entropy and reference.cross_entropy:
        own, other = _known(runs, "cross_entropy"), _known(others, "cross_entropy")
        cross_entropy = test(own, other, cross_entropy_margin)
    if row.epochs and reference.epochs:
        epochs = statistics.compare_epochs(_at_least(row), _at_least(reference))
    return Contrast(
        reference.configuration.name,
        reference.configuration.label,
        row.configuration.batch == reference.configuration.batch,
        top1,
        cross_entropy,
        epochs,
    )


def _at_least(row: Row) -> List[int]:
    """Return the epochs of each run to the target; if it was not reached, one more than trained."""
    return [len(row.curve) + 1 if epochs is None else epochs for epochs in row.epochs]


def speed_up(row: Row, reference: Row) -> Optional[float]:
    """Return how many times faster a row trains; None if the times cannot be compared."""
    alike = not any(each.emulated or each.parallel > 1 for each in (row, reference))
    if alike and row.seconds and reference.seconds:
        return reference.seconds / row.seconds
    return None


def _known(runs: Sequence[RunRecord], name: str) -> List[float]:
    """Return a number of each run that has it."""
    values = (getattr(run, name) for run in runs)
    return [value for value in values if value is not None]


def _row(
    configuration: Configuration,
    runs: Sequence[RunRecord],
    finished: Sequence[RunRecord],
    target: Optional[float],
) -> Row:
    failures = tuple(run.failure for run in runs if run.failure is not None)
    if not finished:
        return Row(configuration, (), failures=failures)

    def over_runs(name: str) -> Optional[statistics.Spread]:
        values = _known(finished, name)
        return statistics.spread(values) if len(values) == len(finished) else None

    spreads = {name: over_runs(name) for name in MEANS}
    means: Dict[str, Any] = {name: of and of.mean for name, of in spreads.items()}
    epochs: Tuple[Optional[int], ...] = ()
    if target is not None and all(len(run.errors) > 1 for run in finished):
        epochs = tuple(run.epochs_to(target) for run in finished)
    return Row(
        configuration,
        tuple(run.seed for run in finished),
        statistics.spread([run.top1 for run in finished]),
        over_runs("cross_entropy"),
        tuple(statistics.spread(errors) for errors in zip(*(run.errors for run in finished))),
        epochs,
        emulated=any(run.emulated for run in finished),
        parallel=max(run.parallel for run in finished),
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
FAQ_HARDWARE = "8 NVIDIA V100 (AWS p3.16xlarge)"


def published(margin: float) -> Table:
    """Return the table of MXNet's float16 FAQ. It has one run of each row, so there is no test."""
    runs = [
        RunRecord(
            configuration,
            seed=0,
            hardware=FAQ_HARDWARE,
            data="imagenet",
            model="resnet50_v1",
            errors=(100 - top1,),
            seconds=3600 * hours,
        )
        for configuration, top1, hours in FAQ
    ]
    order = [configuration.name for configuration, _, _ in FAQ]
    return tabulate(runs, order, margin, source="published")
