"""lowering/onednn.py and its operators in C++: bfloat16 without three kernels of oneDNN."""

import json

import numpy as np
import pytest

import gluon_amp
from gluon_amp import kernels
from gluon_amp.base import hardware
from gluon_amp.graph import own_operators as own
from gluon_amp.graph import to_json
from gluon_amp.lowering import lower, onednn
from tests.lowering import back_through, on_symbols, ops, printed
from tests.marks import needs_bfloat16, needs_library

import mxnet as mx
from mxnet import autograd, nd
from mxnet.contrib.amp.amp import bfloat16
from mxnet.gluon import nn

pytestmark = pytest.mark.cpu_kind

apply_workarounds = on_symbols(onednn.apply_workarounds)


def low(data):
    return mx.sym.amp_cast(data, dtype=bfloat16)


def run(symbol, **arrays):
    """Return the outputs and gradients of a symbol in float32 for these inputs."""
    inputs = {name: nd.array(values) for name, values in arrays.items()}
    block = mx.gluon.SymbolBlock(symbol, [mx.sym.var(name) for name in inputs])
    block.collect_params().initialize()
    block.hybridize(static_alloc=True)
    for array in inputs.values():
        array.attach_grad()
    with autograd.record():
        out = block(*inputs.values())
    out.backward(nd.arange(1, 1 + out.size).reshape(out.shape))
    return out.asnumpy(), *(array.grad.asnumpy() for array in inputs.values())


# Prints oneDNN's kernels of a small MobileNet in training, whose last layer has 6×6 positions
NET = """
import gluon_amp
from mxnet import autograd, nd
from mxnet.gluon import nn

net = nn.HybridSequential()
for channels, groups, size in ((32, 1, 3), (32, 32, 3), (64, 1, 1), (64, 64, 3), (32, 1, 1)):
    net.add(nn.Conv2D(channels, size, padding=size // 2, groups=groups, use_bias=False))
    net.add(nn.BatchNorm(), nn.Activation("relu"))
net.initialize()
net = gluon_amp.cast(net, "bfloat16")
net.hybridize(static_alloc=True)
with autograd.record():
    loss = net(nd.ones((4, 16, 6, 6))).sum()
loss.backward()
nd.waitall()
"""


@needs_library
@needs_bfloat16
def test_a_network_meets_no_slow_or_wrong_kernel():
    lines = printed(NET, DNNL_VERBOSE="1").splitlines()
    kinds = [line.split(",")[3:5] for line in lines if ",exec," in line]
    used = [name for kind, name in kinds if kind == "convolution"]
    assert len(used) == 3 * 3 - 1  # layers and directions; nothing needs the data's gradient
    assert "batch_normalization" not in {kind for kind, _ in kinds}
    assert not [name for name in used if "ref:any" in name or "gemm" in name]
    assert "jit_1x1:avx512_core_amx_bf16" not in used
    if hardware.has_amx():
        assert any("amx" in kernel for kernel in used)


# ------------------------------------------------------------------------------- 1×1 convolutions


def convolution(data, kernel, **options):
    options = {"num_filter": 8, "no_bias": True, "name": "conv", **options}
    return mx.sym.Convolution(data, low(mx.sym.var("w")), kernel=kernel, **options)


def dilation(symbol):
    nodes = to_json(symbol)["nodes"]
    return next(node["attrs"].get("dilate") for node in nodes if node["op"] == "Convolution")


@pytest.mark.parametrize("amx", [True, False])
def test_pointwise_convolutions_are_dilated_where_there_is_amx(amx, monkeypatch):
    monkeypatch.setattr(hardware, "has_amx", lambda: amx)
    data = mx.sym.var("data")
    for kernel, twos in (((1, 1), "(2, 2)"), ((1,), "(2,)"), ((1, 1, 1), "(2, 2, 2)")):
        low_one = convolution(low(data), kernel)
        assert dilation(apply_workarounds(low_one, {})) == (twos if amx else None)
    in_float32 = mx.sym.Convolution(data, kernel=(1, 1), num_filter=8)
    for other in (convolution(low(data), (3, 3)), convolution(low(data), (1, 3)), in_float32):
        assert apply_workarounds(other, {}) is other


@needs_bfloat16
@pytest.mark.parametrize("positions", [27, 36, 48, 49])
def test_three_tiles_of_positions(positions):
    """Sizes for which oneDNN's kernel writes past its result; the values are numpy's."""

    random = np.random.RandomState(positions)
    data = random.randint(-4, 5, size=(2, 64, 1, positions))
    weight = random.randint(-4, 5, size=(128, 64, 1, 1))
    net = nn.Conv2D(128, 1, use_bias=False, in_channels=64)
    net.initialize()
    net.weight.set_data(nd.array(weight))
    gluon_amp.cast(net, "bfloat16")
    net.hybridize()
    reference = np.einsum("ncij,oc->noij", data, weight[:, :, 0, 0])
    actual = net(nd.array(data)).asnumpy()
    # sums of integers are exact in float32, and rounded once to 8 bits
    np.testing.assert_allclose(actual, reference, rtol=2.0**-8)


# ------------------------------------------------------------- images narrower than the stride


@pytest.mark.parametrize("stride", [(2,), (1, 2), (3, 3)])
def test_strided_convolutions_become_our_operator_or_float32(stride, monkeypatch):
    data, kernel = low(mx.sym.var("data")), (3,) * len(stride)
    symbol = convolution(data, kernel, stride=stride)
    monkeypatch.setattr(kernels, "available", lambda: False)
    cast = "amp_cast"
    assert ops(apply_workarounds(symbol, {})) == [cast, cast, cast, cast, "Convolution", cast]
    assert apply_workarounds(symbol, {}).list_arguments() == ["data", "w"]
    for other in ((), (1,) * len(stride), (2,) * (len(stride) - 1) + (1,)):
        unstrided = convolution(data, kernel, stride=other)
        assert apply_workarounds(unstrided, {}) is unstrided
    monkeypatch.undo()
    if kernels.available():
        assert ops(apply_workarounds(symbol, {})) == [cast, cast, own.CONVOLUTION]


def pixels():
    """A convolution of one pixel, on which only the kernel's middle has an effect; its arrays."""
    data = low(mx.sym.var("data"))
    symbol = convolution(data, (3, 3), stride=(2, 2), pad=(1, 1), num_filter=16)
    random = np.random.RandomState(7)
    arrays = random.randint(-3, 4, (4, 16, 1, 1)), random.randint(-3, 4, (16, 16, 3, 3))
    return symbol, dict(zip(("data", "w"), arrays))


def expected_weight_gradient(data, heads):
    reference = np.zeros((16, 16, 3, 3))
    reference[:, :, 1, 1] = np.einsum("no,nc->oc", heads.reshape(4, 16), data[:, :, 0, 0])
    return reference


@needs_bfloat16
@pytest.mark.parametrize("with_native", [True, False])
def test_the_weight_gradient_of_one_pixel(with_native, monkeypatch):
    if not with_native:
        monkeypatch.setattr(kernels, "available", lambda: False)
    symbol, arrays = pixels()
    rewritten = mx.sym.amp_cast(apply_workarounds(symbol, {}), dtype="float32")
    run(rewritten, **{name: np.full(x.shape, np.nan) for name, x in arrays.items()})
    _, _, actual = run(rewritten, **arrays)
    heads = np.arange(1, 65)  # as in `run`
    np.testing.assert_array_equal(actual, expected_weight_gradient(arrays["data"], heads))


@needs_library
@needs_bfloat16
@pytest.mark.parametrize("static", [True, False])
def test_the_weight_gradient_of_two_readers_is_added(static):
    symbol, arrays = pixels()
    graph = to_json(symbol)
    graph["nodes"].append({**graph["nodes"][-1], "name": "again"})
    graph["heads"] = [[len(graph["nodes"]) - k, 0, 0] for k in (1, 2)]
    both = mx.sym.load_json(json.dumps(graph))
    one, other = (mx.sym.amp_cast(each, dtype="float32") for each in both)
    total = lower(one + other, {"data": "float32", "w": "float32"}, "cpu")
    assert ops(total).count(own.BLOCKED_CONVOLUTION) == 2
    op = nd.CachedOp(total, [("static_alloc", str(static)), ("static_shape", str(static))])
    data, weight = (nd.array(arrays[name]) for name in ("data", "w"))
    weight.attach_grad("add")
    for _ in range(2):
        back_through(op, data, weight)
    reference = expected_weight_gradient(arrays["data"], np.ones((4, 16)))
    np.testing.assert_array_equal(weight.grad.asnumpy(), 2 * 2 * reference)


@needs_library
@needs_bfloat16
def test_convolutions_in_loops_are_rewritten():
    def body(one, states):
        conv = convolution(low(one), (3, 3), stride=(2, 2), pad=(1, 1))
        return mx.sym.amp_cast(conv, dtype="float32"), states

    out, _ = mx.sym.contrib.foreach(body, mx.sym.var("data"), [])
    lowered = lower(out, {}, "cpu")
    loop = next(node for node in to_json(lowered)["nodes"] if "subgraphs" in node)
    assert own.CONVOLUTION in [node["op"] for node in loop["subgraphs"][0]["nodes"]]
