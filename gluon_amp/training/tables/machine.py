"""Describes in words the hardware and the software that the runs of a table used."""

import platform
import re
import subprocess
from collections import Counter

import numpy as np

import gluon_amp
from gluon_amp.base.hardware import count_cores, cpu_flags, cpu_name

import mxnet as mx

BFLOAT16_FLAGS = {"avx512_bf16": "AVX512_BF16", "amx_bf16": "AMX"}
VECTOR_FLAGS = {"avx512f": "AVX512", "avx2": "AVX2"}  # the widest first


def describe_cpu() -> str:
    """Return the CPU's model, cores, and bfloat16 instructions or else its widest vectors."""
    count, flags = count_cores(), cpu_flags()
    cores = [f"{count} core{'s' if count > 1 else ''}"] if count else []
    bfloat16 = [name for flag, name in BFLOAT16_FLAGS.items() if flag in flags]
    vectors = [name for flag, name in VECTOR_FLAGS.items() if flag in flags]
    return ", ".join([cpu_name(), *cores, *(bfloat16 or vectors[:1])])


def versions() -> str:
    """Return the versions of this package, of MXNet, numpy and Python."""
    numbers = {
        "gluon_amp": gluon_amp.__version__,
        "MXNet": mx.__version__,
        "numpy": np.__version__,
        "Python": platform.python_version(),
    }
    return ", ".join(f"{name} {number}" for name, number in numbers.items())


def describe_gpus(names: str) -> str:
    """Return how many GPUs of which kind there are, from one name on each line."""
    counts = Counter(line.strip() for line in names.splitlines() if line.strip())
    return ", ".join(f"{count} × {name}" for name, count in counts.items())


def describe(devices: str) -> str:
    """Return the hardware of MXNet devices such as 'cpu(0)' or 'gpu(0), gpu(1)'."""
    numbers = re.findall(r"gpu\((\d+)\)", devices)
    if not numbers:
        return describe_cpu()
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader", f"--id={','.join(numbers)}"]
    try:
        return describe_gpus(subprocess.run(query, capture_output=True, encoding="utf-8").stdout)
    except OSError:
        return f"{len(numbers)} GPU{'s' if len(numbers) > 1 else ''}"
