"""Loading the C++ library, selecting its instruction set, and the bits of a net without it."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp import kernels
from gluon_amp.base import hardware
from tests.lowering import back_through, printed
from tests.marks import needs_library

import mxnet as mx
from mxnet import nd
from mxnet.gluon import nn


def bits():
    """Return digests of a small net's output and gradients, with the kernels as they are selected.

    The net has no sums over a batch, such as BatchNorm's: their order in oneDNN depends on the
    layout of the tensors.
    """
    mx.random.seed(0)
    np.random.seed(0)
    net = nn.HybridSequential(prefix="n_")
    with net.name_scope():
        net.add(nn.Conv2D(16, 3, padding=1, in_channels=3), nn.Activation("relu"))
        net.add(nn.Conv2D(32, 3, padding=1, in_channels=16), nn.MaxPool2D(), nn.Activation("tanh"))
        net.add(nn.Conv2D(8, 1, in_channels=32), nn.GlobalAvgPool2D(), nn.Dense(4, in_units=8))
    net.initialize(mx.init.Xavier())
    amp.cast(net, "float16")
    net.hybridize(static_alloc=True)
    x = nd.array(np.random.normal(size=(4, 3, 16, 16)))
    head = nd.array(np.random.RandomState(1).normal(size=(4, 4))) * 1e-4
    for _ in range(2):
        out = back_through(net, x, head=head)
    tensors = {name: p.grad() for name, p in net.collect_params().items()}
    arrays = {**tensors, "out": out}
    return {name: hashlib.sha1(a.asnumpy().tobytes()).hexdigest() for name, a in arrays.items()}


def bits_of_all():
    """Return the bits by MXNet's casts, and those on each instruction set of this processor."""
    found = [bits() for _ in filter(kernels.select, (None, *kernels.INSTRUCTION_SETS))]
    kernels.select(None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "available", lambda: False)
        return bits(), found


ALL = """
import json
from tests.kernels.test_kernels import bits_of_all
print(json.dumps(bits_of_all()))
"""


@needs_library
@pytest.mark.parametrize("threads", [1, 2])
def test_a_net_has_the_bits_of_mxnets_casts(threads):
    lines = printed(ALL, OMP_NUM_THREADS=str(threads)).splitlines()
    casts, found = json.loads(lines[-1])
    assert found and all(digests == casts for digests in found)


@pytest.mark.parametrize(
    "environment, reason",
    [
        ({"CXX": "/no/such/compiler"}, "compiler cannot be run"),
        ({"CXX": "false"}, "false failed"),
        ({"XDG_CACHE_HOME": "/proc/none"}, "cannot be|No such file|not"),
    ],
)
def test_where_it_cannot_be_had_a_line_says_so(environment, reason, tmp_path, monkeypatch, caplog):
    for name, value in {"XDG_CACHE_HOME": str(tmp_path), **environment}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(kernels, "_decided", [])
    kernels.prepare([mx.cpu()])
    assert kernels.library() is None
    *building, line = caplog.messages
    assert all(text.startswith("Building gluon_amp's C++ kernels") for text in building)
    assert line.startswith("gluon_amp's C++ kernels are not used")
    assert "GLUON_AMP_NATIVE=0 silences this." in line
    assert any(part in line for part in reason.split("|"))
    assert not list(tmp_path.rglob("*.so"))


@pytest.mark.parametrize("has_it", [True, False])
@pytest.mark.parametrize(
    "setting, selected", [("", []), ("plain", [1]), ("avx2", [2]), ("avx512", [3]), ("0", [])]
)
def test_the_variable_selects_an_instruction_set(setting, selected, has_it, monkeypatch, caplog):
    class Library:
        def gluon_amp_select(self, number):
            chosen.append(number)
            return has_it

    chosen = []
    monkeypatch.setenv("GLUON_AMP_NATIVE", setting)
    monkeypatch.setattr(kernels, "_decided", [])
    monkeypatch.setattr(kernels, "load", lambda path: Library())
    monkeypatch.setattr(kernels.obtain, "find_or_build", lambda: Path("native.so"))
    kernels.prepare([mx.cpu()])
    assert chosen == selected
    assert kernels.available() == (setting == "" or (setting != "0" and has_it))
    refused = f"this processor does not run GLUON_AMP_NATIVE={setting}" in caplog.text
    assert refused == bool(selected and not has_it)


@pytest.mark.parametrize(
    "begin",
    [
        lambda net: amp.cast(net, "float16"),
        lambda net: amp.Trainer(net.collect_params(), "signum"),
        lambda net: amp.optimizer.SGD(),
    ],
    ids=["cast", "Trainer", "SGD"],
)
def test_whatever_begins_in_low_precision_prepares_the_kernels(begin, monkeypatch):
    prepared = []
    monkeypatch.setattr(kernels, "prepare", lambda contexts=(): prepared.append(list(contexts)))
    net = nn.Dense(1, in_units=1)
    net.initialize()
    begin(net)
    assert prepared


# A custom operator that needs the GIL runs, and another thread calls operators without a pause.
BUSY = """
import os, threading, time
import gluon_amp as amp
import mxnet as mx
from gluon_amp import kernels
from gluon_amp.kernels import build

assert not kernels.available()  # GLUON_AMP_NATIVE=0
del os.environ["GLUON_AMP_NATIVE"]
ended, stop = [], []

class Slow(mx.autograd.Function):
    def forward(self, x):
        return 2 * x
    def backward(self, dy):
        time.sleep(0.5)
        ended.append("slow")
        return 2 * dy

def call():
    x, weight = mx.nd.ones((2, 3)), mx.nd.ones((4, 3))
    while not stop:
        mx.nd.FullyConnected(x, weight, no_bias=True, num_hidden=4)

thread = threading.Thread(target=call, daemon=True)
thread.start()
net = mx.gluon.nn.Dense(1, in_units=1)
net.initialize()
x = mx.nd.ones((1,))
x.attach_grad()
with mx.autograd.record():
    y = Slow()(x)
y.backward()
build.run(["true"])  # a fork would wait for the custom operator, and it for the GIL
amp.cast(net, "float16")
assert kernels.available() and ended == ["slow"]
stop.append(True)
thread.join()
mx.nd.waitall()
"""


@needs_library
def test_operators_are_registered_while_mxnet_runs_none():
    assert printed(BUSY, timeout=100, GLUON_AMP_NATIVE="0") == ""


@needs_library
@pytest.mark.parametrize(
    "instruction_set, flags", [("avx2", {"avx2", "f16c"}), ("avx512", {"avx2", "f16c", "avx512f"})]
)
@pytest.mark.skipif(
    not hardware.cpu_flags(), reason="the system does not name the processor's flags"
)
def test_the_instruction_sets_are_those_that_linux_names(instruction_set, flags):
    assert kernels.select(instruction_set) == (hardware.cpu_flags() >= flags)
    kernels.select(None)
