"""Write pages and figures of `docs/` again from the values beside them, without a measurement.

    python -m experiments.redraw

It is for changes of the layout: `tests/documents/test_figures.py` compares the pages.
"""

import json
import sys
from pathlib import Path
from typing import Callable, Dict, Iterator, Optional, Sequence, Tuple

from experiments import (
    ROOT,
    ablation,
    edge,
    onnx_table,
    pages,
    preprocessing,
    result_tables,
    zoo_coverage,
)
from experiments.benchmarks import families, report
from experiments.clients import table as clients
from experiments.clients.families import FAMILIES
from experiments.clients.run import Records
from experiments.floor_of_chance import page as floor
from experiments.wire import page as wire
from experiments.yardstick import page as yardstick
from gluon_amp.training.command_line import Parser, status_of
from gluon_amp.training.tables import figure
from gluon_amp.training.tables.table import restored

Found = Dict[Path, pages.Values]  # what the JSON files of a page hold


def _benchmarks(found: Found) -> pages.Parts:
    """Return the parts of the page of all benchmarks, each named as its file is."""
    parts = {}
    for path, values in found.items():
        tables = families.tables if path.stem.startswith("families") else report.tables
        picture = path.with_suffix(".png").relative_to(pages.DOCS).as_posix()
        name = path.stem.replace("-", "_")
        parts[name] = report.part(values, tables(values), picture)
    return parts


def _memory(found: Found) -> pages.Parts:
    (values,) = found.values()
    return {"memory": families.memory(values)}


def _clients(found: Found) -> pages.Parts:
    (path,), chosen = found, clients.choose([], FAMILIES)
    return clients.parts(clients.rows(chosen, Records(path)))


def _floors(found: Found) -> pages.Parts:
    named = ((path.stem.replace("-", "_"), path, values) for path, values in found.items())
    return {name: floor.part(values, f"floor/{path.stem}.png") for name, path, values in named}


def _one(parts: Callable[[pages.Values], pages.Parts]) -> Callable[[Found], pages.Parts]:
    return lambda found: parts(*found.values())


def _draw_benchmark(values: pages.Values, path: Path) -> None:
    draw = families.draw if path.stem.startswith("families") else report.draw
    draw(values, path)


def _draw_table(values: pages.Values, path: Path) -> None:
    figure.draw(restored(values), path)


# The pages, the JSON files that they show, the parts that follow from these, what draws a figure
PAGES: Sequence[Tuple[str, str, Callable[[Found], pages.Parts], pages.Draw]] = (
    ("speed", "benchmarks/*.json", _benchmarks, _draw_benchmark),
    ("memory", "benchmarks/families-amx.json", _memory, None),
    ("results", "results/*/results.json", result_tables.parts, _draw_table),
    ("results/ablation", "results/ablation.json", _one(ablation.parts), ablation.draw),
    ("how_to/index", "results/clients.json", _clients, None),
    ("results/edge", "results/edge.json", _one(edge.parts), edge.draw),
    ("results/floor", "results/floor/*.json", _floors, floor.draw),
    ("results/onnx", "results/onnx.json", _one(onnx_table.parts), None),
    ("results/preprocessing", "results/preprocessing.json", _one(preprocessing.parts), None),
    ("results/wire", "results/wire.json", _one(wire.parts), wire.draw),
    ("results/zoo_coverage", "results/zoo_coverage.json", _one(zoo_coverage.parts), None),
    ("results/yardstick", "results/yardstick.json", _one(yardstick.parts), yardstick.draw),
)


def filled() -> Iterator[Tuple[Path, str, pages.Draw, Found]]:
    """Yield each page with its text, what draws its figures, and its values."""
    for name, pattern, parts, draw in PAGES:
        page = pages.DOCS / f"{name}.md"
        files = sorted(pages.DOCS.glob(pattern))
        found = {path: json.loads(path.read_text(encoding="utf-8")) for path in files}
        yield page, pages.fill(page.read_text(encoding="utf-8"), parts(found)), draw, found


def run() -> None:
    """Write all pages and figures."""
    for page, text, draw, found in filled():
        page.write_text(text, encoding="utf-8")
        for path, values in found.items() if draw is not None else ():
            draw(values, path.with_suffix(".png"))
        print(page.relative_to(ROOT), flush=True)


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Write all pages and figures; return the status of the process."""
    Parser(description=__doc__.split("\n", 1)[0]).parse_args(arguments)
    return status_of("redraw.py", run)


if __name__ == "__main__":
    sys.exit(main())
