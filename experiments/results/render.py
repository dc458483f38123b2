"""Writes a table as Markdown and CSV."""

import csv
import io
from typing import Callable, Dict, List, Optional, Sequence, Tuple

from experiments.results.statistics import CONFIDENCE, Comparison, Spread
from experiments.results.table import Row, Table

NONE = "–"


def _percent(top1: Optional[Spread]) -> str:
    if top1 is None:
        return NONE
    sd = "" if top1.sd is None else f" ± {top1.sd:.2f}"
    return f"{top1.mean:.2f}{sd} %"


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


def _memory(row: Row) -> str:
    return NONE if row.peak_memory is None else f"{row.peak_memory / 2**20:.0f} MiB"


def _number(value: Optional[float], form: str) -> str:
    return NONE if value is None else format(value, form)


def difference(comparison: Comparison) -> str:
    """Return a difference and its interval, if there is one. Zero is +0.00, never -0.00."""
    low, high = comparison.low, comparison.high
    interval = "" if low is None else f" ({low:+.2f} to {high:+.2f})"
    return f"{round(comparison.difference, 2) + 0.0:+.2f}{interval}"


def _interval(row: Row) -> str:
    tested = row.comparison is not None and row.comparison.low is not None
    return difference(row.comparison) if tested else NONE


def _test(field: str, form: str) -> Callable[[Row], str]:
    return lambda row: _number(row.comparison and getattr(row.comparison, field), form)


def _verdict(row: Row) -> str:
    if row.failures:
        runs = f"{len(row.failures)} failed: {'; '.join(sorted(set(row.failures)))}"
        return runs.replace("|", "\\|")
    return NONE if row.comparison is None else str(row.comparison)


NAME_COLUMN = ("Configuration", lambda row: row.configuration.label)
# The columns of MXNet's float16 FAQ.
FAQ_COLUMNS: Sequence[Tuple[str, Callable[[Row], str]]] = (
    ("Batch size", lambda row: str(row.configuration.batch)),
    ("Data type", lambda row: row.configuration.dtype),
    ("Top-1 accuracy", lambda row: _percent(row.top1)),
    ("Time to train", lambda row: duration(row.seconds)),
    ("Speed-up", _speed_up),
)
STATISTICS_COLUMNS = (
    NAME_COLUMN,
    ("Seeds", lambda row: str(len(row.seeds))),
    ("Top-1 accuracy", lambda row: _percent(row.top1)),
    (f"Difference ({CONFIDENCE:.0%} interval)", _interval),
    ("Welch's t", _test("t", ".2f")),
    ("p (differ)", _test("p", ".3f")),
    ("p (equivalent)", _test("p_tost", ".3f")),
    ("Verdict", _verdict),
)
COST_COLUMNS = (
    NAME_COLUMN,
    ("Samples/s", lambda row: _number(row.samples_per_second, ".0f")),
    ("Peak memory", _memory),
    ("Skipped steps", lambda row: _number(row.skipped, ".1f")),
    ("Steps", lambda row: _number(row.steps, ".0f")),
    ("Arithmetic", lambda row: "emulated" if row.emulated else "native"),
)


def grid(columns: Sequence[Tuple[str, Callable[[Row], str]]], rows: Sequence[Row]) -> str:
    """Return rows as a Markdown table whose columns are also aligned in the source."""
    cells = [[title for title, _ in columns]]
    cells += [[text(row) for _, text in columns] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells)]
    lines = ["| " + " | ".join(map(str.ljust, line, widths)) + " |" for line in cells]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])


def faq_table(table: Table) -> str:
    """Return the rows with the columns of MXNet's float16 FAQ, as Markdown.

    If two rows have the same batch and data type, a column with the rows' names comes first.
    """
    distinct = {(row.configuration.batch, row.configuration.dtype) for row in table.rows}
    names = () if len(distinct) == len(table.rows) else (NAME_COLUMN,)
    return grid((*names, *FAQ_COLUMNS), table.rows)


def markdown(table: Table) -> str:
    """Return the whole table, with its data set and hardware, and how to read it."""
    return "\n\n".join([*_heading(table), faq_table(table), *_details(table)]) + "\n"


def _heading(table: Table) -> List[str]:
    hardware = f"{table.model} on {table.data}. *{table.source.capitalize()}* on {table.hardware}."
    notes = [hardware]
    if any(row.emulated for row in table.rows):
        notes.append(
            "float16 is *emulated* here: values are rounded after every operator as on a GPU. The "
            "times are not a GPU's, so there is no speed-up. float32 and bfloat16 run natively."
        )
    if table.source == "measured" and all(row.seconds is None for row in table.rows):
        notes.append("Several runs shared the machine, so no times are reported.")
    return notes


def _details(table: Table) -> List[str]:
    reference, parts = table.rows[0].configuration.label, []
    if any(row.failures or (row.top1 and row.top1.sd is not None) for row in table.rows):
        parts += [
            f"Compared with {reference}, in percentage points. The verdict is “equivalent” if two "
            f"one-sided tests (TOST) show a difference of less than {table.margin:g} points at the "
            "5 % level, “different” if Welch's test shows a difference, and “undecided” if neither "
            "does.",
            grid(STATISTICS_COLUMNS, table.rows),
        ]
    if any(row.steps is not None for row in table.rows):
        parts += [
            "Means over the seeds. The time to train excludes validation. The peak memory is that "
            "of the process.",
            grid(COST_COLUMNS, table.rows),
        ]
    return parts


def _numbers(row: Row, table: Table) -> Dict[str, object]:
    comparison = row.comparison
    tests = ("difference", "low", "high", "t", "p", "p_tost")
    return {
        "source": table.source,
        "configuration": row.configuration.name,
        "batch": row.configuration.batch,
        "dtype": row.configuration.dtype,
        "emulated": row.emulated,
        "seeds": len(row.seeds),
        "top1": row.top1 and row.top1.mean,
        "top1_sd": row.top1 and row.top1.sd,
        "seconds": row.seconds,
        "speed_up": row.speed_up,
        "samples_per_second": row.samples_per_second,
        "peak_memory": row.peak_memory,
        "skipped_steps": row.skipped,
        "steps": row.steps,
        **{name: comparison and getattr(comparison, name) for name in tests},
        "margin": table.margin,
        "verdict": comparison and str(comparison),
        "failures": "; ".join(row.failures),
        "hardware": table.hardware,
    }


def as_csv(table: Table) -> str:
    """Return a table as CSV, a line for each row; the numbers are not rounded."""
    lines = [_numbers(row, table) for row in table.rows]
    text = io.StringIO()
    writer = csv.DictWriter(text, lines[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()
