"""Packs folders of images, such as ImageNet's, into RecordIO."""

from dataclasses import asdict
from pathlib import Path
from typing import Any, Dict, Sequence

from gluon_amp.training.data import splitting
from gluon_amp.training.data.prepare.packing import Listing, Packing, pack, packed_with
from gluon_amp.training.data.source import DataError


def pack_folders(root: Path, out: Path, packing: Packing) -> Dict[str, Any]:
    """Pack ``root/train`` and ``root/val``, or split ``root/CLASS/*``; return the manifest."""
    splits = packing.split.per_class is not None or packing.split.total is not None
    listing = _split(root, out, packing) if splits else _divided(root, packing)
    options = {
        "root": str(root.resolve()),
        "without": sorted(packing.without),
        **asdict(packing.split),
        "files": {part: len(images) for part, images in listing.parts.items()},
    }
    return packed_with(out, options, packing) or pack(out, listing, options, packing)


def _split(root: Path, out: Path, packing: Packing) -> Listing:
    """List the images of a folder of classes, split as the packing says."""
    if splitting.is_divided(root):
        raise DataError(
            f"{root} holds train and val, so it is split already: pass neither "
            "--train-per-class nor --train-images."
        )
    if out.resolve().parent == root.resolve():
        raise DataError(f"{out} would be a class of {root}: choose a folder outside it.")
    tree = splitting.read_tree(root, packing.without)
    return Listing(root, tree.classes, packing.split.divide(tree), tree.ignored)


def _divided(root: Path, packing: Packing) -> Listing:
    """List the images of a folder that holds train and val."""
    if not splitting.is_divided(root):
        raise DataError(
            f"{root} does not hold both train and val: to split the classes in it, pass "
            "--train-per-class or --train-images."
        )
    trees = {part: _read_part(root, part, packing.without) for part in splitting.PARTS}
    for name in packing.without:
        if not name.startswith(tuple(f"{part}/" for part in splitting.PARTS)):
            raise DataError(f"{root} holds train and val, so {name} should begin with one of them.")
    splitting.check_same_classes(
        trees["train"].classes, trees["val"].classes, root / "train", root / "val"
    )
    images = {
        part: [image._replace(name=f"{part}/{image.name}") for image in tree.images]
        for part, tree in trees.items()
    }
    images["train"] = splitting.shuffled(images["train"], packing.split.seed)
    ignored = [f"{part}/{name}" for part, tree in trees.items() for name in tree.ignored]
    return Listing(root, trees["val"].classes, images, ignored)


def _read_part(root: Path, part: str, without: Sequence[str]) -> splitting.Tree:
    prefix = f"{part}/"
    in_part = [name[len(prefix) :] for name in without if name.startswith(prefix)]
    return splitting.read_tree(root / part, in_part)
