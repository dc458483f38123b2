"""How fast a device trains in float16 and bfloat16 against float32, and how much memory it takes.

Each function returns what it measured, as text. A ratio is that of the medians of STEPS steps that
are timed in turns, so that other programs slow all policies alike.
"""

import time
from statistics import median
from typing import Callable

from gluon_amp.inspection.selftest.nets import Training, dense_net, small_resnet

import mxnet as mx
from mxnet import nd

STEPS = 7
WARM_UP = 3

# Sizes on a GPU, which a small product would not fill, and on a CPU, where seconds count:
# the shape of a sample, and the arguments of the function that makes the net
NETS = {
    "residual": (small_resnet, {"gpu": ((8, 56, 56), 256, 4), "cpu": ((8, 16, 16), 16, 2)}),
    "dense": (dense_net, {"gpu": ((4096,), 4096, 4), "cpu": ((256,), 256, 3)}),
}


def faster(net: str, policy: str) -> Callable[[mx.Context], str]:
    """Return a check of how many times as fast as float32 a net trains under a policy."""

    def check(ctx: mx.Context) -> str:
        make, sizes = NETS[net]
        shape, *arguments = sizes[ctx.device_type]
        seconds = {"float32": [], policy: []}
        trainings = {
            name: Training(ctx, name, lambda: make(*arguments), shape, loss_scale=None)
            for name in seconds
        }
        for step in range(WARM_UP + STEPS):
            for name, training in trainings.items():
                nd.waitall()
                start = time.perf_counter()
                training.step()
                nd.waitall()
                if step >= WARM_UP:
                    seconds[name].append(time.perf_counter() - start)
        wide, low = (median(values) for values in seconds.values())
        return f"{wide / low:.2f} times ({low * 1e3:.3g} ms)"

    return check


def bytes_of_weights(ctx: mx.Context) -> str:
    """Return the share of the bytes that weights and gradients take in float16."""
    low, wide = (
        sum(
            array.size * array.asnumpy().itemsize
            for parameter in Training(ctx, policy).parameters()
            for array in (parameter.data(), parameter.grad())
        )
        for policy in ("float16", "float32")
    )
    return f"{low / wide:.2f}"


def device_memory(ctx: mx.Context) -> str:
    """Return the memory in use on a GPU after the checks before this one."""
    nd.waitall()
    free, total = mx.context.gpu_memory_info(ctx.device_id)
    return f"{(total - free) / 2**20:.0f} of {total / 2**20:.0f} MiB in use"
