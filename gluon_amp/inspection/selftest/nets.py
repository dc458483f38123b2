"""The small nets, data and training steps of the self-test."""

from typing import Callable, Dict, List, Optional

import numpy as np

from gluon_amp.casting.cast import cast
from gluon_amp.trainer import StepReport, Trainer

import mxnet as mx
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn
from mxnet.gluon.model_zoo.vision import BasicBlockV1

BATCH = 16
CLASSES = 10
L2 = gluon.loss.L2Loss()


def random_array(ctx: mx.Context, *shape: int, seed: int = 0) -> nd.NDArray:
    """Return float32 values of a normal distribution, the same on every device."""
    return nd.array(np.random.RandomState(seed).normal(size=shape), ctx=ctx)


def small_resnet(channels: int, blocks: int = 2) -> nn.HybridSequential:
    """Return a residual network for images of 8 channels."""
    net = nn.HybridSequential()
    net.add(nn.Conv2D(channels, 3, padding=1, use_bias=False), nn.BatchNorm())
    net.add(*(BasicBlockV1(channels, 1) for _ in range(blocks)))
    net.add(nn.GlobalAvgPool2D(), nn.Dense(CLASSES))
    return net


def dense_net(width: int, layers: int = 2) -> nn.HybridSequential:
    """Return a chain of fully connected layers for vectors of `width` numbers."""
    net = nn.HybridSequential()
    net.add(*(nn.Dense(width, activation="tanh", in_units=width) for _ in range(layers)))
    net.add(nn.Dense(CLASSES, in_units=width))
    return net


class Training:
    """A net in training on one device: the same weights and data for every policy and scale."""

    def __init__(
        self,
        ctx: mx.Context,
        policy: str = "float16",
        make_net: Callable[[], nn.HybridSequential] = lambda: dense_net(32),
        shape: tuple = (32,),
        optimizer: str = "sgd",
        loss_scale: object = 128.0,
    ) -> None:
        self.net = make_net()
        self.net.initialize(ctx=ctx)
        self.x = random_array(ctx, BATCH, *shape, seed=1)
        self.y = random_array(ctx, BATCH, CLASSES, seed=2)
        self.net(self.x)
        for number, parameter in enumerate(self.parameters()):
            if parameter.grad_req != "null" and len(parameter.shape) > 1:
                spread = 1 / np.sqrt(np.prod(parameter.shape[1:]))
                values = random_array(ctx, *parameter.shape, seed=10 + number)
                parameter.set_data(values * spread)
        cast(self.net, policy)
        options = {"learning_rate": 0.05}
        if optimizer == "sgd":
            options["momentum"] = 0.9
        self.trainer = Trainer(
            self.net.collect_params(), optimizer, options, kvstore=None, loss_scale=loss_scale
        )

    def parameters(self) -> List[gluon.Parameter]:
        """Return the parameters in the order of the layers."""
        return list(self.net.collect_params().values())

    def weights(self) -> Dict[str, np.ndarray]:
        """Return the parameters by name, in the order of the layers."""
        return {p.name: p.data().asnumpy() for p in self.parameters()}

    def masters(self) -> Dict[str, np.ndarray]:
        """Return the float32 masters by the names of their parameters."""
        return {name: m.asnumpy() for name, m in self.trainer.master_params().items()}

    def steps(self, count: int) -> "Training":
        """Train some steps; return the training itself."""
        for _ in range(count):
            self.step()
        return self

    def step(self, factor: float = 1.0) -> Optional[StepReport]:
        """Train one step on the loss times `factor`; return the report."""
        with autograd.record():
            loss = L2(self.net(self.x), self.y) * factor
        self.trainer.backward(loss)
        return self.trainer.step(BATCH)

    def values(self) -> List[np.ndarray]:
        """Return all parameters and the float32 masters, in the order of the layers."""
        weights, masters = self.weights(), self.masters()
        return [*weights.values(), *(masters[name] for name in weights if name in masters)]


def different(left: List[np.ndarray], right: List[np.ndarray], what: str = "arrays") -> str:
    """Return how many arrays differ in a bit, as text; those without a counterpart do."""
    differing = sum(a.tobytes() != b.tobytes() for a, b in zip(left, right))
    return f"{differing + abs(len(left) - len(right))} {what} differ"
