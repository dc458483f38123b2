"""What a step spends its time on: oneDNN's primitives or a GPU's kernels, and changes of layout."""

import csv
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Iterable, List, NamedTuple, Sequence, Tuple

from experiments import ROOT
from experiments.benchmarks.measure import BenchmarkError, output_of
from experiments.benchmarks.suites import Case
from experiments.pages import table

STEPS = 5  # whose mean time is shown

# The names of Tensor Core kernels contain the instruction's shape or kind (cuBLAS, cuDNN and
# CUTLASS of CUDA 11): volta_h884gemm, ampere_fp16_s16816gemm, xmma_fprop, ...
TENSOR_CORE = re.compile(r"884|1688|16816|hmma|imma|xmma|tensorop", re.IGNORECASE)

# gluon_amp's operators that change from plain to blocked arrays or back, and their gradients
LAYOUT_CHANGES = re.compile(r"(_backward)?_gluon_amp_(un)?block$")

# The arguments: the case, the number of steps, and perhaps a file for MXNet's profiler, which
# counts the operators of a graph, those of its backward pass included.
RUN = """
import json, sys
from experiments.benchmarks.suites import Case
from experiments.benchmarks.work import WORK
import mxnet as mx
case, steps, files = Case(**json.loads(sys.argv[1])), int(sys.argv[2]), sys.argv[3:]
run = WORK[case.work](case)
for number in range(2):  # the first runs allocate memory and convert weights
    run()
mx.nd.waitall()
if files:
    all_kinds = {"profile_symbolic": True, "profile_imperative": True}
    mx.profiler.set_config(aggregate_stats=True, filename=files[0], **all_kinds)
    mx.profiler.set_state("run")
print("begin", flush=True)
for number in range(steps):
    run()
mx.nd.waitall()
print("end", flush=True)
if files:
    mx.profiler.set_state("stop")
    operators = json.loads(mx.profiler.dumps(format="json"))["Time"]["operator"]
    print(json.dumps({name: entry["Count"] for name, entry in operators.items()}))
"""


class Entry(NamedTuple):
    """Calls and time of one kind of kernel, for one step."""

    name: str
    calls: float
    milliseconds: float
    tensor_cores: bool = False


class Reorders(NamedTuple):
    """Changes of layout in one step: oneDNN's, and gluon_amp's own operators."""

    onednn: int
    own: int

    @property
    def total(self) -> int:
        """Their sum."""
        return self.onednn + self.own


def profile(case: Case) -> Tuple[List[Entry], str]:
    """Return the kernels of a step, those with the most time first, and the source of the figures.

    A case that cannot run is a `BenchmarkError`, and so is a GPU without ``nsys``.
    """
    code = "import mxnet; print(mxnet.context.num_gpus())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if done.stdout.strip() in ("", "0"):
        return onednn_primitives(_run(case, [str(STEPS)])), "oneDNN primitives, by DNNL_VERBOSE"
    if shutil.which("nsys") is None:
        raise BenchmarkError("--profile on a GPU needs Nsight Systems: install nsys.")
    with tempfile.TemporaryDirectory() as folder:
        _run(case, [str(STEPS)], ["nsys", "profile", "--output", f"{folder}/profile"])
        (file,) = [path for path in Path(folder).iterdir() if path.suffix != ".sqlite"]
        command = ["nsys", "stats", "--report", "gpukernsum", "--format", "csv", str(file)]
        text = subprocess.run(command, capture_output=True, text=True).stdout
    return gpu_kernels(text), "CUDA kernels, by Nsight Systems"


def _run(case: Case, arguments: Sequence[str], before: Sequence[str] = (), **variables: str) -> str:
    command = [*before, sys.executable, "-c", RUN, json.dumps(asdict(case)), *arguments]
    return output_of(command, case.label, DNNL_VERBOSE="1", PYTHONPATH=str(ROOT), **variables)


def _executed(text: str) -> List[List[str]]:
    """Return the fields of the lines that oneDNN 2.4 writes with DNNL_VERBOSE=1.

    They include the kind of primitive, its implementation, the direction, and the tensors
    ('src_bf16::blocked:...'); the last is the time in milliseconds.
    """
    lines = [line.split(",") for line in text.partition("begin\n")[2].splitlines()]
    return [line for line in lines if line[:2] == ["dnnl_verbose", "exec"]]


def onednn_primitives(text: str) -> List[Entry]:
    """Add up the primitives that were executed from 'begin' on."""
    found = []
    for parts in _executed(text):
        _, _, _, kind, implementation, direction, tensors = parts[:7]
        dtypes = sorted(set(re.findall(r"_(bf16|f32|f16|s8|u8|s32)::", tensors)))
        suffix = "" if direction == "undef" else f" {direction}"
        found.append((f"{kind}{suffix}, {'+'.join(dtypes)}, {implementation}", 1, float(parts[-1])))
    return _entries(found)


def gpu_kernels(text: str) -> List[Entry]:
    """Return the kernels in the output of ``nsys stats --report gpukernsum --format csv``."""
    _, head, rows = text.partition("Time (%)")
    found = [
        (row["Name"], int(row["Instances"]), float(row["Total Time (ns)"]) / 1e6)
        for row in csv.DictReader((head + rows).splitlines())
        if row.get("Name") and row.get("Instances")
    ]
    return [
        one._replace(tensor_cores=bool(TENSOR_CORE.search(one.name))) for one in _entries(found)
    ]


def _entries(found: Iterable[Tuple[str, int, float]]) -> List[Entry]:
    calls, times = Counter(), Counter()
    for name, count, milliseconds in found:
        calls[name] += count
        times[name] += milliseconds
    return [Entry(name, calls[name] / STEPS, time / STEPS) for name, time in times.most_common()]


def as_table(entries: List[Entry], shown: int = 15) -> str:
    """Return a Markdown table of the first `shown` entries and the sum of the others."""
    total = sum(entry.milliseconds for entry in entries) or 1.0
    rest = sum(entry.milliseconds for entry in entries[shown:])
    times = [(one.milliseconds, f"{one.calls:g}", one.name) for one in entries[:shown]]
    rows = [
        [name, f"{time:.2f}", f"{100 * time / total:.1f} %", calls]
        for time, calls, name in [*times, (rest, "", "others")]
    ]
    cores = sum(entry.milliseconds for entry in entries if entry.tensor_cores)
    share = f", Tensor Core kernels {100 * cores / total:.1f} %" if cores else ""
    head = ["kernel", "ms a step", "share", "calls"]
    return f"{table(head, rows)}\n\n{total:.2f} ms in total{share}."


def count_reorders(case: Case) -> Reorders:
    """Run a training step or a forward pass in a process of its own; return its reorders.

    A case that cannot run is a `BenchmarkError`.
    """
    # without bulk execution, in which MXNet's profiler sees several operators as one
    bulk = {"MXNET_EXEC_BULK_EXEC_TRAIN": "0", "MXNET_EXEC_BULK_EXEC_INFERENCE": "0"}
    with tempfile.TemporaryDirectory() as folder:
        # MXNet's profiler deletes its file and creates it anew: as root, /dev/null too
        return reorders(_run(case, ["1", f"{folder}/profile.json"], **bulk))


def reorders(text: str) -> Reorders:
    """Count the reorders in what the process printed between 'begin' and 'end', and after."""
    verbose, _, operators = text.partition("end\n")
    counts = json.loads(operators.splitlines()[-1])
    own = sum(number for name, number in counts.items() if LAYOUT_CHANGES.fullmatch(name))
    return Reorders(sum(line[3] == "reorder" for line in _executed(verbose)), own)
