"""The accumulation dtype of a device's float16 products, found by sums that would overflow float16.

64 products of 65504 and 1 or -1 sum to 0. A float32 sum is 0 in any order. A float16 sum is
infinite or NaN as soon as two products of the same sign meet.
"""

from typing import Dict, Iterator, List, Tuple, Union

import numpy as np

from gluon_amp.base.formats import FORMATS
from gluon_amp.lowering import lower
from gluon_amp.policy import Policy, cast_pass

import mxnet as mx
from mxnet import nd

LENGTH = 64  # products in a sum; a power of two, and a multiple of 8 for Tensor Cores
WIDTH = 8  # rows and columns of the result

# operator: shapes of its two inputs, and its attributes; the sum is over the axis of size LENGTH
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


def accumulation_dtype(ctx: Union[mx.Context, str]) -> Dict[str, str]:
    """Return the dtype in which a device accumulates float16 products, found by experiment.

    Parameters
    ----------
    ctx : Context
        On a CPU, where float16 is emulated, the result is float32.

    Returns
    -------
    dict of str to str
        'float32' or 'float16' for Convolution, FullyConnected, dot and batch_dot with float16
        inputs. In a cast net `batch_dot` gets float16 inputs only if a pin asks for it.

    Examples
    --------
    >>> import gluon_amp as amp, mxnet as mx
    >>> amp.accumulation_dtype(mx.cpu())['Convolution']
    'float32'
    """
    ctx, policy = mx.Context(ctx), Policy.parse("float16")
    return {
        op: "float32" if np.isfinite(sums(op, policy, ctx)).all() else "float16" for op in PROBES
    }


def sums(op: str, policy: Policy, ctx: mx.Context) -> List[np.ndarray]:
    """Return the result of an operator for each pattern of signs: zeros, or an overflow."""
    left_shape, right_shape, attributes = PROBES[op]
    symbol = getattr(mx.sym, op)(mx.sym.var("left"), mx.sym.var("right"), **attributes)
    dtypes = {"left": "float16", "right": "float16"}
    cast = cast_pass.apply(symbol, policy.pin(ops=[op], dtype="float16"), dtypes)
    lowered = lower(cast, {**dtypes}, ctx.device_type)
    run = nd.CachedOp(lowered)
    arrays = {"right": nd.ones(right_shape, ctx=ctx, dtype="float16")}
    results = []
    for left in _sign_patterns(left_shape):
        arrays["left"] = nd.array(left, ctx=ctx, dtype="float16")
        results.append(run(*(arrays[name] for name in lowered.list_inputs())).asnumpy())
    return results


def _sign_patterns(shape: Tuple[int, ...]) -> Iterator[np.ndarray]:
    """Yield arrays of ±65504 whose signs change after every 1, 2, 4, ... 32 products of a sum.

    A kernel sums in an order of its own, so one pattern alone could cancel by chance.
    """
    axis = shape.index(LENGTH)
    along_axis = [LENGTH if k == axis else 1 for k in range(len(shape))]
    for period in 2 ** np.arange(LENGTH.bit_length() - 1):
        signs = np.where(np.arange(LENGTH) // period % 2, -1, 1)
        yield np.broadcast_to(signs.reshape(along_axis) * FORMATS["float16"].largest, shape)
