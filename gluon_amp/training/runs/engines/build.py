"""The engine that a recipe describes: its objective, optimizer and loss scale."""

from typing import Any, Dict, Sequence

from gluon_amp.casting.cast import cast
from gluon_amp.trainer import Trainer
from gluon_amp.trainer.loss_scale import DynamicLossScale
from gluon_amp.training.data import Source
from gluon_amp.training.runs.engines.base import Engine
from gluon_amp.training.runs.engines.gluon import GluonEngine
from gluon_amp.training.runs.engines.module import ModuleEngine
from gluon_amp.training.runs.objective import Objective
from gluon_amp.training.runs.recipe import Recipe
from gluon_amp.training.workers.group import Workers

import mxnet as mx
from mxnet.gluon import HybridBlock

# The options that each optimizer has besides the learning rate.
OPTIMIZER_OPTIONS = {
    "sgd": ("momentum", "wd"),
    "nag": ("momentum", "wd"),
    "adam": ("wd",),
    "adamw": ("wd",),
    "lars": ("momentum", "wd"),
    "lamb": ("wd",),
}


def optimizer_options(recipe: Any) -> Dict[str, float]:
    """Return the options of the recipe's optimizer, without the learning rate."""
    return {name: getattr(recipe, name) for name in OPTIMIZER_OPTIONS[recipe.optimizer]}


def loss_scale_option(recipe: Any) -> Dict[str, Any]:
    """Return the argument for the recipe's loss scale; empty for the policy's default."""
    if recipe.loss_scale is None:
        return {}
    if recipe.loss_scale == "none":
        return {"loss_scale": None}
    first = str(recipe.loss_scale).partition(":")[2]
    if first:
        return {"loss_scale": DynamicLossScale(init_scale=float(first))}
    return {"loss_scale": recipe.loss_scale}


def build_trainer(recipe: Any, net: HybridBlock, rate: float, kvstore: Any = "device") -> Trainer:
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
    return GluonEngine(net, trainer, objective, devices, workers.count, **options)
