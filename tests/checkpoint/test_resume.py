"""Law 5: a resumed run equals an uninterrupted one, for all kinds of nets and trainers."""

import logging
import os

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp.checkpoint import load_checkpoint, save_checkpoint
from gluon_amp.trainer.contrib_amp import init_trainer
from tests import kinds
from tests.checkpoint.helpers import BATCHES, assert_same, content, make_net, make_trainer, run

import mxnet as mx
from mxnet import autograd, nd
from mxnet.gluon import nn

POLICIES = ("float16", "mixed_float16", "bfloat16", "float32")
CASES = [("nd", policy, optimizer) for policy in POLICIES for optimizer in ("sgd", "adam")]
CASES += [("np", policy, "sgd") for policy in POLICIES]


@pytest.mark.parametrize("arrays, policy, optimizer", CASES, indirect=["arrays"])
def test_resume_equals_uninterrupted_from_any_step(tmp_path, arrays, policy, optimizer):
    scale = "short" if "float16" in policy and policy != "bfloat16" else None
    net = make_net(policy)
    trainer = make_trainer(net, optimizer, scale)
    run(net, trainer, [11])
    reports, paths = [], []
    for step in range(9):
        paths.append(save_checkpoint(tmp_path / f"{step}.ckpt", net, trainer, step=step))
        reports += run(net, trainer, [step])
    if scale:
        # Both overflows were skipped, and the scale grew within the run.
        assert [applied for applied, *_ in reports].count(False) == 2
        scales = [scale / 1024 for _, scale, _ in reports]
        assert scales == [1, 1, 2, 1, 1, 1, 2, 2, 1]
    end = content(net, trainer)
    for step in range(0, 9, 1 if policy == "float16" else 4):
        mx.random.seed(100 + step)
        other = make_net(policy)
        again = make_trainer(other, optimizer, scale)
        assert load_checkpoint(paths[step], other, again) == {"step": step}
        assert run(other, again, range(step, 9)) == reports[step:]
        assert_same(content(other, again), end)


@pytest.mark.parametrize(
    "optimizer, settings",
    [
        ("nag", {"momentum": 0.9}),
        ("lamb", {}),
        ("lars", {"momentum": 0.9}),
        ("adamw", {}),
        ("nadam", {}),
        ("rmsprop", {"centered": True}),
        ("adadelta", {}),
        ("ftml", {}),
    ],
)
def test_resume_equals_uninterrupted_for_every_layout_of_state(
    tmp_path, arrays, optimizer, settings
):
    net = make_net()
    trainer = make_trainer(net, optimizer, **settings)
    run(net, trainer, range(4))
    path = save_checkpoint(tmp_path / "net.ckpt", net, trainer)
    other = make_net()
    again = make_trainer(other, optimizer, **settings)
    load_checkpoint(path, other, again)
    assert run(net, trainer, range(4, 7)) == run(other, again, range(4, 7))
    assert_same(content(net, trainer), content(other, again))


def test_loading_twice_and_into_a_used_net_gives_the_same(arrays, saved):
    path, net, trainer = saved
    run(net, trainer, range(3, 6))
    later = content(net, trainer)
    load_checkpoint(path, net, trainer)
    load_checkpoint(path, net, trainer)
    run(net, trainer, range(3, 6))
    assert_same(content(net, trainer), later)


def test_a_learning_rate_schedule_continues(tmp_path):
    def build():
        net = make_net()
        schedule = mx.lr_scheduler.FactorScheduler(2, 0.5, base_lr=0.1)
        return net, make_trainer(net, lr_scheduler=schedule, learning_rate=0.1)

    net, trainer = build()
    run(net, trainer, range(5))
    path = save_checkpoint(tmp_path / "net.ckpt", net, trainer)
    other, again = build()
    load_checkpoint(path, other, again)
    run(net, trainer, range(5, 7))
    run(other, again, range(5, 7))
    assert again.learning_rate == trainer.learning_rate == 0.025
    assert_same(content(net, trainer), content(other, again))


def test_exact_random_numbers_are_the_callers_to_save(tmp_path):
    net = nn.HybridSequential()
    net.add(nn.Dense(8, in_units=6), nn.Dropout(0.5), nn.Dense(2, in_units=8))
    net.initialize()
    trainer = make_trainer(amp.cast(net, "float16"))

    def some_steps():
        for step in range(3):
            mx.random.seed(step)
            data = nd.array(np.random.uniform(-1, 1, (4, 6)))
            with autograd.record():
                loss = net(data).sum()
            trainer.backward(loss)
            trainer.step(4)
        return content(net, trainer)

    path = save_checkpoint(tmp_path / "net.ckpt", net, trainer, numpy_state=np.random.get_state())
    end = some_steps()
    np.random.seed(99)
    extra = load_checkpoint(path, net, trainer)
    np.random.set_state(extra["numpy_state"])
    assert_same(some_steps(), end)


def test_weights_written_since_the_last_step_are_saved_as_they_are(saved, tmp_path):
    _, net, trainer = saved
    weight = net[0].weight
    before = trainer.master_params()[weight.name].asnumpy()
    quarter = nd.full(weight.shape, 0.25, dtype="float16")
    weight.set_data(nd.where(weight.data() > 0, quarter, weight.data()))
    path = save_checkpoint(tmp_path / "other.ckpt", net, trainer)
    other = make_net()
    again = make_trainer(other)
    load_checkpoint(path, other, again)
    master = again.master_params()[other[0].weight.name].asnumpy()
    assert np.array_equal(master, np.where(before.astype(np.float16) > 0, np.float32(0.25), before))


def test_gradients_that_accumulated_before_are_gone(tmp_path):
    net = make_net("mixed_float16", in_channels=3)
    net.collect_params().setattr("grad_req", "add")
    trainer = make_trainer(net)
    run(net, trainer, [0])
    path = save_checkpoint(tmp_path / "net.ckpt", net, trainer)
    with autograd.record():
        loss = net(nd.array(BATCHES[0])).sum()
    trainer.backward(loss)
    load_checkpoint(path, net, trainer)
    grads = [p.grad() for p in net.collect_params().values() if p.grad_req != "null"]
    assert all((grad.asnumpy() == 0).all() for grad in grads)


@pytest.mark.parametrize("saver", [False, True])
def test_a_checkpoint_of_one_kind_of_arrays_is_loaded_into_the_other(tmp_path, saver):
    with mx.util.np_shape(saver), mx.util.np_array(saver):
        net = make_net()
        trainer = make_trainer(net)
        run(net, trainer, range(3))
        path = save_checkpoint(tmp_path / "net.ckpt", net, trainer)
    with mx.util.np_shape(not saver), mx.util.np_array(not saver):
        other = make_net()
        again = make_trainer(other)
        load_checkpoint(path, other, again)
        assert_same(content(other, again), content(net, trainer))
        assert run(other, again, range(3, 5)) != []
        assert isinstance(other[0].weight.data(), mx.np.ndarray) is not saver


# -------------------------------------------------------------------------------- all kinds of nets


def test_a_deferred_net_is_initialized_by_loading(arrays, saved):
    path, net, trainer = saved
    other = make_net()
    again = make_trainer(other)
    assert other[0].weight.shape == (4, -1 if arrays is mx.np else 0, 3, 3)
    load_checkpoint(path, other, again)
    assert other[0].weight.shape == (4, 3, 3, 3)
    assert_same(content(net, trainer), content(other, again))


def test_a_trainer_that_has_made_no_step_yet(tmp_path):
    net = make_net(in_channels=3)
    net(nd.array(BATCHES[0]))
    trainer = make_trainer(net)
    path = save_checkpoint(tmp_path / "net-{step}.ckpt", net, trainer)
    assert os.path.basename(path) == "net-0.ckpt"
    other = make_net()
    again = make_trainer(other)
    load_checkpoint(path, other, again)
    assert run(net, trainer, range(3)) == run(other, again, range(3))
    assert_same(content(net, trainer), content(other, again))


def test_shared_parameters_are_saved_once(tmp_path):
    def build():
        first = nn.Dense(4, in_units=4)
        net = nn.HybridSequential()
        net.add(first, nn.Dense(4, in_units=4, params=first.params))
        net.initialize()
        return amp.cast(net, "float16")

    def steps(net, trainer):
        with autograd.record():
            loss = (net(nd.array([[1, 2, 3, 4]])) ** 2).sum()
        trainer.backward(loss)
        trainer.step(1)

    net = build()
    trainer = make_trainer(net)
    steps(net, trainer)
    path = save_checkpoint(tmp_path / "net.ckpt", net, trainer)
    assert [n for n in np.load(path).files if n.startswith("parameters/")] == [
        "parameters/0.weight",
        "parameters/0.bias",
    ]
    other = build()
    again = make_trainer(other)
    load_checkpoint(path, other, again)
    steps(net, trainer)
    steps(other, again)
    assert_same(content(net, trainer), content(other, again))


class Pair(mx.gluon.Block):
    """A plain Block whose parts are cast one by one."""

    def __init__(self):
        super().__init__()
        self.body = nn.Dense(4, in_units=3)
        self.head = nn.Dense(2, in_units=4)

    def forward(self, x):
        return self.head(nd.relu(self.body(x)))


def test_plain_blocks_and_blocks_of_different_policies(tmp_path):
    def build(head):
        net = Pair()
        net.initialize()
        amp.cast(net.body, "float16")
        if head:
            amp.cast(net.head, head)
        return net, make_trainer(net)

    net, trainer = build(None)
    path = save_checkpoint(tmp_path / "net.ckpt", net, trainer)
    other, again = build(None)
    load_checkpoint(path, other, again)
    assert_same(content(net, trainer), content(other, again))
    match = r"cast with 'float16' in body, and .* 'float16' in body and 'bfloat16' in head: cast"
    with pytest.raises(ValueError, match=match):
        load_checkpoint(path, *build("bfloat16"))


def test_symbol_blocks(tmp_path):
    def build():
        x = mx.sym.var("data")
        out = mx.sym.FullyConnected(x, num_hidden=3, name="fc")
        net = mx.gluon.SymbolBlock(out, x)
        net.initialize()
        amp.cast(net, "float16")
        net(nd.ones((2, 4)))
        return net, make_trainer(net)

    net, trainer = build()
    path = save_checkpoint(tmp_path / "net.ckpt", net, trainer)
    other, again = build()
    other.collect_params()["fc_weight"].set_data(nd.ones((3, 4)))
    load_checkpoint(path, other, again)
    assert_same(content(net, trainer), content(other, again))


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
    assert run(net, trainer, range(3, 6)) == run(other, stock, range(3, 6))
    assert_same(content(net, trainer), content(other, stock))


def test_the_order_of_the_trainers_parameters_may_change(saved):
    path, net, trainer = saved
    other = make_net()
    again = amp.Trainer(
        list(other.collect_params().values())[::-1],
        "sgd",
        {"learning_rate": 0.01, "momentum": 0.9, "wd": 1e-3},
        loss_scale=amp.DynamicLossScale(2.0**10, growth_interval=3),
    )
    load_checkpoint(path, other, again)
    assert run(net, trainer, range(3, 6)) == run(other, again, range(3, 6))
    assert content(net, trainer)[0] == content(other, again)[0]


def test_other_names_of_the_same_layers_change_nothing(tmp_path):
    # Gluon numbers the layers of a process in order, and its Trainer sorts their names as text.
    def build(first):
        net = nn.HybridSequential()
        for k in range(2):
            net.add(nn.Dense(3, in_units=3, prefix=f"dense{first + k}_"))
        net.initialize(mx.init.Xavier())
        return amp.cast(net, "float16")

    def steps(net, trainer):
        with autograd.record():
            loss = (net(nd.array([[1, 2, 3]])) ** 2).sum()
        trainer.backward(loss)
        trainer.step(1)

    net, other = build(8), build(9)  # dense10_ comes before dense9_
    trainer, again = make_trainer(net), make_trainer(other)
    steps(net, trainer)
    load_checkpoint(save_checkpoint(tmp_path / "net.ckpt", net, trainer), other, again)
    steps(net, trainer)
    steps(other, again)
    assert content(net, trainer)[0] == content(other, again)[0]


class TestSeveralContexts:
    contexts = (mx.cpu(0), mx.cpu(1))

    def train(self, net, trainer, steps):
        for step in steps:
            parts = mx.gluon.utils.split_and_load(kinds.array(BATCHES[step]), self.contexts)
            with autograd.record():
                losses = [(net(part) ** 2).sum() for part in parts]
            trainer.backward(losses)
            trainer.step(4)

    def test_each_device_gets_its_own_statistics_back(self, arrays, tmp_path):
        net = make_net(ctx=list(self.contexts))
        trainer = make_trainer(net)
        self.train(net, trainer, [0, 1])
        first, second = (array.asnumpy() for array in net[1].running_mean.list_data())
        assert not np.array_equal(first, second)
        path = save_checkpoint(tmp_path / "net.ckpt", net, trainer)
        other = make_net(ctx=list(self.contexts))
        again = make_trainer(other)
        load_checkpoint(path, other, again)
        assert_same(content(net, trainer), content(other, again))
        self.train(net, trainer, [2, 3])
        self.train(other, again, [2, 3])
        assert_same(content(net, trainer), content(other, again))

    def test_another_number_of_devices_gets_their_mean(self, tmp_path):
        net = make_net(ctx=list(self.contexts))
        trainer = make_trainer(net)
        self.train(net, trainer, [0])
        first, second = (array.asnumpy() for array in net[1].running_mean.list_data())
        path = save_checkpoint(tmp_path / "net.ckpt", net, trainer)
        one = make_net()
        load_checkpoint(path, one, make_trainer(one))
        mean = one[1].running_mean.data().asnumpy()
        assert np.array_equal(mean, ((first.astype(float) + second) / 2).astype(np.float32))
        # And from one device to two.
        path = save_checkpoint(tmp_path / "one.ckpt", one, make_trainer(one))
        load_checkpoint(path, net, trainer)
        assert all(np.array_equal(a.asnumpy(), mean) for a in net[1].running_mean.list_data())


def test_pins_may_change_and_no_bit_of_a_master_is_lost(saved, tmp_path, caplog):
    path, _, trainer = saved
    masters = [m.asnumpy() for m in trainer.master_params().values()]
    policy = amp.Policy.parse("float16").pin(blocks=[r"^0$"])
    pinned = make_net(policy)
    again = make_trainer(pinned)
    with caplog.at_level(logging.WARNING, "gluon_amp"):
        load_checkpoint(path, pinned, again)
    assert "other pins" in caplog.text
    assert np.dtype(pinned[0].weight.dtype) == np.float32
    for master, value in zip(masters, again.master_params().values()):
        assert np.array_equal(master, value.asnumpy())
    run(pinned, again, [3])
    masters = [m.asnumpy() for m in again.master_params().values()]
    path = save_checkpoint(tmp_path / "pinned.ckpt", pinned, again)
    back = make_net("float16")
    third = make_trainer(back)
    load_checkpoint(path, back, third)
    assert np.dtype(back[0].weight.dtype) == np.float16
    for master, value in zip(masters, third.master_params().values()):
        assert np.array_equal(master, value.asnumpy())


def test_an_earlier_checkpoint_rewinds_the_schedule_of_a_live_trainer(tmp_path):
    net = make_net()
    schedule = mx.lr_scheduler.MultiFactorScheduler([2, 4], 0.5, base_lr=0.1)
    trainer = make_trainer(net, lr_scheduler=schedule, learning_rate=0.1)
    run(net, trainer, range(2))
    path = save_checkpoint(tmp_path / "net.ckpt", net, trainer)
    run(net, trainer, range(2, 7))
    end = content(net, trainer)
    load_checkpoint(path, net, trainer)
    run(net, trainer, range(2, 7))
    assert_same(content(net, trainer), end)
