"""How a device runs bfloat16: a CPU natively if oneDNN has kernels for it, otherwise emulated.

The environment variable GLUON_AMP_BFLOAT16=emulated emulates it on every CPU. No GPU runs it.
"""

import functools
import os

import numpy as np

from gluon_amp.hardware import cpu_flags

import mxnet as mx

# The CPU flags that oneDNN's bfloat16 kernels need, as Linux names them
AVX512 = {"avx512f", "avx512bw", "avx512vl", "avx512dq"}
# The values of DNNL_MAX_CPU_ISA that exclude AVX512 (oneDNN's "CPU Dispatcher Control")
WITHOUT_AVX512 = ("SSE41", "AVX", "AVX2", "AVX2_VNNI")
VARIABLE = "GLUON_AMP_BFLOAT16"


def check_device(device_type: str) -> None:
    """Raise a ValueError if a device of this `Context.device_type` cannot compute in bfloat16."""
    if device_type == "gpu":
        raise ValueError(
            "bfloat16 cannot run on a GPU: MXNet 1.9.1 has no bfloat16 kernels there; "
            "use policy 'float16' or 'mixed_float16'."
        )


def is_native() -> bool:
    """Return whether a CPU computes in bfloat16 by oneDNN's kernels; otherwise it is emulated."""
    return os.environ.get(VARIABLE, "").lower() != "emulated" and has_kernels()


@functools.lru_cache(maxsize=None)
def has_kernels() -> bool:
    """Return whether this CPU multiplies bfloat16 matrices, by a trial if it has AVX512.

    Without AVX512 no trial is needed, and MXNet would print an error.
    """
    flags = cpu_flags()
    if flags and not flags >= AVX512:
        return False
    if os.environ.get("DNNL_MAX_CPU_ISA", "").upper() in WITHOUT_AVX512:
        return False
    # NDArray functions accept MXNet's structured dtype, but not the name 'bfloat16'.
    bfloat16 = np.dtype([("bfloat16", np.uint16)])
    one = mx.nd.amp_cast(mx.nd.ones((2, 2), ctx=mx.cpu()), dtype=bfloat16)
    try:
        product = mx.nd.FullyConnected(one, one, no_bias=True, num_hidden=2)
        return float(mx.nd.amp_cast(product, dtype="float32").sum().asscalar()) == 8.0
    except mx.base.MXNetError:
        return False
