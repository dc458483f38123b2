"""The tables of the cross-validation, as Markdown and JSON, and the values of a pilot as CSV."""

import csv
import io
import json
from pathlib import Path
from typing import Any, Dict, List

from experiments.photographs import figure
from experiments.photographs.comparisons import (
    MARGINS,
    METRICS,
    Results,
    comparison,
    reference,
    verdict,
)
from experiments.photographs.fits import ROWS, SIZE
from experiments.photographs.stamps import CATEGORIES, FOLDS, PACKAGE, Photographs
from gluon_amp.training.tables.render import difference
from gluon_amp.training.tables.statistics import POWER, spread


def table(results: Results, metric: str) -> str:
    """Return the Markdown table of one metric."""
    name, unit, digits = METRICS[metric]
    lines = [
        f"| Trained | Computed in | Folds | {name} ({unit}) ± sd | Minus float32 (95 % interval) "
        "| Margin | p (differ) | p (equivalent) | Verdict |",
        "| :--- | :--- | ---: | ---: | ---: | ---: | ---: | ---: | :--- |",
    ]
    for row in ROWS:
        values = spread([result[metric] for result in results[row].values()])
        sd = "" if values.sd is None else f" ± {values.sd:.{digits}f}"
        mean = f"{values.mean:.{digits}f}{sd}"
        cells = [row.training.label, row.dtype, str(values.count), mean]
        if row == reference(row):
            cells += ["–"] * 5
        else:
            compared = comparison(results, row, metric)
            tests = [compared.p, compared.p_tost]
            numbers = ["–" if p is None else f"{p:.3f}" for p in tests]
            shown = [difference(compared, digits), f"±{compared.margin:g}"]
            cells += [*shown, *numbers, verdict(compared)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def costs(results: Results) -> str:
    """Return the Markdown table of skipped steps and of times."""
    lines = [
        "| Trained | Computed in | Steps of a fold | Skipped | CPU seconds of a fold |",
        "| :--- | :--- | ---: | ---: | ---: |",
    ]
    for row in ROWS:
        means = [
            spread([result[field] for result in results[row].values()]).mean
            for field in ("steps", "skipped_steps", "seconds")
        ]
        cells = [row.training.label, row.dtype, "{:.0f} | {:.1f} | {:.1f}".format(*means)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def page(results: Results, about: Dict[str, Any]) -> str:
    """Return the page: the tables, the figure, and how they were made."""
    folds = [fold for each in results.values() for fold in each.values()]
    hardware, versions, dates = (
        sorted({fold[field] for fold in folds}) for field in ("hardware", "versions", "date")
    )
    days = " to ".join(dict.fromkeys((dates[0], dates[-1])))
    minutes = sum(fold["seconds"] for fold in folds) / 60
    trainings = dict.fromkeys(row.training for row in ROWS)
    settings = " ".join(training.describe() for training in trainings)
    parts = [
        "# Fine-tuning ImageNet's weights on photographs",
        f"EfficientNet-Lite0 on {about['images']} photographs of {len(CATEGORIES)} categories at "
        f"{SIZE} pixels: repeated stratified cross-validation in {FOLDS} folds. {settings}",
        "Each row is compared with float32 of the same kind. Training from scratch is compared "
        "with all layers in float32. A test compares pairs of folds with the same images, initial "
        "head and order. Folds of a repeat share training images, so the intervals hold for these "
        "photographs only. The verdict is “equivalent” if two one-sided tests "
        "(TOST) show a difference of less than the margin at the 5 % level, “different” if the t "
        "test shows a difference, and “undecided” if neither does. The margins were set before "
        "the run, from other folds in [pilot.csv](pilot.csv). Each is the smallest multiple of the "
        f"other tables' margin at which equal rows are found equivalent in {POWER:.0%} of runs.",
        *(table(results, metric) for metric in METRICS),
        "![Every fold, and the differences](photographs.png)",
        "Times include validation. Those of all layers include the earlier training of the head.",
        costs(results),
        f"float16 is emulated on a CPU. Measured on {'; and on '.join(hardware)}, on {days}, with "
        f"{'; and with '.join(versions)}: {minutes:.0f} CPU minutes. Data: Debian's {PACKAGE}, "
        f"whose photographs have the SHA-256 digest `{about['digest'][:16]}…`. Command: "
        f"`{about['command']}`.",
    ]
    return "\n\n".join(parts) + "\n"


def write(results: Results, photographs: Photographs, output: Path, command: str) -> str:
    """Write photographs.md, .png, and .json with the values of every fold; return the page."""
    about = {
        "images": len(photographs.items),
        "digest": photographs.digest,
        "command": command,
    }
    rows: List[Dict[str, Any]] = [
        {"name": row.name, "settings": row.settings(photographs), "folds": results[row]}
        for row in ROWS
    ]
    text = json.dumps({"about": about, "margins": MARGINS, "rows": rows}, indent=1)
    (output / "photographs.json").write_text(text + "\n", encoding="utf-8")
    text = page(results, about)
    (output / "photographs.md").write_text(text, encoding="utf-8")
    figure.draw(results, output / "photographs.png")
    return text


def restored(values: Dict[str, Any]) -> Results:
    """Return the results in the object of photographs.json."""
    folds = {row["name"]: row["folds"] for row in values["rows"]}
    return {row: {int(seed): fold for seed, fold in folds[row.name].items()} for row in ROWS}


def as_csv(results: Results) -> str:
    """Return the values of each fold as CSV, a line for each; the numbers are not rounded."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["trained", "dtype", "seed", *METRICS])
    for row, each in results.items():
        for seed, fold in sorted(each.items()):
            numbers = [fold[metric] for metric in METRICS]
            writer.writerow([row.training.label, row.dtype, seed, *numbers])
    return text.getvalue()
