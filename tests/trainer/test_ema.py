"""Averaged weights: timm's rule over the masters, and a net that computes with them for a while."""

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp.optimizer.masters import held_masters
from gluon_amp.trainer.ema import EMA
from tests import kinds
from tests.trainer.helpers import TWO, backward

import mxnet as mx
from mxnet import autograd, gluon
from mxnet.gluon import nn

IMAGES = np.random.RandomState(0).uniform(-1, 1, (4, 3, 6, 6)).astype(np.float32)
DECAY = 0.9


def make_net(policy="float16", ctx=None):
    net = nn.HybridSequential()
    net.add(nn.Conv2D(4, 3), nn.BatchNorm(), nn.Activation("relu"), nn.Dense(3))
    net.initialize(mx.init.Xavier(), ctx=ctx)
    return amp.cast(net, policy)


def make(policy="float16", ctx=None, decay=DECAY):
    """Return a net, its trainer and its average."""
    net = make_net(policy, ctx)
    settings = {"learning_rate": 0.05, "momentum": 0.9}
    scale = amp.DynamicLossScale(2.0**10)
    trainer = amp.Trainer(net.collect_params(), "sgd", settings, loss_scale=scale)
    return net, trainer, EMA(net, trainer, decay)


def record(net, factor=1.0):
    """Return a loss of each device; a factor of 1e39 lets its gradients overflow."""
    devices = next(iter(net.collect_params().values())).list_ctx()
    with autograd.record():
        return [(net(kinds.array(IMAGES, ctx=c)) ** 2).sum() * factor for c in devices]


def step(net, trainer, factor=1.0):
    trainer.backward(record(net, factor))
    return trainer.step(4)


def output(net, ctx=None):
    return net(kinds.array(IMAGES, ctx=ctx)).asnumpy()


def masters(net, trainer):
    """Return the float32 values of the trained parameters."""
    names = [p.name for p in net.collect_params().values() if p.grad_req != "null"]
    values = trainer.master_params()
    return {name: values[name].asnumpy() for name in names}


def averages(ema):
    return {name: array.asnumpy() for name, array in ema.averages.items()}


def assert_equal(one, other):
    assert one.keys() == other.keys() and one
    for name in one:
        assert one[name].dtype == np.float32
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


def mixed(old, new, decay):
    """Return the average by timm's rule, with factors that add up to exactly 1."""
    share = np.float32(1 - float(np.float32(decay)))
    return {name: (1 - share) * old[name] + share * new[name] for name in old}


def content(net, trainer):
    """Return the bits of what an evaluation must not change, and the parameters' arrays."""
    params = net.collect_params().values()
    arrays = [a for p in params for a in p.list_data()]
    gradients = [g for p in params if p.grad_req != "null" for g in p.list_grad()]
    held = [master for p in params for master in held_masters(p)]
    everything = [*arrays, *gradients, *held, *trainer.master_params().values()]
    values = [array.asnumpy().tobytes() for array in everything]
    return values, list(map(id, arrays)), repr(trainer.state_dict())


@pytest.mark.parametrize("policy", ["float16", "mixed_float16", "bfloat16", "float32"])
def test_applied_steps_advance_it_and_skipped_ones_do_not(policy, arrays):
    net, trainer, ema = make(policy)
    record(net)  # the initialization was deferred
    expected, applied = masters(net, trainer), []
    for factor in (1, 1e39, 1, 1):
        applied.append(step(net, trainer, factor).applied)
        if applied[-1]:
            expected = mixed(expected, masters(net, trainer), DECAY)
        assert_equal(averages(ema), expected)
    assert applied == [True, False, True, True]
    assert isinstance(next(iter(ema.averages.values())), mx.np.ndarray) == (arrays is mx.np)


@pytest.mark.parametrize("decay", [0.9999, 0.5, 1 / 3, 0.001])
def test_the_rule_is_timms_and_a_constant_weight_is_its_own_average(decay):
    net = nn.Dense(1, in_units=999, use_bias=False)
    net.initialize(mx.init.Normal(1))
    trainer = amp.Trainer(net.collect_params(), "sgd", {"learning_rate": 1.0})
    ema, before = EMA(net, trainer, decay), masters(net, trainer)
    assert_equal(averages(ema), before)
    backward(trainer, net, mx.nd.random.normal(shape=(1, 999)))
    trainer.step(1)
    assert_equal(averages(ema), mixed(before, masters(net, trainer), decay))
    trainer.set_learning_rate(0.0)
    ema.load(masters(net, trainer))
    for _ in range(1000):
        backward(trainer, net, mx.nd.ones((1, 999)))
        trainer.step(1)
    for name, weight in masters(net, trainer).items():
        np.testing.assert_allclose(averages(ema)[name], weight, rtol=2e-5)


@pytest.mark.parametrize("policy", ["float16", "mixed_float16", "float32"])
@pytest.mark.parametrize("flags", [None, {}, {"static_alloc": True, "static_shape": True}])
def test_applied_computes_with_the_average_and_changes_nothing(policy, flags, arrays):
    net, trainer, ema = make(policy, ctx=TWO)
    if flags is not None:
        net.hybridize(**flags)
    step(net, trainer)
    step(net, trainer)
    expected, before, own = averages(ema), content(net, trainer), output(net)
    pending = record(net)
    with pytest.raises(KeyError), ema.applied():
        outputs = [output(net, c) for c in TWO]
        net(kinds.array(IMAGES)).wait_to_read()
        with autograd.record():  # a training pass writes statistics
            net(kinds.array(IMAGES))
        net[3].bias.set_data(kinds.array([7, 7, 7]))
        raise KeyError
    assert content(net, trainer) == before
    np.testing.assert_array_equal(output(net), own)
    assert_equal(averages(ema), expected)
    averaged = make_net(policy)
    averaged(kinds.array(IMAGES))
    for param, other in zip(net.collect_params().values(), averaged.collect_params().values()):
        other.set_data(kinds.array(expected.get(param.name, param.data(TWO[0]).asnumpy())))
    for one in outputs:
        np.testing.assert_array_equal(one, output(averaged))
    assert (outputs[0] != own).any()
    trainer.backward(pending)  # the weights of its forward pass are here again
    assert trainer.step(4).applied
    assert (output(net) != own).any()


@pytest.mark.parametrize("policy", ["float16", "mixed_float16"])
def test_stock_mxnet_loads_the_average_that_the_net_saved(policy, arrays, tmp_path):
    net, trainer, ema = make(policy)
    step(net, trainer)
    own = masters(net, trainer)
    output(net)
    with ema.applied():
        averaged = output(net)
        net.save_parameters(str(tmp_path / "average"))
        net.export(str(tmp_path / "exported"))
    assert_equal(masters(net, trainer), own)
    expected, paths = averages(ema), net._collect_params_with_prefix()
    stock = nn.HybridSequential()
    stock.add(nn.Conv2D(4, 3), nn.BatchNorm(), nn.Activation("relu"), nn.Dense(3))
    stock.load_parameters(str(tmp_path / "average"))
    loaded = {
        paths[path].name: param.data().asnumpy()
        for path, param in stock._collect_params_with_prefix().items()
        if paths[path].name in expected
    }
    assert_equal(loaded, expected)
    assert any((value != value.astype("float16")).any() for value in loaded.values())
    files = [str(tmp_path / f"exported-{name}") for name in ("symbol.json", "0000.params")]
    exported = gluon.SymbolBlock.imports(files[0], ["data"], files[1])
    for one in (stock, exported):
        np.testing.assert_allclose(output(one), averaged, atol=5e-3)


def test_what_would_damage_the_training_is_refused_inside(tmp_path):
    net, trainer, ema = make()
    step(net, trainer)
    files = [str(tmp_path / name) for name in ("states", "checkpoint")]
    trainer.save_states(files[0])
    amp.save_checkpoint(files[1], net, trainer)
    pending, before = record(net)[0], content(net, trainer)
    calls = [
        lambda: ema.applied().__enter__(),
        lambda: EMA(net, trainer).applied().__enter__(),
        lambda: ema.averages,
        lambda: trainer.backward(pending),
        lambda: amp.scale_loss(pending, trainer).__enter__(),
        lambda: trainer.step(4),
        lambda: trainer.update(4),
        lambda: trainer.clip_global_norm(1, 1),
        lambda: trainer.allreduce_grads(),
        lambda: trainer.master_params(),
        lambda: trainer.refresh_masters(),
        lambda: trainer.save_states(str(tmp_path / "other")),
        lambda: trainer.load_states(files[0]),
        lambda: amp.save_checkpoint(tmp_path / "other", net, trainer),
        lambda: amp.load_checkpoint(files[1], net, trainer),
        lambda: amp.Trainer(net.collect_params(), "sgd"),
        lambda: amp.diagnose(net, abs, kinds.array(IMAGES), None),
        lambda: amp.suggest_policy(net, abs, kinds.array(IMAGES), None),
        lambda: amp.gradient_report(net, trainer),
    ]
    with ema.applied():
        for call in calls:
            with pytest.raises(RuntimeError, match=r"averaged weights inside .with ema.applied"):
                call()
    assert content(net, trainer) == before
    assert not (tmp_path / "other").exists()
    trainer.backward(pending)
    assert trainer.step(4).applied


def test_a_cast_inside_lasts_and_finds_the_masters():
    net, trainer, ema = make()
    step(net, trainer)
    own, expected = masters(net, trainer), averages(ema)
    with ema.applied():
        amp.cast(net, "float32")
        assert_equal({p.name: p.data().asnumpy() for p in trained(net)}, expected)
    assert_equal({p.name: p.data().asnumpy() for p in trained(net)}, own)


@pytest.mark.parametrize("other", ["float32", "mixed_float16", "bfloat16"])
@pytest.mark.parametrize("policy", ["float32", "float16", "bfloat16"])
def test_a_cast_inside_and_back_leaves_no_trace(policy, other):
    net, trainer, ema = make(policy)
    step(net, trainer)
    pending, before = record(net), content(net, trainer)
    with ema.applied():
        amp.cast(net, other)
        net.collect_params().setattr("grad_req", "null")
        output(net)
        amp.cast(net, policy)
    assert content(net, trainer) == before
    trainer.backward(pending)
    assert trainer.step(4).applied


def test_another_device_inside_is_not_the_trainings(arrays):
    net, trainer, ema = make()
    step(net, trainer)
    before = content(net, trainer)
    with ema.applied():
        net.collect_params().reset_ctx(TWO[1])
        output(net, TWO[1])
    assert content(net, trainer) == before
    assert step(net, trainer).applied


def trained(net):
    return [p for p in net.collect_params().values() if p.grad_req != "null"]


def test_frozen_parameters_and_statistics_are_the_nets_own():
    net, trainer, ema = make()
    step(net, trainer)
    net[3].bias.grad_req = "null"
    net[3].bias.set_data(mx.nd.array([0.1, 0.2, 0.3]))  # not in float16
    step(net, trainer)
    step(net, trainer)
    assert net[3].bias.name not in ema.averages
    kept = [p for p in net.collect_params().values() if p.name not in ema.averages]
    before, everything = [p.data().asnumpy() for p in kept], content(net, trainer)
    assert len(kept) == 3 and (before[0] != 0).any()
    with ema.applied():
        for param, value in zip(kept, before):
            np.testing.assert_array_equal(param.data().asnumpy(), value)
            param.set_data(param.data() + 1)
    assert content(net, trainer) == everything
    net[3].bias.grad_req = "write"
    assert net[3].bias.name in ema.averages


def test_another_trainer_goes_on_with_the_average():
    net, trainer, ema = make()
    step(net, trainer)
    expected = averages(ema)
    other = amp.Trainer(net.collect_params(), "adam", loss_scale=128)
    ema.trainer = other
    assert ema.trainer is other
    step(net, trainer)
    assert_equal(averages(ema), expected)
    step(net, other)
    assert_equal(averages(ema), mixed(expected, masters(net, other), DECAY))


def test_it_follows_a_net_to_another_device():
    net, trainer, ema = make()
    step(net, trainer)
    expected = averages(ema)
    net.collect_params().reset_ctx(TWO[1])
    ema.trainer = other = amp.Trainer(net.collect_params(), "sgd", loss_scale=128)
    step(net, other)
    assert_equal(averages(ema), mixed(expected, masters(net, other), DECAY))
    assert {array.context for array in ema.averages.values()} == {TWO[1]}


@pytest.mark.parametrize(
    "change, error, match",
    [
        ({"decay": 0}, ValueError, "decay must be a number between 0 and 1 .* received 0"),
        ({"decay": 1.0}, ValueError, "decay must be"),
        ({"decay": -0.5}, ValueError, "decay must be"),
        ({"decay": float("nan")}, ValueError, "decay must be"),
        ({"decay": 10**400}, ValueError, "decay must be"),
        ({"decay": 1 - 1e-9}, ValueError, "in float32"),
        ({"decay": "0.9"}, ValueError, "decay must be"),
        ({"net": nn.HybridSequential()}, ValueError, "has no parameters to average"),
        ({"net": nn.Dense(1)}, ValueError, r"updates .*, which are not in this net"),
        ({"net": object()}, TypeError, "expects a gluon.Block"),
        ({"trainer": object()}, TypeError, "without a loss scale: build an amp.Trainer"),
    ],
)
def test_bad_arguments_are_one_sentence(change, error, match):
    net, trainer, ema = make()
    with pytest.raises(error, match=match) as caught:
        amp.EMA(**{"net": net, "trainer": trainer, **change})
    assert str(caught.value).count("\n") == 0
    other = make_net()
    with pytest.raises(ValueError, match="not in this net"):
        ema.trainer = amp.Trainer(other.collect_params(), "sgd")
    step(net, trainer)
    assert (ema.decay, ema.trainer) == (DECAY, trainer)
