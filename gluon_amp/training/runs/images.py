"""One training run on images: a recipe in, a summary out."""

import time
from dataclasses import asdict, dataclass
from functools import partial
from types import SimpleNamespace
from typing import Dict, Iterable, List, Sequence, Tuple

import numpy as np

from gluon_amp.base.messages import UsageError
from gluon_amp.policy import Policy
from gluon_amp.training.data import TrainingBatches, ValidationBatches
from gluon_amp.training.networks.weights import load_matching
from gluon_amp.training.runs import log
from gluon_amp.training.runs.building import build_engine, build_network
from gluon_amp.training.runs.checkpoints import Position
from gluon_amp.training.runs.devices import contexts
from gluon_amp.training.runs.engines.base import Engine
from gluon_amp.training.runs.engines.module import ModuleEngine
from gluon_amp.training.runs.history import History, Validation
from gluon_amp.training.runs.loop import Loop
from gluon_amp.training.runs.observe import observe
from gluon_amp.training.runs.outputs import Output, check_outputs, draw_errors, export
from gluon_amp.training.runs.recipe import Recipe
from gluon_amp.training.runs.report import Reporter, arithmetic
from gluon_amp.training.runs.run import run
from gluon_amp.training.runs.schedule import Schedule
from gluon_amp.training.runs.seeds import set_seed, use_deterministic_algorithms
from gluon_amp.training.runs.sources import open_data
from gluon_amp.training.runs.training import Training
from gluon_amp.training.workers.group import connect

BATCHNORM_MOMENTUM = 0.9  # Gluon's default
UNSETTLED = (
    "\nAfter %d update%s, BatchNorm's running statistics still hold %.0f %% of their initial\n"
    "values: validation cannot judge this network yet. Give more epochs, or a smaller\n"
    "--batch-size."
)
OBSERVED_NAMES = {
    "conv_weight": "conv weights",
    "conv_compute": "computed in",
    "batchnorm": "BatchNorm",
    "logits": "logits",
    "loss": "loss",
}


def train(recipe: Recipe) -> SimpleNamespace:
    """Train and validate, epoch by epoch, and write what the recipe asks for."""
    check_outputs(recipe)
    training, reporter = prepare(recipe)
    if recipe.resume_epoch is not None:
        _begin_with_files(recipe, training)
    return run(training, reporter)


def prepare(recipe: Recipe) -> Tuple[Training, "ImageReporter"]:
    """Open the data and build the network, its engine and the loop."""
    started = time.perf_counter()
    if recipe.deterministic:
        use_deterministic_algorithms()
    devices = contexts(recipe.gpus, recipe.num_gpus, recipe.cpus)
    data = open_data(recipe, len(devices))
    workers = connect(
        recipe.kv_store, devices, repeats=recipe.deterministic, timeout=recipe.worker_timeout
    )
    set_seed(recipe.seed)
    net = build_network(recipe, data.classes, data.image_shape[1], devices)
    observed = observe(net, data, devices[0], recipe.model, Policy(recipe.policy))
    batch = recipe.batch_size * len(devices)
    share = (recipe.num_workers, workers.rank, workers.count)
    batches = TrainingBatches(data.train, batch, recipe.seed, *share)
    val_batches = ValidationBatches(data.val, batch, *share)
    total = batch * workers.count * recipe.accumulate
    falls = (recipe.lr_mode, recipe.warmup_epochs, recipe.lr_decay, recipe.lr_decay_epoch)
    shape = (recipe.num_epochs, len(batches), *falls, recipe.warmup_lr)
    schedule = Schedule(recipe.learning_rate(total), *shape)
    engine = build_engine(recipe, net, data, devices, schedule.rate, workers)
    if isinstance(engine, ModuleEngine):
        observed = {**observed, "conv_weight": engine.weight_dtypes()}
    paths = (recipe.log_json, recipe.tensorboard) if workers.first else ()
    limits = (recipe.accumulate, recipe.log_interval, recipe.max_batches)
    loop = Loop(engine, schedule, workers, log.Records(*paths), *limits, seed=recipe.seed)
    about = {
        "image_shape": data.image_shape,
        "class_names": data.class_names,
        "preprocessing": dict(data.preprocessing),
    }
    training = Training(recipe, data, loop, batches, val_batches, total, about, keeps_best=True)
    return training, ImageReporter(training, observed, devices, total, started)


def _begin_with_files(recipe: Recipe, training: Training) -> None:
    """Load the files of GluonCV or of Module that ``--resume-epoch`` names."""
    epoch, engine = recipe.resume_epoch, training.loop.engine
    if epoch >= recipe.num_epochs and not recipe.eval_only:
        raise UsageError(
            f"--resume-epoch {epoch} leaves nothing of --num-epochs {recipe.num_epochs} "
            "to train: give more epochs, or --eval-only."
        )
    if isinstance(engine, ModuleEngine):
        engine.load(recipe.save_dir, recipe.model, epoch)
    else:
        _load_gluoncv_files(recipe, training)
    # The files hold neither scores nor the order of the data, so these begin anew.
    training.start, training.keeper.history = Position(epoch, 0), History(validated=[None] * epoch)


def _load_gluoncv_files(recipe: Recipe, training: Training) -> None:
    """Load the parameters and the trainer states that GluonCV's script writes."""
    params, states, engine = recipe.resume_params, recipe.resume_states, training.loop.engine
    missing = load_matching(engine.net, params)
    if missing:
        raise UsageError(f"{params} does not hold {missing[0]}: is it of another model?")
    if states:
        try:
            engine.trainer.load_states(str(states))
        except (OSError, ValueError) as error:
            raise UsageError(f"--resume-states {states}: {error}") from None
    engine.trainer.refresh_masters()


def _in_words(observed: Dict[str, str]) -> str:
    """Return observed dtypes in words, in the order of `OBSERVED_NAMES`."""
    return ", ".join(f"{name} {observed[key]}" for key, name in OBSERVED_NAMES.items())


@dataclass(frozen=True)
class Confusion:
    """How many of a class's images were classified as another class."""

    count: int
    images: int
    true: str
    taken_for: str

    def __str__(self) -> str:
        return f"{self.count} of {self.images} images of {self.true} taken for {self.taken_for}"


def confusion_matrix(engine: Engine, batches: Iterable, classes: int) -> np.ndarray:
    """Return how many images of each class (row) were classified as each class (column), int64."""
    matrix = np.zeros((classes, classes), np.int64)
    for batch in batches:
        for labels, outputs in engine.predict(batch):
            predicted = outputs.argmax(axis=1).asnumpy().astype(np.int64)
            np.add.at(matrix, (labels.asnumpy().astype(np.int64), predicted), 1)
    return matrix


def worst(matrix: np.ndarray, names: Sequence[str], number: int) -> List[Confusion]:
    """Return the pairs of classes that are confused most often, at most `number`."""
    wrong = matrix - np.diag(np.diag(matrix))
    order = np.argsort(-wrong, axis=None, kind="stable")[:number]
    pairs: List[Tuple[int, int]] = [divmod(int(index), len(matrix)) for index in order]
    names = list(names) or [f"class {label}" for label in range(len(matrix))]
    return [
        Confusion(int(wrong[i, j]), int(matrix[i].sum()), names[i], names[j])
        for i, j in pairs
        if wrong[i, j]
    ]


class ImageReporter(Reporter):
    """Tells of a run on images."""

    recommends = True

    def plan(self) -> List[Tuple[str, object]]:
        recipe, data, schedule = self.recipe, self.data, self.loop.schedule
        rule = f"{recipe.lr_per_256:g} × {self.total} / 256" if recipe.lr is None else "as given"
        size = "×".join(map(str, data.image_shape))
        shorter = recipe.warmup_epochs != int(recipe.warmup_epochs)
        proportion = ", in proportion to the shorter run" if shorter else ""
        extras = [
            f"label smoothing {recipe.label_smoothing:g}" if recipe.label_smoothing else "",
            f"mixup {recipe.mixup:g}" if recipe.mixup else "",
            f"gradients clipped to {recipe.clip_grad:g}" if recipe.clip_grad else "",
            self.average_in_words(),
            "no decay of biases and norms" if recipe.no_wd else "",
        ]
        images = f"{data.train_images} training and {data.val_images} validation images of {size}"
        optimizer = [self.optimizer_in_words(), *filter(None, extras)]
        how = arithmetic(self.policy, self.emulated)
        trains = [
            ("lr", f"{schedule.rate:g} ({rule}), {schedule}{proportion}"),
            ("optimizer", ", ".join(optimizer)),
        ]
        return [
            ("batch", self.batch_in_words()),
            ("model", f"{recipe.model}, {data.classes} classes, --mode {recipe.mode}"),
            ("data", f"{data.name}: {images}"),
            ("requested", f"{recipe.policy}, {how}{self.by_default}"),
            ("observed", _in_words(self.observed)),
            *([] if recipe.eval_only else trains),
            ("seed", recipe.seed),
        ]

    def batch_in_words(self) -> str:
        """Return how many images are in one update, and why."""
        recipe, devices = self.recipe, ", ".join(map(str, self.devices))
        parts = [f"{recipe.batch_size} per device × {len(self.devices)} ({devices})"]
        if self.loop.workers.count > 1:
            parts.append(f"{self.loop.workers.count} workers")
        if recipe.accumulate > 1:
            parts.append(f"{recipe.accumulate} accumulated")
        return f"{' × '.join(parts)} = {self.total}"

    def confusions(self) -> List[Confusion]:
        """Return and log the classes that are confused most often, if the recipe asks for them."""
        if not self.recipe.confusions or self.loop.workers.count > 1:
            return []
        matrix = confusion_matrix(self.engine, self.training.val_batches, self.data.classes)
        confusions = worst(matrix, self.data.class_names, self.recipe.confusions)
        for confusion in confusions:
            log.logger.info("Confused: %s", confusion)
        return confusions

    def scores(self, summary: SimpleNamespace) -> List[Tuple[str, object]]:
        best = f"best {summary.best_top1:.2f} % (epoch {summary.best_epoch + 1})"
        unreadable = f", {summary.unreadable} unreadable" if summary.unreadable else ""
        return [
            ("observed", _in_words(self.observed)),
            ("top-1", f"{summary.top1:.2f} %, {best}"),
            ("top-5", f"{summary.top5:.2f} %"),
            ("validated", f"{summary.validated}/{summary.val_images} images{unreadable}"),
        ]

    def speed(self, summary: SimpleNamespace) -> str:
        if summary.images_per_second is None:
            return "nothing was trained"
        waited = f"waited for data {100 * summary.waited_share:.0f} % of the time"
        return f"{summary.images_per_second:.1f} training images/s, {waited}"

    def summary(self, last: Validation) -> SimpleNamespace:
        history = self.training.history
        validated = history.validated or [last]
        scores = {e: v.top1 for e, v in enumerate(validated) if v is not None} or {0: last.top1}
        best = max(scores, key=scores.__getitem__)
        trained = history.trained
        seconds = sum(result.seconds for result in trained)
        waited = sum(result.waited for result in trained)
        confusions = [asdict(confusion) for confusion in self.confusions()]
        return SimpleNamespace(
            **self.results(last),
            mode=self.recipe.mode,
            workers=self.loop.workers.count,
            confusions=confusions,
            unreadable=last.unreadable,
            best_top1=100 * scores[best],
            best_epoch=best,  # counted from 0
            waited_share=waited / seconds if seconds else None,  # for images
        )

    def end(self, last: Validation) -> SimpleNamespace:
        summary = super().end(last)
        recipe, left = self.recipe, BATCHNORM_MOMENTUM**self.loop.steps
        own = recipe.from_scratch or not (recipe.use_pretrained or recipe.pretrained_file)
        learns = own and recipe.resume_epoch is None and self.observed["batchnorm"] != "none"
        if self.loop.steps and left > 0.01 and learns:
            log.logger.info(UNSETTLED, self.loop.steps, "s" * (self.loop.steps != 1), 100 * left)
        return summary

    def outputs(self, summary: SimpleNamespace) -> List[Output]:
        recipe, net, outputs = self.recipe, self.engine.net, super().outputs(summary)
        if recipe.save_dir and recipe.mode != "module" and not recipe.eval_only:
            name = f"{self.data.name}-{recipe.model}-{recipe.num_epochs - 1}.params"
            outputs += self.parameter_outputs(recipe.save_dir / name)
        if recipe.plot:
            title = f"{recipe.model}, {recipe.policy}"
            draw = partial(draw_errors, self.training.history, recipe.plot, title)
            outputs.append(Output(draw, required=False))
        if recipe.export and recipe.mode != "module":
            names = (recipe.policy, recipe.export, recipe.model)
            write = partial(export, net, *names, self.data.image_shape)
            outputs.append(Output(write, required=False))
        return outputs
