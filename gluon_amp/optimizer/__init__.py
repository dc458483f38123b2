"""Optimizers with float32 masters: SGD, NAG, Adam, AdamW, LARS, LAMB.

In float16, a step below 5e-4 does not change a weight near 1, and Adam's epsilon of 1e-8 is zero.
So the optimizer keeps a float32 master copy of each float16 weight, updates the master, and sets
the weight to the rounded master. A float32 weight needs no master.

Optimizers that MXNet has under the same name have its signature, defaults and formulas, with one
exception: `multi_precision` is True. The classes are also registered with MXNet, as ``amp_sgd``,
``amp_adam`` and so on.
"""

import inspect
import re
from typing import Any, Dict

from gluon_amp.base.messages import did_you_mean
from gluon_amp.optimizer.adam import Adam, AdamW
from gluon_amp.optimizer.base import ExactFloat, MasterOptimizer
from gluon_amp.optimizer.large_batch import LAMB, LARS
from gluon_amp.optimizer.sgd import NAG, SGD

import mxnet as mx

__all__ = ["LAMB", "LARS", "NAG", "SGD", "Adam", "AdamW", "ExactFloat", "MasterOptimizer", "create"]

# What arguments of optimizers are called in PyTorch, and here
ELSEWHERE = {"lr": "learning_rate", "weight_decay": "wd", "eps": "epsilon", "betas": "beta1"}

OPTIMIZERS = {"sgd": SGD, "nag": NAG, "adam": Adam, "adamw": AdamW, "lars": LARS, "lamb": LAMB}

for _name, _class in OPTIMIZERS.items():
    # Pickled states contain this path, so it is the public one and not that of the file.
    _class.__module__ = __name__
    # Registered under our own names: "sgd" would replace MXNet's class in the whole process.
    mx.optimizer.Optimizer.opt_registry[f"amp_{_name}"] = _class


def create(optimizer: str, **params: Any) -> mx.optimizer.Optimizer:
    """Return an optimizer by name.

    Parameters
    ----------
    optimizer : str
        One of `OPTIMIZERS`, or the name of another optimizer of MXNet, which then gets
        ``multi_precision=True`` and updates one tensor at a time.
    **params
        Arguments of the constructor.

    Raises
    ------
    ValueError
        The name is unknown.
    TypeError
        The name is no string, or the optimizer has no such argument; the message names a near
        match.

    Examples
    --------
    >>> import gluon_amp as amp
    >>> optimizer = amp.optimizer.create('adam', learning_rate=0.01)
    >>> type(optimizer).__name__, optimizer.multi_precision
    ('Adam', True)
    """
    if not isinstance(optimizer, str):
        raise TypeError(
            f"The optimizer must be a name such as 'sgd' or an mxnet.optimizer.Optimizer, received "
            f"{optimizer!r}."
        )
    name = optimizer.lower()
    if name in OPTIMIZERS:
        return _build(OPTIMIZERS[name], params)
    known = mx.optimizer.Optimizer.opt_registry
    if name not in known:
        # MXNet registers one for its own tests; ours have their plain names
        own = {*(f"amp_{one}" for one in OPTIMIZERS), "test"}
        names = sorted({*OPTIMIZERS, *known} - own)
        raise ValueError(
            f"Unknown optimizer {optimizer!r}{did_you_mean(optimizer, names)}: use one of "
            f"{', '.join(names)}."
        )
    return _build(known[name], {"multi_precision": True, **params})


def _build(kind: Any, params: Dict[str, Any]) -> mx.optimizer.Optimizer:
    """Return an optimizer; an argument that it does not have is one sentence."""
    try:
        return kind(**params)
    except TypeError as error:
        unknown = re.search(r"unexpected keyword argument '(\w+)'", str(error))
        if unknown is None or unknown[1] not in params:
            raise
        signatures = (inspect.signature(base.__init__) for base in kind.__mro__)
        known = {name for signature in signatures for name in signature.parameters}
        known -= {"self", "args", "kwargs"}
        near = ELSEWHERE.get(unknown[1], unknown[1])
        raise TypeError(
            f"{kind.__name__} has no argument {unknown[1]!r}{did_you_mean(near, known)}: expected "
            f"{', '.join(sorted(known))}."
        ) from None
