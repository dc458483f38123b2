"""`gluon-amp prepare-caltech` on small data sets of the same structure, stray files included."""

import collections
import dataclasses
import functools
import hashlib
import http.server
import io
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from gluon_amp.training.data.prepare.splitting import Image, Split, Tree

from gluon_amp.training.console import prepare_caltech
from gluon_amp.training.data.class_names import read_classes
from gluon_amp.training.data.prepare import caltech
from gluon_amp.training.data.prepare.caltech import DATASETS, Archive, prepare
from gluon_amp.training.data.prepare.packing import Encoding, Packing
from tests import ROOT
from tests.training.data.prepare.serving import serve
from tests.training.data.refusal import refusal

cv2 = pytest.importorskip("cv2")


SMALL = Encoding(resize=16)
PROG = "gluon-amp prepare-caltech"
DEAD = "http://127.0.0.1:9/archive"

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


def jpeg(number):
    image = np.full((24, 32, 3), number * 37 % 256, np.uint8)
    image[:12] = 255 - image[0, 0]
    return cv2.imencode(".jpg", image)[1].tobytes()


def members_256():
    """Return the files of a Caltech-256 of 4 classes: 5, 6, 7 images, and 5 of clutter."""
    names = ("001.ak47", "056.dog", "198.spider", "257.clutter")
    members = {
        f"256_ObjectCategories/{name}/{name[:3]}_{number:04}.jpg": jpeg(10 * label + number)
        for label, name in enumerate(names)
        for number in range(1, 6 + label % 3)
    }
    members["256_ObjectCategories/056.dog/greg/vision309/"] = None
    members["256_ObjectCategories/198.spider/RENAME2"] = b"mv 198_0001.jpg ..."
    return members


def members_101():
    """Return the files of a Caltech-101 of 3 classes: 3, 4 and 5 images."""
    members = {
        f"101_ObjectCategories/{name}/image_{number:04}.jpg": jpeg(10 * label + number)
        for label, name in enumerate(("BACKGROUND_Google", "Faces", "ant"))
        for number in range(1, 4 + label)
    }
    members["101_ObjectCategories/BACKGROUND_Google/tmp"] = b""
    return members


def tar_of(members, mode="w"):
    """Return the bytes of an archive, the same for the same members."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode) as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name.rstrip("/"))
            if data is None:
                info.type = tarfile.DIRTYPE
            else:
                info.size = len(data)
            tar.addfile(info, io.BytesIO(data or b""))
    return file.getvalue()


def zip_of(members):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as zipped:
        for name, data in members.items():
            zipped.writestr(name, data)
    return file.getvalue()


def md5(data):
    return hashlib.md5(data).hexdigest()


class Files(http.server.BaseHTTPRequestHandler):
    """Serves files, from any byte on."""

    def do_GET(self):
        self.server.seen.append(self.path)
        start = int((self.headers["Range"] or "bytes=0-")[6:-1])
        data = self.server.files[self.path][start:]
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with serve(Files) as server:
        server.files, server.seen = {}, []
        yield server


def small_256(data, *urls):
    """Return the description of a Caltech-256 whose archive has this content."""
    return dataclasses.replace(
        DATASETS["caltech256"],
        archives=(Archive("256_ObjectCategories.tar", md5(data), urls),),
        classes=4,
        images=23,
        train_per_class=3,
    )


def small_101(inner, outer, inner_url=DEAD, outer_url=DEAD):
    name = "caltech-101/101_ObjectCategories.tar.gz"
    return dataclasses.replace(
        DATASETS["caltech101"],
        archives=(
            Archive("caltech-101.zip", md5(outer), (outer_url,), inner=name),
            Archive("101_ObjectCategories.tar.gz", md5(inner), (inner_url,)),
        ),
        classes=3,
        images=12,
        train_per_class=2,
    )


@pytest.fixture
def archive(tmp_path):
    """The archive of the small Caltech-256, under another name."""
    path = tmp_path / "my download"
    path.write_bytes(tar_of(members_256()))
    return path


@pytest.fixture
def data(archive):
    return small_256(archive.read_bytes(), DEAD)


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    """Do not repeat requests to dead mirrors; `test_downloads.py` tests that."""
    download = functools.partial(caltech.download, retries=0, backoff=0)
    monkeypatch.setattr(caltech, "download", download)


def prepare_small(data, root, archive=None, clutter=None, **options):
    """Pack small images without messages."""
    packing = Packing(**{"encoding": SMALL, "log": lambda line: None, **options})
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


def tree_of(sizes):
    """Return a tree with so many images in each class."""
    classes = [f"{label:03}" for label in range(len(sizes))]
    images = (
        Image(f"{classes[label]}/{number}", label)
        for label, size in enumerate(sizes)
        for number in range(size)
    )
    return Tree(Path("root"), tuple(classes), tuple(images), ())


@pytest.mark.parametrize(
    ("sizes", "split", "train", "val"),
    [
        (COUNTS_256, Split(per_class=60), 15_420, 15_187),
        (COUNTS_256[:-1], Split(per_class=60), 15_360, 14_420),
        (COUNTS_101[1:], Split(per_class=30), 3_030, 5_647),
        (COUNTS_101, Split(per_class=30), 3_060, 6_084),
        (COUNTS_101[1:], Split(total=6_996), 6_996, 1_681),
    ],
    ids=["256 with clutter", "256 without", "101 without", "101 with", "101 as MXNet's mirror"],
)
def test_published_splits(sizes, split, train, val):
    parts = split.divide(tree_of(sizes))
    assert (len(parts["train"]), len(parts["val"])) == (train, val)
    drawn = collections.Counter(image.label for image in parts["train"])
    if split.total is None:
        assert set(drawn.values()) == {split.per_class}
    else:
        share = split.total / sum(sizes)
        assert all(abs(drawn[label] - share * size) < 1 for label, size in enumerate(sizes))


def test_tables():
    assert (sum(COUNTS_101), len(COUNTS_101)) == (9_144, 102)
    assert (sum(COUNTS_256), len(COUNTS_256)) == (30_607, 257)
    for name, sizes in (("caltech101", COUNTS_101), ("caltech256", COUNTS_256)):
        data = DATASETS[name]
        assert (data.images, data.classes) == (sum(sizes), len(sizes))
        assert data.train_per_class < min(sizes)
        for archive in data.archives:
            assert len(bytes.fromhex(archive.md5)) == 16
            assert all(url.startswith("https://") for url in archive.urls)


# --------------------------------------------------------------------------------------- preparing


def test_caltech_256(data, archive, tmp_path):
    root, lines = tmp_path / "root", []
    manifest = prepare_small(data, root, archive, log=lines.append)
    assert lines == [
        f"Extracting {archive} ...",
        "Ignored, as these are no images: 056.dog/greg, 198.spider/RENAME2.",
        f"Packing into {root}/rec ...",
    ]
    assert read_classes(root / "rec") == ("001.ak47", "056.dog", "198.spider", "257.clutter")
    assert manifest["images"] == {"train": 12, "val": 11}
    assert counts(root, "train") == [3, 3, 3, 3]
    assert counts(root, "val") == [2, 3, 4, 2]
    # the three whose `printf '0 001.ak47/001_0002.jpg' | sha256sum` are the smallest of the class
    drawn = sorted(name for name, label in listed(root, "train").items() if not label)
    assert drawn == [f"001.ak47/001_000{number}.jpg" for number in (2, 4, 5)]
    assert not set(listed(root, "train")) & set(listed(root, "val"))
    assert sorted(path.name for path in root.iterdir()) == ["images", "rec"]


def test_caltech_256_without_clutter(data, archive, tmp_path):
    prepare_small(data, tmp_path, archive, clutter=False)
    assert read_classes(tmp_path / "rec") == ("001.ak47", "056.dog", "198.spider")
    assert counts(tmp_path, "train") == [3, 3, 3]
    assert counts(tmp_path, "val") == [2, 3, 4]


def test_two_runs_give_the_same_bytes(data, archive, tmp_path):
    for root, workers in (("one", 1), ("two", 4)):
        prepare_small(data, tmp_path / root, archive, workers=workers)
    assert content(tmp_path / "one") == content(tmp_path / "two")


def test_a_second_run_does_nothing(data, archive, tmp_path):
    """It needs neither the archive nor the images."""
    root, lines = tmp_path / "root", []
    first = prepare_small(data, root, archive)
    archive.unlink()
    (root / "images").rename(tmp_path / "elsewhere")
    before = {path: path.stat().st_mtime_ns for path in (root / "rec").iterdir()}
    assert prepare_small(data, root, log=lines.append) == first
    assert lines == [f"{root}/rec is packed already, with these options."]
    assert {path: path.stat().st_mtime_ns for path in (root / "rec").iterdir()} == before


@pytest.mark.parametrize(
    ("changed", "difference"),
    [
        ({"clutter": False}, "clutter true, not false"),
        ({"split": Split(per_class=2)}, "per class 3, not 2"),
        ({"split": Split(seed=1)}, "seed 0, not 1"),
        ({"encoding": Encoding(16, 94)}, "quality 95, not 94"),
    ],
)
def test_other_options_than_before(data, archive, tmp_path, changed, difference):
    prepare_small(data, tmp_path, archive)
    before = content(tmp_path)
    assert refusal(prepare_small, data, tmp_path, archive, **changed) == (
        f"{tmp_path}/rec was packed with {difference}: pass --overwrite to pack again, or choose "
        "another folder."
    )
    assert content(tmp_path) == before
    archive.unlink()  # the images remain
    prepare_small(data, tmp_path, archive, **changed, overwrite=True)
    assert content(tmp_path) != before


def test_caltech_101_from_either_archive(tmp_path):
    """The official zip, and the tar within it, which is also published separately."""
    inner = tar_of(members_101(), "w:gz")
    outer = zip_of({"caltech-101/101_ObjectCategories.tar.gz": inner, "__MACOSX/._x": b"junk"})
    data = small_101(inner, outer)
    for name, archive in (("zip", outer), ("tar", inner)):
        (tmp_path / f"{name}.bin").write_bytes(archive)
        prepare_small(data, tmp_path / name, archive=tmp_path / f"{name}.bin")
        assert read_classes(tmp_path / name / "rec") == ("Faces", "ant")
        assert counts(tmp_path / name, "train") == [2, 2]
        assert counts(tmp_path / name, "val") == [2, 3]
    assert content(tmp_path / "zip") == content(tmp_path / "tar")
    prepare_small(data, tmp_path / "zip", split=Split(total=6), clutter=True, overwrite=True)
    assert read_classes(tmp_path / "zip" / "rec") == ("BACKGROUND_Google", "Faces", "ant")
    assert counts(tmp_path / "zip", "train") == [2, 2, 2]


# ------------------------------------------------------------------------------------- downloading


def test_download_if_the_first_mirror_is_dead(archive, server, tmp_path):
    server.files["/a.tar"] = archive.read_bytes()
    data = small_256(archive.read_bytes(), DEAD, f"{server.url}/a.tar")
    prepare_small(data, tmp_path / "root")
    assert counts(tmp_path / "root", "train") == [3, 3, 3, 3]
    assert (tmp_path / "root/256_ObjectCategories.tar").read_bytes() == archive.read_bytes()
    (tmp_path / "root" / "rec" / "manifest.json").unlink()
    assert server.seen == ["/a.tar"]


def test_an_interrupted_run_is_resumed(archive, server, tmp_path):
    """Every step was killed in the middle."""
    whole = archive.read_bytes()
    server.files["/a.tar"] = whole
    data, root = small_256(whole, f"{server.url}/a.tar"), tmp_path / "root"
    root.mkdir()
    (root / "256_ObjectCategories.tar.part").write_bytes(whole[:5000])
    (root / "images.unfinished" / "256_ObjectCategories").mkdir(parents=True)
    (root / "images.unfinished" / "256_ObjectCategories" / "junk").touch()
    (root / "rec.unfinished").mkdir()
    (root / "rec.unfinished" / "train.rec").write_bytes(b"half")
    prepare_small(data, root)
    assert sorted(path.name for path in root.iterdir()) == [
        "256_ObjectCategories.tar",
        "images",
        "rec",
    ]
    prepare_small(data, tmp_path / "other", archive)
    assert content(root) == content(tmp_path / "other")


def test_the_second_archive_is_downloaded_if_the_first_cannot(server, tmp_path):
    inner = tar_of(members_101(), "w:gz")
    server.files["/inner"] = inner
    data = small_101(inner, zip_of({}), inner_url=f"{server.url}/inner")
    prepare_small(data, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "101_ObjectCategories.tar.gz",
        "images",
        "rec",
    ]


def test_no_mirror_has_it(archive, server, tmp_path):
    server.files["/a.tar"] = b"another file"
    data = small_256(archive.read_bytes(), DEAD, f"{server.url}/a.tar")
    assert refusal(prepare_small, data, tmp_path / "root") == (
        "Caltech-256 could not be downloaded (256_ObjectCategories.tar could not be downloaded: "
        f"{DEAD}: Failed to establish a new connection: [Errno 111] Connection refused; "
        f"{server.url}/a.tar: its md5 is {md5(b'another file')}, expected "
        f"{md5(archive.read_bytes())}.): download it in another way and pass --archive FILE."
    )


# ---------------------------------------------------------------------------------------- failures


def test_another_archive(data, tmp_path):
    path = tmp_path / "256_ObjectCategories.tar"
    path.write_bytes(b"another file")
    expected = (
        f"{path} is not Caltech-256 as published: its md5 is "
        f"{md5(b'another file')}, expected {data.archives[0].md5} (256_ObjectCategories.tar); pack "
        "other images with `gluon-amp pack`."
    )
    assert refusal(prepare_small, data, tmp_path / "root", path) == expected
    assert refusal(prepare_small, data, tmp_path) == expected  # in the place of the download
    assert refusal(prepare_small, data, tmp_path / "root", tmp_path / "none") == (
        f"{tmp_path}/none was not found."
    )
    assert not (tmp_path / "root").exists()


@pytest.mark.parametrize(
    ("name", "kind", "why"),
    [
        ("../../evil.jpg", tarfile.REGTYPE, "leads outside the folder it is extracted to"),
        ("256_ObjectCategories/link", tarfile.SYMTYPE, "is a link or a device"),
    ],
)
def test_an_archive_that_is_not_safe(tmp_path, name, kind, why):
    file = io.BytesIO(tar_of(members_256()))
    with tarfile.open(fileobj=file, mode="a") as tar:
        info = tarfile.TarInfo(name)
        info.type, info.linkname = kind, "/etc"
        tar.addfile(info)
    root = tmp_path / "a" / "b"
    root.mkdir(parents=True)
    (root / "256_ObjectCategories.tar").write_bytes(file.getvalue())
    assert refusal(prepare_small, small_256(file.getvalue()), root) == (
        f"{root}/256_ObjectCategories.tar is not safe to extract: {name} {why}."
    )
    names = sorted(path.name for path in tmp_path.rglob("*"))
    assert names == ["256_ObjectCategories.tar", "a", "b"]


def test_images_are_missing(data, archive, tmp_path):
    prepare_small(data, tmp_path, archive)
    images = tmp_path / "images" / "256_ObjectCategories"
    (images / "001.ak47" / "001_0002.jpg").unlink()
    assert refusal(prepare_small, data, tmp_path, overwrite=True) == (
        f"{images} holds 22 images of 4 classes, expected 23 of 4: remove {tmp_path}/images "
        "to extract it again."
    )


def test_a_corrupt_image(tmp_path):
    members = members_256()
    members["256_ObjectCategories/056.dog/056_0003.jpg"] = jpeg(0)[:-300]
    archive = tar_of(members)
    (tmp_path / "256_ObjectCategories.tar").write_bytes(archive)
    path = tmp_path / "images/256_ObjectCategories/056.dog/056_0003.jpg"
    assert refusal(prepare_small, small_256(archive), tmp_path) == (
        f"{path} cannot be packed, the JPEG ends too early: replace it, or pass "
        "--without 056.dog/056_0003.jpg."
    )
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("rec")]
    prepare_small(small_256(archive), tmp_path, without=["056.dog/056_0003.jpg"])
    assert counts(tmp_path, "val") == [2, 2, 4, 2]


# -------------------------------------------------------------------------------------- the script


@pytest.fixture
def dataset(monkeypatch, data):
    """The small Caltech-256 in place of the real one."""
    monkeypatch.setitem(caltech.DATASETS, "caltech256", data)


def test_script_and_training(dataset, archive, tmp_path, capsys):
    """`gluon-amp train` reads the packed images."""
    root = tmp_path / "root"
    options = ["--dataset", "caltech256", "--root", str(root), "--archive", str(archive)]
    assert prepare_caltech.main([*options, "--resize", "32", "--train-images", "15"]) == 0
    assert capsys.readouterr().out.splitlines()[2:] == [
        f"Packing into {root}/rec ...",
        "15 train and 8 val images of 4 classes. To train on them:",
        f"gluon-amp train --data-dir {root} --use-rec",
    ]
    trained = subprocess.run(
        [
            *(sys.executable, "-m", "gluon_amp", "train", "--data-dir", str(root), "--use-rec"),
            *("--model", "mobilenet0.25", "--dtype", "float32", "--batch-size", "8"),
            *("--num-epochs", "1", "--num-workers", "0", "--save-dir", str(tmp_path / "saved")),
        ],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=200,
    )
    assert trained.returncode == 0, trained.stderr
    assert "8/8" in trained.stdout


def test_script_refuses_in_one_sentence(dataset, tmp_path, capsys):
    options = ["--dataset", "caltech256", "--root", str(tmp_path)]
    assert prepare_caltech.main([*options, "--archive", str(tmp_path / "none")]) == 2
    assert capsys.readouterr() == (
        "",
        f"{PROG}: {tmp_path}/none was not found.\n",
    )
    (tmp_path / "file").touch()
    assert prepare_caltech.main([*options[:3], str(tmp_path / "file")]) == 2
    assert capsys.readouterr() == (
        "",
        f"{PROG}: {tmp_path}/file: File exists.\n",
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "the following arguments are required: --dataset"),
        (
            ["--dataset", "caltech"],
            "argument --dataset: invalid choice: 'caltech' (choose from 'caltech101', "
            "'caltech256')",
        ),
        (
            ["--dataset", "caltech101", "--no-clutter", "--include-clutter"],
            "argument --include-clutter: not allowed with argument --no-clutter",
        ),
    ],
)
def test_wrong_options(capsys, options, message):
    with pytest.raises(SystemExit) as caught:
        prepare_caltech.main(options)
    assert caught.value.code == 2
    error = capsys.readouterr().err.replace("caltech101, caltech256", "'caltech101', 'caltech256'")
    assert error == f"{PROG}: {message}\n"
