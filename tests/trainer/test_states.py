"""Trainer states: every optimizer resumes, and they go between dtypes, devices and trainers."""

import pickle
import warnings

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp import DynamicLossScale, Trainer
from tests.trainer.helpers import TWO, losses_on, parameter, run, values

import mxnet as mx
from mxnet import gluon, npx
from mxnet.gluon import nn

inf = np.inf

# ------------------------------------------------------------------------------ every optimizer

# Each optimizer that MXNet knows by name, with the options that give it more state. Other tests may
# register their own.
OPTIONS = {
    "momentum": ("sgd", "nag", "lars", "lbsgd", "ccsgd"),  # MXNet's DCASGD fails with it
    "clip_gradient": ("adam", "ftrl", "nadam", "dcasgd", "groupadagrad"),
    "centered": ("rmsprop",),
    "wd_lh": ("signum",),
}
VALUES = {"momentum": 0.9, "clip_gradient": 0.5, "centered": True, "wd_lh": 0.1}
NAMES = [
    name
    for name, kind in sorted(mx.optimizer.Optimizer.opt_registry.items())
    if kind.__module__.startswith(("mxnet.", "gluon_amp."))
]
FACTORS = [[0.5, 0.25, -0.125, 1]], [[0.25, 0.5, 1, -0.5]]


def build(name, dtype="float16"):
    p = parameter("p", [[0.5, -0.25, 1 / 3, 2]], dtype)
    # GroupAdaGrad has no weight decay.
    settings = {"learning_rate": 0.01, "wd": 0.0 if name == "groupadagrad" else 0.01}
    settings.update({key: VALUES[key] for key, names in OPTIONS.items() if name in names})
    return p, Trainer([p], name, settings, loss_scale=1)


def train(p, trainer, scales, start=0):
    """Return the master after one step at each scale."""
    mx.random.seed(start)  # SGLD adds noise
    for number, scale in enumerate(scales, start):
        trainer.loss_scale.scale = scale
        assert run(trainer, [(p, FACTORS[number % 2])]).applied
    return trainer.master_params()["p"].asnumpy().copy()


@pytest.mark.parametrize("name", NAMES)
def test_any_scales_give_the_same_bits_and_a_state_continues(name, path):
    p, trainer = build(name)
    middle = train(p, trainer, [64, 8])
    trainer.save_states(path)
    uninterrupted = train(p, trainer, [1, 128], start=2)
    if name != "sgld":  # whose noise is another after a new seed
        np.testing.assert_array_equal(uninterrupted, train(*build(name), [1, 1, 1, 1]))
    p, trainer = build(name)
    p.set_data(mx.nd.array(middle).astype("float16"))
    trainer.load_states(path)
    np.testing.assert_array_equal(train(p, trainer, [1, 128], start=2), uninterrupted)


@pytest.mark.parametrize("settings", [{"batch_scale": 2}, {"warmup_strategy": "lars"}])
def test_an_lbsgd_that_mixes_scales_is_refused(settings):
    p = parameter("p", [1.0])
    match = r"^LBSGD with (batch_scale=2|warmup_strategy='lars').*\.$"
    with pytest.raises(ValueError, match=match):
        Trainer([p], "lbsgd", settings, loss_scale=64)
    if "batch_scale" in settings:
        with pytest.raises(ValueError, match=match):
            Trainer([p], "lbsgd", settings, loss_scale=None)
    else:
        Trainer([p], "lbsgd", settings, loss_scale=None)


# ------------------------------------------------------------------------------ other trainers


def trained(trainer, p, steps=3):
    for step in range(steps):
        run(trainer, [(p, [0.5 + step, -0.25])])
    return trainer


SETTINGS = {"learning_rate": 2.0**-8}


@pytest.mark.parametrize("name", ["sgd", "adam", "rmsprop"])
@pytest.mark.parametrize(
    "origin, to", [("float16", "float16"), ("float16", "float32"), ("float32", "float16")]
)
def test_states_go_from_one_dtype_to_another(path, name, origin, to):
    p = parameter("p", [1.0, 2.0], origin)
    trainer = trained(Trainer([p], name, SETTINGS, loss_scale=DynamicLossScale(16)), p)
    trainer.save_states(path)
    q = parameter("q", values(p).astype("float16"), to)
    other = Trainer([q], name, SETTINGS, loss_scale="dynamic")
    other.load_states(path)
    if origin == "float16":
        # the masters' bits are not lost, where they were saved
        np.testing.assert_array_equal(
            other.master_params()["q"].asnumpy(), trainer.master_params()["p"].asnumpy()
        )
    for one, param in ((trainer, p), (other, q)):
        trained(one, param, 2)
        assert one.loss_scale.finite_steps == 5
    np.testing.assert_allclose(values(q), values(p), rtol=2e-3)
    assert other.optimizer.num_update == 5


def test_states_on_two_devices(path):
    p = parameter("p", [1.0, 2.0])
    trainer = trained(Trainer([p], "adam", SETTINGS), p)
    trainer.save_states(path)
    q = parameter("q", values(p), ctx=TWO)
    other = Trainer([q], "adam", SETTINGS)
    other.load_states(path)
    other.backward(losses_on(q, (0.5, 0.5), TWO))
    other.step(2)
    run(trainer, [(p, [0.5, 0.5])])
    for data in q.list_data():
        np.testing.assert_array_equal(data.asnumpy(), values(p))


@pytest.mark.parametrize("kind, other", [("nd", "np"), ("np", "nd")])
def test_parameters_of_one_kind_and_their_trainer_in_the_mode_of_the_other(path, kind, other):
    modes = {"nd": npx.reset_np, "np": npx.set_np}
    try:
        modes[kind]()
        params = [parameter(name, [1.0, 2.0]) for name in "pq"]
        arrays = type(params[0].data())
        modes[other]()
        trainers = [Trainer([one], "rmsprop", loss_scale=8) for one in params]
        modes[kind]()
        run(trainers[0], [(params[0], [0.5, 1.0])], step=False)
        modes[other]()
        assert trainers[0].step(1).applied
        trainers[0].save_states(path)
        params[1].set_data(params[0].data())
        trainers[1].load_states(path)
        wide = []
        for p, trainer in zip(params, trainers):
            p.data()[0] = 4.0  # a write that the masters follow
            wide += trainer.master_params().values()
        assert {type(master) for master in wide} == {arrays}
        first, second = (master.asnumpy().tolist() for master in wide)
        assert first == second and first[0] == 4.0 > 2.0 > first[1]
    finally:
        npx.reset_np()


def test_states_find_their_layers_when_the_counters_in_names_have_grown(path):
    """As text 'dense10' comes before 'dense9'."""

    def two_layers(first):
        net = nn.HybridSequential()
        for k in (first, first + 1):
            net.add(nn.Dense(1, in_units=1, use_bias=False, prefix=f"dense{k}_"))
        net.initialize(mx.init.One())
        amp.cast(net, "float16")
        return net, Trainer(net.collect_params(), "sgd", {"momentum": 0.9}, loss_scale=1)

    (net, trainer), (_, again) = two_layers(8), two_layers(9)
    net[1].weight.set_data(mx.nd.array([[2]]))
    run(trainer, [(net[0].weight, [[1]]), (net[1].weight, [[3]])])
    trainer.save_states(path)
    again.load_states(path)
    states = again.updaters[0].states
    assert [states[k][1].asnumpy().item() for k in (0, 1)] == [
        pytest.approx(-0.01),
        pytest.approx(-0.03),
    ]
    assert [param.name for param in again.parameters] == ["dense9_weight", "dense10_weight"]


# ------------------------------------------------------------------------------ masters


def test_an_earlier_state_is_loaded_exactly_though_it_is_the_rounding_of_a_later_one(path):
    p = parameter("p", [1.0])
    trainer = Trainer([p], "sgd", {"learning_rate": 2.0**-14, "momentum": 0.5}, loss_scale=64)
    run(trainer, [(p, [1.0])])
    trainer.save_states(path)
    run(trainer, [(p, [1.0])])
    assert trainer.master_params()["p"].asnumpy() == 1 - 2.5 * 2.0**-14
    trainer.load_states(path)
    assert trainer.master_params()["p"].asnumpy() == 1 - 2.0**-14


@pytest.mark.parametrize("order", ["pl", "lp", "plp"])
def test_stock_states_without_masters_round_none(order, tmp_path):
    paths = {"p": str(tmp_path / "p"), "l": str(tmp_path / "l")}
    stock = nn.Dense(1, in_units=2, use_bias=False)
    stock.initialize(mx.init.Constant(1 / 3))
    gluon.Trainer(stock.collect_params(), "sgd", {"momentum": 0.5}).save_states(paths["l"])
    stock.save_parameters(paths["p"])
    net = nn.Dense(1, in_units=2, use_bias=False)
    net.initialize()
    amp.cast(net, "float16")
    trainer = Trainer(net.collect_params(), "sgd", {"momentum": 0.5}, loss_scale=64)
    for what in order:
        {"p": net.load_parameters, "l": trainer.load_states}[what](paths[what])
    (master,) = trainer.master_params().values()
    np.testing.assert_array_equal(master.asnumpy(), values(stock.weight))


# ------------------------------------------------------------------------------ what does not fit


def test_a_setting_that_differs_is_kept_with_a_warning(path):
    p = parameter("p", [1.0])
    settings = {"learning_rate": 0.5, "wd": 0.1, "momentum": 0.9}
    Trainer([p], "sgd", settings).save_states(path)
    other = Trainer([p], "sgd", {**settings, "learning_rate": 0.25})
    with pytest.warns(UserWarning, match=r"had lr=0\.5; this trainer keeps its 0\.25\.") as caught:
        other.load_states(path)
    assert len(caught) == 1
    assert other.learning_rate == 0.25
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Trainer([p], "sgd", settings).load_states(path)


@pytest.mark.parametrize(
    "build, message",
    [
        (lambda p: Trainer([p], "adam"), "build the trainer with the same optimizer"),
        (lambda p: Trainer([p], mx.optimizer.SGD(multi_precision=True)), "same optimizer"),
        (lambda p: Trainer([p], "sgd", loss_scale=8), "kind of loss scale"),
        (
            lambda p: Trainer([p, parameter("q", [1.0])], "sgd"),
            "not those of the 2 of this trainer",
        ),
        (lambda p: Trainer([parameter("q", [1.0, 2.0])], "sgd"), "not those of the 1 of this"),
    ],
)
def test_states_of_something_else_are_refused(path, build, message):
    p = parameter("p", [1.0])
    Trainer([p], "sgd", loss_scale=DynamicLossScale(8)).save_states(path)
    other = build(p)
    before = pickle.dumps(other.state_dict())
    with pytest.raises(ValueError, match=message):
        other.load_states(path)
    assert pickle.dumps(other.state_dict()) == before
