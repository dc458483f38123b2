"""The data that a recipe names."""

import dataclasses

import pytest

from gluon_amp.command_line import UsageError
from gluon_amp.recipes.recipe import read
from gluon_amp.recipes.sources import open_data, record_files


def test_record_files_are_found_beside_each_other(tmp_path):
    recipe, _ = read(["--rec-train", "t.rec", "--rec-val", "v.rec", "--rec-val-idx", "w.idx"])
    files = record_files(recipe)
    assert [str(path) for path in dataclasses.astuple(files)] == "t.rec t.idx v.rec w.idx".split()
    recipe, _ = read(["--use-rec", "--data-dir", str(tmp_path)])
    assert record_files(recipe).val_idx == tmp_path / "rec" / "val.idx"
    with pytest.raises(UsageError, match="--rec-val is missing"):
        record_files(read(["--rec-train", "t.rec"])[0])


def test_digits_are_as_large_as_the_network_needs():
    for line, size in (("", 32), ("--model alexnet", 64), ("--model alexnet --input-size 96", 96)):
        recipe, options = read(["--dataset", "digits", *line.split()])
        data, _ = open_data(recipe, options)
        assert data.image_shape == (3, size, size)
