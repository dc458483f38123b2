"""Optimizers with float32 masters: SGD, NAG, Adam, AdamW, LARS, LAMB.

A float16 weight near 1 cannot take a step below 5e-4, and near 1e-8 Adam's epsilon is zero, so the
update computes in float32, on a master copy that the optimizer keeps. The weight is the rounded
master. Float32 weights are their own masters.

Under a name that MXNet has, signature, defaults and formulas are MXNet's, with one exception:
`multi_precision` is True. The classes are also registered with MXNet as ``amp_sgd``, ``amp_adam``
and so on.
"""

from gluon_amp.optimizer.adam import Adam, AdamW
from gluon_amp.optimizer.base import ExactFloat as ExactFloat
from gluon_amp.optimizer.base import MasterOptimizer
from gluon_amp.optimizer.large_batch import LAMB, LARS
from gluon_amp.optimizer.sgd import NAG, SGD

import mxnet as mx

__all__ = ["LAMB", "LARS", "NAG", "SGD", "Adam", "AdamW", "MasterOptimizer", "create"]

OPTIMIZERS = {"sgd": SGD, "nag": NAG, "adam": Adam, "adamw": AdamW, "lars": LARS, "lamb": LAMB}

for _name, _class in OPTIMIZERS.items():
    # The public path, which saved states name, whatever file the class is in.
    _class.__module__ = __name__
    # Under names of our own: registering "sgd" would replace MXNet's for the whole process.
    mx.optimizer.Optimizer.opt_registry[f"amp_{_name}"] = _class


def create(optimizer, **params):
    """Build an optimizer by name.

    Parameters
    ----------
    optimizer : str
        One of `OPTIMIZERS`, or any other name MXNet knows, which is then built with
        ``multi_precision=True`` and casts through float32 tensor by tensor.
    **params
        The constructor's arguments.

    Raises
    ------
    ValueError
        For an unknown name.

    Examples
    --------
    >>> import gluon_amp as amp
    >>> optimizer = amp.optimizer.create('adam', learning_rate=0.01)
    >>> type(optimizer).__name__, optimizer.multi_precision
    ('Adam', True)
    """
    name = optimizer.lower()
    if name in OPTIMIZERS:
        return OPTIMIZERS[name](**params)
    known = mx.optimizer.Optimizer.opt_registry
    if name not in known:
        raise ValueError(
            f"Unknown optimizer {optimizer!r}: use one of "
            f"{', '.join(sorted(set(known) | set(OPTIMIZERS)))}."
        )
    return known[name](**{"multi_precision": True, **params})
