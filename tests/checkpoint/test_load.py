"""Loading: what continues, into which nets and trainers, what is refused, and what stays."""

import copy
import logging

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp.checkpoint import load_checkpoint, save_checkpoint
from gluon_amp.trainer.contrib_amp import init_trainer
from tests.checkpoint.helpers import (
    BATCHES,
    assert_continued,
    assert_same,
    content,
    made,
    make_net,
    make_trainer,
    refused,
    run,
)
from tests.trainer.helpers import backward

import mxnet as mx
from mxnet import autograd, nd
from mxnet.gluon import nn


@pytest.mark.parametrize(
    "optimizer, settings",
    [
        ("lars", {"momentum": 0.9, "lr_scheduler": mx.lr_scheduler.FactorScheduler(1, 0.5)}),
        ("nadam", {}),
        ("rmsprop", {"centered": True}),
        ("ftml", {}),
    ],
)
def test_resume_equals_uninterrupted_for_every_layout_of_state(tmp_path, optimizer, settings):
    net, trainer = made(optimizer, **copy.deepcopy(settings))
    run(net, trainer, range(4))
    path = save_checkpoint(tmp_path / "net.ckpt", net, trainer)
    other = made(optimizer, **settings)
    load_checkpoint(path, *other)
    assert_continued((net, trainer), other, range(4, 7))


def test_weights_written_since_the_last_step_are_saved_as_they_are(saved):
    path, net, trainer = saved
    net[0].weight.data()[0] = 0.25
    save_checkpoint(path, net, trainer)
    other, again = made()
    load_checkpoint(path, other, again)
    master = again.master_params()[other[0].weight.name].asnumpy()
    assert (master[0] == 0.25).all() and (master[1:] != master[1:].astype("float16")).all()
    assert_same(content(net, trainer), content(other, again))


def test_gradients_that_accumulated_before_are_gone(tmp_path):
    net = amp.cast(nn.Dense(2, in_units=2), "mixed_float16")
    net.initialize()
    net.collect_params().setattr("grad_req", "add")
    trainer = make_trainer(net)
    path = save_checkpoint(tmp_path / "net.ckpt", net, trainer)
    backward(trainer, net, nd.ones((1, 2)))
    load_checkpoint(path, net, trainer)
    assert (net.weight.grad().asnumpy() == 0).all()


@pytest.mark.parametrize("saver", [False, True])
def test_a_checkpoint_of_one_kind_of_arrays_is_loaded_into_the_other(tmp_path, saver):
    with mx.util.np_shape(saver), mx.util.np_array(saver):
        net, trainer = made()
        run(net, trainer, range(3))
        path = save_checkpoint(tmp_path / "net.ckpt", net, trainer)
    with mx.util.np_shape(not saver), mx.util.np_array(not saver):
        other, again = made()
        assert other[0].weight.shape == (4, 0 if saver else -1, 3, 3)  # not known yet
        load_checkpoint(path, other, again)
        assert other[0].weight.shape == (4, 3, 3, 3)
        assert_same(content(other, again), content(net, trainer))
        assert len(run(other, again, range(3, 5))) == 2
        assert isinstance(other[0].weight.data(), mx.np.ndarray) is not saver


def test_a_trainer_that_has_made_no_step_yet(tmp_path):
    net, earlier = made()
    run(net, earlier, [0])
    trainer = make_trainer(net)  # the parameters keep their masters
    path = save_checkpoint(tmp_path / "net.ckpt", net, trainer)
    other = made()
    load_checkpoint(path, *other)
    assert_continued((net, trainer), other)


# ------------------------------------------------------------------------------ averaged weights


def bits(ema, net):
    """Return the bits of an average by the position of its parameter."""
    averages = ema.averages
    params = net.collect_params().values()
    return [p.name in averages and averages[p.name].asnumpy().tobytes() for p in params]


@pytest.mark.parametrize("policy", ["float16", "float32"])
def test_averages_resume_bit_for_bit(tmp_path, policy, arrays):
    def build():
        net = make_net(policy)
        trainer = make_trainer(net)
        return net, trainer, [amp.EMA(net, trainer, decay) for decay in (0.5, 0.9)]

    net, trainer, averages = build()
    run(net, trainer, range(4))
    path = save_checkpoint(tmp_path / "net.ckpt", net, trainer)
    saved = [bits(ema, net) for ema in averages]
    run(net, trainer, range(4, 9))
    for used in (0, 2):
        other, again, others = build()
        run(other, again, range(used))
        load_checkpoint(path, other, again)
        assert [bits(ema, other) for ema in others] == saved
        run(other, again, range(4, 9))
        assert [bits(ema, other) for ema in others] == [bits(ema, net) for ema in averages]
        assert_same(content(net, trainer), content(other, again))


def test_an_average_that_was_not_saved_begins_with_the_loaded_weights(saved, caplog):
    path, net, trainer = saved
    other, again = made()
    run(other, again, range(3, 5))
    ema = amp.EMA(other, again)
    run(other, again, range(5, 6))
    load_checkpoint(path, other, again)
    assert caplog.messages[-1].startswith("net.ckpt has no average for an amp.EMA of this trainer")
    params, values = net.collect_params().values(), trainer.master_params()
    trained = [p.grad_req != "null" and values[p.name].asnumpy().tobytes() for p in params]
    assert bits(ema, other) == trained


def test_a_trainer_without_an_average_leaves_the_saved_one_out(saved, caplog):
    path, net, trainer = saved
    amp.EMA(net, trainer)
    save_checkpoint(path, net, trainer)
    other = made()
    load_checkpoint(path, *other)
    assert "net.ckpt has averaged weights, which were left out: build" in caplog.messages[-1]
    assert_same(content(net, trainer), content(*other))


# --------------------------------------------------------------------- kinds of nets and trainers


def test_shared_parameters_are_saved_once(tmp_path):
    def build():
        first = nn.Dense(4, in_units=4)
        net = nn.HybridSequential()
        net.add(first, nn.Dense(4, in_units=4, params=first.params))
        net.initialize()
        return net, make_trainer(amp.cast(net, "float16"))

    pair, other = build(), build()
    path = save_checkpoint(tmp_path / "net.ckpt", *pair)
    parameters = [name for name in np.load(path).files if name.startswith("parameters/")]
    assert parameters == ["parameters/0.weight", "parameters/0.bias"]
    load_checkpoint(path, *other)
    assert_same(content(*pair), content(*other))


def test_plain_blocks_and_blocks_of_different_policies(tmp_path):
    def build(*policies):
        net = nn.HybridSequential()
        net.add(nn.Dense(4, in_units=3), nn.Dense(2, in_units=4))
        net.initialize()
        for layer, policy in zip(net, policies):
            amp.cast(layer, policy)
        return nested(net), make_trainer(net)

    net, trainer = build("float16")
    path = save_checkpoint(tmp_path / "net.ckpt", net, trainer)
    other, again = build("float16")
    load_checkpoint(path, other, again)
    assert_same(content(net, trainer), content(other, again))
    match = r"cast with 'float16' in 0.0, and .* 'float16' in 0.0 and 'bfloat16' in 0.1: cast"
    refused(match, path, *build("float16", "bfloat16"))


def test_a_stock_trainer_after_init_trainer(saved):
    path, net, trainer = saved
    other = make_net()
    optimizer = amp.optimizer.SGD(learning_rate=0.01, momentum=0.9, wd=1e-3)
    stock = mx.gluon.Trainer(other.collect_params(), optimizer, update_on_kvstore=False)
    with pytest.raises(TypeError, match="init_trainer"):
        load_checkpoint(path, other, stock)
    with pytest.raises(TypeError, match="init_trainer"):
        save_checkpoint(path, other, stock)
    init_trainer(stock, amp.DynamicLossScale(2.0**10, growth_interval=3))
    load_checkpoint(path, other, stock)
    assert_continued((net, trainer), (other, stock))


def test_the_order_of_the_trainers_parameters_may_change(saved):
    path, net, trainer = saved
    other = make_net()
    again = make_trainer(other, params=list(other.collect_params().values())[::-1])
    load_checkpoint(path, other, again)
    assert run(net, trainer, range(3, 6)) == run(other, again, range(3, 6))
    assert content(net, trainer)[0] == content(other, again)[0]


def on_two_devices():
    """Return a net on two devices with different statistics, and its trainer."""
    net = make_net(ctx=[mx.cpu(0), mx.cpu(1)])
    trainer = make_trainer(net)
    parts = mx.gluon.utils.split_and_load(nd.array(BATCHES[0]), [mx.cpu(0), mx.cpu(1)])
    with autograd.record():
        losses = [(net(part) ** 2).sum() for part in parts]
    trainer.backward(losses)
    trainer.step(4)
    # The first step copies the first device's statistics to the others, and later passes write.
    for device, mean in enumerate(net[1].running_mean.list_data()):
        mean[:] = nd.array([1, 2, 3, 4]) * (1 + device)
    return net, trainer


def test_each_device_gets_its_statistics_back_and_another_number_their_mean(tmp_path):
    net, trainer = on_two_devices()
    path = save_checkpoint(tmp_path / "net.ckpt", net, trainer)
    other = make_net(ctx=[mx.cpu(0), mx.cpu(1)])
    again = make_trainer(other)
    load_checkpoint(path, other, again)
    assert_same(content(net, trainer), content(other, again))
    one, its_trainer = made()
    load_checkpoint(path, one, its_trainer)
    assert one[1].running_mean.data().asnumpy().tolist() == [1.5, 3, 4.5, 6]
    # And from one device to two.
    load_checkpoint(save_checkpoint(path, one, its_trainer), net, trainer)
    means = [mean.asnumpy().tolist() for mean in net[1].running_mean.list_data()]
    assert means == [[1.5, 3, 4.5, 6]] * 2


def test_pins_may_change_and_no_bit_of_a_master_is_lost(saved, tmp_path, caplog):
    def masters(trainer):
        return [master.asnumpy().tobytes() for master in trainer.master_params().values()]

    path, _, trainer = saved
    pinned = make_net(amp.Policy.parse("float16").pin(blocks=[r"^0$"]))
    again = make_trainer(pinned)
    with caplog.at_level(logging.WARNING, "gluon_amp"):
        load_checkpoint(path, pinned, again)
    assert "other pins" in caplog.text
    assert np.dtype(pinned[0].weight.dtype) == np.float32
    assert masters(again) == masters(trainer)
    run(pinned, again, [3])
    path = save_checkpoint(tmp_path / "pinned.ckpt", pinned, again)
    back, third = made()
    load_checkpoint(path, back, third)
    assert np.dtype(back[0].weight.dtype) == np.float16
    assert masters(third) == masters(again)


# ----------------------------------------------------------------------------------- refused


ODD = "params=float16,compute=float16,output=float16"


def nested(net):
    outer = nn.Sequential()
    outer.add(net)
    return outer


@pytest.mark.parametrize(
    "build, match",
    [
        (lambda: nested(make_net()), r"it has no 0.0.weight, .*\(did you mean '0.weight'"),
        (lambda: make_net()[:1], "this one has no 1.gamma, 1.beta, 1.running_mean and 3 more"),
        (lambda: make_net(channels=8), r"0.weight with the shape \(4, 3, 3, 3\) and not \(8, 3, 3"),
        (lambda: make_net("float32"), "'float16', and this net is cast with 'float32': cast it wi"),
        (lambda: make_net(ODD), f"and this net is cast with '{ODD}'"),
    ],
)
def test_another_net_is_refused(saved, build, match):
    net = build()
    with autograd.pause():
        net(nd.array(BATCHES[0]))
    refused(match, saved[0], net, make_trainer(net))


def test_other_dtypes_are_refused(tmp_path):
    def build(dtype):
        net = nn.Dense(1, in_units=1)
        net.table = net.params.get_constant("table", nd.ones((2,), dtype=dtype))
        net.initialize()
        return net, make_trainer(net)

    path = save_checkpoint(tmp_path / "net.ckpt", *build("float32"))
    refused("has table in float32 and not in int32: load it into a net of", path, *build("int32"))


@pytest.mark.parametrize(
    "kwargs, match",
    [
        ({"optimizer": "adam"}, r"state of the optimizer .*\.SGD, and this trainer has .*\.Adam"),
        ({"loss_scale": 128}, "loss scale .*DynamicLossScale, and this trainer has .*Static"),
        ({"momentum": 0.0}, "another kind of optimizer state .*momentum=0.9 and not 0.0"),
        (
            {"trained": 1},
            "had 8 parameters and this one has 2, different in 1.beta, 1.gamma, 1.run",
        ),
    ],
)
def test_another_kind_of_trainer_is_refused(saved, kwargs, match):
    net = make_net()
    if "trained" in kwargs:
        kwargs = {"params": net[: kwargs["trained"]].collect_params()}
    trainer = make_trainer(net, **kwargs)
    run(net, trainer, [0])
    refused(match, saved[0], net, trainer)


# ------------------------------------------------------------------------------ settings stay


def test_settings_stay_the_trainers_own_and_the_loss_scale_is_restored_whole(
    saved, caplog, recwarn
):
    path, _, trainer = saved
    scale = amp.DynamicLossScale(2.0**16, growth_interval=500)
    net, again = made(learning_rate=0.5, wd=0.0, loss_scale=scale)
    optimizer = again.optimizer
    with caplog.at_level(logging.WARNING, "gluon_amp"):
        load_checkpoint(path, net, again)
    assert again.optimizer is optimizer
    assert (again.learning_rate, optimizer.wd) == (0.5, 0.0)
    assert not [one for one in recwarn if "saved" in str(one.message)]  # it is logged
    (record,) = caplog.records
    assert record.getMessage() == (
        "net.ckpt was saved with lr=0.01 and not 0.5, wd=0.001 and not 0.0; this run keeps its own."
    )
    assert scale.growth_interval == 3
    assert scale.state_dict() == trainer.loss_scale.state_dict()
    caplog.clear()
    with caplog.at_level(logging.INFO, "gluon_amp"):
        load_checkpoint(path, *made())
    assert not caplog.records
