"""What docs/results.md shows of the tables of docs/results/*/results.json, and their verdicts."""

from pathlib import Path
from typing import Dict, List

from experiments import pages
from gluon_amp.training.tables.render import difference, mean
from gluon_amp.training.tables.table import Table, restored

HEAD = ["trained in, batch", "top-1", "minus float32 (95 % interval)", "verdict"]
HEAD += ["cross-entropy minus float32, nats", "verdict"]


def parts(found: Dict[Path, pages.Values]) -> pages.Parts:
    """Return a part for each table, named as its folder is, and the sentences on all verdicts."""
    named = {path.parent.name: values for path, values in found.items()}
    tables = {name: restored(values) for name, values in named.items()}
    shown = {
        name.replace("-", "_"): part(name, tables[name], values) for name, values in named.items()
    }
    return {**shown, "verdicts": verdicts(tables)}


def part(name: str, table: Table, values: pages.Values) -> str:
    """Return the table of a folder, its figure, and how it was measured."""
    rows = []
    for row in table.rows:
        cells = [row.configuration.label, mean(row.top1, 2, " %")]
        for comparison, digits in _compared(row):
            cells += [difference(comparison, digits), str(comparison)]
        rows.append(cells + [""] * (len(HEAD) - len(cells)))
    versions = sorted({run.versions for run in table.runs if run.versions})
    margins = f"±{table.margin:g} points and ±{table.cross_entropy_margin:g} nats"
    about = (
        f"{table.model} on {table.data}, {len(table.rows[0].seeds)} seeds, margins of {margins}. "
        f"{table.hardware}, {table.dates}, {'; '.join(versions)}, `{values['command']}`. "
        f"[Values of each run](results/{name}/results.csv)."
    )
    figure = f"![Every run, and the differences](results/{name}/results.png)"
    texts = [pages.table(HEAD, rows), figure, values["note"], about]
    return "\n\n".join(text for text in texts if text)


def _compared(row) -> List:
    """Return the comparisons of a row with float32 at its batch, and their digits."""
    if not row.contrasts:
        return []
    first = row.contrasts[0]
    return [(first.top1, 2), (first.cross_entropy, 4)]


def verdicts(tables: Dict[str, Table]) -> str:
    """Return how many comparisons with float32 are equivalent, and the others."""
    count, others = 0, []
    for name, table in tables.items():
        reference = table.rows[0].configuration.dtype
        for row in (row for row in table.rows if row.configuration.dtype != reference):
            for (comparison, _), what in zip(_compared(row), ("top-1", "cross-entropy")):
                count += 1
                if not comparison.equivalent:
                    others.append(f"{name}, {row.configuration.label}, {what}: {comparison}")
    head = f"{count - len(others)} of {count} comparisons with float32 are equivalent. The others:"
    return "\n".join([head, "", *(f"- {other}" for other in others)])
