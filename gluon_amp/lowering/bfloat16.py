"""Where bfloat16 can run: on CPUs that MXNet's oneDNN has kernels for, and on no GPU."""

import functools
import os

import numpy as np

from gluon_amp.hardware import cpu_flags

import mxnet as mx

# What oneDNN's bfloat16 kernels need, by Linux's names; and the values of DNNL_MAX_CPU_ISA that
# leave that out (oneDNN's "CPU Dispatcher Control")
AVX512 = {"avx512f", "avx512bw", "avx512vl", "avx512dq"}
LESS = ("SSE41", "AVX", "AVX2", "AVX2_VNNI")


def check_device(device_type: str) -> None:
    """Refuse a device that cannot compute in bfloat16.

    Parameters
    ----------
    device_type : str
        As `Context.device_type`.

    Raises
    ------
    ValueError
        Any GPU, and a CPU without AVX512.
    """
    if device_type == "gpu":
        raise ValueError(
            "bfloat16 cannot run on a GPU: MXNet 1.9.1 has no bfloat16 kernels there; "
            "use policy 'float16' or 'mixed_float16'."
        )
    if not runs_on_cpu():
        raise ValueError(
            "bfloat16 cannot run on this CPU: MXNet's oneDNN needs AVX512 for it; "
            "use policy 'float16', which is emulated on any CPU."
        )


@functools.lru_cache(maxsize=None)
def runs_on_cpu() -> bool:
    """Return whether this CPU multiplies bfloat16 matrices, by trying it where it has AVX512.

    Elsewhere the answer is known, and MXNet would complain on standard error.
    """
    has = cpu_flags()
    if (has and not has >= AVX512) or os.environ.get("DNNL_MAX_CPU_ISA", "").upper() in LESS:
        return False
    # NDArray functions take MXNet's structured dtype; only graphs take the name 'bfloat16'
    bfloat16 = np.dtype([("bfloat16", np.uint16)])
    one = mx.nd.amp_cast(mx.nd.ones((2, 2), ctx=mx.cpu()), dtype=bfloat16)
    try:
        product = mx.nd.FullyConnected(one, one, no_bias=True, num_hidden=2)
        return float(mx.nd.amp_cast(product, dtype="float32").sum().asscalar()) == 8.0
    except mx.base.MXNetError:
        return False
