"""Updates and overflow checks of all parameters at once, by the C++ kernels.

Each function calls one operator of MXNet's engine on any number of arrays on a CPU. The operator
reads and writes every array once and computes the same bits as MXNet's own operators for a single
parameter. If a user has written to a float16 weight, its master is updated in the same pass, as by
`sync_master`. The arrays must be `supported`.
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
    """Return whether the kernels are available and support these arrays.

    They support dense float16 and float32 arrays on a CPU. The first call may build the kernels:
    see `kernels.available`.
    """
    return (
        all(
            on_cpu(array) and array.stype == "default" and np.dtype(array.dtype) in _DTYPES
            for array in arrays
        )
        and kernels.available()
    )


def finite(arrays: Sequence[NDArray]) -> np.ndarray:
    """Return, for each array, whether all its elements are finite; wait for them.

    Parameters
    ----------
    arrays : list of NDArray
        Dense, float16 or float32, of any shapes.
    """
    if not arrays:
        return np.ones(0, bool)
    return invoke("_gluon_amp_all_finite", arrays, num_arrays=str(len(arrays))).asnumpy() != 0


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

    Parameters
    ----------
    arrays : list of NDArray
        For each weight in turn: weight, gradient, momentum (optional; without it, `momentum` is
        ignored), and the master if the weights are float16. Gradients may be float16 or float32,
        momenta and masters are float32.
    arrays_per_weight : int
        2 to 4.
    lrs, wds : list of float
        Learning rate and weight decay of each weight.
    clip_gradient : float or None
        None or 0 disables clipping.
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

    With `decays`, weights are updated as `_adamw_update` does with `wd=decay, eta=1`.

    Parameters
    ----------
    arrays : list of NDArray
        For each weight in turn: weight, gradient, mean, variance, and the master if the weights
        are float16.
    arrays_per_weight : int
        4 or 5.
    lrs, wds : list of float
        Learning rate (times the bias correction) and weight decay of each weight.
    decays : list of float
        Decoupled weight decay of each weight, times the learning rate: the fraction of the weight
        that is subtracted with the step. 0 for none.
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


def invoke(op: str, arrays: List[NDArray], **attributes: str) -> NDArray:
    """Call an operator of the C++ library, by its name and the text of its attributes."""
    names, values = list(attributes), list(attributes.values())
    return imperative_invoke(_handle(op).value, arrays, names, values, None, False, False)
