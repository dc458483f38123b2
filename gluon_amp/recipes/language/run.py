"""One run of a language model: a recipe in, a summary out."""

import contextlib
import dataclasses
import math
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

from gluon_amp.casting.cast import cast
from gluon_amp.command_line import UsageError
from gluon_amp.data.text import CLASSES, Chunks, open_text
from gluon_amp.hardware import peak_mebibytes
from gluon_amp.inspection.describe import describe
from gluon_amp.recipes import log, report
from gluon_amp.recipes.checkpoints import Checkpoints, Position, Saved
from gluon_amp.recipes.devices import contexts, is_emulated
from gluon_amp.recipes.history import Counts, History
from gluon_amp.recipes.interruption import Interruption
from gluon_amp.recipes.keeper import Keeper
from gluon_amp.recipes.language.model import LanguageEngine, LanguageModel
from gluon_amp.recipes.language.recipe import LanguageRecipe, learning_rate
from gluon_amp.recipes.loop import Loop, TrainingError
from gluon_amp.recipes.observe import join_dtypes
from gluon_amp.recipes.outcome import save_parameters
from gluon_amp.recipes.run import (
    DETERMINISTIC,
    OPTIMIZER_OPTIONS,
    check_outputs,
    optimizer_settings,
    scaling,
    set_seed,
)
from gluon_amp.recipes.schedule import Schedule
from gluon_amp.trainer import Trainer
from gluon_amp.trainer.loss_scale import NoLossScale

import mxnet as mx

# Validation does not depend on the batch: rows of a table are measured alike.
VALIDATION_STREAMS, VALIDATION_LENGTH = 64, 64

PARAMETERS = "lstm-{}.params"
BITS = "[Epoch %d] validation: bits per character=%f"
EMULATED = (
    "emulated on this CPU, not at a GPU's speed: what goes into the LSTM and out of it at the end "
    "of a chunk is rounded, its state in between is not"
)
OPERATORS = ("Embedding", "RNN", "FullyConnected")


@dataclass(frozen=True)
class Summary:
    """What a run came to; every field is in the JSON file.

    Fields are those of `gluon_amp.recipes.report.Summary`, where an image is a character; a few at
    the end of the training text may be left out, as they do not fill a chunk.

    Attributes
    ----------
    bits_per_character : float
        Mean cross entropy of the validation text after the last epoch, base 2.
    observed_dtypes : dict of str to str
        What each kind of layer computes in.
    """

    model: str
    data: str
    dtype: str
    observed_dtypes: Dict[str, str]
    emulated: bool
    devices: str
    batch_size: int
    total_batch: int
    epochs: int
    lr: float
    seed: int
    top1: float
    top5: float
    top1_by_epoch: List[float]
    bits_per_character: float
    validated: int
    val_images: int
    train_images: int
    train_loss: Optional[float]
    loss_scale: Optional[float]
    skipped_steps: int
    steps: int
    images_per_second: float
    peak_mebibytes: Optional[float]
    train_seconds: float
    seconds: float

    def __str__(self) -> str:
        scale = "none" if self.loss_scale is None else f"{self.loss_scale:g}"
        return report.table(
            [
                ("model", f"{self.model} on {self.data}"),
                ("dtype", f"{self.dtype}{', emulated' if self.emulated else ''}"),
                ("observed", _in_words(self.observed_dtypes)),
                ("top-1", f"{self.top1:.2f} % of the next characters"),
                ("bits", f"{self.bits_per_character:.3f} per character"),
                ("validated", f"{self.validated}/{self.val_images} characters"),
                ("loss scale", f"{scale}, {self.skipped_steps} of {self.steps} steps skipped"),
                ("speed", f"{self.images_per_second:.0f} training characters/s"),
                ("time", f"{self.seconds:.1f} s, {self.epochs} epochs"),
            ]
        )


def _in_words(observed: Dict[str, str]) -> str:
    return ", ".join(f"{op} {dtype}" for op, dtype in observed.items())


class Run:
    """Everything that a run has, ready to train.

    Raises
    ------
    UsageError, DataError
        What was asked for cannot be done.
    TrainingError
        The network computes in another dtype than asked for.
    """

    def __init__(self, recipe: LanguageRecipe):
        self.recipe = recipe
        self.devices = contexts(recipe.gpus, recipe.num_gpus, recipe.cpus)
        self.total = recipe.batch_size * len(self.devices)
        self.text = open_text(recipe.characters)
        self.batches = Chunks(self.text.train, self.total, recipe.bptt, whole=True)
        self.val_batches = Chunks(self.text.val, VALIDATION_STREAMS, VALIDATION_LENGTH, whole=False)
        if not (len(self.batches) and len(self.val_batches)):
            raise UsageError(
                f"--characters {recipe.characters} are not enough for {self.total} streams of "
                f"{recipe.bptt} characters and a tenth as many for validation: give more."
            )
        set_seed(recipe.seed)
        self.net = self._build()
        self.observed = self._observe()
        self.schedule = Schedule(
            learning_rate(recipe, self.total), recipe.num_epochs, len(self.batches), "cosine"
        )
        trainer = Trainer(
            self.net.collect_params(), recipe.optimizer,
            optimizer_settings(recipe, self.schedule.rate), kvstore="device", **scaling(recipe),
        )  # fmt: skip
        self.engine = LanguageEngine(self.net, trainer, self.devices, recipe.clip_grad)
        self.loop = Loop(
            self.engine, self.schedule, records=log.Records(_expanded(recipe.log_json)),
            log_interval=recipe.log_interval, max_batches=recipe.max_batches, unit="char",
            input_bound="",
        )  # fmt: skip
        folder = _expanded(recipe.save_dir)
        self.checkpoints = None if folder is None else Checkpoints(folder, recipe.keep)
        self.history = History()
        self.bits = math.nan

    def _build(self) -> LanguageModel:
        recipe = self.recipe
        with mx.name.NameManager():  # the same names in every process
            net = LanguageModel(CLASSES, recipe.embedding, recipe.hidden, recipe.layers)
        net.initialize(mx.init.Xavier(), ctx=self.devices)
        try:
            cast(net, recipe.dtype)
        except ValueError as error:
            raise UsageError(f"--dtype {recipe.dtype}: {error}") from None
        net.hybridize(static_alloc=True)
        return net

    def _observe(self) -> Dict[str, str]:
        inputs = mx.nd.zeros((1, 2), ctx=self.devices[0], dtype="int32")
        rows = describe(self.net, inputs, *self.net.begin(1, self.devices[0])).rows
        seen = {
            op: join_dtypes(row.compute_dtype for row in rows if row.op == op) for op in OPERATORS
        }
        if seen["FullyConnected"] != self.recipe.dtype:
            raise TrainingError(
                f"{self.recipe.dtype} was asked for, but the network computes in {_in_words(seen)}."
            )
        return seen

    @property
    def emulated(self) -> bool:
        """Whether float16 is computed on a CPU."""
        return is_emulated(self.recipe.dtype, self.devices)

    @property
    def identity(self) -> Dict[str, Any]:
        """What a checkpoint has to agree with."""
        return {
            "model": self.recipe.model, "data": self.text.name, "classes": CLASSES,
            "train_images": len(self.text.train), "dtype": self.recipe.dtype,
            "total_batch": f"{self.total} × {self.recipe.bptt}", "seed": self.recipe.seed,
            "workers": 1,
        }  # fmt: skip

    def plan(self) -> str:
        """Say what is going to happen, and what was seen rather than asked for."""
        recipe, scale = self.recipe, self.engine.loss_scale
        settings = ", ".join(
            f"{k} {getattr(recipe, k):g}" for k in OPTIMIZER_OPTIONS[recipe.optimizer]
        )
        scales = "none" if isinstance(scale, NoLossScale) else f"{scale.scale:g} to begin with"
        clipped = f", gradients clipped to {recipe.clip_grad:g}" if recipe.clip_grad else ""
        return report.table(
            [
                ("batch", f"{recipe.batch_size} streams per device × {len(self.devices)} "
                          f"({', '.join(map(str, self.devices))}), {recipe.bptt} characters each"),
                ("model", f"{recipe.model}, {CLASSES} classes"),
                ("data", f"{self.text.name}: {self.batches.images} training and "
                         f"{self.val_batches.images} validation characters"),
                ("asked", f"{recipe.dtype}, {EMULATED if self.emulated else 'native'}"),
                ("observed", _in_words(self.observed)),
                ("lr", f"{self.schedule.rate:g}, {self.schedule}"),
                ("optimizer", f"{recipe.optimizer}, {settings}, loss scale {scales}{clipped}"),
                ("seed", recipe.seed),
            ]
        )  # fmt: skip

    # -------------------------------------------------------------------------- going on

    def keeper(self, interruption: Interruption) -> Keeper:
        """Return what saves this run and ends it."""
        return Keeper(
            self.checkpoints, self.net, self.engine.trainer, self.identity, self.progress,
            interruption, every=self.recipe.save_batches,
        )  # fmt: skip

    def progress(self, position: Position) -> Dict[str, Any]:
        """Return what the run restores besides its network and trainer."""
        self.history.steps, self.history.skipped = self.loop.steps, self.loop.skipped
        return {
            "history": self.history.state(),
            "bits": self.bits,
            "state": self.engine.state() if position.samples else [],  # an epoch starts anew
        }

    def begin(self, keeper: Keeper) -> Tuple[Position, Counts]:
        """Return where the run begins: at the start, or where a checkpoint left it."""
        recipe = self.recipe
        if recipe.resume is None:
            if self.checkpoints:
                self.checkpoints.check_unused()
            return Position(0, 0), Counts()
        if recipe.resume == "auto":
            saved = self.checkpoints.newest()
        else:
            saved = Saved.read(Path(recipe.resume).expanduser())
            if self.checkpoints:
                self.checkpoints.check_last(saved)
        if saved is None:
            log.logger.info("No checkpoint in %s yet: training from the start.\n", recipe.save_dir)
            return Position(0, 0), Counts()
        counts = keeper.begin(saved)
        progress = saved.progress
        self.history, self.bits = History.restored(progress["history"]), progress["bits"]
        self.loop.steps, self.loop.skipped = self.history.steps, self.history.skipped
        self.engine.restore(progress["state"])
        log.logger.info(
            "Going on from %s: epoch %d, %d samples done.\n", saved.path, *saved.position
        )
        return saved.position, counts

    # -------------------------------------------------------------------------- training

    def train(self, interruption: Interruption) -> None:
        """Train and validate, epoch by epoch.

        Raises
        ------
        RunInterruptedError
            A signal came.
        """
        keeper = self.keeper(interruption)
        size = self.total * self.recipe.bptt
        whole = len(self.batches) * size
        with keeper.naming_last_good():
            position, counts = self.begin(keeper)
            for epoch in range(position.epoch, self.recipe.num_epochs):
                begun = epoch == position.epoch
                start = position.first_batch(size, whole) if begun else 0
                result = self.loop.train(
                    self.batches, epoch, start, counts if start else None,
                    lambda done, counts, epoch=epoch: keeper.after_update(
                        done, Position(epoch, done * size), counts
                    ),
                )  # fmt: skip
                found = self.loop.validate(self.val_batches, self.val_batches.images, epoch)
                self.bits = self.engine.nats / math.log(2)
                log.logger.info(BITS, epoch, self.bits)
                self.history.trained.append(result)
                self.history.validated.append(found)
                last = epoch + 1 == self.recipe.num_epochs
                keeper.after_epoch(epoch, due=True, last=last, best=False)

    def summary(self, seconds: float) -> Summary:
        """Return what the run came to, in so many seconds altogether."""
        recipe, trained, last = self.recipe, self.history.trained, self.history.validated[-1]
        scale, took = self.engine.loss_scale, sum(result.seconds for result in trained)
        return Summary(
            model=recipe.model,
            data=self.text.name,
            dtype=recipe.dtype,
            observed_dtypes=self.observed,
            emulated=self.emulated,
            devices=", ".join(map(str, self.devices)),
            batch_size=recipe.batch_size,
            total_batch=self.total,
            epochs=recipe.num_epochs,
            lr=self.schedule.rate,
            seed=recipe.seed,
            top1=100 * last.top1,
            top5=100 * last.top5,
            top1_by_epoch=[100 * found.top1 for found in self.history.validated],
            bits_per_character=self.bits,
            validated=last.images,
            val_images=self.val_batches.images,
            train_images=len(self.text.train),
            train_loss=None if math.isnan(trained[-1].loss) else trained[-1].loss,
            loss_scale=None if isinstance(scale, NoLossScale) else scale.scale,
            skipped_steps=self.loop.skipped,
            steps=self.loop.steps,
            images_per_second=sum(result.images for result in trained) / took,
            peak_mebibytes=peak_mebibytes(),
            train_seconds=took,
            seconds=seconds,
        )


def _expanded(path: Optional[Path]) -> Optional[Path]:
    return path and path.expanduser()


def train(recipe: LanguageRecipe) -> Summary:
    """Train and validate, epoch by epoch, and write what the recipe asks for.

    Raises
    ------
    UsageError, DataError
        What was asked for cannot be done; nothing was trained.
    TrainingError, FloatingPointError
        Training cannot go on.
    SavingError
        A checkpoint cannot be written.
    RunInterruptedError
        SIGTERM or SIGINT came.
    """
    started = time.perf_counter()
    check_outputs(recipe)
    if recipe.deterministic:
        os.environ.update(DETERMINISTIC)
    run = Run(recipe)
    with contextlib.ExitStack() as stack:
        stack.enter_context(log.to_stdout())
        interruption = stack.enter_context(Interruption())
        if run.checkpoints is not None:
            stack.enter_context(run.checkpoints.locked())
        log.logger.info("%s\n", run.plan())
        run.train(interruption)
        run.loop.records.close()
        summary = run.summary(time.perf_counter() - started)
        if recipe.summary_json:
            report.write_json(_expanded(recipe.summary_json), dataclasses.asdict(summary))
        if run.checkpoints is not None:
            path = run.checkpoints.folder / PARAMETERS.format(recipe.num_epochs - 1)
            save_parameters(run.net, path)
        interruption.leave_after("the run is over and everything was written")
        return summary
