"""Sums of float16 gradients over devices and workers fit where each summand does (horovod 1699)."""

import re

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp import DynamicLossScale, Trainer, init_trainer, unscale
from tests.marks import needs_library
from tests.trainer.helpers import TWO, losses_on, parameter, values

import mxnet as mx
from mxnet import autograd, gluon, nd, profiler
from mxnet.kvstore import KVStoreBase

THREE = [mx.cpu(0), mx.cpu(1), mx.cpu(2)]
SCALE = 2.0**15


def built(dtype="float16", ctx=TWO, loss_scale=SCALE, **kwargs):
    p = parameter("p", [1.0], dtype, ctx=ctx)
    sgd = {"learning_rate": 0.25}
    return p, Trainer([p], "sgd", sgd, loss_scale=loss_scale, **kwargs)


def backward(trainer, p, factors, ctx=TWO):
    trainer.backward(losses_on(p, factors, ctx))


@pytest.mark.parametrize("ctx, divisor, kvstore", [(TWO, 2, "device"), (THREE, 4, "local")])
def test_a_sum_above_65504_is_applied_and_exact(ctx, divisor, kvstore):
    p, trainer = built(ctx=ctx, kvstore=kvstore)
    backward(trainer, p, [1.5] * len(ctx), ctx)  # 49,152 on each device
    report = trainer.step(len(ctx))
    assert report.applied and (report.loss_scale, report.next_loss_scale) == (SCALE, SCALE)
    assert values(p)[0] == 1 - 0.25 * 1.5
    assert p.grad(ctx[0]).asnumpy().item() == 1.5 * SCALE * len(ctx) / divisor


# What reads or writes float16 outside of the graph: copies, and operators of our library
QUICK = (
    r"_gluon_amp_\w+|CopyCPU2CPU|_zeros|zeros_like|SetValueOp|_full|DeleteVariable|WaitForVar|held"
)


@pytest.fixture
def operators(path):
    """Return a function that returns the names of the operators that a function runs."""
    profiler.set_config(profile_all=True, aggregate_stats=True, filename=f"{path}.json")
    return _operators


def _operators(function):
    nd.waitall()
    profiler.set_state("run")
    function()
    nd.waitall()
    profiler.set_state("stop")
    names = re.findall(r"^(\w+) +\d+ +\d+\.", profiler.dumps(reset=True), re.MULTILINE)
    assert names
    return {name for name in names if not re.fullmatch(rf"MX.*|{QUICK}", name)}


@needs_library
@pytest.mark.parametrize("kvstore", ["device", "local"])
def test_no_operator_of_mxnet_computes_with_float16_outside_of_the_graph(path, operators, kvstore):
    net = gluon.nn.Dense(3, in_units=4)
    net.initialize(ctx=TWO)
    trainer = Trainer(amp.cast(net, "float16").collect_params(), "sgd", kvstore=kvstore)

    def run(scale=1.0):
        with autograd.record():
            losses = [net(nd.full((2, 4), scale, ctx=device)).sum() for device in TWO]
        trainer.backward(losses)

    run()
    graph = operators(lambda: run(512.0))  # no step was made, so it is searched for a scale
    assert trainer.current_pass().retried
    assert graph <= operators(run)
    for outside in (
        lambda: trainer.clip_global_norm(4, 0.5),
        lambda: trainer.step(4),
        lambda: trainer.master_params(),
        lambda: amp.EMA(net, trainer, 0.5).averages,
        lambda: net.save_parameters(path),
        lambda: amp.load_checkpoint(amp.save_checkpoint(path, net, trainer), net, trainer),
        lambda: run() or (amp.gradient_report(net, trainer), trainer.step(4)),
        lambda: amp.cast(net, "float32"),
    ):
        assert operators(outside) <= graph


def test_the_results_of_allreduce_grads_are_sums():
    p, trainer = built(loss_scale=8)
    backward(trainer, p, [0.25, 0.5])
    trainer.allreduce_grads()
    assert p.grad(TWO[1]).asnumpy().item() == 8 * 0.75
    assert trainer.update(1).applied
    assert values(p)[0] == 1 - 0.25 * 0.75


@pytest.mark.parametrize("calls", ["r", "c", "rc", "cr"])
def test_gradients_are_reduced_once_whatever_is_called_first(calls):
    p, trainer = built(loss_scale=8)
    backward(trainer, p, [0.25, 0.5])
    for call in calls:
        if call == "c":
            assert trainer.clip_global_norm(np.inf) == 0.75
        elif call == "r":
            trainer.allreduce_grads()
    assert (trainer.update if "r" in calls else trainer.step)(1).applied
    assert values(p)[0] == 1 - 0.25 * 0.75


def test_a_gradient_that_overflows_on_one_device_is_a_skip():
    p, trainer = built(loss_scale=DynamicLossScale(init_scale=SCALE))
    backward(trainer, p, [2.0, 0.5])
    report = trainer.step(1)
    assert (report.applied, report.loss_scale, report.next_loss_scale) == (False, SCALE, SCALE / 2)
    backward(trainer, p, [0.5, 0.5])
    assert trainer.step(1).applied and values(p)[0] == 1 - 0.25


def test_float32_gradients_and_single_devices_are_left_alone():
    p, trainer = built("float32")
    backward(trainer, p, [1.5, 1.5])
    assert trainer.step(1).applied
    assert p.grad(TWO[0]).asnumpy().item() == 3 * SCALE
    p, trainer = built(ctx=TWO[:1])
    backward(trainer, p, [1.5], TWO[:1])
    trainer.step(1)
    assert p.grad().asnumpy().item() == 1.5 * SCALE


def test_sparse_gradients_are_divided_too():
    table = gluon.Parameter("table", shape=(3, 2), grad_stype="row_sparse")
    table.initialize(mx.init.One(), ctx=TWO)
    p = parameter("p", [1.0], ctx=TWO)
    trainer = Trainer([table, p], "sgd", {"learning_rate": 0.25}, loss_scale=SCALE)
    losses = []
    with autograd.record():
        for ctx in TWO:
            ids = nd.array([0], ctx=ctx)
            rows = nd.Embedding(ids, table.data(ctx), 3, 2, sparse_grad=True)
            losses.append(rows.sum() + nd.cast(p.data(ctx), "float32") * 1.5)
    trainer.backward(losses)
    assert trainer.step(1).applied
    assert table.data(TWO[0]).asnumpy().tolist() == [[0.5, 0.5], [1, 1], [1, 1]]
    assert values(p)[0] == 0.25


class FourProcesses:
    """A process set of Horovod."""

    @staticmethod
    def size():
        return 4


class LikeHorovod(gluon.Trainer):
    """Horovod's trainer in four processes with the same gradients, on a machine without NCCL."""

    def __init__(self, params, settings, factor):
        super().__init__(params, "sgd", settings, kvstore=None)
        self._process_set = FourProcesses
        self._gradient_predivide_factor = factor
        self._scale *= factor / 4

    def _allreduce_grads(self):
        for param in self._params:
            for grad in param.list_grad():
                grad *= 1 / self._gradient_predivide_factor
                grad += grad + grad + grad


@pytest.mark.parametrize("factor, sent", [(1, 1.5 / 4), (4, 1.5), (3, 1.5 / 2)])
def test_horovod_adds_up_divided_gradients(factor, sent):
    p = parameter("p", [1.0])
    trainer = LikeHorovod([p], {"learning_rate": 0.25}, factor)
    init_trainer(trainer, loss_scale=2.0**13)
    trainer.backward(losses_on(p, [1.5], [mx.cpu()]))
    assert trainer.step(1).applied
    assert values(p)[0] == 1 - 0.25 * 1.5
    assert p.grad().asnumpy().item() == pytest.approx(2.0**13 * sent * 4 / factor, rel=1e-3)


@pytest.mark.parametrize("first, sent", [("unscale", 1.5), ("clip", 6)])
def test_unscaled_gradients_are_divided_before_horovods_sum_too(first, sent):
    """It may compress float32 gradients to float16 on the wire."""
    p = parameter("p", [1.0], "float32")
    trainer = LikeHorovod([p], {"learning_rate": 0.25}, 1)
    init_trainer(trainer, loss_scale=2.0**13)
    trainer.backward(losses_on(p, [1.5], [mx.cpu()]))
    if first == "unscale":
        unscale(trainer)
    assert trainer.clip_global_norm(0.75) == 1.5
    if first == "clip":
        unscale(trainer)
    assert trainer.step(1).applied
    assert values(p)[0] == 1 - 0.25 * 0.75
    assert p.grad().asnumpy().item() == sent


class TwoWorkers(KVStoreBase):
    """A store for two workers, of which the other has only zeros."""

    type, rank, num_workers = "like horovod", 0, 2

    def broadcast(self, key, value, out, priority=0):
        pass

    def pushpull(self, key, value, out=None, priority=0):
        pass

    @staticmethod
    def is_capable(capability):
        return False


def test_the_number_of_workers_counts():
    p, trainer = built(ctx=TWO[:1], kvstore=TwoWorkers())
    backward(trainer, p, [1.5], TWO[:1])
    assert trainer.step(2).applied
    assert p.grad().asnumpy().item() == 1.5 * SCALE / 2
    assert values(p)[0] == 1 - 0.25 * 1.5 / 2


def test_stale_gradients_count_where_another_worker_may_have_fresh_ones():
    p, stale = parameter("p", [1.0]), parameter("q", [1.0])
    trainer = Trainer([p, stale], "sgd", kvstore=TwoWorkers(), loss_scale=8)
    stale.grad()[:] = np.inf  # as the sum with the other worker's
    trainer.backward(losses_on(p, [1.0], [mx.cpu()]))
    report = trainer.step(1, ignore_stale_grad=True)
    assert report.overflow == ("q",)
