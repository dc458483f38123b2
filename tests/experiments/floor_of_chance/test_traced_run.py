"""traced_run.py: the disturbance, the trace, and that an interrupted run leaves the same bits."""

import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from experiments.floor_of_chance.compare import distances, identical, read_trace
from experiments.floor_of_chance.rows import SCRIPT
from experiments.floor_of_chance.traced_run import disturbed, main
from tests.training.runs.scripts import environment

EPOCHS, BATCHES = 2, 3
SMALL = f"--dataset digits --num-epochs {EPOCHS} --max-batches {BATCHES} --warmup-epochs 0".split()


def arguments(folder, start, *options):
    folder.mkdir(exist_ok=True)
    kept = ["--save-dir", str(folder / "checkpoints"), "--keep", "100", "--resume", "auto"]
    return [start, str(folder / "trace.npz"), *SMALL, "--batch-size", "64", *kept, *options]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return a function that trains from a start with options, once, and returns the trace."""
    traces = {}

    def trace(start, *options):
        if (start, options) not in traces:
            folder = tmp_path_factory.mktemp(start)
            assert main(arguments(folder, start, *options)) == 0
            assert not (folder / "checkpoints").exists()
            traces[start, options] = read_trace(folder / "trace.npz")
        return traces[start, options]

    return trace


# ----------------------------------------------------------------------------- the disturbance


def test_each_weight_moves_to_a_neighbour():
    values = np.array([1.0, -1.0, 0.0, 0.1, 3e38, 1.4e-45], np.float32).repeat(50)
    moved = disturbed(values, np.random.default_rng(0))
    assert moved.dtype == np.float32
    up, down = (np.nextafter(values, np.float32(end)) for end in (np.inf, -np.inf))
    assert ((moved == up) | (moved == down)).all()
    assert (moved == up).any() and (moved == down).any()
    assert set(moved[:50].tolist()) == {1 + 2**-23, 1 - 2**-24}


def test_the_generator_decides_the_directions():
    values = np.ones(64, np.float32)
    one, same, other = (disturbed(values, np.random.default_rng(seed)) for seed in (0, 0, 1))
    assert (one == same).all() and (one != other).any()


# ----------------------------------------------------------------------------------- the trace


def test_a_trace_has_the_start_and_every_epoch(trained):
    trace = trained("own")
    assert trace["outputs"].shape == (1 + EPOCHS, 360, 10)
    assert trace["outputs"].dtype == trace["weights"].dtype == np.float32
    assert np.bincount(trace["labels"]).tolist() == [36, 36, 36, 36, 37, 36, 36, 36, 35, 36]
    steps = np.linalg.norm(np.diff(trace["weights"].astype(float), axis=0), axis=1)
    assert (steps > 0.01).all()


def test_float32_without_a_disturbance_repeats_bit_for_bit(trained):
    own = trained("own")
    assert identical(trained("own", "--log-interval", "1"), own)
    assert identical(trained("copied"), own)
    for values in distances(trained("copied"), own).values():
        assert values == [0.0] * (1 + EPOCHS)


def test_one_unit_in_the_last_place_grows(trained):
    found = distances(trained("disturbed"), trained("own"))["weights"]
    assert 2**-25 < found[0] < 2**-23
    assert found[1] > 4 * found[0]


def test_float16_begins_at_the_rounded_weights(trained):
    own = trained("own")
    start = trained("own", "--dtype", "float16")["weights"][0]
    assert (start == own["weights"][0].astype(np.float16).astype(np.float32)).all()
    masters = trained("own", "--amp")["weights"]
    assert (masters[0] == own["weights"][0]).all() and (masters[1] != own["weights"][1]).any()


def test_a_trace_is_not_made_again(trained, tmp_path):
    (tmp_path / "trace.npz").write_bytes(b"finished")
    assert main(arguments(tmp_path, "own")) == 0
    assert (tmp_path / "trace.npz").read_bytes() == b"finished"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_run_ended_by_a_signal_goes_on_to_the_same_trace(number, trained, tmp_path):
    options = ("--save-batches", "1") if number == signal.SIGKILL else ()
    command = [sys.executable, str(SCRIPT), *arguments(tmp_path, "disturbed", *options)]
    process = subprocess.Popen(command, env=environment(), stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob("checkpoints/epoch*")) and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(number)
    finally:
        process.wait(60)
    assert not (tmp_path / "trace.npz").exists()
    assert main(arguments(tmp_path, "disturbed", *options)) == 0
    assert identical(read_trace(tmp_path / "trace.npz"), trained("disturbed"))


@pytest.mark.parametrize(
    "words, message",
    [
        (["own"], "expected own, copied or disturbed, and then a file"),
        (["shaken", "trace.npz"], "expected own, copied or disturbed, and then a file"),
        (["own", "trace.npz", *SMALL], "--save-dir is missing"),
    ],
)
def test_a_wrong_command_line_is_one_sentence(words, message, capsys):
    assert main(words) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
