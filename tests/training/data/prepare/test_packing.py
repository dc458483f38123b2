"""Packing in RecordIO: the files, a second run, and folders that are refused."""

import numpy as np
import pytest

from gluon_amp.files import atomic
from gluon_amp.training.console import pack as pack_command
from gluon_amp.training.data.decode import DecodeError
from gluon_amp.training.data.prepare import packing as packing_module
from gluon_amp.training.data.prepare.pack_folders import pack_folders
from gluon_amp.training.data.prepare.packing import MANIFEST, Encoding, Packing
from gluon_amp.training.data.splitting import Split, read_classes, read_tree
from tests.images import picture, png
from tests.training.data.jpegs import write_jpeg
from tests.training.data.refusal import refusal

import mxnet as mx
from mxnet import recordio

SMALL = Encoding(resize=16)
TWO = Split(per_class=2)


def pack_small(root, out, **options):
    """Pack small images without messages."""
    packing = Packing(**{"encoding": SMALL, "log": lambda line: None, **options})
    return pack_folders(root, out, packing)


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
    rows = [line.split("\t") for line in (folder / f"{part}.lst").read_text().splitlines()]
    assert [int(number) for number, _, _ in rows] == list(range(len(rows)))
    return [(int(label), name) for _, label, name in rows]


@pytest.mark.parametrize(
    ("size", "expected"), [((40, 30), (21, 16)), ((10, 12), (16, 19)), ((16, 50), (16, 50))]
)
def test_shorter_side(tmp_path, size, expected):
    """21.3 is rounded down, as im2rec does."""
    write_jpeg(tmp_path / "x.jpg", 1, *size)
    stored = Encoding(16)((tmp_path / "x.jpg").read_bytes())
    assert mx.image.imdecode(stored).shape == (*expected, 3)


def test_quality_and_colours():
    """A lower quality gives fewer bytes of noise. The colours are preserved, red first."""
    encoded = png(picture(0, 64))
    assert len(Encoding(64, 10)(encoded)) < len(Encoding(64, 95)(encoded)) / 3
    assert Encoding(resize=0)(encoded) == encoded
    red = np.zeros((32, 32, 3), np.uint8)
    red[:, :, 0] = 200
    mean = mx.image.imdecode(Encoding(16)(png(red))).asnumpy().mean(axis=(0, 1))
    np.testing.assert_allclose(mean, (200, 0, 0), atol=3)
    # a board of black and white pixels becomes grey, as it would not with every fourth pixel
    board = np.indices((256, 256, 3))[:2].sum(axis=0) % 2 * 255
    stored = mx.image.imdecode(Encoding(64, 100)(png(board.astype(np.uint8)))).asnumpy()
    assert 125 <= stored.min() <= stored.max() <= 130
    with pytest.raises(DecodeError, match="its 600×2 pixels cannot be a JPEG of that shorter side"):
        Encoding(256)(png(np.zeros((2, 600, 3), np.uint8)))  # 256 × 76800


@pytest.mark.parametrize("workers", [1, 3])
def test_what_is_written(tmp_path, workers):
    """More images than are encoded ahead, of very different sizes; a second run does nothing."""
    root, out, lines = tmp_path / "data", tmp_path / "rec", []
    for number in range(40):
        write_jpeg(root / "ab"[number % 2] / f"{number}.jpg", number, 20 + number * 37 % 200)
    split = Split(per_class=15)
    manifest = pack_small(root, out, split=split, workers=workers, log=lines.append)
    files = ["train.idx", "train.lst", "train.rec", "val.idx", "val.lst", "val.rec"]
    assert sorted(content(out)) == sorted([*files, "classes.json", MANIFEST])
    assert read_classes(out) == ("a", "b")
    assert manifest["images"] == {"train": 30, "val": 10}
    for part, images in split.divide(read_tree(root)).items():
        assert listed(out, part) == [(image.label, image.name) for image in images]
        assert records(out, part) == [
            (image.label, number, SMALL((root / image.name).read_bytes()))
            for number, image in enumerate(images)
        ]
    before = {path: path.stat().st_mtime_ns for path in out.iterdir()}
    assert pack_small(root, out, split=split, log=lines.append) == manifest
    assert {path: path.stat().st_mtime_ns for path in out.iterdir()} == before
    again = f"{out} is packed already, with these options."
    assert lines == [f"Packing into {out} ...", again]


def test_divided_folders(divided, tmp_path):
    lines = []
    for name in ("train/a/0.txt", "val/b/0.txt"):
        (divided / name).touch()
    pack_small(divided, tmp_path / "rec", without=["train/a/1.jpg"], log=lines.append)
    train = [(label, f"train/{'ab'[label]}/{n}.jpg") for label in (0, 1) for n in range(3)]
    train.remove((0, "train/a/1.jpg"))
    assert sorted(listed(tmp_path / "rec", "train")) == train
    assert listed(tmp_path / "rec", "train") != train
    assert listed(tmp_path / "rec", "val") == [(0, "val/a/0.jpg"), (1, "val/b/0.jpg")]
    assert lines[0] == "Ignored, as these are no images: train/a/0.txt, val/b/0.txt."


@pytest.mark.parametrize(
    ("changed", "difference"),
    [
        ({"split": Split(total=6)}, "per class 2, not none"),
        ({"encoding": Encoding(16, 90)}, "quality 95, not 90"),
        ({"without": ["c/1.jpg"]}, 'without [], not ["c/1.jpg"]'),
    ],
)
def test_other_options_than_before(root, tmp_path, changed, difference):
    out = tmp_path / "rec"
    pack_small(root, out, split=TWO)
    before = content(out)
    options = {"split": TWO, **changed}
    message = refusal(pack_small, root, out, **options)
    assert message.startswith(f"{out} was packed with {difference}: pass --overwrite to pack again")
    assert content(out) == before
    pack_small(root, out, **options, overwrite=True)
    assert content(out) != before


def test_images_added_and_damage_since(root, tmp_path):
    pack_small(root, tmp_path / "rec", split=TWO)
    write_jpeg(root / "a" / "new.jpg", 0)
    message = refusal(pack_small, root, tmp_path / "rec", split=TWO)
    assert 'with files {"train": 6, "val": 6}, not {"train": 6, "val": 7}' in message
    (tmp_path / "rec" / MANIFEST).write_text("[]")
    message = refusal(pack_small, root, tmp_path / "rec", split=TWO)
    assert message == f"{tmp_path}/rec/{MANIFEST} is damaged: pass --overwrite to pack again."


@pytest.mark.parametrize("overwrite", [False, True])
def test_foreign_files_are_not_overwritten(root, overwrite):
    for out in (root, root / "a" / "0.jpg"):
        message = refusal(pack_small, root, out, split=TWO, overwrite=overwrite)
        assert message.startswith(f"{out} holds no {MANIFEST}, so it is not overwritten")


def test_a_corrupt_image_is_named_and_nothing_is_left(root, tmp_path):
    path = root / "b" / "1.jpg"
    path.write_bytes(path.read_bytes()[:-400])
    assert refusal(pack_small, root, tmp_path / "rec", split=TWO) == (
        f"{path} cannot be packed, the JPEG ends too early: replace it, or pass --without b/1.jpg."
    )
    assert list(tmp_path.iterdir()) == [root]


def test_wrong_layouts(divided, tmp_path):
    def refused(out=tmp_path / "rec", **options):
        return refusal(pack_small, divided, out, **options)

    assert "so it is split already: pass neither --train-per-class nor" in refused(split=TWO)
    assert "so a should begin with one of them" in refused(without=["a"])
    (divided / "val" / "b").rename(divided / "val" / "c")
    assert "class b is only in train: they must be the same classes" in refused()
    (divided / "val").rename(divided / "test")
    assert "does not hold both train and val: to split the classes in it, pass" in refused()
    assert "would be a class of" in refused(divided / "rec", split=TWO)


def test_the_command(divided, capsys):
    assert pack_command.main([str(divided), str(divided / "rec"), "--resize", "16", "-j", "1"]) == 0
    assert capsys.readouterr() == (
        f"Packing into {divided}/rec ...\n"
        "6 train and 2 val images of 2 classes. To train on them:\n"
        f"gluon-amp train --data-dir {divided} --use-rec\n",
        "",
    )
    assert pack_command.main([str(divided), str(divided / "my packed"), "--resize", "16"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == (
        f"gluon-amp train --rec-train '{divided}/my packed/train.rec' "
        f"--rec-val '{divided}/my packed/val.rec'"
    )
    with atomic.folder(divided / "new"):
        assert pack_command.main([str(divided), str(divided / "new")]) == 2
    assert "new.unfinished: wait for it.\n" in capsys.readouterr().err


def test_an_interruption_leaves_nothing_half_written(divided, capsys, monkeypatch):
    """As Ctrl-C does; a kill leaves rec.unfinished, which the next run empties."""

    def interrupt(folder, encoding, image):
        raise KeyboardInterrupt

    monkeypatch.setattr(packing_module, "_encode", interrupt)
    assert pack_command.main([str(divided), str(divided / "rec")]) == 130
    error = "gluon-amp pack: interrupted; run the same command again to resume.\n"
    assert capsys.readouterr().err == error
    assert sorted(path.name for path in divided.iterdir()) == ["train", "val"]
