"""All optimizers: against float64 references of the papers, limits, masters, names."""

import numpy as np
import pytest

from gluon_amp import optimizer
from gluon_amp.optimizer import ExactFloat
from gluon_amp.optimizer.adam import ADAMW_LIMIT
from gluon_amp.optimizer.base import SGD_LIMIT
from gluon_amp.optimizer.large_batch import LAMB_LIMIT
from tests.optimizer.reference import (
    SHAPES,
    WAYS,
    Named,
    adam,
    build,
    go,
    gradient,
    lamb,
    lars,
    reference,
    sgd,
    start,
    trained,
)

import mxnet as mx
from mxnet import nd

CASES = [
    ("sgd", {}, sgd, {}),
    ("sgd", {"momentum": 0.9}, sgd, {"momentum": 0.9}),
    ("sgd", {"momentum": 0.9, "wd": 0.01}, sgd, {"momentum": 0.9, "wd": 0.01}),
    ("sgd", {"momentum": 0.9, "nesterov": True}, sgd, {"momentum": 0.9, "nesterov": True}),
    ("nag", {"momentum": 0.9, "wd": 0.01}, sgd, {"momentum": 0.9, "nesterov": True, "wd": 0.01}),
    ("nag", {"wd": 0.01}, sgd, {"wd": 0.01}),
    ("adam", {}, adam, {}),
    ("adam", {"wd": 0.01}, adam, {"wd": 0.01}),
    ("adamw", {"wd": 0.1}, adam, {"wd": 0.1, "decoupled": True}),
    ("adamw", {"wd": 0.0}, adam, {}),
    ("lars", {"momentum": 0.9, "wd": 0.01}, lars, {"momentum": 0.9, "wd": 0.01}),
    ("lars", {"wd": 0.01}, lars, {"wd": 0.01}),
    ("lamb", {"wd": 0.01}, lamb, {"wd": 0.01}),
    ("lamb", {"upper_bound": 0.5}, lamb, {"upper": 0.5}),
]


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize(("name", "params", "rule", "constants"), CASES)
def test_50_steps_equal_the_paper(way, name, params, rule, constants, dtype):
    lr = 0.01
    expected = reference(rule, rescale=0.5, lr=lr, **constants)
    found, weights = trained(name, dtype, learning_rate=lr, rescale_grad=0.5, **params)
    for want, have, weight in zip(expected, found, weights):
        np.testing.assert_allclose(have, want, rtol=2e-5, atol=2e-6)
        # and the weight is the master, rounded once
        np.testing.assert_array_equal(weight.asnumpy(), have.astype(np.float32).astype(dtype))


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize(("name", "rule"), [("sgd", sgd), ("adam", adam), ("lamb", lamb)])
def test_clip_gradient_works_on_the_rescaled_gradient(way, name, rule, dtype):
    expected = reference(rule, rescale=0.5, clip=0.1, lr=0.01)
    found, _ = trained(name, dtype, learning_rate=0.01, rescale_grad=0.5, clip_gradient=0.1)
    for want, have in zip(expected, found):
        np.testing.assert_allclose(have, want, rtol=2e-5, atol=2e-6)


def test_a_changed_rate_leaves_the_velocity_alone(way):
    # MXNet's convention, unlike torch's: the velocity is in units of steps, lr included.
    def rates(step):
        return 0.01 if step < 25 else 0.0025

    def rule(w, g, s, t, name):
        s["v"] = 0.9 * s.get("v", 0) + rates(t - 1) * g
        return w - s["v"]

    expected = reference(rule)
    found, _ = trained("sgd", learning_rate=0.01, momentum=0.9, lr=rates)
    for want, have in zip(expected, found):
        np.testing.assert_allclose(have, want, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("name", list(optimizer.OPTIMIZERS))
def test_all_ways_through_an_optimizer_give_the_same_numbers(monkeypatch, name, dtype):
    results = []
    for way in WAYS:
        go(way, monkeypatch)
        results.append(trained(name, dtype, learning_rate=0.01, rescale_grad=0.25, wd=0.01)[0])
        monkeypatch.undo()
    for kernel, single, together in zip(*results):
        np.testing.assert_allclose(single, together, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(kernel, together, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize(
    ("name", "params"),
    [("sgd", {}), ("sgd", {"momentum": 0.9}), ("nag", {"momentum": 0.9}), ("adam", {})],
)
def test_bits_do_not_depend_on_a_compiler(monkeypatch, name, params, dtype):
    # 1/7 and 3e-5 have to arrive in MXNet's ops as the same float32s as in the kernels
    settings = {"learning_rate": 3e-5, "wd": 0.01, "rescale_grad": 1 / 7, **params}
    results = []
    for way in ("native", "single"):
        go(way, monkeypatch)
        results.append(trained(name, dtype, **settings)[0])
        monkeypatch.undo()
    for kernel, single in zip(*results):
        np.testing.assert_array_equal(kernel, single)


@pytest.mark.parametrize(
    ("name", "params"),
    [("sgd", {"momentum": 0.9, "wd": 0.01}), ("adam", {"wd": 0.01}), ("lamb", {"wd": 0.01})],
)
def test_float32_numbers_are_those_of_mxnets_own_optimizer(name, params):
    theirs = mx.optimizer.create(name, learning_rate=0.01, **params)
    updater = mx.optimizer.get_updater(theirs)
    weights = [nd.array(start(i)) for i in range(len(SHAPES))]
    for step in range(20):
        for i, weight in enumerate(weights):
            updater(i, nd.array(gradient(step, i)), weight)
    found, _ = trained(name, "float32", steps=20, learning_rate=0.01, **params)
    for want, have in zip(weights, found):
        np.testing.assert_allclose(have, want.asnumpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("name", "lr"), [("sgd", 0.05), ("adam", 0.01)])
def test_20_steps_in_float16_follow_float32_to_float16_accuracy(name, lr):
    halves, _ = trained(name, "float16", steps=20, learning_rate=lr, wd=0.01)
    singles, _ = trained(name, "float32", steps=20, learning_rate=lr, wd=0.01)
    for half, single in zip(halves, singles):
        np.testing.assert_allclose(half, single, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("name", "argument", "meant"),
    [
        ("sgd", "lr", " (did you mean 'learning_rate'?)"),
        ("rmsprop", "weight_decay", " (did you mean 'wd'?)"),  # an optimizer of MXNet's
        ("adam", "eps", " (did you mean 'epsilon'?)"),
        ("adam", "betas", " (did you mean 'beta1' or 'beta2'?)"),
        ("lamb", "learning_rat", " (did you mean 'learning_rate'?)"),
        ("nag", "nonsense", ""),
    ],
)
def test_an_unknown_argument_gets_the_near_match(name, argument, meant):
    kind = type(optimizer.create(name)).__name__
    with pytest.raises(TypeError) as caught:
        optimizer.create(name, **{argument: 0.1})
    start = f"{kind} has no argument {argument!r}{meant}: expected begin_num_update, "
    assert str(caught.value).startswith(start)


@pytest.mark.parametrize("name", list(optimizer.OPTIMIZERS))
def test_any_scale_in_gradients_and_rescale_grad_gives_the_same_bits(way, name):
    results = []
    for exponent in (0, 3, 8):
        built, updater = build(name, learning_rate=0.01, wd=0.01)
        built.rescale_grad = ExactFloat(1 / 7 / 2.0**exponent)
        weights = [nd.array(start(i), dtype="float16") for i in range(len(SHAPES))]
        for step in range(5):
            grads = [
                nd.array(gradient(step, i) * 2.0**exponent, dtype="float16")
                for i in range(len(SHAPES))
            ]
            updater(list(range(len(SHAPES))), grads, weights)
        results.append([updater.states[i][0].asnumpy().tobytes() for i in range(len(SHAPES))])
    assert results[0] == results[1] == results[2]


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw", "lamb"])
@pytest.mark.parametrize("around", [-1, 0, 1])
def test_lists_around_the_ops_limits(way, name, around):
    limit = {"sgd": SGD_LIMIT, "lamb": LAMB_LIMIT}.get(name, ADAMW_LIMIT)
    _, updater = build(name, learning_rate=0.5, wd=0.0)
    weights = [nd.ones((1,), dtype="float16") for _ in range(limit + around)]
    updater(list(range(len(weights))), [nd.ones((1,), dtype="float16")] * len(weights), weights)
    assert {float(w.asscalar()) for w in weights} == {0.5}


def test_lr_and_wd_multipliers_count(way):
    for name in optimizer.OPTIMIZERS:
        built, updater = build(name, learning_rate=0.1, wd=0.1)
        built.param_dict = {0: Named("w", lr_mult=0.0), 1: Named("w"), 2: Named("w", wd_mult=0.0)}
        weights = [nd.ones((4,), dtype="float16") for _ in range(3)]
        updater([0, 1, 2], [nd.full((4,), 0.5, dtype="float16")] * 3, weights)
        masters = [float(updater.states[i][0].asnumpy()[0]) for i in range(3)]
        assert masters[0] == 1
        assert masters[1] < 1
        assert masters[2] < 1
        # a lone layer's trust ratio can hide the decay; Adam's first step has size lr either way
        if name in ("sgd", "nag", "adamw"):
            assert masters[1] < masters[2]


@pytest.mark.parametrize("name", list(optimizer.OPTIMIZERS))
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_all_of_130_parameters_move(way, name, dtype):
    _, updater = build(name, learning_rate=10.0 if name == "lars" else 0.1)
    weights = [nd.ones((2,), dtype=dtype) for _ in range(130)]
    updater(list(range(130)), [nd.ones((2,), dtype=dtype)] * 130, weights)
    values = {float(v) for w in weights for v in w.asnumpy()}
    # LARS gives the one bias among the names another rate
    assert 1.0 not in values
    assert len(values) == (2 if name == "lars" else 1)


@pytest.mark.parametrize("name", list(optimizer.OPTIMIZERS))
def test_masters_and_not_the_weights_carry_an_update_of_1e_8(name):
    # LARS and LAMB multiply the rate by a layer's norm, here 1/16 · 1/1000 and 1/16
    lr = {"lars": 1.6e-4, "lamb": 1.6e-7}.get(name, 1e-8)
    _, updater = build(name, learning_rate=lr)
    weight = nd.full((4,), 0.0625, dtype="float16")
    for _ in range(4):
        updater([0], [nd.ones((4,), dtype="float16")], [weight])
    master = updater.states[0][0].asnumpy()
    assert master.dtype == np.float32
    assert (weight.asnumpy() == 0.0625).all()
    assert ((master < 0.0625) & (master > 0.0624)).all()


def test_fairseq_example_weight_3_becomes_3_0996_and_its_master_3_1():
    _, updater = build("sgd", learning_rate=1.0)
    weight = nd.array([3.0], dtype="float16")
    updater([0], [nd.array([-0.1], dtype="float16")], [weight])
    assert weight.asnumpy()[0] == np.float16(3.0996)
    np.testing.assert_allclose(updater.states[0][0].asnumpy(), 3.1, rtol=1e-5)


def test_a_tiny_gradient_survives_in_rescale_grad():
    # 1e-8 unscaled in float16 would be 0
    _, updater = build("sgd", learning_rate=100.0, rescale_grad=1 / 65536)
    weight = nd.zeros((1,), dtype="float16")
    updater([0], [nd.array([65536e-8], dtype="float16")], [weight])
    np.testing.assert_allclose(updater.states[0][0].asnumpy(), -1e-6, rtol=1e-3)


def test_mxnets_own_names_are_not_overridden():
    assert type(mx.optimizer.create("sgd")) is mx.optimizer.SGD
    assert type(mx.optimizer.create("amp_adam")) is optimizer.Adam
    assert type(optimizer.create("Adam")) is optimizer.Adam
    assert optimizer.create("rmsprop").multi_precision


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"Unknown optimizer 'adma': use one of .*adamw"):
        optimizer.create("adma")


def test_nesterov_without_momentum_is_refused():
    with pytest.raises(ValueError, match="momentum must be above 0 for nesterov"):
        optimizer.SGD(nesterov=True)
