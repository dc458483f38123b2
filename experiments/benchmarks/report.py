"""Writes the results of a benchmark as tables, JSON and a figure."""

import datetime
import importlib.metadata
import json
import os
import platform
from dataclasses import asdict
from pathlib import Path
from typing import Any, Dict, List, Sequence

from experiments.benchmarks.measure import Measured, MeasuredRatio
from experiments.benchmarks.suites import DTYPES, Suite
from experiments.standalone import hardware

# instruction sets that decide which kernels of oneDNN and of gluon_amp run
FLAGS = ("avx2", "f16c", "avx512f", "avx512_bf16", "amx_bf16")
PACKAGES = ("mxnet", "gluon_amp", "numpy")
# environment variables that decide it too, or how threads wait
VARIABLES = ("DNNL_MAX_CPU_ISA", "GLUON_AMP_NATIVE", "OMP_WAIT_POLICY")
# ticks of a logarithmic axis
MILLISECONDS = [digit * 10**power for power in range(6) for digit in (1, 2, 5)]
# Okabe and Ito's colours, which colour-blind readers distinguish
COLOURS = dict(zip(DTYPES, ("#0072B2", "#D55E00", "#009E73")))


def machine(threads: int) -> Dict[str, Any]:
    """Return what the figures depend on: date, processor, memory, threads and versions."""
    flags, memory = hardware.cpu_flags(), None
    if platform.system() == "Linux":
        memory = round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    return {
        "date": datetime.date.today().isoformat(),
        "processor": hardware.cpu_name(),
        "instructions": [flag for flag in FLAGS if flag in flags],
        "processors": hardware.count_processors(),
        "threads": threads,
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
        "memory_gib": memory,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        **{name: _version(name) for name in PACKAGES},
    }


def _version(package: str) -> str:
    for name in (package, "mxnet-cu112", "mxnet-cu117"):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "not installed"


def as_json(
    suite: Suite,
    measured: List[Measured],
    ratios: List[MeasuredRatio],
    about: Dict[str, Any],
    command: str,
) -> Dict[str, Any]:
    """Return all figures as values for `json.dump`."""
    cases = [
        {
            **asdict(one.case),
            "seconds": one.seconds,
            "median_seconds": one.median,
            "images_per_second": one.images_per_second,
            "peak_mebibytes": one.mebibytes,
            "parameters": one.parameters,
            "flop": one.flop,
            "moved": one.moved,
        }
        for one in measured
    ]
    quotients = [
        {**one.ratio._asdict(), "values": one.values, "median": one.median, "verdict": one.verdict}
        for one in ratios
    ]
    return {
        "suite": suite.title,
        "command": command,
        "machine": about,
        "cases": cases,
        "ratios": quotients,
    }


def as_markdown(result: Dict[str, Any], picture: str) -> str:
    """Return a page with the ratios, the cases, the command and the machine."""
    parts = [f"# {result['suite']}"]
    if result["ratios"]:
        parts.append(ratio_table(result))
    parts += [case_table(result), f"![{result['suite']}]({picture})", method(result)]
    return "\n\n".join(parts) + "\n"


def method(result: Dict[str, Any]) -> str:
    """Return how, on which machine and when the figures were measured."""
    about = result["machine"]
    variables = "".join(f", {name}={value}" for name, value in about["variables"].items())
    peer = f", {about['peer']}" if "peer" in about else ""
    return "\n\n".join(
        [
            f"Measured on {about['date']} with `{result['command']}`: "
            f"{len(result['cases'][0]['seconds'])} rounds, in "
            "which the cases take turns, each in a process of its own. A time is the median over "
            "the rounds, followed by the fastest and the slowest round. A ratio is the median over "
            "the rounds' ratios. Memory is the peak of the process, including Python and MXNet.",
            f"On {about['processor']} ({', '.join(about['instructions'])}), "
            f"{about['processors']} processors, {about['threads']} threads{variables}, "
            f"{about['memory_gib']} GiB, {about['system']}, "
            f"Python {about['python']}, MXNet {about['mxnet']}, numpy {about['numpy']}, "
            f"gluon_amp {about['gluon_amp']}{peer}.",
        ]
    )


def ratio_table(result: Dict[str, Any]) -> str:
    """Return the ratios with their bounds as a Markdown table."""
    rows = []
    for ratio in result["ratios"]:
        sign = "≥" if ratio["larger_is_better"] else "≤"
        bounds = [
            f"{sign} {ratio[name]:g}" if ratio[name] is not None else "" for name in ("must", "aim")
        ]
        spread = f"{min(ratio['values']):.3f} to {max(ratio['values']):.3f}"
        rows.append([ratio["label"], f"{ratio['median']:.3f}", spread, *bounds, ratio["verdict"]])
    return table(["ratio", "median", "rounds", "must", "aim", "reached"], rows)


def case_table(result: Dict[str, Any]) -> str:
    """Return the cases as a Markdown table."""
    with_images = any(case["images_per_second"] for case in result["cases"])
    rows = []
    for case in result["cases"]:
        low, high = min(case["seconds"]), max(case["seconds"])
        row = [
            case["label"],
            f"{case['median_seconds'] * 1e3:.1f}",
            f"{low * 1e3:.1f} to {high * 1e3:.1f}",
        ]
        if with_images:
            row.append(f"{case['images_per_second']:.1f}")
        rows.append([*row, f"{case['peak_mebibytes']:.0f}"])
    images = ["images/s"] if with_images else []
    return table(["case", "ms", "rounds", *images, "MiB"], rows)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table; all columns but the first are aligned to the right."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    ruler = [":" + "-" * (w - 1) if i == 0 else "-" * (w - 1) + ":" for i, w in enumerate(widths)]
    lines = []
    for row in (head, ruler, *rows):
        first, *others = zip(row, widths)
        cells = [str.ljust(*first), *(str.rjust(*other) for other in others)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def draw(suite: Suite, result: Dict[str, Any], path: Path) -> None:
    """Write a figure of the times: lines along the suite's axes if it has any, else bars."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    cases = result["cases"]
    if suite.axes:
        figure, panels = plt.subplots(
            1, len(suite.axes), figsize=(4 * len(suite.axes), 3.6), sharey=True
        )
        for panel, axis in zip(panels, suite.axes):
            _draw_growth(panel, cases, axis)
        panels[0].set_ylabel("ms for a step")
        panels[0].legend(frameon=False)
    else:
        figure, panel = plt.subplots(figsize=(8, 0.9 + 0.36 * len(cases)))
        _draw_bars(panel, cases)
    figure.suptitle(result["suite"])
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _draw_bars(panel, cases: List[Dict[str, Any]]) -> None:
    labels = [case["label"] for case in cases]
    medians = [case["median_seconds"] * 1e3 for case in cases]
    spread = [
        [m - min(c["seconds"]) * 1e3 for m, c in zip(medians, cases)],
        [max(c["seconds"]) * 1e3 - m for m, c in zip(medians, cases)],
    ]
    colours = [COLOURS[case["dtype"]] for case in cases]
    panel.barh(labels, medians, xerr=spread, color=colours, error_kw={"elinewidth": 1})
    for y, (case, median) in enumerate(zip(cases, medians)):
        end = max(case["seconds"]) * 1e3
        panel.annotate(f"{median:.4g}", (end, y), (4, 0), textcoords="offset points", va="center")
    panel.margins(x=0.12)
    panel.invert_yaxis()
    panel.set_xlabel("ms (median of the rounds; bars from the fastest to the slowest)")
    panel.spines[["top", "right"]].set_visible(False)


def _draw_growth(panel, cases: List[Dict[str, Any]], axis: str) -> None:
    """Draw the cases along one axis; along the others, they have the most frequent value."""
    sizes = ("batch", "pixels", "parameters")
    usual = {name: _mode([case[name] for case in cases]) for name in sizes if name != axis}
    along = [case for case in cases if all(case[k] == v for k, v in usual.items())]
    for dtype in DTYPES:
        points = sorted(
            (case[axis], case["median_seconds"] * 1e3) for case in along if case["dtype"] == dtype
        )
        if points:
            panel.plot(*zip(*points), "o-", color=COLOURS[dtype], label=dtype, markersize=4)
    ticks = sorted({case[axis] for case in along})
    panel.set_xscale("log")
    panel.set_yscale("log")
    millions = max(ticks) >= 1e6
    panel.set_xticks(ticks, [f"{t / 1e6:.0f}" if millions else f"{t}" for t in ticks])
    panel.set_yticks(MILLISECONDS, [f"{t}" for t in MILLISECONDS])
    times = [case["median_seconds"] * 1e3 for case in cases]
    panel.set_ylim(min(times) / 1.2, max(times) * 1.2)
    panel.minorticks_off()
    panel.set_xlabel(f"{axis} in millions" if millions else axis)
    panel.grid(alpha=0.3)


def _mode(values: List[int]) -> int:
    return max(values, key=values.count)


def write(suite: Suite, result: Dict[str, Any], folder: Path, name: str) -> List[Path]:
    """Write ``name.json``, ``name.png`` and ``name.md`` to a folder; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.{suffix}" for suffix in ("json", "png", "md")]
    paths[0].write_text(json.dumps(result, indent=1) + "\n")
    draw(suite, result, paths[1])
    paths[2].write_text(as_markdown(result, paths[1].name))
    return paths
