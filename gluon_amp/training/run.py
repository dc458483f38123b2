"""One training run: a recipe in, a summary out."""

import math
import random
import time
from typing import Any, Dict, List, Optional, Tuple

import numpy as np

from gluon_amp.cast import cast
from gluon_amp.data import (
    RecordFiles,
    Source,
    TrainingBatches,
    open_digits,
    open_folders,
    open_records,
    validation_batches,
)
from gluon_amp.loss_scale import NoLossScale
from gluon_amp.trainer import Trainer
from gluon_amp.training import log, report
from gluon_amp.training.devices import contexts, is_emulated
from gluon_amp.training.loop import EpochResult, Loop, TrainingError, Validation
from gluon_amp.training.models import build
from gluon_amp.training.observe import observed_dtypes
from gluon_amp.training.options import UsageError
from gluon_amp.training.recipe import Recipe, for_data, learning_rate
from gluon_amp.training.schedule import Schedule

import mxnet as mx
from mxnet.gluon import HybridBlock
from mxnet.gluon.loss import Loss, SoftmaxCrossEntropyLoss

OPTIMIZER_OPTIONS = {"sgd": ("momentum", "wd"), "nag": ("momentum", "wd"), "adam": ("wd",)}


def set_seed(seed: int) -> None:
    """Seed the generators of Python, numpy and MXNet."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    mx.random.seed(seed % 2**31)


def record_files(recipe: Recipe) -> RecordFiles:
    """Return the four files of a packed data set: as given, beside each other, or GluonCV's names.

    Raises
    ------
    UsageError
        Training files are given without validation files, or the other way round.
    """
    given = {"train": recipe.rec_train, "val": recipe.rec_val}
    if not recipe.use_rec:
        for part, path in given.items():
            if path is None:
                raise UsageError(
                    f"--rec-{part} is missing: packed data needs --rec-train and --rec-val."
                )
    folder = recipe.data_dir / "rec"
    paths = {part: (path or folder / f"{part}.rec").expanduser() for part, path in given.items()}
    train_idx = recipe.rec_train_idx or paths["train"].with_suffix(".idx")
    val_idx = recipe.rec_val_idx or paths["val"].with_suffix(".idx")
    return RecordFiles(paths["train"], train_idx.expanduser(), paths["val"], val_idx.expanduser())


def open_data(recipe: Recipe) -> Tuple[Source, Optional[str]]:
    """Return the data to train on, and a sentence where it is not what the options name."""
    if recipe.reads_records:
        return open_records(record_files(recipe), recipe.seed), None
    root = recipe.data_dir.expanduser()
    if root.exists():
        return open_folders(root, recipe.seed), None
    return open_digits(recipe.seed), (
        f"No ImageNet at {recipe.data_dir}: training on scikit-learn's handwritten digits."
    )


def build_net(recipe: Recipe, classes: int, devices: List[mx.Context]) -> HybridBlock:
    """Return the network, initialized on the devices and cast.

    Raises
    ------
    UsageError
        There is no such model, or a device cannot compute in the dtype asked for.
    """
    net = build(recipe.model, classes)
    net.initialize(mx.init.MSRAPrelu(), ctx=devices)
    try:
        cast(net, recipe.dtype)
    except ValueError as error:
        raise UsageError(f"--dtype {recipe.dtype} --model {recipe.model}: {error}") from None
    net.hybridize(static_alloc=True)
    return net


def observe(
    recipe: Recipe, net: HybridBlock, loss_fn: Loss, data: Source, device: mx.Context
) -> Dict:
    """Return the dtypes the network uses on two images of the data.

    Raises
    ------
    UsageError
        The network cannot take these images.
    TrainingError
        It computes in another dtype than asked for.
    """
    images, labels = next(iter(validation_batches(data.val, 2)))
    try:
        seen = observed_dtypes(
            net, loss_fn, images.as_in_context(device), labels.as_in_context(device), data.classes
        )
    except UsageError:
        raise
    except (mx.MXNetError, ValueError) as error:  # Gluon wraps a failed shape inference
        size = "×".join(map(str, data.image_shape))
        reason = str(error).strip().splitlines()[-1].rsplit("Check failed: ")[-1]
        raise UsageError(f"{recipe.model} cannot take images of {size}: {reason}") from None
    if seen["conv_compute"] != recipe.dtype:
        raise TrainingError(
            f"{recipe.dtype} was asked for, but {recipe.model} computes in {seen['conv_compute']}."
        )
    return seen


def build_trainer(recipe: Recipe, net: HybridBlock, rate: float) -> Trainer:
    """Return the trainer, with the loss scale asked for or the one its dtype needs."""
    settings = {name: getattr(recipe, name) for name in OPTIMIZER_OPTIONS[recipe.optimizer]}
    settings["learning_rate"] = rate
    scale = {} if recipe.loss_scale is None else {"loss_scale": recipe.loss_scale}
    if recipe.loss_scale == "none":
        scale = {"loss_scale": None}
    return Trainer(net.collect_params(), recipe.optimizer, settings, **scale)


def plan(
    recipe: Recipe,
    data: Source,
    devices: List[mx.Context],
    trainer: Trainer,
    schedule: Schedule,
    seen: Dict[str, str],
) -> str:
    """Say what is going to happen, and what was seen rather than asked for."""
    total = recipe.batch_size * len(devices)
    rule = f"{recipe.lr_per_256:g} × {total} / 256" if recipe.lr is None else "as given"
    emulated = is_emulated(recipe.dtype, devices)
    settings = ", ".join(f"{k} {getattr(recipe, k):g}" for k in OPTIMIZER_OPTIONS[recipe.optimizer])
    scale = trainer.loss_scale
    scaling = "none" if isinstance(scale, NoLossScale) else f"{scale.scale:g} to begin with"
    size = "×".join(map(str, data.image_shape))
    return report.table(
        [
            ("model", f"{recipe.model}, {data.classes} classes"),
            ("data", f"{data.name}: {data.train_images} training and {data.val_images} validation "
                     f"images of {size}"),
            ("asked", f"{recipe.dtype}, {report.EMULATED if emulated else 'native'}"),
            ("observed", report.dtypes_in_words(seen)),
            ("batch", f"{recipe.batch_size} per device × {len(devices)} "
                      f"({', '.join(map(str, devices))}) = {total}"),
            ("lr", f"{schedule.rate:g} ({rule}), {schedule}"),
            ("optimizer", f"{recipe.optimizer}, {settings}, loss scale {scaling}"),
            ("seed", recipe.seed),
        ]
    )  # fmt: skip


def check_outputs(recipe: Recipe) -> None:
    """Raise `UsageError` now for outputs that could not be written after hours of training."""
    if recipe.summary_json:
        report.check_writable(recipe.summary_json, "--summary-json")
    if recipe.save_dir:
        folder = recipe.save_dir.expanduser()
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"--save-dir {folder} cannot be made: {error.strerror}.") from None
        report.check_writable(folder / "parameters", "--save-dir")


def train(recipe: Recipe, given: Dict[str, Any]) -> report.Summary:
    """Train and validate, epoch by epoch.

    Parameters
    ----------
    recipe : Recipe
        What the command line says.
    given : dict
        The options that were on it, by field name; a data set's own defaults fill in the others.

    Raises
    ------
    UsageError, DataError
        What was asked for cannot be done; nothing was trained.
    TrainingError, FloatingPointError
        Training cannot go on.
    """
    started = time.perf_counter()
    check_outputs(recipe)
    devices = contexts(recipe.gpus, recipe.num_gpus)
    data, instead = open_data(recipe)
    recipe = for_data(recipe, given, data.name)
    set_seed(recipe.seed)
    net = build_net(recipe, data.classes, devices)
    loss_fn = SoftmaxCrossEntropyLoss()
    seen = observe(recipe, net, loss_fn, data, devices[0])

    total = recipe.batch_size * len(devices)
    batches = TrainingBatches(data.train, total, recipe.seed, recipe.num_workers)
    val_batches = validation_batches(data.val, total, recipe.num_workers)
    schedule = Schedule(
        learning_rate(recipe, total),
        recipe.num_epochs,
        len(batches),
        recipe.lr_mode,
        recipe.warmup_epochs,
        recipe.lr_decay,
        recipe.lr_decay_epoch,
    )
    trainer = build_trainer(recipe, net, schedule.rate)
    loop = Loop(net, trainer, loss_fn, devices, schedule, recipe.log_interval, recipe.max_batches)

    with log.to_stdout():
        if instead:
            log.logger.info("%s\n", instead)
        log.logger.info("%s\n", plan(recipe, data, devices, trainer, schedule, seen))
        epochs: List[Tuple[EpochResult, Validation]] = []
        for epoch in range(recipe.num_epochs):
            trained = loop.train(batches, epoch)
            epochs.append((trained, loop.validate(val_batches, data.val_images, epoch)))
    summary = _summary(recipe, data, devices, loop, seen, epochs, time.perf_counter() - started)
    if recipe.save_dir:
        name = f"{data.name}-{recipe.model}-{recipe.num_epochs - 1}.params"
        net.save_parameters(str(recipe.save_dir.expanduser() / name))  # the float32 masters
    if recipe.summary_json:
        summary.write(recipe.summary_json.expanduser())
    return summary


def _summary(
    recipe: Recipe,
    data: Source,
    devices: List[mx.Context],
    loop: Loop,
    seen: Dict[str, str],
    epochs: List[Tuple[EpochResult, Validation]],
    seconds: float,
) -> report.Summary:
    trained, validated = zip(*epochs)
    scores = [validation.top1 for validation in validated]
    scale = loop.trainer.loss_scale
    return report.Summary(
        model=recipe.model,
        data=data.name,
        dtype=recipe.dtype,
        observed_dtypes=seen,
        emulated=is_emulated(recipe.dtype, devices),
        devices=", ".join(map(str, devices)),
        batch_size=recipe.batch_size,
        total_batch=recipe.batch_size * len(devices),
        epochs=recipe.num_epochs,
        lr=loop.schedule.rate,
        seed=recipe.seed,
        top1=100 * scores[-1],
        top5=100 * validated[-1].top5,
        validated=validated[-1].images,
        val_images=data.val_images,
        train_images=data.train_images,
        best_top1=100 * max(scores),
        best_epoch=scores.index(max(scores)),
        train_loss=None if math.isnan(trained[-1].loss) else trained[-1].loss,
        loss_scale=None if isinstance(scale, NoLossScale) else scale.scale,
        skipped_steps=loop.skipped,
        steps=loop.steps,
        images_per_second=sum(t.images for t in trained) / sum(t.seconds for t in trained),
        seconds=seconds,
    )
