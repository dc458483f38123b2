"""`gluon-amp prepare-caltech` on small data sets of the same structure, stray files included."""

import collections
import dataclasses
import hashlib
import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from gluon_amp.training.console import prepare_caltech
from gluon_amp.training.data import Preprocessing, open_records, read_classes
from gluon_amp.training.data.prepare import caltech
from gluon_amp.training.data.prepare.caltech import DATASETS, Archive, prepare
from gluon_amp.training.data.prepare.downloads import DownloadError
from gluon_amp.training.data.prepare.packing import Encoding, Packing
from gluon_amp.training.data.splitting import Image, Split, Tree
from tests.images import record_files
from tests.training.data.jpegs import jpeg, smooth
from tests.training.data.refusal import refusal

# The images of the 102 classes of Caltech-101, in the order of the folders.
COUNTS_101 = [
    *(467, 435, 435, 200, 798, 55, 800, 42, 42, 47, 54, 46, 33, 128, 98, 43, 85, 91, 50, 43, 123),
    *(47, 59, 62, 107, 47, 69, 73, 70, 50, 51, 57, 67, 52, 65, 68, 75, 64, 53, 64, 85, 67, 67, 45),
    *(34, 34, 51, 99, 100, 42, 54, 88, 80, 31, 64, 86, 114, 61, 81, 78, 41, 66, 43, 40, 87, 32),
    *(76, 55, 35, 39, 47, 38, 45, 53, 34, 57, 82, 59, 49, 40, 63, 39, 84, 57, 35, 64, 45, 86),
    *(59, 64, 35, 85, 49, 86, 75, 239, 37, 59, 34, 56, 39, 60),
]
# The numbers of classes and images are those of Caltech-256: of 30,607 images, 827 are clutter, and
# no class has fewer than 80. The sums do not depend on the distribution of the others.
COUNTS_256 = [80] * 100 + [139] * 60 + [140] * 96 + [827]


def members(folder, classes, **others):
    """Return the files of a data set: so many images in each class, and others."""
    files = {
        f"{folder}/{name}/{number}.jpg": jpeg(smooth(24, 32, 10 * count + number))
        for name, count in classes.items()
        for number in range(count)
    }
    return {**files, **{f"{folder}/{name}": data for name, data in others.items()}}


CLASSES_256 = {"001.ak47": 5, "056.dog": 6, "198.spider": 7, "257.clutter": 5}
MEMBERS_256 = members("256_ObjectCategories", CLASSES_256, **{"198.spider/RENAME2": b"mv"})
CLASSES_101 = {"BACKGROUND_Google": 3, "Faces": 4, "ant": 5}
MEMBERS_101 = members("101_ObjectCategories", CLASSES_101)


def tar_of(members, mode="w"):
    """Return the bytes of an archive."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode) as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return file.getvalue()


def md5(data):
    return hashlib.md5(data).hexdigest()


def small_256(data):
    """Return the description of a Caltech-256 whose archive has this content."""
    return dataclasses.replace(
        DATASETS["caltech256"],
        archives=(Archive("256_ObjectCategories.tar", md5(data), ("a.tar",)),),
        classes=4,
        images=23,
        train_per_class=3,
    )


@pytest.fixture
def archive(tmp_path):
    """The archive of the small Caltech-256, under another name."""
    path = tmp_path / "my download"
    path.write_bytes(tar_of(MEMBERS_256))
    return path


@pytest.fixture
def data(archive):
    return small_256(archive.read_bytes())


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


def listed(root, part):
    """Return the label of each name."""
    lines = (root / "rec" / f"{part}.lst").read_text().splitlines()
    return {name: int(label) for _, label, name in (line.split("\t") for line in lines)}


def counts(root, part):
    tally = collections.Counter(listed(root, part).values())
    return [tally[label] for label in range(max(tally) + 1)]


# -------------------------------------------------------------------------------------- the tables


@pytest.mark.parametrize(
    ("sizes", "split", "train", "val"),
    [
        (COUNTS_256, Split(per_class=60), 15_420, 15_187),
        (COUNTS_101[1:], Split(per_class=30), 3_030, 5_647),
        (COUNTS_101[1:], Split(total=6_996), 6_996, 1_681),
    ],
    ids=["256", "101 without clutter", "101 as MXNet's mirror"],
)
def test_published_splits(sizes, split, train, val):
    classes = [f"{label:03}" for label in range(len(sizes))]
    images = (
        Image(f"{classes[label]}/{number}", label)
        for label, size in enumerate(sizes)
        for number in range(size)
    )
    parts = split.divide(Tree(Path("root"), tuple(classes), tuple(images), ()))
    assert (len(parts["train"]), len(parts["val"])) == (train, val)
    drawn = collections.Counter(image.label for image in parts["train"])
    if split.total is None:
        assert set(drawn.values()) == {split.per_class}
    else:
        share = split.total / sum(sizes)
        assert all(abs(drawn[label] - share * size) < 1 for label, size in enumerate(sizes))


def test_the_published_numbers():
    for name, sizes, per_class in (("caltech101", COUNTS_101, 30), ("caltech256", COUNTS_256, 60)):
        data = DATASETS[name]
        numbers = (data.images, data.classes, data.train_per_class)
        assert numbers == (sum(sizes), len(sizes), per_class)
        assert all(len(bytes.fromhex(archive.md5)) == 16 for archive in data.archives)


# --------------------------------------------------------------------------------------- preparing


def test_caltech_256(data, archive, tmp_path):
    root, lines = tmp_path / "root", []
    manifest = prepare_small(data, root, archive, log=lines.append)
    assert lines == [
        f"Extracting {archive} ...",
        "Ignored, as these are no images: 198.spider/RENAME2.",
        f"Packing into {root}/rec ...",
    ]
    assert read_classes(root / "rec") == tuple(CLASSES_256)
    assert manifest["images"] == {"train": 12, "val": 11}
    assert (counts(root, "train"), counts(root, "val")) == ([3, 3, 3, 3], [2, 3, 4, 2])
    assert sorted(path.name for path in root.iterdir()) == ["images", "rec"]
    archive.unlink()  # a second run needs neither it nor the images
    (root / "images").rename(tmp_path / "elsewhere")
    assert prepare_small(data, root, log=lines.append) == manifest
    assert lines[3:] == [f"{root}/rec is packed already, with these options."]
    message = refusal(prepare_small, data, root, clutter=False)
    assert message.startswith(f"{root}/rec was packed with clutter true, not false: pass --over")


def test_caltech_101_from_either_archive(tmp_path, served):
    """The official zip, and the tar within it, which is also published separately."""
    name, inner = "caltech-101/101_ObjectCategories.tar.gz", tar_of(MEMBERS_101, "w:gz")
    outer = io.BytesIO()
    with zipfile.ZipFile(outer, "w") as zipped:
        zipped.writestr(name, inner)
    data = dataclasses.replace(
        DATASETS["caltech101"],
        archives=(
            Archive("caltech-101.zip", md5(outer.getvalue()), ("outer",), inner=name),
            Archive("101_ObjectCategories.tar.gz", md5(inner), ("inner",)),
        ),
        classes=3,
        images=12,
        train_per_class=2,
    )
    served["inner"] = inner  # the second archive, as the first cannot be downloaded
    prepare_small(data, tmp_path / "tar")
    served["outer"] = outer.getvalue()
    prepare_small(data, tmp_path / "zip")
    assert content(tmp_path / "zip") == content(tmp_path / "tar")
    assert read_classes(tmp_path / "zip" / "rec") == ("Faces", "ant")
    assert counts(tmp_path / "zip", "val") == [2, 3]
    prepare_small(data, tmp_path / "zip", split=Split(total=6), clutter=True, overwrite=True)
    assert counts(tmp_path / "zip", "train") == [2, 2, 2]


def test_a_run_that_was_killed_at_any_step_is_resumed(data, archive, tmp_path, served):
    served["a.tar"], root = archive.read_bytes(), tmp_path / "root"
    (root / "images.unfinished" / "256_ObjectCategories").mkdir(parents=True)
    (root / "images.unfinished" / "256_ObjectCategories" / "junk").touch()
    (root / "rec.unfinished").mkdir()
    (root / "rec.unfinished" / "train.rec").write_bytes(b"half")
    prepare_small(data, root)
    names = sorted(path.name for path in root.iterdir())
    assert names == ["256_ObjectCategories.tar", "images", "rec"]
    prepare_small(data, tmp_path / "other", archive)
    assert content(root) == content(tmp_path / "other")


# ---------------------------------------------------------------------------------------- failures


def test_no_mirror_has_it(data, tmp_path, served):
    assert refusal(prepare_small, data, tmp_path / "root") == (
        "Caltech-256 could not be downloaded (256_ObjectCategories.tar could not be downloaded: "
        "a.tar: 404.): download it in another way and pass --archive FILE."
    )


def test_another_archive(data, tmp_path):
    path = tmp_path / "256_ObjectCategories.tar"
    path.write_bytes(b"another file")
    expected = (
        f"{path} is not Caltech-256 as published: its md5 is {md5(b'another file')}, expected "
        f"{data.archives[0].md5} (256_ObjectCategories.tar); pack other images with "
        "`gluon-amp pack`."
    )
    assert refusal(prepare_small, data, tmp_path / "root", path) == expected
    assert refusal(prepare_small, data, tmp_path) == expected  # in the place of the download


def test_images_are_missing(data, archive, tmp_path):
    images = tmp_path / "images" / "256_ObjectCategories"
    prepare_small(data, tmp_path, archive)
    (images / "001.ak47" / "2.jpg").unlink()
    assert refusal(prepare_small, data, tmp_path, overwrite=True) == (
        f"{images} holds 22 images of 4 classes, expected 23 of 4: remove {tmp_path}/images "
        "to extract it again."
    )


# ------------------------------------------------------------------------------------- the command


def test_the_command(data, archive, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(caltech.DATASETS, "caltech256", data)
    root = tmp_path / "root"
    options = ["--dataset", "caltech256", "--root", str(root), "--archive"]
    small = ["--resize", "16", "--train-images", "15", "--no-clutter"]
    assert prepare_caltech.main([*options, str(archive), *small]) == 0
    assert capsys.readouterr().out.splitlines()[2:] == [
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
