"""Where bfloat16 can run: on CPUs that MXNet's oneDNN has kernels for, and on no GPU."""

import functools

import numpy as np

import mxnet as mx


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
    """Return whether this CPU multiplies bfloat16 matrices, by trying it."""
    # NDArray functions take MXNet's structured dtype; only graphs take the name 'bfloat16'
    bfloat16 = np.dtype([("bfloat16", np.uint16)])
    one = mx.nd.amp_cast(mx.nd.ones((2, 2), ctx=mx.cpu()), dtype=bfloat16)
    try:
        product = mx.nd.FullyConnected(one, one, no_bias=True, num_hidden=2)
        return float(mx.nd.amp_cast(product, dtype="float32").sum().asscalar()) == 8.0
    except mx.base.MXNetError:
        return False
