"""What a device computes: rounding, accumulation, norms, updates, the check for overflow, sums.

Each function returns what it measured, as text.
"""

from typing import Callable, List, Union

import numpy as np

from gluon_amp.casting.cast import cast
from gluon_amp.inspection.accumulation_dtype import accumulation_dtype
from gluon_amp.inspection.selftest.nets import random_array
from gluon_amp.optimizer.arrays import all_finite
from gluon_amp.policy import Policy, cast_pass
from gluon_amp.trainer import Trainer

import mxnet as mx
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn

LARGE = 60000.0  # near the largest float16, 65504


def _float16_layer(
    ctx: Union[mx.Context, List[mx.Context]], units: int, weight: float = 0.0
) -> nn.Dense:
    layer = nn.Dense(units, in_units=units, use_bias=False)
    layer.initialize(mx.init.Constant(weight), ctx=ctx)
    return cast(layer, "float16")


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
    layer = _float16_layer(ctx, 64)
    layer.weight.set_data(right)
    exact = left.asnumpy().astype("float64") @ right.asnumpy().astype("float64").T
    distance = np.abs(layer(left).asnumpy() - exact).max() / np.abs(exact).max()
    return "as numpy, rounded once" if distance <= 2**-11 else f"off by {distance:.1e}"


def accumulates(op: str) -> Callable[[mx.Context], str]:
    """Return a check of the dtype in which an operator adds float16 products."""
    return lambda ctx: accumulation_dtype(ctx)[op]


def norms(ctx: mx.Context) -> str:
    """Normalize values whose squares and sums overflow in float16, and compare with a CPU."""
    x = random_array(mx.cpu(), 4, 8, 6, 6).clip(-1, 1) * LARGE
    wrong = []
    for norm in (nn.BatchNorm(), nn.LayerNorm(), nn.GroupNorm(2), nn.InstanceNorm()):
        net = nn.HybridSequential()
        net.add(nn.Conv2D(8, 1, use_bias=False, groups=8, in_channels=8), norm)
        net.initialize(mx.init.One(), ctx=mx.cpu())
        with autograd.train_mode():
            expected = net(x).asnumpy()
            net.collect_params().reset_ctx(ctx)
            got = cast(net, "float16")(x.as_in_context(ctx)).asnumpy()
        if not np.allclose(got, expected, atol=0.02):  # NaN is not close to anything
            wrong.append(type(norm).__name__)
    return ", ".join(wrong) or "none"


def long_softmax(ctx: mx.Context) -> str:
    """Return the sum of a softmax over 30000 classes after a float16 layer."""
    x = mx.sym.softmax(mx.sym.relu(mx.sym.var("x")))
    run = nd.CachedOp(cast_pass.apply(x, Policy.parse("float16"), {}))
    out = run(nd.ones((2, 30000), ctx=ctx, dtype="float16"))
    return f"{float(out.sum(axis=1).max().asscalar()):.3f}"


def overflow_check(ctx: mx.Context) -> str:
    """Look for one infinity or NaN in each of 300 arrays of two dtypes."""
    missed = 0
    arrays = [nd.ones((3, 5), ctx=ctx, dtype=("float16", "float32")[i % 2]) for i in range(300)]
    if not all_finite(arrays):
        return "a finite array is said to overflow"
    for position, value in ((0, np.inf), (1, -np.inf), (150, np.nan), (299, np.inf)):
        good, bad = arrays[position], np.ones((3, 5))
        bad[2, 4] = value
        arrays[position] = nd.array(bad, ctx=ctx, dtype=good.dtype)
        missed += all_finite(arrays)
        arrays[position] = good
    return f"{missed} missed"


def momentum_update(ctx: mx.Context) -> str:
    """Compare MXNet's fused update of a float16 weight and its float32 master with numpy."""
    weight, gradient = (random_array(ctx, 64, 8, seed=s).astype("float16") for s in (3, 4))
    master = weight.astype("float32")
    momentum = nd.zeros_like(master)
    w, m, g = master.asnumpy(), momentum.asnumpy(), gradient.asnumpy().astype("float32")
    for _ in range(3):
        nd.mp_sgd_mom_update(
            weight, gradient, momentum, master, out=weight, lr=0.5, momentum=0.5, rescale_grad=0.25
        )
        m = np.float32(0.5) * m - np.float32(0.5) * (np.float32(0.25) * g)
        w = w + m
    distance = np.abs(master.asnumpy() - w).max() / np.abs(w).max()
    rounded = (weight.asnumpy() == master.asnumpy().astype("float16")).all()
    exact = distance <= 2**-22 and rounded and master.dtype == np.float32
    return "as numpy" if exact else f"off by {distance:.1e}"


def kept_in_float32(ctx: mx.Context) -> str:
    """Run a softmax loss, whose exponentials and sums overflow in float16, on large logits."""
    logits = _float16_layer(ctx, 16, 100.0)(nd.ones((2, 16), ctx=ctx))
    loss = gluon.loss.SoftmaxCrossEntropyLoss()(logits, nd.zeros((2,), ctx=ctx))
    return f"{float(loss.mean().asscalar()):.3f}"


def sums_of_two_devices(ctx: mx.Context) -> str:
    """Train a step whose float16 gradients fit on each of two devices and overflow in their sum."""
    contexts = [mx.Context(ctx.device_type, number) for number in range(2)]
    net = _float16_layer(contexts, 1)
    options = {"learning_rate": 2**-10}
    trainer = Trainer(net.collect_params(), "sgd", options, kvstore="device", loss_scale=1)
    with autograd.record():
        losses = [net(nd.ones((1, 1), ctx=each)) * 40000 for each in contexts]
    trainer.backward(losses)
    applied = trainer.step(1).applied
    moved = -float(net.weight.data(contexts[1]).asnumpy()[0, 0]) * 2**10
    return f"{moved:g}" if applied else "skipped"
