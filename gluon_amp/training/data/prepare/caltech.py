"""Prepares Caltech-101 and Caltech-256: their archives, their classes, and the steps to pack them.

Sources of the tables: the pages of the data sets, https://doi.org/10.22002/D1.20086 and
https://doi.org/10.22002/D1.20087. The md5 sums and the files on Google Drive are torchvision's
(``torchvision/datasets/caltech.py``).
"""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Dict, NamedTuple, Optional, Tuple

from gluon_amp.training.data.prepare.downloads import DownloadError, download, extract, md5_of
from gluon_amp.training.data.prepare.packing import Listing, Packing, pack, packed_with
from gluon_amp.training.data.source import DataError
from gluon_amp.training.data.splitting import read_tree

EXTRACTED, PACKED = "images", "rec"
DRIVE = "https://drive.usercontent.google.com/download?export=download&confirm=t&id="


class Archive(NamedTuple):
    """An archive of a data set."""

    name: str  # of the file
    md5: str  # as hexadecimal digits
    urls: Tuple[str, ...]  # mirrors, best first
    inner: Optional[str] = None  # name of the archive within it that has the images


@dataclass(frozen=True)
class Caltech:
    """One of the two data sets."""

    title: str  # for messages
    archives: Tuple[Archive, ...]  # alternatives, best first
    folder: str  # the one in the archive that has the classes
    clutter: str  # the class of images that belong to no other class
    classes: int  # their number, including clutter
    images: int  # their number, including clutter
    with_clutter: bool  # whether clutter is a class by default
    train_per_class: int  # default number of training images of each class


DATASETS: Dict[str, Caltech] = {
    "caltech101": Caltech(
        title="Caltech-101",
        archives=(
            Archive(
                "caltech-101.zip",
                "3138e1922a9193bfa496528edbbc45d0",
                ("https://data.caltech.edu/records/mzrjq-6wc02/files/caltech-101.zip",),
                inner="caltech-101/101_ObjectCategories.tar.gz",
            ),
            Archive(
                "101_ObjectCategories.tar.gz",
                "b224c7392d521a49829488ab0f1120d9",
                (f"{DRIVE}137RyRjvTBkBiIfeYBNZBtViDHQ6_Ewsp",),
            ),
        ),
        folder="101_ObjectCategories",
        clutter="BACKGROUND_Google",
        classes=102,
        images=9_144,
        with_clutter=False,
        train_per_class=30,
    ),
    "caltech256": Caltech(
        title="Caltech-256",
        archives=(
            Archive(
                "256_ObjectCategories.tar",
                "67b4f42ca05d46448c6bb8ecd2220f6d",
                (
                    "https://data.caltech.edu/records/nyy15-4j048/files/256_ObjectCategories.tar",
                    f"{DRIVE}1r6o0pSROcV1_VwT4oSjA2FBUSCWGuxLK",
                ),
            ),
        ),
        folder="256_ObjectCategories",
        clutter="257.clutter",
        classes=257,
        images=30_607,
        with_clutter=True,
        train_per_class=60,
    ),
}


def prepare(
    data: Caltech,
    root: Path,
    packing: Packing,
    clutter: Optional[bool] = None,
    archive: Optional[Path] = None,
) -> Dict[str, Any]:
    """Download, extract, split and pack a data set, unless it is done; return the manifest."""
    split, without = packing.split, packing.without
    if split.per_class is None and split.total is None:
        split = replace(split, per_class=data.train_per_class)
    clutter = data.with_clutter if clutter is None else clutter
    out = root / PACKED
    options = {"data": data.title, "clutter": clutter, "without": sorted(without), **asdict(split)}
    manifest = packed_with(out, options, packing)
    if manifest is not None:
        return manifest
    if not (root / EXTRACTED).exists():
        path, kind = (archive, _identify(data, archive)) if archive else _get(data, root)
        packing.log(f"Extracting {path} ...")
        extract(path, root / EXTRACTED, kind.inner)
    folder = root / EXTRACTED / data.folder
    _check_complete(data, folder)
    tree = read_tree(folder, [*without, *([] if clutter else [data.clutter])])
    listing = Listing(folder, tree.classes, split.divide(tree), tree.ignored)
    return pack(out, listing, options, packing)


def _identify(data: Caltech, path: Path) -> Archive:
    """Return which archive a file is, by its content and not by its name."""
    if not path.is_file():
        raise DataError(f"{path} was not found.")
    md5 = md5_of(path)
    for archive in data.archives:
        if md5 == archive.md5:
            return archive
    expected = " or ".join(f"{archive.md5} ({archive.name})" for archive in data.archives)
    raise DataError(
        f"{path} is not {data.title} as published: its md5 is {md5}, expected {expected}; pack "
        "other images with `gluon-amp pack`."
    )


def _get(data: Caltech, root: Path) -> Tuple[Path, Archive]:
    """Return the first archive that exists or can be downloaded."""
    for archive in data.archives:
        path = root / archive.name
        if path.exists():
            return path, _identify(data, path)
    failures = []
    for archive in data.archives:
        try:
            download(archive.urls, root / archive.name, archive.md5)
            return root / archive.name, archive
        except DownloadError as error:
            failures.append(str(error))
    raise DataError(
        f"{data.title} could not be downloaded ({'; '.join(failures)}): "
        "download it in another way and pass --archive FILE."
    )


def _check_complete(data: Caltech, folder: Path) -> None:
    tree = read_tree(folder)
    if (len(tree.classes), len(tree.images)) != (data.classes, data.images):
        raise DataError(
            f"{folder} holds {len(tree.images)} images of {len(tree.classes)} classes, expected "
            f"{data.images} of {data.classes}: remove {folder.parent} to extract it again."
        )
