"""The C++ operators compute the bits of MXNet's casts on every instruction set."""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

from gluon_amp import kernels
from gluon_amp.base import hardware
from gluon_amp.kernels import build
from gluon_amp.kernels.obtain import try_in_subprocess
from tests.lowering.test_emulation import interesting_values
from tests.marks import needs_library

import mxnet as mx
from mxnet import autograd, nd

# Prints all bits of a small net's output and gradients. The net has no sums over a batch, such as
# BatchNorm's: their order in oneDNN depends on the layout of the tensors.
NET = """
import hashlib, json, logging, sys
logging.basicConfig(level=logging.WARNING, format="%(message)s")
import gluon_amp as amp
import numpy as np
import mxnet as mx
from mxnet import autograd
from mxnet.gluon import nn
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
x = mx.nd.array(np.random.normal(size=(4, 3, 16, 16)))
for _ in range(2):
    with autograd.record():
        out = net(x)
    out.backward(mx.nd.array(np.random.RandomState(1).normal(size=out.shape)) * 1e-4)
tensors = {name: p.grad() for name, p in net.collect_params().items()}
tensors["out"] = out
print(json.dumps({k: hashlib.sha1(v.asnumpy().tobytes()).hexdigest() for k, v in tensors.items()}))
"""


def run_net(**environment):
    """Run the net in a separate process; return its bits and the log."""
    done = subprocess.run(
        [sys.executable, "-c", NET],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


@pytest.fixture(scope="module")
def casts():
    """The bits that two of MXNet's casts compute."""
    return run_net(GLUON_AMP_NATIVE="0", OMP_NUM_THREADS="1")[0]


def operator(name, values, head=None, attrs=None):
    """Run an operator of the library; with `head`, return the gradient of its input."""
    node = {"op": name, "name": "o", "attrs": attrs or {}, "inputs": [[0, 0, 0]]}
    data = {"op": "null", "name": "x", "inputs": []}
    graph = {"nodes": [data, node], "arg_nodes": [0], "heads": [[1, 0, 0]]}
    op = nd.CachedOp(mx.sym.load_json(json.dumps(graph)))
    x = nd.array(values, dtype=values.dtype)
    x.attach_grad()
    with autograd.record():
        out = op(x)
    if head is None:
        return out.asnumpy()
    out.backward(nd.array(head, dtype=out.dtype))
    return x.grad.asnumpy()


def same(actual, expected):
    """Assert equal bits, except in the payload of NaNs."""
    nan = np.isnan(expected)
    assert actual.dtype == expected.dtype
    assert np.array_equal(np.isnan(actual), nan)
    unsigned = f"u{actual.dtype.itemsize}"
    assert np.array_equal(actual[~nan].view(unsigned), expected[~nan].view(unsigned))


@needs_library
@pytest.mark.filterwarnings("ignore:overflow")
def test_every_value_midpoint_and_neighbour_on_each_instruction_set(instruction_set):
    values = interesting_values()
    with np.errstate(over="ignore"):
        half = values.astype(np.float16)
    rounded = half.astype(np.float32)
    ones = np.ones_like(values)
    same(operator("_gluon_amp_round", values), rounded)
    same(operator("_gluon_amp_round", ones, head=values), rounded)
    same(operator("_gluon_amp_narrow", values), half)
    same(operator("_gluon_amp_widen", half), rounded)
    same(operator("_gluon_amp_widen", half, head=values), half)
    finite = ~np.isnan(values)
    relu = np.where(rounded[finite] > 0, rounded[finite], np.float32(0))
    assert np.array_equal(operator("_gluon_amp_round_relu", values[finite]), relu)
    head = values[finite][::-1].copy()
    grad = operator("_gluon_amp_round_relu", values[finite], head=head)
    # relu's gradient comes first: oneDNN multiplies by 0 or 1, so that inf may become NaN
    with np.errstate(invalid="ignore", over="ignore"):
        expected = (head * (relu > 0)).astype(np.float16).astype(np.float32)
    assert np.array_equal(grad, expected, equal_nan=True)


@needs_library
@pytest.mark.parametrize("size", [1, 3, 15, 17, 4097, 100003])
def test_any_size_and_gradients_that_add_up(size):
    values = np.random.RandomState(0).normal(size=size).astype("f4") * 1e3
    expected = values.astype("f2").astype("f4")
    same(operator("_gluon_amp_round", values), expected)
    x = nd.array(values)
    x.attach_grad("add")
    graph = {
        "nodes": [
            {"op": "null", "name": "x", "inputs": []},
            {"op": "_gluon_amp_round", "name": "o", "attrs": {}, "inputs": [[0, 0, 0]]},
        ],
        "arg_nodes": [0],
        "heads": [[1, 0, 0]],
    }
    op = nd.CachedOp(mx.sym.load_json(json.dumps(graph)))
    for _ in range(3):
        with autograd.record():
            out = op(x)
        out.backward(nd.array(values))
    assert np.array_equal(x.grad.asnumpy(), expected + expected + expected)


@needs_library
@pytest.mark.parametrize("instructions", ["", "plain", "avx2"])
@pytest.mark.parametrize("threads", ["1", "2"])
def test_a_net_has_the_bits_of_mxnets_casts(instructions, threads, casts):
    if instructions and not kernels.select(instructions):
        pytest.skip(f"this processor has no {instructions}")
    kernels.select(None)
    digests, logged = run_net(GLUON_AMP_NATIVE=instructions, OMP_NUM_THREADS=threads)
    assert logged == ""
    if threads == "1":
        assert digests == casts
    else:
        one, _ = run_net(GLUON_AMP_NATIVE="0", OMP_NUM_THREADS="2")
        assert digests == one


@pytest.mark.parametrize(
    "environment, reason",
    [
        ({"CXX": "/no/such/compiler"}, "compiler cannot be run"),
        ({"CXX": "false"}, "false failed"),
        ({"XDG_CACHE_HOME": "/proc/none"}, "cannot be|No such file|not"),
    ],
)
def test_where_it_cannot_be_had_a_line_says_so_and_casts_take_over(
    environment, reason, casts, tmp_path
):
    environment = {"XDG_CACHE_HOME": str(tmp_path), "OMP_NUM_THREADS": "1", **environment}
    digests, logged = run_net(GLUON_AMP_NATIVE="", **environment)
    assert digests == casts
    *building, line = logged.strip().splitlines()
    assert all(text.startswith("Building gluon_amp's C++ kernels") for text in building)
    assert line.startswith("gluon_amp's C++ kernels are not used")
    assert "GLUON_AMP_NATIVE=0 silences this." in line
    assert any(part in line for part in reason.split("|"))
    assert not list(tmp_path.rglob("*.so"))


@needs_library
@pytest.mark.slow
def test_two_first_uses_at_once_share_one_build(tmp_path):
    environment = {
        **os.environ,
        "XDG_CACHE_HOME": str(tmp_path),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    code = "from gluon_amp import kernels; kernels.prepare(); print(kernels.available())"
    running = [
        subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    assert [process.communicate(timeout=200)[0].strip() for process in running] == [b"True"] * 2
    assert len(list(tmp_path.rglob("*.so"))) == 1
    assert not list((tmp_path / "gluon_amp").glob("build-*"))


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
{use}
assert kernels.available() and ended == ["slow"]
stop.append(True)
thread.join()
mx.nd.waitall()
"""


@needs_library
@pytest.mark.parametrize(
    "use",
    [
        "amp.cast(net, 'float16')",
        "amp.Trainer(net.collect_params(), 'signum')",
        "amp.optimizer.SGD()",
    ],
)
def test_operators_are_registered_while_mxnet_runs_none(use):
    done = subprocess.run(
        [sys.executable, "-c", BUSY.replace("{use}", use)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "GLUON_AMP_NATIVE": "0"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_as_many_compilers_run_at_once_as_there_are_cores(tmp_path, monkeypatch):
    monkeypatch.setattr(hardware, "count_cores", lambda: 2)
    log = tmp_path / "log"
    command = ["sh", "-c", f"echo 1 >> {log}; sleep 0.1; echo -1 >> {log}"]
    build.run_all([command] * 5)
    changes = [int(line) for line in log.read_text().split()]
    running = [sum(changes[: i + 1]) for i in range(len(changes))]
    assert (max(running), running[-1], len(changes)) == (2, 0, 10)


# GCC 5 is the first with C++14's generic lambdas and AVX512.
VERSIONS = [f"g++-{version}" for version in range(5, 20)]
VERSIONS += [f"clang++-{version}" for version in range(6, 25)]


@pytest.mark.slow
@pytest.mark.parametrize("compiler", filter(shutil.which, VERSIONS))
def test_every_compiler_that_is_installed_builds_a_library_that_works(compiler, tmp_path):
    used = build.compiler()
    if len(used) == 1 and os.path.samefile(shutil.which(compiler), shutil.which(used[0])):
        pytest.skip("it has built the library that all other tests use")
    build.build([compiler], tmp_path / "native.so")
    try_in_subprocess(tmp_path / "native.so")


def test_the_sources_ask_no_compiler_for_what_old_ones_do_not_know():
    # __builtin_cpu_supports("f16c"): GCC 11 and clang 14
    for source in build.SOURCES.glob("*.*"):
        code = [line.partition("//")[0] for line in source.read_text().splitlines()]
        assert not any("__builtin_cpu" in line for line in code), source.name


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
