"""Text as characters: the sources of the standard library, and their chunks."""

import numpy as np
import pytest

from gluon_amp.training.data import DataError
from gluon_amp.training.data.text import (
    CLASSES,
    UNKNOWN,
    VOCABULARY,
    Chunks,
    encode,
    open_text,
    read_sources,
    split,
)


def test_every_character_of_the_vocabulary_has_a_class_of_its_own():
    assert CLASSES == 98
    assert encode(VOCABULARY).tolist() == list(range(97))
    assert encode(" !~\n\t").tolist() == [0, 1, 94, 95, 96]
    # whatever else there is has the last class
    assert encode("aé\r\x00\x7f€𝄞\ud800b").tolist() == [65, *[UNKNOWN] * 7, 66]
    assert encode("").tolist() == []


@pytest.fixture
def sources(tmp_path):
    """Forty files of 100 characters, each of a letter of its own."""
    folder = tmp_path / "python3"
    folder.mkdir()
    for number in range(40):
        (folder / f"m{number:02d}.py").write_text(chr(65 + number) * 100)
    return folder


def test_files_that_are_no_sources_are_left_out(sources):
    (sources / "latin.py").write_bytes("# -*- coding: latin-1 -*-\n# é".encode("latin-1"))
    (sources / "_sysconfigdata__linux_.py").write_text("build_time_vars = {}")
    (sources / "notes.txt").write_text("no source")
    (sources / "test").mkdir()
    (sources / "test" / "test_it.py").write_text("no source of the library")
    assert list(read_sources(sources)) == [f"m{number:02d}.py" for number in range(40)]


def test_no_file_trains_and_validates(sources):
    training, validating = split([f"m{number:02d}.py" for number in range(40)])
    assert (len(training), len(validating)) == (36, 4)
    assert len({*training, *validating}) == 40
    text = open_text(3600, sources)
    assert (text.train.shape, text.val.shape) == ((3600,), (360,))
    assert not set(text.train) & set(text.val)
    assert len(set(text.train)) == 36


def test_the_split_does_not_depend_on_the_order_or_on_what_is_cut_off(sources):
    names = [f"m{number:02d}.py" for number in range(40)]
    assert split(names[::-1]) == split(names)
    whole, part = open_text(3600, sources), open_text(1000, sources)
    assert part.train.tolist() == whole.train[:1000].tolist()
    assert part.val.tolist() == whole.val[:100].tolist()


def test_too_few_characters(sources):
    with pytest.raises(DataError, match="has 3600 characters for training, but 3601 were req"):
        open_text(3601, sources)


def test_no_sources(tmp_path):
    for folder in (tmp_path, tmp_path / "absent"):
        with pytest.raises(DataError, match="has no sources of Python's standard library"):
            open_text(100, folder)


def test_chunks_of_two_streams():
    chunks = Chunks(np.arange(12), streams=2, length=2, whole=False)
    assert [chunk.inputs.asnumpy().tolist() for chunk in chunks] == [
        [[0, 1], [5, 6]],
        [[2, 3], [7, 8]],
        [[4], [9]],
    ]
    assert [chunk.labels.asnumpy().tolist() for chunk in chunks] == [
        [[1, 2], [6, 7]],
        [[3, 4], [8, 9]],
        [[5], [10]],
    ]
    assert [chunk.first for chunk in chunks] == [True, False, False]
    assert (len(chunks), chunks.images, chunks.batch_size) == (3, 10, 4)
    whole = Chunks(np.arange(12), streams=2, length=2, whole=True)
    assert (len(whole), whole.images) == (2, 8)


def test_an_epoch_begins_anywhere():
    chunks = Chunks(np.arange(100), 4, 5, whole=True)
    later = [chunk.inputs.asnumpy().tolist() for chunk in chunks.epoch(start=2)]
    assert later == [chunk.inputs.asnumpy().tolist() for chunk in chunks][2:]
    assert not next(chunks.epoch(start=2)).first
    assert len(Chunks(np.arange(8), 4, 2, whole=True)) == 0  # too short
