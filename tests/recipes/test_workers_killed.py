"""Workers, servers and schedulers that are killed in mid-epoch, and runs that go on from there."""

import json
import re
import subprocess
import sys
import time

import pytest

from gluon_amp.checkpoint.contents import read as read_checkpoint
from tests import ROOT
from tests.recipes.scripts import environment

LAUNCH = [sys.executable, str(ROOT / "scripts" / "launch.py")]
# Two epochs of four batches; the images are shifted and mixed, and a checkpoint holds two batches.
OPTIONS = """
--dataset digits --dtype float16 --mixup 0.2 --batch-size 16 --max-batches 4 --epochs 2
--warmup-epochs 0 --log-interval 0 --save-batches 2 --keep 99 --seed 5 --kv-store dist_sync
""".split()
BOUND = 15  # seconds from a death to the end of the launcher, which gives the others six

# The training script with a small network that has BatchNorm and Dropout. Before one of its steps,
# the first worker, or the one that is to die, kills the process that $DIES names.
WORKER = """
import os, signal, sys, time
from pathlib import Path

import gluon_amp
from gluon_amp.distributed.workers import leave
from gluon_amp.recipes import loop, script
from gluon_amp.recipes.network import build as network_build
from gluon_amp.recipes.recipe import read
from mxnet.gluon import nn


def build(model, classes):
    net = nn.HybridSequential()
    net.add(nn.Conv2D(4, 3, strides=2), nn.BatchNorm(), nn.Activation("relu"), nn.Flatten())
    net.add(nn.Dropout(0.5), nn.Dense(classes))
    return net


def processes(role, number):
    for process in Path("/proc").glob("[0-9]*"):
        try:
            variables = (process / "environ").read_text().split(chr(0))
        except OSError:
            continue
        of_run = "DMLC_PS_ROOT_PORT=" + os.environ["DMLC_PS_ROOT_PORT"]
        if of_run in variables and "DMLC_ROLE=" + role in variables:
            yield int(process.name)
            return


def count(self, epoch, number, report, counts, _count=loop.Loop._count):
    _count(self, epoch, number, report, counts)
    role, rank, *at = os.environ["DIES"].split()
    if [str(epoch), str(number)] == at and str(self.workers.rank) == rank:
        Path(os.environ["DIED"]).write_text(str(time.time()))
        pids = [os.getpid()] if role == "worker" else processes(role, rank)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)


def main():
    network_build.build = build
    if os.environ.get("DIES"):
        loop.Loop._count = count
    return script.run(read)


leave(main)
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    path = tmp_path_factory.mktemp("script") / "train.py"
    path.write_text(WORKER)
    return path


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


def launcher(workers):
    return [*LAUNCH, "-n", str(workers), "-s", "2", "--"]


# Who dies, seen by whom, after which batch of which epoch; and what the launcher says of it.
DEATHS = {
    "worker 1 0 1": "launch.py: worker 1 ended with status 137 (SIGKILL); the others are ended.",
    "worker 0 0 3": "launch.py: worker 0 ended with status 137 (SIGKILL); the others are ended.",
    "server 0 1 0": "launch.py: server ended with status 137 (SIGKILL); the others are ended.",
    "scheduler 0 1 2": "launch.py: scheduler ended with status 137 (SIGKILL); the others are ended.",
}


@pytest.mark.slow
@pytest.mark.parametrize("workers, options", [(2, []), (3, ["--deterministic"])])
def test_a_death_ends_the_run_and_the_next_run_goes_on(script, tmp_path, workers, options):
    launch = launcher(workers)
    for folder in ("whole", "again"):  # the sums of three workers could differ between two runs
        finish(script, tmp_path / folder, launch, *options)
    whole = checkpoints(tmp_path / "whole")
    assert len(whole) == 6
    assert checkpoints(tmp_path / "again") == whole
    for death, sentence in DEATHS.items():
        done = run(script, tmp_path / "killed", launch, *options, dies=death)
        assert done.returncode == 137
        (line,) = (line for line in done.stderr.splitlines() if line.startswith("launch.py"))
        assert re.sub(r"server \d", "server", line) == sentence
        assert done.seconds < BOUND
    finish(script, tmp_path / "killed", launch, *options)
    assert checkpoints(tmp_path / "killed") == whole
