"""Packing in RecordIO: the files, repeated and interrupted runs, and folders that are refused."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from gluon_amp.training.data.prepare.splitting import Split, read_tree

from gluon_amp.files import atomic
from gluon_amp.training.console import pack as pack_command
from gluon_amp.training.data.class_names import read_classes
from gluon_amp.training.data.decode import DecodeError
from gluon_amp.training.data.imagenet_transforms import Preprocessing
from gluon_amp.training.data.prepare.pack_folders import pack_folders
from gluon_amp.training.data.prepare.packing import (
    MANIFEST,
    Encoding,
    Listing,
    Packing,
    pack,
    packed_with,
)
from gluon_amp.training.data.records import open_records
from gluon_amp.training.data.source import DataError
from tests import ROOT
from tests.images import picture, png, record_files
from tests.training.data.jpegs import write_classes_abc, write_jpeg
from tests.training.data.refusal import refusal

import mxnet as mx
from mxnet import recordio

cv2 = pytest.importorskip("cv2")

SCRIPT = ROOT / "scripts" / "pack_images.py"
SMALL = Encoding(resize=16)


def packing(**options):
    """Return options to pack small images without messages."""
    return Packing(**{"encoding": SMALL, "log": lambda line: None, **options})


def pack_small(root, out, **options):
    return pack_folders(root, out, packing(**options))


@pytest.fixture
def root(tmp_path):
    """Three classes of 3, 4 and 5 images."""
    return write_classes_abc(tmp_path / "data")


@pytest.fixture
def divided(tmp_path):
    """Two classes, each with 3 training images and 1 validation image."""
    for part, count in (("train", 3), ("val", 1)):
        for name in "ba":
            for number in range(count):
                write_jpeg(tmp_path / "data" / part / name / f"{number}.jpg", ord(name) + number)
    return tmp_path / "data"


def records(folder, part):
    """Return [(label, id, bytes)] as MXNet reads them."""
    reader = recordio.MXIndexedRecordIO(f"{folder}/{part}.idx", f"{folder}/{part}.rec", "r")
    unpacked = [recordio.unpack(reader.read_idx(key)) for key in reader.keys]
    reader.close()
    return [(header.label, header.id, data) for header, data in unpacked]


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def listed(folder, part):
    """Return [(label, name)] from the list of a part."""
    lines = (folder / f"{part}.lst").read_text().splitlines()
    rows = [line.split("\t") for line in lines]
    assert [int(number) for number, _, _ in rows] == list(range(len(rows)))
    return [(int(label), name) for _, label, name in rows]


# ---------------------------------------------------------------------------------------- encoding


@pytest.mark.parametrize(
    ("size", "resize", "expected"),
    [
        ((40, 30), 16, (21, 16)),  # 21.3, rounded down as im2rec does
        ((30, 40), 16, (16, 21)),
        ((20, 20), 16, (16, 16)),
        ((10, 12), 16, (16, 19)),
        ((16, 50), 16, (16, 50)),
    ],
)
def test_shorter_side(tmp_path, size, resize, expected):
    write_jpeg(tmp_path / "x.jpg", 1, *size)
    stored = Encoding(resize)((tmp_path / "x.jpg").read_bytes())
    assert mx.image.imdecode(stored).shape == (*expected, 3)


def test_no_resize_keeps_the_bytes(tmp_path):
    write_jpeg(tmp_path / "x.jpg", 1)
    encoded = (tmp_path / "x.jpg").read_bytes()
    assert Encoding(resize=0)(encoded) == encoded
    assert Encoding(resize=0)(png(picture(0))) == png(picture(0))


def test_quality_and_colours():
    """A lower quality gives fewer bytes of noise. The colours are preserved, red first."""
    encoded = png(picture(0, 64))
    sizes = [len(Encoding(64, quality)(encoded)) for quality in (10, 50, 95, 100)]
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[-1] / 3
    red = np.zeros((32, 32, 3), np.uint8)
    red[:, :, 0] = 200
    mean = mx.image.imdecode(Encoding(16)(png(red))).asnumpy().mean(axis=(0, 1))
    np.testing.assert_allclose(mean, (200, 0, 0), atol=3)


def test_an_image_too_long_for_a_jpeg():
    line = png(np.zeros((2, 600, 3), np.uint8))
    with pytest.raises(DecodeError) as caught:
        Encoding(256)(line)  # 256 × 76800
    assert str(caught.value) == "its 600×2 pixels cannot be a JPEG of that shorter side"
    assert mx.image.imdecode(Encoding(16)(line)).shape == (16, 4800, 3)


def test_shrinking_averages():
    """A board of black and white pixels becomes grey, as it would not with every fourth pixel."""
    board = np.indices((256, 256)).sum(axis=0) % 2 * 255
    image = np.repeat(board[:, :, None], 3, axis=2).astype(np.uint8)
    stored = mx.image.imdecode(Encoding(64, 100)(png(image))).asnumpy()
    assert 125 <= stored.min() <= stored.max() <= 130


# ----------------------------------------------------------------------------------------- packing


def test_what_is_written(root, tmp_path):
    out = tmp_path / "rec"
    manifest = pack_small(root, out, split=Split(per_class=2))
    files = ["train.idx", "train.lst", "train.rec", "val.idx", "val.lst", "val.rec"]
    assert sorted(content(out)) == sorted([*files, "classes.json", MANIFEST])
    assert read_classes(out) == ("a", "b", "c")
    assert manifest == json.loads((out / MANIFEST).read_text())
    assert manifest["classes"] == 3
    assert manifest["images"] == {"train": 6, "val": 6}
    assert manifest["options"] == {
        "root": str(root),
        "without": [],
        "per_class": 2,
        "total": None,
        "seed": 0,
        "files": {"train": 6, "val": 6},
        "resize": 16,
        "quality": 95,
    }
    for part, images in Split(per_class=2).divide(read_tree(root)).items():
        assert listed(out, part) == [(image.label, image.name) for image in images]
        for number, (label, identity, data) in enumerate(records(out, part)):
            assert (label, identity) == (images[number].label, number)
            assert data == SMALL((root / images[number].name).read_bytes())


@pytest.mark.parametrize("workers", [1, 7])
def test_the_number_of_workers_does_not_change_the_bytes(root, tmp_path, workers):
    for out, count in (("one", 3), ("two", workers)):
        pack_small(root, tmp_path / out, split=Split(total=7), workers=count)
    assert content(tmp_path / "one") == content(tmp_path / "two")


def test_order_with_many_images(tmp_path):
    """More images than the pool holds at once, of very different sizes."""
    for number in range(100):
        write_jpeg(tmp_path / "data" / "a" / f"{number}.jpg", number, 20 + number * 37 % 200)
    images = read_tree(tmp_path / "data").images
    listing = Listing(tmp_path / "data", "a", {"val": images})
    pack(tmp_path / "rec", listing, {}, packing(workers=3))
    packed = [data for _, _, data in records(tmp_path / "rec", "val")]
    assert packed == [SMALL((tmp_path / "data" / image.name).read_bytes()) for image in images]


def test_data_that_looks_like_a_record(tmp_path):
    """An image contains RecordIO's magic number, so the writer divides it."""
    write_jpeg(tmp_path / "data" / "a" / "0.jpg", 0)
    path = tmp_path / "data" / "a" / "0.jpg"
    comment = b"\xff\xfe\x00\x0e" + bytes.fromhex("0a23d7ce") * 3
    path.write_bytes(path.read_bytes()[:2] + comment + path.read_bytes()[2:])
    listing = Listing(tmp_path / "data", "a", {"val": read_tree(tmp_path / "data").images})
    pack(tmp_path / "rec", listing, {}, packing(encoding=Encoding(resize=0)))
    assert [data for _, _, data in records(tmp_path / "rec", "val")] == [path.read_bytes()]


def test_divided_folders(divided, tmp_path):
    pack_small(divided, tmp_path / "rec")
    train = [(label, f"train/{'ab'[label]}/{n}.jpg") for label in (0, 1) for n in range(3)]
    assert sorted(listed(tmp_path / "rec", "train")) == train
    assert listed(tmp_path / "rec", "train") != train
    assert listed(tmp_path / "rec", "val") == [(0, "val/a/0.jpg"), (1, "val/b/0.jpg")]
    assert read_classes(tmp_path / "rec") == ("a", "b")


def test_ignored_files_are_reported(divided, tmp_path):
    lines = []
    for number in range(4):
        (divided / "train" / "a" / f"{number}.txt").touch()
        (divided / "val" / "b" / f"{number}.txt").touch()
    pack_small(divided, tmp_path / "rec", log=lines.append)
    assert lines[0] == (
        "Ignored, as these are no images: train/a/0.txt, train/a/1.txt, train/a/2.txt, "
        "train/a/3.txt, val/b/0.txt and 3 more."
    )
    assert len(lines) == 2


def test_divided_folders_with_images_left_out(divided, tmp_path):
    without = ["train/a/1.jpg", "train/b/0.jpg"]
    pack_small(divided, tmp_path / "rec", without=without)
    assert len(listed(tmp_path / "rec", "train")) == 4
    assert not {name for _, name in listed(tmp_path / "rec", "train")} & set(without)


def test_open_records_and_mxnets_iterator_read_it(divided, tmp_path):
    out = tmp_path / "rec"
    pack_small(divided, out, encoding=Encoding(resize=32))
    source = open_records(record_files(out), preprocessing=Preprocessing(24))
    assert (source.train_images, source.val_images, source.classes) == (6, 2, 2)
    assert source.class_names == ("a", "b")
    iterator = mx.io.ImageRecordIter(
        path_imgrec=str(out / "train.rec"),
        path_imgidx=str(out / "train.idx"),
        data_shape=(3, 24, 24),
        batch_size=6,
    )
    labels = iterator.next().label[0].asnumpy().tolist()
    assert labels == [label for label, _ in listed(out, "train")]


# ------------------------------------------------------------------------------------------- again


def test_a_second_run_does_nothing(root, tmp_path):
    out, lines = tmp_path / "rec", []
    first = pack_small(root, out, split=Split(per_class=2), log=lines.append)
    before = {path: path.stat().st_mtime_ns for path in out.iterdir()}
    second = pack_small(root, out, split=Split(per_class=2), log=lines.append)
    assert second == first
    assert {path: path.stat().st_mtime_ns for path in out.iterdir()} == before
    assert lines == [
        f"Packing into {out} ...",
        f"{out} is packed already, with these options.",
    ]


@pytest.mark.parametrize(
    ("changed", "difference"),
    [
        ({"split": Split(per_class=1)}, "per class 2, not 1"),
        ({"split": Split(total=6)}, "per class 2, not none"),
        ({"split": Split(per_class=2, seed=1)}, "seed 0, not 1"),
        ({"encoding": Encoding(32)}, "resize 16, not 32"),
        ({"encoding": Encoding(16, 90)}, "quality 95, not 90"),
        ({"without": ["c/1.jpg"]}, 'without [], not ["c/1.jpg"]'),
    ],
)
def test_other_options_than_before(root, tmp_path, changed, difference):
    out = tmp_path / "rec"
    pack_small(root, out, split=Split(per_class=2))
    before = content(out)
    options = {"split": Split(per_class=2), **changed}
    assert refusal(pack_small, root, out, **options) == (
        f"{out} was packed with {difference}: pass --overwrite to pack again, or choose another "
        "folder."
    )
    assert content(out) == before
    pack_small(root, out, **options, overwrite=True)
    assert content(out) != before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "rec"]


def test_images_added_since(root, tmp_path):
    pack_small(root, tmp_path / "rec", split=Split(per_class=2))
    write_jpeg(root / "a" / "new.jpg", 0)
    with pytest.raises(
        DataError, match='with files .*"val": 6}, not .*"val": 7}: pass --overwrite'
    ):
        pack_small(root, tmp_path / "rec", split=Split(per_class=2))


def test_damage_since(root, tmp_path):
    out = tmp_path / "rec"
    pack_small(root, out, split=Split(per_class=2))
    options = json.loads((out / MANIFEST).read_text())["options"]
    size = (out / "val.rec").stat().st_size
    os.truncate(out / "val.rec", 100)
    assert refusal(packed_with, out, options, packing()) == (
        f"{out}/val.rec has 100 bytes, expected {size}: pass --overwrite to pack again."
    )
    (out / "train.idx").unlink()
    message = refusal(packed_with, out, options, packing())
    assert message == f"{out}/train.idx is missing: pass --overwrite to pack again."
    (out / MANIFEST).write_text("[]")
    message = refusal(packed_with, out, options, packing())
    assert message == f"{out}/{MANIFEST} is damaged: pass --overwrite to pack again."
    assert packed_with(out, options, packing(overwrite=True)) is None


@pytest.mark.parametrize("overwrite", [False, True])
def test_foreign_files_are_not_overwritten(root, tmp_path, overwrite):
    (tmp_path / "rec").mkdir()
    pack_small(root, tmp_path / "rec", split=Split(per_class=2))
    for out in (root, root / "a" / "0.jpg"):
        assert refusal(pack_small, root, out, split=Split(per_class=2), overwrite=overwrite) == (
            f"{out} holds no {MANIFEST}, so it is not overwritten: choose another folder."
        )
    assert len(read_tree(root).images) == 12


# ---------------------------------------------------------------------------------------- failures


def test_a_corrupt_image_is_named_and_nothing_is_left(root, tmp_path):
    path = root / "b" / "1.jpg"
    path.write_bytes(path.read_bytes()[:-400])
    assert refusal(pack_small, root, tmp_path / "rec", split=Split(per_class=2)) == (
        f"{path} cannot be packed, the JPEG ends too early: replace it, or pass --without b/1.jpg."
    )
    assert list(tmp_path.iterdir()) == [root]
    for content in (b"", b"no image"):
        path.write_bytes(content)
        assert refusal(pack_small, root, tmp_path / "rec", split=Split(per_class=2)) == (
            f"{path} cannot be packed, not an image that OpenCV can decode: replace it, or pass "
            "--without b/1.jpg."
        )
    pack_small(root, tmp_path / "rec", split=Split(per_class=2), without=["b/1.jpg"])
    assert len(listed(tmp_path / "rec", "val")) == 5


def test_wrong_layouts(divided, tmp_path):
    assert refusal(pack_small, divided, tmp_path / "rec", split=Split(per_class=2)) == (
        f"{divided} holds train and val, so it is split already: pass neither "
        "--train-per-class nor --train-images."
    )
    assert refusal(pack_small, divided, tmp_path / "rec", without=["a"]) == (
        f"{divided} holds train and val, so a should begin with one of them."
    )
    (divided / "val" / "b").rename(divided / "val" / "c")
    assert refusal(pack_small, divided, tmp_path / "rec") == (
        f"{divided}/train has 2 classes, {divided}/val has 2, and class b is only in "
        "train: they must be the same classes."
    )
    (divided / "val").rename(divided / "test")
    assert refusal(pack_small, divided, tmp_path / "rec") == (
        f"{divided} does not hold both train and val: to split the classes in it, pass "
        "--train-per-class or --train-images."
    )
    assert refusal(pack_small, divided, divided / "rec", split=Split(per_class=1)) == (
        f"{divided}/rec would be a class of {divided}: choose a folder outside it."
    )
    assert not (tmp_path / "rec").exists()


# -------------------------------------------------------------------------------------- the script


def script(*arguments):
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120)


def test_script(divided):
    done = script(divided, divided / "rec", "--resize", "16", "-j", "1")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        f"Packing into {divided}/rec ...\n"
        "6 train and 2 val images of 2 classes. To train on them:\n"
        f"gluon-amp train --data-dir {divided} --use-rec\n"
    )
    done = script(divided, divided / "my packed", "--resize", "16")
    assert done.stdout.splitlines()[-1] == (
        f"gluon-amp train --rec-train '{divided}/my packed/train.rec' "
        f"--rec-val '{divided}/my packed/val.rec'"
    )
    done = script(divided, divided / "rec")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"pack_images.py: {divided}/rec was packed with resize 16, not 256: pass --overwrite to "
        "pack again, or choose another folder.\n"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--quality", "101"], "--quality: expected a whole number from 1 to 100, got '101'"),
        (["--quality", "x"], "--quality: expected a whole number from 1 to 100, got 'x'"),
        (["--resize", "-1"], "--resize: expected a whole number from 0 to 65500, got '-1'"),
        (
            ["--train-per-class", "3", "--train-images", "3"],
            "--train-images: not allowed with argument --train-per-class",
        ),
    ],
)
def test_wrong_options(capsys, options, message):
    with pytest.raises(SystemExit) as caught:
        pack_command.main(["root", "out", *options])
    assert caught.value.code == 2
    assert capsys.readouterr().err == f"gluon-amp pack: argument {message}\n"


def test_a_folder_in_use(divided, capsys):
    with atomic.folder(divided / "rec"):
        assert pack_command.main([str(divided), str(divided / "rec")]) == 2
    assert capsys.readouterr().err == (
        f"gluon-amp pack: another process is writing {divided}/rec.unfinished: wait for it.\n"
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_interrupted_packing_leaves_nothing_half_written(tmp_path, default_signals, number):
    root, out = tmp_path / "data", tmp_path / "data" / "rec"
    write_jpeg(root / "train" / "a" / "0.jpg", 0, 3000, 4000)
    for copy in range(1, 400):
        os.link(root / "train" / "a" / "0.jpg", root / "train" / "a" / f"{copy}.jpg")
    write_jpeg(root / "val" / "a" / "0.jpg", 0)
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT), str(root), str(out), "-j", "1"],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    end = time.monotonic() + 60
    while not (root / "rec.unfinished" / "train.lst").exists():
        assert time.monotonic() < end
        time.sleep(0.01)
    time.sleep(0.2)  # Ctrl-C in a constructor of MXNet's writer or of tqdm prints more lines
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert not out.exists()
    if number == signal.SIGINT:
        assert process.returncode == 130
        assert errors == "pack_images.py: interrupted; run the same command again to resume.\n"
        assert not (root / "rec.unfinished").exists()
    for copy in range(2, 400):
        (root / "train" / "a" / f"{copy}.jpg").unlink()
    done = script(root, out, "--resize", "16")
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(path.name for path in root.iterdir()) == ["rec", "train", "val"]
    assert len(records(out, "train")) == 2
