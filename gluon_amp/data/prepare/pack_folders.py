"""Packs folders of images, such as ImageNet's, into RecordIO."""

from dataclasses import asdict
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from gluon_amp.data.class_names import check_same_classes
from gluon_amp.data.prepare.packing import Encoding, Part, pack, packed_with
from gluon_amp.data.prepare.splitting import (
    Image,
    Split,
    Tree,
    describe_ignored,
    read_tree,
    shuffled,
)
from gluon_amp.data.source import DataError

PARTS = ("train", "val")


def pack_folders(
    root: Path,
    out: Path,
    split: Split = Split(),
    without: Sequence[str] = (),
    encoding: Encoding = Encoding(),
    workers: Optional[int] = None,
    overwrite: bool = False,
    log: Callable[[str], None] = print,
) -> Dict[str, Any]:
    """Pack ``root/train/CLASS/*`` and ``root/val/CLASS/*``, or split and pack ``root/CLASS/*``.

    Parameters
    ----------
    root : Path
        Has ``train`` and ``val``, or, if `split` has a number of images, the classes.
    out : Path
        The new folder. `gluon_amp.data.prepare.packing` lists its files.
    split : Split, optional
        Which images are for training. Its seed also determines their order.
    without : sequence of str
        Classes or images to leave out, as paths relative to `root`.
    encoding : Encoding
        How to store the images.
    workers : int, optional
        Threads; by default one for each processor.
    overwrite : bool
        Pack again what was packed with other options.
    log : callable
        Called with each line for the user.

    Returns
    -------
    dict
        The manifest.

    Raises
    ------
    DataError
        The folders do not exist, their classes differ, an image is damaged, or `out` is a folder
        with other content.
    """
    classes, images, ignored = _list(root, out, split, without)
    options = {
        "root": str(root.resolve()),
        "without": sorted(without),
        **asdict(split),
        "files": {part: len(listed) for part, listed in images.items()},
    }
    manifest = packed_with(out, options, encoding, overwrite)
    if manifest is not None:
        log(f"{out} is packed already, with these options.")
        return manifest
    if ignored:
        log(describe_ignored(ignored))
    log(f"Packing into {out} ...")
    parts = {part: Part(root, listed) for part, listed in images.items()}
    return pack(out, parts, classes, encoding, options, workers)


def _list(
    root: Path, out: Path, split: Split, without: Sequence[str]
) -> Tuple[Sequence[str], Dict[str, List[Image]], List[str]]:
    """Return the classes, the images of each part, and the ignored files, relative to `root`."""
    is_split = all((root / part).is_dir() for part in PARTS)
    if split.per_class is not None or split.total is not None:
        if is_split:
            raise DataError(
                f"{root} holds train and val, so it is split already: pass neither "
                "--train-per-class nor --train-images."
            )
        if out.resolve().parent == root.resolve():
            raise DataError(f"{out} would be a class of {root}: choose a folder outside it.")
        tree = read_tree(root, without)
        return tree.classes, split.divide(tree), list(tree.ignored)
    if not is_split:
        raise DataError(
            f"{root} does not hold both train and val: to split the classes in it, pass "
            "--train-per-class or --train-images."
        )
    trees = {part: _read_part(root, part, without) for part in PARTS}
    for name in without:
        if not name.startswith(tuple(f"{part}/" for part in PARTS)):
            raise DataError(f"{root} holds train and val, so {name} should begin with one of them.")
    check_same_classes(trees["train"].classes, trees["val"].classes, root / "train", root / "val")
    images = {
        part: [image._replace(name=f"{part}/{image.name}") for image in tree.images]
        for part, tree in trees.items()
    }
    images["train"] = shuffled(images["train"], split.seed)
    ignored = [f"{part}/{name}" for part, tree in trees.items() for name in tree.ignored]
    return trees["val"].classes, images, ignored


def _read_part(root: Path, part: str, without: Sequence[str]) -> Tree:
    prefix = f"{part}/"
    in_part = [name[len(prefix) :] for name in without if name.startswith(prefix)]
    return read_tree(root / part, in_part)
