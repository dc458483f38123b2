"""Stale trainers, which were built before a cast: their steps raise instead of training wrongly.

A stock trainer would update float16 weights without a loss scale and masters. An `amp.Trainer`
compares the dtypes at each step itself; `cast` adds the same comparison to stock trainers.
"""

from typing import Iterable, List, Tuple

from gluon_amp.base.dtypes import dtype_name
from gluon_amp.casting.parameters import gradient_dtype_of

from mxnet import gluon


class DtypesAtBuild:
    """The dtypes of parameters at one moment, to compare with those of later steps.

    `names` has, for each parameter, its dtype and the dtype in which its net computes.
    """

    def __init__(self, params: Iterable[gluon.Parameter]):
        self._params = list(params)
        self.names = _names(self._params)

    def any_float16(self) -> bool:
        """Return whether a parameter was float16, or used in float16."""
        return any("float16" in dtypes for dtypes in self.names)

    def check(self, computing: bool) -> None:
        """Raise `RuntimeError` if parameters were cast since.

        `computing` tells whether to compare the dtype in which the net computes, too: the loss
        scale depends on it.
        """
        for param, old, new in zip(self._params, self.names, _names(self._params)):
            if old[0] != new[0] or (computing and old[1] != new[1]):
                raise RuntimeError(
                    f"Parameter {param.name} was {_in_words(*old)} when this trainer was built and "
                    f"is {_in_words(*new)} now: the trainer was built before the cast, build a new "
                    "one after it."
                )


def _names(params: List[gluon.Parameter]) -> List[Tuple[str, str]]:
    return [(dtype_name(p.dtype), gradient_dtype_of(p)) for p in params]


def _in_words(dtype: str, computing: str) -> str:
    return dtype if computing == "float32" else f"{dtype} computing in {computing}"


def guard_trainers(params: Iterable[gluon.Parameter]) -> None:
    """Make the stock trainers of these parameters raise at each step once the dtypes differ."""
    for trainer in {id(p._trainer): p._trainer for p in params if p._trainer is not None}.values():
        stock = type(trainer)
        if not isinstance(trainer, _Guarded) and not hasattr(trainer, "loss_scale"):
            trainer.__class__ = type(stock.__name__, (_Guarded, stock), {})
            trainer.dtypes_at_build = DtypesAtBuild(trainer._params)


class _Guarded:
    """A stock trainer that raises at each step if its parameters were cast since it was built."""

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
        # Under bfloat16 a stock trainer is correct, without a loss scale and masters.
        computing = any(gradient_dtype_of(p) == "float16" for p in self._params)
        self.dtypes_at_build.check(computing)
