"""Stock trainers that were built before a cast: their steps raise instead of training float16.

An `amp.Trainer` compares the dtypes by itself. A stock one would continue without loss scale and
masters, so `cast` adds the same comparison to that instance.
"""

from typing import Iterable, List, Tuple

import numpy as np

from mxnet import gluon


def dtypes_of(params: Iterable[gluon.Parameter]) -> List[Tuple[str, str]]:
    """Return each parameter's dtype and the dtype that its net computes in."""
    return [(np.dtype(p.dtype).name, getattr(p, "_amp_compute_dtype", "float32")) for p in params]


def check(params: Iterable[gluon.Parameter], before: Iterable[tuple], computing: bool) -> None:
    """Raise if parameters were cast since a trainer was built.

    Parameters
    ----------
    params : list of Parameter
    before : list of tuple
        What `dtypes_of` returned then.
    computing : bool
        Whether the dtype that the net computes in matters too, as it does for the loss scale.

    Raises
    ------
    RuntimeError
        The first parameter that differs.
    """
    for param, old, new in zip(params, before, dtypes_of(params)):
        if old[0] != new[0] or (computing and old[1] != new[1]):
            raise RuntimeError(
                f"Parameter {param.name} was {_in_words(*old)} when this trainer was built and is "
                f"{_in_words(*new)} now: the trainer was built before the cast, build a new one "
                "after it."
            )


def guard_trainers(params: Iterable[gluon.Parameter]) -> None:
    """Make the stock trainers of these parameters refuse to step once the dtypes have changed."""
    for trainer in {id(p._trainer): p._trainer for p in params if p._trainer is not None}.values():
        stock = type(trainer)
        if not isinstance(trainer, _Guarded) and not hasattr(trainer, "loss_scale"):
            trainer.__class__ = type(stock.__name__, (_Guarded, stock), {})
            trainer._dtypes_before_cast = dtypes_of(trainer._params)


class _Guarded:
    def step(self, *args, **kwargs):
        self._check_dtypes()
        return super().step(*args, **kwargs)

    def allreduce_grads(self):
        self._check_dtypes()
        return super().allreduce_grads()

    def update(self, *args, **kwargs):
        self._check_dtypes()
        return super().update(*args, **kwargs)

    def _check_dtypes(self):
        # bfloat16 needs neither a loss scale nor masters, so a stock trainer is correct for it
        computing = any(now == "float16" for _, now in dtypes_of(self._params))
        check(self._params, self._dtypes_before_cast, computing)


def _in_words(dtype: str, computing: str) -> str:
    return dtype if computing == "float32" else f"{dtype} computing in {computing}"
