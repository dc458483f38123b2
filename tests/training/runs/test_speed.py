"""`--benchmark` and `--test-io`."""

import itertools
import json

import pytest

from gluon_amp.lowering.emulation import is_emulated
from gluon_amp.training.console import train
from gluon_amp.training.runs.speed import WARM_UP_BATCHES, images_per_second
from tests.images import write_folders

import mxnet as mx


@pytest.mark.parametrize(
    "options, side, total",
    [
        ("--model mobilenet0.25 --input-size 32 --accumulate 2 --cpus 2 --dtype float16", 32, 8),
        pytest.param("--dtype bfloat16", 224, 2, marks=pytest.mark.slow),
    ],
)
def test_the_speed_of_training_steps(options, side, total, capsys):
    line = "--benchmark --batch-size 2 --max-batches 3"
    assert train.main([*line.split(), *options.split()]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["image_shape"], result["steps"]) == ([3, side, side], 3)
    assert (result["batch_size"], result["total_batch"]) == (2, total)
    assert result["observed_dtypes"]["conv_compute"] == result["dtype"]
    assert result["emulated"] == is_emulated(result["dtype"])
    assert result["images_per_second"] == pytest.approx(total * 1e3 / result["median_ms"])
    assert result["fastest_ms"] <= result["median_ms"] <= result["slowest_ms"]


def test_the_speed_of_loading(tmp_path, capsys):
    for part in ("train", "val"):
        write_folders(tmp_path, part, ["cat", "dog"], images=4)
    line = "--test-io --batch-size 4 --input-size 32 --num-workers 1"
    assert train.main([*line.split(), "--data-dir", str(tmp_path)]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["image_shape"], result["batches"], result["num_workers"]) == ([3, 32, 32], 2, 1)
    assert result["images_per_second"] > 0


def test_the_time_of_exactly_the_measured_batches_counts(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr("gluon_amp.training.runs.speed.time.perf_counter", lambda: clock[0])

    def batches():
        for number in itertools.count():
            clock[0] += 50 if number < WARM_UP_BATCHES else 2  # seconds
            yield mx.nd.zeros((10, 1)), None

    assert images_per_second(batches(), 5) == 5.0  # 50 images in 10 seconds
    assert clock[0] == 100 + WARM_UP_BATCHES * 50 + 10
