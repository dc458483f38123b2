"""`gluon-amp prepare-caltech` on small data sets of the same structure, stray files included."""

import dataclasses
import hashlib
import io
import zipfile

import pytest

from gluon_amp.training.console import prepare_caltech
from gluon_amp.training.data import Preprocessing, open_records
from gluon_amp.training.data.prepare import caltech
from gluon_amp.training.data.prepare.caltech import DATASETS, Archive, prepare
from gluon_amp.training.data.prepare.downloads import DownloadError
from gluon_amp.training.data.prepare.packing import Encoding, Packing
from gluon_amp.training.data.splitting import Split, read_classes
from tests.images import record_files
from tests.training.data.jpegs import jpeg, smooth
from tests.training.data.prepare.archives import entry, tar_bytes
from tests.training.data.refusal import refusal

CLASSES_101 = {"BACKGROUND_Google": 3, "Faces": 4, "ant": 5}
CLASSES_256 = {"001.ak47": 5, "056.dog": 6, "198.spider": 7, "257.clutter": 5}


def tar_of(folder, classes, mode="w"):
    """Return an archive with so many images in each class, and another file."""
    names = [f"{name}/{number}.jpg" for name, count in classes.items() for number in range(count)]
    names.append(f"{max(classes)}/RENAME2")
    images = [jpeg(smooth(24, 32, seed)) for seed in range(len(names))]
    return tar_bytes(*map(entry, [f"{folder}/{name}" for name in names], images), mode=mode)


ARCHIVE = tar_of("256_ObjectCategories", CLASSES_256)
MD5 = hashlib.md5(ARCHIVE).hexdigest()
SMALL_256 = dataclasses.replace(
    DATASETS["caltech256"],
    archives=(Archive("256_ObjectCategories.tar", MD5, ("a.tar",)),),
    classes=4,
    images=23,
    train_per_class=3,
)


@pytest.fixture
def archive(tmp_path):
    """The archive of the small Caltech-256, under another name."""
    (tmp_path / "my download").write_bytes(ARCHIVE)
    return tmp_path / "my download"


@pytest.fixture
def served(monkeypatch):
    """What the mirrors have, by URL; `test_downloads.py` tests downloads."""
    contents = {}

    def download(urls, path, md5):
        if urls[0] not in contents:
            raise DownloadError(f"{path.name} could not be downloaded: {urls[0]}: 404.")
        path.write_bytes(contents[urls[0]])

    monkeypatch.setattr(caltech, "download", download)
    return contents


def prepare_small(data, root, archive=None, clutter=None, **options):
    """Pack small images without messages."""
    root.mkdir(exist_ok=True)
    packing = Packing(**{"encoding": Encoding(resize=16), "log": lambda line: None, **options})
    return prepare(data, root, packing, clutter, archive)


def content(root):
    return {path.name: path.read_bytes() for path in (root / "rec").iterdir()}


def counts(root, part):
    """Return the number of images of each class."""
    lines = (root / "rec" / f"{part}.lst").read_text().splitlines()
    labels = [int(line.split("\t")[1]) for line in lines]
    return [labels.count(label) for label in range(max(labels) + 1)]


def test_caltech_256(archive, tmp_path):
    root, lines = tmp_path / "root", []
    manifest = prepare_small(SMALL_256, root, archive, log=lines.append)
    assert lines == [
        f"Extracting {archive} ...",
        "Ignored, as these are no images: 257.clutter/RENAME2.",
        f"Packing into {root}/rec ...",
    ]
    assert read_classes(root / "rec") == tuple(CLASSES_256)
    assert (counts(root, "train"), counts(root, "val")) == ([3, 3, 3, 3], [2, 3, 4, 2])
    assert sorted(path.name for path in root.iterdir()) == ["images", "rec"]
    archive.unlink()  # a second run needs neither it nor the images
    (root / "images").rename(tmp_path / "elsewhere")
    assert prepare_small(SMALL_256, root, log=lines.append) == manifest
    message = refusal(prepare_small, SMALL_256, root, clutter=False)
    assert message.startswith(f"{root}/rec was packed with clutter true, not false: pass --over")


def test_caltech_101_from_either_archive(tmp_path, served):
    """The official zip, and the tar within it, which is also published separately."""
    name, inner = "caltech-101/x.tar.gz", tar_of("101_ObjectCategories", CLASSES_101, "w:gz")
    outer = io.BytesIO()
    with zipfile.ZipFile(outer, "w") as zipped:
        zipped.writestr(name, inner)
    md5s = [hashlib.md5(data).hexdigest() for data in (outer.getvalue(), inner)]
    archives = Archive("a.zip", md5s[0], ("outer",), inner=name), Archive("b", md5s[1], ("inner",))
    sizes = {"classes": 3, "images": 12, "train_per_class": 2}
    data = dataclasses.replace(DATASETS["caltech101"], archives=archives, **sizes)
    served["inner"] = inner  # the second archive, as the first cannot be downloaded
    prepare_small(data, tmp_path / "tar")
    served["outer"] = outer.getvalue()
    prepare_small(data, tmp_path / "zip")
    assert content(tmp_path / "zip") == content(tmp_path / "tar")
    assert read_classes(tmp_path / "zip" / "rec") == ("Faces", "ant")
    assert counts(tmp_path / "zip", "val") == [2, 3]
    prepare_small(data, tmp_path / "zip", split=Split(total=6), clutter=True, overwrite=True)
    assert counts(tmp_path / "zip", "train") == [2, 2, 2]


def test_what_cannot_be_prepared(archive, tmp_path, served):
    root = tmp_path / "root"
    assert refusal(prepare_small, SMALL_256, root) == (
        "Caltech-256 could not be downloaded (256_ObjectCategories.tar could not be downloaded: "
        "a.tar: 404.): download it in another way and pass --archive FILE."
    )
    for path in (tmp_path / "other", root / "256_ObjectCategories.tar"):  # as from a download
        path.write_bytes(b"another file")
        message = refusal(prepare_small, SMALL_256, root, path if path.parent != root else None)
        assert message.startswith(f"{path} is not Caltech-256 as published: its md5 is ")
    prepare_small(SMALL_256, root, archive)
    (root / "images" / "256_ObjectCategories" / "001.ak47" / "2.jpg").unlink()
    message = refusal(prepare_small, SMALL_256, root, overwrite=True)
    assert "holds 22 images of 4 classes, expected 23 of 4: remove " in message


def test_the_command(archive, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(caltech.DATASETS, "caltech256", SMALL_256)
    root = tmp_path / "root"
    options = ["--dataset", "caltech256", "--root", str(root), "--archive"]
    small = ["--resize", "16", "--train-images", "15", "--no-clutter"]
    assert prepare_caltech.main([*options, str(archive), *small]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [
        f"Packing into {root}/rec ...",
        "15 train and 3 val images of 3 classes. To train on them:",
        f"gluon-amp train --data-dir {root} --use-rec",
    ]
    source = open_records(record_files(root / "rec"), preprocessing=Preprocessing(16))
    assert (source.train_images, source.val_images, source.classes) == (15, 3, 3)
    options[3] = str(tmp_path / "new")
    assert prepare_caltech.main([*options, str(tmp_path / "none")]) == 2
    message = f"gluon-amp prepare-caltech: {tmp_path}/none was not found.\n"
    assert capsys.readouterr() == ("", message)
