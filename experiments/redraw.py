"""Write pages and figures of `docs/` again from the values beside them, without a measurement.

    python -m experiments.redraw

It is for changes of the layout: `tests/documents/test_figures.py` compares the pages.
"""

import argparse
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Callable, Dict, Optional, Sequence, Tuple

from experiments import ROOT, ablation
from experiments.benchmarks import families_report, report, suites, summary
from experiments.benchmarks.families import FAMILIES
from experiments.benchmarks.measure import Measured
from experiments.floor_of_chance import figure as floor_figure
from experiments.floor_of_chance import page as floor_page
from experiments.photographs import figure as photographs_figure
from experiments.photographs import report as photographs_report
from experiments.wire import figure as wire_figure
from experiments.wire import page as wire_page
from gluon_amp.training.command_line import Parser, status_of
from gluon_amp.training.tables import figure, render
from gluon_amp.training.tables.table import restored

DOCS = ROOT / "docs"
Values = Dict[str, Any]


def benchmark(values: Values, path: Path) -> str:
    """Draw a benchmark and return its page."""
    axes = suites.SUITES[path.stem](**suites.REFERENCE).axes
    report.draw(axes, values, path.with_suffix(".png"))
    return report.as_markdown(values, f"{path.stem}.png")


def families(values: Values, path: Path) -> str:
    """Return the page of the network families, which has no figure."""
    tables = families_report.tables(families_of(values), values)
    return "\n\n".join(["# Network families", tables, report.method(values)]) + "\n"


def families_of(values: Values) -> summary.Results:
    """Return the measured cases in the object of families.json."""
    fields = ("seconds", "peak_mebibytes", "parameters", "flop", "moved")
    measured = [
        Measured(SimpleNamespace(**case), *(case[field] for field in fields))
        for case in values["cases"]
    ]
    return summary.Results(measured, [family.network for family in FAMILIES], True)


def table(values: Values, path: Path) -> str:
    """Draw a table of results and return its page."""
    results = restored(values)
    figure.draw(results, path.with_suffix(".png"))
    return render.page(results, values["note"], values["command"])


def remedies(values: Values, path: Path) -> str:
    """Draw the ablation and return its page, with the options that the page names."""
    studies = values.pop("studies")
    ablation.draw(studies, path.with_suffix(".png"))
    page = path.with_suffix(".md").read_text(encoding="utf-8")
    seeds = len(next(iter(next(iter(studies.values())).values())))
    margin = float(re.search(r"within ±([\d.]+) points", page)[1])
    output = re.search(r"--output (\S+)`", page)[1]
    options = argparse.Namespace(seeds=seeds, margin=margin, output=output)
    return ablation.page(studies, options, values)


def floor(values: Values, path: Path) -> str:
    """Draw the distances from float32 and return their page."""
    floor_figure.draw(values, path.with_suffix(".png"))
    return floor_page.page(values, f"{path.stem}.png")


def photographs(values: Values, path: Path) -> str:
    """Draw the cross-validation and return its page."""
    results = photographs_report.restored(values)
    photographs_figure.draw(results, path.with_suffix(".png"))
    return photographs_report.page(results, values["about"])


def wire(values: Values, path: Path) -> str:
    """Draw the sums over workers and return their page."""
    wire_figure.draw(values, path.with_suffix(".png"))
    return wire_page.page(values, "wire.png")


PAGES: Tuple[Tuple[str, Callable[[Values, Path], str]], ...] = (
    *((f"benchmarks/{name}.json", benchmark) for name in suites.SUITES),
    ("benchmarks/amd_epyc/*.json", benchmark),
    ("benchmarks/families.json", families),
    ("results/*/results.json", table),
    ("results/ablation.json", remedies),
    ("results/floor/*.json", floor),
    ("results/photographs/photographs.json", photographs),
    ("results/wire.json", wire),
)


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Write all pages and figures; return the status of the process."""
    Parser(description=__doc__.split("\n", 1)[0]).parse_args(arguments)
    return status_of("redraw.py", run)


def run() -> None:
    """Write all pages and figures."""
    for pattern, write in PAGES:
        for path in sorted(DOCS.glob(pattern)):
            values = json.loads(path.read_text(encoding="utf-8"))
            text = write(values, path)
            path.with_suffix(".md").write_text(text, encoding="utf-8")
            print(path.with_suffix("").relative_to(ROOT), flush=True)


if __name__ == "__main__":
    sys.exit(main())
