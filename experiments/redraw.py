"""Write pages and figures of `docs/` again from the values beside them, without a measurement.

    python -m experiments.redraw

It is for changes of the layout: `tests/documents/test_figures.py` compares the pages.
"""

import json
import sys
from pathlib import Path
from typing import Callable, Iterator, NamedTuple, Optional, Sequence, Tuple

from experiments import ROOT, ablation, pages
from experiments.benchmarks import families, report
from experiments.benchmarks.suites import SUITES
from experiments.clients import __main__ as clients
from experiments.floor_of_chance import page as floor
from experiments.photographs import page as photographs
from experiments.wire import page as wire
from gluon_amp.training.command_line import Parser, status_of
from gluon_amp.training.tables import figure, render
from gluon_amp.training.tables.table import restored

Draw = Optional[Callable[[pages.Values, Path], None]]


class Page(NamedTuple):
    """A page of `docs/`: its values, the parts that follow from them, and what draws its figure."""

    pattern: str  # of the JSON files
    parts: Callable[[pages.Values, Path], pages.Parts]
    draw: Draw = None


def _benchmark(values: pages.Values, path: Path) -> pages.Parts:
    return report.parts(values, report.tables(values), f"{path.stem}.png")


def _clients(values: pages.Values, path: Path) -> pages.Parts:
    chosen = clients.choose([], clients.FAMILIES)
    return clients.parts(clients.rows(chosen, clients.SEEDS, None, clients.Records(path)))


PAGES = (
    *(Page(f"benchmarks/{name}.json", _benchmark, report.draw) for name in SUITES),
    Page("benchmarks/amd_epyc/*.json", _benchmark, report.draw),
    Page("benchmarks/families.json", lambda v, _: report.parts(v, families.tables(v))),
    Page("results/ablation.json", lambda values, _: ablation.parts(values), ablation.draw),
    Page("results/clients.json", _clients),
    Page("results/floor/*.json", lambda values, _: floor.parts(values), floor.draw),
    Page(
        "results/photographs/photographs.json",
        lambda values, _: photographs.parts(values),
        photographs.draw,
    ),
    Page("results/wire.json", lambda values, _: wire.parts(values), wire.draw),
)


def filled() -> Iterator[Tuple[Path, str, Draw, pages.Values]]:
    """Yield each page with its text, what draws its figure, and its values."""
    for page in PAGES:
        for path in sorted(pages.DOCS.glob(page.pattern)):
            values = json.loads(path.read_text(encoding="utf-8"))
            words = path.with_suffix(".md").read_text(encoding="utf-8")
            text = pages.fill(words, page.parts(values, path))
            yield path.with_suffix(".md"), text, page.draw, values


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
