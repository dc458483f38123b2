"""Trainers whose states are saved, stock and our own."""

import pytest

from gluon_amp import DynamicLossScale, Trainer

import mxnet as mx
from mxnet import autograd, gluon, nd

SHAPES = [(2, 3), (3,), (1,)]


def parameters(dtype="float32", contexts=None, names="abc"):
    params = []
    for name, shape in zip(names, SHAPES):
        param = gluon.Parameter(name, shape=shape, dtype=dtype, init=mx.init.One())
        param.initialize(ctx=contexts or mx.cpu())
        params.append(param)
    return params


def train(trainer, steps=3):
    """Train all parameters to different values, with gradients that are exact in float16."""
    contexts = trainer._params[0].list_ctx()
    for step in range(steps):
        losses = []
        with autograd.record():
            for context in contexts:
                losses += [
                    ((p.data(context).astype("float32") - 0.25 * k - step) ** 2).sum()
                    for k, p in enumerate(trainer._params)
                ]
        if isinstance(trainer, Trainer):
            trainer.backward(losses)
        else:
            autograd.backward(losses)
        trainer.step(4 * len(contexts))
    return trainer


def weights(trainer):
    return [p.list_data()[0].asnumpy() for p in trainer._params]


def leaves(state):
    """Return all arrays of a state, in order."""
    if isinstance(state, (tuple, list)):
        return [leaf for item in state for leaf in leaves(item)]
    if isinstance(state, dict):
        return [leaf for key in sorted(state) for leaf in leaves(state[key])]
    return [] if state is None else [state.asnumpy() if isinstance(state, nd.NDArray) else state]


def refuse(trainer, path, match=None):
    """Assert that loading a file raises one sentence, and changes nothing."""
    before = repr(trainer.state_dict())
    with pytest.raises(ValueError, match=match) as caught:
        trainer.load_states(path)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 1000
    assert repr(trainer.state_dict()) == before


def own(optimizer="sgd", dtype="float16", **settings):
    settings = settings or ({"momentum": 0.5} if optimizer == "sgd" else {})
    scale = DynamicLossScale(16, growth_interval=4)
    return Trainer(parameters(dtype), optimizer, settings, loss_scale=scale)


def stock_trainer(optimizer, dtype="float32", contexts=None, **settings):
    settings = {"learning_rate": 2.0**-6, **settings}
    if dtype == "float16":
        settings["multi_precision"] = True
    return gluon.Trainer(parameters(dtype, contexts), optimizer, settings)
