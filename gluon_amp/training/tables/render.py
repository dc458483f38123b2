"""Writes a table as Markdown and CSV."""

import csv
import io
from typing import Callable, Dict, List, Optional, Sequence, Tuple

from gluon_amp.policy import study
from gluon_amp.training.tables.record import RunRecord
from gluon_amp.training.tables.statistics import CONFIDENCE, Comparison, Spread, spread
from gluon_amp.training.tables.table import Contrast, Row, Table

NONE = "–"


def mean(values: Optional[Spread], digits: int, unit: str = "") -> str:
    """Return a mean with its standard deviation, if there are several values."""
    if values is None:
        return NONE
    sd = "" if values.sd is None else f" ± {values.sd:.{digits}f}"
    return f"{values.mean:.{digits}f}{sd}{unit}"


def duration(seconds: Optional[float]) -> str:
    """Return a time in seconds, minutes or hours."""
    if seconds is None:
        return NONE
    if seconds < 100:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"


def _speed_up(row: Row) -> str:
    if row.speed_up is None:
        return "emulated" if row.emulated else NONE
    return "1" if row.speed_up == 1 else f"{row.speed_up:.2f}x"


def _alone(row: Row, value: Optional[float]) -> Optional[float]:
    """Return a time or rate if it can be compared with that of another row."""
    return value if row.parallel == 1 else None


def _memory(row: Row) -> str:
    return NONE if row.peak_memory is None else f"{row.peak_memory / 2**20:.0f} MiB"


def _number(value: Optional[float], form: str) -> str:
    return NONE if value is None else format(value, form)


def difference(comparison: Comparison, digits: int = 2) -> str:
    """Return a difference and its interval, if there is one. Zero is +0.00, never -0.00."""
    low, high = comparison.low, comparison.high
    interval = "" if low is None else f" ({low:+.{digits}f} to {high:+.{digits}f})"
    return f"{round(comparison.difference, digits) + 0.0:+.{digits}f}{interval}"


def _test(comparison: Optional[Comparison], field: str, form: str) -> str:
    return _number(getattr(comparison, field) if comparison else None, form)


def _failures(row: Row) -> str:
    runs = f"{len(row.failures)} failed: {'; '.join(sorted(set(row.failures)))}"
    return runs.replace("|", "\\|")


NAME_COLUMN = ("Configuration", lambda row: row.configuration.label)
# The columns of MXNet's float16 FAQ.
FAQ_COLUMNS: Sequence[Tuple[str, Callable[[Row], str]]] = (
    ("Batch size", lambda row: str(row.configuration.batch)),
    ("Data type", lambda row: row.configuration.dtype),
    ("Top-1 accuracy", lambda row: mean(row.top1, 2, " %")),
    ("Time to train", lambda row: duration(_alone(row, row.seconds))),
    ("Speed-up", _speed_up),
)
TEST_COLUMNS = (
    f"Configuration|Compared with|Seeds|{{}}|Difference ({CONFIDENCE:.0%} interval)|Test|t|"
    "p (differ)|p (equivalent)|Verdict"
).split("|")
EPOCHS_COLUMNS = (
    "Configuration|Compared with|Reached by|Epochs|Difference|p (fewer)|MLPerf's rule|p (more)"
).split("|")
COST_COLUMNS = (
    NAME_COLUMN,
    ("Samples/s", lambda row: _number(_alone(row, row.samples_per_second), ".0f")),
    ("Peak memory", _memory),
    ("Skipped steps", lambda row: _number(row.skipped, ".1f")),
    ("Steps", lambda row: _number(row.steps, ".0f")),
    ("Arithmetic", lambda row: "emulated" if row.emulated else "native"),
)


def grid(columns: Sequence[Tuple[str, Callable[[Row], str]]], rows: Sequence[Row]) -> str:
    """Return rows as a Markdown table whose columns are also aligned in the source."""
    titles = [title for title, _ in columns]
    return aligned(titles, [[text(row) for _, text in columns] for row in rows])


def aligned(titles: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    """Return cells as a Markdown table whose columns are also aligned in the source."""
    cells = [titles, *cells]
    widths = [max(map(len, column)) for column in zip(*cells)]
    lines = ["| " + " | ".join(map(str.ljust, line, widths)) + " |" for line in cells]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])


def faq_table(table: Table) -> str:
    """Return the columns of MXNet's float16 FAQ, and names where those do not distinguish rows."""
    distinct = {(row.configuration.batch, row.configuration.dtype) for row in table.rows}
    names = () if len(distinct) == len(table.rows) else (NAME_COLUMN,)
    return grid((*names, *FAQ_COLUMNS), table.rows)


def markdown(table: Table) -> str:
    """Return the whole table, with its data set and hardware, and how to read it."""
    return "\n\n".join([*_heading(table), faq_table(table), *_details(table)]) + "\n"


def page(table: Table, note: str, command: str) -> str:
    """Return results.md: the whole table, its figure, and the command that made it."""
    title = f"# {table.model} on {table.data.partition(' (')[0]}"
    parts = [title, markdown(table), note, "![Every run, and the differences](results.png)"]
    return "\n\n".join([part.rstrip() for part in parts if part] + [f"Command: `{command}`.\n"])


def _heading(table: Table) -> List[str]:
    versions = sorted({run.versions for run in table.runs if run.versions})
    when = f" on {table.dates}" if table.dates else ""
    how = f", with {'; and with '.join(versions)}" if versions else ""
    where = f"*{table.source.capitalize()}* on {table.hardware}{when}{how}."
    notes = [f"{table.model} on {table.data}. {where}"]
    emulated = list(dict.fromkeys(r.configuration.dtype for r in table.rows if r.emulated))
    dtypes = dict.fromkeys(row.configuration.dtype for row in table.rows)
    native = [dtype for dtype in dtypes if dtype not in emulated]
    studied = [dtype for dtype in emulated if dtype in study.FORMATS]
    emulated = [dtype for dtype in emulated if dtype not in studied]
    if studied:
        notes.append(
            f"{', '.join(studied)} {'are' if studied[1:] else 'is'} emulated *for study*: the "
            "times say nothing about a device."
        )
    if emulated:
        natively = f" {' and '.join(native)} run{'' if native[1:] else 's'} natively."
        notes.append(
            f"{' and '.join(emulated)} {'are' if emulated[1:] else 'is'} *emulated* here: the "
            "result of every operator is rounded to the format. The sums and the times are not "
            f"those of a GPU, so there is no speed-up.{natively if native else ''}"
        )
    finished = [run for run in table.runs if run.failure is None]
    seconds = [run.seconds for run in finished if run.seconds is not None]
    if table.source == "measured" and len(seconds) == len(finished):
        notes.append(f"The {len(seconds)} runs trained for {duration(sum(seconds))} in all.")
    parallel = max(row.parallel for row in table.rows)
    if parallel > 1:
        notes.append(
            f"{parallel} runs at a time shared the machine, so the times of rows are not compared; "
            "results.csv has those of the runs."
        )
    return notes


def _details(table: Table) -> List[str]:
    parts = []
    if any(row.failures or (row.top1 and row.top1.sd is not None) for row in table.rows):
        parts += _tests(table)
    if any(contrast.epochs for row in table.rows for contrast in row.contrasts):
        parts += _epochs(table)
    if any(row.steps is not None for row in table.rows):
        parts += [
            "Means over the seeds. The time to train excludes validation. The peak memory is that "
            "of the process.",
            grid(COST_COLUMNS, table.rows),
        ]
    return parts


def _tests(table: Table) -> List[str]:
    """Return the tests of accuracies, and those of cross-entropies, if there are any."""
    parts = [
        "Each row is compared with the row of its own batch in the first row's data type, if there "
        "is one, and with the first row. If both rows have the same seeds, runs with the same seed "
        "are pairs. The verdict is “equivalent” if two one-sided tests (TOST) show a difference of "
        "less than the margin at the 5 % level, “different” if the t test shows a difference, and "
        "“undecided” if neither does. The margins are the recipe's, set before the runs, unless "
        "the command below has a --margin.",
        f"Top-1 accuracy, with a margin of {table.margin:g} percentage points:",
        _test_table(table, "Top-1 accuracy", "top1", 2, " %"),
    ]
    without = [row.configuration.label for row in table.rows if row.seeds and not row.cross_entropy]
    if len(without) < len(table.rows):
        parts += [
            f"Validation cross-entropy, with a margin of {table.cross_entropy_margin:g} nats:",
            _test_table(table, "Cross-entropy", "cross_entropy", 4),
        ]
    if without:
        parts.append(
            f"A run has no finite validation cross-entropy in the log of: {'; '.join(without)}."
        )
    return parts


def _contrasts(table: Table) -> List[Tuple[Row, Optional[Contrast]]]:
    """Return each row with each of its contrasts, and with None if it has none."""
    return [(row, each) for row in table.rows for each in row.contrasts or (None,)]


def _test_table(table: Table, title: str, field: str, digits: int, unit: str = "") -> str:
    """Return a line for each contrast, and one for each row without any."""
    lines = []
    for row, contrast in _contrasts(table):
        comparison: Optional[Comparison] = getattr(contrast, field, None)
        tested, interval = NONE, NONE
        if comparison is not None and comparison.low is not None:
            tested = "paired" if comparison.paired else "Welch"
            interval = difference(comparison, digits)
        lines.append(
            (
                row.configuration.label,
                contrast.label if contrast else NONE,
                str(len(row.seeds)),
                mean(getattr(row, field), digits, unit),
                interval,
                tested,
                _test(comparison, "t", ".2f"),
                _test(comparison, "p", ".3f"),
                _test(comparison, "p_tost", ".3f"),
                _failures(row) if row.failures else str(comparison or NONE),
            )
        )
    return aligned([column.format(title) for column in TEST_COLUMNS], lines)


def _epochs(table: Table) -> List[str]:
    lines = []
    for row, contrast in _contrasts(table):
        test = contrast.epochs if contrast else None
        reached = [epochs for epochs in row.epochs if epochs is not None]
        rule = NONE
        if test and contrast and contrast.same_batch:
            rule = "accepted" if test.accepted else "refused"
        lines.append(
            (
                row.configuration.label,
                contrast.label if contrast else NONE,
                f"{len(reached)} of {len(row.seeds)}",
                mean(spread(reached) if reached else None, 1),
                f"{round(test.difference, 1) + 0.0:+.1f}" if test else NONE,
                _number(test.p_fewer if test else None, ".3f"),
                rule,
                _number(test.p_more if test else None, ".3f"),
            )
        )
    return [
        f"Epochs until the top-1 accuracy first is {table.target:.2f} %, the lowest with which a "
        "run of the first row ended. The means are over the runs that reach it; the tests count "
        "one epoch more than was trained for a run that does not. MLPerf's rule for reference "
        "convergence points refuses runs that need fewer epochs than the reference at the same "
        "batch (one-sided t test at the 5 % level); it does not refuse slower ones, which the last "
        "column tests.",
        aligned(EPOCHS_COLUMNS, lines),
    ]


def as_csv(table: Table) -> str:
    """Return the runs of a table as CSV, a line for each; the numbers are not rounded."""
    text = io.StringIO()
    writer = csv.DictWriter(text, _numbers(table.runs[0], table), lineterminator="\n")
    writer.writeheader()
    writer.writerows(_numbers(run, table) for run in table.runs)
    return text.getvalue()


def _numbers(run: RunRecord, table: Table) -> Dict[str, object]:
    finished = run.failure is None
    return {
        "source": table.source,
        "configuration": run.configuration.name,
        "batch": run.configuration.batch,
        "dtype": run.configuration.dtype,
        "emulated": run.emulated,
        "seed": run.seed,
        "top1": run.top1 if finished else None,
        "cross_entropy": run.cross_entropy,
        "epochs_to_target": None if table.target is None else run.epochs_to(table.target),
        "seconds": run.seconds,
        "samples_per_second": run.samples_per_second,
        "peak_memory": run.peak_memory,
        "skipped_steps": run.skipped,
        "steps": run.steps,
        "failure": run.failure,
        "hardware": run.hardware,
        "versions": run.versions,
        "date": run.date,
    }
