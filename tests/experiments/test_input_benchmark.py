"""The input benchmark: both readers on the same images, and its page."""

import itertools
import re

import numpy as np
import pytest

import gluon_amp  # noqa: F401
from experiments import input_benchmark
from experiments.input_benchmark import (
    Comparison,
    compare,
    record_iter_batches,
    record_iter_threads,
)
from gluon_amp.base.hardware import count_processors
from gluon_amp.training.data import DataError, Preprocessing, open_records
from gluon_amp.training.data.imagenet_transforms import MEAN, STD
from gluon_amp.training.data.input_speed import training_batches
from gluon_amp.training.data.synthetic import write_synthetic_records
from tests.images import record_files

SHORT = "--images 8 --side 32 --pixels 16 --batch-size 4 --batches 2 --rounds 2 --num-workers 1"


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """Twenty JPEGs of 64×64."""
    folder = tmp_path_factory.mktemp("packed")
    for part, images in (("train", 20), ("val", 10)):
        write_synthetic_records(folder, part, images, side=64)
    return record_files(folder)


def test_record_iter_reads_the_same_images_with_the_same_normalisation(packed):
    """The means of both readers' batches agree to a fraction of their standard deviation."""
    source = open_records(packed, preprocessing=Preprocessing(32))
    means = []
    for batches in (record_iter_batches(packed, 10, 32, 1), training_batches(source, 10)):
        # copied one by one: ImageRecordIter overwrites a batch while later ones are read
        copies = [(i.asnumpy(), n.asnumpy()) for i, n in itertools.islice(batches, 12)]
        images, labels = zip(*copies)
        assert {image.shape for image in images} == {(10, 3, 32, 32)}
        first_epoch = np.concatenate(labels[:2])
        assert sorted(first_epoch.tolist()) == sorted([*range(10), *range(10)])
        means.append(np.mean(images, axis=(0, 1, 3, 4)))
    grey = (0.5 - np.array(MEAN)) / STD
    assert np.abs(means[0] - grey).max() < 0.5 and np.abs(means[1] - grey).max() < 0.5


def test_record_iter_uses_half_of_the_cores_minus_one():
    expected = max(count_processors() // 2 - 1, 1)
    assert record_iter_threads(1000) == expected and record_iter_threads(1) == 1


def test_compare_measures_every_reader_in_every_round(packed):
    result = compare(packed, batch_size=5, batches=2, rounds=3, num_workers=1, size=16)
    for speeds in (result.gluon_amp, result.same_threads, result.image_record_iter):
        assert len(speeds) == 3 and min(speeds) > 0


def test_the_ratio_is_the_median_of_the_rounds():
    assert Comparison([2.0, 9.0, 4.0], [1.0, 1.0, 1.0], [1.0, 3.0, 1.0]).ratio == 3.0


def test_fewer_images_than_a_batch_are_refused(packed):
    with pytest.raises(DataError, match="20 images, fewer than a batch of 64"):
        compare(packed)


def test_the_script_prints_and_writes_a_page(tmp_path, capsys):
    page = tmp_path / "input.md"
    assert input_benchmark.main([*SHORT.split(), "--output", str(page)]) == 0
    printed = capsys.readouterr().out
    text = page.read_text()
    assert text in printed and text.startswith("# Input: decoding and augmentation\n")
    assert "- Input: 8 JPEGs of 32×32 pixels, " in text
    assert "float32 batches of 4 images of 16×16; 2 batches a round" in text
    assert f"python -m experiments.input_benchmark {SHORT}" in text
    assert len(re.findall(r"^\| \d \| \d+ \| \d+ \| \d+ \| \d+\.\d\d \|$", text, re.M)) == 2
    assert re.search(r"^\| \*\*median\*\* \|( \*\*[\d.]+\*\* \|){4}$", text, re.M)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--images", "0"], "argument --images: expected a whole number of at least 1, got '0'"),
        (
            ["--rounds", "two"],
            "argument --rounds: expected a whole number of at least 1, got 'two'",
        ),
    ],
)
def test_bad_options_are_refused(arguments, message, capsys):
    with pytest.raises(SystemExit) as stop:
        input_benchmark.main(arguments)
    assert stop.value.code == 2 and message in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments, message",
    [
        ([*SHORT.split(), "--batch-size", "9"], "has 8 images, fewer than a batch of 9"),
    ],
)
def test_too_large_a_batch_is_one_sentence(arguments, message, capsys):
    assert input_benchmark.main(arguments) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_the_machine_is_described_in_one_line():
    assert re.fullmatch(r"Machine: \d+ processors, [^\n]+\.", input_benchmark.machine())
