"""Random networks: any mixture of what Gluon offers, small, with odd shapes.

`RandomNet(seed)` is always the same network. Each step is run on data before it is added, so that
every network runs in float32, with values that neither vanish nor explode.
"""

import math

import numpy as np

import mxnet as mx
from mxnet import gluon, nd
from mxnet.gluon import nn

MOST_VALUES = 20000  # of one tensor
SIZES = 0.02, 50.0  # root mean squares of a tensor


class RandomNet(gluon.HybridBlock):
    """A chain of `steps`, each a function of (F, x); `shape` is that of its input."""

    def __init__(self, seed: int) -> None:
        super().__init__(prefix=f"net{seed}_")
        draw = Draw(seed)
        self.shape = draw.shape()
        self.names, self.steps = [], []
        # relative sizes of random changes to each step's result, and to its gradient alone
        self.rounding = self.gradient_rounding = 0.0
        mx.random.seed(seed)
        x = nd.array(np.random.RandomState(seed).normal(size=self.shape))
        self.x = x
        wanted = draw.integer(4, 10)
        for _ in range(200):
            if len(self.steps) == wanted:
                break
            x = self._try(draw, x)
        self._append("dense", lambda: _block(nn.Dense(draw.integer(2, 5)))(draw, x), x)

    def hybrid_forward(self, F, x):
        for step in self.steps:
            x = step(F, x)
            if self.rounding:
                x = x + x * _signs(F, x) * self.rounding
            if self.gradient_rounding:
                change = x * _signs(F, x) * self.gradient_rounding
                x = x + (change - F.BlockGrad(change))
        return x

    def _try(self, draw: "Draw", x):
        options = [step for step in STEPS if step.dims is None or x.ndim in step.dims]
        maker = options[draw.integer(0, len(options) - 1)]
        made = self._append(maker.__name__, lambda: maker(draw, x), x)
        return x if made is None else made

    def _append(self, name, make, x):
        """Add a step and return its output, or None where it cannot be."""
        step, made = grown(self, make, [x], MOST_VALUES, SIZES)
        if made is not None:
            self.steps.append(step)
            self.names.append(name)
        return made


def grown(net, make, arrays, most, sizes):
    """Add the blocks of a step to a net; return the step and its result, None where it cannot be.

    The result has to have at most so many values, whose root mean square has such a size.
    """
    with net.name_scope():
        step, blocks = make()
        if step is None:
            return None, None
        for block in blocks:
            block.initialize(mx.init.Xavier(magnitude=2.5))
    try:
        with mx.autograd.train_mode():
            made = step(nd, *arrays)
        values = made.asnumpy()
    except (mx.MXNetError, ValueError, AssertionError):
        return None, None  # a kernel larger than the image, or two shapes that do not fit
    size = float(np.sqrt(np.mean(values.astype("f8") ** 2))) if values.size else 0.0
    if not (0 < values.size <= most and sizes[0] <= size <= sizes[1]):
        return None, None
    for block in blocks:
        net.register_child(block)
    return step, made


def _signs(F, x):
    return F.BlockGrad(F.sign(F.random.uniform_like(x, low=-1, high=1)))


def _largest(F, x, axis):
    """A smooth maximum: max hands its gradient in full to all values that rounding made equal."""
    largest = F.BlockGrad(F.max(x, axis=axis, keepdims=True))
    powers = F.exp(F.broadcast_sub(x, largest))
    return largest + F.log(F.sum(powers, axis=axis, keepdims=True))


class Draw:
    """Random choices of a seed."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.RandomState(seed)

    def integer(self, low: int, high: int) -> int:
        return int(self.random.randint(low, high + 1))

    def one_of(self, *choices):
        return choices[self.random.randint(len(choices))]

    def shape(self) -> tuple:
        batch, channels = self.one_of(1, 2, 3, 4), self.integer(1, 17)
        dims = self.one_of(0, 1, 1, 2, 2, 2, 2, 3)
        return (batch, channels, *(self.integer(1, (0, 12, 9, 5)[dims]) for _ in range(dims)))


STEPS = []


def step(*dims, times=1):
    """Register a maker: (draw, x) to (function of F and x, blocks); None where x does not fit."""

    def register(maker):
        maker.dims = dims or None
        STEPS.extend([maker] * times)
        return maker

    return register


def _block(block):
    return lambda draw, x: (lambda F, h: block(h), [block])


NOTHING = (None, [])

# --------------------------------------------------------------------- products


@step(3, 4, 5, times=4)
def convolution(draw, x):
    dims = x.ndim - 2
    groups = draw.one_of(1, 1, 1, math.gcd(x.shape[1], 4), x.shape[1])
    made = groups * draw.integer(1, max(1, 17 // groups))
    conv = (nn.Conv1D, nn.Conv2D, nn.Conv3D)[dims - 1]
    size = tuple(draw.integer(1, 3) for _ in range(dims))
    return _block(
        conv(
            made,
            size,
            strides=draw.one_of(1, 1, 2, 3),
            padding=draw.one_of(0, 1, 1, 2),
            dilation=draw.one_of(1, 1, 2),
            groups=groups,
            use_bias=draw.one_of(True, False),
            in_channels=x.shape[1],
        )
    )(draw, x)


@step(3, 4)
def deconvolution(draw, x):
    deconv = (nn.Conv1DTranspose, nn.Conv2DTranspose)[x.ndim - 3]
    size, stride = draw.integer(1, 4), draw.integer(1, 3)
    return _block(
        deconv(
            draw.integer(1, 9),
            size,
            strides=stride,
            padding=draw.one_of(0, min(1, size - 1)),
            output_padding=draw.one_of(0, stride - 1),
            in_channels=x.shape[1],
        )
    )(draw, x)


@step(times=2)
def dense(draw, x):
    flatten = draw.one_of(True, False)
    read = int(np.prod(x.shape[1:])) if flatten else x.shape[-1]
    units = draw.integer(1, 17)
    bias = draw.one_of(True, False)
    return _block(nn.Dense(units, flatten=flatten, use_bias=bias, in_units=read))(draw, x)


@step(3, 4, 5)
def attention(draw, x):
    """Self-attention over the positions, some of them masked in one of the usual ways."""
    value = draw.one_of(-1e9, -1e18, -1e4, -65504.0, float("-inf"))
    kept = draw.integer(1, max(1, int(np.prod(x.shape[2:]))))
    way = draw.one_of("where", "add", "maximum", "twice", "clip")
    if way != "where" and value == float("-inf"):
        value = -1e9

    def attend(F, h):
        h = F.reshape(h, (0, 0, -1))
        scores = F.batch_dot(h, h, transpose_a=True) * 0.25
        counts = F.contrib.arange_like(scores, axis=2) < kept
        if way == "where":
            counts = F.broadcast_mul(F.ones_like(scores), F.reshape(counts, (1, 1, -1)))
            scores = F.where(counts, scores, F.ones_like(scores) * value)
        elif way == "maximum":
            scores = F.broadcast_minimum(scores, F.reshape(counts * 2 - 1, (1, 1, -1)) * -value)
        elif way == "clip":
            masked = scores + F.clip(F.zeros_like(scores) - 1e30, value, -value)
            scores = F.broadcast_mul(scores, F.reshape(counts, (1, 1, -1))) + F.broadcast_mul(
                masked, F.reshape(1 - counts, (1, 1, -1))
            )
        else:
            for _ in range(1 + (way == "twice")):
                scores = F.broadcast_add(scores, F.reshape((1 - counts) * value, (1, 1, -1)))
        weights = F.softmax(F.reshape(scores, (0, 0, -1)), axis=-1)
        return F.batch_dot(h, weights, transpose_b=True)

    return attend, []


@step(3, 4, 5)
def squeeze_and_excite(draw, x):
    hidden, channels = draw.integer(1, 8), x.shape[1]
    down, up = nn.Dense(hidden, in_units=channels), nn.Dense(channels, in_units=hidden)
    gate = draw.one_of("sigmoid", "hard", "clip")
    tail = (1,) * (x.ndim - 2)
    whole = draw.one_of(True, False)

    def excite(F, h):
        if whole:
            kernel = () if draw_kernel else tail
            pooled = F.Pooling(h, global_pool=True, pool_type="avg", kernel=kernel)
        else:
            pooled = F.mean(h, axis=tuple(range(2, x.ndim)), keepdims=True)
        s = up(F.relu(down(pooled)))
        s = {
            "sigmoid": lambda: F.sigmoid(s),
            "hard": lambda: F.hard_sigmoid(s),
            "clip": lambda: F.clip(s + 3, 0, 6) / 6,
        }[gate]()
        return F.broadcast_mul(h, F.reshape(s, (0, 0, *tail)))

    draw_kernel = draw.one_of(True, False)
    return excite, [down, up]


# --------------------------------------------------------------------- norms


@step(2, 3, 4, 5, times=2)
def batch_norm(draw, x):
    if x.size // x.shape[1] < 16:
        return NOTHING  # the norm of two values is their order
    axis = draw.one_of(1, 1, 1, -1) if x.size // x.shape[-1] >= 16 else 1
    scale = draw.one_of(True, False)
    return _block(nn.BatchNorm(axis=axis, scale=scale, in_channels=x.shape[axis]))(draw, x)


@step()
def layer_norm(draw, x):
    if x.shape[-1] < 6:
        return NOTHING
    return _block(nn.LayerNorm(in_channels=x.shape[-1], epsilon=draw.one_of(1e-5, 1e-3)))(draw, x)


@step(3, 4, 5)
def group_norm(draw, x):
    groups = math.gcd(x.shape[1], draw.one_of(1, 2, 4))
    if x.size // x.shape[0] // groups < 8:
        return NOTHING
    return _block(nn.GroupNorm(num_groups=groups))(draw, x)


@step(3, 4, 5)
def instance_norm(draw, x):
    if np.prod(x.shape[2:]) < 8:
        return NOTHING
    return _block(nn.InstanceNorm(in_channels=x.shape[1]))(draw, x)


@step()
def l2_norm(draw, x):
    if x.shape[1] < 4:
        return NOTHING
    mode = draw.one_of("instance", "channel") if x.ndim > 2 else "instance"
    # positive values: at a vector of zeros the slope is 1e5, and leaves the range of float16
    return lambda F, h: F.L2Normalization(F.sigmoid(h), mode=mode, eps=1e-10) * 3, []


@step()
def handmade_norm(draw, x):
    if x.shape[-1] < 6:
        return NOTHING
    epsilon = draw.one_of(1e-6, 1e-5)

    def norm(F, h):
        h = F.broadcast_minus(h, F.mean(h, axis=-1, keepdims=True))
        return F.broadcast_div(h, F.sqrt(F.mean(h * h, axis=-1, keepdims=True) + epsilon))

    return norm, []


# --------------------------------------------------------------------- pooling


@step(3, 4, 5, times=3)
def pooling(draw, x):
    dims = x.ndim - 2
    kernel = tuple(draw.integer(1, 3) for _ in range(dims))
    stride = tuple(draw.integer(1, k) for k in kernel)
    attrs = {
        "kernel": kernel,
        "stride": stride,
        "pad": tuple(draw.integer(0, k // 2) for k in kernel),
        "pool_type": draw.one_of("max", "avg", "avg", "sum", "lp"),
        "pooling_convention": draw.one_of("valid", "full"),
        "count_include_pad": draw.one_of(True, False),
        "p_value": 2,
    }
    if attrs["pool_type"] == "lp":
        # the root of a sum of squares has a steep slope at 0
        return lambda F, h: F.Pooling(F.sigmoid(h), **attrs), []
    return lambda F, h: F.Pooling(h, **attrs), []


@step(3, 4, 5)
def global_pooling(draw, x):
    attrs = {"global_pool": True, "pool_type": draw.one_of("max", "avg", "avg", "sum")}
    if draw.one_of(True, False):
        attrs["kernel"] = (draw.integer(1, 3),) * (x.ndim - 2)
    return lambda F, h: F.Pooling(h, **attrs), []


@step(4)
def resizing(draw, x):
    if draw.one_of(True, False):
        return lambda F, h: F.UpSampling(h, scale=2, sample_type="nearest"), []
    size = draw.integer(1, 3)
    return lambda F, h: F.contrib.AdaptiveAvgPooling2D(h, output_size=size), []


# --------------------------------------------------------------------- elementwise


@step(times=4)
def activation(draw, x):
    kind = draw.one_of(
        *("relu", "sigmoid", "tanh", "softrelu", "softsign"),
        # not "prelu": its slope's gradient is wrong in stock MXNet where it is computed in place
        *("leaky", "elu", "selu", "gelu"),
        *("swish", "hard_swish", "hard_sigmoid", "erf", "relu6"),
    )
    if kind in ("leaky", "elu", "selu", "gelu"):
        return lambda F, h: F.LeakyReLU(h, act_type=kind), []
    functions = {
        "swish": lambda F, h: h * F.sigmoid(h),
        "hard_swish": lambda F, h: h * F.clip(h + 3, 0, 6) / 6,
        "hard_sigmoid": lambda F, h: F.hard_sigmoid(h, alpha=0.2, beta=0.5),
        "erf": lambda F, h: F.erf(h),
        "relu6": lambda F, h: F.clip(h, 0, 6),
    }
    if kind in functions:
        return functions[kind], []
    return lambda F, h: F.Activation(h, act_type=kind), []


@step(times=3)
def constant(draw, x):
    """Constants that float16 cannot hold, in functions that are smooth."""
    big, tiny = draw.one_of(1e5, 1e9, 3e38), draw.one_of(1e-5, 1e-7, 1e-12)
    function = draw.one_of(
        lambda F, h: F.clip(h, -big, big),
        lambda F, h: h + tiny,
        lambda F, h: h * tiny / tiny,
        lambda F, h: F.reshape(h * 1e6, (0, -1)) / 1e6,
        lambda F, h: F.log(F.clip(F.sigmoid(h * 4), tiny, 1)),
        lambda F, h: F.log(F.maximum(F.sigmoid(h), tiny)),
        lambda F, h: h / (F.sigmoid(F.clip(h, -4, 4)) + tiny),
        lambda F, h: F.log(F.exp(-F.abs(h)) + tiny),
        lambda F, h: F.minimum(F.maximum(h, -big), big),
        lambda F, h: F.smooth_l1(h + 1, scalar=1.0),
    )
    return function, []


@step()
def two_branches(draw, x):
    """The same tensor twice, through different operators, joined again."""
    left = draw.one_of(
        lambda F, h: F.Activation(h, act_type="tanh"),
        # reshaped into the plain layout: of 8 or 16 channels that a convolution keeps together,
        # stock MXNet's softmax over the last axis crashes
        lambda F, h: F.softmax(F.reshape(h, x.shape), axis=-1),
        lambda F, h: h * 0.5 - 0.25,
        lambda F, h: F.relu(h),
    )
    join = draw.one_of(
        lambda F, a, b: a + b,
        lambda F, a, b: a * b,
        lambda F, a, b: F.concat(a, b, dim=1),
        lambda F, a, b: F.concat(a, b, b, dim=0),
        lambda F, a, b: F.stack(a, b, axis=1),
        lambda F, a, b: F.add_n(a, b, a),
        lambda F, a, b: F.broadcast_maximum(a, b),
    )
    return lambda F, h: join(F, left(F, h), h), []


@step(times=2)
def broadcast(draw, x):
    """The tensor and a smaller one computed from it, of another shape."""
    axis = draw.integer(1, x.ndim - 1)
    smaller = draw.one_of(
        lambda F, h: F.slice_axis(h, axis=axis, begin=0, end=1),
        lambda F, h: F.mean(h, axis=axis, keepdims=True),
        lambda F, h: _largest(F, h, axis),
        lambda F, h: F.sum(h, axis=axis, keepdims=True) * 0.1,
    )
    join = draw.one_of("add", "sub", "mul", "maximum", "minimum")
    return lambda F, h: getattr(F, f"broadcast_{join}")(h, smaller(F, h)), []


@step(3, 4, 5)
def sequence_mask(draw, x):
    """Positions of the last axis beyond a length are masked, before a softmax or a maximum."""
    value = draw.one_of(-1e9, -1e18, -1e4, 0.0)
    lengths = [draw.integer(1, x.shape[-1]) for _ in range(x.shape[0])]
    reduce = draw.one_of("softmax", "max") if value else "all"

    def masked(F, h):
        h = F.reshape(h, (0, -3, 0)) if x.ndim > 3 else h
        h = F.reshape(F.transpose(h, axes=(2, 0, 1)), (0, 0, -1)) if x.ndim < 5 else h
        if x.ndim == 5:
            return F.relu(h)
        counts = F.concat(*(F.full((1,), n) for n in lengths), dim=0)
        h = F.SequenceMask(h, counts, use_sequence_length=True, value=value)
        if reduce == "softmax":
            return F.transpose(F.softmax(h, axis=0), axes=(1, 2, 0)) * x.shape[-1]
        if reduce == "max":
            return F.squeeze(_largest(F, h, 0), axis=0)
        return F.transpose(h, axes=(1, 2, 0))

    return masked, []


# --------------------------------------------------------------------- moving values


@step(4, 5)
def padding(draw, x):
    # a reflection needs two values
    mirror = "reflect" if min(x.shape[2:]) > 1 else "edge"
    mode = draw.one_of("constant", "constant", "edge", mirror)
    value = draw.one_of(0.0, 1.0, 1e-9, -1e9)
    width = (0, 0, 0, 0, *[1] * (2 * (x.ndim - 2)))
    if mode == "constant" and value == -1e9:
        kernel = (3,) * (x.ndim - 2)
        return lambda F, h: F.Pooling(
            F.Pad(h, mode=mode, pad_width=width, constant_value=value), kernel=kernel
        ), []
    return lambda F, h: F.Pad(h, mode=mode, pad_width=width, constant_value=value), []


@step(3, 4, 5)
def moving(draw, x):
    return draw.one_of(
        lambda F, h: F.flatten(h),
        lambda F, h: F.reshape(h, (0, 0, -1)),
        lambda F, h: F.reshape(h, (0, -1)),
        lambda F, h: F.swapaxes(h, 1, 2),
        lambda F, h: F.flip(h, axis=1),
        lambda F, h: F.slice_axis(h, axis=1, begin=0, end=max(1, x.shape[1] // 2)),
        lambda F, h: F.expand_dims(F.reshape(h, (0, 0, -1)), axis=2),
        lambda F, h: F.repeat(h, repeats=2, axis=2),
        lambda F, h: F.tile(h, reps=(1, 2) + (1,) * (x.ndim - 2)),
    ), []


@step(2)
def unflatten(draw, x):
    if x.shape[1] % 2:
        return NOTHING
    return lambda F, h: F.reshape(h, (0, -4, -1, 2)), []
