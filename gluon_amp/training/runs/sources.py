"""The images that a recipe names: packed with a library, in folders, in records, or synthetic."""

import dataclasses
from pathlib import Path

from gluon_amp.base.messages import UsageError
from gluon_amp.training import data
from gluon_amp.training.runs.image_options import CALTECH, IMAGENET
from gluon_amp.training.runs.recipe import Recipe

FINE_TUNED_DIGITS = range(5, 10)


def open_data(recipe: Recipe, devices: int) -> data.Source:
    """Open the data of a recipe, for so many devices."""
    if recipe.data == "synthetic":
        shape = (3, recipe.input_size, recipe.input_size)
        images = recipe.batch_size * devices
        return data.open_synthetic(images, shape, recipe.num_classes or 1000, recipe.seed)
    source = _open(recipe)
    for name, expected, actual in (
        ("--num-classes", recipe.num_classes, source.classes),
        ("--num-training-samples", recipe.num_training_samples, source.train_images),
    ):
        if expected is not None and expected != actual:
            raise UsageError(f"{name} {expected} was given, but {source.name} has {actual}.")
    return source


def _open(recipe: Recipe) -> data.Source:
    folder, seed = recipe.data_dir.expanduser(), recipe.seed
    if recipe.data == "digits" and recipe.fine_tunes:
        return data.open_digits(seed, FINE_TUNED_DIGITS, recipe.input_size)
    if recipe.data in data.SMALL:
        return data.SMALL[recipe.data].open(folder, seed, recipe.input_size, recipe.max_shift)
    mean, std = (tuple(v / 255 for v in values) for values in (recipe.rgb_mean, recipe.rgb_std))
    preprocessing = data.Preprocessing(
        recipe.input_size, recipe.crop_ratio, mean, std, recipe.min_random_area
    )
    if recipe.data == "image-folder":
        root = recipe.image_folder.expanduser()
        return _named(data.open_image_folder(root, seed, preprocessing), root)
    if recipe.data == "folder":
        source = data.open_folders(folder, seed, preprocessing)
    else:
        files = record_files(recipe)
        source, folder = data.open_records(files, seed, preprocessing), files.train.parent
        if recipe.data in CALTECH:
            return dataclasses.replace(source, name=recipe.data)
    if recipe.dataset == "imagenet" or recipe.data_dir == IMAGENET:
        return source
    return _named(source, folder)


def _named(source: data.Source, folder: Path) -> data.Source:
    return dataclasses.replace(source, name=f"folder-{folder.resolve().name}")


def record_files(recipe: Recipe) -> data.RecordFiles:
    """Return the four files of a packed data set; by default they have GluonCV's names."""
    options = {"train": recipe.rec_train, "val": recipe.rec_val}
    folder = recipe.data_dir / "rec"
    if recipe.data in CALTECH and not recipe.reads_records:
        if not (folder.expanduser() / "train.rec").is_file():
            raise UsageError(
                f"{recipe.data} is not at {recipe.data_dir}: run `gluon-amp prepare-caltech "
                f"--dataset {recipe.data}`, or give --data-dir."
            )
    elif not recipe.use_rec:
        for part, path in options.items():
            if path is None:
                raise UsageError(
                    f"--rec-{part} is missing: packed data needs --rec-train and --rec-val."
                )
    train, val = (path or folder / f"{part}.rec" for part, path in options.items())
    train_idx = recipe.rec_train_idx or train.with_suffix(".idx")
    val_idx = recipe.rec_val_idx or val.with_suffix(".idx")
    return data.RecordFiles(*(path.expanduser() for path in (train, train_idx, val, val_idx)))
