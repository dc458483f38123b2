"""Loops as in the D2L book, and arrays whose kind is not that of the current mode (Law 13)."""

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp import Trainer
from tests.casting.nets import POLICIES
from tests.trainer.helpers import bad, fine, norm_net, parameter, run, same, scaled, statistics

import mxnet as mx
from mxnet import autograd, gluon, npx
from mxnet.gluon import nn

STATES = {"sgd": {"momentum": 0.5}, "adam": {}, "rmsprop": {}}


@pytest.fixture
def numpy_mode():
    """`npx.set_np()`, which the test may end."""
    npx.set_np()
    yield
    npx.reset_np()


# ------------------------------------------------------------------------------ losses and numbers


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    "reduce, batch_size",
    [
        (lambda loss: loss, 2),
        (lambda loss: loss.sum(), np.int64(2)),
        (lambda loss: loss.mean(), 1.0),
        (lambda loss: [loss[0], loss[1]], mx.nd.array([2])),
        # D2L's Seq2Seq divides by the number of tokens, which its loop computes
        (lambda loss: loss.sum(), mx.nd.array([1, 1]).as_np_ndarray().sum()),
    ],
    ids=["samples", "sum", "mean", "scalars", "tokens"],
)
def test_losses_of_any_shape_give_the_same_step(numpy_mode, policy, reduce, batch_size):
    def step(reduce, batch_size):
        net = amp.cast(norm_net(), policy)
        trainer = scaled(net)
        with autograd.record():
            loss = reduce(gluon.loss.L2Loss()(net(fine()), mx.np.zeros((2, 2))))
        trainer.backward(loss)
        norm = trainer.clip_global_norm(mx.np.array(0.25), batch_size)
        assert trainer.step(batch_size).applied
        return norm, {name: p.data().asnumpy() for name, p in net.collect_params().items()}

    (norm, weights), (expected_norm, expected) = step(reduce, batch_size), step(lambda x: x, 2)
    assert norm == pytest.approx(expected_norm, rel=1e-6)
    for value, wanted in zip(weights.values(), expected.values()):
        np.testing.assert_allclose(value, wanted, rtol=1e-6)


@pytest.mark.parametrize("wrong", [mx.nd.array([1, 2]), mx.nd.array([-1])])
def test_arrays_that_are_no_number_above_0(wrong):
    p = parameter("p", [1.0])
    trainer = Trainer([p], "sgd")
    run(trainer, [(p, [1.0])], step=False)
    with pytest.raises(ValueError, match="batch_size must be a number above 0"):
        trainer.step(wrong)


# ------------------------------------------------------------------------------ other modes


@pytest.mark.parametrize("policy", POLICIES)
def test_training_goes_on_after_reset_np(numpy_mode, policy):
    """A net that was traced under `set_np()` still returns arrays of `mx.np` afterwards."""

    def train(resets=None):
        npx.set_np()
        net = amp.cast(norm_net(prefix="net_"), policy)
        trainer = Trainer(net.collect_params(), "adam", loss_scale="dynamic")
        x, spoilt = fine(), bad()
        for step, data in enumerate((x, x, spoilt, x)):
            if resets == step:
                npx.reset_np()
            with autograd.record():
                loss = (net(data) ** 2 / 1024).mean()
            assert loss.shape == ()
            before = statistics(net)
            trainer.backward(loss)
            trainer.clip_global_norm(1.0)
            assert trainer.step(1).applied == (data is x)
            if data is spoilt:
                same(before, statistics(net))
        net(x)  # in inference it has another trace
        return {name: value.asnumpy() for name, value in trainer.master_params().items()}

    expected = train()
    same(expected, train(resets=0))
    same(expected, train(resets=1))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("cast_in", ["nd", "np"])
@pytest.mark.parametrize("run_in", ["nd", "np"])
@pytest.mark.filterwarnings("error::UserWarning")
def test_blocks_that_change_the_mode_themselves(numpy_mode, policy, cast_in, run_in):
    """As `mx.util.use_np` makes a class do, in any mode."""

    class Decorated(nn.HybridBlock):
        def __init__(self):
            super().__init__(prefix="net_")
            with self.name_scope():
                self.inner = nn.HybridSequential()
                self.inner.add(nn.Dense(2, in_units=2), nn.BatchNorm(in_channels=2))

        def hybrid_forward(self, F, x):
            return F.np.tanh(self.inner(x))

    net = mx.util.use_np(Decorated)()
    net.initialize(mx.init.One())
    x, modes = fine(), {"nd": npx.reset_np, "np": npx.set_np}
    modes[cast_in]()
    amp.cast(net, policy)
    modes[run_in]()
    trainer = scaled(net)
    assert amp.diagnose(net, lambda out, _: (out**2).sum(), x, None, 1).verdict == "ok"
    for data in (x, x * np.inf):
        with autograd.record():
            loss = (net(data) ** 2).sum()
        trainer.backward(loss)
        assert trainer.step(1).applied == (data is x)
    dtypes = {row.op: row.compute_dtype for row in amp.describe(net, x).rows}
    assert dtypes["FullyConnected"] == policy.replace("mixed_", "")
    assert type(net(x)) is mx.np.ndarray


@pytest.mark.parametrize("optimizer", STATES)
@pytest.mark.parametrize("kind, other", [("nd", "np"), ("np", "nd")])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_trainers_and_states_of_arrays_of_the_other_kind(
    numpy_mode, tmp_path, optimizer, kind, other, dtype
):
    """The parameters are of one kind, and everything else happens in the mode of the other."""
    modes = {"nd": npx.reset_np, "np": npx.set_np}

    def train(present):
        modes[kind]()
        p, q = parameter("p", [1.0, 2.0], dtype), parameter("q", [1.0, 2.0], dtype)
        arrays = type(p.data())
        modes[present]()
        trainers = [Trainer([one], optimizer, STATES[optimizer], loss_scale=8) for one in (p, q)]
        for factor in (0.5, np.inf, 0.25):
            modes[kind]()
            run(trainers[0], [(p, [factor, 1.0])], step=False)
            modes[present]()
            assert trainers[0].step(1).applied == np.isfinite(factor)
        trainers[0].save_states(str(tmp_path / "states"))
        trainers[1].load_states(str(tmp_path / "states"))
        q.set_data(p.data())
        for one in trainers:
            p.data()[0] = 4.0  # a write that the masters follow
            q.data()[0] = 4.0
            one.refresh_masters()
        (first,), (second,) = (one.master_params().values() for one in trainers)
        assert type(first) is type(second) is arrays
        np.testing.assert_array_equal(first.asnumpy()[0], 4.0)
        np.testing.assert_array_equal(second.asnumpy()[0], 4.0)
        return {"p": first.asnumpy()}

    same(train(kind), train(other))


@pytest.mark.parametrize("policy", POLICIES)
def test_gradients_of_arrays_are_set_to_zero(arrays, policy):
    net = amp.cast(norm_net(), policy)
    for p in net.collect_params().values():
        if p.grad_req == "write":
            p.grad_req = "add"
    trainer = scaled(net)
    weight = net[0].weight
    for zero in (weight.zero_grad, net.collect_params().zero_grad):
        with autograd.record():
            loss = net(fine()).sum()
        trainer.backward(loss)
        net[0].weight.grad()[:] = 5
        zero()
        assert (weight.grad().asnumpy() == 0).all()
        assert trainer.step(1).applied
