"""Threads and AMX as an import of gluon_amp sets them, each test in a separate process."""

import json
import os
import subprocess
import sys

import pytest

from gluon_amp.base import hardware
from gluon_amp.base.startup import cpu
from tests import ROOT

import mxnet as mx

SETTINGS = (*cpu.THREADS, *cpu.SETTINGS, *cpu.AMX)

# MXNet's own count of threads, as its operators and oneDNN use it
THREADS = f"""
import ctypes, json, os
print(json.dumps({{
    "threads": ctypes.CDLL("libgomp.so.1").omp_get_max_threads(),
    "environment": {{name: os.environ[name] for name in {SETTINGS} if name in os.environ}},
}}))
"""

# A convolution in bfloat16 with known results: sums of ones over 3 × 3 positions and 64 channels
CONVOLUTION = """
import mxnet as mx, numpy as np
bfloat16 = np.dtype([("bfloat16", np.uint16)])
x = mx.nd.amp_cast(mx.nd.ones((2, 64, 16, 16)), dtype=bfloat16)
w = mx.nd.amp_cast(mx.nd.ones((64, 64, 3, 3)), dtype=bfloat16)
y = mx.nd.Convolution(x, w, kernel=(3, 3), num_filter=64, no_bias=True)
print(sorted(set(mx.nd.amp_cast(y, dtype="float32").asnumpy().ravel().tolist())))
"""


def run(code, cores=None, **environment):
    """Run code in a new interpreter, optionally on certain cores only; return its output."""
    clean = {name: value for name, value in os.environ.items() if name not in SETTINGS}
    clean["PYTHONPATH"] = str(ROOT)
    restrict = (lambda: os.sched_setaffinity(0, cores)) if cores else None
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**clean, **environment},
        capture_output=True,
        text=True,
        preexec_fn=restrict,
    )
    assert done.returncode == 0, (done.returncode, done.stderr)
    return done.stdout


def threads(first="import gluon_amp", **options):
    return json.loads(run(first + THREADS, **options))


needs_topology = pytest.mark.skipif(
    hardware.count_cores() == 0, reason="the system does not report its cores"
)
needs_amx = pytest.mark.skipif(
    not (hardware.has_amx() and cpu.request_amx()), reason="this CPU has no AMX"
)


# ---------------------------------------------------------------------------------------- threads


@needs_topology
def test_one_thread_per_core_and_no_variable_for_child_processes():
    result = threads()
    assert result["threads"] == hardware.count_cores()
    kept = {"MXNET_CPU_PARALLEL_SIZE": "2147483647", "MXNET_CPU_TEMP_COPY": "1"}
    assert result["environment"] == kept


@needs_topology
def test_only_cores_that_the_process_may_use_count():
    one = {min(os.sched_getaffinity(0))}
    assert threads(cores=one)["threads"] == 1


def test_a_users_number_of_threads_stays():
    chosen = {
        "OMP_NUM_THREADS": "3",
        "MXNET_CPU_PARALLEL_SIZE": "1000",
        "MXNET_CPU_TEMP_COPY": "2",
    }
    result = threads(**chosen)
    assert result["threads"] == 3
    assert result["environment"] == chosen


def test_mxnets_own_variable_counts_as_a_users_choice():
    result = threads(MXNET_OMP_MAX_THREADS="1")
    assert "OMP_NUM_THREADS" not in result["environment"]
    assert result["environment"]["MXNET_OMP_MAX_THREADS"] == "1"


def test_mxnet_imported_first_keeps_its_threads():
    stock = "import numpy; numpy.bool = bool; import mxnet"  # numpy 1.24 removed the alias
    alone = threads(stock)["threads"]
    assert threads(f"{stock}; import gluon_amp")["threads"] == alone


def test_make_leaves_the_number_of_threads_to_gluon_amp():
    show = ["make", "-s", "--eval", "show:;@echo [$$OMP_NUM_THREADS]", "show"]
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    done = subprocess.run(show, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.stdout == "[]\n", done


# -------------------------------------------------------------------------------------------- AMX


@needs_amx
def test_bfloat16_runs_on_amx():
    printed = run("import gluon_amp" + CONVOLUTION, DNNL_VERBOSE="1")
    convolution = [line for line in printed.splitlines() if ",convolution," in line]
    assert convolution and all("amx" in line for line in convolution)
    assert printed.splitlines()[-1] == "[576.0]"


@needs_amx
def test_a_users_instruction_set_stays():
    printed = run(
        "import gluon_amp" + CONVOLUTION, DNNL_VERBOSE="1", DNNL_MAX_CPU_ISA="AVX512_CORE_BF16"
    )
    convolution = [line for line in printed.splitlines() if ",convolution," in line]
    assert convolution and not any("amx" in line for line in convolution)
    assert printed.splitlines()[-1] == "[576.0]"


@needs_amx
def test_forked_and_started_processes_compute():
    # a fork inherits its parent's permission and oneDNN's settings; a new program does not
    code = (
        "import gluon_amp, multiprocessing, subprocess, sys\n"
        f"CODE = {CONVOLUTION!r}\n"
        "child = multiprocessing.get_context('fork').Process(target=exec, args=(CODE, {}))\n"
        "child.start(); child.join(); print(child.exitcode, flush=True)\n"
        "print(subprocess.run([sys.executable, '-c', CODE]).returncode)\n"
    )
    assert run(code).split("\n")[:-1] == ["[576.0]", "0", "[576.0]", "0"]


@needs_amx
def test_gradients_in_bfloat16_are_those_of_exact_arithmetic():
    # small whole numbers: every product and sum is exact in float32 and in bfloat16's 8 bits
    import gluon_amp as amp

    net = mx.gluon.nn.Conv2D(32, 3, in_channels=32, use_bias=False)
    net.initialize(mx.init.One())
    amp.cast(net, "bfloat16")
    net.hybridize()
    images = mx.nd.ones((1, 32, 4, 4))
    with mx.autograd.record():
        out = net(images).astype("float32")
    out.backward()
    assert set(out.asnumpy().ravel()) == {288.0}
    assert set(net.weight.grad().astype("float32").asnumpy().ravel()) == {4.0}


def test_environment_is_restored_after_an_error():
    settings = {"GLUON_AMP_TEST_SETTING": "1"}
    with pytest.raises(KeyError, match="lost"), cpu.environment(settings):
        assert os.environ["GLUON_AMP_TEST_SETTING"] == "1"
        raise KeyError("lost")
    assert "GLUON_AMP_TEST_SETTING" not in os.environ
