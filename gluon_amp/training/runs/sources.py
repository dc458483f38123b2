"""The images that a recipe names: packed with a library, in folders, in records, or synthetic."""

import dataclasses
from pathlib import Path
from typing import Optional

from gluon_amp.base.messages import UsageError
from gluon_amp.training.data import (
    Preprocessing,
    RecordFiles,
    Source,
    open_digits,
    open_fashion_mnist,
    open_folders,
    open_image_folder,
    open_records,
    open_synthetic,
)
from gluon_amp.training.runs.image_options import IMAGENET
from gluon_amp.training.runs.recipe import Recipe

FINE_TUNED_DIGITS = range(5, 10)


def open_data(recipe: Recipe, devices: int) -> Source:
    """Open the data of a recipe, for so many devices."""
    if recipe.data == "synthetic":
        shape = (3, recipe.input_size, recipe.input_size)
        images = recipe.batch_size * devices
        return open_synthetic(images, shape, recipe.num_classes or 1000, recipe.seed)
    source = _open(recipe)
    for name, expected, actual in (
        ("--num-classes", recipe.num_classes, source.classes),
        ("--num-training-samples", recipe.num_training_samples, source.train_images),
    ):
        if expected is not None and expected != actual:
            raise UsageError(f"{name} {expected} was given, but {source.name} has {actual}.")
    return source


def _open(recipe: Recipe) -> Source:
    folder, seed = recipe.data_dir.expanduser(), recipe.seed
    if recipe.data == "digits":
        digits = FINE_TUNED_DIGITS if recipe.fine_tunes else range(10)
        return open_digits(seed, digits, recipe.input_size)
    if recipe.data == "fashion-mnist":
        return open_fashion_mnist(folder, seed, recipe.input_size)
    mean, std = (tuple(v / 255 for v in values) for values in (recipe.rgb_mean, recipe.rgb_std))
    preprocessing = Preprocessing(
        recipe.input_size, recipe.crop_ratio, mean, std, recipe.min_random_area
    )
    if recipe.data == "image-folder":
        root = recipe.image_folder.expanduser()
        return _named(open_image_folder(root, seed, preprocessing), root)
    if recipe.data == "folder":
        source = open_folders(folder, seed, preprocessing)
    elif recipe.data == "rec":
        files = record_files(recipe)
        source, folder = open_records(files, seed, preprocessing), files.train.parent
    else:  # Caltech's
        source = open_records(_caltech_files(recipe), seed, preprocessing)
        return dataclasses.replace(source, name=recipe.data)
    if recipe.dataset == "imagenet" or recipe.data_dir == IMAGENET:
        return source
    return _named(source, folder)


def _named(source: Source, folder: Path) -> Source:
    return dataclasses.replace(source, name=f"folder-{folder.resolve().name}")


def _caltech_files(recipe: Recipe) -> RecordFiles:
    """Return the files of `gluon-amp prepare-caltech`, or those that the recipe names."""
    if recipe.reads_records:
        return record_files(recipe)
    folder = recipe.data_dir / "rec"
    if not (folder.expanduser() / "train.rec").is_file():
        raise UsageError(
            f"{recipe.data} is not at {recipe.data_dir}: run `gluon-amp prepare-caltech --dataset "
            f"{recipe.data}`, or give --data-dir."
        )
    return _beside(folder / "train.rec", folder / "val.rec")


def record_files(recipe: Recipe) -> RecordFiles:
    """Return the four files of a packed data set; by default they have GluonCV's names."""
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
