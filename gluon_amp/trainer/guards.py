"""Checks of what users pass to a trainer; each error says what to do instead."""

import math
import weakref
from numbers import Real
from textwrap import shorten
from typing import Any, Dict, Iterable, List, Optional, Union

from gluon_amp.base.dtypes import dtype_name

import mxnet as mx
from mxnet import gluon
from mxnet.ndarray import NDArray


def check_kvstore(
    kvstore: Union[str, mx.kvstore.KVStore, None], update_on_kvstore: Optional[bool]
) -> None:
    """Raise `ValueError` if the kvstore would update, which happens before an overflow is seen."""
    if update_on_kvstore:
        raise ValueError(
            "update_on_kvstore=True would apply gradients before their overflow can be seen: leave "
            "it out, the trainer makes the update."
        )
    if "async" in getattr(kvstore, "type", kvstore or ""):
        raise ValueError(
            "An async kvstore updates on its servers, before an overflow can be seen: use "
            "'dist_sync'."
        )


def check_compression(compression_params: Optional[dict]) -> None:
    """Raise `ValueError` if scaled gradients would be compressed."""
    if compression_params:
        raise ValueError(
            "Gradient compression cuts scaled gradients at a fixed threshold, which hides "
            "overflows and changes meaning with the loss scale: leave compression_params out."
        )


def stored_sparse(parameters: Iterable[gluon.Parameter]) -> bool:
    """Return whether a parameter is stored as row_sparse, which MXNet updates on the kvstore."""
    return any(param._stype != "default" for param in parameters)


def check_dense(parameters: Iterable[gluon.Parameter], caller: str) -> None:
    """Raise `ValueError` if a parameter is stored as row_sparse."""
    if stored_sparse(parameters):
        raise ValueError(
            "Parameters stored as row_sparse are updated on the kvstore, which does not work with "
            f"{caller}: store them dense with row_sparse gradients, as nn.Embedding(..., "
            "sparse_grad=True) does."
        )


def check_overwritten(parameters: Iterable[gluon.Parameter]) -> None:
    """Raise `ValueError` if a parameter adds up gradients by itself, beside `GradientSums`."""
    for param in parameters:
        if param.grad_req == "add":
            raise ValueError(
                f"{param.name} has grad_req='add', which would count its gradients twice: use "
                "grad_req='write' with backward(accumulate=True)."
            )


# The parameters whose arrays are averages now: see `gluon_amp.trainer.ema`.
AVERAGED: "weakref.WeakSet" = weakref.WeakSet()


def check_own_weights(parameters: Iterable[gluon.Parameter]) -> None:
    """Raise `RuntimeError` if the arrays of a parameter are averages now."""
    if AVERAGED and any(param in AVERAGED for param in parameters):
        raise RuntimeError(
            "The net has its averaged weights inside `with ema.applied():`, which can be evaluated "
            "and saved by the net, but not trained, diagnosed, saved by a trainer, or averaged "
            "again: do that after the with block."
        )


def check_params(params: Any, others: Dict[str, Any]) -> None:
    """Raise `TypeError` for a net in place of its parameters, and for unknown arguments."""
    if isinstance(params, gluon.Block):
        raise TypeError(
            "Trainer() got a net, expected its parameters: amp.Trainer(net.collect_params(), ...)."
        )
    for name, value in others.items():
        raise TypeError(
            f"Trainer() has no argument {name!r}: those of the optimizer stand in a dict, as in "
            f"amp.Trainer(net.collect_params(), 'sgd', {{{name!r}: {value!r}}})."
        )


def check_masters(trainer: gluon.Trainer) -> None:
    """Raise `ValueError` if a trainer has updated float16 parameters without masters."""
    if not trainer.optimizer.multi_precision and any(u.states for u in trainer._updaters):
        raise ValueError(
            f"{type(trainer.optimizer).__name__} has multi_precision=False and has updated float16 "
            "parameters already, which lost small updates: build a new trainer."
        )


def check_lbsgd(optimizer: mx.optimizer.Optimizer, has_scale: bool) -> None:
    """Raise `ValueError` if MXNet's LBSGD would mix loss scales, or lose what it has summed."""
    if not isinstance(optimizer, mx.optimizer.LBSGD):
        return
    if optimizer.batch_scale != 1:
        raise ValueError(
            f"LBSGD with batch_scale={optimizer.batch_scale} sums the gradients of several steps "
            "outside its states, across loss scales and unsaved: leave batch_scale out, and "
            "accumulate with trainer.backward(loss, accumulate=True)."
        )
    if has_scale and optimizer.warmup_strategy == "lars":
        raise ValueError(
            "LBSGD with warmup_strategy='lars' computes its rates from the norms of gradients that "
            "carry the loss scale: use the optimizer 'lars', or another warmup_strategy."
        )


def check_unscaled(gradients: Iterable[NDArray]) -> None:
    """Raise `TypeError` if gradients would be divided by the scale in float16."""
    if any(dtype_name(grad.dtype) == "float16" for grad in gradients):
        raise TypeError(
            "unscale() would flush small float16 gradients to zero: clip with "
            "trainer.clip_global_norm(max_norm, batch_size), or keep the parameters in float32 "
            "(policy 'mixed_float16')."
        )


def positive(name: str, number: Union[float, NDArray]) -> float:
    """Return a number, or an array of one, as a float; raise `ValueError` unless it is above 0."""
    if isinstance(number, NDArray) and number.size == 1:
        number = number.asnumpy().item()
    value: Any = number
    if not (isinstance(number, Real) and value > 0):
        raise ValueError(f"{name} must be a number above 0, received {number!r}.")
    return float(value)


def batch_size(number: Union[float, NDArray, None], rescale: float) -> float:
    """Return a batch size as a float; raise `ValueError` unless gradients can be divided by it.

    `rescale` is the optimizer's factor of the gradients, which a user can set.
    """
    if number is None:
        raise TypeError(
            "The batch size is missing: the gradients are divided by it, as in "
            "trainer.step(batch_size); give 1 if the loss is a mean, or to clip the sum."
        )
    size = positive("batch_size", number)
    if size == math.inf or not math.isfinite(rescale / size):
        raise ValueError(
            "The gradients are multiplied by rescale_grad / batch_size, which must be a finite "
            f"number: received {rescale!r} / {size!r}."
        )
    return size


def check_losses(losses: List[Any], scaled: bool = True) -> None:
    """Raise `TypeError` unless there are losses, all of which are arrays.

    If they are `scaled`, they have to be float32 or float64.
    """
    for loss in losses or [[]]:
        if not isinstance(loss, NDArray):
            raise TypeError(
                f"The loss is {shorten(repr(loss), 60)}, expected an NDArray or a list of them: "
                "return what MXNet's operators compute, without asscalar() or asnumpy()."
            )
        if scaled and dtype_name(loss.dtype) not in ("float32", "float64"):
            raise TypeError(
                f"The loss is {dtype_name(loss.dtype)}, in which its sum and the scale overflow: "
                "cast the network's output to float32 before the loss."
            )
