"""Tests that need a cast net and its Trainer together."""

import numpy as np
import pytest

import gluon_amp as amp
from tests import kinds
from tests.casting.nets import small_net

import mxnet as mx
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn

pytestmark = pytest.mark.usefixtures("arrays")  # Law 13

LOSS = gluon.loss.SoftmaxCrossEntropyLoss()


def twin_of(net):
    """Return a stock net with the same parameters; a stock deep copy would not train."""
    twin = small_net()
    for p, q in zip(twin.collect_params().values(), net.collect_params().values()):
        p.set_data(q.data())
    return twin


def trainer_of(net, optimizer="sgd", params=None, scale=2.0**8):
    """Return a Trainer whose scale is low enough for the sum over a batch."""
    loss_scale = amp.DynamicLossScale(init_scale=scale)
    return amp.Trainer(net.collect_params(), optimizer, params, loss_scale=loss_scale)


def batch(seed=0, n=16):
    random = np.random.RandomState(seed)
    labels = random.randint(0, 4, n)
    pixels = random.normal(size=(n, 3, 8, 8)) + labels[:, None, None, None]
    return kinds.array(pixels), kinds.array(labels)


def step(net, trainer, x, y):
    with autograd.record():
        loss = LOSS(net(x), y)
    trainer.backward(loss)
    return trainer.step(len(x))


def masters(net, trainer):
    """Return the float32 values of every trained parameter."""
    return {name: value.asnumpy() for name, value in trainer.master_params().items()}


def state_of(net, trainer):
    """Return everything that a skipped step must not change, as bytes."""
    params = {name: p.data().asnumpy().tobytes() for name, p in net.collect_params().items()}
    wide = {name: value.asnumpy().tobytes() for name, value in trainer.master_params().items()}
    counts = dict(trainer.optimizer._index_update_count), trainer.optimizer.num_update
    return params, wide, trainer.updaters[0].get_states(), counts


@pytest.mark.parametrize(
    "optimizer, params",
    [
        ("sgd", {"learning_rate": 0.1, "momentum": 0.9, "wd": 1e-4}),
        ("adam", {"learning_rate": 0.01}),
        ("nag", {"learning_rate": 0.1, "momentum": 0.9}),
        ("adamw", {"learning_rate": 0.01, "wd": 0.01}),
    ],
)
@pytest.mark.parametrize("policy, unit", [("float16", 2**-11), ("bfloat16", 2**-8)])
def test_twenty_steps_match_float32(optimizer, params, policy, unit):
    start = small_net()
    results = {}
    for name in ("float32", policy):
        net = amp.cast(twin_of(start), name)
        trainer = trainer_of(net, optimizer, dict(params))
        losses = []
        for k in range(20):
            x, y = batch(k)
            report = step(net, trainer, x, y)
            assert report.applied
            losses.append(float(LOSS(net(x), y).mean().asnumpy().item()))
        results[name] = losses, net[5].weight.data().asnumpy().astype("float32")
    (expected, weight), (got, low) = results["float32"], results[policy]
    assert expected[-1] < 0.9 * expected[0]  # the net learns
    assert np.abs(np.subtract(got, expected)).max() < 32 * unit
    assert np.abs(weight - low).max() < 32 * unit
    assert not np.array_equal(weight, low)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_masters_carry_an_update_of_1e_8_that_float16_weights_cannot(optimizer):
    net = nn.Dense(1, in_units=1, use_bias=False)
    net.initialize(mx.init.One())
    amp.cast(net, "float16")
    trainer = amp.Trainer(net.collect_params(), optimizer, {"learning_rate": 1e-8})
    for _ in range(20):  # 1e-8 is below float32's resolution at 1, which is 6e-8
        with autograd.record():
            loss = net(kinds.ones((1, 1))).sum()
        trainer.backward(loss)
        trainer.step(1)
    (master,) = trainer.master_params().values()
    assert net.weight.data().asnumpy().item() == 1.0
    assert master.dtype == np.float32
    # each step rounds 1 - 1e-8 to the float32 below 1 or stays, so start from a small weight
    net.weight.set_data(kinds.array([[1e-3]]))
    before = None
    for _ in range(20):
        with autograd.record():
            loss = net(kinds.ones((1, 1))).sum()
        trainer.backward(loss)
        trainer.step(1)
        (master,) = trainer.master_params().values()
        before = master.asnumpy().item() if before is None else before
    moved = before - master.asnumpy().item()
    assert 19 * 0.98e-8 < moved < 19 * 1.02e-8


@pytest.mark.parametrize("policy", ["float16", "mixed_float16"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_law_4_a_skip_undoes_the_step_batchnorm_included(policy, optimizer):
    net = amp.cast(small_net(), policy)
    trainer = trainer_of(net, optimizer, {"learning_rate": 0.01})
    for k in range(3):
        assert step(net, trainer, *batch(k)).applied
    before = state_of(net, trainer)
    x, y = batch(4)
    x[0] = np.inf
    report = step(net, trainer, x, y)
    assert not report.applied
    assert report.next_loss_scale == report.loss_scale / 2  # Law 3
    assert "net_conv0_weight" in report.overflow
    assert state_of(net, trainer) == before
    assert step(net, trainer, *batch(5)).applied


def test_law_4_holds_for_statistics_that_were_set_between_steps():
    net = amp.cast(small_net(), "float16")
    trainer = amp.Trainer(net.collect_params(), "sgd")
    step(net, trainer, *batch())
    net[1].running_mean.set_data(kinds.full((8,), 7.0))
    x, y = batch()
    assert not step(net, trainer, x * np.inf, y).applied
    assert net[1].running_mean.data().asnumpy().tolist() == [7.0] * 8


def test_law_8_the_masters_come_back_bit_for_bit():
    net = amp.cast(small_net(), "float16")
    trainer = trainer_of(net, "sgd", {"learning_rate": 0.01, "momentum": 0.9})
    for k in range(3):
        step(net, trainer, *batch(k))
    expected = masters(net, trainer)
    weight = net[0].weight.data().asnumpy()
    amp.cast(net, "float32")
    for name, p in net.collect_params().items():
        if name in expected:
            assert np.array_equal(p.data().asnumpy(), expected[name])
    assert not np.array_equal(net[0].weight.data().asnumpy(), weight.astype("float32"))
    with pytest.raises(RuntimeError, match="cast"):
        step(net, trainer, *batch())


def test_saved_and_exported_files_hold_the_masters(tmp_path):
    net = amp.cast(small_net(), "float16")
    trainer = trainer_of(net, "sgd", {"learning_rate": 0.01})
    step(net, trainer, *batch())
    expected = masters(net, trainer)
    net.save_parameters(str(tmp_path / "p"))
    stock = small_net()
    stock.load_parameters(str(tmp_path / "p"))
    assert np.array_equal(stock[0].weight.data().asnumpy(), expected["net_conv0_weight"])
    net.export(str(tmp_path / "e"))
    saved = nd.load(str(tmp_path / "e-0000.params"))
    assert np.array_equal(saved["arg:net_conv0_weight"].asnumpy(), expected["net_conv0_weight"])


def test_parameters_loaded_during_training_are_not_reverted(tmp_path):
    net = amp.cast(small_net(), "float16")
    trainer = trainer_of(net, "sgd", {"learning_rate": 0.0, "momentum": 0.9})
    step(net, trainer, *batch())
    other = small_net()
    other.save_parameters(str(tmp_path / "p"))
    net.load_parameters(str(tmp_path / "p"))
    step(net, trainer, *batch())
    loaded = other[0].weight.data().asnumpy().astype("float16")
    assert np.array_equal(net[0].weight.data().asnumpy(), loaded)


@pytest.mark.parametrize(
    "spoil, text",
    [
        (
            lambda net, x: x * np.inf,
            "the forward pass is not finite already, so look for infinite data",
        ),
        (
            lambda net, x: net[0].weight.set_data(kinds.ones((8, 3, 3, 3))) or x + 6000,
            "the forward pass is not finite already, .* and for overflow in the network",
        ),
        (
            lambda net, x: net[5].weight.set_data(net[5].weight.data() * np.nan) or x,
            "the parameter net_dense0_weight is not finite itself",
        ),
    ],
)
def test_after_skips_that_no_scale_prevents_the_error_names_the_cause(spoil, text):
    net = amp.cast(small_net(), "float16")
    scale = amp.DynamicLossScale(init_scale=4.0)
    trainer = amp.Trainer(
        net.collect_params(),
        "sgd",
        {"learning_rate": 0.0},
        loss_scale=scale,
        max_consecutive_skips=3,
    )
    x, y = batch()
    x = spoil(net, x)
    for _ in range(2):
        assert not step(net, trainer, x, y).applied
    text = f"the last at loss scale 1, and a lower one would not help, in .*{text}"
    with pytest.raises(FloatingPointError, match=text):
        step(net, trainer, x, y)
    assert scale.scale == 0.5


def test_states_find_their_layers_when_the_counters_in_names_have_grown(tmp_path):
    def two_layers(first):
        net = nn.HybridSequential()
        net.add(nn.Dense(3, in_units=3, prefix=f"dense{first}_"))
        net.add(nn.Dense(3, in_units=3, prefix=f"dense{first + 1}_"))
        net.initialize(mx.init.One())
        return amp.cast(net, "float16")

    def wide(trainer):
        return [m.asnumpy().tolist() for m in trainer.master_params().values()]

    nets = two_layers(8), two_layers(9)  # as text 'dense10' comes before 'dense9'
    trainers = [trainer_of(net, "sgd", {"learning_rate": 0.1, "momentum": 0.9}) for net in nets]
    with autograd.record():
        loss = (nets[0](kinds.array([[0.1, 0.2, 0.3]])) ** 2).sum()
    trainers[0].backward(loss)
    assert trainers[0].step(1).applied
    trainers[0].save_states(str(tmp_path / "s"))
    for p, q in zip(nets[1].collect_params().values(), nets[0].collect_params().values()):
        p.set_data(q.data())
    trainers[1].load_states(str(tmp_path / "s"))
    assert wide(trainers[1]) == wide(trainers[0])
    weights = [m for m in wide(trainers[0]) if isinstance(m[0], list)]
    assert weights[0] != weights[1]  # or the test could not fail


@pytest.mark.parametrize(
    "policy, scale", [("float16", 2.0**16), ("mixed_float16", 2.0**16), ("bfloat16", 1.0)]
)
def test_the_default_loss_scale_follows_the_policy(policy, scale):
    net = amp.cast(small_net(), policy)
    trainer = amp.Trainer(net.collect_params(), "sgd")
    assert trainer.loss_scale.scale == scale
    assert amp.Trainer(small_net().collect_params(), "sgd").loss_scale.scale == 1.0


def test_law_2_any_schedule_of_scales_gives_the_same_bits():
    start = small_net()
    results = []
    for schedule in ([1.0] * 6, [2.0**k for k in (10, 3, 12, 0, 7, 5)]):
        net = amp.cast(twin_of(start), "mixed_float16")
        # float32 heads of the graph only: small values would underflow in float16 at scale 1
        amp.cast(net, amp.Policy.parse("mixed_float16").pin(blocks=["."]))
        trainer = amp.Trainer(
            net.collect_params(),
            "sgd",
            {"learning_rate": 0.1, "momentum": 0.9},
            loss_scale=amp.StaticLossScale(1.0),
        )
        for k, scale in enumerate(schedule):
            trainer.loss_scale.load_state_dict(amp.StaticLossScale(scale).state_dict())
            assert step(net, trainer, *batch(k)).applied
        results.append(masters(net, trainer))
    assert all(np.array_equal(results[0][name], results[1][name]) for name in results[0])


def test_two_devices_train_as_one():
    start = small_net()
    results = []
    for contexts in ([mx.cpu(0)], [mx.cpu(0), mx.cpu(1)]):
        net = twin_of(start)
        net[1]._kwargs["use_global_stats"] = True  # statistics are per device
        net.collect_params().reset_ctx(contexts)
        amp.cast(net, "float16")
        trainer = trainer_of(net, "sgd", {"learning_rate": 0.1})
        for k in range(3):
            x, y = batch(k)
            xs = gluon.utils.split_and_load(x, contexts)
            ys = gluon.utils.split_and_load(y, contexts)
            with autograd.record():
                losses = [LOSS(net(a), b) for a, b in zip(xs, ys)]
            trainer.backward(losses)
            assert trainer.step(len(x)).applied
        results.append(masters(net, trainer)["net_dense0_weight"])
    assert np.abs(results[0] - results[1]).max() < 1e-3
