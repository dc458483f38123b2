"""The laws of the public contract that a small net can check in seconds.

Each function trains on one device and returns what it measured, as text.
"""

import tempfile
from pathlib import Path

import numpy as np

from gluon_amp.casting.cast import cast
from gluon_amp.inspection.selftest.nets import (
    Training,
    dense_net,
    different,
    random_array,
    small_resnet,
)
from gluon_amp.trainer.loss_scale import DynamicLossScale

import mxnet as mx
from mxnet import autograd, nd
from mxnet.gluon import nn

OVERFLOW = 2.0**40  # makes the gradient of any loss here infinite in float16
IMAGES = {"make_net": lambda: small_resnet(8, blocks=1), "shape": (8, 6, 6)}


def scope(ctx: mx.Context) -> str:
    other, x = dense_net(8), random_array(ctx, 4, 8)
    other.initialize(ctx=ctx)
    before = [other(x).asnumpy()]
    Training(ctx).step()
    return different(before, [other(x).asnumpy()], "outputs")


def masters_are_float32(ctx: mx.Context) -> str:
    training = Training(ctx).steps(1)
    masters, weights = training.masters(), training.weights()
    wrong = sum(
        master.dtype != np.float32 or (master.astype(weights[name].dtype) != weights[name]).any()
        for name, master in masters.items()
    )
    return f"{wrong} wrong" if masters else "no masters"


def scale_invariance(ctx: mx.Context) -> str:
    scales = 2.0**10, 2.0**13
    return different(*(Training(ctx, loss_scale=scale).steps(5).values() for scale in scales))


def one_overflow(ctx: mx.Context) -> str:
    training = Training(ctx, loss_scale=DynamicLossScale(init_scale=256.0))
    reports = [training.step(factor) for factor in (1.0, OVERFLOW, 1.0)]
    skipped = sum(not report.applied for report in reports)
    return f"{skipped} skip, scale {reports[0].loss_scale:g} to {reports[-1].loss_scale:g}"


def skip_undoes(ctx: mx.Context) -> str:
    training = Training(ctx, optimizer="adam", **IMAGES).steps(1)
    before = training.values()
    if training.step(OVERFLOW).applied:
        return "the step was applied"
    return different(before, training.values())


def resume(ctx: mx.Context) -> str:
    whole, first, second = (
        Training(ctx, optimizer="adam", loss_scale=DynamicLossScale(growth_interval=3), **IMAGES)
        for _ in range(3)
    )
    whole.steps(4)
    first.steps(2)
    with tempfile.TemporaryDirectory() as folder:
        parameters, states = str(Path(folder, "parameters")), str(Path(folder, "states"))
        first.net.save_parameters(parameters)
        first.trainer.save_states(states)
        second.net.load_parameters(parameters, ctx=ctx)
        second.trainer.load_states(states)
    return different(whole.values(), second.steps(2).values())


def round_trip(ctx: mx.Context) -> str:
    training = Training(ctx).steps(2)
    masters = training.masters()
    cast(training.net, "float32")
    weights = training.weights()
    return different([weights[name] for name in masters], list(masters.values()))


def accumulation(ctx: mx.Context) -> str:
    training = Training(ctx)
    net, x, y = training.net, training.x, training.y
    gradients = []
    for parts in (1, 2):
        for parameter in training.parameters():
            parameter.grad_req = "add"
            parameter.zero_grad()
        size = len(x) // parts
        for part in range(parts):
            rows = slice(part * size, (part + 1) * size)
            with autograd.record():
                loss = ((net(x[rows]) - y[rows]) ** 2).sum()
            loss.backward()
        gradients.append([p.grad().asnumpy().astype("float64") for p in training.parameters()])
    distance = max(np.linalg.norm(a - b) / np.linalg.norm(a) for a, b in zip(*gradients))
    return "within 2 float16 roundings" if distance < 2**-10 else f"differ by {distance:.1e}"


class _Epsilon(nn.HybridBlock):
    def hybrid_forward(self, F, x):
        return F.log(F.relu(x) + 1e-12)


def constants(ctx: mx.Context) -> str:
    net = nn.HybridSequential()
    net.add(nn.Dense(4, in_units=4, use_bias=False), _Epsilon())
    net.initialize(mx.init.Zero(), ctx=ctx)
    smallest = float(cast(net, "float16")(nd.ones((2, 4), ctx=ctx)).min().asscalar())
    return f"{smallest:.1f}"


def arrays_of_numpy(ctx: mx.Context) -> str:
    with mx.util.np_shape(True), mx.util.np_array(True):
        net = nn.Dense(4, in_units=8)
        net.initialize(ctx=ctx)
        out = cast(net, "float16")(mx.np.ones((2, 8), ctx=ctx))
        return f"{type(out).__module__.split('.')[1]} {np.dtype(out.dtype)}"
