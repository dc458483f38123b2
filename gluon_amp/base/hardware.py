"""This machine's CPU and this process's memory, as the operating system reports them.

This module uses the standard library only, so that it can run before MXNet is imported.
"""

import os
import platform
from pathlib import Path
from typing import FrozenSet, Optional

PROCESSORS = Path("/sys/devices/system/cpu")
CPUINFO = Path("/proc/cpuinfo")
STATUS = Path("/proc/self/status")

# The flags that oneDNN's kernels for AVX512 and for AMX need, as Linux names them
AVX512_FLAGS = {"avx512f", "avx512bw", "avx512vl", "avx512dq"}
AMX_FLAGS = {"amx_tile", "amx_bf16", "avx512_bf16"}

# What oneDNN does not use under each value of DNNL_MAX_CPU_ISA (its "CPU Dispatcher Control")
_WITHOUT_AVX512 = AVX512_FLAGS | AMX_FLAGS
EXCLUDED_FLAGS = {
    "SSE41": {"avx", "avx2", *_WITHOUT_AVX512},
    "AVX": {"avx2", *_WITHOUT_AVX512},
    "AVX2": _WITHOUT_AVX512,
    "AVX2_VNNI": _WITHOUT_AVX512,
    "AVX512_CORE": AMX_FLAGS,
    "AVX512_CORE_VNNI": AMX_FLAGS,
    "AVX512_CORE_BF16": {"amx_tile", "amx_bf16"},
}


def cpu_name() -> str:
    """Return the model of the CPU, or its architecture if the system reports nothing else."""
    return _field(CPUINFO, "model name") or platform.processor() or platform.machine()


def cpu_flags() -> FrozenSet[str]:
    """Return the flags of the CPU, as Linux names them; an empty set on other systems."""
    return frozenset((_field(CPUINFO, "flags") or "").split())


def is_intel() -> bool:
    """Return whether Intel made the CPU, as far as the system reports it."""
    return _field(CPUINFO, "vendor_id") == "GenuineIntel"


def onednn_flags() -> FrozenSet[str]:
    """Return the flags of the CPU by which oneDNN is faster, as far as DNNL_MAX_CPU_ISA permits.

    AVX512_BF16 is left out on an Intel CPU without AMX. By it, a step in bfloat16 took 1.17 times
    as long as in float32 for BERT-base, and 1.14 times for a U-Net (Sapphire Rapids, 2026-11-27).
    """
    isa = os.environ.get("DNNL_MAX_CPU_ISA", "").upper()
    flags = cpu_flags().difference(EXCLUDED_FLAGS.get(isa, ()))
    return flags - AMX_FLAGS if is_intel() and not flags >= AMX_FLAGS else flags


def has_fast_bfloat16() -> bool:
    """Return whether oneDNN has bfloat16 that is faster than float32; True if unknown."""
    return not cpu_flags() or "avx512_bf16" in onednn_flags()


def has_amx() -> bool:
    """Return whether oneDNN may use AMX for bfloat16: on Linux, on a CPU that has it."""
    return onednn_flags() >= AMX_FLAGS


def count_processors() -> int:
    """Return how many processors this process may use; a core with hyperthreads counts as two."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def count_cores() -> int:
    """Return how many physical cores this process may use; 0 if the system does not report it."""
    try:
        siblings = {
            (PROCESSORS / f"cpu{number}" / "topology" / "thread_siblings_list").read_text()
            for number in os.sched_getaffinity(0)
        }
    except (AttributeError, OSError):  # not Linux, or /sys is hidden
        return 0
    return len(siblings)


def count_all_cores() -> int:
    """Return how many physical cores this machine has; 0 if the system does not report it."""
    siblings = PROCESSORS.glob("cpu[0-9]*/topology/thread_siblings_list")
    return len({path.read_text() for path in siblings})


def load_average() -> Optional[float]:
    """Return how many threads of the machine ran or were ready to run, in the last minute.

    It is None if the system does not report it.
    """
    try:
        return os.getloadavg()[0]
    except OSError:
        return None


def peak_mebibytes() -> Optional[float]:
    """Return the peak memory of this process in MiB; None on systems other than Linux."""
    peak = _field(STATUS, "VmHWM")  # such as '204800 kB'
    return int(peak.split()[0]) / 1024 if peak else None


def _field(path: Path, name: str) -> Optional[str]:
    """Return the value of the first line ``name: value`` of a file in /proc, None without one."""
    try:
        with open(path) as lines:
            line = next((line for line in lines if line.startswith(name)), "")
    except OSError:
        return None
    return line.partition(":")[2].strip() or None
