"""Records of runs, read from their files."""

import json

import pytest

from gluon_amp.base.messages import UsageError
from gluon_amp.training.tables.record import read
from tests.training.tables.example_runs import CONFIGURATIONS, write_run


def test_a_run_is_read_from_its_files(tmp_path):
    record = read(write_run(tmp_path / "a", "float16-1024", 76.34, 7.3))
    assert record.configuration == CONFIGURATIONS["float16-1024"]
    assert record.top1 == pytest.approx(76.34)
    assert len(record.errors) == 90
    assert record.errors[0] == pytest.approx(23.66 + 89)
    assert record.seconds == pytest.approx(7.3 * 3600)
    assert (record.cross_entropies[0], len(record.cross_entropies)) == (1.5, 90)
    assert record.cross_entropy == pytest.approx(1.5 - 89 / 90)
    assert (record.versions, record.date) == ("MXNet 1.9.1", "2026-01-31")
    sized = write_run(tmp_path / "b", "float16-1024", 76, 7, train_images=3030, val_images=5647)
    assert read(sized).data == "imagenet (3,030 + 5,647 samples)"
    assert (record.skipped, record.steps, record.samples_per_second) == (3, 112680, 2714.0)


def test_a_run_from_before_the_cross_entropy_was_recorded_is_read(tmp_path):
    folder = write_run(tmp_path / "a", "float16-1024", 76.34, 7.3, epochs=2)
    for name, fields in [("summary", ["cross_entropy_by_epoch"]), ("run", ["versions", "date"])]:
        values = json.loads((folder / f"{name}.json").read_text())
        for field in fields:
            del values[field]
        (folder / f"{name}.json").write_text(json.dumps(values))
    record = read(folder)
    assert (record.cross_entropies, record.cross_entropy) == ((), None)
    assert (record.versions, record.date) == ("", "")


def test_a_missing_or_damaged_file_or_one_of_another_kind_is_named(tmp_path):
    for name in ("summary.json", "run.json"):
        folder = write_run(tmp_path / name, "float32-1024", 76.18, 11.8, epochs=2)
        (folder / name).write_text("{")
        with pytest.raises(UsageError, match="damaged|no validation"):
            read(folder)
        (folder / name).unlink()
        with pytest.raises(UsageError, match=f"{name} cannot be read: No such file"):
            read(folder)
    folder = write_run(tmp_path / "a", "float32-1024", 76.18, 11.8, epochs=2)
    (folder / "run.json").write_text('{"seed": 0}')
    with pytest.raises(UsageError, match="is not a run of `gluon-amp results`: 'configuration'"):
        read(folder)
