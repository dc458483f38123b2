"""What is measured, as data: the cases of every suite, and which of them are compared."""

from dataclasses import dataclass
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union


@dataclass(frozen=True)
class Case:
    """One measurement, in a process of its own.

    The work is 'train' (whole training steps), 'infer' (forward passes), 'check' (overflow checks)
    or 'update' (of all parameters). The last two do not use the images.
    """

    label: str  # unique in its suite
    work: str
    library: str  # 'gluon_amp', 'contrib.amp', 'pytorch', 'torch.compile'; 'mxnet' is plain MXNet
    dtype: str  # one of DTYPES
    network: str = "resnet50_v1"  # of `networks`, or the Model Zoo or GluonCV with 1000 classes
    batch: int = 16  # images or sequences
    pixels: int = 112  # their height and width, or tokens
    loss_scale: Union[str, float, None] = "dynamic"  # of `gluon_amp.Trainer`
    optimizer: str = "sgd"  # with momentum 0.9; or 'adam'
    check_finite: Optional[bool] = None  # of `gluon_amp.Trainer`

    @property
    def images(self) -> int:
        """Images in one run; 0 if there are none."""
        return self.batch if self.work in ("train", "infer") else 0


class Ratio(NamedTuple):
    """A figure of one case over that of another."""

    label: str
    over: str
    under: str
    figure: str = "seconds"  # or 'mebibytes', the peak of the process
    larger_is_better: bool = False


class Suite(NamedTuple):
    """Groups of cases. The cases of a group take turns."""

    title: str
    groups: List[List[Case]]
    ratios: Tuple[Ratio, ...] = ()

    @property
    def cases(self) -> List[Case]:
        """All cases of all groups."""
        return [case for group in self.groups for case in group]


REFERENCE = {"network": "resnet50_v1", "batch": 16, "pixels": 112}
DTYPES = ("float32", "float16", "bfloat16")


def _case(label: str, work: str, dtype: str, **options) -> Case:
    library = "mxnet" if dtype == "float32" else "gluon_amp"
    loss_scale = "dynamic" if dtype == "float16" else None
    return Case(label, work, library, dtype, **{"loss_scale": loss_scale, **options})


def step(network: str, batch: int, pixels: int) -> Suite:
    """Training steps: forward, backward, overflow check, SGD-momentum update."""
    size = {"network": network, "batch": batch, "pixels": pixels}
    twice = {**size, "pixels": 2 * pixels}
    at_twice = f", {2 * pixels} px"
    contrib, float32, bfloat16 = "contrib.amp bfloat16", "float32" + at_twice, "bfloat16" + at_twice
    larger = {"larger_is_better": True}
    cases = [
        _case("float32", "train", "float32", **size),
        _case("float16", "train", "float16", **size),
        _case("float16, no loss scale", "train", "float16", loss_scale=None, **size),
        _case("bfloat16", "train", "bfloat16", **size),
        Case(contrib, "train", "contrib.amp", "bfloat16", **size),
        _case(float32, "train", "float32", **twice),
        _case(bfloat16, "train", "bfloat16", **twice),
    ]
    ratios = [
        Ratio("float16 emulated / float32", "float16", "float32"),
        Ratio("float32 / bfloat16", "float32", "bfloat16", **larger),
        Ratio(f"{contrib} / bfloat16", contrib, "bfloat16", **larger),
        Ratio("dynamic loss scaling on / off", "float16", "float16, no loss scale"),
        Ratio(f"bfloat16 / {float32}, peak memory", bfloat16, float32, "mebibytes"),
        Ratio(f"float32 / {bfloat16}", float32, bfloat16, **larger),
    ]
    return Suite(f"Training step, {network}, batch {batch}, {pixels} px", [cases], tuple(ratios))


def overflow_check(network: str, batch: int, pixels: int) -> Suite:
    """Overflow checks: gluon_amp's and MXNet's `multi_all_finite`, which contrib.amp uses."""
    cases, ratios = [], []
    for dtype in ("float16", "float32"):
        ours, theirs = f"gluon_amp {dtype}", f"multi_all_finite {dtype}"
        cases.append(Case(ours, "check", "gluon_amp", dtype, network))
        cases.append(Case(theirs, "check", "mxnet", dtype, network))
        ratios.append(Ratio(f"gluon_amp / multi_all_finite, {dtype}", ours, theirs))
    return Suite(f"Overflow check, gradients of {network}", [cases], tuple(ratios))


def check_finite(network: str, batch: int, pixels: int) -> Suite:
    """Training steps without a loss scale, with and without a check of the gradients."""
    cases, ratios = [], []
    for dtype in ("float32", "bfloat16"):
        size = {"network": network, "batch": batch, "pixels": pixels, "loss_scale": None}
        off, on = dtype, f"{dtype}, check_finite=True"
        cases.append(Case(off, "train", "gluon_amp", dtype, **size))
        cases.append(Case(on, "train", "gluon_amp", dtype, check_finite=True, **size))
        ratios.append(Ratio(f"check_finite on / off, {dtype}", on, off))
    return Suite(f"check_finite without a loss scale, {network}", [cases], tuple(ratios))


def optimizer(network: str, batch: int, pixels: int) -> Suite:
    """Updates of all parameters: with float16 weights and float32 masters, and in float32."""
    cases, ratios = [], []
    for name, op in (("sgd", "sgd_mom_update"), ("adam", "adam_update")):
        float32 = f"{op} float32"
        options = {"network": network, "optimizer": name}
        cases.append(Case(float32, "update", "mxnet", "float32", **options))
        cases.append(Case(f"MXNet's {name} float16", "update", "mxnet", "float16", **options))
        for dtype in ("float16", "float32"):
            label = f"gluon_amp {name} {dtype}"
            cases.append(Case(label, "update", "gluon_amp", dtype, **options))
            ratios.append(Ratio(f"{label} / {float32}", label, float32))
    return Suite(f"Update of the parameters of {network}", [cases], tuple(ratios))


def inference(network: str, batch: int, pixels: int) -> Suite:
    """Forward passes of one image and of a batch."""
    cases, ratios = [], []
    for images in sorted({1, batch}):
        size = {"network": network, "batch": images, "pixels": pixels}
        labels = [f"{dtype}, batch {images}" for dtype in DTYPES]
        cases += [_case(label, "infer", dtype, **size) for label, dtype in zip(labels, DTYPES)]
        float32, float16, bfloat16 = labels
        ratios.append(Ratio(f"float16 emulated / {float32}", float16, float32))
        ratios.append(Ratio(f"{float32} / bfloat16", float32, bfloat16, larger_is_better=True))
    return Suite(f"Inference, {network}, {pixels} px", [cases], tuple(ratios))


def scaling(network: str, batch: int, pixels: int) -> Suite:
    """Training steps of growing batch, resolution and number of parameters."""
    base = {"network": network, "batch": batch, "pixels": pixels}
    batches = (max(1, batch // 4), max(1, batch // 2), batch, 2 * batch)
    points = [{**base, "batch": size} for size in batches]
    points += [{**base, "pixels": size} for size in (pixels // 2, pixels * 3 // 2, 2 * pixels)]
    points += [{**base, "network": f"resnet{depth}_v1"} for depth in (18, 34, 101)]
    groups = []
    for number, point in enumerate(points):
        if point not in points[:number]:
            size = "{network}, batch {batch}, {pixels} px".format(**point)
            groups.append([_case(f"{d}, {size}", "train", d, **point) for d in DTYPES])
    return Suite(f"Scaling of a training step around {network}", groups)


SUITES: Dict[str, Callable[[str, int, int], Suite]] = {
    "step": step,
    "overflow_check": overflow_check,
    "check_finite": check_finite,
    "optimizer": optimizer,
    "inference": inference,
    "scaling": scaling,
}


def build_suite(name: str, dtypes: Sequence[str], **size) -> Suite:
    """Return a suite for a network, batch and resolution, with the cases of some dtypes only."""
    suite = SUITES[name](**size)
    groups = [[case for case in group if case.dtype in dtypes] for group in suite.groups]
    return suite._replace(groups=[group for group in groups if group])
