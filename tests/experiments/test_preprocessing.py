"""Preprocessing elsewhere: its reference is gluon_amp's own, and its page."""

import io
import json
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

from experiments import preprocessing
from experiments.preprocessing import EXACT, MEAN, OURS, STD, Pipeline, levels
from gluon_amp.base.messages import UsageError
from gluon_amp.training.data.decode import decode
from gluon_amp.training.data.imagenet_transforms import Preprocessing, ValidationTransform
from gluon_amp.training.networks import efficientnet_lite, weights

import mxnet as mx

# From black to white in 12 columns; 256 pixels high, so that nothing is resized
STEPS = np.broadcast_to(np.repeat(np.arange(12) * 20, 24)[:, None], (256, 288, 3)).astype(np.uint8)


@pytest.mark.parametrize("short", [256, 224])
def test_the_reference_is_the_transform_of_validation(short):
    statistics = {"mean": (127 / 255,) * 3, "std": (128 / 255,) * 3}
    transform = ValidationTransform(Preprocessing(224, crop_ratio=224 / short, **statistics))
    for encoded in preprocessing.photographs():
        expected = np.empty((3, 224, 224), np.float32)
        transform(encoded, None, expected)
        crop = OURS.crop(OURS.decoded(encoded), short)
        normalised = (crop.transpose(2, 0, 1) - MEAN) / STD
        np.testing.assert_allclose(normalised, expected, atol=1e-5)


def test_levels_are_those_of_the_photographs(monkeypatch):
    """One column of 24 is seen to move where half of an odd rest is rounded up."""
    image = STEPS[:, :287]  # 63 columns are left out: 31.5 on each side, to even 32
    coloured = image + np.array([0, 0, 12], np.uint8)
    monkeypatch.setattr(preprocessing, "photographs", lambda: [None])
    here = Pipeline(lambda _: image)
    assert levels(here, here, 256) == [0, 0]
    mean, largest = levels(here, here._replace(rounded=round), 256)
    assert (round(mean * 224 / 20), largest) == (9, 20)  # nine edges between 31 and 255
    assert levels(here, Pipeline(lambda _: coloured), 256) == [4, 12]
    coloured = Pipeline(lambda _: STEPS * 0 + np.array([0, 7, 12], np.uint8))
    assert levels(coloured, coloured._replace(step=-1), 256) == [8, 12]


def test_a_resize_in_uint8_rounds_that_in_float32_and_pillow_smooths():
    assert 0 < levels(OURS, EXACT, 256)[1] < 1.5
    stripes = np.zeros((64, 64, 3), np.uint8)
    stripes[::4] = 240  # a mean of 60
    for resized in (preprocessing.BILINEAR, preprocessing.BICUBIC):
        assert (resized(stripes, (16, 16))[4:12] == 60).all()
    assert OURS.resized(stripes, (16, 16)).max() == 0  # between the stripes


def test_only_gluon_amp_turns_a_photograph_as_its_exif_data_say():
    image, exif = PIL.Image.fromarray(STEPS), PIL.Image.Exif()
    exif[0x0112] = 6
    file = io.BytesIO()
    image.save(file, "JPEG", exif=exif)
    encoded = file.getvalue()
    assert decode(encoded).shape == (288, 256, 3)
    assert mx.image.imdecode(encoded).shape == (256, 288, 3)
    assert np.asarray(PIL.Image.open(io.BytesIO(encoded))).shape == (256, 288, 3)


def test_the_program_writes_its_page(tmp_path, monkeypatch):
    try:
        weights.pretrained_file(efficientnet_lite.NAME, Path())
    except UsageError as error:
        pytest.skip(str(error))
    chosen = ["RGB, BGR", "Pixels up to 255: normalised as such, as pixels up to 1"]
    cases = {name: preprocessing.CASES[name] for name in chosen}
    monkeypatch.setattr(preprocessing, "CASES", {"the same": (OURS, OURS), **cases})
    assert preprocessing.main(["--parts", "2", "--output", str(tmp_path)]) == 0
    rows = json.loads((tmp_path / "preprocessing.json").read_text())["rows"]
    assert rows["the same"] == [0] * 6
    assert rows["RGB, BGR"][4] > 10 and rows[chosen[1]][4:] == pytest.approx([100, 100], abs=60)
    page = (tmp_path / "preprocessing.md").read_text()
    assert "2 random parts of each photograph" in page
    assert "| the same | 0.00 | 0 | 0.00 | 0 | 0.0 | 0.0 |" in page
