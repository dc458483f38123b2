"""Checkpoints: resume equals uninterrupted (Law 5), and a file is all there or not there."""

import errno
import fcntl
import hashlib
import json
import logging
import os
import re
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp.checkpoint import load_checkpoint, read_extra, save_checkpoint
from gluon_amp.checkpoint.contents import FILE
from gluon_amp.files import archive
from gluon_amp.trainer.contrib_amp import init_trainer
from tests import forging

import mxnet as mx
from mxnet import autograd, nd
from mxnet.gluon import nn

BATCHES = np.random.RandomState(0).uniform(-1, 1, (12, 4, 3, 6, 6)).astype(np.float32)
OVERFLOWS = (2, 7)  # batches whose loss is so large that its gradients overflow


def make_net(policy="float16", channels=4, in_channels=0, ctx=None):
    net = nn.HybridSequential()
    net.add(
        nn.Conv2D(channels, 3, in_channels=in_channels),
        nn.BatchNorm(),
        nn.Activation("relu"),
        nn.Dense(3),
    )
    net.initialize(mx.init.Xavier(), ctx=ctx)
    return amp.cast(net, policy)


def make_trainer(net, optimizer="sgd", loss_scale="short", **settings):
    if loss_scale == "short":
        loss_scale = amp.DynamicLossScale(2.0**10, growth_interval=3)
    if optimizer == "sgd":
        settings = {"momentum": 0.9, "wd": 1e-3, **settings}
    settings = {"learning_rate": 0.01, **settings}
    return amp.Trainer(net.collect_params(), optimizer, settings, loss_scale=loss_scale)


def run(net, trainer, steps):
    """Train on these batches and return what each step did, parameters' names aside."""
    reports = []
    for step in steps:
        with autograd.record():
            loss = (net(nd.array(BATCHES[step])) ** 2).sum()
            if step in OVERFLOWS:
                loss = loss * 1e30
        trainer.backward(loss)
        report = trainer.step(4)
        reports.append((report.applied, report.loss_scale, report.skipped_total))
    return reports


def content(net, trainer):
    """Every bit there is: parameters on each device, masters, optimizer state, counters."""
    params = [[a.asnumpy().tobytes() for a in p.list_data()] for p in net.collect_params().values()]
    masters = [m.asnumpy().tobytes() for m in trainer.master_params().values()]
    return params, masters, repr(trainer.state_dict())


def assert_same(one, other):
    (params, masters, state), (params2, masters2, state2) = one, other
    assert params == params2
    assert masters == masters2
    assert state == state2


@pytest.fixture
def saved(tmp_path):
    """Path of a checkpoint of a float16 net after three steps, with the net and its trainer."""
    net = make_net()
    trainer = make_trainer(net)
    run(net, trainer, range(3))
    return save_checkpoint(tmp_path / "net.ckpt", net, trainer, epoch=3), net, trainer


# ---------------------------------------------------------------------------------- Law 5


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("policy", ["float16", "mixed_float16", "bfloat16", "float32"])
def test_resume_equals_uninterrupted_from_any_step(tmp_path, policy, optimizer):
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
        assert [scale for _, scale, _ in reports] == [
            1024, 1024, 2048, 1024, 1024, 1024, 2048, 2048, 1024,
        ]  # fmt: skip
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
    [("nag", {"momentum": 0.9}), ("lamb", {}), ("lars", {"momentum": 0.9}), ("adamw", {}),
     ("nadam", {}), ("rmsprop", {"centered": True}), ("adadelta", {}), ("ftml", {})],
)  # fmt: skip
def test_resume_equals_uninterrupted_for_every_layout_of_state(tmp_path, optimizer, settings):
    net = make_net()
    trainer = make_trainer(net, optimizer, **settings)
    run(net, trainer, range(4))
    path = save_checkpoint(tmp_path / "net.ckpt", net, trainer)
    other = make_net()
    again = make_trainer(other, optimizer, **settings)
    load_checkpoint(path, other, again)
    assert run(net, trainer, range(4, 7)) == run(other, again, range(4, 7))
    assert_same(content(net, trainer), content(other, again))


def test_loading_twice_and_into_a_used_net_gives_the_same(saved):
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
    weight.set_data(nd.where(weight.data() > 0, nd.full(weight.shape, 0.25, dtype="float16"),
                             weight.data()))  # fmt: skip
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


# ----------------------------------------------------------------------------- all kinds of nets


def test_a_deferred_net_is_initialized_by_loading(saved):
    path, net, trainer = saved
    other = make_net()
    again = make_trainer(other)
    assert other[0].weight.shape == (4, 0, 3, 3)
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
    # Gluon numbers layers as the process makes them, and its Trainer sorts them by these names.
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
            parts = mx.gluon.utils.split_and_load(nd.array(BATCHES[step]), self.contexts)
            with autograd.record():
                losses = [(net(part) ** 2).sum() for part in parts]
            trainer.backward(losses)
            trainer.step(4)

    def test_each_device_gets_its_own_statistics_back(self, tmp_path):
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


# ---------------------------------------------------------------------------------- the file


def test_it_is_a_numpy_archive_with_a_readable_header(saved):
    path, net, trainer = saved
    archive = np.load(path)  # allow_pickle is False by default
    header = json.loads(archive[FILE.header])
    assert (header["format"], header["version"]) == ("gluon_amp checkpoint", 1)
    assert header["policies"] == {"": {"dtypes": ["float16", "float16", "float32"], "pins": []}}
    assert sorted(header["trained"]) == sorted(header["parameters"])
    assert header["parameters"]["0.weight"]["dtype"] == "float16"
    master = archive["parameters/0.weight"]
    assert master.dtype == np.float32
    assert np.array_equal(master, trainer.master_params()[net[0].weight.name].asnumpy())
    assert np.array_equal(master.astype(np.float16), net[0].weight.data().asnumpy())


def test_the_same_state_gives_the_same_bytes(saved, tmp_path):
    path, net, trainer = saved
    again = save_checkpoint(tmp_path / "again.ckpt", net, trainer, epoch=3)
    with open(path, "rb") as one, open(again, "rb") as other:
        assert one.read() == other.read()


def test_the_last_64_bytes_are_the_sha256_of_the_others(saved):
    with open(saved[0], "rb") as file:
        data = file.read()
    assert data[-64:].decode() == hashlib.sha256(data[:-64]).hexdigest()


def test_masters_are_not_saved_twice(tmp_path):
    net = nn.Dense(1000, in_units=1000, use_bias=False)
    net.initialize()
    trainer = make_trainer(amp.cast(net, "float16"), "sgd")
    with autograd.record():
        loss = net(nd.ones((2, 1000))).sum()
    trainer.backward(loss)
    trainer.step(1)
    path = save_checkpoint(tmp_path / "net.ckpt", net, trainer)
    assert 8.0e6 < os.path.getsize(path) < 8.1e6  # master and momentum, 4 bytes each


EXTRA = {
    "epoch": 7,
    "best": 0.1,
    "nothing": None,
    "flag": True,
    "name": "résumé",
    "history": [1.5, float("inf"), (2, "x")],
    "by_step": {3: "c", (1, 2): [None], "k": {}},
    "array": np.arange(6, dtype=np.int16).reshape(2, 3),
    "fortran": np.asfortranarray([[1.0, 2.0], [3.0, 4.0]]),
    "empty": np.zeros((0, 3)),
    "zero_dimensional": np.array(2.5, np.float16),
    "half": np.float16(1.5),
    "names": np.array(["a", "bc"]),
    "nested": [{"deep": np.array([True])}],
}


def test_extra_comes_back_as_it_was(saved, tmp_path):
    _, net, trainer = saved
    path = save_checkpoint(tmp_path / "extra.ckpt", net, trainer, **EXTRA)
    extra = load_checkpoint(path, net, trainer)

    def assert_equal(a, b):
        assert type(a) is type(b)
        if isinstance(a, dict):
            assert list(a) == list(b)
            for key in a:
                assert_equal(a[key], b[key])
        elif isinstance(a, (list, tuple)):
            assert len(a) == len(b)
            for x, y in zip(a, b):
                assert_equal(x, y)
        elif isinstance(a, np.ndarray):
            assert a.dtype == b.dtype
            assert a.shape == b.shape
            assert np.array_equal(a, b)
        else:
            assert a == b

    assert_equal(extra, EXTRA)


def test_random_states_fit_into_extra(saved, tmp_path):
    import random

    _, net, trainer = saved
    state, numpy_state = random.getstate(), np.random.get_state()
    path = save_checkpoint(tmp_path / "r.ckpt", net, trainer, python=state, numpy=numpy_state)
    numbers = random.random(), np.random.rand()
    extra = load_checkpoint(path, net, trainer)
    random.setstate(extra["python"])
    np.random.set_state(extra["numpy"])
    assert (random.random(), np.random.rand()) == numbers


@pytest.mark.parametrize(
    "value, where",
    [
        ({1, 2}, r"extra\['thing'\] is a builtins.set"),
        ([1, {"k": object()}], r"extra\['thing'\]\[1\]\['k'\] is a builtins.object"),
        (np.array([None]), r"extra\['thing'\] is a numpy.ndarray"),
        (lambda: 0, "function"),
        (mx.nd.ones(2), r"call .asnumpy\(\) on it"),
    ],
)
def test_what_cannot_be_saved_is_refused_and_the_old_file_stays(saved, value, where):
    path, net, trainer = saved
    with open(path, "rb") as file:
        before = file.read()
    with pytest.raises(TypeError, match=where):
        save_checkpoint(path, net, trainer, thing=value)
    with open(path, "rb") as file:
        assert file.read() == before


def test_a_net_without_values_is_refused(tmp_path):
    net = make_net()
    with pytest.raises(ValueError, match=r"0.weight, 1.gamma, 1.beta and 3 more have no values"):
        save_checkpoint(tmp_path / "net.ckpt", net, make_trainer(net))
    assert os.listdir(tmp_path) == []


def test_a_net_that_does_not_hold_the_trainers_parameters_is_refused(saved):
    path, net, trainer = saved
    for call in (save_checkpoint, load_checkpoint):
        with pytest.raises(ValueError, match=r"The trainer updates .*conv.*_weight.* not in this"):
            call(path, net[1], trainer)


def test_a_missing_folder_or_file_is_named(saved, tmp_path):
    _, net, trainer = saved
    with pytest.raises(FileNotFoundError, match="There is no folder .*nowhere"):
        save_checkpoint(tmp_path / "nowhere" / "net.ckpt", net, trainer)
    with pytest.raises(FileNotFoundError, match=r"other\.ckpt"):
        load_checkpoint(tmp_path / "other.ckpt", net, trainer)
    with pytest.raises(FileNotFoundError, match="none has been saved yet"):
        load_checkpoint(tmp_path / "other-{step}.ckpt", net, trainer)


# ---------------------------------------------------------------------------------- refusals


def refused(match, path, net, trainer):
    """Assert that loading is refused in one sentence, and that it changed nothing."""
    before = content(net, trainer)
    with pytest.raises(ValueError, match=match) as caught:
        load_checkpoint(path, net, trainer)
    assert "\n" not in str(caught.value)
    assert_same(content(net, trainer), before)


def used(policy="float16", steps=1, channels=4, **kwargs):
    net = make_net(policy, channels)
    trainer = make_trainer(net, **kwargs)
    run(net, trainer, range(steps))
    return net, trainer


def test_truncated_files_are_refused_at_every_length(saved, tmp_path):
    path, net, trainer = saved
    with open(path, "rb") as file:
        data = file.read()
    before = content(net, trainer)
    cut = tmp_path / "cut.ckpt"
    lengths = [0, 1, 4, 30, 60, *range(100, len(data), len(data) // 40), len(data) - 1]
    for length in lengths:
        cut.write_bytes(data[:length])
        expected = "truncated or damaged" if length >= 100 else "not written by|truncated"
        with pytest.raises(ValueError, match=expected):
            load_checkpoint(cut, net, trainer)
    assert_same(content(net, trainer), before)


def test_one_wrong_bit_anywhere_is_refused(saved, tmp_path):
    path, net, trainer = saved
    with open(path, "rb") as file:
        data = file.read()
    before = content(net, trainer)
    bent = tmp_path / "bent.ckpt"
    for position in np.random.RandomState(0).randint(100, len(data), 60):
        wrong = bytearray(data)
        wrong[position] ^= 1 << (position % 8)
        bent.write_bytes(wrong)
        with pytest.raises(ValueError, match="truncated or damaged"):
            load_checkpoint(bent, net, trainer)
    assert_same(content(net, trainer), before)


@pytest.fixture
def small(tmp_path):
    """A checkpoint's bytes and path, its net, and its trainer."""
    net = nn.HybridSequential()
    net.add(nn.Dense(2, in_units=2), nn.BatchNorm(in_channels=2))
    net.initialize()
    trainer = make_trainer(amp.cast(net, "float16"))
    with autograd.record():
        loss = net(nd.ones((2, 2))).sum()
    trainer.backward(loss)
    trainer.step(1)
    path = save_checkpoint(tmp_path / "net.ckpt", net, trainer, epoch=3, order=np.arange(3))
    with open(path, "rb") as file:
        return file.read(), path, net, trainer


def forge(path, data):
    with open(path, "wb") as file:
        file.write(data)


def test_many_forged_headers_are_refused_or_right(small):
    """Anybody can compute a digest, so what the header says is checked, too."""
    data, path, net, trainer = small

    def state():  # one array each of the net's and the optimizer's, as it is done for each
        arrays = net[0].weight.data(), trainer._updaters[0].states[0][1]
        counts = trainer.optimizer._index_update_count, trainer.loss_scale.state_dict()
        return [array.asnumpy().tolist() for array in arrays], repr(counts)

    refusals = 0
    for header in forging.mutations(forging.header_of(data), np.random.RandomState(2), 250):
        net[0].weight.set_data(nd.full((2, 2), 7))  # so that what is loaded shows
        trainer.optimizer._index_update_count[0] = 9
        before = state()
        forge(path, forging.with_header(data, header))
        try:
            extra = load_checkpoint(path, net, trainer)
        except ValueError as error:
            refusals += 1
            assert "\n" not in str(error)
            assert len(str(error)) < 6000
            assert state() == before
        else:
            assert isinstance(extra, dict)
    assert 150 < refusals < 250


@pytest.mark.parametrize(
    "name, array",
    [
        ("parameters/0.weight", np.ones((2, 3), np.float32)),
        ("parameters/0.weight", np.ones((2, 2), np.float64)),
        ("parameters/0.weight", np.ones((2, 2), np.complex64)),
        ("parameters/0.weight", np.ones((2, 2), bool)),
        ("parameters/0.weight", np.array([["a", "b"], ["c", "d"]])),
        ("parameters/0.weight", np.float32(1)),
        ("parameters/0.weight", np.ones((2, 0), np.float32)),
        ("parameters/0.bias", None),
        ("parameters/1.running_mean", np.ones((2, 1), np.float32)),
        ("trainer/6", np.ones(3, np.float32)),
        ("trainer/6", np.ones((2, 2), np.float64)),
        ("trainer/6", np.array(["a"])),
        ("trainer/6", None),
    ],
)
def test_forged_arrays_are_refused(small, name, array):
    _, path, net, trainer = small
    header, arrays = archive.read(FILE, path)
    assert name in arrays
    if array is None:
        del arrays[name]
    else:
        arrays[name] = np.asarray(array)
    forge(path, archive.encode(FILE, header, arrays))
    if name == "parameters/0.weight" and getattr(array, "dtype", None) == np.float64:
        load_checkpoint(path, net, trainer)  # a float64 weight is rounded
        assert (net[0].weight.data().asnumpy() == 1).all()
    else:
        refused("", path, net, trainer)


def test_a_header_that_contradicts_itself(small):
    data, path, net, trainer = small
    forge(path, forging.with_header(data, {**forging.header_of(data), "trained": ["0.weight"]}))
    refused("the optimizer has states of parameters that are not trained", path, net, trainer)
    header = forging.header_of(data)
    header["parameters"]["0.weight"]["arrays"] *= 2
    header["parameters"]["0.weight"]["arrays"][1] = "parameters/0.bias"
    forge(path, forging.with_header(data, header))
    refused("the arrays of 0.weight are missing or different", path, net, trainer)


def test_foreign_files_are_refused(saved, tmp_path):
    _, net, trainer = saved
    path = str(tmp_path / "foreign")
    net.save_parameters(path)
    refused("was not written by amp.save_checkpoint", path, net, trainer)
    trainer.save_states(path)
    refused("was not written by amp.save_checkpoint", path, net, trainer)
    np.savez(path, a=np.ones(3))
    refused("was not written by amp.save_checkpoint", path + ".npz", net, trainer)
    with open(path, "w") as file:
        file.write("hello")
    refused("was not written by amp.save_checkpoint", path, net, trainer)


def test_a_later_version_is_refused(saved, tmp_path, monkeypatch):
    from gluon_amp.checkpoint import save

    _, net, trainer = saved
    monkeypatch.setattr(save, "FILE", FILE._replace(version=2))
    path = save_checkpoint(tmp_path / "later.ckpt", net, trainer)
    monkeypatch.undo()
    refused("has version 2 of the format, this gluon_amp reads 1", path, net, trainer)


def test_another_structure_is_refused_with_near_matches(saved):
    path, *_ = saved
    net = nn.HybridSequential()
    net.add(nn.Conv2D(4, 3), nn.Activation("relu"), nn.BatchNorm(), nn.Dense(3))
    net.initialize()
    trainer = make_trainer(amp.cast(net, "float16"))
    run(net, trainer, [0])
    refused(r"it has no 2.gamma, .*\(did you mean .1.gamma", path, net, trainer)


def test_a_smaller_net_is_refused(saved):
    path, *_ = saved
    net = nn.HybridSequential()
    net.add(nn.Conv2D(4, 3))
    net.initialize()
    trainer = make_trainer(amp.cast(net, "float16"))
    run(net, trainer, [0])
    refused("this one has no 1.gamma, 1.beta, 1.running_mean and 3 more", path, net, trainer)


def test_other_sizes_are_refused(saved):
    path, *_ = saved
    refused(
        r"it has 0.weight with the shape \(4, 3, 3, 3\) and not \(8, 3, 3, 3\)",
        path,
        *used(channels=8),
    )


def test_other_sizes_of_a_deferred_net_are_refused_and_it_stays_deferred(saved):
    path, *_ = saved
    net = make_net(channels=8)
    with pytest.raises(ValueError, match=r"\(4, 3, 3, 3\) and not \(8, 0, 3, 3\)"):
        load_checkpoint(path, net, make_trainer(net))
    assert net[0].weight.shape == (8, 0, 3, 3)
    assert net[0].weight._data is None


@pytest.mark.parametrize(
    "policy, name",
    [
        ("bfloat16", "'bfloat16'"),
        ("mixed_float16", "'mixed_float16'"),
        ("float32", "'float32'"),
        ("params=float16,compute=float16,output=float16", "'params=float16,compute=float16,out"),
    ],
)
def test_another_policy_is_refused_and_both_are_named(saved, policy, name):
    path, *_ = saved
    net = make_net(policy)
    match = f"cast with 'float16', and this net is cast with {name}.*cast it with 'float16' before"
    with pytest.raises(ValueError, match=match):
        load_checkpoint(path, net, make_trainer(net))


def test_the_way_to_another_policy_that_the_refusal_names(saved):
    path, first, trainer = saved
    net = make_net()
    again = make_trainer(net)
    load_checkpoint(path, net, again)
    amp.cast(net, "float32")
    masters = trainer.master_params()
    for param, old in zip(net.collect_params().values(), first.collect_params().values()):
        assert np.array_equal(param.data().asnumpy(), masters[old.name].asnumpy())


@pytest.mark.parametrize(
    "kwargs, match",
    [
        ({"optimizer": "adam"}, r"state of the optimizer .*\.SGD, and this trainer has .*\.Adam"),
        ({"loss_scale": 128}, "loss scale .*DynamicLossScale, and this trainer has .*Static"),
        ({"loss_scale": None}, "loss scale .*DynamicLossScale, and this trainer has .*NoLoss"),
        ({"momentum": 0.0}, "another kind of optimizer state .*momentum=0.9 and not 0.0"),
    ],
)
def test_another_kind_of_trainer_is_refused(saved, kwargs, match):
    path, *_ = saved
    refused(match, path, *used(**kwargs))


def test_a_setting_that_changes_the_arrays_of_the_state_is_refused(tmp_path):
    net, trainer = used(optimizer="rmsprop", centered=True)
    path = save_checkpoint(tmp_path / "net.ckpt", net, trainer)
    other = used(optimizer="rmsprop", centered=False)
    refused("another kind of optimizer state for .*centered=True and not False", path,
            *other)  # fmt: skip


def test_a_trainer_of_other_parameters_is_refused(saved):
    path, *_ = saved
    net = make_net()
    trainer = amp.Trainer(
        net[3].collect_params(), "sgd", {"momentum": 0.9},
        loss_scale=amp.DynamicLossScale(2.0**10, growth_interval=3),
    )  # fmt: skip
    match = r"had 8 parameters and this one has 2, different in 0.bias, 0.weight, 1.beta and 3 more"
    with pytest.raises(ValueError, match=match):
        load_checkpoint(path, net, trainer)


# ---------------------------------------------------------------------------------- settings stay


def test_learning_rate_and_weight_decay_stay_the_trainers_own(saved, caplog):
    path, *_ = saved
    net = make_net()
    trainer = make_trainer(net, learning_rate=0.5, wd=0.0)
    with caplog.at_level(logging.WARNING, "gluon_amp"):
        load_checkpoint(path, net, trainer)
    assert trainer.learning_rate == 0.5
    assert trainer.optimizer.wd == 0.0
    (record,) = caplog.records
    assert record.getMessage() == (
        "net.ckpt was saved with lr=0.01 and not 0.5, wd=0.001 and not 0.0; this run keeps its own."
    )


def test_nothing_is_said_where_nothing_differs(saved, caplog, recwarn):
    path, *_ = saved
    net = make_net()
    with caplog.at_level(logging.INFO, "gluon_amp"):
        load_checkpoint(path, net, make_trainer(net))
    assert not caplog.records
    assert not [w for w in recwarn if "saved" in str(w.message)]


def test_the_optimizer_object_stays_the_same(saved):
    path, *_ = saved
    net = make_net()
    trainer = make_trainer(net)
    optimizer = trainer.optimizer
    load_checkpoint(path, net, trainer)
    assert trainer.optimizer is optimizer


def test_the_loss_scale_is_taken_over_whole(saved):
    path, _, trainer = saved
    net = make_net()
    again = make_trainer(net, loss_scale=amp.DynamicLossScale(2.0**16, growth_interval=500))
    load_checkpoint(path, net, again)
    assert again.loss_scale.state_dict() == trainer.loss_scale.state_dict()
    assert again.loss_scale.growth_interval == 3


def test_what_was_saved_beside_the_net_can_be_read_alone(saved, tmp_path):
    path, net, trainer = saved
    save_checkpoint(path, net, trainer, epoch=7, best={"top1": 0.5}, order=np.arange(3))
    extra = read_extra(path)
    assert (extra["epoch"], extra["best"], extra["order"].tolist()) == (7, {"top1": 0.5}, [0, 1, 2])
    with open(path, "r+b") as file:
        file.truncate(1000)
    with pytest.raises(ValueError, match="is truncated or damaged"):
        read_extra(path)


# ---------------------------------------------------------------------------------- keep


def names(folder):
    return sorted(os.listdir(folder))


def test_keep_leaves_the_newest(tmp_path):
    net = make_net()
    trainer = make_trainer(net)
    for step in (0, 1, 3, 4, 5):
        run(net, trainer, [step])
        save_checkpoint(tmp_path / "net-{step}.ckpt", net, trainer, keep=2, data=step)
    assert names(tmp_path) == ["net-4.ckpt", "net-5.ckpt"]
    assert load_checkpoint(tmp_path / "net-{step}.ckpt", net, trainer) == {"data": 5}
    assert load_checkpoint(tmp_path / "net-4.ckpt", net, trainer) == {"data": 4}


def test_steps_are_compared_as_numbers_and_other_files_are_left_alone(saved, tmp_path):
    _, net, trainer = saved  # its step is 2
    trainer.optimizer.num_update = 100
    others = ["net-x.ckpt", "net-7.ckpt.bak", "anet-7.ckpt", "net-.ckpt", "net-7.CKPT", "net.ckpt"]
    for name in [*others, "net-9.ckpt", "net-10.ckpt", "net-200.ckpt"]:
        (tmp_path / name).write_text("")
    save_checkpoint(tmp_path / "net-{step}.ckpt", net, trainer, keep=2)
    # 200 is later than the step just saved: of a run that has been given up, but not ours to judge.
    kept = ["net-100.ckpt", "net-200.ckpt"]
    assert names(tmp_path) == sorted([*others, *kept])


def test_keep_never_removes_the_file_just_written(saved, tmp_path):
    _, net, trainer = saved
    for step in (50, 60, 70):
        (tmp_path / f"net-{step}.ckpt").write_text("")
    path = save_checkpoint(tmp_path / "net-{step}.ckpt", net, trainer, keep=1)
    assert os.path.exists(path)


def test_without_keep_nothing_is_removed(saved, tmp_path):
    _, net, trainer = saved
    folder = tmp_path / "{step}" / "run"
    folder.mkdir(parents=True)
    for step in range(3):
        trainer.optimizer.num_update = step
        save_checkpoint(folder / "a{step}-{step}.ckpt", net, trainer)
    assert names(folder) == ["a0-0.ckpt", "a1-1.ckpt", "a2-2.ckpt"]


@pytest.mark.parametrize("keep", [0, -1, 2.0, True, "3"])
def test_a_keep_that_is_no_number_of_files_is_refused(saved, keep):
    path, net, trainer = saved
    with pytest.raises(ValueError, match="keep must be a whole number of at least 1, received"):
        save_checkpoint(path, net, trainer, keep=keep)


def test_keep_needs_numbered_files(saved):
    path, net, trainer = saved
    with pytest.raises(ValueError, match=r"put \{step\} into the name, as in 'net-\{step\}.ckpt'"):
        save_checkpoint(path, net, trainer, keep=3)


def test_what_killed_writers_left_is_removed_at_the_next_save(saved, tmp_path):
    path, net, trainer = saved
    left, written = tmp_path / "net-3.ckpt.ab12_xyz.unfinished", tmp_path / "a.abcdefgh.unfinished"
    for name in (left, written, tmp_path / "notes.unfinished", tmp_path / "net.ckpt.abcdefgh"):
        name.write_text("half")
    with open(written) as writing:
        fcntl.flock(writing, fcntl.LOCK_EX)  # as one who is not yet done has it
        save_checkpoint(path, net, trainer)
        others = ["net.ckpt", "net.ckpt.abcdefgh", "notes.unfinished"]
        assert names(tmp_path) == [written.name, *others]
    save_checkpoint(path, net, trainer)
    assert names(tmp_path) == others


LEAVES_HALF = """
    os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    save_checkpoint(os.path.join(folder, "net.ckpt"), *new)
"""


def test_kill_9_leaves_nothing_for_longer_than_one_save(saved, tmp_path):
    path, net, trainer = saved
    code = textwrap.dedent(SETUP) + textwrap.dedent(LEAVES_HALF)
    killed = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert len(names(tmp_path)) == 2
    save_checkpoint(path, net, trainer)
    assert names(tmp_path) == ["net.ckpt"]


# ---------------------------------------------------------------------------------- crashes

SETUP = """
    import os, signal, sys
    import gluon_amp as amp
    from gluon_amp.checkpoint import load_checkpoint, save_checkpoint
    import mxnet as mx
    folder = sys.argv[1]

    def build(value):
        net = mx.gluon.nn.Dense(64, in_units=64)
        net.initialize(mx.init.Constant(value))
        return net, amp.Trainer(amp.cast(net, "float16").collect_params(), "sgd")

    old, new = build(1.0), build(2.0)
"""

KILLER = """
    class Kill:
        # Counts the system calls of a save, and dies right before the one with a given number.
        def __init__(self, at):
            self.at, self.count = at, 0

        def call(self, function):
            def counted(*args, **kwargs):
                self.count += 1
                if self.count == self.at:
                    os.kill(os.getpid(), signal.SIGKILL)
                return function(*args, **kwargs)
            return counted

        def install(self):
            for name in ("open", "close", "fsync", "replace", "unlink", "chmod"):
                setattr(os, name, self.call(getattr(os, name)))
            fdopen = os.fdopen
            os.fdopen = lambda *args: Slow(fdopen(*args), self)

    class Slow:
        # Writes in pieces, as the system may.
        def __init__(self, file, kill):
            self.file, self.kill = file, kill

        def write(self, data):
            piece = len(data) // 12 + 1
            for start in range(0, len(data), piece):
                self.kill.call(self.file.write)(data[start : start + piece])
                self.file.flush()

        def __getattr__(self, name):
            return getattr(self.file, name)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.file.close()

    def attempt(save, at):
        # In a process of its own; the number of calls it made, or None when it was killed.
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            kill = Kill(at)
            write, exit_now = os.write, os._exit
            kill.install()
            save()
            write(writing, str(kill.count).encode())
            exit_now(0)
        _, status = os.waitpid(child, 0)
        os.close(writing)
        with os.fdopen(reading) as file:
            said = file.read()
        if os.WIFSIGNALED(status):
            assert os.WTERMSIG(status) == signal.SIGKILL
            return None
        assert status == 0
        return int(said)

    def what(path):
        extra = load_checkpoint(path, *spare)
        assert (spare[0].weight.data().asnumpy() == {"old": 1, "new": 2}[extra["which"]]).all()
        return extra["which"]

    spare = build(3.0)
    kills, outcomes = 0, []

    # One file that is replaced.
    path = os.path.join(folder, "one.ckpt")
    at = 0
    while True:
        save_checkpoint(path, *old, which="old")
        at += 1
        count = attempt(lambda: save_checkpoint(path, *new, which="new"), at)
        outcomes.append(what(path))
        if count is not None:
            assert outcomes[-1] == "new"
            break
        kills += 1
    assert "old" in outcomes and "new" in outcomes[:-1]
    assert outcomes == sorted(outcomes, key=["old", "new"].index)

    # Numbered files, of which two are kept.
    pattern = os.path.join(folder, "many-{step}.ckpt")
    at = 0
    while True:
        for step in (1, 2, 3):
            old[1].optimizer.num_update = step
            save_checkpoint(pattern, *old, which="old")
        new[1].optimizer.num_update = 4
        at += 1
        count = attempt(lambda: save_checkpoint(pattern, *new, keep=2, which="new"), at)
        newest = what(pattern)
        left = [s for s in (1, 2, 3, 4) if os.path.exists(pattern.replace("{step}", str(s)))]
        assert left[-2:] == ([3, 4] if newest == "new" else [2, 3])
        for step in left[:-1]:
            assert what(pattern.replace("{step}", str(step))) == "old"
        if count is not None:
            assert left == [3, 4]
            break
        if newest == "new":
            os.unlink(pattern.replace("{step}", "4"))
        kills += 1

    # No file before.
    path = os.path.join(folder, "first.ckpt")
    at = 0
    while True:
        at += 1
        count = attempt(lambda: save_checkpoint(path, *new, which="new"), at)
        if os.path.exists(path):
            assert what(path) == "new"
            os.unlink(path)
        if count is not None:
            break
        kills += 1
    print(kills)
"""


def in_a_process(code, folder, **env):
    # Without engine threads, so that the process can be forked.
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(folder)],
        env={**os.environ, "MXNET_ENGINE_TYPE": "NaiveEngine", "OMP_NUM_THREADS": "1", **env},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_kill_9_between_any_two_system_calls_loses_nothing(tmp_path):
    kills = int(in_a_process(textwrap.dedent(SETUP) + textwrap.dedent(KILLER), tmp_path))
    assert kills >= 50


FULL_DISK = """
    import resource
    path = os.path.join(folder, "net.ckpt")
    save_checkpoint(path, *old, which="old")
    with open(path, "rb") as file:
        before = file.read()
    for size in (0, 100, 4096, len(before) - 1):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
        try:
            save_checkpoint(path, *new, which="new")
            print("no error")
        except OSError as error:
            print(error.errno, error)
        assert os.listdir(folder) == ["net.ckpt"]
        with open(path, "rb") as file:
            assert file.read() == before
    assert load_checkpoint(path, *new) == {"which": "old"}
"""


def test_a_full_disk_is_told_and_the_previous_file_stays(tmp_path):
    lines = in_a_process(textwrap.dedent(SETUP) + textwrap.dedent(FULL_DISK), tmp_path).splitlines()
    assert len(lines) == 4
    for line in lines:
        assert line.startswith(f"{errno.EFBIG} ")
        assert re.search(r"The checkpoint of 0\.0 MB was not written \(File too large\), and what "
                         r"was there before is unchanged: '.*net\.ckpt'", line)  # fmt: skip


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_told(saved, tmp_path):
    path, net, trainer = saved
    os.chmod(tmp_path, 0o500)
    try:
        with pytest.raises(PermissionError, match="was not written"):
            save_checkpoint(path, net, trainer)
    finally:
        os.chmod(tmp_path, 0o700)
