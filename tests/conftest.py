"""Import gluon_amp before any test module imports mxnet, and seed every test."""

import ctypes
import gc
import os
import signal

# Two processes of the suite run side by side, and each has one core.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Tests that change HOME, so that no data of the user is found, keep the compiled library.
os.environ.setdefault("XDG_CACHE_HOME", os.path.join(os.path.expanduser("~"), ".cache"))

import numpy as np
import pytest

import gluon_amp  # noqa: F401  (restores the numpy aliases that mxnet needs)
from gluon_amp import kernels

import mxnet as mx

kernels.prepare()  # marks ask whether the library is there


def pytest_addoption(parser):
    """Let the tests that draw their cases draw more of them, or others."""
    add = parser.addoption
    add("--random-nets", type=int, default=40, help="how many networks test_random_nets.py tries")
    add("--random-nets-seed", type=int, default=0, help="which ones")
    add("--command-lines", type=int, default=75, help="how many test_command_lines.py tries")
    add("--kills", type=int, default=1, help="how often test_workers_killed.py kills each run")


@pytest.fixture(scope="module", autouse=True)
def memory_given_back():
    """Give the memory of a file's tests back to the system, so that a process stays small."""
    yield
    mx.nd.waitall()
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


@pytest.fixture(autouse=True)
def seeded():
    np.random.seed(0)
    mx.random.seed(0)


@pytest.fixture(params=["nd", "np"])
def arrays(request):
    """Return the array module: `mx.nd`, or `mx.np` while `npx.set_np()` holds (Law 13)."""
    if request.param == "nd":
        yield mx.nd
        return
    mx.npx.set_np()
    yield mx.np
    mx.npx.reset_np()


@pytest.fixture(params=kernels.INSTRUCTION_SETS)
def instruction_set(request):
    """Select an instruction set of the C++ library, and yield its name."""
    if not kernels.select(request.param):
        pytest.skip(f"this processor has no {request.param}")
    yield request.param
    kernels.select(None)


@pytest.fixture
def default_signals():
    """Undo what the background of a shell (SIGINT) and nohup (SIGHUP) ignore, for one test."""
    defaults = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in defaults.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
