"""The suite of network families: every dtype and library beside PyTorch, as data.

Each family is measured in turn with all of its cases, so that few processes are in memory at once.
"""

from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from experiments.benchmarks.suites import Case, Ratio, Suite


class Family(NamedTuple):
    """A network, of the Model Zoo or else of GluonCV, and the size of its training step."""

    network: str
    batch: int = 16
    pixels: int = 112
    image: int = 224  # pixels of the single image of inference
    bounded: bool = True  # whether the bounds of the geometric means include it


FAMILIES = (
    Family("resnet50_v1"),
    Family("resnet50_v2", batch=8),
    Family("resnet18_v1"),
    Family("alexnet", batch=32, pixels=224),
    Family("vgg11", batch=4),
    Family("inceptionv3", batch=4, pixels=299, image=299),
    Family("mobilenet1.0"),
    Family("mobilenetv2_1.0"),
    Family("mobilenetv3_large", bounded=False),
    # the pooling of these two expects 224 px
    Family("densenet121", batch=4, pixels=224, bounded=False),
    Family("squeezenet1.1", batch=8, pixels=224, bounded=False),
)


class Variant(NamedTuple):
    """A way to run a network: the library, the dtype, and what a table's column is called."""

    name: str
    library: str
    dtype: str
    infers: bool = True  # whether inference is measured too; else it is that of `STOCK`


STOCK, FLOAT32, BFLOAT16, FLOAT16 = "float32", "float32, amp.Trainer", "bfloat16", "float16"
CONTRIB, PEER_FLOAT32, PEER_BFLOAT16 = "contrib.amp", "PyTorch float32", "PyTorch bfloat16"

VARIANTS = (
    Variant(STOCK, "mxnet", "float32"),
    Variant(FLOAT32, "gluon_amp", "float32", infers=False),
    Variant(BFLOAT16, "gluon_amp", "bfloat16"),
    Variant(FLOAT16, "gluon_amp", "float16"),
    Variant(CONTRIB, "contrib.amp", "bfloat16"),
    Variant(PEER_FLOAT32, "pytorch", "float32"),
    Variant(PEER_BFLOAT16, "pytorch", "bfloat16"),
)

# What is done with a network, and the title of its table
KINDS = {
    "training": "Training step",
    "inference": "Inference, the batch of a training step",
    "image": "Inference, one image",
}


class Quotient(NamedTuple):
    """A ratio that every family has; the fastest of several variants counts.

    `mean` and `worst` are the bounds (must, aim) of the geometric mean over the bounded families
    and of the worst of all families. `single` holds a network and its bounds.
    """

    label: str
    over: Tuple[str, ...]
    under: str
    larger_is_better: bool
    mean: Tuple[Optional[float], Optional[float]] = (None, None)
    worst: Tuple[Optional[float], Optional[float]] = (None, None)
    single: Tuple[str, Optional[float], Optional[float]] = ("resnet50_v1", None, None)


PEERS = (PEER_FLOAT32, PEER_BFLOAT16)
QUOTIENTS: Dict[str, Tuple[Quotient, ...]] = {
    "training": (
        Quotient(
            "stock float32 / bfloat16",
            (STOCK,),
            BFLOAT16,
            True,
            mean=(1.75, 2.1),
            worst=(1.4, 1.7),
            single=("resnet50_v1", 1.9, 2.2),
        ),
        Quotient("float32 under amp.Trainer / bfloat16", (FLOAT32,), BFLOAT16, True),
        Quotient("contrib.amp / bfloat16", (CONTRIB,), BFLOAT16, True),
        Quotient("PyTorch's best / bfloat16", PEERS, BFLOAT16, True, (1.25, 1.5), (1.0, 1.2)),
        Quotient("float16 / stock float32", (FLOAT16,), STOCK, False, worst=(1.1, 1.0)),
    ),
    "inference": (
        Quotient("stock float32 / bfloat16", (STOCK,), BFLOAT16, True),
        Quotient("contrib.amp / bfloat16", (CONTRIB,), BFLOAT16, True),
        Quotient("PyTorch's best / bfloat16", PEERS, BFLOAT16, True),
        Quotient("float16 / stock float32", (FLOAT16,), STOCK, False),
    ),
    "image": (
        Quotient(
            "stock float32 / bfloat16",
            (STOCK,),
            BFLOAT16,
            True,
            mean=(1.2, 1.6),
            worst=(1.0, 1.0),
            single=("resnet50_v1", 1.2, 1.6),
        ),
        Quotient("contrib.amp / bfloat16", (CONTRIB,), BFLOAT16, True),
        Quotient("PyTorch's best / bfloat16", PEERS, BFLOAT16, True),
        Quotient("float16 / stock float32", (FLOAT16,), STOCK, False, worst=(1.0, 1.0)),
    ),
}

# The rates that bound a step: the products of large convolutions, and copies of large arrays
PRODUCT_RATE, COPY_RATE = "large convolutions, bfloat16", "copy, float32"
MEMORY = Family("resnet50_v1", pixels=224)


def label(network: str, kind: str, variant: str) -> str:
    """Return the label of a case."""
    return f"{network}, {kind}, {variant}"


def find(network: str) -> Family:
    """Return a family of `FAMILIES`, or one of usual size for a network that is not listed."""
    listed = {family.network: family for family in FAMILIES}
    return listed.get(network) or Family(network, bounded=False)


def families(
    networks: Sequence[str],
    dtypes: Sequence[str],
    peer: bool,
    batch: Optional[int] = None,
    pixels: Optional[int] = None,
) -> Suite:
    """Return the suite of some networks and dtypes; other sizes than the families' are optional.

    Parameters
    ----------
    networks, dtypes : sequence of str
    peer : bool
        Whether PyTorch is measured too.
    batch, pixels : int, optional
        The same for all networks, and for the single image.
    """
    variants = [v for v in VARIANTS if v.dtype in dtypes and (peer or v.library != "pytorch")]
    groups = [_rates() if "bfloat16" in dtypes else []]
    for network in networks:
        family = find(network)
        size = {"network": network, "batch": batch or family.batch}
        size["pixels"] = pixels or family.pixels
        image = {**size, "batch": 1, "pixels": pixels or family.image}
        inferring = [v for v in variants if v.infers]
        groups.append([_case("training", variant, size) for variant in variants])
        groups.append([_case("inference", variant, size) for variant in inferring])
        groups[-1] += [_case("image", variant, image) for variant in inferring]
    ratios: Tuple[Ratio, ...] = ()
    if MEMORY.network in networks and batch is None and pixels is None:
        cases, ratios = _memory(variants)
        groups.append(cases)
    return Suite("Network families", [group for group in groups if group], ratios)


def _rates() -> List[Case]:
    return [
        Case(
            PRODUCT_RATE, "convolutions", "gluon_amp", "bfloat16", network="", batch=16, pixels=28
        ),
        Case(COPY_RATE, "copy", "mxnet", "float32", network=""),
    ]


def _case(kind: str, variant: Variant, size: Dict[str, object]) -> Case:
    return Case(
        label(str(size["network"]), kind, variant.name),
        "train" if kind == "training" else "infer",
        variant.library,
        variant.dtype,
        loss_scale="dynamic" if variant.dtype == "float16" else None,
        **size,
    )


def _memory(variants: Sequence[Variant]) -> Tuple[List[Case], Tuple[Ratio, ...]]:
    """Return the training steps whose peak memory is compared, and the ratio."""
    size = {"network": MEMORY.network, "batch": MEMORY.batch, "pixels": MEMORY.pixels}
    cases = [_case("training", v, size) for v in variants if v.name in (STOCK, BFLOAT16)]
    suffix = f", {MEMORY.pixels} px"
    cases = [_relabelled(case, case.label + suffix) for case in cases]
    if len(cases) < 2:
        return [], ()
    float32, bfloat16 = (case.label for case in cases)
    ratio = Ratio(
        f"bfloat16 / stock float32, peak memory, {MEMORY.network}, {MEMORY.batch} images{suffix}",
        bfloat16,
        float32,
        0.62,
        0.55,
        "mebibytes",
    )
    return cases, (ratio,)


def _relabelled(case: Case, text: str) -> Case:
    return Case(**{**vars(case), "label": text})
