"""How often a step changes the layout of an array: reorders of oneDNN, and our own operators."""

import json
import re
import sys
import tempfile
from dataclasses import asdict
from typing import NamedTuple

from experiments import ROOT
from experiments.benchmarks.measure import output_of
from experiments.benchmarks.suites import Case

# gluon_amp's operators that change from plain to blocked arrays or back, and their gradients
LAYOUT_CHANGES = re.compile(r"(_backward)?_gluon_amp_(un)?block$")

# The arguments: the case, and a file for MXNet's profiler, which counts the operators of a graph,
# those of its backward pass included.
RUN = """
import json, sys
from experiments.benchmarks.suites import Case
from experiments.benchmarks.work import WORK
import mxnet as mx
case = Case(**json.loads(sys.argv[1]))
run = WORK[case.work](case)
for number in range(2):  # the first runs allocate memory and convert weights
    run()
mx.nd.waitall()
all_kinds = {"profile_symbolic": True, "profile_imperative": True}
mx.profiler.set_config(aggregate_stats=True, filename=sys.argv[2], **all_kinds)
mx.profiler.set_state("run")
print("begin", flush=True)
run()
mx.nd.waitall()
print("end", flush=True)
mx.profiler.set_state("stop")
operators = json.loads(mx.profiler.dumps(format="json"))["Time"]["operator"]
print(json.dumps({name: entry["Count"] for name, entry in operators.items()}))
"""
VARIABLES = {
    "DNNL_VERBOSE": "1",
    "PYTHONPATH": str(ROOT),
    # without bulk execution, in which MXNet's profiler sees several operators as one
    "MXNET_EXEC_BULK_EXEC_TRAIN": "0",
    "MXNET_EXEC_BULK_EXEC_INFERENCE": "0",
}


class Reorders(NamedTuple):
    """Changes of layout in one step: oneDNN's, and gluon_amp's own operators."""

    onednn: int
    own: int


def count(case: Case) -> Reorders:
    """Run a training step or a forward pass in a process of its own; return its reorders.

    A case that cannot run is a `BenchmarkError`.
    """
    with tempfile.TemporaryDirectory() as folder:
        # MXNet's profiler deletes its file and creates it anew: as root, /dev/null too
        command = [sys.executable, "-c", RUN, json.dumps(asdict(case)), f"{folder}/profile.json"]
        return counted(output_of(case, command, **VARIABLES))


def counted(text: str) -> Reorders:
    """Count the reorders in what the process printed between 'begin' and 'end', and after.

    A line of oneDNN 2.4 with DNNL_VERBOSE=1 has the kind of primitive as its fourth field.
    """
    verbose, _, operators = text.partition("begin\n")[2].partition("end\n")
    lines = [line.split(",") for line in verbose.splitlines()]
    executed = [line[3] for line in lines if line[:2] == ["dnnl_verbose", "exec"]]
    counts = json.loads(operators.splitlines()[-1])
    own = sum(number for name, number in counts.items() if LAYOUT_CHANGES.fullmatch(name))
    return Reorders(executed.count("reorder"), own)
