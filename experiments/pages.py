"""Pages of `docs/` that hold results: their words are in the page, their numbers come from values.

A part of a page, such as a table, stands between ``<!-- NAME -->`` and ``<!-- /NAME -->``. A
program computes the parts from what it has measured, and takes the words from the page in `docs/`.
"""

import datetime
import json
import re
from pathlib import Path
from typing import Any, Callable, Dict, Mapping, Optional, Sequence

from experiments import ROOT

DOCS = ROOT / "docs"
PART = re.compile(r"<!-- (\w+) -->.*?<!-- /\1 -->", re.DOTALL)

Values = Dict[str, Any]  # what a JSON file holds
Parts = Mapping[str, str]  # by their names
Draw = Optional[Callable[[Values, Path], None]]


def table(head: Sequence[str], rows: Sequence[Sequence[str]], words: int = 1) -> str:
    """Return a Markdown table whose first columns, so many, are words; the others are numbers."""
    rules = [":---"] * words + ["---:"] * (len(head) - words)
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, rules, *rows))


def about(program: str, words: Sequence[str]) -> Values:
    """Return what values say of their measurement by a program with these arguments."""
    from gluon_amp.training.tables.machine import describe_cpu, versions  # they import MXNet

    return {
        "machine": describe_cpu(),
        "date": datetime.date.today().isoformat(),
        "versions": versions(),
        "command": " ".join([f"python -m experiments.{program}", *words]),
    }


def measured(values: Values) -> str:
    """Return what a page says of the measurement of its values."""
    where = f"{values['machine']} on {values['date']}, with {values['versions']}"
    return f"{where}. Command: `{values['command']}`"


def fill(page: str, parts: Parts) -> str:
    """Return a page with these parts in the places of its own; other parts are a `ValueError`."""
    places = set(PART.findall(page))
    if places != parts.keys():
        different = ", ".join(sorted(places ^ parts.keys()))
        raise ValueError(f"the page or its values lack a part: {different}.")

    def filled(match: "re.Match[str]") -> str:
        name, part = match[1], parts[match[1]]
        # A part at the beginning of a line is a block of its own.
        block = match.start() == 0 or page[match.start() - 1] == "\n"
        space = "\n\n" if block else ""
        return f"<!-- {name} -->{space}{part}{space}<!-- /{name} -->"

    return PART.sub(filled, page)


def write(
    target: Path,
    words: str,
    parts: Parts,
    values: Optional[Values] = None,
    draw: Draw = None,
) -> None:
    """Write TARGET.md with the words of a page in `docs/`, and perhaps TARGET.json and .png."""
    text = fill((DOCS / words).read_text(encoding="utf-8"), parts)
    target.parent.mkdir(parents=True, exist_ok=True)
    (target.parent / f"{target.name}.md").write_text(text, encoding="utf-8")
    if values is not None:
        write_values(target, values, draw)


def write_values(target: Path, values: Values, draw: Draw = None) -> None:
    """Write TARGET.json, and perhaps its figure, TARGET.png."""
    target.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(values, indent=1) + "\n"
    (target.parent / f"{target.name}.json").write_text(text, encoding="utf-8")
    if draw is not None:
        draw(values, target.parent / f"{target.name}.png")
