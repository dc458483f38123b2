"""Failures of `mxnet.contrib.amp` in MXNet 1.9.1, and gluon_amp's results in the same cases.

The tests are named after the failure. If contrib.amp can be run without changing the process, the
test shows its failure first.
"""

import contextlib
import json

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp import symbolic
from gluon_amp.base.mxnet_internals import internal_operators

import mxnet as mx
from mxnet import autograd, nd
from mxnet.contrib.amp.loss_scaler import LossScaler
from mxnet.gluon import nn

RNG = np.random.RandomState(0)
DATA = nd.array(RNG.uniform(-1, 1, (4, 3, 8, 8)))
LABEL = nd.array([0, 1, 2, 0])
CROSS_ENTROPY = mx.gluon.loss.SoftmaxCrossEntropyLoss()


def conv_net(policy="float16"):
    net = nn.HybridSequential()
    net.add(nn.Conv2D(4, 3), nn.BatchNorm(), nn.Activation("relu"), nn.Dense(3))
    net.initialize(mx.init.Xavier())
    return amp.cast(net, policy)


def one_weight(policy="float16", value=1.0, grad_req="write"):
    """A layer y = w * x with one weight, whose gradient is x."""
    net = nn.Dense(1, in_units=1, use_bias=False, weight_initializer=mx.init.Constant(value))
    net.initialize()
    net.weight.grad_req = grad_req
    return amp.cast(net, policy)


def backward(net, trainer, x, factor=1.0):
    with autograd.record():
        loss = net(nd.array([[x]])).sum() * factor
    trainer.backward(loss)


def train(net, trainer, steps, factor=1.0):
    losses = []
    for _ in range(steps):
        with autograd.record():
            loss = CROSS_ENTROPY(net(DATA), LABEL)
        trainer.backward(loss * factor if factor != 1 else loss)
        report = trainer.step(len(DATA))
        losses.append(loss.mean().asscalar())
    return losses, report


def weight(net):
    return net.weight.data().asscalar()


# 1 ------------------------------------------------------------------------------------------------


def test_1_amp_init_patches_the_whole_process():
    modules = (
        *(mx.nd, mx.sym, mx.nd.contrib, mx.sym.contrib, internal_operators, mx.gluon.nn),
        *(mx.gluon.Trainer, mx.gluon.HybridBlock, mx.optimizer.Optimizer),
    )

    def attributes():
        return [{name: id(value) for name, value in vars(module).items()} for module in modules]

    stock = nn.HybridSequential()
    stock.add(nn.Conv2D(4, 3), nn.BatchNorm(), nn.Dense(3))
    stock.initialize()
    before, result = attributes(), stock(DATA).asnumpy()
    net = conv_net()
    trainer = amp.Trainer(net.collect_params(), "sgd")
    train(net, trainer, 2)
    assert np.array_equal(stock(DATA).asnumpy(), result)
    assert stock[0].weight.dtype == np.float32
    # A cast can be undone, too.
    amp.cast(net, "float32")
    assert type(net) is nn.HybridSequential
    assert np.array_equal(stock(DATA).asnumpy(), result)
    assert attributes() == before


# 2 ------------------------------------------------------------------------------------------------


def test_2_the_overflow_check_raises_on_gradients_of_two_dtypes():
    net = conv_net()
    trainer = amp.Trainer(net.collect_params(), "sgd", loss_scale=8)
    train(net, trainer, 1)
    with autograd.record():
        loss = CROSS_ENTROPY(net(DATA), LABEL)
    trainer.backward(loss)
    dtypes = {np.dtype(p.dtype).name for p in net.collect_params().values()}
    assert dtypes == {"float16", "float32"}
    with pytest.raises(mx.base.MXNetError):
        LossScaler().has_overflow(net.collect_params().values())
    assert trainer.step(4).applied


def test_2_the_overflow_check_aborts_above_200_arrays():
    net = nn.HybridSequential()
    for _ in range(130):
        net.add(nn.Dense(1, in_units=1))
    net.initialize(mx.init.Constant(1))
    amp.cast(net, "float16")
    trainer = amp.Trainer(net.collect_params(), "sgd", loss_scale=1)
    assert len(net.collect_params().keys()) == 260
    backward(net, trainer, 1.0)
    assert trainer.step(1).applied
    backward(net, trainer, np.inf)
    report = trainer.step(1)
    assert not report.applied
    assert len(report.overflow) >= 1


def test_2_the_overflow_check_sees_the_first_device_only():
    contexts = [mx.cpu(0), mx.cpu(1)]
    net = nn.Dense(1, in_units=1, use_bias=False, weight_initializer="ones")
    net.initialize(ctx=contexts)
    amp.cast(net, "float16")
    trainer = amp.Trainer(net.collect_params(), "sgd", kvstore=None, loss_scale=1)
    with autograd.record():
        losses = [net(nd.array([[x]], ctx=ctx)).sum() for x, ctx in zip((1, np.inf), contexts)]
    trainer.backward(losses)
    assert not trainer.step(2).applied
    assert [w.asscalar() for w in net.weight.list_data()] == [1, 1]


def test_2_row_sparse_frozen_and_unused_parameters_break_the_check():
    net = nn.HybridSequential()
    net.add(nn.Embedding(10, 2, sparse_grad=True), nn.Dense(1), nn.Dense(1))
    net.initialize()
    net[2].collect_params().setattr("grad_req", "null")
    amp.cast(net, "mixed_float16")
    trainer = amp.Trainer(net.collect_params(), "sgd", loss_scale=4)
    backward(net, trainer, 1)
    assert trainer.step(1).applied
    backward(net, trainer, 1, np.inf)
    assert not trainer.step(1).applied

    frozen = one_weight(grad_req="null")
    trainer = amp.Trainer(frozen.collect_params(), "sgd", loss_scale=4)
    with pytest.raises(IndexError):
        LossScaler().has_overflow(frozen.collect_params().values())
    frozen(nd.array([[1]]))
    trainer.backward([one_loss()])
    assert trainer.step(1).applied


def one_loss():
    x = nd.ones((1,))
    x.attach_grad()
    with autograd.record():
        return x * 2


def test_2_the_stale_gradient_of_an_unused_parameter_halves_the_scale_forever():
    net = nn.HybridSequential()
    net.add(one_weight(), one_weight())
    trainer = amp.Trainer(net.collect_params(), "sgd", loss_scale="dynamic")
    with autograd.record():
        loss = net[1](net[0](nd.array([[np.inf]]))).sum()
    trainer.backward(loss)
    assert not trainer.step(1, ignore_stale_grad=True).applied
    for _ in range(3):
        backward(net[0], trainer, 0.25)
        report = trainer.step(1, ignore_stale_grad=True)
        assert report.applied
    assert report.next_loss_scale == 2.0**15


# 3 ------------------------------------------------------------------------------------------------


def closed_loop(scale, update):
    """Overflow at scales above 4096; return the skipped steps and the last scale."""
    skips = 0
    for _ in range(20):
        overflow = scale() > 4096
        skips += overflow
        update(overflow)
    return skips, scale()


def test_3_the_scale_lags_one_step_and_falls_twice():
    theirs = LossScaler()

    def update(overflow):
        param = mx.gluon.Parameter("p", shape=(1,))
        param.initialize()
        param.grad()[:] = np.inf if overflow else 1
        theirs.has_overflow([param])

    assert closed_loop(lambda: theirs.loss_scale, update) == (5, 2048)
    ours = amp.DynamicLossScale()
    assert closed_loop(lambda: ours.scale, lambda overflow: ours.update(not overflow)) == (4, 4096)


def test_3_one_overflow_costs_two_steps():
    net = one_weight()
    scale = amp.DynamicLossScale(2.0**15)
    trainer = amp.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.5}, loss_scale=scale)
    reports = []
    for factor in (1, 1e30, 1, 1):
        backward(net, trainer, 0.25, factor)
        reports.append(trainer.step(1))
    assert [r.applied for r in reports] == [True, False, True, True]
    assert [r.loss_scale for r in reports] == [2.0**15, 2.0**15, 2.0**14, 2.0**14]
    assert weight(net) == 1 - 3 * 0.5 * 0.25


def test_3_the_scale_decays_to_zero():
    theirs = LossScaler()
    param = mx.gluon.Parameter("p", shape=(1,))
    param.initialize()
    param.grad()[:] = np.inf
    for _ in range(1200):
        theirs.has_overflow([param])
    assert theirs.loss_scale == 0
    net = one_weight()
    scale = amp.DynamicLossScale(8.0)
    trainer = amp.Trainer(net.collect_params(), "sgd", loss_scale=scale, max_consecutive_skips=5)
    with pytest.raises(
        FloatingPointError, match="5 steps in a row .* at loss scale 5.96046e-08, which cannot"
    ):
        for _ in range(1200):
            backward(net, trainer, 1, 1e30)
            trainer.step(1)
    assert trainer.loss_scale.scale == 2.0**-24
    assert weight(net) == 1


def test_3_no_static_scale_and_no_settings():
    net = one_weight()
    trainer = amp.Trainer(net.collect_params(), "sgd", loss_scale=128)
    backward(net, trainer, 2.0)
    assert net.weight.grad().asscalar() == 256
    report = trainer.step(1)
    assert (report.loss_scale, report.next_loss_scale) == (128, 128)
    scale = amp.DynamicLossScale(4.0, 4.0, 0.25, growth_interval=2, min_scale=0.5, max_scale=16.0)
    seen = []
    for finite in (True, True, True, True, False, False, False):
        scale.update(finite)
        seen.append(scale.scale)
    assert seen == [4, 16, 16, 16, 4, 1, 0.5]


def test_3_the_scale_is_not_in_a_checkpoint(tmp_path):
    def build():
        net = one_weight()
        scale = amp.DynamicLossScale(2.0**10, growth_interval=3)
        return net, amp.Trainer(net.collect_params(), "sgd", loss_scale=scale)

    net, trainer = build()
    for factor in (1, 1e30, 1, 1):
        backward(net, trainer, 0.25, factor)
        report = trainer.step(1)
    assert report.skipped_total == 1
    path = str(tmp_path / "states")
    trainer.save_states(path)
    _, again = build()
    again.load_states(path)
    assert again.loss_scale.state_dict() == trainer.loss_scale.state_dict()
    assert again.loss_scale.finite_steps == 2


# 4 ------------------------------------------------------------------------------------------------


def test_4_an_update_on_the_kvstore_destroys_the_weights_on_the_first_overflow():
    contexts = [mx.cpu(0), mx.cpu(1)]
    net = nn.Dense(1, in_units=1, use_bias=False, weight_initializer="ones")
    net.initialize(ctx=contexts)
    amp.cast(net, "float16")
    with pytest.raises(ValueError, match="update_on_kvstore=True would apply gradients before"):
        amp.Trainer(net.collect_params(), "sgd", update_on_kvstore=True)
    settings = {"multi_precision": True}
    stock = mx.gluon.Trainer(net.collect_params(), "sgd", settings, update_on_kvstore=True)
    with pytest.raises(ValueError, match="update_on_kvstore"):
        amp.init_trainer(stock)
    trainer = amp.Trainer(net.collect_params(), "sgd", loss_scale=1)  # with MXNet's default
    with autograd.record():
        losses = [net(nd.array([[x]], ctx=ctx)).sum() for x, ctx in zip((1, np.inf), contexts)]
    trainer.backward(losses)
    assert not trainer.step(2).applied
    assert [w.asscalar() for w in net.weight.list_data()] == [1, 1]


def test_4_the_factor_that_horovod_keeps_in_the_trainer_is_overwritten():
    class DistributedTrainer(mx.gluon.Trainer):
        """Like Horovod's, with four workers that all have the same gradients."""

        def __init__(self, params, optimizer, optimizer_params):
            super().__init__(params, optimizer, optimizer_params, kvstore=None)
            self._scale /= 4

        def _allreduce_grads(self):
            for param in self._params:
                for grad in param.list_grad():
                    grad *= 4

    net = one_weight()
    settings = {"learning_rate": 1, "multi_precision": True}
    trainer = DistributedTrainer(net.collect_params(), "sgd", settings)
    amp.init_trainer(trainer, loss_scale=1024)
    for _ in range(2):
        backward(net, trainer, 0.25)
        assert trainer.step(1).applied
    assert weight(net) == 0.5
    assert trainer.rescale == 0.25


# 5 ------------------------------------------------------------------------------------------------


def test_5_accumulation_across_a_scale_change_is_wrong():
    net = one_weight(grad_req="add")
    scale = amp.DynamicLossScale(2.0**4, growth_interval=1)
    trainer = amp.Trainer(net.collect_params(), "sgd", {"learning_rate": 1}, loss_scale=scale)
    backward(net, trainer, 0.25)
    scale.update(True)  # as another trainer that shares it might
    assert scale.scale == 2.0**5
    backward(net, trainer, 0.25)
    report = trainer.step(2)
    assert report.loss_scale == 2.0**4
    assert weight(net) == 0.75


def test_5_an_infinity_stays_in_the_buffer_and_every_later_step_is_skipped():
    net = one_weight(grad_req="add")
    trainer = amp.Trainer(net.collect_params(), "sgd", {"learning_rate": 1}, loss_scale="dynamic")
    backward(net, trainer, 0.25)
    backward(net, trainer, 0.25, 1e30)
    assert not trainer.step(2).applied
    assert net.weight.grad().asscalar() == 0
    backward(net, trainer, 0.25)
    assert trainer.step(1).applied
    assert weight(net) == 0.75


# 6 ------------------------------------------------------------------------------------------------


def test_6_unscale_flushes_small_float16_gradients_to_zero():
    net = one_weight()
    trainer = amp.Trainer(net.collect_params(), "sgd", {"learning_rate": 1}, loss_scale=2.0**16)
    backward(net, trainer, 1.0, 2.0**-27)  # below float16's smallest number
    assert net.weight.grad().asscalar() == 2.0**-11
    assert (net.weight.grad() * (1 / trainer.loss_scale.scale)).asscalar() == 0
    with pytest.raises(TypeError, match="unscale.. would flush small float16 gradients to zero"):
        amp.unscale(trainer)
    trainer.step(1)
    (master,) = trainer.master_params().values()
    assert master.asscalar() == np.float32(1 - 2.0**-27) == 1.0  # float32 at 1 has 24 bits
    net = one_weight(value=0.0)
    trainer = amp.Trainer(net.collect_params(), "sgd", {"learning_rate": 1}, loss_scale=2.0**16)
    backward(net, trainer, 1.0, 2.0**-27)
    trainer.step(1)
    (master,) = trainer.master_params().values()
    assert master.asscalar() == -(2.0**-27)


def test_6_clipping_fails_on_two_dtypes_and_overflows_on_float16():
    net = nn.HybridSequential()
    net.add(one_weight("float16"), one_weight("float32"))
    trainer = amp.Trainer(net.collect_params(), "sgd", {"learning_rate": 1}, loss_scale=64)
    with autograd.record():
        loss = net[0](nd.array([[300]])).sum() + net[1](nd.array([[400]])).sum()
    trainer.backward(loss)
    grads = [p.grad() for p in net.collect_params().values()]
    with pytest.raises(mx.base.MXNetError):
        mx.gluon.utils.clip_global_norm([grad.copy() for grad in grads], 1)
    with contextlib.suppress(mx.base.MXNetError):
        nd.waitall()  # its other error, which would otherwise appear later
    assert trainer.clip_global_norm(50, batch_size=2) == 250
    assert trainer.clip_global_norm(50, batch_size=2) == 250  # measuring changes nothing
    report = trainer.step(2)
    assert report.grad_norm == 250
    np.testing.assert_allclose(net[0].weight.data().asscalar(), 1 - 30, rtol=1e-3)
    np.testing.assert_allclose(net[1].weight.data().asscalar(), 1 - 40, rtol=1e-6)


def test_6_unscaling_twice_divides_twice_and_an_overflow_is_not_reported():
    net = one_weight("mixed_float16")
    trainer = amp.Trainer(net.collect_params(), "sgd", {"learning_rate": 1}, loss_scale=64)
    backward(net, trainer, 0.5)
    amp.unscale(trainer)
    amp.unscale(trainer)
    assert net.weight.grad().asscalar() == 0.5
    trainer.step(1)
    assert weight(net) == 0.5
    backward(net, trainer, np.inf)
    assert not np.isfinite(trainer.clip_global_norm(1.0))
    assert not trainer.step(1).applied


# 7 ------------------------------------------------------------------------------------------------


def test_7_a_step_after_an_unscaled_backward_changes_next_to_nothing():
    net = one_weight()
    trainer = amp.Trainer(net.collect_params(), "sgd", {"learning_rate": 1}, loss_scale=1024)
    backward(net, trainer, 0.25)
    trainer.step(1)
    with autograd.record():
        loss = net(nd.array([[0.25]])).sum()
    loss.backward()
    with pytest.raises(RuntimeError, match=r"call trainer.backward\(loss\) in place of"):
        trainer.step(1)
    assert weight(net) == 0.75


# 8 ------------------------------------------------------------------------------------------------


def test_8_weights_written_after_the_first_step_are_reverted(tmp_path):
    for optimizer in ("sgd", "adam", "rmsprop"):
        net = one_weight()
        settings = {"learning_rate": 0.125}
        trainer = amp.Trainer(net.collect_params(), optimizer, settings, loss_scale=4)
        backward(net, trainer, 0.25)
        trainer.step(1)
        net.weight.set_data(nd.array([[5]]))
        backward(net, trainer, 0.25)
        trainer.step(1)
        assert 4.5 < weight(net) < 5
        path = str(tmp_path / "params")
        net.save_parameters(path)
        saved = weight(net)
        backward(net, trainer, 1.0)
        trainer.step(1)
        net.load_parameters(path)
        assert abs(weight(net) - saved) < 1e-2
        (master,) = trainer.master_params().values()
        assert abs(master.asscalar() - saved) < 1e-2


@pytest.mark.parametrize(
    "before, after",
    [
        ("float32", "float16"),
        ("float16", "float32"),
        ("mixed_float16", "float16"),
        ("bfloat16", "float16"),
    ],
)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_8_states_of_one_dtype_do_not_load_into_another(tmp_path, before, after, optimizer):
    settings = {"learning_rate": 0.125}
    if optimizer == "sgd":
        settings["momentum"] = 0.5

    def build(policy):
        net = one_weight(policy)
        # The kind of scale is part of the states.
        return net, amp.Trainer(net.collect_params(), optimizer, settings, loss_scale=4)

    net, trainer = build(before)
    for _ in range(2):
        backward(net, trainer, 0.25)
        trainer.step(1)
    trainer.save_states(str(tmp_path / "states"))
    net.save_parameters(str(tmp_path / "params"))
    other, again = build(after)
    other.load_parameters(str(tmp_path / "params"))
    again.load_states(str(tmp_path / "states"))
    for one, one_trainer in ((net, trainer), (other, again)):
        backward(one, one_trainer, 0.25)
        one_trainer.step(1)
    (expected,), (master,) = trainer.master_params().values(), again.master_params().values()
    np.testing.assert_allclose(master.asscalar(), expected.asscalar(), rtol=1e-5)


def test_8_bfloat16_weights_have_no_masters():
    net = one_weight("bfloat16")
    trainer = amp.Trainer(net.collect_params(), "adam", {"learning_rate": 2.0**-12})
    assert np.dtype(net.weight.dtype) == np.float32  # cast in the graph: their own masters
    for _ in range(3):
        backward(net, trainer, 1.0)
        assert trainer.step(1).applied
    # Three steps of 2**-12 at 1 are each below bfloat16's resolution of 2**-8.
    np.testing.assert_allclose(weight(net), 1 - 3 * 2.0**-12, rtol=1e-6)


# 9 ------------------------------------------------------------------------------------------------


def test_9_an_aggregation_size_above_60_leaves_parameters_out(monkeypatch):
    monkeypatch.setenv("MXNET_OPTIMIZER_AGGREGATION_SIZE", "64")
    for optimizer in ("sgd", "adam", "lamb", "lars"):
        net = nn.HybridSequential()
        for _ in range(70):
            net.add(nn.Dense(1, in_units=1, use_bias=False))
        net.initialize(mx.init.Constant(1))
        amp.cast(net, "float16")
        trainer = amp.Trainer(net.collect_params(), optimizer, {"learning_rate": 0.5}, loss_scale=4)
        backward(net, trainer, 1.0)
        trainer.step(1)
        unmoved = [p.name for p in net.collect_params().values() if p.data().asscalar() == 1]
        assert unmoved == [], optimizer


def test_9_adam_with_masters_takes_mxnets_slow_path_to_the_same_numbers():
    def masters(optimizer):
        mx.random.seed(1)
        net = conv_net()
        # Before BatchNorm its gradient is only rounding errors, and Adam makes whole steps of them.
        net[0].bias.grad_req = "null"
        trainer = amp.Trainer(net.collect_params(), optimizer, loss_scale=64)
        for _ in range(5):
            train(net, trainer, 1)
        return [trainer.master_params()[p.name].asnumpy() for p in net.collect_params().values()]

    ours = masters(amp.optimizer.Adam(learning_rate=0.001))
    theirs = masters(mx.optimizer.Adam(learning_rate=0.001, multi_precision=True))
    for one, other in zip(ours, theirs):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


# 10 -----------------------------------------------------------------------------------------------


def symbol_block():
    x = mx.sym.var("data")
    stats = [mx.sym.var(f"any_{name}") for name in ("one", "two", "three", "four")]
    out = mx.sym.BatchNorm(x, *stats, fix_gamma=False, name="bn")
    return mx.gluon.SymbolBlock(mx.sym.FullyConnected(out, num_hidden=3, name="fc"), x)


def recurrent():
    cell = mx.gluon.rnn.HybridSequentialRNNCell()
    cell.add(mx.gluon.rnn.LSTMCell(4))
    cell.add(mx.gluon.rnn.GRUCell(4))

    class Unrolled(nn.HybridBlock):
        def __init__(self):
            super().__init__()
            self.cell = cell

        def hybrid_forward(self, F, x):
            x = F.reshape(x, (0, 8, -1))
            return self.cell.unroll(8, x, merge_outputs=True, layout="NTC")[0]

    return Unrolled()


@pytest.mark.parametrize(
    "layer",
    [
        nn.LayerNorm,
        lambda: nn.GroupNorm(1),
        nn.InstanceNorm,
        nn.BatchNorm,
        symbol_block,
        recurrent,
        lambda: mx.gluon.contrib.nn.SyncBatchNorm(num_devices=1),
    ],
    ids=["LayerNorm", "GroupNorm", "InstanceNorm", "BatchNorm", "SymbolBlock", "cells", "SyncBN"],
)
@pytest.mark.filterwarnings("ignore:Cannot decide type")
def test_10_norms_symbol_blocks_and_cells_do_not_run_in_float16_nets(layer):
    net = nn.HybridSequential()
    net.add(nn.Conv2D(4, 3, padding=1), layer(), nn.Dense(3))
    net.initialize()
    amp.cast(net, "float16")
    trainer = amp.Trainer(net.collect_params(), "sgd", loss_scale=64)
    losses, report = train(net, trainer, 3)
    assert report.applied
    assert np.isfinite(losses).all()
    assert net(DATA).dtype == np.float32
    for name, param in net.collect_params().items():
        if name.endswith(("gamma", "beta", "mean", "var", "one", "two", "three", "four")):
            assert np.dtype(param.dtype) == np.float32
    # Data in float16 work as well.
    assert net(DATA.astype("float16")).dtype == np.float32


@pytest.mark.parametrize(
    "loss",
    [
        mx.gluon.loss.SoftmaxCrossEntropyLoss(),
        mx.gluon.loss.SigmoidBinaryCrossEntropyLoss(),
        mx.gluon.loss.KLDivLoss(from_logits=False),
        mx.gluon.loss.LogisticLoss(),
        mx.gluon.loss.L2Loss(),
    ],
)
def test_10_losses_and_metrics_are_computed_in_float16(loss):
    net = nn.Dense(3000, in_units=4)
    net.initialize()
    amp.cast(net, "float16")
    out = net(nd.ones((2, 4)))
    assert out.dtype == np.float32
    sparse = isinstance(loss, mx.gluon.loss.SoftmaxCrossEntropyLoss)
    value = loss(out, nd.array([2500, 2999]) if sparse else nd.ones((2, 3000)) / 3000)
    assert value.dtype == np.float32
    assert np.isfinite(value.asnumpy()).all()
    # In float16, argmax cannot distinguish classes above 2048.
    metric = mx.metric.Accuracy()
    metric.update([nd.array(out.asnumpy().argmax(1))], [out])
    assert metric.get()[1] == 1.0


# 11 -----------------------------------------------------------------------------------------------


class TwoBranches(nn.HybridBlock):
    """`concat(conv(x), conv(pool(x)))`, on which MXNet's own graph pass fails."""

    def __init__(self):
        super().__init__()
        self.one = nn.Conv2D(2, 1)
        self.two = nn.Conv2D(2, 1)
        self.pool = nn.MaxPool2D(3, 1, 1)
        self.head = nn.Dense(3)

    def hybrid_forward(self, F, x):
        return self.head(F.concat(self.one(x), self.two(self.pool(x)), dim=1))


@pytest.mark.parametrize("policy", ["float16", "mixed_float16", "bfloat16"])
def test_11_two_branches_on_the_raw_input_cannot_be_converted(policy):
    net = TwoBranches()
    net.initialize()
    amp.cast(net, policy)
    rows = [row for row in amp.describe(net, DATA).rows if row.op == "Convolution"]
    assert {row.compute_dtype for row in rows} == {policy.split("_")[-1]}
    trainer = amp.Trainer(net.collect_params(), "adam", {"learning_rate": 0.01})
    losses, _ = train(net, trainer, 10)
    assert losses[-1] < losses[0]


def test_11_what_is_converted_cannot_be_trained_and_exports_with_casts(tmp_path):
    net = TwoBranches()
    net.initialize()
    amp.cast(net, "float16")
    trainer = amp.Trainer(net.collect_params(), "sgd", loss_scale=16)
    train(net, trainer, 2)
    net(DATA)
    net.export(str(tmp_path / "net"))
    with open(tmp_path / "net-symbol.json") as file:
        ops = {node["op"] for node in json.load(file)["nodes"]}
    assert not {op for op in ops if "cast" in op.lower()}
    assert ops == {"null", "Convolution", "Pooling", "Concat", "FullyConnected"}
    stock = mx.gluon.SymbolBlock.imports(
        str(tmp_path / "net-symbol.json"), ["data"], str(tmp_path / "net-0000.params")
    )
    np.testing.assert_allclose(stock(DATA).asnumpy(), net(DATA).asnumpy(), rtol=2e-2, atol=2e-2)


def test_11_operators_are_missing_from_the_lists():
    # The table's own tests check that every registered operator is classified.
    policy = amp.Policy.parse("float16")
    ops = "Convolution softmax _contrib_interleaved_matmul_selfatt_qk LayerNorm broadcast_like"
    for op in (*ops.split(), "_contrib_ROIAlign", "CTCLoss"):
        assert len(policy.why(op)) > 10


def test_11_the_module_api_has_no_loss_scaling():
    x = mx.sym.var("data")
    out = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(x, num_hidden=3, name="fc"), name="softmax")
    module = symbolic.Module(out, policy="float16", loss_scale="dynamic")
    batches = mx.io.NDArrayIter(DATA.reshape((4, -1)), LABEL, batch_size=4)
    module.fit(batches, optimizer_params={"learning_rate": 0.1}, num_epoch=2)
    assert module.last_report.applied
    assert module.last_report.loss_scale == module.loss_scale.scale


# 12 -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["float16", "mixed_float16", "bfloat16"])
def test_12_a_cpu_cannot_train_in_low_precision(policy):
    net = conv_net(policy)
    trainer = amp.Trainer(net.collect_params(), "adam", {"learning_rate": 0.01})
    losses, report = train(net, trainer, 12)
    assert losses[-1] < losses[0] / 2
    low = [row for row in amp.describe(net).rows if row.op in ("Convolution", "FullyConnected")]
    assert {row.compute_dtype for row in low} == {policy.split("_")[-1]}
    assert (report.loss_scale > 1) == ("bfloat16" not in policy)


def test_12_errors_come_late_and_unreadable():
    net = conv_net()
    with pytest.raises(TypeError, match=r"got float64 data, expected float32 or float16"):
        net(DATA.astype("float64"))
    deferred = nn.Dense(3, use_bias=False)
    deferred.initialize(ctx=mx.gpu())
    with pytest.raises(ValueError, match="bfloat16 cannot run on a GPU"):
        amp.cast(deferred, "bfloat16")
    trainer = amp.Trainer(net.collect_params(), "sgd")
    with autograd.record():
        loss = net(DATA).astype("float16").sum()
    with pytest.raises(TypeError, match="The loss is float16"):
        trainer.backward(loss)
