"""Which CPUs run bfloat16 natively, and that the emulation agrees with them."""

import os
import subprocess
import sys

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp import kernels
from gluon_amp.base import bfloat16, hardware
from gluon_amp.base.formats import FORMATS, rounded_array
from gluon_amp.lowering import lower
from gluon_amp.policy import Policy, cast_pass
from tests import ROOT
from tests.marks import needs_library

import mxnet as mx
from mxnet import gluon, nd

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
