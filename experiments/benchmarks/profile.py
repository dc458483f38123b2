"""The kernels that take the time of a training step: oneDNN's primitives, or those of a GPU."""

import csv
import io
import json
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
from experiments.benchmarks.measure import BenchmarkError, output_of
from experiments.benchmarks.suites import Case

STEPS = 5

# The names of Tensor Core kernels contain the instruction's shape or kind (cuBLAS, cuDNN and
# CUTLASS of CUDA 11): volta_h884gemm, ampere_fp16_s16816gemm, xmma_fprop, ...
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
    """Calls and time of one kind of kernel, for one step."""

    name: str
    calls: float
    milliseconds: float
    tensor_cores: bool = False


def profile(case: Case) -> Tuple[List[Entry], str]:
    """Return the kernels of a step, those with the most time first, and the source of the figures.

    A case that cannot run is a `BenchmarkError`, and so is a GPU without ``nsys``.
    """
    if _has_gpu():
        return gpu_kernels(_gpu_kernels_of(case)), "CUDA kernels, by Nsight Systems"
    return onednn_primitives(_run(case, [])), "oneDNN primitives, by DNNL_VERBOSE"


def _has_gpu() -> bool:
    code = "import mxnet; print(mxnet.context.num_gpus())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    return done.stdout.strip() not in ("", "0")


def _gpu_kernels_of(case: Case) -> str:
    if shutil.which("nsys") is None:
        raise BenchmarkError("--profile on a GPU needs Nsight Systems: install nsys.")
    with tempfile.TemporaryDirectory() as folder:
        _run(case, ["nsys", "profile", "--output", f"{folder}/profile"])
        (report,) = [path for path in Path(folder).iterdir() if path.suffix != ".sqlite"]
        done = subprocess.run(
            ["nsys", "stats", "--report", "gpukernsum", "--format", "csv", str(report)],
            capture_output=True,
            text=True,
        )
    return done.stdout


def _run(case: Case, before: Sequence[str]) -> str:
    code = ONE_STEP.format(checkout=str(ROOT), steps=STEPS)
    command = [*before, sys.executable, "-c", code, json.dumps(asdict(case)), "2"]
    return output_of(case, command, DNNL_VERBOSE="1")


def onednn_primitives(text: str) -> List[Entry]:
    """Add up the lines that oneDNN 2.4 writes with DNNL_VERBOSE=1, from 'begin' on.

    The fields of a line are separated by commas. They include the kind of primitive, its
    implementation, the direction, and the tensors ('src_bf16::blocked:...'); the last is the time
    in milliseconds.
    """
    calls: Dict[str, int] = defaultdict(int)
    times: Dict[str, float] = defaultdict(float)
    for line in text.partition("begin\n")[2].splitlines():
        parts = line.split(",")
        if parts[:2] != ["dnnl_verbose", "exec"]:
            continue
        _, _, _, kind, implementation, direction, tensors = parts[:7]
        dtypes = sorted(set(re.findall(r"_(bf16|f32|f16|s8|u8|s32)::", tensors)))
        suffix = "" if direction == "undef" else f" {direction}"
        name = f"{kind}{suffix}, {'+'.join(dtypes)}, {implementation}"
        calls[name] += 1
        times[name] += float(parts[-1])
    return _sorted(calls, times, lambda name: False)


def gpu_kernels(text: str) -> List[Entry]:
    """Return the kernels in the output of ``nsys stats --report gpukernsum --format csv``."""
    calls: Dict[str, int] = defaultdict(int)
    times: Dict[str, float] = defaultdict(float)
    table = text.partition("Time (%)")
    for row in csv.DictReader(io.StringIO(table[1] + table[2])):
        if row.get("Name") and row.get("Instances"):
            calls[row["Name"]] += int(row["Instances"])
            times[row["Name"]] += float(row["Total Time (ns)"]) / 1e6
    return _sorted(calls, times, lambda name: bool(TENSOR_CORE.search(name)))


def _sorted(calls: Dict[str, int], times: Dict[str, float], tensor_cores) -> List[Entry]:
    entries = [
        Entry(name, calls[name] / STEPS, times[name] / STEPS, tensor_cores(name)) for name in times
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
    others = entries[shown:]
    if others:
        time = sum(entry.milliseconds for entry in others)
        lines.append(f"| {time:.2f} | {100 * time / total:.1f} % | | {len(others)} others |")
    cores = sum(entry.milliseconds for entry in entries if entry.tensor_cores)
    if cores:
        lines.append(f"\nTensor Core kernels take {100 * cores / total:.1f} % of {total:.2f} ms.")
    else:
        lines.append(f"\n{total:.2f} ms in total.")
    return "\n".join(lines)
