"""Stock trainers of a cast net: a step of one built before the cast raises, of a later one warns.

A stock trainer would update float16 weights without a loss scale and masters. An `amp.Trainer`
compares the dtypes at each step itself; `cast` adds the same comparison to stock trainers.
"""

import warnings
from typing import Iterable, List, Optional, Tuple

from gluon_amp.base.dtypes import dtype_name
from gluon_amp.casting.classes import Mixin, change_class

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
                    f"This trainer was built before the cast of {param.name}: build it after "
                    "amp.cast."
                )


def gradient_dtype_of(param: gluon.Parameter) -> str:
    """Return the dtype in which a parameter's net computes the gradients of matrix products."""
    return getattr(param, "_amp_gradient_dtype", "float32")


def _names(params: List[gluon.Parameter]) -> List[Tuple[str, str]]:
    return [(dtype_name(p.dtype), gradient_dtype_of(p)) for p in params]


def guard_trainers(params: Iterable[gluon.Parameter]) -> None:
    """Make the stock trainers of these parameters raise at each step once the dtypes differ."""
    for trainer in {id(p._trainer): p._trainer for p in params if p._trainer is not None}.values():
        guard(trainer)
        if isinstance(trainer, Guarded) and trainer.dtypes_at_build is None:
            trainer.dtypes_at_build = DtypesAtBuild(trainer._params)


def guard(trainer: gluon.Trainer) -> None:
    """Make a stock trainer look at its parameters at each step; do nothing to other trainers."""
    if not hasattr(type(trainer), "loss_scale"):
        change_class(trainer, Guarded)


class Guarded(Mixin):
    """Mixed into the class of a stock trainer: a step raises if its parameters were cast since.

    It warns once if it trains in float16, unless `init_trainer` gave it a loss scale.
    """

    dtypes_at_build: Optional[DtypesAtBuild] = None
    _has_warned = False

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
        computing = [p for p in self._params if gradient_dtype_of(p) == "float16"]
        if self.dtypes_at_build is not None:
            self.dtypes_at_build.check(bool(computing))
        trained = {dtype_name(p.dtype) for p in computing if p.grad_req != "null"}
        if trained and not self._has_warned and not hasattr(self, "loss_scale"):
            self._has_warned = True
            no_masters = "float16" in trained and not self.optimizer.multi_precision
            warnings.warn(
                f"This {type(self).__name__} trains in float16 without a loss scale"
                f"{' and float32 masters' if no_masters else ''}, so that small gradients are lost"
                ": build an amp.Trainer and call trainer.backward(loss), or call "
                "amp.init_trainer(trainer) before the first step.",
                stacklevel=3,
            )
