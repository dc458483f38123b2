"""Dropout whose backward pass can run again: the same numbers, and the same mask each time."""

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp.graph import to_json
from gluon_amp.graph.runs_once import find_runs_once
from gluon_amp.lowering import lower

import mxnet as mx
from mxnet import autograd, nd
from mxnet.gluon import nn

X = mx.sym.var("x")


def gradients(run, x, times):
    """Return the result on x, and its gradients in several backward passes of one graph."""
    mx.random.seed(7)
    x.attach_grad()
    with autograd.record():
        out = run(x)
        loss = (out * out).sum()
    found = [out.asnumpy()]
    for _ in range(times):
        loss.backward(retain_graph=True)
        found.append(x.grad.asnumpy())
    return found


@pytest.mark.parametrize(
    "attrs", [{"p": 0.3}, {"p": 0.5, "axes": (1,)}, {"p": 0.1, "mode": "always"}]
)
@pytest.mark.parametrize("flags", [(), (("static_alloc", True), ("static_shape", True))])
def test_values_gradients_and_random_numbers_are_those_of_dropout(attrs, flags):
    symbol = mx.sym.Dropout(X * 2, **attrs) + X
    lowered = lower(symbol, {"x": "float32"}, "cpu", scaled=True)
    x = nd.random.normal(shape=(16, 5, 3))
    out, gradient = gradients(nd.CachedOp(symbol, flags), x, 1)
    repeatable = gradients(nd.CachedOp(lowered, flags), x, 3)
    np.testing.assert_array_equal(repeatable[0], out)
    for one in repeatable[1:]:
        np.testing.assert_array_equal(one, gradient)
    if "mode" not in attrs:
        np.testing.assert_array_equal(nd.CachedOp(lowered)(x).asnumpy(), (x * 3).asnumpy())


def test_only_what_may_run_again_changes():
    symbol = mx.sym.Dropout(X)
    for options in ({}, {"scaled": True, "frozen": frozenset("x")}):
        lowered = lower(symbol, {"x": "float32"}, "cpu", **options)
        assert find_runs_once(to_json(lowered), "cpu")
    lowered = lower(symbol, {"x": "float16"}, "gpu", scaled=True)
    assert not find_runs_once(to_json(lowered), "gpu")


@pytest.mark.parametrize("policy, repeats", [("float16", True), ("bfloat16", False)])
def test_a_cast_net(policy, repeats):
    """Under bfloat16 there is no loss scale, and dropout stays as it is."""
    net = nn.HybridSequential()
    net.add(nn.Dense(4, in_units=4), nn.Dropout(0.5))
    net.initialize()
    first, *others = gradients(amp.cast(net, policy), nd.ones((8, 4)), 2)[1:]
    assert np.array_equal(first, others[0]) == repeats
