"""Write pages and figures of `docs/` again from the values beside them, without a measurement.

    python -m experiments.redraw

It is for changes of the layout: `tests/documents/test_figures.py` compares the pages.
"""

import json
import sys
from pathlib import Path
from typing import Callable, Iterator, Optional, Sequence, Tuple

from experiments import ROOT, ablation, edge, onnx_table, pages, preprocessing
from experiments.benchmarks import families, report
from experiments.benchmarks.suites import SUITES
from experiments.clients import table as clients
from experiments.clients.families import FAMILIES
from experiments.clients.run import Records
from experiments.floor_of_chance import page as floor
from experiments.wire import page as wire
from experiments.yardstick import page as yardstick
from gluon_amp.training.command_line import Parser, status_of
from gluon_amp.training.tables import figure, render
from gluon_amp.training.tables.table import restored

Draw = Optional[Callable[[pages.Values, Path], None]]


def _benchmark(values: pages.Values, path: Path) -> pages.Parts:
    return report.parts(values, report.tables(values), f"{path.stem}.png")


def _clients(values: pages.Values, path: Path) -> pages.Parts:
    chosen = clients.choose([], FAMILIES)
    return clients.parts(clients.rows(chosen, Records(path)))


# The JSON files of pages, the parts that follow from their values, and what draws the figure
PAGES: Sequence[Tuple[str, Callable[[pages.Values, Path], pages.Parts], Draw]] = (
    *((f"benchmarks/{name}.json", _benchmark, report.draw) for name in SUITES),
    ("benchmarks/amd_epyc/*.json", _benchmark, report.draw),
    ("benchmarks/families*.json", lambda v, p: families.parts(v, f"{p.stem}.png"), families.draw),
    ("results/ablation.json", lambda v, _: ablation.parts(v), ablation.draw),
    ("results/clients.json", _clients, None),
    ("results/edge.json", lambda v, _: edge.parts(v), edge.draw),
    ("results/floor/*.json", lambda v, _: floor.parts(v), floor.draw),
    ("results/onnx.json", lambda v, _: onnx_table.parts(v), None),
    ("results/preprocessing.json", lambda v, _: preprocessing.parts(v), None),
    ("results/wire.json", lambda v, _: wire.parts(v), wire.draw),
    ("results/yardstick.json", lambda v, _: yardstick.parts(v), yardstick.draw),
)


def filled() -> Iterator[Tuple[Path, str, Draw, pages.Values]]:
    """Yield each page with its text, what draws its figure, and its values."""
    for pattern, parts, draw in PAGES:
        for path in sorted(pages.DOCS.glob(pattern)):
            values = json.loads(path.read_text(encoding="utf-8"))
            words = path.with_suffix(".md").read_text(encoding="utf-8")
            yield path.with_suffix(".md"), pages.fill(words, parts(values, path)), draw, values


def run() -> None:
    """Write all pages and figures."""
    for path, text, draw, values in filled():
        path.write_text(text, encoding="utf-8")
        if draw is not None:
            draw(values, path.with_suffix(".png"))
        print(path.relative_to(ROOT), flush=True)
    for path in sorted(pages.DOCS.glob("results/*/results.json")):
        values = json.loads(path.read_text(encoding="utf-8"))
        table = restored(values)
        text = render.page(table, values["note"], values["command"])
        path.with_suffix(".md").write_text(text, encoding="utf-8")
        figure.draw(table, path.with_suffix(".png"))
        print(path.relative_to(ROOT), flush=True)


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Write all pages and figures; return the status of the process."""
    Parser(description=__doc__.split("\n", 1)[0]).parse_args(arguments)
    return status_of("redraw.py", run)


if __name__ == "__main__":
    sys.exit(main())
