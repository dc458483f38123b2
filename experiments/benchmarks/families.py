"""The suite of network families: every dtype and library beside PyTorch, and its tables.

Each family is measured in turn with all of its cases, so that few processes are in memory at once.
"""

import math
import statistics
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

from experiments.benchmarks import report
from experiments.benchmarks.suites import Case, Ratio, Suite
from experiments.pages import Parts, Values, table
from experiments.standalone import figures


class Family(NamedTuple):
    """A network, of the Model Zoo or else of GluonCV, and the size of its training step.

    One that is built here (`networks`) is only trained, with Adam, and not by contrib.amp.
    """

    network: str
    batch: int = 16
    pixels: int = 112  # or tokens
    image: int = 224  # pixels of the single image of inference
    built: bool = False


FAMILIES = (
    Family("resnet50_v1"),
    Family("resnet50_v2", batch=8),
    Family("resnet18_v1"),
    Family("alexnet", batch=32, pixels=224),
    Family("vgg11", batch=4),
    Family("inceptionv3", batch=4, pixels=299, image=299),
    Family("mobilenet1.0"),
    Family("mobilenetv2_1.0"),
    Family("mobilenetv3_large"),
    # the pooling of these two expects 224 px
    Family("densenet121", batch=4, pixels=224),
    Family("squeezenet1.1", batch=8, pixels=224),
    Family("unet", batch=8, pixels=96, built=True),
    Family("lstm", batch=8, pixels=128, built=True),
    Family("transformer", batch=8, pixels=128, built=True),
    Family("bert_base", batch=4, pixels=128, built=True),
)
NETWORKS = [family.network for family in FAMILIES]


class Variant(NamedTuple):
    """A way to run a network: the library, the dtype, and what a table's column is called."""

    name: str
    library: str
    dtype: str
    infers: bool = True  # whether inference is measured too; else it is that of `STOCK`


STOCK, FLOAT32, BFLOAT16, FLOAT16 = "float32", "float32, amp.Trainer", "bfloat16", "float16"
CONTRIB, PEER_LIBRARIES = "contrib.amp", {"PyTorch": "pytorch", "torch.compile": "torch.compile"}
PEERS = tuple(f"{name} {dtype}" for name in PEER_LIBRARIES for dtype in ("float32", "bfloat16"))
FUSED = "fused_float32"
OURS = (FLOAT32, FUSED, BFLOAT16, FLOAT16)

VARIANTS = (
    Variant(STOCK, "mxnet", "float32"),
    Variant(FLOAT32, "gluon_amp", "float32", infers=False),
    Variant(FUSED, "gluon_amp", FUSED),
    Variant(BFLOAT16, "gluon_amp", "bfloat16"),
    Variant(FLOAT16, "gluon_amp", "float16"),
    Variant(CONTRIB, "contrib.amp", "bfloat16"),
    *(Variant(name, PEER_LIBRARIES[name.split()[0]], name.split()[1]) for name in PEERS),
)
HEADS = {CONTRIB: "contrib.amp bfloat16", FLOAT16: "float16 emulated"}

# What is done with a network, and the title of its table
KINDS = {
    "training": "Training step",
    "inference": "Inference, the batch of a training step",
    "image": "Inference, one image",
}

# What every family compares: the label, over and under (of each the fastest counts), and whether
# larger is better
QUOTIENTS = (
    ("stock float32 / bfloat16", (STOCK,), (BFLOAT16,), True),
    ("float32 under amp.Trainer / bfloat16", (FLOAT32,), (BFLOAT16,), True),
    ("contrib.amp / bfloat16", (CONTRIB,), (BFLOAT16,), True),
    ("PyTorch's best / bfloat16", PEERS, (BFLOAT16,), True),
    ("PyTorch's best / our best policy", PEERS, OURS, True),
    ("stock float32 / fused_float32", (STOCK,), (FUSED,), True),
    ("float16 / stock float32", (FLOAT16,), (STOCK,), False),
)
MEMORY = Family("resnet50_v1", pixels=224)


def label(network: str, kind: str, variant: str) -> str:
    """Return the label of a case."""
    return f"{network}, {kind}, {variant}"


def families(
    networks: Sequence[str],
    dtypes: Sequence[str],
    peer: bool,
    batch: Optional[int] = None,
    pixels: Optional[int] = None,
    native: bool = True,
) -> Suite:
    """Return the suite of some networks and dtypes, with PyTorch if there is a peer.

    Other sizes than the families' are the same for all networks, and for the single image. If
    bfloat16 is not native, only this package's is measured: the others' kernels for such a CPU take
    many times as long as float32's, and some do not end.
    """
    chosen = {*dtypes, FUSED} if "float32" in dtypes else {*dtypes}
    variants = [v for v in VARIANTS if v.dtype in chosen and (peer or v.name not in PEERS)]
    variants = [v for v in variants if native or v.dtype != BFLOAT16 or v.library == "gluon_amp"]
    listed = {family.network: family for family in FAMILIES}
    groups = []
    for network in networks:
        family = listed.get(network) or Family(network)
        size = {"batch": batch or family.batch, "pixels": pixels or family.pixels}
        image = {"batch": 1, "pixels": pixels or family.image}
        if family.built:
            training = [v for v in variants if v.library != "contrib.amp"]
            groups.append(
                [_case(network, "training", v, optimizer="adam", **size) for v in training]
            )
            continue
        inferring = [v for v in variants if v.infers]
        groups.append([_case(network, "training", variant, **size) for variant in variants])
        groups.append([_case(network, "inference", variant, **size) for variant in inferring])
        groups[-1] += [_case(network, "image", variant, **image) for variant in inferring]
    ratios: Tuple[Ratio, ...] = ()
    compared = [v for v in variants if v.name in (STOCK, BFLOAT16)]
    if MEMORY.network in networks and len(compared) == 2 and not (batch or pixels):
        size = {"batch": MEMORY.batch, "pixels": MEMORY.pixels}
        end = f", {MEMORY.pixels} px"
        cases = [_case(MEMORY.network, "training", v, end, **size) for v in compared]
        float32, bfloat16 = (case.label for case in cases)
        text = f"bfloat16 / stock float32, peak memory, {MEMORY.network}, {MEMORY.batch} images"
        ratios = (Ratio(text + end, bfloat16, float32, "mebibytes"),)
        groups.append(cases)
    return Suite("Network families", groups, ratios)


def _case(network: str, kind: str, variant: Variant, end: str = "", **options: Any) -> Case:
    return Case(
        label(network, kind, variant.name) + end,
        "train" if kind == "training" else "infer",
        variant.library,
        variant.dtype,
        network,
        loss_scale="dynamic" if variant.dtype == "float16" else None,
        **options,
    )


class Results:
    """The measured cases of families.json."""

    def __init__(self, cases: Iterable[Values]):
        self.cases = {case["label"]: case for case in cases}
        self.networks = list(dict.fromkeys(case["network"] for case in self.cases.values()))

    def find(self, network: str, kind: str, variant: str) -> Optional[Values]:
        """Return a measured case; None if it was not measured or failed."""
        return self.cases.get(label(network, kind, variant))

    def fastest(
        self, network: str, variants: Sequence[str], kind: str = "training"
    ) -> Optional[Values]:
        """Return the fastest of some cases that were measured; None without one."""
        found = filter(None, (self.find(network, kind, variant) for variant in variants))
        return min(found, key=lambda one: one["median_seconds"], default=None)

    def quotients(
        self, kind: str, over: Sequence[str], under: Sequence[str]
    ) -> Dict[str, List[float]]:
        """Return a ratio in each round, of all networks that have it."""
        found = {}
        for network in self.networks:
            fastest = self.fastest(network, over, kind)
            lower = self.fastest(network, under, kind)
            if fastest and lower:
                pairs = zip(fastest["seconds"], lower["seconds"])
                found[network] = [a / b for a, b in pairs]
        return found

    def summary(self) -> List[Values]:
        """Return the geometric means and the worst family of every ratio, as in `report`."""
        rows = []
        for kind in KINDS:
            for text, over, under, larger in QUOTIENTS:
                found = self.quotients(kind, over, under)
                medians = {network: statistics.median(found[network]) for network in found}
                chosen: Dict[str, List[float]] = {}
                if text == QUOTIENTS[0][0] and kind != "inference" and NETWORKS[0] in found:
                    chosen[NETWORKS[0]] = found[NETWORKS[0]]
                if len(found) > 1:
                    name = f"geometric mean of {len(found)} families"
                    chosen[name] = geometric_means(found.values())
                    worst = (min if larger else max)(medians, key=medians.get)
                    chosen[f"worst family ({worst})"] = found[worst]
                for name, values in chosen.items():
                    names = (f"{kind}: {text}, {name}", *map(_fastest_of, (over, under)))
                    ratio = Ratio(*names, larger_is_better=larger)
                    rows.append(report.measured_ratio(ratio, values))
        return rows


def _fastest_of(names: Sequence[str]) -> str:
    return {OURS: "its fastest policy", PEERS: "PyTorch's best"}.get(names, " or ".join(names))


def geometric_means(ratios: Iterable[Sequence[float]]) -> List[float]:
    """Return the geometric mean of several ratios in each round."""
    return [math.exp(statistics.fmean(map(math.log, values))) for values in zip(*ratios)]


def parts(result: Values, picture: str) -> Parts:
    """Return the parts of the page; `picture` is the name of the figure's file."""
    page = report.parts(result, tables(result), picture)
    return {**page, "title": f"# {result['suite']}, {report.cpu_kind(result['machine'])}"}


def draw(result: Values, path: Path) -> None:
    """Write a figure: PyTorch's fastest training step over ours, in each network."""
    results = Results(result["cases"])
    found = results.quotients("training", PEERS, OURS)
    means = geometric_means(found.values())
    ratios = [
        (statistics.median(values), network, results.fastest(network, OURS)["dtype"])
        for network, values in found.items()
    ]
    about = result["machine"]
    with report.pyplot(path) as plt:
        _, panel = plt.subplots(figsize=(9, 1.8 + 0.32 * len(ratios)))
        for ratio, network, dtype in sorted(ratios):
            bar = panel.barh(network, ratio, color=figures.COLOURS[dtype])
            panel.bar_label(bar, [f"{ratio:.2f}, {dtype}"], padding=3, fontsize=9)
        panel.axvline(1, color=figures.SUPPORT)
        panel.set_xlabel("training step: PyTorch's faster dtype / the named dtype of gluon_amp")
        panel.margins(x=0.2)
        panel.grid(axis="y", visible=False)
        mean = statistics.median(means) if means else math.nan
        panel.set_title(
            f"PyTorch's fastest training step / gluon_amp's: geometric mean {mean:.2f}\n"
            f"{about['processor']}, {report.cpu_kind(about)}, {about['threads']} threads, "
            f"{about['date']}"
        )


def tables(result: Dict[str, Any]) -> str:
    """Return all tables of families.json in Markdown, with their headings."""
    results = Results(result["cases"])
    parts = ["## Means and slowest families", *_means([*results.summary(), *result["ratios"]])]
    for kind, title in KINDS.items():
        if any(results.find(n, kind, v.name) for n in results.networks for v in VARIANTS):
            parts += [f"## {title}"]
            for name, text in CELLS.items():
                parts += [f"{name}:", _grid(results, kind, text)]
            if peak := result["machine"].get("peak"):
                parts += [
                    f"The products alone, at {2e-9 * peak:.0f} GFLOP/s, the float32 peak of this "
                    "machine:",
                    limits(results, kind, peak),
                ]
    if result["reorders"]:
        keys = ("network", "kind", "onednn", "own")
        rows = [[str(one[key]) for key in keys] for one in result["reorders"]]
        parts += ["## Changes of layout in bfloat16"]
        parts += [table(["network", "kind", "oneDNN's reorders", "gluon_amp's"], rows, words=2)]
    if result["left_out"]:
        reasons = "\n".join(f"- {reason}" for reason in result["left_out"].values())
        parts += ["## Left out", reasons]
    return "\n\n".join(parts)


def _means(ratios: Sequence[Values]) -> List[str]:
    """Return the tables of geometric means of speeds, and of peak memory."""
    rows, memory = [], []
    for ratio in ratios:
        kind, colon, rest = ratio["label"].partition(": ")
        if colon:
            case, reference, values = report.speed(ratio)
            spread = f"{min(values):.2f} to {max(values):.2f}"
            over = rest.rpartition(", ")[2]
            rows.append([kind, over, case, reference, f"{statistics.median(values):.2f}", spread])
        else:
            memory.append([kind.partition(", peak memory, ")[2], f"{ratio['median']:.2f}"])
    head = ["kind", "over", "case", "relative to", "speed, higher is better", "rounds"]
    tables = [table(head, rows, words=4)]
    head = ["training step", "peak memory of bfloat16 relative to stock float32, lower is better"]
    return [*tables, table(head, memory)] if memory else tables


def _speed(one: Values, stock: Optional[Values]) -> str:
    if stock is None:
        return ""
    return f"{statistics.median(a / b for a, b in zip(stock['seconds'], one['seconds'])):.2f}"


# What is shown of a case; the second argument is that of stock float32
CELLS: Dict[str, Callable[[Values, Optional[Values]], str]] = {
    "Speed relative to stock float32, higher is better": _speed,
    "Milliseconds": lambda one, stock: f"{1e3 * one['median_seconds']:.1f}",
    "Peak memory, MiB": lambda one, stock: f"{one['peak_mebibytes']:.0f}",
}


def limits(results: Results, kind: str, peak: float) -> str:
    """Return the time of the products at the peak, and its share of the float32 cases."""
    rows = []
    for network in results.networks:
        found = [results.find(network, kind, name) for name in (STOCK, FUSED)]
        if found[0] and found[0]["products"]:
            seconds = found[0]["products"] / peak
            shares = [f"{seconds / one['median_seconds']:.2f}" if one else "" for one in found]
            rows.append([network, f"{1e3 * seconds:.1f}", *shares])
    return table(["network", "ms", f"share of {STOCK}", f"share of {FUSED}"], rows)


def _grid(results: Results, kind: str, text: Callable) -> str:
    """Return a table with a line for each network and a column for each measured variant."""
    names = [variant.name for variant in VARIANTS]
    used = [v for v in names if any(results.find(n, kind, v) for n in results.networks)]
    rows = []
    for network in results.networks:
        found = [results.find(network, kind, name) for name in used]
        one = next(filter(None, found), None)
        if one is not None:
            stock = results.find(network, kind, STOCK)
            cells = [text(case, stock) if case else "" for case in found]
            rows.append([network, str(one["batch"]), str(one["pixels"]), *cells])
    return table(
        ["network", "batch", "px, tokens", *(HEADS.get(name, name) for name in used)], rows
    )
