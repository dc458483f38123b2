"""Training with an optimizer, and the same training in float64, by the formulas of the papers."""

import numpy as np
import pytest

from gluon_amp import kernels, optimizer
from gluon_amp.base import host
from gluon_amp.kernels import updates

import mxnet as mx
from mxnet import nd

SHAPES = [(3, 4), (5,), (2, 3, 2)]
NAMES = ["a_weight", "a_bias", "b_weight"]
STEPS = 20
WAYS = ["native", "single", "fused"]


def go(way, monkeypatch):
    """Make optimizers use the C++ kernels, one of MXNet's ops per tensor, or multi-tensor ops."""
    if way == "native" and not kernels.available():
        pytest.skip("the C++ operators cannot be built here")
    if way == "single":
        monkeypatch.setattr(updates, "supported", lambda arrays: False)
    if way == "fused":
        monkeypatch.setattr(host, "_as_on_a_gpu", True)


class Named:
    """The attributes of a Parameter that an optimizer reads."""

    def __init__(self, name, lr_mult=1.0, wd_mult=1.0):
        self.name, self.lr_mult, self.wd_mult = name, lr_mult, wd_mult


def build(name, **params):
    """Return an optimizer whose first parameters have NAMES, and its Updater."""
    built = optimizer.create(name, **params)
    built.param_dict = {i: Named(n) for i, n in enumerate(NAMES)}
    return built, mx.optimizer.get_updater(built)


def gradient(step, index):
    """Return numbers that float16 represents exactly; the first one is always 0."""
    values = np.random.RandomState(1000 * index + step).randint(-64, 65, SHAPES[index]) / 128.0
    values.flat[0] = 0
    return values


def start(index):
    return np.random.RandomState(index).randint(-256, 257, SHAPES[index]) / 256.0


def half_rate(step):
    """Return a learning rate that is halved in the middle of the training."""
    return 0.01 if step < STEPS // 2 else 0.005


def trained(name, dtype="float16", steps=STEPS, rate=half_rate, **params):
    """Return masters (or float32 weights) after training, in float64, and the weights."""
    built, updater = build(name, **params)
    built.param_dict[2].lr_mult, built.param_dict[2].wd_mult = 0.5, 0.25
    weights = [nd.array(start(i), dtype=dtype) for i in range(len(SHAPES))]
    for step in range(steps):
        built.set_learning_rate(rate(step))
        grads = [nd.array(gradient(step, i), dtype=dtype) for i in range(len(SHAPES))]
        updater(list(range(len(SHAPES))), grads, weights)
    values = [updater.states[i][0] if dtype == "float16" else w for i, w in enumerate(weights)]
    return [v.asnumpy().astype(np.float64) for v in values], weights


def sgd(w, g, s, t, name, lr, momentum=0.0, nesterov=False, wd=0.0):
    # MXNet's convention, unlike torch's: the momentum contains the rates of its own steps.
    step = lr * (g + wd * w)
    s["v"] = momentum * s.get("v", 0) - step
    return w + (momentum * s["v"] - step if nesterov else s["v"])


def adam(w, g, s, t, name, lr, wd=0.0, decoupled=False, b1=0.9, b2=0.999, eps=1e-8):
    if decoupled:
        w = w * (1 - lr * wd)
    else:
        g = g + wd * w
    s["m"] = b1 * s.get("m", 0) + (1 - b1) * g
    s["v"] = b2 * s.get("v", 0) + (1 - b2) * g * g
    rate = lr * np.sqrt(1 - b2**t) / (1 - b1**t)
    return w - rate * s["m"] / (np.sqrt(s["v"]) + eps)


def lars(w, g, s, t, name, lr, momentum=0.0, wd=0.0, eta=0.001):
    rate = lr
    if not name.endswith("bias"):
        rate = lr * eta * np.linalg.norm(w) / (np.linalg.norm(g) + wd * np.linalg.norm(w))
    s["v"] = momentum * s.get("v", 0) + rate * (g + wd * w)
    return w - s["v"]


def lamb(w, g, s, t, name, lr, wd=0.0, b1=0.9, b2=0.999, eps=1e-6, upper=np.inf):
    s["m"] = b1 * s.get("m", 0) + (1 - b1) * g
    s["v"] = b2 * s.get("v", 0) + (1 - b2) * g * g
    d = s["m"] / (1 - b1**t) / (np.sqrt(s["v"] / (1 - b2**t)) + eps) + wd * w
    return w - lr * min(np.linalg.norm(w), upper) / np.linalg.norm(d) * d


def reference(rule, rescale=1.0, clip=np.inf, wd=0.0, **params):
    """Return what `trained` does, in float64."""
    result = []
    for index, name in enumerate(NAMES):
        w, state = start(index), {}
        of_rate, of_decay = (0.5, 0.25) if index == 2 else (1, 1)
        for step in range(STEPS):
            g = np.clip(rescale * gradient(step, index), -clip, clip)
            lr = of_rate * half_rate(step)
            w = rule(w, g, state, step + 1, name, lr, wd=of_decay * wd, **params)
        result.append(w)
    return result
