"""The blocked layout in whole graphs: compared with the same networks without it."""

from collections import Counter

import numpy as np
import pytest

import gluon_amp as amp
from experiments.benchmarks import profile
from experiments.benchmarks.suites import Case
from gluon_amp.base import bfloat16, hardware
from gluon_amp.casting import binding
from gluon_amp.graph import own_operators as own
from gluon_amp.graph import to_json
from gluon_amp.lowering import blocked
from tests.lowering import printed
from tests.marks import needs_bfloat16, needs_layout

import mxnet as mx
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn
from mxnet.gluon.model_zoo import vision

pytestmark = [needs_layout, pytest.mark.cpu_kind]

HAS_AVX512 = hardware.onednn_flags() >= hardware.AVX512_FLAGS
EMULATED = "emulated bfloat16"
POLICIES = ["fused_float32", "float16", EMULATED]
POLICIES = [*POLICIES, "bfloat16"] if bfloat16.is_native() else POLICIES
# relative distances of results with and without the layout, as roots of mean squares
TOLERANCE = {"fused_float32": 2e-6, "float16": 2e-3, EMULATED: 2e-2, "bfloat16": 2e-2}
PLAIN = ("BatchNorm", "Activation", "Convolution", "_gluon_amp_convolution")


class Net(gluon.HybridBlock):
    """`function(net, F, x, ...)` with attributes that the functions `blocks` return."""

    def __init__(self, function, **blocks):
        super().__init__(prefix="net_")
        self.function = function
        with self.name_scope():
            for name, make in blocks.items():
                setattr(self, name, make())

    def hybrid_forward(self, F, *inputs):
        return self.function(self, F, *inputs)


def conv(channels=6, kernel=3, **options):
    # the gradient of a bias before a norm is zero but for rounding
    options = {"padding": kernel // 2, "use_bias": False, **options}
    return lambda: nn.Conv2D(channels, kernel, **options)


def residual(act, norms=1):
    """A residual block with one or two norms before the sum."""

    def run(net, F, x):
        h = net.first(x)
        other = net.other_norm(h) if norms == 2 else h
        return net.last(act(F, net.norm(net.second(h)) + other))

    blocks = {"first": conv(), "second": conv(), "last": conv(5, 1), "norm": nn.BatchNorm}
    return run, {**blocks, **({"other_norm": nn.BatchNorm} if norms == 2 else {})}


def between(function, channels=6, **blocks):
    """A function of images between two convolutions."""

    def run(net, F, x):
        return net.last(function(net, F, net.first(x)))

    return run, {"first": conv(channels), "last": conv(5), **blocks}


def excite(net, F, h):
    s = F.Pooling(h, global_pool=True, pool_type="avg", kernel=(1, 1))
    return F.broadcast_mul(h, F.sigmoid(net.up(F.relu(net.down(s)))))


def excite_dense(net, F, h):
    s = F.sigmoid(net.up(F.relu(net.down(F.contrib.AdaptiveAvgPooling2D(h, output_size=1)))))
    return F.broadcast_mul(h, F.reshape(s, (0, 0, 1, 1)))


def shuffle(F, h):
    """Mix the channels of three groups, as ShuffleNet does."""
    h = F.swapaxes(F.reshape(h, (0, -4, 3, -1, -2)), 1, 2)
    return F.reshape(h, (0, -3, -2))


def hard_swish(F, h):
    return h * relu6(F, h + 3) / 6


class NormWithMean(nn.BatchNorm):
    """A BatchNorm whose mean is read, too."""

    def hybrid_forward(self, F, x, gamma, beta, running_mean, running_var):
        parameters = (gamma, beta, running_mean, running_var)
        h, mean, _ = F.BatchNorm(x, *parameters, output_mean_var=True, **self._kwargs)
        return F.broadcast_add(h, F.reshape(mean, (1, -1, 1, 1)))


def relu6(F, h):
    return F.clip(h, 0, 6)


CASES = {
    "conv, norm, relu": between(lambda net, F, h: F.relu(net.norm(h)), norm=nn.BatchNorm),
    "conv, norm alone": between(lambda net, F, h: net.norm(h), norm=nn.BatchNorm),
    "norm with global statistics": between(
        lambda net, F, h: F.relu(net.norm(h)), norm=lambda: nn.BatchNorm(use_global_stats=True)
    ),
    "norm of another axis": between(
        lambda net, F, h: F.relu(net.norm(h)), norm=lambda: nn.BatchNorm(axis=2)
    ),
    "residual, one norm": residual(lambda F, h: F.relu(h)),
    "residual, two norms": residual(lambda F, h: F.relu(h), norms=2),
    "hard-swish, gate": between(
        lambda net, F, h: excite(net, F, hard_swish(F, net.norm(h))),
        norm=nn.BatchNorm,
        down=conv(3, 1),
        up=conv(6, 1),
    ),
    "hard-swish, concat, pooling": between(
        lambda net, F, h: F.Pooling(F.concat(h * 0.3, hard_swish(F, h)), kernel=(2, 2))
    ),
    "gate of convolutions": between(excite, down=conv(3, 1), up=conv(6, 1)),
    "gate of matrix products": between(
        excite_dense, down=lambda: nn.Dense(3), up=lambda: nn.Dense(6)
    ),
    "max pooling": between(lambda net, F, h: F.Pooling(h, kernel=(3, 3), stride=(2, 2))),
    "average pooling, full": between(
        lambda net, F, h: F.Pooling(
            h,
            kernel=(2, 3),
            stride=(2, 2),
            pool_type="avg",
            pooling_convention="full",
            count_include_pad=False,  # oneDNN's gradient of the other is not that of its result
        )
    ),
    "concat": between(lambda net, F, h: F.concat(h, net.side(h), F.relu(h), dim=1), side=conv(7)),
    "fork": between(
        lambda net, F, h: net.a(h) + net.b(h) * F.sigmoid(h), a=conv(use_bias=True), b=conv(6, 1)
    ),
    "upsampling": between(lambda net, F, h: F.UpSampling(h, scale=2, sample_type="nearest")),
    "deconvolution": between(
        lambda net, F, h: F.concat(h, net.up(net.down(h)), dim=1),
        down=conv(9, 3, strides=2),
        up=lambda: nn.Conv2DTranspose(6, 3, strides=2, padding=1),
    ),
    "deconvolutions alone": (
        lambda net, F, x: F.tanh(net.last(F.relu(net.norm(net.first(x))))),
        {
            "first": lambda: nn.Conv2DTranspose(20, 4, use_bias=False),
            "last": lambda: nn.Conv2DTranspose(3, 3, 2, 1, output_padding=1),
            "norm": nn.BatchNorm,
        },
    ),
    "grouped": between(
        lambda net, F, h: net.deep(F.relu(net.grouped(h))),
        grouped=conv(12, 3, groups=3, use_bias=True),
        deep=conv(12, 5, groups=12),
    ),
    "grouped, more channels": between(
        lambda net, F, h: net.narrow(F.relu(net.more(h))),
        more=conv(12, groups=6),
        narrow=conv(7, 1),
    ),
    "grouped, shuffled": between(
        lambda net, F, h: net.deep(shuffle(F, F.relu(net.norm(net.grouped(h))))),
        channels=72,
        grouped=conv(72, 1, groups=3),
        norm=nn.BatchNorm,
        deep=conv(72, 3, groups=72),
    ),
    "grouped, plain data": (
        lambda net, F, x: net.last(F.relu(net.first(x))),
        {"first": conv(6, 3, groups=2, use_bias=True), "last": conv(5)},
    ),
    "float32 values with several readers": between(
        lambda net, F, h: net.a(F.exp(-F.abs(h))) + net.b(F.exp(-F.abs(h)) * 0.5),
        a=conv(),
        b=conv(),
    ),
    "a float32 value that is also read plain": between(
        lambda net, F, h: F.broadcast_add(
            net.a(s := F.broadcast_add(n := net.norm(h), n)), F.mean(s, axis=1, keepdims=True)
        ),
        norm=nn.BatchNorm,
        a=conv(),
    ),
    "shared weight": between(lambda net, F, h: net.twice(F.relu(net.twice(h))), twice=conv()),
    "long chain of float32 sums": between(
        lambda net, F, h: [h := F.broadcast_add(h, net.a(h) * 0.25) for _ in range(8)][-1],
        a=conv(),
    ),
    "sum of ten": between(
        lambda net, F, h: F.add_n(*(net.a(h * (k / 10)) for k in range(10))), a=conv()
    ),
    "twenty hard sigmoids": between(
        lambda net, F, h: [h := F.hard_sigmoid(h) for _ in range(20)][-1] + h
    ),
    "norm whose statistics are read": between(lambda net, F, h: net.norm(h), norm=NormWithMean),
}


def run(case, policy, layout, monkeypatch, train=True, shape=(3, 4, 7, 9), grad_req="write"):
    """Return all results of a network: outputs, gradients and running statistics."""
    function, blocks = case
    mx.random.seed(1)
    np.random.seed(1)
    net = Net(function, **blocks)
    net.initialize(mx.init.Xavier(magnitude=2.5))
    x = nd.array(np.random.RandomState(0).normal(size=shape))
    with autograd.pause():
        net(x)  # in float32, which determines the shapes
    with monkeypatch.context() as patch:
        if not layout:
            patch.setattr(blocked, "available", lambda: False)
        net.hybridize()
        cast(net, policy, patch)
        params = {name: p for name, p in net.collect_params().items() if p.grad_req != "null"}
        for param in params.values():
            param.grad_req = grad_req
        x.attach_grad(grad_req)
        if not train:
            return {"output": net(x).asnumpy()}
        for _ in range(2):
            with autograd.record():
                out = net(x)
            heads = np.random.RandomState(2).uniform(-1, 1, out.shape)
            out.backward(nd.array(heads))
    results = {"output": out.asnumpy(), "input": x.grad.asnumpy()}
    for name, param in net.collect_params().items():
        results[name] = (param.grad() if name in params else param.data()).asnumpy()
    return results


def cast(net, policy, monkeypatch):
    if policy == EMULATED:
        monkeypatch.setenv(bfloat16.VARIABLE, "emulated")
    amp.cast(net, policy.split()[-1])


def distances(actual, expected):
    """Return the distance of each result; what is nearly zero is compared with larger ones."""
    largest = max(_size(values) for values in expected.values())
    return {
        name: _size(actual[name].astype("f8") - values) / max(_size(values), 0.1 * largest)
        for name, values in expected.items()
    }


def _size(values):
    return np.sqrt(np.mean(values.astype("f8") ** 2))


def assert_alike(case, policy, monkeypatch, **options):
    """Compare a network with and without the layout.

    In bfloat16, values that are not rounded between two operators change the sign of some that
    reach a relu. So the layout may be twice as far from the results without it as these are from
    float32. With all channels side by side, it is that of bfloat16 on a CPU with AMX.
    """
    expected = run(case, policy, False, monkeypatch, **options)
    allowed = distances(expected, run(case, "float32", False, monkeypatch, **options))
    for all_channels in (False, True):
        with monkeypatch.context() as patch:
            if all_channels:
                patch.setattr(blocked, "lanes_for", lambda dtype: 0)
            actual = run(case, policy, True, monkeypatch, **options)
        far = {
            name: (d, allowed[name])
            for name, d in distances(actual, expected).items()
            if not d <= TOLERANCE[policy] + 2 * allowed[name]
        }
        assert far == {}, (policy, all_channels)


@pytest.mark.parametrize("name", CASES)
def test_the_layout_changes_no_result(name, monkeypatch):
    for policy in POLICIES:
        assert_alike(CASES[name], policy, monkeypatch)


@pytest.mark.parametrize(
    "name", ["residual, two norms", "fork", "gate of convolutions", "grouped, plain data"]
)
def test_gradients_are_added(name, monkeypatch):
    """Two passes give twice the gradients of one, but for the running statistics."""
    for policy in POLICIES:
        once = run(CASES[name], policy, True, monkeypatch)
        added = run(CASES[name], policy, True, monkeypatch, grad_req="add")
        names = [n for n in once if "running" not in n and n != "output"]
        far = distances({n: added[n] for n in names}, {n: 2 * once[n] for n in names})
        assert {n: d for n, d in far.items() if not d <= TOLERANCE[policy]} == {}


@pytest.mark.parametrize("name", ["residual, two norms", "max pooling", "concat"])
def test_inference(name, monkeypatch):
    for policy in POLICIES:
        assert_alike(CASES[name], policy, monkeypatch, train=False)


def test_images_of_another_batch_are_broadcast(monkeypatch):
    """A gate of one image for all: the layout's operators have no such broadcast."""

    def gate(net, F, x):
        one = F.slice_axis(x, axis=0, begin=0, end=1)
        pooled = F.Pooling(net.side(one), global_pool=True, pool_type="avg", kernel=(1, 1))
        return net.last(F.broadcast_mul(net.first(x), pooled))

    case = gate, {"first": conv(), "side": conv(), "last": conv(5)}
    for policy in POLICIES:
        assert_alike(case, policy, monkeypatch)


@pytest.mark.parametrize("policy", POLICIES)
def test_one_network_and_many_sizes(policy, monkeypatch):
    function, blocks = CASES["residual, two norms"]
    net = Net(function, **blocks)
    net.initialize(mx.init.Xavier())
    net(nd.zeros((1, 4, 5, 5)))
    net.hybridize()
    cast(net, policy, monkeypatch)
    inputs = [nd.random.normal(shape=(n, 4, 3 + n, 9 - n)) for n in (1, 2, 5, 1)]
    expected = [net(x).asnumpy() for x in inputs]
    for x, values in zip(inputs, expected):
        np.testing.assert_array_equal(net(x).asnumpy(), values)


# ----------------------------------------------------------------------------------- the graphs


def lowered_ops(*args):
    """Return how often each operator is in the lowered graph of a network's inference."""
    return Counter(node["op"] for node in lowered_nodes(*args))


def lowered_nodes(net, policy, shape, monkeypatch):
    """Return the nodes of the lowered graph of a network's inference."""
    graphs = []

    def lower(*args):
        graphs.append(original(*args))
        return graphs[-1]

    original = binding.lower
    monkeypatch.setattr(binding, "lower", lower)
    net.initialize()
    net.hybridize()
    cast(net, policy, monkeypatch)
    net(nd.zeros(shape)).wait_to_read()
    return to_json(graphs[-1])["nodes"]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", ["resnet18_v1", "resnet18_v2", "mobilenetv2_0.25"])
def test_networks_are_blocked_from_the_first_convolution_to_the_head(name, policy, monkeypatch):
    ops = lowered_ops(vision.get_model(name), policy, (1, 3, 32, 32), monkeypatch)
    assert {op: ops[op] for op in PLAIN if ops[op]} in ({}, {"BatchNorm": 1})  # of the input
    assert ops[own.BLOCK] <= 1
    assert ops[own.UNBLOCK] <= 1


@pytest.mark.parametrize("policy", POLICIES)
def test_operators_without_attributes(policy, monkeypatch):
    """MXNet leaves attributes out of a graph that have their default values."""
    h = mx.sym.Convolution(mx.sym.var("data"), name="c", kernel=(1, 1), num_filter=4)
    h = mx.sym.BatchNorm(h, name="norm")
    h = mx.sym.contrib.AdaptiveAvgPooling2D(mx.sym.concat(h, h))
    net = gluon.SymbolBlock(mx.sym.Convolution(h, kernel=(1, 1), num_filter=2), mx.sym.var("data"))
    net.initialize()
    expected = net(nd.ones((2, 3, 4, 4))).asnumpy()
    cast(net, policy, monkeypatch)
    actual = net(nd.ones((2, 3, 4, 4))).asnumpy()
    np.testing.assert_allclose(actual, expected, rtol=2e-2, atol=1e-3)


# Case, policy, and how often operators are in its graph
COUNTS = [
    # a norm's running statistics would be updated twice
    ("a float32 value that is also read plain", POLICIES[-1], {own.NORM: 1}),
    ("fork", POLICIES[-1], {own.FORK: 1}),
    # a float16 weight is widened by the operator that packs it, and never as a whole
    ("gate of matrix products", "float16", {own.DENSE: 2, "_gluon_amp_widen": 0}),
    ("gate of matrix products", "fused_float32", {own.DENSE: 2}),
    # with AVX512, oneDNN is faster than our operator for 3×3 of float32 values, not for 5×5
    ("grouped, shuffled", "fused_float32", {own.DEPTHWISE: 0 if HAS_AVX512 else 1}),
    ("grouped, shuffled", "float16", {own.DEPTHWISE: 0 if HAS_AVX512 else 1}),
    ("grouped, shuffled", EMULATED, {own.DEPTHWISE: 1}),
    ("grouped", "fused_float32", {own.DEPTHWISE: 2}),
]


@pytest.mark.parametrize("name, policy, counts", COUNTS)
def test_how_often_an_operator_is_in_a_graph(name, policy, counts, monkeypatch):
    function, blocks = CASES[name]
    ops = lowered_ops(Net(function, **blocks), policy, (2, 4, 5, 5), monkeypatch)
    assert {op: ops[op] for op in counts} == counts


def test_a_relu_rounds_for_the_convolution_that_it_alone_reads(monkeypatch):
    """Both orders of rounding and relu give the same bits; other readers need rounded values."""
    cases = {
        "relu": (lambda F, h: F.relu(h), "True"),
        "negative slope": (lambda F, h: F.LeakyReLU(h, slope=0.3), "False"),
        "sum behind": (lambda F, h: F.relu(h) + h, "False"),
        "program goes on": (lambda F, h: F.relu(h) * 3, "False"),
        "pooled beside": (lambda F, h: F.concat(F.relu(h), F.Pooling(h, kernel=(1, 1))), "False"),
    }
    for name, (act, expected) in cases.items():
        case = between(lambda net, F, h, act=act: act(F, h), channels=16)
        assert rounded_by_reader(case, monkeypatch)["first"] == expected, name
    values = run(between(lambda net, F, h: F.relu(h)), "float16", True, monkeypatch)
    monkeypatch.setattr(blocked._Writing, "_is_rounded_by_reader", lambda self, i: False)
    others = run(between(lambda net, F, h: F.relu(h)), "float16", True, monkeypatch)
    for name, value in values.items():
        np.testing.assert_array_equal(value, others[name], err_msg=name)


def rounded_by_reader(case, monkeypatch):
    function, blocks = case
    nodes = lowered_nodes(Net(function, **blocks), "float16", (2, 4, 5, 5), monkeypatch)
    convolutions = [node["attrs"] for node in nodes if node["op"] == own.BLOCKED_CONVOLUTION]
    return dict(zip(("first", "last"), (attrs["reader_rounds"] for attrs in convolutions)))


UNUSUAL = """
import sys
import gluon_amp as amp
from mxnet import autograd, nd
from mxnet.gluon import nn

DILATED = [(3, dilation, dilation, 1, pixels) for dilation, pixels in
           [(2, 9), (3, 8), (4, 8), (12, 30), (36, 20)]]
ONE_WAY = [((5, 3), (2, 0), 1, 1, 30), ((1, 5), (1, 3), 1, 1, 28), ((1, 7), (0, 3), 1, 1, 17)]
STRIDED = [((3, 1), (2, 0), 1, 3, 14), ((3, 1), (2, 0), 1, 4, 28), (3, (7, 0), (6, 1), 4, 28)]
for policy in sys.argv[1:]:
    for kernel, padding, dilation, strides, pixels in DILATED + ONE_WAY + STRIDED:
        net = nn.HybridSequential()
        wide = nn.Conv2D(32, kernel, strides, padding, dilation, use_bias=False)
        net.add(nn.Conv2D(16, 1), wide, nn.Conv2D(4, 1))
        net.initialize()
        amp.cast(net, policy)
        net.hybridize()
        x = nd.ones((1, 16, pixels, pixels))
        with autograd.record():
            loss = net(x).sum()
        loss.backward()
        nd.waitall()
"""


def test_no_kernel_falls_back_to_the_reference_one():
    policies = [policy for policy in POLICIES if policy != EMULATED]
    lines = printed(UNUSUAL, *policies, DNNL_VERBOSE="1").splitlines()
    convolutions = [line for line in lines if ",exec,cpu,convolution," in line]
    assert len(convolutions) > 30 * len(policies)
    assert [line for line in convolutions if ",ref:" in line] == []


@needs_bfloat16
@pytest.mark.slow
@pytest.mark.parametrize(("network", "most"), [("resnet50_v1", 60), ("mobilenetv2_1.0", 80)])
def test_a_step_changes_layouts_seldom(network, most):
    """The bounds of the issue; MXNet's own operators need 424 and 539."""
    options = {"network": network, "batch": 1, "pixels": 32, "loss_scale": None}
    counted = profile.count_reorders(Case("train", "train", "gluon_amp", "bfloat16", **options))
    assert 0 < counted.total <= most


@pytest.mark.parametrize("target, pad, shape", [(None, 0, (8, 10)), ((6, 8), 1, (6, 8))])
def test_a_target_shape_is_a_padding_and_none_is_none(target, pad, shape):
    """MXNet writes None into the graph's attributes as a word."""

    def up(net, F, x):
        attrs = {"kernel": (2, 2), "stride": (2, 2), "num_filter": 4, "no_bias": True, **net.given}
        return F.Deconvolution(net.first(x), F.ones((8, 4, 2, 2)), **attrs)

    results = []
    for given in ({"pad": (pad, pad)}, {"target_shape": target}):
        net = Net(up, first=conv(8))
        net.given = given
        mx.random.seed(1)
        net.initialize(mx.init.Normal(1))
        results.append(amp.cast(net, "float16")(nd.ones((1, 3, 4, 5))).asnumpy())
    assert results[0].shape == (1, 4, *shape) and results[0].any()
    np.testing.assert_allclose(*results, rtol=1e-3, atol=1e-3)


def test_a_convolutional_recurrent_cell():
    def run(net, F, x):
        return net.cell.unroll(2, [x, x], merge_outputs=False)[0][-1]

    def cell():
        return mx.gluon.contrib.rnn.Conv2DLSTMCell((3, 4, 4), 4, 3, 3, i2h_pad=1)

    mx.random.seed(1)
    net = Net(run, cell=cell)
    net.initialize(mx.init.Uniform(0.3))
    data = nd.random.uniform(shape=(2, 3, 4, 4))
    expected = net(data).asnumpy()
    out = amp.cast(net, "float16")(data).asnumpy()
    np.testing.assert_allclose(out, expected, atol=1e-3)
