"""What the system says of this machine's CPU and of this process's memory.

It needs the standard library alone, so that it can run before MXNet is imported.
"""

import os
import platform
from pathlib import Path
from typing import FrozenSet, Optional

PROCESSORS = Path("/sys/devices/system/cpu")
CPUINFO = Path("/proc/cpuinfo")
STATUS = Path("/proc/self/status")


def cpu_name() -> str:
    """Return the model of the CPU, or its architecture where the system does not say more."""
    return _field(CPUINFO, "model name") or platform.processor() or platform.machine()


def cpu_flags() -> FrozenSet[str]:
    """Return what the CPU can do, as Linux names it; nothing on another system."""
    return frozenset((_field(CPUINFO, "flags") or "").split())


def count_processors() -> int:
    """Return how many processors this process may use; a core with hyperthreads is two."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def count_cores() -> int:
    """Return how many physical cores this process may use; 0 where the system does not say."""
    try:
        siblings = {
            (PROCESSORS / f"cpu{number}" / "topology" / "thread_siblings_list").read_text()
            for number in os.sched_getaffinity(0)
        }
    except (AttributeError, OSError):  # not Linux, or /sys is hidden
        return 0
    return len(siblings)


def peak_mebibytes() -> Optional[float]:
    """Return the most memory that this process has held, in MiB; None but on Linux."""
    found = _field(STATUS, "VmHWM")
    return int(found.split()[0]) / 1024 if found else None


def _field(path: Path, name: str) -> Optional[str]:
    """Return the first ``name: value`` of a file of /proc, None where there is none."""
    try:
        with open(path) as lines:
            line = next((line for line in lines if line.startswith(name)), "")
    except OSError:
        return None
    return line.partition(":")[2].strip() or None
