"""What a recipe describes, built: the network, its trainer, and the engine with its objective."""

from typing import Any, Dict, List, Sequence

from gluon_amp.base.messages import UsageError
from gluon_amp.casting.cast import cast
from gluon_amp.trainer import Trainer
from gluon_amp.trainer.loss_scale import DynamicLossScale
from gluon_amp.training.data import Source, TrainingBatches, open_digits
from gluon_amp.training.networks import weights
from gluon_amp.training.networks.head import freeze_features, freeze_statistics, head_of
from gluon_amp.training.networks.models import build
from gluon_amp.training.runs import log
from gluon_amp.training.runs.engines.base import Engine
from gluon_amp.training.runs.engines.gluon import GluonEngine
from gluon_amp.training.runs.engines.module import ModuleEngine
from gluon_amp.training.runs.loop import Loop
from gluon_amp.training.runs.objective import Objective
from gluon_amp.training.runs.options import Options
from gluon_amp.training.runs.recipe import Recipe
from gluon_amp.training.runs.schedule import Schedule
from gluon_amp.training.workers.group import Workers

import mxnet as mx
from mxnet.gluon import Block, HybridBlock

# Fine-tuning on the digits 5 to 9 begins with a network that has learned the digits 0 to 4.
FEATURE_DIGITS = range(5)
FEATURE_EPOCHS = 8
PRETRAINS = (
    "No model zoo has weights for the digits: training on the digits 0 to 4 first,\n"
    f"for {FEATURE_EPOCHS} epochs, which takes a minute or two."
)

# The options that each optimizer has besides the learning rate.
OPTIMIZER_OPTIONS = {
    "sgd": ("momentum", "wd"),
    "nag": ("momentum", "wd"),
    "adam": ("wd",),
    "adamw": ("wd",),
    "lars": ("momentum", "wd"),
    "lamb": ("wd",),
}


def build_network(
    recipe: Recipe, classes: int, image_size: int, devices: List[mx.Context]
) -> HybridBlock:
    """Return the network for images of this height and width, initialized and cast."""
    model = recipe.network
    with mx.name.NameManager():  # the same names in every process, and for every such network
        net = build(model, classes)
    if recipe.last_gamma:
        weights.zero_last_gammas(net, model)
    net.initialize(mx.init.MSRAPrelu(), ctx=devices)
    _load_pretrained(net, recipe, model, classes, image_size)
    if recipe.freeze_features or recipe.head_lr_mult != 1:
        head = head_of(net, build(model, classes + 1))
        for param in head:
            param.lr_mult = recipe.head_lr_mult
        if recipe.freeze_features:
            freeze_features(net, head)
    if recipe.freeze_statistics:
        freeze_statistics(net)
    if recipe.no_wd:
        without_decay(net)
    try:
        cast(net, recipe.policy)
    except ValueError as error:
        raise UsageError(f"--dtype {recipe.dtype} --model {model}: {error}") from None
    if recipe.mode == "hybrid":
        net.hybridize(static_alloc=True)
    return net


def _load_pretrained(
    net: HybridBlock, recipe: Recipe, model: str, classes: int, image_size: int
) -> None:
    """Load the pretrained weights that the recipe names, if any."""
    path = recipe.pretrained_file
    if recipe.use_pretrained and not path and not recipe.from_scratch:
        if recipe.dataset == "digits":
            # on standard error, as no log is open yet
            log.logger.warning("%s", PRETRAINS)
            head = head_of(net, build(model, classes + 1))
            weights.copy_features(digits_network(model, recipe.seed, image_size), net, head)
            return
        path = weights.pretrained_file(model, recipe.root)
    if path:
        weights.load_matching(net, path)


def without_decay(net: Block) -> None:
    """Exclude biases, gammas and betas from weight decay ("Bag of Tricks", He et al. 2019)."""
    for name, param in net.collect_params().items():
        if name.endswith(("bias", "gamma", "beta")):
            param.wd_mult = 0.0


def digits_network(model: str, seed: int, image_size: int) -> HybridBlock:
    """Return a network that has learned the digits 0 to 4, in float32 on the CPU."""
    source = open_digits(seed, FEATURE_DIGITS, image_size)
    net = build(model, source.classes)
    net.initialize(mx.init.MSRAPrelu())
    net.hybridize(static_alloc=True)
    batches = TrainingBatches(source.train, 64, seed, num_workers=0)
    schedule = Schedule(0.1, FEATURE_EPOCHS, len(batches), "cosine", warmup_epochs=1)
    settings = {"learning_rate": 0.1, "momentum": 0.9, "wd": 5e-4}
    trainer = Trainer(net.collect_params(), "sgd", settings)
    engine = GluonEngine(net, trainer, [mx.cpu()], Objective(source.classes))
    loop = Loop(engine, schedule, log_interval=0)
    with log.silence():
        for epoch in range(FEATURE_EPOCHS):
            loop.train(batches, epoch)
    return net


def optimizer_options(recipe: Options) -> Dict[str, float]:
    """Return the options of the recipe's optimizer, without the learning rate."""
    return {name: getattr(recipe, name) for name in OPTIMIZER_OPTIONS[recipe.optimizer]}


def loss_scale_option(recipe: Options) -> Dict[str, Any]:
    """Return the argument for the recipe's loss scale; empty for the policy's default."""
    if recipe.loss_scale is None:
        return {}
    if recipe.loss_scale == "none":
        return {"loss_scale": None}
    first = str(recipe.loss_scale).partition(":")[2]
    if first:
        return {"loss_scale": DynamicLossScale(init_scale=float(first))}
    return {"loss_scale": recipe.loss_scale}


def build_trainer(
    recipe: Options, net: HybridBlock, rate: float, kvstore: Any = "device"
) -> Trainer:
    """Return the trainer of an initialized and cast network, as the recipe describes it."""
    settings = {**optimizer_options(recipe), "learning_rate": rate}
    return Trainer(
        net.collect_params(),
        recipe.optimizer,
        settings,
        kvstore=kvstore,
        **loss_scale_option(recipe),
    )


def build_engine(
    recipe: Recipe,
    net: HybridBlock,
    data: Source,
    devices: Sequence[mx.Context],
    rate: float,
    workers: Workers,
) -> Engine:
    """Return the engine for images, by Gluon or by Module, of an initialized and cast network."""
    mixup_epochs = recipe.num_epochs - recipe.mixup_off_epoch
    objective = Objective(
        data.classes, recipe.label_smoothing, recipe.mixup, mixup_epochs, recipe.seed
    )
    if recipe.mode == "module":
        return ModuleEngine(
            cast(net, "float32"),
            objective,
            devices,
            recipe.batch_size * len(devices),
            data.image_shape,
            recipe.optimizer,
            {**optimizer_options(recipe), "learning_rate": rate},
            workers.kvstore,
            workers.count,
            policy=recipe.policy,
            **loss_scale_option(recipe),
        )
    trainer = build_trainer(recipe, net, rate, workers.kvstore)
    # Otherwise the first step would do it, and give all workers and devices the statistics that one
    # of them has then: the one with MXNet's lowest rank, which is another one in every run.
    trainer.ready()
    options = {"clip": recipe.clip_grad, "accumulates": recipe.accumulate > 1}
    return GluonEngine(net, trainer, devices, objective, workers.count, **options)
