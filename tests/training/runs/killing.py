"""A training script whose processes die at a given moment, and what its checkpoints hold."""

import json
import re
import subprocess
import sys
import time

from gluon_amp.checkpoint.contents import read as read_checkpoint
from tests.training.runs.scripts import environment

# Two epochs of four batches; the images are shifted and mixed, and a checkpoint holds two batches.
OPTIONS = """
--dataset digits --dtype float16 --mixup 0.2 --batch-size 16 --max-batches 4 --epochs 2
--warmup-epochs 0 --log-interval 0 --save-batches 2 --keep 99 --seed 5 --kv-store dist_sync
""".split()

# The training script with a small network that has BatchNorm and Dropout. After one of its steps,
# the worker that $DIES names kills itself, or stops, or kills another process. With $SLOW, worker 1
# is very slow in its first step and in its first validation.
SCRIPT = """
import os, signal, sys, time
from pathlib import Path

import gluon_amp
from gluon_amp.training.workers.group import leave
from gluon_amp.training.runs import loop, script
from gluon_amp.training.runs.engines.gluon import GluonEngine
from gluon_amp.training.runs import building
from gluon_amp.training.runs.recipe import read
from mxnet.gluon import nn


def build(model, classes):
    net = nn.HybridSequential()
    net.add(nn.Conv2D(4, 3, strides=2), nn.BatchNorm(), nn.Activation("relu"), nn.Flatten())
    net.add(nn.Dropout(0.5), nn.Dense(classes))
    return net


def pid_of(role):
    for process in Path("/proc").glob("[0-9]*"):
        try:
            variables = (process / "environ").read_text().split(chr(0))
        except OSError:
            continue
        of_run = "DMLC_PS_ROOT_PORT=" + os.environ["DMLC_PS_ROOT_PORT"]
        if of_run in variables and "DMLC_ROLE=" + role in variables:
            return int(process.name)


def count(self, epoch, number, report, counts, _count=loop.Loop._count):
    _count(self, epoch, number, report, counts)
    role, rank, *at = os.environ["DIES"].split()
    if [str(epoch), str(number)] == at and str(self.workers.rank) == rank:
        Path(os.environ["DIED"]).write_text(str(time.time()))
        pid = os.getpid() if role in ("worker", "stopped") else pid_of(role)
        os.kill(pid, signal.SIGSTOP if role == "stopped" else signal.SIGKILL)


def slow(method):
    def slowed(*arguments):
        if method not in done and os.environ["NUMBER"] == "1":
            done.add(method)
            time.sleep(float(os.environ["SLOW"]))
        return method(*arguments)

    done = set()
    return slowed


def main():
    building.build = build
    if os.environ.get("DIES"):
        loop.Loop._count = count
    if os.environ.get("SLOW"):
        GluonEngine.step = slow(GluonEngine.step)
        loop.Loop.validate = slow(loop.Loop.validate)
    return script.run(read)


leave(main)
"""


def run(script, folder, launch, *options, dies=""):
    """Run until the end, or until a process dies; return the ended process, and its seconds."""
    folder.mkdir(exist_ok=True)
    resume = ["--resume", "auto"] if list(folder.glob("*.ckpt")) else []
    command = [*launch, sys.executable, str(script), *OPTIONS, *options, *resume]
    died = folder / "died"
    done = subprocess.run(
        [*command, "--save-dir", str(folder)],
        env=environment(OMP_NUM_THREADS="1", DIES=dies, DIED=str(died)),
        capture_output=True,
        text=True,
        timeout=200,
    )
    done.seconds = time.time() - float(died.read_text()) if dies else None
    return done


def finish(*arguments, **options):
    done = run(*arguments, **options)
    assert done.returncode == 0, done.stderr
    return done


def contents(path):
    """All bits of a checkpoint as text, but for what a clock measured."""
    text = json.dumps(read_checkpoint(str(path)), default=lambda array: array.tobytes().hex())
    return re.sub(r'"(seconds|waited)": [^,}]*', r'"\1": 0', text)


def checkpoints(folder):
    return {path.name: contents(path) for path in folder.glob("epoch*.ckpt")}
