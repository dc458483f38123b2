"""The tables of the cross-validation, as Markdown and JSON."""

import datetime
import json
from pathlib import Path
from typing import Any, Dict, List

from experiments.photographs.fits import ALL, ROWS, SCRATCH, SIZE, Row
from experiments.photographs.stamps import CATEGORIES, FOLDS, PACKAGE, Photographs
from experiments.results.machine import describe_cpu
from experiments.results.render import difference
from experiments.results.statistics import Comparison, compare_pairs, spread

# Smaller differences count as none. They were set before the run: one point and a half are about
# one of the 78 images of a fold.
MARGINS = {"accuracy": 1.5, "cross_entropy": 0.05}
TITLES = {"accuracy": "Accuracy, %", "cross_entropy": "Cross-entropy, nats"}

Results = Dict[Row, Dict[int, Dict[str, Any]]]  # by row and by the seed of the fold


def reference(row: Row) -> Row:
    """Return the row that a row is compared with: float32, and the pretrained weights."""
    return Row(ALL if row.training is SCRATCH else row.training, "float32")


def comparison(results: Results, row: Row, metric: str) -> Comparison:
    """Compare a row with its reference, fold by fold, over the folds that both have."""
    other = results[reference(row)]
    common = sorted(results[row].keys() & other.keys())
    pairs = ([part[seed][metric] for seed in common] for part in (results[row], other))
    return compare_pairs(*pairs, MARGINS[metric])


def table(results: Results, metric: str) -> str:
    """Return the Markdown table of one metric."""
    lines = [
        f"| Trained | Computed in | Folds | {TITLES[metric]} ± sd | Difference (95 % interval) "
        "| p (differ) | p (equivalent) | Verdict |",
        "| :--- | :--- | ---: | ---: | ---: | ---: | ---: | :--- |",
    ]
    for row in ROWS:
        values = spread([result[metric] for result in results[row].values()])
        sd = "" if values.sd is None else f" ± {values.sd:.2f}"
        cells = [row.training.label, row.dtype, str(values.count), f"{values.mean:.2f}{sd}"]
        if row == reference(row):
            cells += ["–"] * 4
        else:
            compared = comparison(results, row, metric)
            tests = [compared.p, compared.p_tost]
            numbers = ["–" if p is None else f"{p:.3f}" for p in tests]
            cells += [difference(compared), *numbers, str(compared)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def page(results: Results, about: Dict[str, Any]) -> str:
    """Return the page: both tables, and how they were made."""
    margins = " and ".join(
        f"±{margin:g} ({TITLES[name].lower()})" for name, margin in MARGINS.items()
    )
    parts = [
        "# Fine-tuning ImageNet's weights on photographs",
        f"EfficientNet-Lite0 on {about['images']} photographs of {len(CATEGORIES)} categories at "
        f"{SIZE} pixels: repeated stratified cross-validation in {FOLDS} folds. Rows are compared "
        "with float32 of the same kind, and training from scratch with all layers in float32. The "
        "pairs of a test are folds: the same images, initial head and order. Folds of a repeat "
        "share training images, so the intervals are for these photographs, and not for others. "
        f"“Equivalent” means by two one-sided tests at the 5 % level, within {margins}.",
        *(table(results, metric) for metric in MARGINS),
        f"float16 is emulated on a CPU. {about['cpu']}, {about['date']}, {about['minutes']:.0f} "
        f"minutes of training and validation. Data: Debian's {PACKAGE}. Command: "
        f"`{about['command']}`.",
    ]
    return "\n\n".join(parts) + "\n"


def write(results: Results, photographs: Photographs, output: Path, command: str) -> str:
    """Write photographs.md, and photographs.json with the values of every fold; return the page."""
    seconds = sum(fold["seconds"] for folds in results.values() for fold in folds.values())
    about = {
        "images": len(photographs.items),
        "digest": photographs.digest,
        "cpu": describe_cpu(),
        "date": datetime.date.today().isoformat(),
        "minutes": seconds / 60,
        "command": command.strip(),
    }
    rows: List[Dict[str, Any]] = [
        {**row.settings(photographs), "folds": results[row]} for row in ROWS
    ]
    text = json.dumps({"about": about, "margins": MARGINS, "rows": rows}, indent=1)
    (output / "photographs.json").write_text(text + "\n", encoding="utf-8")
    text = page(results, about)
    (output / "photographs.md").write_text(text, encoding="utf-8")
    return text
