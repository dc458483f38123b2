"""Which dtype a device's float16 products add up in, found by sums that pass 65504 on their way."""

from typing import Dict, List

import numpy as np

from gluon_amp.lowering import lower
from gluon_amp.policy import Policy, graph

import mxnet as mx

LENGTH = 64  # products in a sum; a power of two, and a multiple of what Tensor Cores ask for (8)
WIDTH = 8  # rows and columns of the result

# operator: shapes of its two inputs and its attributes; the sum runs over LENGTH
PROBES = {
    "Convolution": (
        (1, LENGTH, WIDTH, WIDTH),
        (WIDTH, LENGTH, 1, 1),
        {"kernel": (1, 1), "num_filter": WIDTH, "no_bias": True},
    ),
    "FullyConnected": (
        (WIDTH, LENGTH),
        (WIDTH, LENGTH),
        {"num_hidden": WIDTH, "no_bias": True},
    ),
    "dot": ((WIDTH, LENGTH), (LENGTH, WIDTH), {}),
    "batch_dot": ((2, WIDTH, LENGTH), (2, LENGTH, WIDTH), {}),
}


def accumulation_dtype(ctx: mx.Context, accumulate: str = "float32") -> Dict[str, str]:
    """Tell what float16 products add up in on a device, by trying.

    64 products of 65504 and 1 or -1 add up to 0. A float32 sum is 0 in whatever order; one in
    float16 is infinite or NaN once two of the same sign meet. As a kernel chooses its own order,
    signs change after every 1, 2, 4, ... 32 products, and one sum that is not finite settles it.

    Parameters
    ----------
    ctx : Context
        On a CPU, where float16 is emulated, the answer is what the emulation was asked for.
    accumulate : {'float32', 'float16'}
        What to ask it for; only on a CPU, since on a GPU the kernel decides.

    Returns
    -------
    dict of str to str
        'float32' or 'float16' for Convolution, FullyConnected, dot and batch_dot, fed float16. In
        a cast net `batch_dot` gets float16 only where a pin asks for it.

    Raises
    ------
    ValueError
        `accumulate='float16'` on a GPU.

    Examples
    --------
    >>> import gluon_amp as amp, mxnet as mx
    >>> amp.accumulation_dtype(mx.cpu())['Convolution']
    'float32'
    """
    ctx = mx.Context(ctx)
    policy = Policy("float16", "float16", "float32", accumulate_dtype=accumulate)
    return {op: "float32" if _finite(op, policy, ctx) else "float16" for op in PROBES}


def _finite(op: str, policy: Policy, ctx: mx.Context) -> bool:
    return all(np.isfinite(total).all() for total in sums(op, policy, ctx))


def sums(op: str, policy: Policy, ctx: mx.Context) -> List[np.ndarray]:
    """Return what an operator makes of each pattern of signs: zeros, or what overflowed."""
    left_shape, right_shape, attrs = PROBES[op]
    inputs = [mx.sym.var("left"), mx.sym.var("right")]
    symbol = getattr(mx.sym, op)(*inputs, **attrs)
    dtypes = {"left": "float16", "right": "float16"}
    cast = graph.apply(symbol, policy.pin(ops=[op], dtype="float16"), dtypes)
    lowered = lower(cast, dtypes, ctx.device_type)
    run = mx.nd.CachedOp(lowered)
    right = mx.nd.ones(right_shape, ctx=ctx, dtype="float16")
    found = []
    for period in 2 ** np.arange(LENGTH.bit_length() - 1):
        signs = np.where(np.arange(LENGTH) // period % 2, -1, 1) * graph.FLOAT16_MAX
        at = left_shape.index(LENGTH)
        left = np.broadcast_to(
            signs.reshape([-1 if axis == at else 1 for axis in range(len(left_shape))]), left_shape
        )
        left = mx.nd.array(left, ctx=ctx, dtype="float16")
        arrays = {"left": left, "right": right}
        found.append(run(*(arrays[name] for name in lowered.list_inputs())).asnumpy())
    return found
