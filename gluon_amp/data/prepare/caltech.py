"""Caltech-101 and Caltech-256: where they are, what is in them, and how to pack them.

Sources of the tables: the data sets' pages, https://doi.org/10.22002/D1.20086 and
https://doi.org/10.22002/D1.20087; the md5 sums and the files on Google Drive are torchvision's
(``torchvision/datasets/caltech.py``).
"""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Callable, Dict, Optional, Sequence, Tuple

from gluon_amp.data.prepare.downloads import DownloadError, download, extract, md5_of
from gluon_amp.data.prepare.packing import Encoding, Part, pack, packed_with
from gluon_amp.data.prepare.splitting import Split, ignored_in_words, read_tree
from gluon_amp.data.source import DataError

EXTRACTED, PACKED = "images", "rec"
DRIVE = "https://drive.usercontent.google.com/download?export=download&confirm=t&id="


@dataclass(frozen=True)
class Archive:
    """A file that holds a data set.

    Attributes
    ----------
    name : str
        What to call it.
    md5 : str
        As hexadecimal digits.
    urls : tuple of str
        Mirrors, best first.
    inner : str or None
        The archive within it that holds the images.
    """

    name: str
    md5: str
    urls: Tuple[str, ...]
    inner: Optional[str] = None


@dataclass(frozen=True)
class Caltech:
    """One of the two data sets.

    Attributes
    ----------
    title : str
        As people write it.
    archives : tuple of Archive
        Any of them will do; best first.
    folder : str
        The folder in the archive that holds the classes.
    clutter : str
        The class of everything else.
    classes, images : int
        How many there are, clutter included.
    with_clutter : bool
        Whether clutter is a class unless one says otherwise.
    train_per_class : int
        Images of each class to train on unless one says otherwise.
    """

    title: str
    archives: Tuple[Archive, ...]
    folder: str
    clutter: str
    classes: int
    images: int
    with_clutter: bool
    train_per_class: int


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
    split: Split = Split(),
    clutter: Optional[bool] = None,
    without: Sequence[str] = (),
    encoding: Encoding = Encoding(),
    archive: Optional[Path] = None,
    workers: Optional[int] = None,
    overwrite: bool = False,
    tell: Callable[[str], None] = print,
) -> Dict[str, Any]:
    """Download, extract, split and pack a data set; do only what is not done yet.

    Parameters
    ----------
    data : Caltech
        One of `DATASETS`.
    root : Path
        Gets the archive, its content in ``images``, and what is packed in ``rec``.
    split : Split, optional
        Which images to train on; without a number, ``data.train_per_class`` of each class.
    clutter : bool, optional
        Whether clutter is a class; ``data.with_clutter`` if not given.
    without : sequence of str
        More classes, or images as ``CLASS/FILE``, to leave out.
    encoding : Encoding
        How to store the images.
    archive : Path, optional
        One of the archives, if one has it already; nothing is downloaded.
    workers : int, optional
        Threads that pack; one for each core if not given.
    overwrite : bool
        Pack again what was packed with other options.
    tell : callable
        Gets each line for the user.

    Returns
    -------
    dict
        The manifest (see `gluon_amp.data.prepare.packing`).

    Raises
    ------
    DataError
        The archive cannot be had or is another one, its images are not all there, or
        ``rec`` was packed with other options.
    """
    if split.per_class is None and split.total is None:
        split = replace(split, per_class=data.train_per_class)
    clutter = data.with_clutter if clutter is None else clutter
    out = root / PACKED
    options = {"data": data.title, "clutter": clutter, "without": sorted(without), **asdict(split)}
    manifest = packed_with(out, options, encoding, overwrite)
    if manifest is not None:
        tell(f"{out} is packed already, with these options.")
        return manifest
    if not (root / EXTRACTED).exists():
        path, kind = (archive, _recognise(data, archive)) if archive else _get(data, root)
        tell(f"Extracting {path} ...")
        extract(path, root / EXTRACTED, kind.inner)
    folder = root / EXTRACTED / data.folder
    _check_whole(data, folder)
    tree = read_tree(folder, [*without, *([] if clutter else [data.clutter])])
    if tree.ignored:
        tell(ignored_in_words(tree.ignored))
    parts = {name: Part(folder, images) for name, images in split.divide(tree).items()}
    tell(f"Packing into {out} ...")
    return pack(out, parts, tree.classes, encoding, options, workers)


def _recognise(data: Caltech, path: Path) -> Archive:
    """Return which archive a file is, by its content: its name may be any."""
    if not path.is_file():
        raise DataError(f"{path} was not found.")
    found = md5_of(path)
    for archive in data.archives:
        if found == archive.md5:
            return archive
    expected = " or ".join(f"{archive.md5} ({archive.name})" for archive in data.archives)
    raise DataError(
        f"{path} is not {data.title} as published: its md5 is {found}, expected {expected}; pack "
        "other images with scripts/pack_images.py."
    )


def _get(data: Caltech, root: Path) -> Tuple[Path, Archive]:
    """Return the first archive that is there or can be downloaded."""
    for archive in data.archives:
        path = root / archive.name
        if path.exists():
            return path, _recognise(data, path)
    failures = []
    for archive in data.archives:
        try:
            download(archive.urls, root / archive.name, archive.md5)
            return root / archive.name, archive
        except DownloadError as error:
            failures.append(str(error))
    raise DataError(
        f"{data.title} could not be downloaded ({'; '.join(failures)}): "
        "get it by other means and pass --archive FILE."
    )


def _check_whole(data: Caltech, folder: Path) -> None:
    tree = read_tree(folder)
    if (len(tree.classes), len(tree.images)) != (data.classes, data.images):
        raise DataError(
            f"{folder} holds {len(tree.images)} images of {len(tree.classes)} classes, expected "
            f"{data.images} of {data.classes}: remove {folder.parent}, and it is extracted again."
        )
