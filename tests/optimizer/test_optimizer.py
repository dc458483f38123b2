"""All optimizers: the papers' formulas, MXNet's signatures and numbers, and `create`."""

import inspect

import numpy as np
import pytest

from gluon_amp import optimizer
from gluon_amp.optimizer import ExactFloat
from tests.optimizer.reference import (
    SHAPES,
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

LARS = {"momentum": 0.9, "wd": 0.01, "momentum_correction": False}
# Settings of an optimizer, its formula, and what the formula is told
PAPERS = [
    ("sgd", {"wd": 0.01, "clip_gradient": 0.1}, sgd, {"wd": 0.01, "clip": 0.1}),
    ("sgd", {"momentum": 0.9, "wd": 0.01}, sgd, {"momentum": 0.9, "wd": 0.01}),
    ("nag", {"momentum": 0.9, "wd": 0.01}, sgd, {"momentum": 0.9, "nesterov": True, "wd": 0.01}),
    ("adam", {"clip_gradient": 0.1}, adam, {"clip": 0.1}),
    ("adam", {"wd": 0.01}, adam, {"wd": 0.01}),
    ("adamw", {"wd": 0.1}, adam, {"wd": 0.1, "decoupled": True}),
    ("lars", LARS, lars, {"momentum": 0.9, "wd": 0.01}),
    ("lamb", {"wd": 0.01, "clip_gradient": 0.1}, lamb, {"wd": 0.01, "clip": 0.1}),
    ("lamb", {"upper_bound": 0.5}, lamb, {"upper": 0.5}),
]


@pytest.mark.parametrize(("name", "params", "rule", "constants"), PAPERS)
def test_20_steps_equal_the_paper(way, name, params, rule, constants):
    expected = reference(rule, rescale=1 / 3, **constants)
    for dtype in ("float16", "float32"):
        found, weights = trained(name, dtype, rescale_grad=1 / 3, **params)
        for want, have, weight in zip(expected, found, weights):
            np.testing.assert_allclose(have, want, rtol=2e-5, atol=2e-6, err_msg=dtype)
            # and the weight is the master, rounded once
            np.testing.assert_array_equal(weight.asnumpy(), have.astype(np.float32).astype(dtype))


@pytest.mark.parametrize(
    "params", [{"name": "sgd"}, {"name": "sgd", "momentum": 0.9}, {"name": "adam"}]
)
def test_bits_do_not_depend_on_a_compiler(monkeypatch, params):
    # 1/7 and 3e-5 have to arrive in MXNet's ops as the same float32s as in the kernels
    settings = {"rate": lambda step: 3e-5, "wd": 0.01, "rescale_grad": 1 / 7, **params}
    results = []
    for way in ("native", "single"):
        go(way, monkeypatch)
        both = [trained(dtype=dtype, **settings)[0] for dtype in ("float16", "float32")]
        results.append([array.tobytes() for arrays in both for array in arrays])
        monkeypatch.undo()
    assert results[0] == results[1]


def test_any_scale_in_gradients_and_rescale_grad_gives_the_same_bits(way):
    for name in optimizer.OPTIMIZERS:
        results = set()
        for exponent in (0, 3, 8):
            built, updater = build(name, learning_rate=0.01, wd=0.01)
            built.rescale_grad = ExactFloat(1 / 7 / 2.0**exponent)
            weights = [nd.array(start(i), dtype="float16") for i in range(len(SHAPES))]
            for step in range(3):
                grads = [gradient(step, i) * 2.0**exponent for i in range(len(SHAPES))]
                grads = [nd.array(grad, dtype="float16") for grad in grads]
                updater(list(range(len(SHAPES))), grads, weights)
            masters = (updater.states[i][0].asnumpy().tobytes() for i in range(len(SHAPES)))
            results.add(tuple(masters))
        assert len(results) == 1, name


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_all_of_70_parameters_move(way, dtype):
    # more than any multi-tensor operator takes
    for name in optimizer.OPTIMIZERS:
        _, updater = build(name, learning_rate=10.0 if name == "lars" else 0.1)
        weights = [nd.ones((2,), dtype=dtype) for _ in range(70)]
        updater(list(range(70)), [nd.ones((2,), dtype=dtype)] * 70, weights)
        values = {float(v) for w in weights for v in w.asnumpy()}
        # LARS gives the one bias among the names another rate
        assert 1.0 not in values
        assert len(values) == (2 if name == "lars" else 1), name


# ------------------------------------------------------------------------------ as in MXNet

STOCK = [name for name in optimizer.OPTIMIZERS if name != "adamw"]


def test_constructors_take_mxnets_arguments_in_the_same_order_with_the_same_defaults():
    for name in STOCK:
        stock = mx.optimizer.Optimizer.opt_registry[name]
        theirs = inspect.signature(stock).parameters.values()
        ours = inspect.signature(optimizer.OPTIMIZERS[name]).parameters.values()
        # what we add can only be given by name
        ours = [
            parameter.replace(annotation=parameter.empty)
            for parameter in ours
            if parameter.kind is not parameter.KEYWORD_ONLY
        ]
        assert ours == list(theirs)
        numbers = (bool, int, float, type(None))
        other = {"multi_precision", "aggregate_num", "allow_np_array", "skip"}
        for setting, value in vars(stock()).items():
            if setting not in other and type(value) in numbers:
                assert vars(optimizer.create(name))[setting] == value, (name, setting)


def test_a_rate_replaces_a_schedulers_base_rate_where_it_does_in_mxnet():
    for name in STOCK:
        for given in ({}, {"learning_rate": None}, {"learning_rate": 0.25}):
            ours, theirs = (
                source.create(
                    name, lr_scheduler=mx.lr_scheduler.FactorScheduler(9, base_lr=0.5), **given
                )
                for source in (optimizer, mx.optimizer)
            )
            assert ours.learning_rate == theirs.learning_rate


def test_the_same_names_have_a_weight_decay():
    kinds = ("_weight", "_gamma", "_beta", "_bias")
    variables = [mx.sym.var(f"{k}{kind}", wd_mult=k) for kind in kinds for k in (None, 0.5)]
    symbol = mx.sym.Group(variables)
    names = dict(enumerate(symbol.list_arguments()))
    for name in STOCK:
        ours, theirs = (
            source.create(name, wd=1.0, param_idx2name=names, sym=symbol)
            for source in (optimizer, mx.optimizer)
        )
        for multipliers in ({}, {names[0]: 0.25, names[7]: 0.75}):
            for built in (ours, theirs):
                built.set_wd_mult(multipliers)
            assert ours._get_wds(list(names)) == theirs._get_wds(list(names))


def combinations():
    """Yield names of optimizers with settings that they have."""
    clipped = {"clip_gradient": 0.4, "rescale_grad": 0.14, "wd": 0.03}
    momentum = {"momentum": 0.9, **clipped}
    yield from (("sgd", clipped), ("adam", clipped), ("lamb", clipped), ("lars", clipped))
    yield from (("sgd", momentum), ("lars", momentum))
    yield "nag", {**momentum, "wd": 0}  # with a decay MXNet's reads the weight that it has written
    yield from ((name, {"lazy_update": False, **momentum}) for name in ("sgd", "lars"))
    yield "adam", {"lazy_update": False, **clipped}


def random_gradient(random, stype):
    """Return values of which, for a sparse gradient, one row or two are not zero."""
    values = random.uniform(-1, 1, (3, 4, 5))
    if stype == "row_sparse":
        values[random.choice(3, random.randint(1, 3), replace=False)] = 0
    return values


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("grad_stype", ["default", "row_sparse"])
@pytest.mark.parametrize("weight_stype", ["default", "row_sparse"])
def test_three_updates_give_mxnets_weights(monkeypatch, dtype, weight_stype, grad_stype):
    # MXNet warns whenever an operator makes sparse arrays dense
    monkeypatch.setenv("MXNET_STORAGE_FALLBACK_LOG_VERBOSE", "0")
    random = np.random.RandomState(0)
    tolerance = {"rtol": 1e-3, "atol": 2e-5} if dtype == "float16" else {"rtol": 1e-5, "atol": 2e-6}
    for name, settings in combinations():
        settings = {"learning_rate": 0.05, "multi_precision": True, **settings}
        start = nd.array(random.uniform(0.1, 1, (3, 4, 5)), dtype=dtype)
        weights = [start.tostype(weight_stype) for _ in range(2)]
        updaters = [
            mx.optimizer.get_updater(source.create(name, **settings))
            for source in (optimizer, mx.optimizer)
        ]
        for _ in range(3):
            grad = nd.array(random_gradient(random, grad_stype), dtype=dtype)
            for updater, weight in zip(updaters, weights):
                updater(0, grad.tostype(grad_stype), weight)
        ours, theirs = (weight.asnumpy() for weight in weights)
        np.testing.assert_allclose(ours, theirs, err_msg=f"{name} {settings}", **tolerance)


# ------------------------------------------------------------------------------ create


def test_an_unknown_argument_gets_the_near_match():
    for name, argument, meant in [
        ("SGD", "lr", " (did you mean 'learning_rate'?)"),
        ("RMSProp", "weight_decay", " (did you mean 'wd'?)"),  # an optimizer of MXNet's
        ("Adam", "betas", " (did you mean 'beta1' or 'beta2'?)"),
        ("NAG", "nonsense", ""),
    ]:
        with pytest.raises(TypeError) as caught:
            optimizer.create(name, **{argument: 0.1})
        start = f"{name} has no argument {argument!r}{meant}: expected begin_num_update, "
        assert str(caught.value).startswith(start)


def test_names_are_ours_and_mxnets_own_are_not_overridden():
    assert type(mx.optimizer.create("sgd")) is mx.optimizer.SGD
    assert type(mx.optimizer.create("amp_adam")) is optimizer.Adam
    assert type(optimizer.create("Adam")) is optimizer.Adam
    assert optimizer.create("rmsprop").multi_precision
    with pytest.raises(ValueError, match=r"Unknown optimizer 'adma'.*: use one of .*adamw"):
        optimizer.create("adma")
