"""The input benchmark: both readers on the same images, and its page."""

import itertools
import re

import numpy as np

from experiments import input_benchmark
from experiments.input_benchmark import (
    record_iter_batches,
    record_iter_threads,
    write_synthetic_records,
)
from gluon_amp.base.hardware import count_processors
from gluon_amp.training.data import Preprocessing, open_records
from gluon_amp.training.data.imagenet_transforms import MEAN, STD
from gluon_amp.training.runs.speed import training_batches
from tests.images import record_files

SMALL = {"IMAGES": 8, "SIDE": 32, "PIXELS": 16, "BATCH": 4, "BATCHES": 2, "THREADS": 1}


def test_both_readers_read_the_same_images_with_the_same_normalisation(tmp_path):
    """The means of both readers' batches agree to a fraction of their standard deviation."""
    for part, images in (("train", 20), ("val", 10)):
        write_synthetic_records(tmp_path, part, images, side=64)
    packed = record_files(tmp_path)
    source = open_records(packed, preprocessing=Preprocessing(32))
    grey = (0.5 - np.array(MEAN)) / STD
    for batches in (record_iter_batches(packed, 10, 32, 1), training_batches(source, 10)):
        # copied one by one: ImageRecordIter overwrites a batch while later ones are read
        copies = [(i.asnumpy(), n.asnumpy()) for i, n in itertools.islice(batches, 12)]
        images, labels = zip(*copies)
        assert {image.shape for image in images} == {(10, 3, 32, 32)}
        assert sorted(np.concatenate(labels[:2]).tolist()) == sorted([*range(10)] * 2)
        assert np.abs(np.mean(images, axis=(0, 1, 3, 4)) - grey).max() < 0.5
    expected = max(count_processors() // 2 - 1, 1)
    assert record_iter_threads(1000) == expected and record_iter_threads(1) == 1


def test_the_program_writes_a_page(tmp_path, monkeypatch):
    for name, value in SMALL.items():
        monkeypatch.setattr(input_benchmark, name, value)
    page = tmp_path / "input.md"
    assert input_benchmark.main(["--rounds", "2", "--output", str(page)]) == 0
    text = page.read_text()
    assert "<!-- input -->8 JPEGs of 32×32 pixels, " in text
    assert "batches of <!-- output -->4 images of 16×16; 2 batches a round" in text
    assert "`python -m experiments.input_benchmark --rounds 2 --output" in text
    assert len(re.findall(r"^\| \d \| \d+ \| \d+ \| \d+ \| \d+\.\d\d \|$", text, re.M)) == 2
    assert re.search(r"^\| \*\*median\*\* \|( \*\*[\d.]+\*\* \|){4}$", text, re.M)
