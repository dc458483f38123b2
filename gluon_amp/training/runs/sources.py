"""The images that a recipe names: packed with a library, in folders, in records, or synthetic."""

import dataclasses
from pathlib import Path
from typing import Any, Dict, Optional, Sequence, Tuple

from gluon_amp.base.messages import UsageError
from gluon_amp.training.data import (
    Preprocessing,
    RecordFiles,
    Source,
    fashion_mnist,
    open_digits,
    open_fashion_mnist,
    open_folders,
    open_image_folder,
    open_records,
    open_synthetic,
)
from gluon_amp.training.networks.models import SIZES, full_name, smallest_size
from gluon_amp.training.runs.devices import contexts
from gluon_amp.training.runs.recipe import IMAGENET_SIZE, Recipe, for_data

FINE_TUNED_DIGITS = range(5, 10)


def open_data(recipe: Recipe, options: Dict[str, Any]) -> Tuple[Source, Optional[str]]:
    """Open the data to train on; return also a sentence if it is not what the options name.

    Raises
    ------
    UsageError, DataError
        There is no such data, or it does not agree with the options.
    """
    if "data_dir" in options and not recipe.data_dir.expanduser().exists():
        raise UsageError(
            f"--data-dir {recipe.data_dir} was not found: give the folder that holds the images."
        )
    if recipe.benchmark:
        images = recipe.batch_size * len(contexts(recipe.gpus, recipe.num_gpus, recipe.cpus))
        shape = (3, *(recipe.input_size or IMAGENET_SIZE,) * 2)
        return open_synthetic(images, shape, recipe.num_classes or 1000, recipe.seed), None
    source, notice = _open_real(recipe, options)
    for name, expected, actual in (
        ("--num-classes", recipe.num_classes, source.classes),
        ("--num-training-samples", recipe.num_training_samples, source.train_images),
    ):
        if expected is not None and expected != actual:
            raise UsageError(f"{name} {expected} was given, but {source.name} has {actual}.")
    return source, notice


def _open_real(recipe: Recipe, options: Dict[str, Any]) -> Tuple[Source, Optional[str]]:
    mean, std = (tuple(v / 255 for v in values) for values in (recipe.rgb_mean, recipe.rgb_std))
    size = recipe.input_size or IMAGENET_SIZE
    preprocessing = Preprocessing(size, recipe.crop_ratio, mean, std, recipe.min_random_area)
    if recipe.dataset == "digits":
        digits = FINE_TUNED_DIGITS if recipe.fine_tunes else range(10)
        return _open_digits(recipe, options, digits), None
    if recipe.dataset == "fashion-mnist":
        return _open_fashion_mnist(recipe, options), None
    if recipe.dataset in ("caltech101", "caltech256"):
        records = open_records(_caltech_files(recipe), recipe.seed, preprocessing)
        return dataclasses.replace(records, name=recipe.dataset), None
    if recipe.reads_records or recipe.dataset == "rec":
        files = record_files(recipe)
        return _named(
            open_records(files, recipe.seed, preprocessing), recipe, files.train.parent
        ), None
    if recipe.image_folder:
        root = recipe.image_folder.expanduser()
        source = open_image_folder(root, recipe.seed, preprocessing)
        return dataclasses.replace(source, name=f"folder-{root.resolve().name}"), None
    root = recipe.data_dir.expanduser()
    if root.exists() or recipe.dataset:
        return _named(open_folders(root, recipe.seed, preprocessing), recipe, root), None
    return _open_digits(recipe, options, range(10)), (
        f"No ImageNet at {recipe.data_dir}: training on scikit-learn's handwritten digits."
    )


def _named(source: Source, recipe: Recipe, folder: Path) -> Source:
    """Return a source with the name of its folder, unless it is ImageNet."""
    if recipe.dataset == "imagenet" or recipe.data_dir == Recipe().data_dir:
        return source
    return dataclasses.replace(source, name=f"folder-{folder.resolve().name}")


def _open_digits(recipe: Recipe, options: Dict[str, Any], digits: Sequence[int]) -> Source:
    size = _size(recipe, options, "digits", len(digits), SIZES)
    return open_digits(recipe.seed, digits, size)


def _open_fashion_mnist(recipe: Recipe, options: Dict[str, Any]) -> Source:
    sizes = (fashion_mnist.SIZE, *SIZES)
    size = _size(recipe, options, "fashion-mnist", len(fashion_mnist.CLASSES), sizes)
    folder = recipe.data_dir.expanduser() if "data_dir" in options else fashion_mnist.FOLDER
    return open_fashion_mnist(folder, recipe.seed, size)


def _size(
    recipe: Recipe, options: Dict[str, Any], data: str, classes: int, sizes: Sequence[int]
) -> int:
    """Return the requested size of images, or else the first of `sizes` the network accepts."""
    recipe = for_data(recipe, options, data)
    model = full_name(recipe.model, recipe.num_layers)
    return recipe.input_size or smallest_size(model, classes, sizes)


def _caltech_files(recipe: Recipe) -> RecordFiles:
    """Return the files of `gluon-amp prepare-caltech`, or those that the recipe names."""
    if recipe.reads_records:
        return record_files(recipe)
    root = recipe.data_dir
    if root == Recipe().data_dir:
        root = Path(f"~/.mxnet/datasets/{recipe.dataset}")
    if not (root.expanduser() / "rec" / "train.rec").is_file():
        raise UsageError(
            f"{recipe.dataset} is not at {root}: run `gluon-amp prepare-caltech --dataset "
            f"{recipe.dataset}`, or give --data-dir."
        )
    return _beside(root / "rec" / "train.rec", root / "rec" / "val.rec")


def record_files(recipe: Recipe) -> RecordFiles:
    """Return the four files of a packed data set.

    A missing index is expected beside its images; without any option, files have GluonCV's names.

    Raises
    ------
    UsageError
        There are training files without validation files, or the other way round.
    """
    options = {"train": recipe.rec_train, "val": recipe.rec_val}
    if not recipe.use_rec:
        for part, path in options.items():
            if path is None:
                raise UsageError(
                    f"--rec-{part} is missing: packed data needs --rec-train and --rec-val."
                )
    folder = recipe.data_dir / "rec"
    train, val = (path or folder / f"{part}.rec" for part, path in options.items())
    return _beside(train, val, recipe.rec_train_idx, recipe.rec_val_idx)


def _beside(
    train: Path, val: Path, train_idx: Optional[Path] = None, val_idx: Optional[Path] = None
) -> RecordFiles:
    """Return packed files; an index that is not given is beside its images."""
    train_idx = train_idx or train.with_suffix(".idx")
    val_idx = val_idx or val.with_suffix(".idx")
    return RecordFiles(*(path.expanduser() for path in (train, train_idx, val, val_idx)))
