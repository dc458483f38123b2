"""Updates, sums and overflow checks of all parameters at once, by the C++ kernels.

MXNet's loops over float16 are scalar and take up to 57 ns an element. Each function calls one
operator of MXNet's engine on any number of arrays on a CPU. The operator reads and writes every
array once and computes the same bits as MXNet's own operators for a single parameter. If a user has
written to a float16 weight, its master is updated in the same pass, as by `sync_master`. The arrays
must be `supported`.
"""

import functools
from typing import Iterable, List, Optional, Sequence

import numpy as np

from gluon_amp import kernels
from gluon_amp.base import registry
from gluon_amp.base.host import on_cpu
from gluon_amp.base.mxnet_internals import imperative_invoke

from mxnet.ndarray import NDArray

_DTYPES = (np.dtype("float16"), np.dtype("float32"))


def supported(arrays: Iterable[NDArray]) -> bool:
    """Return whether the kernels are available, and these are dense float arrays on a CPU."""
    return (
        all(
            on_cpu(array) and array.stype == "default" and np.dtype(array.dtype) in _DTYPES
            for array in arrays
        )
        and kernels.available()
    )


def finite(arrays: Sequence[NDArray]) -> np.ndarray:
    """Return, for each array, whether all its elements are finite; wait for them."""
    if not arrays:
        return np.ones(0, bool)
    return invoke("_gluon_amp_all_finite", arrays, num_arrays=str(len(arrays))).asnumpy() != 0


def cast(array: NDArray, dtype: np.dtype, out: Optional[NDArray] = None) -> NDArray:
    """Return a float16 array in float32 or the reverse, in `out` if there is one."""
    op = "_gluon_amp_widen" if dtype == np.float32 else "_gluon_amp_narrow"
    return invoke(op, [array], out)


def add_up(arrays: List[NDArray], arrays_per_sum: int, factor: float) -> None:
    """Set the float16 arrays of each sum to it; each is multiplied by a factor before.

    Each product and each sum is rounded, from the first array on.
    """
    counts = {"num_arrays": str(len(arrays)), "arrays_per_sum": str(arrays_per_sum)}
    invoke("_gluon_amp_sum", arrays, **counts, factor=_bits([factor]))


def sync_master(weight: NDArray, master: NDArray) -> None:
    """Set the elements of a float32 master that do not round to the float16 weight to these."""
    unused = dict.fromkeys(("lrs", "wds", "decays", "constants"), "0")
    invoke("_gluon_amp_sync_masters", [master, weight], arrays_per_weight="2", **unused)


def sgd_update(
    arrays: Sequence[NDArray],
    arrays_per_weight: int,
    lrs: Sequence[float],
    wds: Sequence[float],
    momentum: float,
    rescale_grad: float,
    clip_gradient: Optional[float],
) -> None:
    """Update weights, momenta and masters in one pass, as `mp_sgd_mom_update` or its variants do.

    `arrays` are, for each weight in turn, the weight, its gradient, its momentum (optional), and
    its master if it is float16. Momenta and masters are float32. A `clip_gradient` of None or 0
    clips nothing.
    """
    invoke(
        "_gluon_amp_sgd_update",
        arrays,
        arrays_per_weight=str(arrays_per_weight),
        lrs=_bits(lrs),
        wds=_bits(wds),
        decays=_bits([0] * len(lrs)),
        constants=_bits([rescale_grad, clip_gradient or -1, momentum]),
    )


def adam_update(
    arrays: Sequence[NDArray],
    arrays_per_weight: int,
    lrs: Sequence[float],
    wds: Sequence[float],
    beta1: float,
    beta2: float,
    epsilon: float,
    rescale_grad: float,
    clip_gradient: Optional[float],
    decays: Sequence[float],
) -> None:
    """Update weights, means, variances and masters in one pass, as `adam_update` does.

    `arrays` are, for each weight in turn, the weight, its gradient, mean and variance, and its
    master if it is float16. The learning rates contain the bias correction. `decays` are the
    fractions of the weights that are subtracted with the step: decoupled weight decay times the
    learning rate, as in `_adamw_update` with `wd=decay, eta=1`.
    """
    invoke(
        "_gluon_amp_adam_update",
        arrays,
        arrays_per_weight=str(arrays_per_weight),
        lrs=_bits(lrs),
        wds=_bits(wds),
        decays=_bits(decays),
        constants=_bits([rescale_grad, clip_gradient or -1, beta1, beta2, epsilon]),
    )


def _bits(numbers: Iterable[float]) -> str:
    """Return numbers as the bits of float32, in decimal text, which is read back exactly."""
    return ",".join(map(str, np.array(numbers, np.float32).view(np.uint32)))


_handle = functools.lru_cache(maxsize=None)(registry.handle)


def invoke(
    op: str, arrays: Sequence[NDArray], out: Optional[NDArray] = None, **attributes: str
) -> NDArray:
    """Call an operator of the C++ library, by its name and the text of its attributes."""
    names, values = list(attributes), list(attributes.values())
    handle = _handle(op)
    assert handle is not None, f"{op} is registered where the library is available"
    return imperative_invoke(handle.value, arrays, names, values, out, False, False)
