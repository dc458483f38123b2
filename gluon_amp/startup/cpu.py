"""Four settings that MXNet needs on a CPU to be fast and small, made before it first runs.

A thread for each core: MXNet 1.9.1 takes half of the processors on x86, as if each core had two
(``OpenMP::OpenMP`` in ``src/engine/openmp.cc``). Virtual machines mostly show cores as they are,
and lose half of them.

AMX, the matrix unit of Intel's server CPUs since 2023: MXNet 1.9.1 has bfloat16 kernels for it
(oneDNN 2.4) and does not use them. oneDNN before 2.5 leaves AMX out unless DNNL_MAX_CPU_ISA asks
for it, and Linux kills a process with SIGILL that uses its registers without having asked for them
(``Documentation/arch/x86/xstate.rst``). The products are those of AVX512_BF16: bfloat16 factors,
float32 sums.

One team of OpenMP threads: MXNet copies large arrays from numpy with threads of the caller's,
beside those of its engine. From then on there are more OpenMP threads than cores, and libgomp no
longer lets them spin between operators but puts them to sleep, a thousand times in a training step.
With MXNET_CPU_PARALLEL_SIZE out of reach, one thread copies.

One scratch memory: MXNet keeps four (MXNET_CPU_TEMP_COPY), so that operators with one can run
side by side; but its engine has one worker for a CPU. Three less are 5 % of a ResNet-50 step's
memory.

docs/benchmarks/step.md has what they bring. What the user has set is left alone, and nothing but
the last two settings stays in the environment for programs that this one starts.
"""

import contextlib
import ctypes
import os
import platform
import sys
from typing import Dict, Iterator

from gluon_amp.hardware import count_cores, cpu_flags

THREADS = ("OMP_NUM_THREADS", "MXNET_OMP_MAX_THREADS")
SETTINGS = {"MXNET_CPU_PARALLEL_SIZE": str(2**31 - 1), "MXNET_CPU_TEMP_COPY": "1"}
AMX = {"DNNL_MAX_CPU_ISA": "AVX512_CORE_AMX"}
AMX_FLAGS = {"amx_tile", "amx_bf16", "avx512_bf16"}

# arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) of Linux on x86-64
_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA = 158, 0x1023, 18


@contextlib.contextmanager
def a_thread_per_core() -> Iterator[None]:
    """While this is entered, an import of MXNet gives it one thread for each core."""
    cores = count_cores()
    if not cores or "mxnet" in sys.modules or any(name in os.environ for name in THREADS):
        yield
    else:
        with _environment({"OMP_NUM_THREADS": str(cores)}):
            yield


def prepare() -> None:
    """Settle the rest for this process, once MXNet is imported and before it runs an operator.

    Programs that this one starts have no permission to use AMX, and would be killed if they did.
    """
    import mxnet as mx

    os.environ.update({k: v for k, v in SETTINGS.items() if k not in os.environ})
    if not (AMX.keys() & os.environ.keys()) and has_amx() and _may_use_amx():
        with _environment(AMX):
            one = mx.nd.ones((1, 1), ctx=mx.cpu())
            mx.nd.FullyConnected(one, one, no_bias=True, num_hidden=1).wait_to_read()


def has_amx() -> bool:
    """Return whether this CPU has AMX for bfloat16, on an operating system that MXNet knows."""
    known = platform.system() == "Linux" and platform.machine() == "x86_64"
    return known and cpu_flags() >= AMX_FLAGS


def _may_use_amx() -> bool:
    """Ask Linux (5.16 or later) for the tile registers, for this process."""
    libc = ctypes.CDLL(None, use_errno=True)
    return libc.syscall(_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA) == 0


@contextlib.contextmanager
def _environment(settings: Dict[str, str]) -> Iterator[None]:
    """Add variables that are not there."""
    os.environ.update(settings)
    try:
        yield
    finally:
        for name in settings:
            del os.environ[name]
