"""The speed of the input: it counts the measured batches only."""

import itertools

import pytest

from gluon_amp.training.data import Preprocessing, open_records, open_synthetic
from gluon_amp.training.data.input_speed import (
    WARM_UP,
    images_per_second,
    measure_input,
    training_batches,
)
from gluon_amp.training.data.synthetic import write_synthetic_records
from tests.images import record_files

import mxnet as mx


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """Twenty JPEGs of 64×64."""
    folder = tmp_path_factory.mktemp("packed")
    for part, images in (("train", 20), ("val", 10)):
        write_synthetic_records(folder, part, images, side=64)
    return record_files(folder)


def test_the_time_of_exactly_the_measured_batches_counts(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr("gluon_amp.training.data.input_speed.time.perf_counter", lambda: clock[0])

    def batches():
        for number in itertools.count():
            clock[0] += 50 if number < WARM_UP else 2  # seconds
            yield mx.nd.zeros((10, 1)), None

    assert images_per_second(batches(), 5) == 5.0  # 50 images in 10 seconds
    assert clock[0] == 100 + WARM_UP * 50 + 10


def test_batches_never_end():
    source = open_synthetic(images=6, shape=(1, 2, 2), classes=6)
    labels = [
        label
        for _, batch in itertools.islice(training_batches(source, 4), 6)
        for label in batch.asnumpy().tolist()
    ]
    one_epoch = sorted(source.train[n][1] for n in range(6))
    assert [sorted(labels[n : n + 6]) for n in (0, 6, 12)] == [one_epoch] * 3
    assert labels[:6] != labels[6:12]


def test_any_source_can_be_measured(packed):
    source = open_records(packed, preprocessing=Preprocessing(24))
    assert measure_input(open_synthetic(images=8, shape=(1, 2, 2), classes=2), 4, 3) > 0
    assert measure_input(source, 4, 3, num_workers=0) > 0
