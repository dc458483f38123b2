"""Delayed scaling: a scale follows the largest magnitudes of earlier steps."""

import copy

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp.lowering.study import delayed_scaling
from tests.lowering.study.studied import E4M3, HYBRID, arrays, inside, one_product, rounded, run
from tests.marks import needs_library
from tests.trainer.helpers import TWO, backward

import mxnet as mx
from mxnet import autograd, nd
from mxnet.gluon import nn

pytestmark = needs_library


def histories(trainer):
    return {
        name.split(" ", 1)[1]: values.tolist()
        for name, values in delayed_scaling.collect(trainer.parameters).items()
    }


def trained(net, data, trainer=None, head=1.0, **arguments):
    """Make one step per array of data; return the trainer and the reports."""
    if trainer is None:
        trainer = amp.Trainer(net.collect_params(), "sgd", {"learning_rate": 0}, **arguments)
    reports = []
    for x in data:
        with autograd.record():
            loss = net(nd.array(x)) * head
        trainer.backward(loss)
        reports.append(trainer.step(1))
    return trainer, reports


def test_a_scale_follows_the_largest_magnitude_of_earlier_steps():
    net = one_product(HYBRID)
    net.weight.set_data(nd.ones((3, 4)))
    x = np.array([[1, 0.3, 0.017, 0]], "f")
    trainer, _ = trained(net, [x, 4 * x, 2 * x])
    assert histories(trainer) == {
        ":FullyConnected:1:0": [1, 4, 2],
        ":FullyConnected:1:1": [1, 1, 1],
        ":FullyConnected:1:gradient": [1, 1, 1],
    }
    # The largest is 4, so 448 / 4 holds 4 * 2**6 and not 4 * 2**7; 28 saturates at 448 / 2**6 = 7.
    y = net(nd.array(28 * x)).asnumpy()
    saturated = rounded(28 * x, E4M3, largest=4)
    assert saturated.max() == 7
    np.testing.assert_allclose(y, [[saturated.sum()] * 3], rtol=1e-6)
    assert histories(trainer)[":FullyConnected:1:0"] == [1, 4, 2]  # prediction records nothing


def test_without_a_trainer_the_scale_follows_the_tensor():
    x, head = arrays()
    net = one_product(HYBRID)
    w = net.weight.data().asnumpy()
    for factor in (1, 100, 0.01):
        y, _, _ = run(net, x * factor, head)
        expected = rounded((x * factor).astype("f"), E4M3) @ rounded(w, E4M3).T
        np.testing.assert_allclose(y, expected, rtol=1e-6)


def test_the_history_has_1024_steps_and_no_zeros_or_infinities(monkeypatch):
    assert delayed_scaling.HISTORY == 1024
    monkeypatch.setattr(delayed_scaling, "HISTORY", 3)
    net = one_product(HYBRID)
    trainer, _ = trained(net, [[[9, 0, 0, 0]], *[[[1, 0, 0, 0]]] * 2])
    assert histories(trainer)[":FullyConnected:1:0"] == [9, 1, 1]
    trained(
        net, [[[2, 0, 0, 0]], np.zeros((1, 4)), [[np.inf, 1, 0, 0]], [[np.nan, 4, 0, 0]]], trainer
    )
    assert histories(trainer)[":FullyConnected:1:0"] == [1, 2, 4]


def test_micro_batches_share_the_scale_of_a_step():
    net = one_product(HYBRID)
    net.collect_params().setattr("grad_req", "add")
    trainer, _ = trained(net, [[[1, 2, 3, 4]]])
    net.collect_params().zero_grad()
    parts = nd.random.normal(shape=(4, 4))
    for part in (parts[:1], parts[1:]):
        backward(trainer, net, part)
    added = net.weight.grad().asnumpy()
    assert len(histories(trainer)[":FullyConnected:1:0"]) == 1
    net.collect_params().zero_grad()
    backward(trainer, net, parts)
    np.testing.assert_allclose(added, net.weight.grad().asnumpy(), rtol=1e-6)


def test_a_skipped_step_leaves_no_trace_in_the_history():
    net = one_product(HYBRID)
    trainer, _ = trained(net, [[[1, 1, 1, 1]]], check_finite=True)
    before = histories(trainer)
    _, (report,) = trained(net, [[[7, 1, 1, 1]]], trainer, head=np.nan)
    assert not report.applied and histories(trainer) == before
    trained(net, [[[2, 1, 1, 1]]], trainer)
    assert histories(trainer)[":FullyConnected:1:0"] == [1, 2]


def test_a_resumed_run_has_the_bits_of_the_uninterrupted_one(tmp_path):
    def build():
        net = inside(nn.Dense(4, in_units=4))
        amp.cast(net, HYBRID)
        net.initialize(mx.init.Constant(0.1))
        return net, amp.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.01})

    data = np.random.RandomState(2).normal(size=(6, 3, 4)).astype("f")
    data[1] *= 30  # so that the scale of the later steps depends on an earlier one
    whole, trainer = build()
    trained(whole, data, trainer)
    first, trainer = build()
    trained(first, data[:3], trainer)
    path = amp.save_checkpoint(str(tmp_path / "net.ckpt"), first, trainer)
    resumed, trainer = build()
    amp.load_checkpoint(path, resumed, trainer)
    trained(resumed, data[3:], trainer)
    for one, other in zip(*(net.collect_params().values() for net in (whole, resumed))):
        np.testing.assert_array_equal(one.data().asnumpy(), other.data().asnumpy())
    forgotten, trainer = build()
    amp.load_checkpoint(path, forgotten, trainer)
    delayed_scaling.restore(trainer.parameters, {})
    trained(forgotten, data[3:], trainer)
    assert any(
        (one.data() != other.data()).sum().asscalar()
        for one, other in zip(*(net.collect_params().values() for net in (whole, forgotten)))
    )


@pytest.mark.parametrize("forged", [[], [0.0], [-1.0], [np.inf], [np.nan], [[1.0]], [1.0] * 1025])
def test_a_forged_history_is_refused_and_a_state_without_one_fits(forged):
    net = one_product(HYBRID)
    trainer, _ = trained(net, [[[1, 2, 3, 4]]])
    state = trainer.state_dict()
    name = next(iter(state["amax_histories"]))
    state["amax_histories"][name] = np.array(forged, np.float32)
    with pytest.raises(ValueError, match="largest magnitudes of up to 1,024 steps"):
        trainer.load_state_dict(state)
    del state["amax_histories"]
    trainer.load_state_dict(state)
    assert histories(trainer) == {}


def test_traces_share_scales_and_copies_do_not():
    net = one_product(HYBRID)
    trained(net, [[[1, 2, 3, 400]]])
    twin = copy.deepcopy(net)
    x = nd.array([[1, 1, 1, 1]])
    delayed = net(x).asnumpy()  # another trace, that of inference
    with autograd.record():
        np.testing.assert_array_equal(net(x).asnumpy(), delayed)
    w8 = rounded(net.weight.data().asnumpy(), E4M3)
    np.testing.assert_allclose(twin(x).asnumpy(), w8.sum(1)[None], rtol=1e-6)


def test_two_devices_share_the_largest_magnitude():
    net = amp.cast(
        nn.Dense(3, in_units=4, use_bias=False),
        amp.Policy(HYBRID).pin(ops=["FullyConnected"], dtype="float8_e4m3"),
    )
    net.initialize(ctx=TWO)
    trainer = amp.Trainer(net.collect_params(), "sgd")
    with autograd.record():
        losses = [net(nd.full((1, 4), size, ctx=device)) for size, device in zip((1, 5), TWO)]
    trainer.backward(losses)
    trainer.step(1)
    assert histories(trainer)[":FullyConnected:1:0"] == [5]
