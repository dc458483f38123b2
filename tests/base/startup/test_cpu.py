"""Threads and AMX as an import of gluon_amp sets them, each test in a separate process."""

import json
import os
import platform
import re
import subprocess
import sys

import pytest

from gluon_amp.base import hardware
from gluon_amp.base.startup import compat, cpu
from tests import ROOT
from tests.lowering import printed

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


def run(code, **environment):
    """Return what code prints without a user's settings, but with these."""
    return printed(code, **{**dict.fromkeys(SETTINGS), **environment})


needs_topology = pytest.mark.skipif(
    hardware.count_cores() == 0, reason="the system does not report its cores"
)
needs_amx = pytest.mark.skipif(
    not (hardware.has_amx() and cpu.request_amx()), reason="this CPU has no AMX"
)


# ---------------------------------------------------------------------------------------- threads


@needs_topology
def test_one_thread_per_core_and_no_variable_for_child_processes():
    result = json.loads(run("import gluon_amp" + THREADS))
    assert result["threads"] == hardware.count_cores()
    kept = {"MXNET_CPU_PARALLEL_SIZE": "2147483647", "MXNET_CPU_TEMP_COPY": "1"}
    assert result["environment"] == kept


@needs_topology
@pytest.mark.skipif(hardware.count_cores() < 2, reason="no core can be idle")
def test_an_import_after_mxnet_says_that_cores_are_idle():
    """A step of a transformer took 1.8 times as long, without a word."""
    if hardware.count_processors() > hardware.count_cores():
        pytest.skip("the cores have hyperthreads, so MXNet uses all")
    restore = f"exec(open({compat.__file__!r}).read()); restore()"
    code = f"{restore}; import mxnet; import gluon_amp" + THREADS
    assert json.loads(run(code))["threads"] == hardware.count_cores() // 2
    cores = hardware.count_cores()
    said = (
        f"{cores // 2} of the {cores} cores: import gluon_amp first, or set OMP_NUM_THREADS={cores}"
    )
    assert said in run("import sys; sys.stderr = sys.stdout; " + code)
    for quiet in ("import gluon_amp", "import gluon_amp, mxnet"):
        assert run("import sys; sys.stderr = sys.stdout; " + quiet) == ""
    assert "cores" not in run("import sys; sys.stderr = sys.stdout; " + code, OMP_NUM_THREADS="2")


@pytest.mark.parametrize("processors, idle", [(4, True), (8, False)])
def test_hyperthreads_are_no_idle_cores(processors, idle, monkeypatch, caplog):
    """MXNet starts a thread for two processors, which are one core with hyperthreads."""
    monkeypatch.setattr(cpu, "count_cores", lambda: 4)
    monkeypatch.setattr(cpu, "count_processors", lambda: processors)
    monkeypatch.setattr(mx.runtime.Features, "is_enabled", lambda self, name: False)
    for name in cpu.THREADS:
        monkeypatch.delenv(name, raising=False)
    with cpu.one_thread_per_core():
        assert ("2 of the 4 cores" in caplog.text) == idle


@pytest.mark.parametrize("chosen", [{}, dict.fromkeys(cpu.THREADS, "3"), {"imported": True}])
def test_threads_are_set_during_the_import_alone(chosen, monkeypatch):
    """Not against a user's choice, by either variable, and not if MXNet has its threads already."""
    monkeypatch.setattr(cpu, "count_cores", lambda: 5)
    for name in cpu.THREADS:
        monkeypatch.delenv(name, raising=False)
    if "imported" not in chosen:
        monkeypatch.delitem(sys.modules, "mxnet")
    for name in chosen.keys() & {*cpu.THREADS} or [None]:
        with monkeypatch.context() as users:
            if name:
                users.setenv(name, "3")
            before = dict(os.environ)
            with pytest.raises(KeyError, match="lost"), cpu.one_thread_per_core():
                expected = before if chosen else {**before, "OMP_NUM_THREADS": "5"}
                assert dict(os.environ) == expected
                raise KeyError("lost")
            assert dict(os.environ) == before


@pytest.mark.parametrize(
    "name, text, accepted",
    [
        ("OMP_NUM_THREADS", "abc", False),
        ("OMP_NUM_THREADS", "4,2", False),  # OpenMP reads a number for each nesting level
        ("OMP_NUM_THREADS", " ", False),
        ("OMP_NUM_THREADS", str(2**31), False),
        ("OMP_NUM_THREADS", "", True),
        ("OMP_NUM_THREADS", " +4 ", True),
        ("OMP_NUM_THREADS", "-1", True),
        ("MXNET_CPU_WORKER_NTHREADS", "1.5", False),
        ("MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN_FWD", "all", False),
        ("MXNET_DISABLE_MKLDNN_FUSE_CONV_BN", "yes", False),
    ],
)
def test_a_number_that_mxnet_cannot_read_is_refused(name, text, accepted, monkeypatch):
    for other in cpu.INTEGERS:
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv(name, text)
    cpu.check_variables()  # MXNet has read its variables
    monkeypatch.delitem(sys.modules, "mxnet")
    if accepted:
        cpu.check_variables()
        return
    with pytest.raises(ImportError, match=rf"^The .* {name} is {text!r}, .*set it to one integer"):
        cpu.check_variables()


def test_the_command_refuses_such_a_number():
    command = [sys.executable, "-c", "import gluon_amp_console; exit(gluon_amp_console.main())"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "abc"}
    done = subprocess.run([*command, "doctor"], env=environment, capture_output=True, text=True)
    assert done.returncode == 2 and not done.stdout
    assert re.fullmatch(r"gluon-amp: The environment variable OMP_NUM_THREADS .*\n", done.stderr)


def test_settings_of_the_user_stay(monkeypatch):
    monkeypatch.setenv("MXNET_CPU_PARALLEL_SIZE", "1000")
    monkeypatch.delenv("MXNET_CPU_TEMP_COPY", raising=False)
    monkeypatch.setenv("DNNL_MAX_CPU_ISA", "AVX512_CORE_BF16")
    monkeypatch.setattr(cpu, "has_amx", lambda: True)
    monkeypatch.setattr(cpu, "request_amx", lambda: pytest.fail("AMX is not wanted"))
    cpu.configure()
    assert os.environ["MXNET_CPU_PARALLEL_SIZE"] == "1000"
    assert os.environ["MXNET_CPU_TEMP_COPY"] == "1"


# How many new pages forty arrays of 4,096 pages need, after some that were freed
FAULTS = """
import gluon_amp, resource, mxnet as mx
faults = []
for _ in range(50):
    mx.nd.ones(2**22).wait_to_read()
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
print(faults[-1] - faults[-41])
"""


@pytest.mark.skipif("glibc" not in platform.libc_ver(), reason="mallopt is glibc's")
def test_freed_memory_is_used_again_unless_the_user_has_chosen():
    """A few arrays need new pages: glibc may give a part of what was freed to small objects."""
    assert int(run(FAULTS)) < 40_000
    assert int(run(FAULTS, MALLOC_TOP_PAD_="131072")) > 150_000
    assert int(run(FAULTS, GLIBC_TUNABLES="glibc.malloc.top_pad=131072")) > 150_000


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
def test_forked_and_started_processes_compute():
    # a fork inherits its parent's permission and oneDNN's settings; a new program does not
    code = (
        "import gluon_amp, multiprocessing, subprocess, sys\n"
        f"CODE = {CONVOLUTION!r}\n"
        "ALONE = 'from experiments.standalone import compat; compat.restore()' + CODE\n"
        "child = multiprocessing.get_context('fork').Process(target=exec, args=(CODE, {}))\n"
        "child.start(); child.join(); print(child.exitcode, flush=True)\n"
        "print(subprocess.run([sys.executable, '-c', ALONE]).returncode)\n"
    )
    assert run(code).split("\n")[:-1] == ["[576.0]", "0", "[576.0]", "0"]
