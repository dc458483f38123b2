"""lowering/onednn.py and its operators in C++: bfloat16 without three kernels of oneDNN."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from gluon_amp import kernels
from gluon_amp.base import hardware
from gluon_amp.graph import to_json
from gluon_amp.lowering import blocked, lower, onednn
from gluon_amp.lowering.onednn import CONVOLUTION
from tests.lowering import on_symbols
from tests.marks import needs_bfloat16, needs_library

import mxnet as mx
from mxnet import autograd, nd
from mxnet.gluon import nn

pytestmark = pytest.mark.cpu_kind

apply_workarounds = on_symbols(onednn.apply_workarounds)

SEARCH_PATH = os.pathsep.join(filter(None, sys.path))


def norm_of(data, name="norm"):
    return mx.sym.BatchNorm(data, name=name, fix_gamma=False)


def low(data):
    # functions accept MXNet's structured dtype; only graphs accept the name
    return mx.sym.amp_cast(data, dtype=np.dtype([("bfloat16", np.uint16)]))


def ops(symbol):
    return [node["op"] for node in to_json(symbol)["nodes"] if node["op"] != "null"]


# ------------------------------------------------------------------------------------- the rewrite


# ---------------------------------------------------------------------------------- the gradients


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


DEPTHWISE = """
import hashlib, sys
import numpy as np
import gluon_amp
import mxnet as mx
from mxnet import autograd, nd
from mxnet.gluon import nn

mx.random.seed(0)
net = nn.HybridSequential()
for channels, groups, size in ((32, 1, 3), (32, 32, 3), (64, 1, 1), (64, 64, 3), (32, 1, 1)):
    net.add(nn.Conv2D(channels, size, padding=size // 2, groups=groups, use_bias=False))
    net.add(nn.BatchNorm(), nn.Activation("relu"))
net.add(nn.GlobalAvgPool2D())
net.initialize(mx.init.Xavier())
net = gluon_amp.cast(net, "bfloat16")
net.hybridize(static_alloc=True)
data = nd.array(np.random.RandomState(0).normal(size=(4, 16, 20, 20)))
for _ in range(2):
    with autograd.record():
        loss = (net(data) ** 2).sum()
    loss.backward()
grads = [p.grad().asnumpy() for p in net.collect_params().values() if p.grad_req != "null"]
np.savez(sys.argv[1], loss=loss.asnumpy(), **{str(i): grad for i, grad in enumerate(grads)})
"""


def train_depthwise(path, **environment):
    """Output of a program that trains a small MobileNet and saves its gradients."""
    done = subprocess.run(
        [sys.executable, "-c", DEPTHWISE, str(path)],
        env={**os.environ, "PYTHONPATH": SEARCH_PATH, **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, np.load(str(path))


@needs_library
@needs_bfloat16
def test_depthwise_networks_meet_no_reference_kernel(tmp_path):
    log, with_ours = train_depthwise(tmp_path / "ours.npz", DNNL_VERBOSE="1")
    kernels = [line.split(",")[3:5] for line in log.splitlines() if ",exec," in line]
    assert [kind for kind, _ in kernels].count("convolution") >= 2 * 3 * 2  # steps, layers
    assert not [kernel for kernel in kernels if kernel[0] == "batch_normalization"]
    ours = [name for kind, name in kernels if kind == "convolution"]
    assert not [name for name in ours if "ref:any" in name or "gemm" in name]

    _, without = train_depthwise(tmp_path / "without.npz", GLUON_AMP_NATIVE="0")
    np.testing.assert_allclose(with_ours["loss"], without["loss"], rtol=0.02)
    # the kernels add a batch in another order, and each gradient is rounded to 8 bits
    ours, reference = (
        np.concatenate([grads[name].ravel() for name in with_ours.files])
        for grads in (with_ours, without)
    )
    assert np.linalg.norm(ours - reference) <= 0.03 * np.linalg.norm(reference)


@needs_bfloat16
def test_bfloat16_networks_keep_their_outputs():
    import gluon_amp

    mx.random.seed(1)
    net = nn.HybridSequential()
    net.add(nn.Conv2D(8, 3, in_channels=3), nn.BatchNorm(in_channels=8), nn.Activation("relu"))
    net.initialize(mx.init.Xavier())
    data = nd.array(np.random.RandomState(1).normal(size=(2, 3, 8, 8)))
    reference = net(data).asnumpy()
    cast = gluon_amp.cast(net, "bfloat16")
    cast.hybridize()
    np.testing.assert_allclose(cast(data).asnumpy(), reference, rtol=0.02, atol=0.02)


# ------------------------------------------------------------------------------- 1×1 convolutions


def convolution(data, kernel, **options):
    weight = mx.sym.amp_cast(mx.sym.var("w"), dtype=np.dtype([("bfloat16", np.uint16)]))
    options = {"num_filter": 8, "no_bias": True, "name": "conv", **options}
    return mx.sym.Convolution(data, weight, kernel=kernel, **options)


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
    for other in (convolution(low(data), (3, 3)), convolution(low(data), (1, 3))):
        assert apply_workarounds(other, {}) is other


def test_float32_convolutions_stay_themselves():
    symbol = mx.sym.Convolution(mx.sym.var("data"), kernel=(1, 1), num_filter=8)
    assert apply_workarounds(symbol, {}) is symbol


@needs_bfloat16
@pytest.mark.parametrize("positions", [27, 33, 36, 39, 42, 45, 48, 49])
def test_three_tiles_of_positions(positions):
    """Sizes for which oneDNN's kernel writes past its result; the values are numpy's."""
    import gluon_amp

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


POINTWISE = """
import mxnet as mx
import gluon_amp
net = mx.gluon.nn.Conv2D(32, 1, in_channels=32)
net.initialize()
net = gluon_amp.cast(net, "bfloat16")
net.hybridize()
net(mx.nd.ones((1, 32, 6, 6))).wait_to_read()
"""


@needs_bfloat16
def test_the_kernel_that_writes_too_far_is_not_used():
    done = subprocess.run(
        [sys.executable, "-c", POINTWISE],
        env={**os.environ, "PYTHONPATH": SEARCH_PATH, "DNNL_VERBOSE": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    used = [line.split(",")[4] for line in done.stdout.splitlines() if ",convolution," in line]
    assert used
    assert "jit_1x1:avx512_core_amx_bf16" not in used
    if hardware.has_amx():
        assert any("amx" in kernel for kernel in used)


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
        assert ops(apply_workarounds(symbol, {})) == [cast, cast, CONVOLUTION]


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
    assert ops(total).count(blocked.CONVOLUTION) == 2
    op = nd.CachedOp(total, [("static_alloc", str(static)), ("static_shape", str(static))])
    data, weight = (nd.array(arrays[name]) for name in ("data", "w"))
    weight.attach_grad("add")
    for _ in range(2):
        with autograd.record():
            out = op(data, weight)
        out.backward()
    reference = expected_weight_gradient(arrays["data"], np.ones((4, 16)))
    np.testing.assert_array_equal(weight.grad.asnumpy(), 2 * 2 * reference)


@needs_library
def test_convolutions_in_loops_are_rewritten():
    def body(one, states):
        conv = convolution(low(one), (3, 3), stride=(2, 2), pad=(1, 1))
        return mx.sym.amp_cast(conv, dtype="float32"), states

    out, _ = mx.sym.contrib.foreach(body, mx.sym.var("data"), [])
    loop = next(
        node for node in to_json(apply_workarounds(out, {}))["nodes"] if "subgraphs" in node
    )
    assert CONVOLUTION in [node["op"] for node in loop["subgraphs"][0]["nodes"]]
