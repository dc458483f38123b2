"""Writes the results of the families suite: a table for each kind of work, means and limits."""

import json
import statistics
from pathlib import Path
from typing import Any, Dict, List

from experiments.benchmarks import report
from experiments.benchmarks.families import KINDS, QUOTIENTS, VARIANTS
from experiments.benchmarks.summary import Results

HEADS = {"contrib.amp": "contrib.amp bfloat16", "float16": "float16 emulated"}


def tables(results: Results, result: Dict[str, Any]) -> str:
    """Return all tables in Markdown, with their headings.

    Parameters
    ----------
    results : Results
    result : dict
        What is written as JSON.
    """
    parts = []
    if result["ratios"]:
        parts += ["## Means and worst families", report.ratio_table(result)]
    for kind, title in KINDS.items():
        if any(results.find(n, kind, v.name) for n in results.networks for v in VARIANTS):
            parts += [f"## {title}", *_ratios(results, kind)]
            parts += ["Milliseconds:", _times(results, kind, "median", 1e3, ".1f")]
            parts += ["Peak memory, MiB:", _times(results, kind, "mebibytes", 1, ".0f")]
    if result["reorders"]:
        parts += ["## Changes of layout in bfloat16", _reorders(result)]
    if result["limits"]:
        parts += ["## Distance to the limit of the machine", _limits(result)]
    if result["left_out"]:
        reasons = "\n".join(f"- {reason}" for reason in result["left_out"].values())
        parts += ["## Left out", reasons]
    return "\n\n".join(parts)


def _ratios(results: Results, kind: str) -> List[str]:
    """Return the table of the ratios that some network has; none without any."""
    found = {q.label: results.ratios(kind, q) for q in QUOTIENTS[kind]}
    found = {label: ratios for label, ratios in found.items() if ratios}
    rows = [
        [n, *(f"{statistics.median(r[n]):.2f}" if n in r else "" for r in found.values())]
        for n in results.networks
    ]
    return [report.table(["network", *found], rows)] if found else []


def _times(results: Results, kind: str, figure: str, factor: float, form: str) -> str:
    variants = [v.name for v in VARIANTS]
    found = {
        network: [results.find(network, kind, variant) for variant in variants]
        for network in results.networks
    }
    used = [i for i in range(len(variants)) if any(row[i] for row in found.values())]
    head = ["network", "images", "px", *(HEADS.get(variants[i], variants[i]) for i in used)]
    rows = []
    for network, row in found.items():
        one = next(filter(None, row), None)
        if one is not None:
            cells = [row[i] and format(factor * getattr(row[i], figure), form) for i in used]
            sizes = [str(one.case.batch), str(one.case.pixels)]
            rows.append([network, *sizes, *(cell or "" for cell in cells)])
    return report.table(head, rows)


def _reorders(result: Dict[str, Any]) -> str:
    rows = [
        [one["network"], one["kind"], str(one["onednn"]), str(one["own"])]
        for one in result["reorders"]
    ]
    return report.table(["network", "kind", "oneDNN's reorders", "gluon_amp's"], rows)


def _limits(result: Dict[str, Any]) -> str:
    rows = []
    for one in result["limits"]:
        times = (one["product_seconds"], one["copy_seconds"], one["seconds"])
        share = one["product_seconds"] / one["seconds"]
        rows.append(
            [
                one["network"],
                one["kind"],
                f"{one['flop'] / 1e9:.1f}",
                *(f"{1e3 * seconds:.1f}" for seconds in times),
                f"{100 * share:.0f} %",
            ]
        )
    head = ["network", "kind", "GFLOP", "products, ms", "copies, ms", "bfloat16, ms", "products"]
    rates = result["rates"]
    text = (
        f"Products at {rates['flop'] / 1e9:.0f} GFLOP/s, the rate of 3×3 convolutions of 256 "
        "channels, 28 × 28, 16 images, in bfloat16 through MXNet; copies at "
        f"{rates['moved'] / 1e9:.1f} GB/s, read and written bytes counted. A product is every "
        "convolution and matrix product; the copies are those of its tensors in bfloat16, each "
        "moved once, and of the update in float32. The last column is the time of the products at "
        "that rate over the measured time."
    )
    return f"{text}\n\n{report.table(head, rows)}"


def write(page: str, result: Dict[str, Any], folder: Path) -> List[Path]:
    """Write ``families.json`` and ``families.md`` to a folder; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / "families.json", folder / "families.md"]
    paths[0].write_text(json.dumps(result, indent=1) + "\n")
    paths[1].write_text(page)
    return paths
