"""Does an installation of mixed precision work on this device? See `selftest`.

A check looks at what an installation can break: the build of MXNet, numpy, the C++ kernels, and
what the device computes with them.
"""

import json
import time
from typing import Callable, List, NamedTuple, Optional

import numpy as np

from gluon_amp import kernels
from gluon_amp.base.messages import reason_of
from gluon_amp.casting.cast import cast
from gluon_amp.inspection.accumulation_dtype import PROBES, accumulation_dtype
from gluon_amp.inspection.values import paragraph
from gluon_amp.trainer import Trainer

import mxnet as mx
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn

BATCH, CLASSES = 16, 10
OVERFLOW = 2.0**40  # makes the gradient of the loss infinite in float16


class Check(NamedTuple):
    """One check."""

    name: str
    measure: Callable[[mx.Context], str]  # what it measures on a device, as text
    expected: str  # that text
    source: str = ""  # why it is expected
    required: bool = True  # whether another result is a failure, or only worth knowing


class Result(NamedTuple):
    """The outcome of one check."""

    name: str
    status: str  # 'ok', 'failed', or 'differs' where another result is no failure
    measured: str
    expected: str
    source: str
    seconds: float

    def __str__(self) -> str:
        text = f"{self.name}: {self.measured}"
        if self.measured != self.expected:
            source = f"; {self.source}" if self.source else ""
            text += f" (expected: {self.expected}{source})"
        return paragraph(text, f"{self.status:<8} ")


class Report(NamedTuple):
    """What `selftest` returns: the device, a result for each check, and the duration."""

    device: str
    results: List[Result]
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether no check failed."""
        return all(result.status != "failed" for result in self.results)

    @property
    def conclusion(self) -> str:
        """One sentence."""
        parts = []
        for status, verb in (("differs", "differ"), ("failed", "failed")):
            names = [result.name for result in self.results if result.status == status]
            if names:
                parts.append(f"{len(names)} {verb} ({'; '.join(names)})")
        where = f"on {self.device}, in {self.seconds:.0f} s"
        sentence = f"All {len(self.results)} checks are ok {where}."
        if parts:
            sentence = f"Of {len(self.results)} checks {where}, {' and '.join(parts)}."
        return paragraph(sentence)

    def to_json(self) -> str:
        """Return the report as a JSON text."""
        results = [result._asdict() for result in self.results]
        data = {"ok": self.ok, "device": self.device, "seconds": self.seconds, "checks": results}
        return json.dumps(data, indent=2)


def selftest(
    device: Optional[str] = None, on_result: Callable[[Result], None] = lambda result: None
) -> Report:
    """Check whether an installation computes in mixed precision on a device, in seconds.

    The device is 'gpu' or 'cpu', by default the GPU if MXNet sees one. `on_result` is called with
    the result of each check as soon as it has run. Raise `ValueError` for an unknown device, or a
    GPU where MXNet sees none.
    """
    gpus = mx.context.num_gpus()
    if device not in (None, "gpu", "cpu"):
        raise ValueError(f"selftest() got the device {device!r}, expected 'gpu' or 'cpu'.")
    if device == "gpu" and not gpus:
        raise ValueError("the self-test found no GPU that MXNet can use: see `doctor`.")
    ctx = mx.gpu(0) if device != "cpu" and gpus else mx.cpu(0)
    start = time.perf_counter()
    results: List[Result] = []
    for check in checks_of(ctx):
        results.append(_run(check, ctx))
        on_result(results[-1])
    return Report(str(ctx), results, time.perf_counter() - start)


def show_selftest(device: Optional[str] = None, as_json: bool = False) -> int:
    """Run the self-test, print its results, and return 1 if a check failed, else 0.

    Each result is printed as soon as there is one, or all of them as JSON.
    """
    if as_json:
        report = selftest(device)
        print(report.to_json())
    else:
        report = selftest(device, on_result=lambda result: print(result, flush=True))
        print(f"\n{report.conclusion}")
    return 0 if report.ok else 1


def _run(check: Check, ctx: mx.Context) -> Result:
    start = time.perf_counter()
    try:
        with ctx:
            measured = check.measure(ctx)
        agrees = measured == check.expected
        status = "ok" if agrees else "failed" if check.required else "differs"
    except Exception as error:  # one check that cannot run does not end the others
        status, measured = "failed", f"{type(error).__name__}: {reason_of(error)}"
    seconds = time.perf_counter() - start
    return Result(check.name, status, measured, check.expected, check.source, seconds)


# ------------------------------------------------------------------------------------ the checks


def checks_of(ctx: mx.Context) -> List[Check]:
    """Return the checks that a device can run, in their order."""
    on_gpu = ctx.device_type == "gpu"
    sums = {**dict.fromkeys(PROBES, "float32"), **({"batch_dot": "float16"} if on_gpu else {})}
    checks = [
        Check("MXNet is built with", features, "CUDNN" if on_gpu else "MKLDNN", required=False),
        Check("C++ kernels", in_use, "in use", "see `gluon-amp build`", required=False),
        Check("float32 to float16", rounding, "0 values differ", "numpy, IEEE 754"),
        Check("a product in float16", product, "as numpy, rounded once", "float32 sums"),
        Check("sums of products", accumulation, _in_words(sums), "docs/gpu.md", required=False),
        Check("a step, an overflow, a step", steps_and_a_skip, "1 skip, 0 arrays differ"),
    ]
    return [check for check in checks if not (on_gpu and check.measure is in_use)]


def features(ctx: mx.Context) -> str:
    """Return the library with which MXNet computes on a device, if it is built with it."""
    name = "CUDNN" if ctx.device_type == "gpu" else "MKLDNN"
    return name if mx.runtime.Features().is_enabled(name) else f"no {name}"


def in_use(ctx: mx.Context) -> str:
    """Build and load the C++ kernels, as a cast does."""
    kernels.prepare([ctx])
    return "in use" if kernels.available() else "not in use"


def random_array(ctx: mx.Context, *shape: int, seed: int = 0) -> nd.NDArray:
    """Return float32 values of a normal distribution, the same on every device."""
    return nd.array(np.random.RandomState(seed).normal(size=shape), ctx=ctx)


def rounding(ctx: mx.Context) -> str:
    """Cast all float16 values, the midpoints between them and their neighbors, to float16."""
    exact = np.arange(2**16, dtype="uint16").view("float16")
    exact = np.sort(exact[np.isfinite(exact)]).astype("float32")
    middle = (exact[:-1] + exact[1:]) / 2
    infinity = np.float32(np.inf)
    beside = [np.nextafter(middle, side * infinity, dtype="float32") for side in (-1, 1)]
    values = np.concatenate([exact, middle, *beside, [65519.0, 65520.0, np.inf, -np.inf, np.nan]])
    values = values.astype("float32")
    with np.errstate(over="ignore"):
        expected = values.astype("float16")
    cast_there = nd.array(values, ctx=ctx).astype("float16").asnumpy()
    same = (cast_there == expected) | (np.isnan(cast_there) & np.isnan(expected))
    return f"{int((~same).sum())} values differ"


def product(ctx: mx.Context) -> str:
    """Multiply float16 matrices in a cast layer, and compare with numpy in float64."""
    left, right = (random_array(ctx, 64, 64, seed=s).astype("float16") for s in (5, 6))
    layer = nn.Dense(64, in_units=64, use_bias=False)
    layer.initialize(ctx=ctx)
    cast(layer, "float16").weight.set_data(right)
    exact = left.asnumpy().astype("float64") @ right.asnumpy().astype("float64").T
    distance = np.abs(layer(left).asnumpy() - exact).max() / np.abs(exact).max()
    return "as numpy, rounded once" if distance <= 2**-11 else f"off by {distance:.1e}"


def accumulation(ctx: mx.Context) -> str:
    """Return the dtypes in which float16 products are added."""
    return _in_words(accumulation_dtype(ctx))


def _in_words(dtypes: dict) -> str:
    return ", ".join(f"{op} {dtype}" for op, dtype in dtypes.items())


def steps_and_a_skip(ctx: mx.Context) -> str:
    """Train a small net; the step that overflows is skipped, and leaves every bit as it was."""
    net = nn.HybridSequential()
    net.add(nn.Conv2D(8, 3, padding=1, in_channels=8), nn.BatchNorm(in_channels=8))
    net.add(nn.GlobalAvgPool2D(), nn.Dense(CLASSES, in_units=8))
    net.initialize(mx.init.Xavier(), ctx=ctx)
    cast(net, "float16")
    options = {"learning_rate": 0.05, "momentum": 0.9}
    trainer = Trainer(net.collect_params(), "sgd", options, kvstore=None, loss_scale=128.0)
    x, y = random_array(ctx, BATCH, 8, 6, 6, seed=1), random_array(ctx, BATCH, CLASSES, seed=2)

    def step(factor: float) -> bool:
        with autograd.record():
            loss = gluon.loss.L2Loss()(net(x), y) * factor
        trainer.backward(loss)
        return trainer.step(BATCH).applied

    def values() -> List[bytes]:
        weights = [parameter.data() for parameter in net.collect_params().values()]
        arrays = [*weights, *trainer.master_params().values()]
        return [array.asnumpy().tobytes() for array in arrays]

    first, before = step(1.0), values()
    second, after = step(OVERFLOW), values()
    skips = [first, second, step(1.0)].count(False)
    differing = sum(a != b for a, b in zip(before, after))
    return f"{skips} skip, {differing} arrays differ"
