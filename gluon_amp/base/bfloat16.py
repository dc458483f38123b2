"""How a CPU runs bfloat16: in the faster way, by oneDNN's kernels or emulated. No GPU runs it.

With AMX or AMD's AVX512_BF16, oneDNN multiplies bfloat16 in half of the time of float32. With
AVX512 alone it has kernels too, but a ResNet takes twice the time of float32 by them, and not
emulated. For Intel's AVX512_BF16 without AMX see `hardware.onednn_flags`.
The environment variable GLUON_AMP_BFLOAT16=emulated or native makes another choice.
"""

import functools
import os

import numpy as np

from gluon_amp.base import hardware

import mxnet as mx

VARIABLE = "GLUON_AMP_BFLOAT16"


def is_native(can_emulate: bool = True) -> bool:
    """Return whether a CPU computes in bfloat16 by oneDNN's kernels; otherwise it is emulated.

    `can_emulate` is whether there is the C++ library, which the emulation needs.
    """
    choice = os.environ.get(VARIABLE, "").lower()
    if choice == "emulated" or not has_kernels():
        return False
    return choice == "native" or not can_emulate or hardware.has_fast_bfloat16()


@functools.lru_cache(maxsize=None)
def has_kernels() -> bool:
    """Return whether this CPU multiplies bfloat16 matrices, by a trial if oneDNN may use AVX512.

    Without AVX512 no trial is needed, and MXNet would print an error.
    """
    if hardware.cpu_flags() and not hardware.onednn_flags() >= hardware.AVX512_FLAGS:
        return False
    # NDArray functions accept MXNet's structured dtype, but not the name 'bfloat16'.
    bfloat16 = np.dtype([("bfloat16", np.uint16)])
    one = mx.nd.amp_cast(mx.nd.ones((2, 2), ctx=mx.cpu()), dtype=bfloat16)
    try:
        product = mx.nd.FullyConnected(one, one, no_bias=True, num_hidden=2)
        return float(mx.nd.amp_cast(product, dtype="float32").sum().asscalar()) == 8.0
    except mx.base.MXNetError:
        return False
