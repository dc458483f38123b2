"""One run of a language model: a recipe in, a summary out."""

import math
import time
from types import SimpleNamespace
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from gluon_amp.base.messages import UsageError
from gluon_amp.casting.cast import cast
from gluon_amp.inspection.describe import describe
from gluon_amp.policy import Policy
from gluon_amp.training.data.text import CLASSES, Chunks, open_text
from gluon_amp.training.networks.language_model import RECURRENT, LanguageModel
from gluon_amp.training.runs import log, report
from gluon_amp.training.runs.building import build_trainer
from gluon_amp.training.runs.devices import contexts
from gluon_amp.training.runs.engines.language import LanguageEngine
from gluon_amp.training.runs.history import EpochResult, Validation
from gluon_amp.training.runs.language.recipe import LanguageRecipe
from gluon_amp.training.runs.loop import Loop
from gluon_amp.training.runs.observe import check_compute_dtype, join_dtypes
from gluon_amp.training.runs.outputs import Output, check_outputs
from gluon_amp.training.runs.run import run
from gluon_amp.training.runs.schedule import Schedule
from gluon_amp.training.runs.seeds import set_seed, use_deterministic_algorithms
from gluon_amp.training.runs.training import Training

import mxnet as mx

# Validation does not depend on the batch, so that the rows of a table are measured in the same way.
VALIDATION_STREAMS, VALIDATION_LENGTH = 64, 64

PARAMETERS = "{}-{}.params"  # of a network, after an epoch
RECURRENT_FLOAT16 = (
    "emulated on this CPU, not at a GPU's speed: the inputs of the {}, and its outputs at the "
    "end of a chunk, are rounded; its state in between is not"
)
OPERATORS = ("Embedding", "RNN", "LayerNorm", "batch_dot", "FullyConnected")


def _in_words(observed: Dict[str, str]) -> str:
    return ", ".join(f"{op} {dtype}" for op, dtype in observed.items())


class TextSize(NamedTuple):
    """What a run reports of its text, in the words of image data: images are characters."""

    name: str
    classes: int
    train_images: int
    val_images: int


def train(recipe: LanguageRecipe) -> SimpleNamespace:
    """Train and validate, epoch by epoch, and write what the recipe asks for."""
    check_outputs(recipe)
    return run(*prepare(recipe))


def prepare(recipe: LanguageRecipe) -> Tuple[Training, "LanguageReporter"]:
    """Open the text and build the network, its engine and the loop."""
    started = time.perf_counter()
    if recipe.deterministic:
        use_deterministic_algorithms()
    devices = contexts(recipe.gpus, recipe.num_gpus, recipe.cpus)
    streams = recipe.batch_size * len(devices)
    text = open_text(recipe.characters)
    batches = Chunks(text.train, streams, recipe.bptt, whole=True)
    # a transformer knows no further places
    val_length = VALIDATION_LENGTH if recipe.kind in RECURRENT else recipe.bptt
    val_batches = Chunks(text.val, VALIDATION_STREAMS, val_length, whole=False)
    if not (len(batches) and len(val_batches)):
        raise UsageError(
            f"--characters {recipe.characters} are not enough for {streams} streams of "
            f"{recipe.bptt} characters and a tenth as many for validation: give more."
        )
    set_seed(recipe.seed)
    net = build_network(recipe, devices)
    schedule = Schedule(recipe.learning_rate(streams), recipe.num_epochs, len(batches), "cosine")
    trainer = build_trainer(recipe, net, schedule.rate)
    observed = observe(recipe, net, devices[0])
    loop = Loop(
        LanguageEngine(net, trainer, devices, recipe.clip_grad, recipe.without != "masters"),
        schedule,
        records=log.Records(recipe.log_json),
        log_interval=recipe.log_interval,
        max_batches=recipe.max_batches,
        unit="char",
        input_bound="",
        seed=recipe.seed,
    )
    size = TextSize(text.name, CLASSES, len(text.train), val_batches.images)
    total = f"{streams} × {recipe.bptt}"
    training = Training(recipe, size, loop, batches, val_batches, total, recipe.sizes)
    return training, LanguageReporter(training, observed, devices, streams, started)


def build_network(recipe: LanguageRecipe, devices: Sequence[mx.Context]) -> LanguageModel:
    """Return the network, initialized on the devices and cast."""
    with mx.name.NameManager():  # the same names in every process
        net = LanguageModel(CLASSES, **recipe.sizes)
    net.initialize(mx.init.Xavier(), ctx=devices)
    try:
        cast(net, recipe.pinned_policy)
    except ValueError as error:
        raise UsageError(f"--dtype {recipe.dtype}: {error}") from None
    net.hybridize(static_alloc=True)
    return net


def observe(recipe: LanguageRecipe, net: LanguageModel, device: mx.Context) -> Dict[str, str]:
    """Return the dtypes in which the network really computes."""
    inputs = mx.nd.zeros((1, 2), ctx=device, dtype="int32")
    rows = describe(net, inputs, *net.begin(1, device)).rows
    observed = {
        op: join_dtypes(row.compute_dtype for row in rows if row.op == op)
        for op in OPERATORS
        if any(row.op == op for row in rows)
    }
    check_compute_dtype(Policy(recipe.policy), observed["FullyConnected"], recipe.model)
    return observed


class LanguageReporter(report.Reporter):
    """Tells of a run of a language model."""

    def values(
        self, epoch: int, result: EpochResult, validation: Optional[Validation]
    ) -> Dict[str, Optional[str]]:
        bits = None if validation is None else f"{_bits(validation):.4g}"
        return {**super().values(epoch, result, validation), "bits": bits}

    def plan(self) -> List[Tuple[str, object]]:
        recipe, data, schedule = self.recipe, self.data, self.loop.schedule
        devices = f"{len(self.devices)} ({', '.join(map(str, self.devices))})"
        clipped = f"gradients clipped to {recipe.clip_grad:g}" if recipe.clip_grad else ""
        optimizer = [self.optimizer_in_words(), clipped, self.average_in_words()]
        characters = (
            f"{self.training.batches.images} training and {data.val_images} validation characters"
        )
        streams = f"{recipe.batch_size} streams per device × {devices}"
        how = report.arithmetic(self.policy, self.emulated)
        if self.emulated and self.policy.compute_dtype == "float16" and recipe.kind in RECURRENT:
            how = RECURRENT_FLOAT16.format(recipe.kind.upper())
        return [
            ("batch", f"{streams}, {recipe.bptt} characters each"),
            ("model", f"{recipe.model}, {data.classes} classes"),
            ("data", f"{data.name}: {characters}"),
            ("requested", f"{recipe.arithmetic}, {how}{self.by_default}"),
            ("observed", _in_words(self.observed)),
            ("lr", f"{schedule.rate:g}, {schedule}"),
            ("optimizer", ", ".join(filter(None, optimizer))),
            ("seed", recipe.seed),
        ]

    def scores(self, summary: SimpleNamespace) -> List[Tuple[str, object]]:
        return [
            ("observed", _in_words(self.observed)),
            ("top-1", f"{summary.top1:.2f} % of the next characters"),
            ("bits", f"{summary.bits_per_character:.3f} per character"),
            ("validated", f"{summary.validated}/{summary.val_images} characters"),
        ]

    def speed(self, summary: SimpleNamespace) -> str:
        return f"{summary.images_per_second:.0f} training characters/s"

    def summary(self, last: Validation) -> SimpleNamespace:
        return SimpleNamespace(**self.results(last), bits_per_character=_bits(last))

    def outputs(self, summary: SimpleNamespace) -> List[Output]:
        outputs = super().outputs(summary)
        if self.recipe.save_dir:
            name = PARAMETERS.format(self.recipe.kind, self.recipe.num_epochs - 1)
            outputs += self.parameter_outputs(self.recipe.save_dir / name)
        return outputs


def _bits(validation: Validation) -> float:
    """Return bits per character, from nats."""
    return validation.cross_entropy / math.log(2)
