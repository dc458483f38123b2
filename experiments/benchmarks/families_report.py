"""Writes the results of the families suite: a table for each kind of work, means and limits."""

import json
import statistics
from pathlib import Path
from typing import Any, Dict, List

from experiments.benchmarks import report
from experiments.benchmarks.families import KINDS, STOCK, VARIANTS
from experiments.benchmarks.summary import Results

HEADS = {"contrib.amp": "contrib.amp bfloat16", "float16": "float16 emulated"}
BASELINES = (
    "There are two baselines. *float32* is stock float32: MXNet with its own trainer. *float32, "
    "amp.Trainer* is float32 with this package's trainer, whose update is faster. Relative to it, "
    "what remains is the gain of the dtype. *PyTorch float32 or PyTorch bfloat16* is the faster of "
    "the two for each network."
)


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
        parts += ["## Means and slowest families", BASELINES, _means(result), *_memory(result)]
    for kind, title in KINDS.items():
        if any(results.find(n, kind, v.name) for n in results.networks for v in VARIANTS):
            parts += [f"## {title}", *_speeds(results, kind)]
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


def _memory(result: Dict[str, Any]) -> List[str]:
    rows = [
        [ratio["label"].partition(", peak memory, ")[2], f"{ratio['median']:.2f}"]
        for ratio in result["ratios"]
        if ratio["figure"] == "mebibytes"
    ]
    head = ["training step", "peak memory of bfloat16 relative to stock float32, lower is better"]
    return [report.table(head, rows)] if rows else []


def _means(result: Dict[str, Any]) -> str:
    """Return the geometric means of speeds, and those of the slowest family."""
    rows = []
    for ratio in result["ratios"]:
        kind, colon, rest = ratio["label"].partition(": ")
        if colon:
            case, reference, values = report.speed(ratio)
            spread = f"{min(values):.2f} to {max(values):.2f}"
            over = rest.rpartition(", ")[2]
            rows.append([kind, over, case, reference, f"{statistics.median(values):.2f}", spread])
    head = ["kind", "over", "case", "relative to", "speed, higher is better", "rounds"]
    return report.table(head, rows)


def _speeds(results: Results, kind: str) -> List[str]:
    """Return the table of speeds relative to stock float32; none without any."""
    rows, used = [], set()
    for network in results.networks:
        stock = results.find(network, kind, STOCK)
        row = [network]
        for variant in VARIANTS:
            one = results.find(network, kind, variant.name)
            if stock is None or one is None:
                row.append("")
                continue
            used.add(variant.name)
            values = [a / b for a, b in zip(stock.seconds, one.seconds)]
            row.append(f"{statistics.median(values):.2f}")
        rows.append(row)
    columns = [n for n, v in enumerate(VARIANTS, 1) if v.name in used and v.name != STOCK]
    if not columns:
        return []
    head = ["network", *(HEADS.get(VARIANTS[n - 1].name, VARIANTS[n - 1].name) for n in columns)]
    cells = [[row[0], *(row[n] for n in columns)] for row in rows]
    title = "Speed relative to stock float32, higher is better:"
    return [title, report.table(head, cells)]


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
        f"Products run at {rates['flop'] / 1e9:.0f} GFLOP/s. This is the rate of 3×3 convolutions "
        "of 256 channels, 28 × 28, 16 images, in bfloat16 through MXNet. Copies run at "
        f"{rates['moved'] / 1e9:.1f} GB/s, counting the bytes that are read and written. Products "
        "are all convolutions and matrix products. Copies move each of their tensors once in "
        "bfloat16, and the tensors of the update in float32. The last column is the time of the "
        "products at this rate, as a share of the measured time."
    )
    return f"{text}\n\n{report.table(head, rows)}"


def write(page: str, result: Dict[str, Any], folder: Path) -> List[Path]:
    """Write ``families.json`` and ``families.md`` to a folder; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / "families.json", folder / "families.md"]
    paths[0].write_text(json.dumps(result, indent=1) + "\n")
    paths[1].write_text(page)
    return paths
