"""A net's parameters: their dtypes, their float32 masters, and changing one into the other."""

import contextlib
from typing import Dict

import numpy as np

from gluon_amp import graph

import mxnet as mx
from mxnet import autograd


def dtype_of(param) -> str:
    """Return the name of a Parameter's dtype, which Gluon keeps as a name or as a class."""
    return graph.dtype_name(param.dtype)


def contexts_of(param) -> list:
    """Return the contexts that a Parameter lives on, or will when its shape is known."""
    if param._deferred_init:
        return list(param._deferred_init[1])
    return list(param._ctx_list or [])


def cast_parameter(param, dtype: str, masters: Dict[str, mx.nd.NDArray]) -> None:
    """Cast a Parameter; one that becomes float32 and has a master takes the master's value."""
    param.cast(dtype)
    param._var = None  # a Parameter keeps its variable, with the old dtype
    if dtype == "float32" and param.name in masters:
        param.set_data(masters[param.name])


def to_plain_layout(param) -> None:
    """Take a parameter out of oneDNN's own layout, in which float32 inference leaves weights.

    oneDNN cannot convert some of these layouts (depthwise convolutions') to bfloat16.
    """
    if param._data is None:
        return
    with autograd.pause():
        param._data = [mx.nd.array(d.asnumpy(), d.context, d.dtype) for d in param._data]
        if param._grad is not None:
            autograd.mark_variables(param._data, param._grad, param.grad_req)


def masters_of(params) -> Dict[str, mx.nd.NDArray]:
    """Return the float32 masters that Trainers hold of these parameters, by name."""
    trainers = {id(p._trainer): p._trainer for p in params if p._trainer is not None}
    masters = {}
    for trainer in trainers.values():
        if hasattr(trainer, "master_params"):
            masters.update(trainer.master_params())
    return masters


@contextlib.contextmanager
def widened(params):
    """Let the parameters be their float32 masters (or themselves in float32) for a while."""
    low = [p for p in params if dtype_of(p) == "float16" and p._data is not None]
    masters = masters_of(low)
    kept = [(p, p._data, p.dtype) for p in low]
    try:
        for p in low:
            wide = masters.get(p.name)
            p._data = [(d if wide is None else wide).astype("float32") for d in p._data]
            p._dtype = np.float32
        yield
    finally:
        for p, data, dtype in kept:
            p._data = data
            p._dtype = dtype
