"""The suite of network families: every dtype and library beside PyTorch, and its tables.

Each family is measured in turn with all of its cases, so that few processes are in memory at once.
"""

import math
import statistics
from pathlib import Path
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

from experiments.benchmarks import report
from experiments.benchmarks.suites import Case, Ratio, Suite
from experiments.pages import Values, table
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
    "training": "training",
    "inference": "inference of the batch",
    "image": "inference of one image",
}


class Quotient(NamedTuple):
    """A speed: the time of one case over that of another, of several the fastest."""

    case: str
    relative_to: str
    over: Tuple[str, ...]
    under: Tuple[str, ...]


PLAIN = Quotient(BFLOAT16, "stock float32", (STOCK,), (BFLOAT16,))
PEER = Quotient("its fastest policy", "PyTorch's best", PEERS, OURS)
QUOTIENTS = (
    PLAIN,
    Quotient(BFLOAT16, "float32 under `amp.Trainer`", (FLOAT32,), (BFLOAT16,)),
    Quotient(BFLOAT16, "contrib.amp", (CONTRIB,), (BFLOAT16,)),
    Quotient(FUSED, "stock float32", (STOCK,), (FUSED,)),
    Quotient("float16, emulated", "stock float32", (STOCK,), (FLOAT16,)),
    PEER,
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

    def speeds(self, kind: str, quotient: Quotient) -> Dict[str, List[float]]:
        """Return a speed in each round, of all networks that have it."""
        found = {}
        for network in self.networks:
            over = self.fastest(network, quotient.over, kind)
            under = self.fastest(network, quotient.under, kind)
            if over and under:
                found[network] = [a / b for a, b in zip(over["seconds"], under["seconds"])]
        return found


def geometric_means(ratios: Iterable[Sequence[float]]) -> List[float]:
    """Return the geometric mean of several ratios in each round."""
    return [math.exp(statistics.fmean(map(math.log, values))) for values in zip(*ratios)]


def draw(result: Values, path: Path) -> None:
    """Write a figure: PyTorch's fastest training step over ours, in each network."""
    results = Results(result["cases"])
    found = results.speeds("training", PEER)
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


def tables(result: Values) -> str:
    """Return the means of the speeds, and what was measured of each network, in Markdown."""
    results, peak = Results(result["cases"]), result["machine"].get("peak")
    parts = [means(results), networks(results, peak), *result["left_out"].values()]
    speeds = results.speeds("training", PEER)
    if len(results.networks) > 1 and speeds:
        spread = geometric_means(speeds.values())
        slowest = min(speeds, key=lambda network: statistics.median(speeds[network]))
        parts[1:1] = [
            f"The mean of training relative to PyTorch's best is {min(spread):.2f} to "
            f"{max(spread):.2f}, depending on the round; the slowest network is {slowest}."
        ]
    if peak:
        parts += [f"The float32 peak of this machine is {2e-9 * peak:.0f} GFLOP/s."]
    return "\n\n".join(parts)


def means(results: Results) -> str:
    """Return the geometric mean of each speed, with the slowest and the fastest network."""
    rows = []
    for quotient in QUOTIENTS:
        cells = []
        for kind in KINDS:
            found = results.speeds(kind, quotient)
            cell = ""
            if found:
                mean = statistics.median(geometric_means(found.values()))
                medians = list(map(statistics.median, found.values()))
                cell = f"{mean:.2f} ({min(medians):.2f} to {max(medians):.2f})"
            cells.append(cell)
        if any(cells):
            rows.append([quotient.case, quotient.relative_to, *cells])
    return table(["speed of", "relative to", *KINDS.values()], rows, words=2)


def networks(results: Results, peak: Optional[float] = None) -> str:
    """Return the times of training, and the speeds relative to PyTorch, of each network.

    The last column is the time that the products of a step would take at the peak of the machine,
    relative to that of a step under fused_float32.
    """
    shown = (v.name for v in VARIANTS if v.name not in (FLOAT32, CONTRIB))  # in the means alone
    names = [v for v in shown if any(results.find(n, "training", v) for n in results.networks)]
    ours = [name for name in names if name not in PEERS]
    peers = ["PyTorch's best"] if len(ours) < len(names) else []
    rows = []
    for network in results.networks:
        one = results.fastest(network, names)
        if one is None:
            continue
        times = [results.find(network, "training", name) for name in ours]
        times += [results.fastest(network, PEERS)] if peers else []
        row = [network, str(one["batch"]), str(one["pixels"])]
        row += [f"{1e3 * case['median_seconds']:.1f}" if case else "" for case in times]
        for kind in KINDS if peers else ():
            speeds = results.speeds(kind, PEER).get(network)
            row.append(f"{statistics.median(speeds):.2f}" if speeds else "")
        stock, fused = (results.find(network, "training", name) for name in (STOCK, FUSED))
        if peak:
            share = stock and fused and stock["products"] / peak / fused["median_seconds"]
            row.append(f"{share:.2f}" if share else "")
        rows.append(row)
    head = ["network", "batch", "px, tokens", *(HEADS.get(name, name) for name in ours), *peers]
    head += ["PyTorch / ours, training", "batch", "image"] if peers else []
    return table(head + (["products' share"] if peak else []), rows)


def memory(result: Values) -> str:
    """Return the peak memory of the processes that train, in MiB, in Markdown."""
    results, names = Results(result["cases"]), (STOCK, FUSED, BFLOAT16, FLOAT16)
    rows = []
    for network in results.networks:
        found = [results.find(network, "training", name) for name in names]
        rows.append([network, *(f"{one['peak_mebibytes']:.0f}" if one else "" for one in found)])
    return table(["network", *(HEADS.get(name, name) for name in names)], rows)
