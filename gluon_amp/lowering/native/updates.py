"""Updates and overflow checks of all parameters at once, by the C++ kernels (`native`).

Each function is one operator of MXNet's engine over any number of arrays on a CPU, which reads and
writes every array once. Their bits are those of MXNet's own operators for a single parameter.
The same pass sets masters to weights that somebody wrote meanwhile, as `sync_master` does.
Only to be called for arrays that it `takes`.
"""

import ctypes
import functools
from typing import Iterable, List, Optional, Sequence

import numpy as np

from gluon_amp.lowering import native

from mxnet.base import _LIB, OpHandle, c_str, check_call
from mxnet.ndarray import NDArray
from mxnet.ndarray._internal import _imperative_invoke

_DTYPES = (np.dtype("float16"), np.dtype("float32"))


def takes(arrays: Iterable[NDArray]) -> bool:
    """Return whether these arrays are dense, float16 or float32, on a CPU, and the kernels there.

    The first call may take seconds: see `native.available`.
    """
    return (
        all(
            array.context.device_type.startswith("cpu")
            and array.stype == "default"
            and np.dtype(array.dtype) in _DTYPES
            for array in arrays
        )
        and native.available()
    )


def finite(arrays: Sequence[NDArray]) -> np.ndarray:
    """Return, for each array, whether all its elements are finite; waits for them.

    Parameters
    ----------
    arrays : list of NDArray
        Dense, float16 or float32, of any shapes.
    """
    if not arrays:
        return np.ones(0, bool)
    finite = _invoke("_gluon_amp_all_finite", arrays, num_arrays=str(len(arrays)))
    return finite.asnumpy() != 0


def sgd_update(
    arrays: Sequence[NDArray],
    arrays_per_weight: int,
    lrs: Sequence[float],
    wds: Sequence[float],
    momentum: float,
    rescale_grad: float,
    clip_gradient: Optional[float],
) -> None:
    """Update weights, momenta and masters as `mp_sgd_mom_update` and its like do, in one pass.

    Parameters
    ----------
    arrays : list of NDArray
        For each weight, one after the other: weight, gradient, momentum (or none, and then
        `momentum` is not read), and the master if the weights are float16. Gradients may be
        float16 or float32, momenta and masters are float32.
    arrays_per_weight : int
        2 to 4.
    lrs, wds : list of float
        One for each weight.
    clip_gradient : float or None
        None or 0 for off.
    """
    _invoke(
        "_gluon_amp_sgd_update",
        arrays,
        arrays_per_weight=str(arrays_per_weight),
        lrs=_bits(lrs),
        wds=_bits(wds),
        constants=_bits([momentum, rescale_grad, clip_gradient or -1]),
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
    """Update weights, means, variances and masters as `adam_update` does, in one pass.

    With `decays`, weights change as by `_adamw_update` with these as its `wd` and with `eta` 1.

    Parameters
    ----------
    arrays : list of NDArray
        For each weight, one after the other: weight, gradient, mean, variance, and the master if
        the weights are float16.
    arrays_per_weight : int
        4 or 5.
    lrs, wds : list of float
        One for each weight; the rates with the bias correction in them.
    decays : list of float
        Shares of the weights that are subtracted with the step: decoupled weight decay, the rate
        in it; 0 for none.
    """
    _invoke(
        "_gluon_amp_adam_update",
        arrays,
        arrays_per_weight=str(arrays_per_weight),
        lrs=_bits(lrs),
        wds=_bits(wds),
        decays=_bits(decays),
        constants=_bits([beta1, beta2, epsilon, rescale_grad, clip_gradient or -1]),
    )


def _bits(numbers: Iterable[float]) -> str:
    """Return numbers rounded to float32 as the text of their bits, which is read back exactly."""
    return ",".join(map(str, np.array(numbers, np.float32).view(np.uint32)))


@functools.lru_cache(maxsize=None)
def _handle(op: str) -> int:
    handle = OpHandle()
    check_call(_LIB.NNGetOpHandle(c_str(op), ctypes.byref(handle)))
    return handle.value


def _invoke(op: str, arrays: List[NDArray], **attributes: str) -> NDArray:
    names, values = list(attributes), list(attributes.values())
    return _imperative_invoke(_handle(op), arrays, names, values, None, False, False)
