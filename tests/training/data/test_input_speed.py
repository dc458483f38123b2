"""The speed of the input: it counts the measured batches only."""

import itertools

from gluon_amp.training.data.input_speed import WARM_UP, images_per_second

import mxnet as mx


def test_the_time_of_exactly_the_measured_batches_counts(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr("gluon_amp.training.data.input_speed.time.perf_counter", lambda: clock[0])

    def batches():
        for number in itertools.count():
            clock[0] += 50 if number < WARM_UP else 2  # seconds
            yield mx.nd.zeros((10, 1)), None

    assert images_per_second(batches(), 5) == 5.0  # 50 images in 10 seconds
    assert clock[0] == 100 + WARM_UP * 50 + 10
