"""Which CPUs run bfloat16 natively, and that the emulation agrees with them."""

import os
import subprocess
import sys

import numpy as np
import pytest
from sklearn import datasets

import gluon_amp as amp
from gluon_amp import kernels
from gluon_amp.base import bfloat16, hardware
from gluon_amp.base.formats import FORMATS, rounded_array
from gluon_amp.lowering import lower
from gluon_amp.policy import Policy, cast_pass
from tests import ROOT, closeness
from tests.marks import needs_library

import mxnet as mx
from mxnet import autograd, gluon, nd

pytestmark = pytest.mark.cpu_kind


@pytest.mark.parametrize("lacking", sorted(hardware.AVX512_FLAGS))
def test_a_cpu_without_avx512_has_no_bfloat16_and_is_not_tried(lacking, monkeypatch):
    monkeypatch.setattr(hardware, "cpu_flags", lambda: frozenset(hardware.AVX512_FLAGS - {lacking}))
    monkeypatch.setattr(mx.nd, "FullyConnected", None)
    assert not bfloat16.has_kernels.__wrapped__()


def test_a_cpu_without_known_flags_is_tried(monkeypatch):
    monkeypatch.setattr(hardware, "cpu_flags", frozenset)
    assert bfloat16.has_kernels.__wrapped__() == bfloat16.has_kernels()


def test_a_cpu_without_bfloat16_prints_no_error():
    code = (
        "import gluon_amp.base.bfloat16 as b, os\n"
        "os.dup2(1, 2)\n"  # also return what MXNet prints on standard error
        "print(b.is_native())"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "DNNL_MAX_CPU_ISA": "AVX2"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == b"False\n"


# ------------------------------------------------------------------------------- the emulation


def use_emulation(monkeypatch):
    monkeypatch.setenv("GLUON_AMP_BFLOAT16", "emulated")


def bfloat(*shape, seed=0):
    """Random bfloat16 values in a float32 array."""
    values = np.random.RandomState(seed).normal(size=shape).astype("f4")
    return rounded_array(values, FORMATS["bfloat16"])


def run(symbol, **arrays):
    """Run a symbol under the policy bfloat16; return its output and the gradients of its arrays."""
    dtypes = dict.fromkeys(arrays, "float32")
    lowered = lower(cast_pass.apply(symbol, Policy.parse("bfloat16"), dtypes), dtypes, "cpu")
    args = {name: nd.array(values) for name, values in arrays.items()}
    grads = {name: nd.zeros(values.shape) for name, values in arrays.items()}
    executor = lowered.bind(mx.cpu(), args, grads)
    (out,) = executor.forward(is_train=True)
    head = bfloat(*out.shape, seed=9)
    executor.backward(nd.array(head))
    return out.asnumpy(), {name: grad.asnumpy() for name, grad in grads.items()}, head


def test_without_the_library_the_emulation_is_refused_in_one_sentence(monkeypatch):
    use_emulation(monkeypatch)
    monkeypatch.setattr(kernels, "available", lambda: False)
    net = gluon.nn.Dense(2, in_units=3)
    net.initialize()
    amp.cast(net, "bfloat16")
    with pytest.raises(
        ValueError, match="install a C\\+\\+ compiler, or use policy 'float16'"
    ) as error:
        net(nd.ones((1, 3)))
    assert "\n" not in str(error.value)


@needs_library
def test_a_dense_layer_is_the_float32_one_rounded_once(monkeypatch):
    use_emulation(monkeypatch)
    x, w = bfloat(4, 64), bfloat(8, 64, seed=1)
    off = np.float32(1 + 2.0**-10)  # what is rounded away: operands are rounded, too
    symbol = mx.sym.FullyConnected(mx.sym.var("x"), mx.sym.var("w"), num_hidden=8, no_bias=True)
    out, grads, head = run(symbol, x=x * off, w=w * off)

    def close(actual, exact):
        """Equal but for sums of another order, which may be rounded to the neighbour."""
        expected = rounded_array(exact.astype("f4"), FORMATS["bfloat16"])
        assert np.array_equal(actual, rounded_array(actual, FORMATS["bfloat16"]))
        assert np.mean(actual == expected) > 0.97
        np.testing.assert_allclose(actual, expected, rtol=2.0**-7, atol=1e-6)

    wide = x.astype("f8"), w.astype("f8"), head.astype("f8")
    close(out, wide[0] @ wide[1].T)
    close(grads["x"], wide[2] @ wide[1])
    close(grads["w"], wide[2].T @ wide[0])


@needs_library
def test_large_and_small_values_stay_where_float16_would_not(monkeypatch):
    use_emulation(monkeypatch)
    x, w = np.array([[1e30, 1e-30]], "f4"), np.array([[1e8, 0], [0, 1e-8], [1e9, 0]], "f4")
    symbol = mx.sym.FullyConnected(mx.sym.var("x"), mx.sym.var("w"), num_hidden=3, no_bias=True)
    out = run(symbol, x=x, w=w)[0]
    np.testing.assert_allclose(out[0, :2], [1e38, 1e-38], rtol=2.0**-6)
    assert out[0, 2] == np.inf


class Residual(gluon.nn.HybridBlock):
    """Convolutions of several kinds, norms, a hard-swish, a sum and a concatenation."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.first = gluon.nn.Conv2D(16, 3, padding=1, in_channels=3)
            self.norm = gluon.nn.BatchNorm(in_channels=16)
            self.depthwise = gluon.nn.Conv2D(16, 3, strides=2, padding=1, groups=16, in_channels=16)
            self.wide = gluon.nn.Conv2D(24, 1, in_channels=16)
            self.skip = gluon.nn.Conv2D(24, 1, strides=2, in_channels=16)
            self.last = gluon.nn.Dense(5, in_units=48)

    def hybrid_forward(self, F, x):
        x = F.relu(self.norm(self.first(x)))
        y = self.wide(self.depthwise(x))
        y = y * F.clip(y + 3, 0, 6) / 6
        z = self.skip(x) + y
        halves = [F.Pooling(v, kernel=(2, 2), stride=(2, 2), pool_type="avg") for v in (z, y)]
        z = F.concat(*halves, dim=1)
        return self.last(F.mean(z, axis=(2, 3)))


def convolutional():
    return Residual(), nd.random.normal(shape=(4, 3, 8, 8))


def dense():
    net = gluon.nn.HybridSequential()
    for units, act in ((32, "tanh"), (64, "sigmoid"), (16, "relu"), (4, None)):
        net.add(gluon.nn.Dense(units, activation=act))
    return net, nd.random.normal(shape=(16, 12))


def normalized():
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Conv1D(8, 3), gluon.nn.LayerNorm(), gluon.nn.MaxPool1D(), gluon.nn.Dense(3))
    return net, nd.random.normal(shape=(4, 5, 20))


@needs_library
@pytest.mark.skipif(not bfloat16.has_kernels(), reason="oneDNN has no bfloat16 kernels here")
@pytest.mark.parametrize("make", [convolutional, dense, normalized])
def test_native_and_emulated_networks_agree(make, monkeypatch):
    """Both are within the bounds of `closeness` of float32, and so is their distance."""
    mx.random.seed(1)
    net, x = make()
    net.initialize(mx.init.Xavier())
    with autograd.train_mode():  # in inference oneDNN reorders weights, which are written later
        net(x)
    net.hybridize()
    inputs = [x]
    expected = closeness.measure(net, inputs)
    bounds = closeness.bounds(net, inputs, expected, "bfloat16")
    found = {}
    for how in ("native", "emulated"):
        if how == "emulated":
            use_emulation(monkeypatch)
        amp.cast(net, "bfloat16")
        found[how] = closeness.measure(net, inputs)
        amp.cast(net, "float32")
    for got, reference in (
        (found["emulated"], expected),
        (found["native"], expected),
        (found["emulated"], found["native"]),
    ):
        distances = closeness.distances(got, reference)
        assert {n: (d, bounds[n]) for n, d in distances.items() if d > bounds[n]} == {}
    assert any(not np.array_equal(found["native"][k], found["emulated"][k]) for k in expected)


def accuracy_on_digits(policy):
    """Train a small network on two thirds of scikit-learn's digits; return the rest's share."""
    pixels, labels = datasets.load_digits(return_X_y=True)
    order = np.random.RandomState(0).permutation(len(labels))
    x, y = nd.array(pixels[order].reshape(-1, 1, 8, 8) / 16), nd.array(labels[order])
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Conv2D(16, 3, activation="relu"), gluon.nn.Conv2D(32, 3), gluon.nn.BatchNorm())
    net.add(gluon.nn.Activation("relu"), gluon.nn.MaxPool2D(), gluon.nn.Dense(10))
    mx.random.seed(0)
    net.initialize(mx.init.Xavier())
    amp.cast(net, policy)
    net.hybridize()
    trainer = amp.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9})
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
    for _ in range(3):
        for first in range(0, 1200, 50):
            with autograd.record():
                loss = loss_of(net(x[first : first + 50]), y[first : first + 50])
            trainer.backward(loss)
            trainer.step(50)
    return float((net(x[1200:]).argmax(axis=1) == y[1200:]).mean().asscalar())


@needs_library
def test_digits_train_to_the_accuracy_of_float32(monkeypatch):
    use_emulation(monkeypatch)
    reference = accuracy_on_digits("float32")
    assert reference > 0.95
    assert abs(accuracy_on_digits("bfloat16") - reference) < 0.015  # 9 of 597 images


@needs_library
def test_the_emulated_graph_holds_no_bfloat16_and_describe_says_so(monkeypatch):
    use_emulation(monkeypatch)
    net = gluon.nn.Dense(2, in_units=3)
    net.initialize()
    amp.cast(net, "bfloat16")
    x = nd.ones((1, 3))
    assert net(x).dtype == np.float32
    description = amp.describe(net, x)
    assert [row.compute_dtype for row in description.rows] == ["bfloat16"]
    assert str(description).endswith("1 operators: 1 in bfloat16 (emulated)")
    monkeypatch.undo()
    net.hybridize()
    if bfloat16.is_native():
        assert str(amp.describe(net, x)).endswith("1 operators: 1 in bfloat16")
