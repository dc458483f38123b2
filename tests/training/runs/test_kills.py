"""Runs that are killed at any moment, again and again, end with the bits of one that was not."""

import hashlib
import json
import random
import signal
import subprocess
import sys
import time

import pytest

from tests import ROOT
from tests.training.runs.scripts import OF_THE_CLOCK, environment

from mxnet import nd

IMAGE_OPTIONS = """
--dataset digits --dtype float16 --batch-size 16 --max-batches 8 --epochs 2 --warmup-epochs 0
--log-interval 1 --save-batches 1 --keep 2
"""
TEXT_OPTIONS = """
--characters 4000 --batch-size 8 --bptt 16 --max-batches 6 --num-epochs 2 --hidden 16
--embedding 8 --layers 1 --dtype float16 --save-batches 1 --keep 2
"""
SCRIPTS = ROOT / "scripts"
IMAGES = [sys.executable, str(SCRIPTS / "train_imagenet.py"), *IMAGE_OPTIONS.split()]
TEXT = [sys.executable, str(SCRIPTS / "train_lstm.py"), *TEXT_OPTIONS.split()]
LAUNCH = [sys.executable, str(SCRIPTS / "launch.py"), "-n", "2", "-s", "1", "--"]
RUNS = {
    "images": IMAGES,
    "images, accumulated": [*IMAGES, "--accumulate", "2"],
    "images by Module": [*IMAGES, "--mode", "module"],
    "images, two workers": [*LAUNCH, *IMAGES, "--kv-store", "dist_sync"],
    "images by Module, two workers": [
        *LAUNCH,
        *IMAGES,
        *"--kv-store dist_sync --mode module".split(),
    ],
    "text": TEXT,
}


def start(command, folder):
    folder.mkdir(exist_ok=True)
    outputs = ["--save-dir", str(folder), "--summary-json", str(folder / "summary.json")]
    resume = ["--resume", "auto"] if list(folder.glob("*.ckpt")) else []
    return subprocess.Popen(
        [*command, *outputs, *resume],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(OMP_NUM_THREADS="1"),
    )


def finish(process):
    out, err = process.communicate(timeout=250)
    assert process.returncode == 0, err
    return out


def outcome(folder):
    """A digest of the float32 parameters, and the summary but for its times."""
    params = sorted(folder.glob("*.params"))[-1]
    arrays = {name: array.asnumpy().tobytes() for name, array in nd.load(str(params)).items()}
    digest = hashlib.sha256(b"".join(arrays[name] for name in sorted(arrays))).hexdigest()
    summary = json.loads((folder / "summary.json").read_text())
    return digest, {name: v for name, v in summary.items() if name not in OF_THE_CLOCK}


def pytest_generate_tests(metafunc):
    """Kill all runs with `--kills 2` or more; test_resume.py has a single worker's."""
    several = metafunc.config.getoption("--kills") > 1
    metafunc.parametrize("name", RUNS if several else ["images by Module", "images, two workers"])


@pytest.mark.slow
def test_a_killed_run_ends_with_the_same_bits(name, tmp_path, request):
    begun = time.perf_counter()
    finish(start(RUNS[name], tmp_path / "whole"))
    took = time.perf_counter() - begun
    moments = random.Random(name)
    for _ in range(request.config.getoption("--kills")):
        process = start(RUNS[name], tmp_path / "killed")
        time.sleep(moments.uniform(0.3, 1.0) * took)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    while True:  # workers that are still being ended hold the folder
        process = start(RUNS[name], tmp_path / "killed")
        _, error = process.communicate(timeout=250)
        if "another run writes to" not in error:
            break
    assert process.returncode == 0, error
    assert outcome(tmp_path / "killed") == outcome(tmp_path / "whole")
