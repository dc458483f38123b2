"""Writes the results of a benchmark as tables, JSON and a figure."""

import contextlib
import datetime
import importlib.metadata
import json
import os
import platform
import statistics
from dataclasses import asdict
from pathlib import Path
from typing import Any, Dict, Iterator, List, Sequence, Tuple

from experiments.benchmarks.measure import Measured, MeasuredRatio
from experiments.benchmarks.suites import DTYPES, Suite
from experiments.standalone import command_line, figures, hardware

# instruction sets that decide which kernels of oneDNN and of gluon_amp run
FLAGS = ("avx2", "f16c", "avx512f", "avx512_bf16", "amx_bf16")
PACKAGES = ("mxnet", "gluon_amp", "numpy")
# environment variables that decide it too, or how threads wait
VARIABLES = ("DNNL_MAX_CPU_ISA", "GLUON_AMP_NATIVE", "OMP_WAIT_POLICY")
# ticks of a logarithmic axis
MILLISECONDS = [digit * 10**power for power in range(6) for digit in (1, 2, 5)]


@contextlib.contextmanager
def to_output(folder: Path) -> Iterator[None]:
    """Write files of --output in a with block; an `OSError` there is a `UsageError`."""
    try:
        yield
    except OSError as error:
        sentence = f"--output {folder} cannot be written: {error.strerror}."
        raise command_line.UsageError(sentence) from None


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
    variables = "".join(f", {name}={value}" for name, value in about.get("variables", {}).items())
    peer = f", {about['peer']}" if "peer" in about else ""
    return "\n\n".join(
        [
            f"Measured on {about['date']} with `{result['command']}`: "
            f"{len(result['cases'][0]['seconds'])} rounds, in "
            "which the cases take turns, each in a process of its own. A time is the median over "
            "the rounds, followed by the fastest and the slowest round. A speed is the median over "
            "the rounds' ratios of the two times, followed by the lowest and the highest. Memory "
            "is the peak of the process, including Python and MXNet.",
            "float32 is stock float32, MXNet with its own trainer, unless `amp.Trainer` is named. "
            "float16 is emulated: its time says nothing about a GPU.",
            f"On {about['processor']} ({', '.join(about['instructions'])}), "
            f"{about['processors']} processors, {about['threads']} threads{variables}, "
            f"{about['memory_gib']} GiB, {about['system']}, "
            f"Python {about['python']}, MXNet {about['mxnet']}, numpy {about['numpy']}, "
            f"gluon_amp {about['gluon_amp']}{peer}.",
        ]
    )


def speed(ratio: Dict[str, Any]) -> Tuple[str, str, List[float]]:
    """Return which case is compared, with which one, and how many times as fast it is.

    A ratio of which less is better has the compared case on top.
    """
    over, under, values = ratio["over"], ratio["under"], ratio["values"]
    if ratio["larger_is_better"]:
        return under, over, values
    return over, under, [1 / value for value in values]


def ratio_table(result: Dict[str, Any]) -> str:
    """Return the speeds of cases relative to others, and the ratios of memory, if any."""
    rows, memory = [], []
    for ratio in result["ratios"]:
        if ratio["figure"] == "seconds":
            case, reference, values = speed(ratio)
            shown = f"{statistics.median(values):.2f}"
            rows.append([case, reference, shown, f"{min(values):.2f} to {max(values):.2f}"])
        else:
            memory.append([ratio["over"], ratio["under"], f"{ratio['median']:.2f}"])
    parts = [table(["case", "relative to", "speed, higher is better", "rounds"], rows)]
    if memory:
        parts.append(table(["case", "relative to", "peak memory, lower is better"], memory))
    return "\n\n".join(parts)


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


def draw(axes: Sequence[str], result: Dict[str, Any], path: Path) -> None:
    """Write a figure of the times: lines along the axes of a suite if it has any, else bars."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    about, cases = result["machine"], result["cases"]
    with matplotlib.style.context(figures.STYLE):
        if axes:
            figure, panels = plt.subplots(1, len(axes), figsize=(11, 4.2), sharey=True)
            for panel, axis in zip(panels, axes):
                _draw_growth(panel, cases, axis)
            panels[0].set_ylabel("ms for a step")
            panels[0].legend()
        else:
            groups = _by_size(cases)
            figure, panels = plt.subplots(
                len(groups),
                1,
                figsize=(9, 1.5 + 0.62 * len(groups) + 0.36 * len(cases)),
                squeeze=False,
                gridspec_kw={"height_ratios": [0.6 + len(group) for group in groups.values()]},
            )
            for panel, (size, group) in zip(panels.flat, groups.items()):
                _draw_bars(panel, group)
                panel.set_title(size if len(groups) > 1 else "", loc="left")
            note = "; ×: speed relative to float32" if any(map(_network_runs, cases)) else ""
            panels.flat[-1].set_xlabel(f"ms: median, fastest and slowest of the rounds{note}")
        figure.suptitle(
            f"{result['suite']}\n{about['processor']}, {about['threads']} threads, {about['date']}"
        )
        figure.tight_layout()
        figure.savefig(path)
        plt.close(figure)


def _by_size(cases: List[Dict[str, Any]]) -> Dict[str, List[Dict[str, Any]]]:
    """Return the cases by the number and the size of their images: a panel for each."""
    groups: Dict[str, List[Dict[str, Any]]] = {}
    for case in cases:
        groups.setdefault(f"batch {case['batch']}, {case['pixels']} px", []).append(case)
    return groups


def _is_stock(case: Dict[str, Any]) -> bool:
    """Return whether a case is that of stock float32, to which networks are compared."""
    return (case["library"], case["dtype"]) == ("mxnet", "float32") and _network_runs(case)


def _network_runs(case: Dict[str, Any]) -> bool:
    return case["work"] in ("train", "infer")


def _draw_bars(panel, cases: List[Dict[str, Any]]) -> None:
    """Draw the times of cases, with their speed relative to stock float32, if that is one."""
    stock = [case for case in cases if _is_stock(case)]
    size = f", batch {cases[0]['batch']}", f", {cases[0]['pixels']} px"
    labels = []
    for case in cases:
        label = case["label"]
        for end in size:  # which the panel has in its title
            label = label.replace(end, "")
        emulated = case["dtype"] == "float16" and _network_runs(case)
        labels.append(f"{label} (emulated)" if emulated else label)
    medians = [case["median_seconds"] * 1e3 for case in cases]
    spread = [
        [m - min(c["seconds"]) * 1e3 for m, c in zip(medians, cases)],
        [max(c["seconds"]) * 1e3 - m for m, c in zip(medians, cases)],
    ]
    colours = [figures.COLOURS[case["dtype"]] for case in cases]
    panel.barh(labels, medians, xerr=spread, color=colours, error_kw={"elinewidth": 1})
    for y, (case, median) in enumerate(zip(cases, medians)):
        text = f"{median:.4g} ms"
        if len(stock) == 1 and case is not stock[0]:
            ratios = [a / b for a, b in zip(stock[0]["seconds"], case["seconds"])]
            text += f", {statistics.median(ratios):.2f}×"
        end = max(case["seconds"]) * 1e3
        panel.annotate(text, (end, y), (4, 0), textcoords="offset points", va="center", fontsize=9)
    panel.set_xlim(0, 1.3 * max(max(case["seconds"]) for case in cases) * 1e3)
    panel.invert_yaxis()
    panel.grid(axis="y", visible=False)


def _draw_growth(panel, cases: List[Dict[str, Any]], axis: str) -> None:
    """Draw the cases along one axis; along the others, they have the most frequent value.

    Different networks are not joined by a line.
    """
    sizes = ("batch", "pixels", "parameters")
    usual = {name: _mode([case[name] for case in cases]) for name in sizes if name != axis}
    along = [case for case in cases if all(case[k] == v for k, v in usual.items())]
    line = "o" if len({case["network"] for case in along}) > 1 else "o-"
    for dtype in DTYPES:
        points = sorted(
            (case[axis], case["median_seconds"] * 1e3) for case in along if case["dtype"] == dtype
        )
        if points:
            label = f"{dtype} (emulated)" if dtype == "float16" else dtype
            panel.plot(*zip(*points), line, color=figures.COLOURS[dtype], label=label)
    if line == "o":
        lowest = {case["network"]: case[axis] for case in along}
        for network, place in lowest.items():
            below = min(c["median_seconds"] for c in along if c["network"] == network) * 1e3
            name = network.partition("_")[0].replace("resnet", "ResNet-")
            panel.annotate(
                name, (place, below), (0, -14), textcoords="offset points", ha="center", fontsize=8
            )
    ticks = sorted({case[axis] for case in along})
    panel.set_xscale("log")
    panel.set_yscale("log")
    millions = max(ticks) >= 1e6
    panel.set_xticks(ticks, [f"{t / 1e6:.0f}" if millions else f"{t}" for t in ticks])
    panel.set_yticks(MILLISECONDS, [f"{t}" for t in MILLISECONDS])
    times = [case["median_seconds"] * 1e3 for case in cases]
    panel.set_ylim(min(times) / 1.3, max(times) * 1.2)
    panel.minorticks_off()
    panel.set_xlabel(f"{axis} in millions, of different networks" if millions else axis)
    panel.margins(x=0.12)


def _mode(values: List[int]) -> int:
    return max(values, key=values.count)


def write(suite: Suite, result: Dict[str, Any], folder: Path, name: str) -> List[Path]:
    """Write ``name.json``, ``name.png`` and ``name.md`` to a folder; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.{suffix}" for suffix in ("json", "png", "md")]
    paths[0].write_text(json.dumps(result, indent=1) + "\n")
    draw(suite.axes, result, paths[1])
    paths[2].write_text(as_markdown(result, paths[1].name))
    return paths
