"""Where the time of a training step goes: oneDNN's primitives on a CPU, kernels on a GPU."""

import csv
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import Dict, List, NamedTuple, Sequence, Tuple

from experiments import ROOT
from experiments.benchmarks.measure import BenchmarkError
from experiments.benchmarks.suites import Case

STEPS = 5

# Tensor Core kernels have the shape of their instruction, or what runs it, in their names
# (cuBLAS, cuDNN and CUTLASS of CUDA 11): volta_h884gemm, ampere_fp16_s16816gemm, xmma_fprop, ...
TENSOR_CORE = re.compile(r"884|1688|16816|hmma|imma|xmma|tensorop", re.IGNORECASE)

ONE_STEP = """
import json, sys
sys.path.insert(0, {checkout!r})
from experiments.benchmarks.suites import Case
from experiments.benchmarks.work import WORK
run = WORK["train"](Case(**json.loads(sys.argv[1])))
for number in range(int(sys.argv[2])):
    run()
import mxnet as mx
mx.nd.waitall()
print("begin", flush=True)
for number in range({steps}):
    run()
mx.nd.waitall()
print("end", flush=True)
"""


class Entry(NamedTuple):
    """What one kind of kernel took, for one step."""

    name: str
    calls: float
    milliseconds: float
    tensor_cores: bool = False


def profile(case: Case) -> Tuple[List[Entry], str]:
    """Return what a step of a case spends its time in, the longest first, and who says so.

    Raises
    ------
    BenchmarkError
        The case cannot run, or a GPU is used and ``nsys`` is not installed.
    """
    if _has_gpu():
        return gpu_kernels(_gpu_kernels_of(case)), "CUDA kernels, by Nsight Systems"
    return onednn_primitives(_run(case, [])), "oneDNN primitives, by DNNL_VERBOSE"


def _has_gpu() -> bool:
    told = subprocess.run(
        [sys.executable, "-c", "import mxnet; print(mxnet.context.num_gpus())"],
        capture_output=True, text=True,
    )  # fmt: skip
    return told.stdout.strip() not in ("", "0")


def _gpu_kernels_of(case: Case) -> str:
    if shutil.which("nsys") is None:
        raise BenchmarkError("--profile on a GPU needs Nsight Systems: install nsys.")
    with tempfile.TemporaryDirectory() as folder:
        made = f"{folder}/profile"
        _run(case, ["nsys", "profile", "--output", made])
        (report,) = [path for path in Path(folder).iterdir() if path.suffix != ".sqlite"]
        told = subprocess.run(
            ["nsys", "stats", "--report", "gpukernsum", "--format", "csv", str(report)],
            capture_output=True, text=True,
        )  # fmt: skip
    return told.stdout


def _run(case: Case, before: Sequence[str]) -> str:
    code = ONE_STEP.format(checkout=str(ROOT), steps=STEPS)
    done = subprocess.run(
        [*before, sys.executable, "-c", code, json.dumps(asdict(case)), "2"],
        env={**os.environ, "DNNL_VERBOSE": "1"}, capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
        raise BenchmarkError(f"{case.label}: {lines[-1]}")
    return done.stdout


def onednn_primitives(text: str) -> List[Entry]:
    """Sum up the lines that oneDNN 2.4 writes with DNNL_VERBOSE=1, between 'begin' and 'end'.

    Each has commas between the kind of primitive, its implementation, the direction, the tensors
    ('src_bf16::blocked:...'), and the milliseconds last.
    """
    calls: Dict[str, int] = defaultdict(int)
    times: Dict[str, float] = defaultdict(float)
    for line in text.partition("begin\n")[2].splitlines():
        parts = line.split(",")
        if parts[:2] != ["dnnl_verbose", "exec"]:
            continue
        _, _, _, kind, implementation, direction, tensors = parts[:7]
        dtypes = sorted(set(re.findall(r"_(bf16|f32|f16|s8|u8|s32)::", tensors)))
        way = "" if direction == "undef" else f" {direction}"
        name = f"{kind}{way}, {'+'.join(dtypes)}, {implementation}"
        calls[name] += 1
        times[name] += float(parts[-1])
    return _sorted(calls, times, lambda name: False)


def gpu_kernels(text: str) -> List[Entry]:
    """Read the kernels of ``nsys stats --report gpukernsum --format csv``."""
    calls: Dict[str, int] = defaultdict(int)
    times: Dict[str, float] = defaultdict(float)
    table = text.partition("Time (%)")
    for row in csv.DictReader(io.StringIO(table[1] + table[2])):
        if row.get("Name") and row.get("Instances"):
            calls[row["Name"]] += int(row["Instances"])
            times[row["Name"]] += float(row["Total Time (ns)"]) / 1e6
    return _sorted(calls, times, lambda name: bool(TENSOR_CORE.search(name)))


def _sorted(calls: Dict[str, int], times: Dict[str, float], tensor_cores) -> List[Entry]:
    found = [
        Entry(name, calls[name] / STEPS, times[name] / STEPS, tensor_cores(name)) for name in times
    ]
    return sorted(found, key=lambda entry: -entry.milliseconds)


def as_table(entries: List[Entry], shown: int = 15) -> str:
    """Return the longest as a Markdown table, and what they come to."""
    total = sum(entry.milliseconds for entry in entries) or 1.0
    lines = ["| ms a step | share | calls | what |", "| ---: | ---: | ---: | :--- |"]
    lines += [
        f"| {entry.milliseconds:.2f} | {100 * entry.milliseconds / total:.1f} % | "
        f"{entry.calls:g} | {entry.name} |"
        for entry in entries[:shown]
    ]
    rest = entries[shown:]
    if rest:
        took = sum(entry.milliseconds for entry in rest)
        lines.append(f"| {took:.2f} | {100 * took / total:.1f} % | | {len(rest)} others |")
    cores = sum(entry.milliseconds for entry in entries if entry.tensor_cores)
    if cores:
        lines.append(f"\nTensor Core kernels take {100 * cores / total:.1f} % of {total:.2f} ms.")
    else:
        lines.append(f"\n{total:.2f} ms in all.")
    return "\n".join(lines)
