"""What a suite has measured, as JSON, as the parts of its page, and as a figure."""

import contextlib
import datetime
import importlib.metadata
import os
import platform
import statistics
from dataclasses import asdict
from pathlib import Path
from typing import Any, Dict, Iterator, List, Sequence, Tuple

from experiments.benchmarks.measure import Measured
from experiments.benchmarks.suites import DTYPES, Ratio, Suite
from experiments.pages import Values, table
from experiments.standalone import figures, hardware

# instruction sets that decide which kernels of oneDNN and of gluon_amp run
FLAGS = ("avx2", "f16c", "avx512f", "avx512_bf16", "amx_bf16")
KINDS = {"avx2": "AVX2", "avx512f": "AVX512", "avx512_bf16": "AVX512_BF16", "amx_bf16": "AMX"}
PACKAGES = ("mxnet", "gluon_amp", "numpy")
# environment variables that decide it too, or how threads wait
VARIABLES = (
    "DNNL_MAX_CPU_ISA",
    "ATEN_CPU_CAPABILITY",
    "GLUON_AMP_NATIVE",
    "GLUON_AMP_BFLOAT16",
    "OMP_WAIT_POLICY",
)
# ticks of a logarithmic axis
MILLISECONDS = [digit * 10**power for power in range(6) for digit in (1, 2, 5)]
AXES = ("batch", "pixels", "parameters")  # of the suite named scaling


def machine(threads: int) -> Dict[str, Any]:
    """Return what the figures depend on: date, processor, memory, threads and versions."""
    flags, memory = hardware.onednn_flags(), None
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
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    return "not installed"


def cpu_kind(about: Values) -> str:
    """Return the newest instruction set that a machine could use."""
    return next((KINDS[f] for f in reversed(about["instructions"]) if f in KINDS), "SSE")


def as_json(suite: Suite, measured: List[Measured], about: Values, command: str) -> Values:
    """Return all figures as values for `json.dump`."""
    by_label = {one.case.label: one for one in measured}
    ratios = []
    for ratio in suite.ratios:
        if {ratio.over, ratio.under} <= by_label.keys():
            over, under = by_label[ratio.over], by_label[ratio.under]
            pairs = zip(over.seconds, under.seconds)
            if ratio.figure != "seconds":
                pairs = zip([over.mebibytes], [under.mebibytes])
            ratios.append(measured_ratio(ratio, [a / b for a, b in pairs]))
    cases = []
    for one in measured:
        median, images = statistics.median(one.seconds), one.case.images
        cases.append(
            {
                **asdict(one.case),
                "seconds": one.seconds,
                "median_seconds": median,
                "images_per_second": images / median if images else None,
                "peak_mebibytes": one.mebibytes,
                "parameters": one.parameters,
                "products": one.products,
            }
        )
    about = {"suite": suite.title, "command": command, "machine": about}
    return {**about, "cases": cases, "ratios": ratios}


def measured_ratio(ratio: Ratio, values: List[float]) -> Values:
    """Return a ratio with its value in each round, or its one value."""
    return {**ratio._asdict(), "values": values, "median": statistics.median(values)}


def part(result: Values, tables: str, picture: str) -> str:
    """Return the part of a page: tables, the figure in a file, and how they were measured."""
    about, rounds = result["machine"], len(result["cases"][0]["seconds"])
    variables = "".join(f", {name}={value}" for name, value in about.get("variables", {}).items())
    peer = f", {about['peer']}" if "peer" in about else ""
    measured = (
        f"{about['date']}, {rounds} rounds, `{result['command']}`: {about['processor']}, "
        f"{cpu_kind(about)}, {about['threads']} threads{variables}, Python {about['python']}, "
        f"MXNet {about['mxnet']}, numpy {about['numpy']}, gluon_amp {about['gluon_amp']}{peer}."
    )
    return "\n\n".join([tables, f"![{result['suite']}]({picture})", measured])


def tables(result: Values) -> str:
    """Return the ratios of a suite, if it has any, and its cases."""
    ratios = [ratio_table(result)] if result["ratios"] else []
    return "\n\n".join([*ratios, case_table(result)])


def speed(ratio: Values) -> Tuple[str, str, List[float]]:
    """Return which case is compared, with which one, and how many times as fast it is.

    A ratio of which less is better has the compared case on top.
    """
    over, under, values = ratio["over"], ratio["under"], ratio["values"]
    if ratio["larger_is_better"]:
        return under, over, values
    return over, under, [1 / value for value in values]


def ratio_table(result: Values) -> str:
    """Return the speeds of cases relative to others, and the ratios of memory, if any."""
    rows, memory = [], []
    for ratio in result["ratios"]:
        if ratio["figure"] == "seconds":
            case, reference, values = speed(ratio)
            shown = f"{statistics.median(values):.2f}"
            rows.append([case, reference, shown, f"{min(values):.2f} to {max(values):.2f}"])
        else:
            memory.append([ratio["over"], ratio["under"], f"{ratio['median']:.2f}"])
    both = [table(["case", "relative to", "speed, higher is better", "rounds"], rows, words=2)]
    if memory:
        both.append(table(["case", "relative to", "peak memory, lower is better"], memory, words=2))
    return "\n\n".join(both)


def case_table(result: Values) -> str:
    """Return the time, the speed and the memory of the cases."""
    with_images = any(case["images_per_second"] for case in result["cases"])
    rows = []
    for case in result["cases"]:
        low, high = min(case["seconds"]), max(case["seconds"])
        median = f"{case['median_seconds'] * 1e3:.1f}"
        row = [case["label"], median, f"{low * 1e3:.1f} to {high * 1e3:.1f}"]
        if with_images:
            row.append(f"{case['images_per_second']:.1f}")
        rows.append([*row, f"{case['peak_mebibytes']:.0f}"])
    images = ["images/s"] if with_images else []
    return table(["case", "ms", "rounds", *images, "MiB"], rows)


@contextlib.contextmanager
def pyplot(path: Path) -> Iterator[Any]:
    """Yield matplotlib's pyplot in the style of all figures, and write its figure to a file."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    with matplotlib.style.context(figures.STYLE):
        yield plt
        plt.tight_layout()
        plt.savefig(path)
        plt.close()


def draw(result: Values, path: Path) -> None:
    """Write a figure of the times: lines along `AXES` for the suite named scaling, else bars."""
    about, cases = result["machine"], result["cases"]
    with pyplot(path) as plt:
        if result["suite"].startswith("Scaling"):
            figure, panels = plt.subplots(1, len(AXES), figsize=(11, 4.2), sharey=True)
            for panel, axis in zip(panels, AXES):
                _draw_growth(panel, cases, axis)
            panels[0].set_ylabel("ms for a step")
            panels[0].legend()
        else:
            groups: Dict[str, List[Values]] = {}  # a panel for each size
            for case in cases:
                groups.setdefault(f"batch {case['batch']}, {case['pixels']} px", []).append(case)
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


def _network_runs(case: Values) -> bool:
    return case["work"] in ("train", "infer")


def _draw_bars(panel, cases: Sequence[Values]) -> None:
    """Draw the times of cases, with their speed relative to stock float32, if that is one."""
    stock = [c for c in cases if c["library"] == "mxnet" and c["dtype"] == "float32"]
    stock = list(filter(_network_runs, stock))
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


def _draw_growth(panel, cases: Sequence[Values], axis: str) -> None:
    """Draw the cases along one axis; along the others, they have the most frequent value.

    Different networks are not joined by a line.
    """
    usual = {name: statistics.mode(case[name] for case in cases) for name in AXES if name != axis}
    along = [case for case in cases if all(case[k] == v for k, v in usual.items())]
    networks = {case["network"]: case[axis] for case in along}
    for dtype in DTYPES:
        points = sorted(
            (case[axis], case["median_seconds"] * 1e3) for case in along if case["dtype"] == dtype
        )
        if points:
            label = f"{dtype} (emulated)" if dtype == "float16" else dtype
            style = {"color": figures.COLOURS[dtype], "label": label}
            panel.plot(*zip(*points), "o" if len(networks) > 1 else "o-", **style)
    if len(networks) > 1:
        for network, place in networks.items():
            below = min(c["median_seconds"] for c in along if c["network"] == network) * 1e3
            name = network.partition("_")[0].replace("resnet", "ResNet-")
            style = {"textcoords": "offset points", "ha": "center", "fontsize": 8}
            panel.annotate(name, (place, below), (0, -14), **style)
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
