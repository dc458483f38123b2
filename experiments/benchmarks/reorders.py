"""Counts the changes of layout in a step: oneDNN's reorders, and gluon_amp's own operators.

oneDNN writes a line for each primitive with DNNL_VERBOSE. MXNet's profiler counts the operators of
a graph that were executed, those of its backward pass included.
"""

import json
import os
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

STEPS = """
import json, sys
from experiments.benchmarks.suites import Case
from experiments.benchmarks.work import WORK
import mxnet as mx
case = Case(**json.loads(sys.argv[1]))
run = WORK[case.work](case)
for number in range(2):  # the first runs allocate memory and convert weights
    run()
mx.nd.waitall()
mx.profiler.set_config(
    profile_symbolic=True, profile_imperative=True, aggregate_stats=True, filename=sys.argv[2]
)
mx.profiler.set_state("run")
print("begin", flush=True)
run()
mx.nd.waitall()
print("end", flush=True)
mx.profiler.set_state("stop")
operators = json.loads(mx.profiler.dumps(format="json"))["Time"]["operator"]
print(json.dumps({name: entry["Count"] for name, entry in operators.items()}))
"""


class Reorders(NamedTuple):
    """Changes of layout in one step."""

    onednn: int
    own: int

    @property
    def total(self) -> int:
        """Their sum."""
        return self.onednn + self.own


def count(case: Case) -> Reorders:
    """Run a training step or a forward pass in a process of its own; return its reorders.

    A case that cannot run is a `BenchmarkError`.
    """
    # without bulk execution, in which MXNet's profiler sees several operators as one
    bulk = {"MXNET_EXEC_BULK_EXEC_TRAIN": "0", "MXNET_EXEC_BULK_EXEC_INFERENCE": "0"}
    with tempfile.TemporaryDirectory() as folder:
        # MXNet's profiler deletes its file and creates it anew: as root, /dev/null too
        profile = os.path.join(folder, "profile.json")
        command = [sys.executable, "-c", STEPS, json.dumps(asdict(case)), profile]
        text = output_of(case, command, **bulk, DNNL_VERBOSE="1", PYTHONPATH=str(ROOT))
    return parse(text)


def parse(text: str) -> Reorders:
    """Count the reorders in what the process printed between 'begin' and 'end', and after."""
    verbose, _, operators = text.partition("begin\n")[2].partition("end\n")
    lines = (line.split(",") for line in verbose.splitlines())
    onednn = sum(line[:2] == ["dnnl_verbose", "exec"] and line[3] == "reorder" for line in lines)
    counts = json.loads(operators.splitlines()[-1])
    own = sum(number for name, number in counts.items() if LAYOUT_CHANGES.fullmatch(name))
    return Reorders(onednn, own)
