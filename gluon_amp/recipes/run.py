"""One training run: a recipe in, a summary out."""

import contextlib
import dataclasses
import math
import os
import random
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np

from gluon_amp.casting.cast import cast
from gluon_amp.command_line import UsageError
from gluon_amp.data import (
    Preprocessing,
    RecordFiles,
    Source,
    TrainingBatches,
    ValidationBatches,
    describe_unreadable,
    open_digits,
    open_folders,
    open_records,
    open_synthetic,
)
from gluon_amp.distributed.workers import Workers, average_statistics, connect
from gluon_amp.hardware import peak_mebibytes
from gluon_amp.inspection.describe import describe
from gluon_amp.recipes import initial, log, outcome, report
from gluon_amp.recipes.checkpoints import Checkpoints, Position, Saved, SavingError
from gluon_amp.recipes.devices import contexts, is_emulated
from gluon_amp.recipes.engine import Engine, GluonEngine, step_seed
from gluon_amp.recipes.heads import freeze_features, head_of
from gluon_amp.recipes.history import Counts, History, Validation
from gluon_amp.recipes.interruption import Interruption
from gluon_amp.recipes.keeper import Keeper
from gluon_amp.recipes.loop import Loop, TrainingError
from gluon_amp.recipes.models import build, full_name, least_size
from gluon_amp.recipes.module_engine import ModuleEngine
from gluon_amp.recipes.objective import Objective
from gluon_amp.recipes.observe import observed_dtypes
from gluon_amp.recipes.plot import draw_errors
from gluon_amp.recipes.recipe import IMAGENET_SIZE, Recipe, for_data, learning_rate
from gluon_amp.recipes.schedule import Schedule
from gluon_amp.trainer import Trainer
from gluon_amp.trainer.loss_scale import NoLossScale

import mxnet as mx
from mxnet.gluon import HybridBlock
from mxnet.gluon.loss import SoftmaxCrossEntropyLoss

OPTIMIZER_OPTIONS = {
    "sgd": ("momentum", "wd"),
    "nag": ("momentum", "wd"),
    "adam": ("wd",),
    "adamw": ("wd",),
    "lars": ("momentum", "wd"),
    "lamb": ("wd",),
}

# MXNet reads these before its first kernel on a GPU.
DETERMINISTIC = {"MXNET_ENFORCE_DETERMINISM": "1", "MXNET_CUDNN_AUTOTUNE_DEFAULT": "0"}

DEFAULT_DATA_DIR = Recipe().data_dir
# Fine-tuning on the digits begins with a network that has learned the first half of them.
FEATURE_DIGITS, FINE_TUNED_DIGITS = range(5), range(5, 10)
FEATURE_EPOCHS = 8


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


def open_data(recipe: Recipe, given: Dict[str, Any]) -> Tuple[Source, Optional[str]]:
    """Return the data to train on, and a sentence where it is not what the options name.

    Raises
    ------
    UsageError, DataError
        There is none, or it is not what the options say.
    """
    if "data_dir" in given and not recipe.data_dir.expanduser().exists():
        raise UsageError(
            f"--data-dir {recipe.data_dir} was not found: give the folder that holds the images."
        )
    if recipe.benchmark:
        images = recipe.batch_size * len(contexts(recipe.gpus, recipe.num_gpus, recipe.cpus))
        shape = (3, *(recipe.input_size or IMAGENET_SIZE,) * 2)
        return open_synthetic(images, shape, recipe.num_classes or 1000, recipe.seed), None
    source, instead = _open_real(recipe, given)
    for name, expected, found in (
        ("--num-classes", recipe.num_classes, source.classes),
        ("--num-training-samples", recipe.num_training_samples, source.train_images),
    ):
        if expected is not None and expected != found:
            raise UsageError(f"{name} {expected} was given, but {source.name} has {found}.")
    return source, instead


def _open_real(recipe: Recipe, given: Dict[str, Any]) -> Tuple[Source, Optional[str]]:
    mean, std = (tuple(v / 255 for v in values) for values in (recipe.rgb_mean, recipe.rgb_std))
    look = Preprocessing(recipe.input_size or IMAGENET_SIZE, recipe.crop_ratio, mean, std)
    if recipe.dataset == "digits":
        digits = FINE_TUNED_DIGITS if recipe.fine_tunes else range(10)
        return _open_digits(recipe, given, digits), None
    if recipe.dataset in ("caltech101", "caltech256"):
        records = open_records(record_files(_caltech(recipe)), recipe.seed, look)
        return dataclasses.replace(records, name=recipe.dataset), None
    if recipe.reads_records or recipe.dataset == "rec":
        files = record_files(recipe)
        return _named(open_records(files, recipe.seed, look), recipe, files.train.parent), None
    root = recipe.data_dir.expanduser()
    if root.exists() or recipe.dataset:
        return _named(open_folders(root, recipe.seed, look), recipe, root), None
    return _open_digits(recipe, given, range(10)), (
        f"No ImageNet at {recipe.data_dir}: training on scikit-learn's handwritten digits."
    )


def _named(source: Source, recipe: Recipe, folder: Path) -> Source:
    """Return a source with the name of its folder, unless it is said to be ImageNet."""
    if recipe.dataset == "imagenet" or recipe.data_dir == DEFAULT_DATA_DIR:
        return source
    return dataclasses.replace(source, name=f"folder-{folder.resolve().name}")


def _open_digits(recipe: Recipe, given: Dict[str, Any], digits: Sequence[int]) -> Source:
    """Return the digits in the size asked for, or else the least that the network accepts."""
    recipe = for_data(recipe, given, "digits")
    size = recipe.input_size or least_size(full_name(recipe.model, recipe.num_layers), len(digits))
    return open_digits(recipe.seed, digits, size)


def _caltech(recipe: Recipe) -> Recipe:
    """Return the recipe with the place where prepare_caltech.py puts a data set."""
    if recipe.reads_records:
        return recipe
    given = recipe.data_dir != DEFAULT_DATA_DIR
    root = recipe.data_dir if given else Path(f"~/.mxnet/datasets/{recipe.dataset}")
    if not (root.expanduser() / "rec" / "train.rec").is_file():
        raise UsageError(
            f"{recipe.dataset} is not at {root}: run `python scripts/prepare_caltech.py --dataset "
            f"{recipe.dataset}`, or give --data-dir."
        )
    return dataclasses.replace(recipe, data_dir=root, use_rec=True)


def build_net(recipe: Recipe, classes: int, devices: List[mx.Context]) -> HybridBlock:
    """Return the network, initialized on the devices and cast.

    Raises
    ------
    UsageError
        There is no such model, or a device cannot compute in the dtype asked for.
    """
    model = full_name(recipe.model, recipe.num_layers)
    with mx.name.NameManager():  # the same names in every process, and for every such network
        net = build(model, classes)
    if recipe.last_gamma:
        initial.zero_last_gammas(net, model)
    net.initialize(mx.init.MSRAPrelu(), ctx=devices)
    path = recipe.pretrained_file
    pretrained = recipe.use_pretrained and not (path or recipe.from_scratch)
    from_digits = pretrained and recipe.dataset == "digits"
    head = []
    if from_digits or recipe.freeze_features or recipe.head_lr_mult != 1:
        head = head_of(net, build(model, classes + 1))
    if from_digits:
        initial.copy_features(digits_network(recipe), net, head)
    elif pretrained:
        path = initial.zoo_file(model, recipe.root)
    if path:
        initial.load_matching(net, path)
    for param in head:
        param.lr_mult = recipe.head_lr_mult
    if recipe.freeze_features:
        freeze_features(net, head)
    if recipe.no_wd:
        initial.without_decay(net)
    try:
        cast(net, recipe.policy)
    except ValueError as error:
        raise UsageError(f"--dtype {recipe.dtype} --model {model}: {error}") from None
    if recipe.mode == "hybrid":
        net.hybridize(static_alloc=True)
    if recipe.accumulate > 1:
        for param in net.collect_params().values():
            if param.grad_req == "write":
                param.grad_req = "add"
    return net


def digits_network(recipe: Recipe) -> HybridBlock:
    """Return a network that has learned the first five digits, in float32 on the CPU.

    It is what fine-tuning on the others begins with where nothing can be downloaded.
    """
    source = open_digits(recipe.seed, FEATURE_DIGITS, recipe.input_size)
    model = full_name(recipe.model, recipe.num_layers)
    net = build(model, source.classes)
    net.initialize(mx.init.MSRAPrelu())
    net.hybridize(static_alloc=True)
    batches = TrainingBatches(source.train, 64, recipe.seed, num_workers=0)
    rates = Schedule(0.1, FEATURE_EPOCHS, len(batches), "cosine", warmup_epochs=1)
    settings = {"learning_rate": 0.1, "momentum": 0.9, "wd": 5e-4}
    trainer = Trainer(net.collect_params(), "sgd", settings)
    engine = GluonEngine(net, trainer, Objective(source.classes), [mx.cpu()])
    loop = Loop(engine, rates, log_interval=0)
    with log.silence():
        for epoch in range(FEATURE_EPOCHS):
            loop.train(batches, epoch)
    return net


def observe(recipe: Recipe, net: HybridBlock, data: Source, device: mx.Context) -> Dict[str, str]:
    """Return the dtypes the network uses on two images of the data.

    Raises
    ------
    UsageError
        The network cannot take these images.
    TrainingError
        It computes in another dtype than asked for.
    """
    images, labels = next(iter(ValidationBatches(data.val, 2, num_workers=0)))
    try:
        seen = observed_dtypes(
            net, SoftmaxCrossEntropyLoss(), images.as_in_context(device),
            labels.as_in_context(device), data.classes,
        )  # fmt: skip
    except UsageError:
        raise
    except (mx.MXNetError, ValueError) as error:  # Gluon wraps a failed shape inference
        size = "×".join(map(str, data.image_shape))
        reason = str(error).strip().splitlines()[-1].rsplit("Check failed: ")[-1]
        raise UsageError(f"{recipe.model} cannot take images of {size}: {reason}") from None
    if seen["conv_compute"] != recipe.computes_in:
        raise TrainingError(
            f"{recipe.computes_in} was asked for, but {recipe.model} computes in "
            f"{seen['conv_compute']}."
        )
    return seen


def optimizer_settings(recipe: Recipe, rate: float) -> Dict[str, float]:
    """Return the settings of the recipe's optimizer."""
    settings = {name: getattr(recipe, name) for name in OPTIMIZER_OPTIONS[recipe.optimizer]}
    return {**settings, "learning_rate": rate}


def scaling(recipe: Recipe) -> Dict[str, Any]:
    """Return the argument for the loss scale asked for; none for the one a dtype needs."""
    if recipe.loss_scale is None:
        return {}
    return {"loss_scale": None if recipe.loss_scale == "none" else recipe.loss_scale}


def build_engine(
    recipe: Recipe,
    net: HybridBlock,
    data: Source,
    devices: List[mx.Context],
    rate: float,
    workers: Workers,
) -> Engine:
    """Return what trains on a batch, by Gluon or by Module."""
    mixup_epochs = recipe.num_epochs - recipe.mixup_off_epoch
    objective = Objective(
        data.classes, recipe.label_smoothing, recipe.mixup, mixup_epochs, recipe.seed
    )
    settings = optimizer_settings(recipe, rate)
    images = mx.nd.zeros((1, *data.image_shape), ctx=devices[0])
    options: Dict[str, Any] = {}
    if any(row.op == "Dropout" for row in describe(net, images).rows):
        options["before_step"] = lambda epoch, number: mx.random.seed(
            step_seed(recipe.seed, workers.rank, epoch, number)
        )
    if recipe.mode == "module":
        return ModuleEngine(
            cast(net, "float32"), objective, devices, recipe.batch_size * len(devices),
            data.image_shape, recipe.optimizer, settings, workers.kvstore, workers.count,
            policy=recipe.policy, **scaling(recipe), **options,
        )  # fmt: skip
    trainer = Trainer(
        net.collect_params(), recipe.optimizer, settings, kvstore=workers.kvstore, **scaling(recipe)
    )
    return GluonEngine(
        net, trainer, objective, devices, workers.count, recipe.clip_grad, **options
    )  # fmt: skip


@dataclass
class Run:
    """Everything that a run has, once it can start."""

    recipe: Recipe
    data: Source
    net: HybridBlock
    devices: List[mx.Context]
    workers: Workers
    engine: Engine
    batches: TrainingBatches
    schedule: Schedule
    loop: Loop
    seen: Dict[str, str]

    @property
    def total(self) -> int:
        """Images for one update: all devices, workers, and accumulated batches."""
        recipe = self.recipe
        return recipe.batch_size * len(self.devices) * self.workers.count * recipe.accumulate

    @property
    def identity(self) -> Dict[str, Any]:
        """What a checkpoint has to agree with."""
        return {
            "model": self.recipe.model, "data": self.data.name, "classes": self.data.classes,
            "train_images": self.data.train_images, "dtype": self.recipe.policy,
            "total_batch": self.total, "seed": self.recipe.seed, "workers": self.workers.count,
        }  # fmt: skip

    @property
    def samples(self) -> Tuple[int, int]:
        """Images in a batch and in an epoch, of all workers together."""
        count = self.workers.count
        return self.batches.batch_size * count, self.batches.images * count

    def position(self, epoch: int, done: int) -> Position:
        """Return where the run is after so many batches of an epoch."""
        batch, whole = self.samples
        return Position(epoch, min(done * batch, whole))

    def progress(self, history: History) -> Dict[str, Any]:
        """Return what the run restores besides its network and trainer."""
        history.steps, history.skipped = self.loop.steps, self.loop.skipped
        return {"history": history.state()}

    def plan(self) -> str:
        """Say what is going to happen, and what was seen rather than asked for."""
        recipe, data = self.recipe, self.data
        rule = f"{recipe.lr_per_256:g} × {self.total} / 256" if recipe.lr is None else "as given"
        settings = ", ".join(
            f"{k} {getattr(recipe, k):g}" for k in OPTIMIZER_OPTIONS[recipe.optimizer]
        )
        scale = self.engine.loss_scale
        scales = "none" if isinstance(scale, NoLossScale) else f"{scale.scale:g} to begin with"
        size = "×".join(map(str, data.image_shape))
        shorter = recipe.warmup_epochs != int(recipe.warmup_epochs)
        extras = [
            f"label smoothing {recipe.label_smoothing:g}" if recipe.label_smoothing else "",
            f"mixup {recipe.mixup:g}" if recipe.mixup else "",
            f"gradients clipped to {recipe.clip_grad:g}" if recipe.clip_grad else "",
            "no decay of biases and norms" if recipe.no_wd else "",
        ]
        extra = "".join(f", {words}" for words in extras if words)
        return report.table(
            [
                ("batch", self.batch_in_words()),
                ("model", f"{recipe.model}, {data.classes} classes, --mode {recipe.mode}"),
                ("data", f"{data.name}: {data.train_images} training and {data.val_images} "
                         f"validation images of {size}"),
                ("asked", f"{recipe.policy}, {report.EMULATED if self.emulated else 'native'}"),
                ("observed", report.dtypes_in_words(self.seen)),
                ("lr", f"{self.schedule.rate:g} ({rule}), {self.schedule}"
                       + (", in proportion to the shorter run" if shorter else "")),
                ("optimizer", f"{recipe.optimizer}, {settings}, loss scale {scales}{extra}"),
                ("seed", recipe.seed),
            ]
        )  # fmt: skip

    @property
    def emulated(self) -> bool:
        """Whether float16 is computed on a CPU."""
        return is_emulated(self.recipe.computes_in, self.devices)

    def batch_in_words(self) -> str:
        """Say how the total comes about."""
        recipe = self.recipe
        parts = [f"{recipe.batch_size} per device × {len(self.devices)} "
                 f"({', '.join(map(str, self.devices))})"]  # fmt: skip
        if self.workers.count > 1:
            parts.append(f"{self.workers.count} workers")
        if recipe.accumulate > 1:
            parts.append(f"{recipe.accumulate} accumulated")
        return f"{' × '.join(parts)} = {self.total}"


def check_outputs(recipe: Any) -> None:
    """Raise `UsageError` now for outputs that could not be written after hours of training.

    The recipe may have some of them only.
    """
    for name in ("summary_json", "log_json", "logging_file", "plot"):
        path = getattr(recipe, name, None)
        if path is not None:
            report.check_writable(path, f"--{name.replace('_', '-')}")
    for name in ("save_dir", "tensorboard", "export"):
        folder = getattr(recipe, name, None)
        if folder is None:
            continue
        option, folder = f"--{name.replace('_', '-')}", folder.expanduser()
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"{option} {folder} cannot be made: {error.strerror}.") from None
        report.check_writable(folder / "parameters", option)


def prepare(recipe: Recipe, given: Dict[str, Any]) -> Tuple[Run, Optional[str]]:
    """Make everything ready to train; also return what the user should know first.

    Raises
    ------
    UsageError, DataError
        What was asked for cannot be done.
    """
    if recipe.deterministic:
        os.environ.update(DETERMINISTIC)
    devices = contexts(recipe.gpus, recipe.num_gpus, recipe.cpus)
    data, instead = open_data(recipe, given)
    recipe = dataclasses.replace(for_data(recipe, given, data.name), input_size=data.image_shape[1])
    workers = connect(recipe.kv_store, devices)
    set_seed(recipe.seed)
    net = build_net(recipe, data.classes, devices)
    seen = observe(recipe, net, data, devices[0])
    own = recipe.batch_size * len(devices)
    batches = TrainingBatches(
        data.train, own, recipe.seed, recipe.num_workers, workers.rank, workers.count
    )
    total = own * workers.count * recipe.accumulate
    decay_epochs = recipe.lr_decay_epoch
    if recipe.lr_decay_period:
        decay_epochs = tuple(range(recipe.lr_decay_period, recipe.num_epochs,
                                   recipe.lr_decay_period))  # fmt: skip
    schedule = Schedule(
        learning_rate(recipe, total), recipe.num_epochs, len(batches), recipe.lr_mode,
        recipe.warmup_epochs, recipe.lr_decay, decay_epochs, recipe.warmup_lr,
    )  # fmt: skip
    engine = build_engine(recipe, net, data, devices, schedule.rate, workers)
    if recipe.mode == "module":
        seen = {**seen, "conv_weight": engine.weight_dtypes()}
    records = log.Records(
        *(path and path.expanduser() for path in (recipe.log_json, recipe.tensorboard))
    ) if workers.first else log.Records()  # fmt: skip
    loop = Loop(
        engine, schedule, workers, records, recipe.accumulate, recipe.log_interval,
        recipe.max_batches,
    )  # fmt: skip
    run = Run(recipe, data, net, devices, workers, engine, batches, schedule, loop, seen)
    return run, instead


def train(recipe: Recipe, given: Dict[str, Any]) -> report.Summary:
    """Train and validate, epoch by epoch, and log how it went.

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
    SavingError
        A checkpoint or a result cannot be written.
    RunInterruptedError
        SIGTERM or SIGINT came.
    """
    started = time.perf_counter()
    check_outputs(recipe)
    run, instead = prepare(recipe, given)
    file = recipe.logging_file and recipe.logging_file.expanduser()
    with contextlib.ExitStack() as stack:
        stack.enter_context(log.to_stdout(file, quiet=not run.workers.first))
        interruption = stack.enter_context(Interruption(quiet=not run.workers.first))
        checkpoints = _checkpoints(recipe)
        if checkpoints and run.workers.first and not recipe.eval_only:
            stack.enter_context(checkpoints.locked())
        if instead:
            log.logger.info("%s\n", instead)
        log.logger.info("%s\n", run.plan())
        history, last = _train_epochs(run, interruption)
        confusions = _confusions(run)
        for confusion in confusions:
            log.logger.info("Confused: %s", confusion)
        run.loop.records.close()
        seconds = time.perf_counter() - started
        summary = _summary(run, history, last, confusions, seconds)
        log.logger.info("\n%s", summary)
        if run.workers.first:
            _write_results(run, history, summary)
        interruption.leave_after("the run is over and everything was written")
        return summary


def _train_epochs(run: Run, interruption: Interruption) -> Tuple[History, Validation]:
    """Return the run's results, and the validation of the final network."""
    recipe, loop, workers = run.recipe, run.loop, run.workers
    val_batches = ValidationBatches(
        run.data.val, recipe.batch_size * len(run.devices), recipe.num_workers, workers.rank,
        workers.count,
    )  # fmt: skip
    history = History()
    keeper = Keeper(
        _checkpoints(recipe), run.engine.block, run.engine.trainer, run.identity,
        lambda _: run.progress(history), interruption, workers, run.engine.statistics,
        recipe.save_batches, recipe.accumulate,
    )  # fmt: skip
    with keeper.naming_last_good():
        history, position, counts = _begin(run, keeper)
        if recipe.eval_only:
            finished = position.epoch if position.samples else max(position.epoch - 1, 0)
            return history, loop.validate(val_batches, run.data.val_images, finished)
        for epoch in range(position.epoch, recipe.num_epochs):
            start = position.first_batch(*run.samples) if epoch == position.epoch else 0
            result = loop.train(
                run.batches, epoch, start, counts if start else None,
                lambda done, counts, epoch=epoch: keeper.after_update(
                    done, run.position(epoch, done), counts
                ),
            )  # fmt: skip
            if run.batches.unreadable:
                words = describe_unreadable(run.batches.unreadable)
                log.logger.info(log.UNREADABLE, epoch, words)
            history.trained.append(result)
            average_statistics(run.engine.statistics, workers)
            last = epoch + 1 == recipe.num_epochs
            validated = last or (epoch + 1) % recipe.eval_frequency == 0
            history.validated.append(
                loop.validate(val_batches, run.data.val_images, epoch) if validated else None
            )
            due = (epoch + 1) % recipe.save_frequency == 0
            if recipe.mode == "module" and recipe.save_dir and (due or last) and workers.first:
                run.engine.save(recipe.save_dir.expanduser(), recipe.model, epoch + 1)
            keeper.after_epoch(epoch, due, last, best=history.best_epoch == epoch)
    if history.validated[-1] is None:  # a run that was over already, by fewer epochs
        return history, loop.validate(val_batches, run.data.val_images, len(history.validated) - 1)
    return history, history.validated[-1]


def _begin(run: Run, keeper: Keeper) -> Tuple[History, Position, Counts]:
    """Return where the run begins: at the start, or where a checkpoint left it."""
    recipe, workers = run.recipe, run.workers
    start = Position(0, 0)
    if recipe.resume_epoch is not None:
        _check_epochs_left(recipe)
    if recipe.mode == "module" and recipe.resume_epoch is not None:
        run.engine.load(recipe.save_dir.expanduser(), recipe.model, recipe.resume_epoch)
        return _legacy_history(recipe.resume_epoch), Position(recipe.resume_epoch, 0), Counts()
    if recipe.resume_params:
        return _begin_as_gluoncv(run)
    checkpoints = _checkpoints(recipe)
    if recipe.resume is None:
        if checkpoints is not None and workers.first and not recipe.eval_only:
            checkpoints.check_unused()
        return History(), start, Counts()
    saved = None
    if workers.first and recipe.resume == "auto":
        saved = checkpoints.newest()
    elif workers.first:
        saved = Saved.read(Path(recipe.resume).expanduser())
        if checkpoints is not None:
            checkpoints.check_last(saved)
    with _known_to_all(saved, workers) as saved:
        if saved is None:
            log.logger.info("No checkpoint in %s yet: training from the start.\n", recipe.save_dir)
            return History(), start, Counts()
        counts = keeper.begin(saved)
    history = History.restored(saved.progress["history"])
    run.loop.steps, run.loop.skipped = history.steps, history.skipped
    log.logger.info(
        "Going on from %s: epoch %d, %d samples done.\n", saved.path, *saved.position
    )  # fmt: skip
    return history, saved.position, counts


@contextlib.contextmanager
def _known_to_all(saved: Optional[Saved], workers: Workers) -> Iterator[Optional[Saved]]:
    """Yield the first worker's checkpoint, or None if it has none: others may have other disks."""
    if workers.count == 1:
        yield saved
        return
    data = workers.from_first(saved.path.read_bytes() if saved else b"")
    if workers.first or not data:
        yield saved
        return
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "first.ckpt"
        copy.write_bytes(data)
        yield Saved.read(copy)


def _begin_as_gluoncv(run: Run) -> Tuple[History, Position, Counts]:
    """Begin with GluonCV's two files; what they do not hold (scores, data order) begins anew."""
    recipe = run.recipe
    left = initial.load_matching(run.net, recipe.resume_params)
    if left:
        raise UsageError(f"{recipe.resume_params} does not hold {left[0]}: is it of another model?")
    if recipe.resume_states:
        try:
            run.engine.trainer.load_states(str(recipe.resume_states.expanduser()))
        except (OSError, ValueError) as error:
            raise UsageError(f"--resume-states {recipe.resume_states}: {error}") from None
    run.engine.trainer.refresh_masters()
    return _legacy_history(recipe.resume_epoch), Position(recipe.resume_epoch, 0), Counts()


def _check_epochs_left(recipe: Recipe) -> None:
    if recipe.resume_epoch >= recipe.num_epochs and not recipe.eval_only:
        raise UsageError(
            f"--resume-epoch {recipe.resume_epoch} leaves nothing of --num-epochs "
            f"{recipe.num_epochs} to train: give more epochs, or --eval-only."
        )


def _legacy_history(epochs: int) -> History:
    """Return a history of epochs of which nothing is known."""
    return History(validated=[None] * epochs)


def _checkpoints(recipe: Recipe) -> Optional[Checkpoints]:
    if recipe.save_dir is None:
        return None
    return Checkpoints(recipe.save_dir.expanduser(), recipe.keep)


def _write_results(run: Run, history: History, summary: report.Summary) -> None:
    """Write what the recipe asks for, the most important first.

    Raises
    ------
    SavingError
        The summary or the parameters cannot be written; all else was tried, too.
    """
    recipe, failed = run.recipe, []
    title = f"{recipe.model}, {recipe.policy}"
    outputs = []
    if recipe.summary_json:
        path = recipe.summary_json.expanduser()
        outputs.append((True, lambda: summary.write(path)))
    if recipe.save_dir and recipe.mode != "module" and not recipe.eval_only:
        name = f"{run.data.name}-{recipe.model}-{recipe.num_epochs - 1}.params"
        params = recipe.save_dir.expanduser() / name
        outputs.append((True, lambda: outcome.save_parameters(run.net, params)))
    if recipe.plot:
        outputs.append((False, lambda: draw_errors(history, recipe.plot.expanduser(), title)))
    if recipe.export and recipe.mode != "module":
        shape, folder = run.data.image_shape, recipe.export.expanduser()
        outputs.append(
            (False, lambda: outcome.export(run.net, recipe.policy, folder, recipe.model, shape))
        )
    for needed, write in outputs:
        try:
            write()
        except SavingError as error:
            log.logger.warning("%s", error)
            failed += [error] if needed else []
    if failed:
        raise failed[0]


def _confusions(run: Run) -> List[outcome.Confusion]:
    recipe = run.recipe
    if not recipe.confusions or run.workers.count > 1:
        return []
    batches = ValidationBatches(
        run.data.val, recipe.batch_size * len(run.devices), recipe.num_workers
    )  # fmt: skip
    matrix = outcome.confusion_matrix(run.engine, batches, run.data.classes)
    return outcome.worst(matrix, run.data.class_names, recipe.confusions)


def _summary(
    run: Run,
    history: History,
    last: Validation,
    confusions: List[outcome.Confusion],
    seconds: float,
) -> report.Summary:
    recipe, trained = run.recipe, history.trained
    validated = history.validated or [last]  # --eval-only with a network that was not trained here
    scores = {e: v.top1 for e, v in enumerate(validated) if v is not None} or {0: last.top1}
    best = max(scores, key=scores.__getitem__)
    scale = run.engine.loss_scale
    took = sum(result.seconds for result in trained)
    return report.Summary(
        model=recipe.model,
        data=run.data.name,
        mode=recipe.mode,
        dtype=recipe.policy,
        observed_dtypes=run.seen,
        emulated=run.emulated,
        devices=", ".join(map(str, run.devices)),
        workers=run.workers.count,
        batch_size=recipe.batch_size,
        total_batch=run.total,
        epochs=recipe.num_epochs,
        lr=run.schedule.rate,
        seed=recipe.seed,
        top1=100 * last.top1,
        top5=100 * last.top5,
        top1_by_epoch=[None if v is None else 100 * v.top1 for v in validated],
        confusions=[confusion._asdict() for confusion in confusions],
        validated=last.images,
        unreadable=last.unreadable,
        val_images=run.data.val_images,
        train_images=run.data.train_images,
        best_top1=100 * scores[best],
        best_epoch=best,
        train_loss=None if not trained or math.isnan(trained[-1].loss) else trained[-1].loss,
        loss_scale=None if isinstance(scale, NoLossScale) else scale.scale,
        skipped_steps=run.loop.skipped,
        steps=run.loop.steps,
        images_per_second=sum(result.images for result in trained) / took if took else None,
        waited_share=sum(result.waited for result in trained) / took if took else None,
        peak_mebibytes=peak_mebibytes(),
        train_seconds=took,
        seconds=seconds,
    )
