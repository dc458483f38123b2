"""How fast a device trains in float16 and bfloat16 against float32, and how much memory it takes.

Each function returns what it measured, as text. A ratio is that of the medians of STEPS steps that
are timed in turns, so that other programs slow all policies alike.
"""

import time
from statistics import median
from typing import Callable, Dict, Sequence

from gluon_amp.inspection.selftest.nets import Training, dense_net, small_resnet

import mxnet as mx
from mxnet import nd

STEPS = 7
WARM_UP = 3

# Sizes on a GPU, which a small product would not fill, and on a CPU, where seconds count
RESNET = {"gpu": ((8, 56, 56), 256, 4), "cpu": ((8, 16, 16), 16, 2)}  # image, channels, blocks
DENSE = {"gpu": (4096, 4), "cpu": (256, 3)}  # width, layers


def resnet(policy: str) -> Callable[[mx.Context], str]:
    """Return a check of the speed of a small residual network under a policy."""

    def check(ctx: mx.Context) -> str:
        shape, channels, blocks = RESNET[ctx.device_type]
        return _faster(ctx, policy, lambda: small_resnet(channels, blocks), shape)

    return check


def dense(policy: str) -> Callable[[mx.Context], str]:
    """Return a check of the speed of fully connected layers under a policy."""

    def check(ctx: mx.Context) -> str:
        width, layers = DENSE[ctx.device_type]
        return _faster(ctx, policy, lambda: dense_net(width, layers), (width,))

    return check


def _faster(ctx, policy: str, make_net, shape: tuple) -> str:
    policies = ("float32", policy)
    trainings = {name: Training(ctx, name, make_net, shape, loss_scale=None) for name in policies}
    seconds = _medians(trainings)
    return f"{seconds['float32'] / seconds[policy]:.2f} times ({seconds[policy] * 1e3:.3g} ms)"


def _medians(trainings: Dict[str, Training]) -> Dict[str, float]:
    seconds = {name: [] for name in trainings}
    for step in range(WARM_UP + STEPS):
        for name, training in trainings.items():
            nd.waitall()
            start = time.perf_counter()
            training.step()
            nd.waitall()
            if step >= WARM_UP:
                seconds[name].append(time.perf_counter() - start)
    return {name: median(values) for name, values in seconds.items()}


def bytes_of_weights(ctx: mx.Context) -> str:
    """Return the share of the bytes that weights and gradients take in float16."""
    width, layers = 64, 2
    sizes = [
        sum(
            _bytes(p)
            for p in Training(ctx, policy, lambda: dense_net(width, layers), (width,)).parameters()
        )
        for policy in ("float16", "float32")
    ]
    return f"{sizes[0] / sizes[1]:.2f}"


def _bytes(parameter) -> int:
    arrays: Sequence[nd.NDArray] = (parameter.data(), parameter.grad())
    return sum(array.size * array.asnumpy().itemsize for array in arrays)


def device_memory(ctx: mx.Context) -> str:
    """Return the memory in use on a GPU after the checks before this one."""
    nd.waitall()
    free, total = mx.context.gpu_memory_info(ctx.device_id)
    return f"{(total - free) / 2**20:.0f} of {total / 2**20:.0f} MiB in use"
