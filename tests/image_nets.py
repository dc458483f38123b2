"""Random networks of images: graphs with branches, of what stands between convolutions.

`ImageNet(seed)` is always the same network. Each step is run on data before it is added, so that
every network runs in float32, with values that neither vanish nor explode.
"""

import math

import numpy as np

from tests.random_nets import Draw, grown

import mxnet as mx
from mxnet import gluon, nd
from mxnet.gluon import nn

MOST_VALUES = 30000  # of one tensor
SIZES = 0.05, 20.0  # root mean squares of a tensor


class ImageNet(gluon.HybridBlock):
    """Steps that each read some of the tensors before; the input is `x`."""

    def __init__(self, seed: int) -> None:
        super().__init__(prefix=f"images{seed}_")
        self.draw = Draw(seed)
        batch, channels = self.draw.integer(1, 4), self.draw.one_of(1, 3, self.draw.integer(1, 67))
        shape = (batch, channels, self.draw.integer(2, 12), self.draw.integer(2, 12))
        mx.random.seed(seed)
        self.x = nd.array(np.random.RandomState(seed).normal(size=shape))
        self.names, self.steps = [], []  # a step is a function and the tensors it reads
        self.made = [self.x]
        self._append("convolution", convolution, [0])
        wanted = self.draw.integer(5, 16)
        for _ in range(200):
            if len(self.steps) >= wanted:
                break
            maker = self.draw.one_of(*STEPS)
            last = len(self.made) - 1
            first = self.draw.one_of(last, last, last, self.draw.integer(0, last))
            others = [self.draw.integer(0, last) for _ in range(maker.inputs - 1)]
            self._append(maker.__name__, maker, [first, *others])
        last = len(self.made) - 1
        unread = set(range(1, last + 1)).difference(*(inputs for _, inputs in self.steps))
        self.results = sorted({*unread, self.draw.integer(1, last)})
        del self.made

    def hybrid_forward(self, F, x):
        made = [x]
        for function, inputs in self.steps:
            made.append(function(F, *(made[k] for k in inputs)))
        return [F.amp_cast(made[k], dtype="float32") for k in self.results]

    def _append(self, name, maker, inputs):
        arrays = [self.made[k] for k in inputs]
        if any(x.ndim != 4 for x in arrays):
            return
        make = lambda: maker(self.draw, *arrays)  # noqa: E731
        function, made = grown(self, make, arrays, MOST_VALUES, SIZES)
        if made is not None:
            self.steps.append((function, inputs))
            self.names.append(f"{name}{inputs}")
            self.made.append(made)


STEPS = []
NOTHING = (None, [])


def step(times=1, inputs=1):
    """Register a maker: (draw, arrays) to (function of F and tensors, blocks)."""

    def register(maker):
        maker.inputs = inputs
        STEPS.extend([maker] * times)
        return maker

    return register


@step(times=6)
def convolution(draw, x):
    channels = x.shape[1]
    groups = draw.one_of(1, 1, 1, math.gcd(channels, 4), channels)
    made = groups * draw.integer(1, max(1, 67 // groups))
    made = draw.one_of(made, channels)  # the same number, for residuals
    size = draw.one_of(1, 1, 3, 3, 5)
    conv = nn.Conv2D(
        made,
        size,
        strides=draw.one_of(1, 1, 1, 2),
        padding=draw.one_of(size // 2, size // 2, size // 2, 0),
        dilation=draw.one_of(1, 1, 1, 2),
        groups=groups,
        use_bias=draw.one_of(True, False),
        in_channels=channels,
    )
    return lambda F, h: conv(h), [conv]


@step(times=4)
def norm(draw, x):
    if x.size // x.shape[1] < 16:
        return NOTHING  # the norm of two values is their order
    norm = nn.BatchNorm(
        in_channels=x.shape[1],
        scale=draw.one_of(True, False),
        center=draw.one_of(True, False),
        momentum=draw.one_of(0.9, 0.5),
        epsilon=draw.one_of(1e-5, 1e-3),
        use_global_stats=draw.one_of(False, False, False, True),
    )
    return lambda F, h: norm(h), [norm]


@step(times=4)
def activation(draw, x):
    return draw.one_of(
        lambda F, h: F.relu(h),
        lambda F, h: F.Activation(h, act_type="relu"),
        lambda F, h: F.clip(h, 0, 6),
        lambda F, h: F.LeakyReLU(h, slope=0.1),
        lambda F, h: h * F.sigmoid(h),
        lambda F, h: F.tanh(h),
        lambda F, h: h * F.clip(h + 3, 0, 6) / 6,
        lambda F, h: F.hard_sigmoid(h),
        lambda F, h: F.elemwise_mul(h, F.relu(h)),
        lambda F, h: F.abs(h) * 0.5 - h,
        lambda F, h: 1 - F.square(F.Activation(h, act_type="sigmoid")),
        lambda F, h: F.Activation(h, act_type="softrelu"),
    ), []


@step(times=6, inputs=2)
def residual(draw, x, y):
    if x.shape != y.shape:
        return NOTHING
    return draw.one_of(
        lambda F, a, b: a + b,
        lambda F, a, b: F.relu(a + b),
        lambda F, a, b: F.broadcast_add(a, b),
        lambda F, a, b: F.clip(a - b, 0, 6),
        lambda F, a, b: F.add_n(a, b, a),
        lambda F, a, b: F.elemwise_mul(a, F.sigmoid(b)),
        lambda F, a, b: a + b * 0.125,
        lambda F, a, b: F.broadcast_maximum(a, b),
    ), []


@step(times=2)
def bottleneck(draw, x):
    """A residual with one or two norms before the sum."""
    channels = x.shape[1]
    if x.size // channels < 16:
        return NOTHING
    body = nn.HybridSequential()
    body.add(nn.Conv2D(channels, 3, padding=1, in_channels=channels))
    body.add(nn.BatchNorm(in_channels=channels))
    second = nn.BatchNorm(in_channels=channels) if draw.one_of(True, False) else None
    act = draw.one_of("relu", "clip", "none")

    def run(F, h):
        made = body(h) + (h if second is None else second(h))
        return {"relu": F.relu, "clip": lambda v: F.clip(v, 0, 6), "none": lambda v: v}[act](made)

    return run, [body] + ([second] if second else [])


@step(times=2)
def gate(draw, x):
    """Squeeze and excitation, of convolutions or of matrix products."""
    channels, hidden = x.shape[1], draw.integer(1, 20)
    kinds = draw.one_of("convolutions", "dense")
    if kinds == "dense":
        down, up = nn.Dense(hidden, in_units=channels), nn.Dense(channels, in_units=hidden)
    else:
        down = nn.Conv2D(hidden, 1, in_channels=channels)
        up = nn.Conv2D(channels, 1, in_channels=hidden)
    pooling = draw.one_of("global", "adaptive", "mean")
    end = draw.one_of(
        lambda F, s: F.sigmoid(s),
        lambda F, s: F.hard_sigmoid(s),
        lambda F, s: F.clip(s + 3, 0, 6) / 6,
    )

    def excite(F, h):
        if pooling == "global":
            s = F.Pooling(h, global_pool=True, pool_type="avg", kernel=(1, 1))
        elif pooling == "adaptive":
            s = F.contrib.AdaptiveAvgPooling2D(h, output_size=1)
        else:
            s = F.mean(h, axis=(2, 3), keepdims=True)
        s = end(F, up(F.relu(down(s))))
        return F.broadcast_mul(h, F.reshape(s, (0, 0, 1, 1)) if kinds == "dense" else s)

    return excite, [down, up]


@step(times=3)
def pooling(draw, x):
    attrs = {
        "kernel": (draw.integer(1, 3), draw.integer(1, 3)),
        "stride": (draw.integer(1, 2), draw.integer(1, 2)),
        "pad": draw.one_of((0, 0), (0, 0), (1, 1)),
        "pool_type": draw.one_of("max", "avg", "avg"),
        "count_include_pad": draw.one_of(True, False),
        "pooling_convention": draw.one_of("valid", "full"),
    }
    if attrs["pooling_convention"] == "full":  # oneDNN's gradient is not that of its result
        attrs["count_include_pad"] = False
    if draw.one_of(True, False, False):
        return lambda F, h: F.contrib.AdaptiveAvgPooling2D(h, output_size=(2, 3)), []
    if draw.one_of(True, False, False, False):
        kind = draw.one_of("max", "avg")
        return lambda F, h: F.Pooling(h, global_pool=True, pool_type=kind, kernel=(1, 1)), []
    if any(p >= k for p, k in zip(attrs["pad"], attrs["kernel"])):
        attrs["pad"] = (0, 0)
    return lambda F, h: F.Pooling(h, **attrs), []


@step(times=4, inputs=2)
def concatenation(draw, x, y):
    if x.shape[2:] != y.shape[2:]:
        return NOTHING
    count = draw.integer(2, 3)
    return lambda F, a, b: F.concat(*[a, b, a][:count], dim=1), []


@step()
def dropout(draw, x):
    axes = draw.one_of((), (2, 3))
    return lambda F, h: F.Dropout(h, p=0.25, axes=axes), []


@step()
def other(draw, x):
    """Operators that read plain arrays."""
    half = max(1, x.shape[1] // 2)
    return draw.one_of(
        lambda F, h: F.UpSampling(h, scale=2, sample_type="nearest"),
        lambda F, h: F.transpose(h, axes=(0, 1, 3, 2)),
        lambda F, h: F.slice_axis(h, axis=1, begin=0, end=half),
        lambda F, h: F.Pad(h, mode="constant", pad_width=(0, 0, 0, 0, 1, 1, 1, 0)),
        lambda F, h: F.broadcast_sub(h, F.mean(h, axis=1, keepdims=True)),
        lambda F, h: F.BlockGrad(h) + h,
    ), []
