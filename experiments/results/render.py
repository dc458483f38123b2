"""A table as Markdown and CSV."""

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
    """Write a time in the unit that suits it."""
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


def difference(found: Comparison) -> str:
    """Write a difference with its interval, where it has one; nothing is +0.00, never -0.00."""
    interval = "" if found.low is None else f" ({found.low:+.2f} to {found.high:+.2f})"
    return f"{round(found.difference, 2) + 0.0:+.2f}{interval}"


def _interval(row: Row) -> str:
    found = row.comparison
    return NONE if found is None or found.low is None else difference(found)


def _test(field: str, form: str) -> Callable[[Row], str]:
    return lambda row: _number(row.comparison and getattr(row.comparison, field), form)


def _verdict(row: Row) -> str:
    if row.failures:
        runs = f"{len(row.failures)} failed: {'; '.join(sorted(set(row.failures)))}"
        return runs.replace("|", "\\|")
    return NONE if row.comparison is None else str(row.comparison)


NAME_COLUMN = ("Configuration", lambda row: row.configuration.label)
# The columns of MXNet's float16 FAQ, then what it does not tell.
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
    """Lay rows out as a Markdown table, its columns aligned in the source, too."""
    cells = [[title for title, _ in columns]]
    cells += [[text(row) for _, text in columns] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells)]
    lines = ["| " + " | ".join(map(str.ljust, line, widths)) + " |" for line in cells]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])


def faq_table(table: Table) -> str:
    """Return the rows with the columns of MXNet's float16 FAQ, as Markdown.

    Where batch and data type do not tell the rows apart, their names come first.
    """
    told = {(row.configuration.batch, row.configuration.dtype) for row in table.rows}
    names = () if len(told) == len(table.rows) else (NAME_COLUMN,)
    return grid((*names, *FAQ_COLUMNS), table.rows)


def markdown(table: Table) -> str:
    """Return the whole table, with what it was made on and how to read it."""
    return "\n\n".join([*_heading(table), faq_table(table), *_details(table)]) + "\n"


def _heading(table: Table) -> List[str]:
    hardware = f"{table.model} on {table.data}. *{table.source.capitalize()}* on {table.hardware}."
    notes = [hardware]
    if any(row.emulated for row in table.rows):
        notes.append(
            "float16 is *emulated* here, rounded after every operator as on a GPU; its times are "
            "not a GPU's, so no speed-up is given. Times of float32 and bfloat16 are of native "
            "arithmetic."
        )
    if table.source == "measured" and all(row.seconds is None for row in table.rows):
        notes.append("Several runs shared the machine, so no times are given.")
    return notes


def _details(table: Table) -> List[str]:
    reference, parts = table.rows[0].configuration.label, []
    if any(row.failures or (row.top1 and row.top1.sd is not None) for row in table.rows):
        parts += [
            f"Against {reference}, in percentage points; “equivalent” means that two one-sided "
            f"tests (TOST) show a difference of less than {table.margin:g} points at the 5 % "
            "level, “different” that Welch's test shows one, “undecided” that neither does:",
            grid(STATISTICS_COLUMNS, table.rows),
        ]
    if any(row.steps is not None for row in table.rows):
        parts += [
            "Means over the seeds. Time to train leaves validation out; peak memory is that of the "
            "process:",
            grid(COST_COLUMNS, table.rows),
        ]
    return parts


def flat(row: Row, table: Table) -> Dict[str, object]:
    """Return a row's numbers by name, unrounded."""
    found = row.comparison
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
        **{name: found and getattr(found, name) for name in tests},
        "margin": table.margin,
        "verdict": found and str(found),
        "failures": "; ".join(row.failures),
        "hardware": table.hardware,
    }


def as_csv(table: Table) -> str:
    """Return a table as CSV, one line for each row."""
    lines = [flat(row, table) for row in table.rows]
    text = io.StringIO()
    writer = csv.DictWriter(text, lines[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()
