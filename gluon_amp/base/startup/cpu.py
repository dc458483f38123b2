"""Settings that make MXNet fast and small on a CPU.

One thread per core. On x86, MXNet 1.9.1 starts half as many threads as there are processors, since
it assumes hyperthreading (``OpenMP::OpenMP`` in ``src/engine/openmp.cc``). Virtual machines mostly
show one processor per core, so half of the cores would be idle.

AMX, the matrix unit of Intel's server CPUs since 2023. MXNet 1.9.1 has bfloat16 kernels for it
(oneDNN 2.4) but does not use them: oneDNN before 2.5 requires DNNL_MAX_CPU_ISA to enable AMX, and
Linux kills a process with SIGILL that uses the AMX registers without permission
(``Documentation/arch/x86/xstate.rst``). AMX computes the same as AVX512_BF16: it multiplies
bfloat16 and accumulates in float32.

One team of OpenMP threads. MXNet copies large arrays from numpy with OpenMP threads of the caller,
in addition to those of its engine. Then there are more OpenMP threads than cores, and libgomp no
longer lets them spin between operators: they sleep and wake a thousand times in a training step.
With a very large MXNET_CPU_PARALLEL_SIZE, a single thread copies.

One scratch memory. MXNet allocates four (MXNET_CPU_TEMP_COPY), so that several operators that need
one can run at the same time. Its engine has only one worker for a CPU, so one is enough. That saves
5 % of the memory of a ResNet-50 training step.

Memory that is freed stays in the process. MXNet allocates each array on a CPU anew, and glibc
returns large ones to Linux, which fills them with zeros when they are used again. With AVX512 that
took 7 % of a small transformer's step, and a fifth of MobileNet's without ``static_alloc``. The
price is memory: a process that trains on images of many sizes held half as much again.

Variables that the user has set are not changed. Only those of MXNet stay in the environment, where
programs that this process starts inherit them.
"""

import contextlib
import ctypes
import logging
import os
import re
import sys
from typing import Dict, Iterator

from gluon_amp.base.hardware import count_cores, count_processors, has_amx

# The variables with which a user chooses the number of threads
THREADS = ("OMP_NUM_THREADS", "MXNET_OMP_MAX_THREADS")
# Integers that MXNet reads when it is loaded. The process ends if one is written in another way.
INTEGERS = """
OMP_NUM_THREADS MXNET_OMP_MAX_THREADS MXNET_CPU_WORKER_NTHREADS MXNET_MP_WORKER_NTHREADS
MXNET_MP_OPENCV_NUM_THREADS MXNET_PROFILER_AUTOSTART MXNET_PROFILER_MODE
MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN_FWD
MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN_BWD MXNET_DISABLE_MKLDNN_CONV_OPT MXNET_DISABLE_MKLDNN_FC_OPT
MXNET_DISABLE_MKLDNN_TRANSFORMER_OPT MXNET_DISABLE_MKLDNN_FUSE_CONV_BN
MXNET_DISABLE_MKLDNN_FUSE_CONV_RELU MXNET_DISABLE_MKLDNN_FUSE_CONV_SUM
""".split()
SETTINGS = {"MXNET_CPU_PARALLEL_SIZE": str(2**31 - 1), "MXNET_CPU_TEMP_COPY": "1"}
AMX = {"DNNL_MAX_CPU_ISA": "AVX512_CORE_AMX"}

# Parameters of glibc's mallopt: M_ARENA_MAX (else the engine's thread has an arena of its own, with
# blocks of less than 64 MiB), M_MMAP_THRESHOLD and M_TRIM_THRESHOLD in bytes
MALLOC = {-8: 1, -3: 2**28, -1: 2**28}

# arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) of Linux on x86-64
_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA = 158, 0x1023, 18


IDLE = (
    "MXNet was imported before gluon_amp and uses %d of the %d cores: "
    "import gluon_amp first, or set OMP_NUM_THREADS=%d."
)

logger = logging.getLogger(__name__)


def check_variables() -> None:
    """Raise an `ImportError` if an environment variable would end the process in MXNet's parser."""
    for name in () if "mxnet" in sys.modules else INTEGERS:
        text = os.environ.get(name, "")
        is_integer = re.fullmatch(r"\s*[+-]?[0-9]+\s*", text) and -(2**31) <= int(text) < 2**31
        if text and not is_integer:
            raise ImportError(
                f"The environment variable {name} is {text!r}, of which MXNet cannot read a number "
                f"and ends the process: set it to one integer, as in {name}=4, or unset it."
            )


def keep_freed_memory() -> None:
    """Let glibc keep about 256 MiB of freed memory, unless the user has chosen how it allocates."""
    chosen = "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "")
    chosen = chosen or any(name.startswith("MALLOC_") for name in os.environ)
    libc = ctypes.CDLL(None)
    if not chosen and hasattr(libc, "mallopt"):  # which musl and macOS lack
        for parameter, value in MALLOC.items():
            libc.mallopt(parameter, value)


@contextlib.contextmanager
def one_thread_per_core() -> Iterator[None]:
    """Return a context in which an import of MXNet gives it one thread per core.

    If MXNet is imported already, it keeps its threads, and a warning says that cores are idle. With
    a wheel for GPUs, there is none.
    """
    cores = count_cores()
    if not cores or any(name in os.environ for name in THREADS):
        yield
    elif "mxnet" in sys.modules:
        threads = max(1, count_processors() // 2)
        if threads < cores and not sys.modules["mxnet"].runtime.Features().is_enabled("CUDA"):
            logger.warning(IDLE, threads, cores, cores)
        yield
    else:
        with environment({"OMP_NUM_THREADS": str(cores)}):
            yield


def configure() -> None:
    """Apply the other settings; call it after the import of MXNet, before its first operator.

    AMX is enabled for this process only: a program that it starts has no permission to use AMX and
    would be killed.
    """
    import mxnet as mx

    os.environ.update({k: v for k, v in SETTINGS.items() if k not in os.environ})
    if not (AMX.keys() & os.environ.keys()) and has_amx() and request_amx():
        with environment(AMX):  # oneDNN reads it once, at its first operator
            one = mx.nd.ones((1, 1), ctx=mx.cpu())
            mx.nd.FullyConnected(one, one, no_bias=True, num_hidden=1).wait_to_read()


def request_amx() -> bool:
    """Request permission to use AMX for this process from Linux (5.16 or later)."""
    libc = ctypes.CDLL(None, use_errno=True)
    failed: int = libc.syscall(_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA)
    return failed == 0


@contextlib.contextmanager
def environment(settings: Dict[str, str]) -> Iterator[None]:
    """Return a context with additional environment variables, which must not be set before."""
    os.environ.update(settings)
    try:
        yield
    finally:
        for name in settings:
            del os.environ[name]
