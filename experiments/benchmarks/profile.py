"""The kernels that take the time of a training step: oneDNN's primitives, or those of a GPU."""

import csv
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import Iterable, List, NamedTuple, Sequence, Tuple

from experiments import ROOT
from experiments.benchmarks.measure import BenchmarkError, output_of
from experiments.benchmarks.suites import Case

STEPS = 5

# The names of Tensor Core kernels contain the instruction's shape or kind (cuBLAS, cuDNN and
# CUTLASS of CUDA 11): volta_h884gemm, ampere_fp16_s16816gemm, xmma_fprop, ...
TENSOR_CORE = re.compile(r"884|1688|16816|hmma|imma|xmma|tensorop", re.IGNORECASE)

RUN = f"""
import json, sys
from experiments.benchmarks.suites import Case
from experiments.benchmarks.work import WORK
import mxnet as mx
run = WORK["train"](Case(**json.loads(sys.argv[1])))
for number in range(2):
    run()
mx.nd.waitall()
print("begin", flush=True)
for number in range({STEPS}):
    run()
mx.nd.waitall()
print("end", flush=True)
"""


class Entry(NamedTuple):
    """Calls and time of one kind of kernel, for one step."""

    name: str
    calls: float
    milliseconds: float
    tensor_cores: bool = False


def profile(case: Case) -> Tuple[List[Entry], str]:
    """Return the kernels of a step, those with the most time first, and the source of the figures.

    A case that cannot run is a `BenchmarkError`, and so is a GPU without ``nsys``.
    """
    code = "import mxnet; print(mxnet.context.num_gpus())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if done.stdout.strip() in ("", "0"):
        return onednn_primitives(_run(case)), "oneDNN primitives, by DNNL_VERBOSE"
    if shutil.which("nsys") is None:
        raise BenchmarkError("--profile on a GPU needs Nsight Systems: install nsys.")
    with tempfile.TemporaryDirectory() as folder:
        _run(case, ["nsys", "profile", "--output", f"{folder}/profile"])
        (file,) = [path for path in Path(folder).iterdir() if path.suffix != ".sqlite"]
        command = ["nsys", "stats", "--report", "gpukernsum", "--format", "csv", str(file)]
        text = subprocess.run(command, capture_output=True, text=True).stdout
    return gpu_kernels(text), "CUDA kernels, by Nsight Systems"


def _run(case: Case, before: Sequence[str] = ()) -> str:
    command = [*before, sys.executable, "-c", RUN, json.dumps(asdict(case))]
    return output_of(case, command, DNNL_VERBOSE="1", PYTHONPATH=str(ROOT))


def onednn_primitives(text: str) -> List[Entry]:
    """Add up the lines that oneDNN 2.4 writes with DNNL_VERBOSE=1, from 'begin' on.

    The fields of a line are separated by commas. They include the kind of primitive, its
    implementation, the direction, and the tensors ('src_bf16::blocked:...'); the last is the time
    in milliseconds.
    """
    found = []
    for line in text.partition("begin\n")[2].splitlines():
        parts = line.split(",")
        if parts[:2] != ["dnnl_verbose", "exec"]:
            continue
        _, _, _, kind, implementation, direction, tensors = parts[:7]
        dtypes = sorted(set(re.findall(r"_(bf16|f32|f16|s8|u8|s32)::", tensors)))
        suffix = "" if direction == "undef" else f" {direction}"
        found.append((f"{kind}{suffix}, {'+'.join(dtypes)}, {implementation}", 1, float(parts[-1])))
    return _entries(found)


def gpu_kernels(text: str) -> List[Entry]:
    """Return the kernels in the output of ``nsys stats --report gpukernsum --format csv``."""
    _, head, rows = text.partition("Time (%)")
    return _entries(
        [
            (row["Name"], int(row["Instances"]), float(row["Total Time (ns)"]) / 1e6)
            for row in csv.DictReader((head + rows).splitlines())
            if row.get("Name") and row.get("Instances")
        ],
        TENSOR_CORE,
    )


def _entries(
    found: Iterable[Tuple[str, int, float]], tensor_core: "re.Pattern[str]" = re.compile(r"$^")
) -> List[Entry]:
    calls, times = defaultdict(int), defaultdict(float)
    for name, count, milliseconds in found:
        calls[name] += count
        times[name] += milliseconds
    entries = [
        Entry(name, calls[name] / STEPS, times[name] / STEPS, bool(tensor_core.search(name)))
        for name in times
    ]
    return sorted(entries, key=lambda entry: -entry.milliseconds)


def as_table(entries: List[Entry], shown: int = 15) -> str:
    """Return a Markdown table of the first `shown` entries and the sum of the others."""
    total = sum(entry.milliseconds for entry in entries) or 1.0
    lines = ["| ms a step | share | calls | kernel |", "| ---: | ---: | ---: | :--- |"]
    lines += [
        f"| {entry.milliseconds:.2f} | {100 * entry.milliseconds / total:.1f} % | "
        f"{entry.calls:g} | {entry.name} |"
        for entry in entries[:shown]
    ]
    time = sum(entry.milliseconds for entry in entries[shown:])
    lines.append(f"| {time:.2f} | {100 * time / total:.1f} % | | others |")
    cores = sum(entry.milliseconds for entry in entries if entry.tensor_cores)
    share = f", Tensor Core kernels {100 * cores / total:.1f} %" if cores else ""
    lines.append(f"\n{total:.2f} ms in total{share}.")
    return "\n".join(lines)
