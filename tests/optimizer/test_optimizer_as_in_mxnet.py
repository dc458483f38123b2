"""Optimizers with the names of MXNet's: signatures, defaults and, update by update, the numbers."""

import inspect

import numpy as np
import pytest

from gluon_amp import Trainer, optimizer

import mxnet as mx
from mxnet import autograd, gluon, nd

STOCK = {
    "sgd": mx.optimizer.SGD,
    "nag": mx.optimizer.NAG,
    "adam": mx.optimizer.Adam,
    "lars": mx.optimizer.LARS,
    "lamb": mx.optimizer.LAMB,
}

SHAPE = (3, 4, 5)


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    """MXNet warns whenever an operator makes sparse arrays dense, thousands of times here."""
    monkeypatch.setenv("MXNET_STORAGE_FALLBACK_LOG_VERBOSE", "0")


# ------------------------------------------------------------------------------ defaults


def test_every_name_that_mxnet_has_is_compared_here():
    own = {"adamw"}
    assert set(STOCK) == {
        n for n in optimizer.OPTIMIZERS if n in mx.optimizer.Optimizer.opt_registry
    }
    assert set(optimizer.OPTIMIZERS) - set(STOCK) == own


@pytest.mark.parametrize("name", STOCK)
def test_constructors_take_the_same_arguments_in_the_same_order(name):
    theirs = inspect.signature(STOCK[name]).parameters.values()
    ours = inspect.signature(optimizer.OPTIMIZERS[name]).parameters.values()
    # what we add can only be given by name
    ours = [parameter for parameter in ours if parameter.kind is not parameter.KEYWORD_ONLY]
    assert ours == list(theirs)


@pytest.mark.parametrize("name", STOCK)
def test_all_settings_have_the_same_defaults_but_multi_precision(name):
    theirs, ours = vars(STOCK[name]()), vars(optimizer.create(name))
    assert ours["multi_precision"]
    assert not theirs["multi_precision"]
    numbers = (bool, int, float, type(None))
    other = {"multi_precision", "aggregate_num", "allow_np_array", "skip"}
    for setting, value in theirs.items():
        if setting not in other and type(value) in numbers:
            assert ours[setting] == value, setting


@pytest.mark.parametrize("name", STOCK)
@pytest.mark.parametrize("given", [{}, {"learning_rate": None}, {"learning_rate": 0.25}])
def test_a_rate_replaces_a_schedulers_base_rate_where_it_does_in_mxnet(name, given):
    ours, theirs = (
        source.create(
            name, lr_scheduler=mx.lr_scheduler.FactorScheduler(10, base_lr=0.5), **given
        ).learning_rate
        for source in (optimizer, mx.optimizer)
    )
    assert ours == theirs
    assert ours == 0.5 or given != {"learning_rate": None}


def test_no_momentum_is_legal_for_nag_and_is_plain_sgd():
    results = []
    for name in ("nag", "sgd"):
        updater = mx.optimizer.get_updater(optimizer.create(name, momentum=0.0, wd=0.1))
        weight = nd.ones((3,), dtype="float16")
        updater(0, nd.ones((3,), dtype="float16"), weight)
        results.append(updater.states[0][0].asnumpy().tolist())
    assert results[0] == results[1]


@pytest.mark.parametrize("kind", ["_weight", "_gamma", "_beta", "_bias"])
@pytest.mark.parametrize("name", STOCK)
def test_the_same_names_have_a_weight_decay(name, kind):
    symbol = mx.sym.var("d" + kind) + mx.sym.var("e" + kind, wd_mult=0.5)
    names = dict(enumerate(symbol.list_arguments()))
    ours, theirs = (
        source.create(name, wd=1.0, param_idx2name=names, sym=symbol)
        for source in (optimizer, mx.optimizer)
    )
    assert ours._get_wds([0, 1]) == theirs._get_wds([0, 1])
    for built in (ours, theirs):
        built.set_wd_mult({"d" + kind: 0.25})
    assert ours._get_wds([0, 1]) == theirs._get_wds([0, 1])


# ------------------------------------------------------------------------------ numbers

# What MXNet's own tests vary: momentum, clip_gradient, rescale_grad and wd, each also left out.
COMMON = [
    {"momentum": momentum, "clip_gradient": clip, "rescale_grad": rescale, "wd": wd}
    for momentum in (None, 0.9)
    for clip, rescale, wd in [
        (None, None, None),
        (0.4, 0.14, 0.03),
        (0.5, 0.8, 0.05),
        (None, 0.8, 0.07),
        (0.4, None, None),
    ]
]
LAZY = ("sgd", "adam", "lars")


def combinations(name):
    """The settings to try for an optimizer, without those that it does not have."""
    for settings in COMMON:
        if name in ("adam", "lamb") and settings.pop("momentum", None):
            continue
        if name == "nag" and settings.get("momentum"):
            settings = {**settings, "wd": None}  # see the test below
        settings = {key: value for key, value in settings.items() if value is not None}
        yield settings
        if name in LAZY:
            yield {**settings, "lazy_update": False}


def stored(values, stype, dtype):
    return nd.array(values, dtype=dtype).tostype(stype)


def random_gradient(random, stype):
    """Values of which, for a sparse one, one row or two are stored."""
    values = random.uniform(-1, 1, SHAPE)
    if stype == "row_sparse":
        values[random.choice(3, random.randint(1, 3), replace=False)] = 0
    return values


STYPES = [
    ("default", "default"),
    ("default", "row_sparse"),
    ("row_sparse", "row_sparse"),
    ("row_sparse", "default"),
]


@pytest.mark.parametrize("weight_stype, grad_stype", STYPES)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("name", STOCK)
def test_three_updates_give_mxnets_weights(name, dtype, weight_stype, grad_stype):
    random = np.random.RandomState(0)
    tolerance = {"rtol": 1e-3, "atol": 2e-5} if dtype == "float16" else {"rtol": 1e-5, "atol": 2e-6}
    for settings in combinations(name):
        settings = {"learning_rate": 0.05, "multi_precision": True, **settings}
        start = random.uniform(0.1, 1, SHAPE)
        weights = [stored(start, weight_stype, dtype) for _ in range(2)]
        updaters = [
            mx.optimizer.get_updater(source.create(name, **settings))
            for source in (optimizer, mx.optimizer)
        ]
        for _ in range(3):
            grad = random_gradient(random, grad_stype)
            for updater, weight in zip(updaters, weights):
                updater(0, stored(grad, grad_stype, dtype), weight)
        ours, theirs = (weight.asnumpy() for weight in weights)
        np.testing.assert_allclose(ours, theirs, err_msg=str(settings), **tolerance)


def test_nag_takes_the_weight_decay_from_the_old_weight():
    # MXNet's operator reads the weight again after it has written it, unless the arrays are sparse.
    random = np.random.RandomState(0)
    start, grads = random.uniform(0.1, 1, SHAPE), random.uniform(-1, 1, (3, *SHAPE))
    settings = {"learning_rate": 0.5, "momentum": 0.9, "wd": 0.5}
    found = {}
    for kind, source, stype in [
        ("ours", optimizer, "default"),
        ("theirs", mx.optimizer, "default"),
        ("theirs, sparse", mx.optimizer, "row_sparse"),
    ]:
        updater = mx.optimizer.get_updater(source.create("nag", **settings))
        weight = stored(start, stype, "float32")
        for grad in grads:
            updater(0, stored(grad, stype, "float32"), weight)
        found[kind] = weight.asnumpy()
    weight, momentum = start, 0
    for grad in grads:
        grad = grad + 0.5 * weight
        momentum = 0.9 * momentum - 0.5 * grad
        weight = weight + 0.9 * momentum - 0.5 * grad
    np.testing.assert_allclose(found["ours"], weight, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found["theirs, sparse"], weight, rtol=1e-5, atol=1e-6)
    assert np.abs(found["theirs"] - weight).max() > 1e-2


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sgd_of_a_csr_weight(momentum):
    values = np.float32([[1, 0, 2], [0, 3, 0]])
    results = []
    for source in (optimizer, mx.optimizer):
        updater = mx.optimizer.get_updater(source.create("sgd", momentum=momentum, wd=0.1))
        weight = nd.array(values).tostype("csr")
        for _ in range(2):
            updater(0, nd.array(values[:, ::-1]).tostype("csr"), weight)
        results.append(weight.asnumpy())
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_decoupled_decay_is_that_of_mxnets_adamw_operator(dtype):
    random = np.random.RandomState(0)
    weight = nd.array(random.uniform(0.1, 1, SHAPE), dtype=dtype)
    theirs, state = weight.astype("float32"), [nd.zeros(SHAPE), nd.zeros(SHAPE)]
    updater = mx.optimizer.get_updater(optimizer.create("adamw", learning_rate=0.05, wd=0.5))
    for step in range(1, 4):
        grad = nd.array(random.uniform(-1, 1, SHAPE), dtype=dtype)
        updater(0, grad, weight)
        rate = 0.05 * np.sqrt(1 - 0.999**step) / (1 - 0.9**step)
        nd.contrib.adamw_update(
            theirs, grad.astype("float32"), *state, 1.0, lr=rate, wd=0.05 * 0.5, eta=1, out=theirs
        )
    tolerance = {"rtol": 2e-3} if dtype == "float16" else {"rtol": 1e-5, "atol": 2e-6}
    np.testing.assert_allclose(weight.asnumpy(), theirs.asnumpy(), **tolerance)


# ------------------------------------------------------------------------------ lazy updates


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("name, lazy", [("sgd", False), ("adam", True), ("adam", False)])
def test_rows_without_a_gradient(name, lazy, dtype):
    built = optimizer.create(name, learning_rate=0.125, wd=0.5, lazy_update=lazy)
    updater = mx.optimizer.get_updater(built)
    weight = nd.ones((3, 2), dtype=dtype)
    updater(0, stored([[0, 0], [1, 1], [0, 0]], "row_sparse", dtype), weight)
    others = weight.asnumpy()[[0, 2]]
    assert (others == 1).all() if lazy else (others < 1).all()
    assert (weight.asnumpy()[1] < 1).all()


def test_the_momentum_of_a_row_without_a_gradient_waits_in_a_lazy_update():
    for lazy, expected in [(True, 0.75), (False, 0.625)]:
        built = optimizer.create("sgd", learning_rate=0.25, momentum=0.5, lazy_update=lazy)
        updater = mx.optimizer.get_updater(built)
        weight = stored([[1.0], [1.0]], "row_sparse", "float32")
        updater(0, stored([[1.0], [0.0]], "row_sparse", "float32"), weight)
        updater(0, stored([[0.0], [1.0]], "row_sparse", "float32"), weight)
        assert weight.asnumpy().tolist() == [[expected], [0.75]]


def test_the_master_follows_a_written_weight_also_in_a_lazy_update():
    trained = gluon.Parameter("p", shape=(2, 1), dtype="float16", grad_stype="row_sparse")
    trained.initialize(mx.init.One())
    trainer = Trainer([trained], "adam", {"learning_rate": 0.125, "epsilon": 0.0}, loss_scale=None)
    for _ in range(2):
        trained.set_data(nd.full((2, 1), 4, dtype="float16"))
        with autograd.record():
            loss = nd.take(trained.data(), nd.array([1])).astype("float32").sum()
        loss.backward()
        trainer.step(1)
    (master,) = trainer.master_params().values()
    np.testing.assert_allclose(master.asnumpy(), [[4], [3.875]], rtol=1e-3)


# ------------------------------------------------------------------------------ LARS


def lars(source, **settings):
    return source.create("lars", learning_rate=0.5, momentum=0.5, **settings)


@pytest.mark.parametrize("correction", [True, False])
def test_lars_corrects_the_momentum_when_the_rate_changes_as_in_mxnet(correction):
    results = []
    for source in (optimizer, mx.optimizer):
        built = lars(source, momentum_correction=correction, wd=0.1)
        updater = mx.optimizer.get_updater(built)
        weights = [nd.ones(SHAPE), nd.full(SHAPE, 2)]
        for rate in (0.5, 0.5, 0.25, 0.25, 1.0, 0.0, 1.0):
            built.lr = rate
            updater([0, 1], [nd.ones(SHAPE), nd.ones(SHAPE)], weights)
        results.append([weight.asnumpy() for weight in weights])
    np.testing.assert_allclose(*results, rtol=1e-6)


def test_lars_corrects_it_on_every_device_and_in_every_dtype_once():
    built = lars(optimizer, eta=1.0)
    updaters = [mx.optimizer.get_updater(built) for _ in range(2)]
    weights = [
        [nd.ones((4,), ctx=mx.cpu(device), dtype=dtype) for dtype in ("float16", "float32")]
        for device in range(2)
    ]
    for rate in (0.5, 0.25, 0.25):
        built.lr = rate
        for updater, own in zip(updaters, weights):
            updater([0, 1], [nd.ones_like(weight) for weight in own], own)
    # |w| = |g| = 2, so the first step is 0.5: 1 -> 0.5. The next has momentum 0.5 * 0.5 and rate
    # 0.25 * 0.5: 0.5 - 0.125 - 0.125. The last one: momentum 0.5, rate 0.25 * 0.25.
    expected = 0.25 - 0.125 - 0.0625
    for own in weights:
        for weight in own:
            np.testing.assert_allclose(weight.asnumpy(), expected, rtol=1e-3)


def test_a_resumed_run_with_lars_knows_the_last_rate():
    def parameter_and_trainer():
        one = gluon.Parameter("p", shape=(4,))
        one.initialize(mx.init.One())
        return one, Trainer([one], lars(optimizer, eta=0.25), loss_scale=None)

    def step(one, trainer, rate):
        trainer.set_learning_rate(rate)
        with autograd.record():
            loss = one.data().sum()
        loss.backward()
        trainer.step(1)

    one, trainer = parameter_and_trainer()
    step(one, trainer, 0.5)
    saved, values = trainer.state_dict(), one.data().copy()
    step(one, trainer, 0.125)
    for used in (False, True):
        other, resumed = parameter_and_trainer()
        if used:  # the trainer has already made a step of its own
            step(other, resumed, 2.0)
        other.set_data(values)
        resumed.set_learning_rate(0.5)
        resumed.load_state_dict(saved)
        step(other, resumed, 0.125)
        assert other.data().asnumpy().tolist() == one.data().asnumpy().tolist()
