"""Sums of gradients: of several passes in float32, and of devices and workers.

A sum of passes is exact, without the passes that are not finite. One of float16 gradients over
devices and workers fits where each summand does (horovod 1699).
"""

import re
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp import DynamicLossScale, Trainer, init_trainer, unscale
from gluon_amp.trainer.update import masters_of
from tests.marks import needs_library
from tests.trainer.helpers import (
    TWO,
    Reducing,
    losses_on,
    norm_net,
    parameter,
    run,
    same,
    statistics,
    values,
)

import mxnet as mx
from mxnet import autograd, gluon, nd, profiler
from mxnet.gluon import nn
from mxnet.kvstore import KVStoreBase

inf, nan = np.inf, np.nan
THREE = [mx.cpu(0), mx.cpu(1), mx.cpu(2)]
SCALE = 2.0**15


def summed(trainer, *passes, batch_size=1, step=True):
    """Run passes as `run` does, each a list of terms, and make a step."""
    for terms in passes:
        with autograd.record():
            loss = sum(
                (nd.cast(p.data(c), "float32") * nd.array(factor, ctx=c)).sum()
                for p, factor in terms
                for c in p.list_ctx()
            )
        trainer.backward(loss, accumulate=True)
    return trainer.step(batch_size) if step else None


def trainer_of(*params, scale=8.0, **options):
    loss_scale = DynamicLossScale(scale) if isinstance(scale, float) else scale
    return Trainer(list(params), "sgd", {"learning_rate": 1.0}, loss_scale=loss_scale, **options)


# ------------------------------------------------------------------------------ sums of passes


@pytest.mark.parametrize("scale", [8.0, "dynamic", None])
def test_a_sum_keeps_what_float16_would_lose(scale):
    p, q = parameter("p", [0.0]), parameter("q", [0.0], "float32")
    trainer = trainer_of(p, q, scale=scale)
    report = summed(trainer, *[[(p, [term]), (q, [term])] for term in (1024.0, 0.25, 0.25)])
    assert (report.applied, report.passes, report.dropped) == (True, 3, 0)
    masters = trainer.master_params()
    assert masters["p"].asscalar() == masters["q"].asscalar() == -1024.5
    assert values(p)[0] == -1024  # the master's rounding


def test_passes_of_a_step_may_have_different_scales():
    p = parameter("p", [0.0])
    trainer = trainer_of(p, scale=2.0**14)
    run(trainer, [(p, [0.0])])
    reports = summed(trainer, [(p, [1.0])], [(p, [6.0])], [(p, [3.0])])
    # 6 overflows at 2**14; 1 and 3 are two thirds of the sum
    assert (reports.passes, reports.dropped, reports.applied) == (2, 1, True)
    assert (reports.loss_scale, reports.next_loss_scale) == (2.0**13, 2.0**13)
    assert values(p)[0] == -(1 + 3) * 3 / 2


def test_a_searched_pass_is_repeated_and_kept():
    p = parameter("p", [0.0])
    trainer = trainer_of(p, scale="dynamic")
    report = summed(trainer, [(p, [0.5])], [(p, [2.0**8])], [(p, [2.0**13])], [(p, [1.0])])
    assert (report.retried, report.passes, report.dropped) == (True, 4, 0)
    assert report.loss_scale == 0.5
    assert trainer.master_params()["p"].asscalar() == -(0.5 + 2.0**8 + 2.0**13 + 1)


def test_a_searched_pass_that_fits_nowhere_is_dropped_and_the_scale_backs_off():
    p = parameter("p", [0.0])
    trainer = trainer_of(p, scale="dynamic")
    report = summed(trainer, [(p, [nan])], [(p, [1.0])])
    assert (report.applied, report.passes, report.dropped) == (True, 1, 1)
    assert (report.loss_scale, values(p)[0]) == (2.0**15, -2.0)


def test_the_scale_grows_after_steps_and_not_after_passes():
    p = parameter("p", [0.0])
    trainer = trainer_of(p, scale=DynamicLossScale(8.0, growth_interval=2))
    scales = [summed(trainer, [(p, [1.0])], [(p, [1.0])]).next_loss_scale for _ in range(4)]
    assert scales == [8.0, 16.0, 16.0, 32.0]


def test_a_step_without_a_finite_pass_is_skipped():
    p, q = parameter("p", [1.0]), parameter("q", [1.0], "float32")
    trainer = trainer_of(p, q)
    report = summed(trainer, [(p, [inf]), (q, [1.0])], [(p, [1.0]), (q, [nan])])
    assert (report.applied, report.passes, report.dropped) == (False, 0, 2)
    assert (report.overflow, report.next_loss_scale) == (("q",), 2.0)
    assert (values(p)[0], values(q)[0], report.skipped_total) == (1, 1, 1)
    assert not (p.grad().asnumpy().any() or q.grad().asnumpy().any())
    assert summed(trainer, [(p, [0.5]), (q, [0.5])]).applied
    assert (values(p)[0], values(q)[0]) == (0.5, 0.5)


@pytest.mark.parametrize("optimizer", ["adam", "nag", mx.optimizer.SGD(momentum=0.9)])
def test_one_pass_is_a_step_without_sums(optimizer):
    """In any optimizer, with decay, momentum and clipping, float16 weights and float32 ones."""
    results = []
    for accumulate in (False, True):
        mx.random.seed(1)
        net = amp.cast(norm_net(3), "float16")
        net.initialize(mx.init.Normal(), force_reinit=True)
        one = type(optimizer)(momentum=0.9) if not isinstance(optimizer, str) else optimizer
        trainer = Trainer(net.collect_params(), one, loss_scale=64)
        trainer.optimizer.wd = 0.01
        for _ in range(3):
            with autograd.record():
                loss = net(nd.random.normal(shape=(4, 2))).square().sum()
            trainer.backward(loss, accumulate=accumulate)
            trainer.clip_global_norm(0.5, 1)
            trainer.step(4)
        states = [updater.get_states() for updater in trainer.updaters]
        results.append(({k: v.asnumpy() for k, v in trainer.master_params().items()}, states))
    same(*(dict(enumerate(result.values())) for result, _ in results))
    assert results[0][1] == results[1][1]


def test_a_write_between_steps_reaches_the_master():
    p = parameter("p", [0.0])
    trainer = Trainer([p], "nag", {"learning_rate": 1.0, "momentum": 0.5}, loss_scale=8)
    for _ in range(2):
        summed(trainer, [(p, [0.0])])
        p.set_data(nd.array([3.0], dtype="float16"))
    summed(trainer, [(p, [0.0])])
    assert trainer.master_params()["p"].asscalar() == values(p)[0] == 3


def test_a_dropped_pass_leaves_statistics_as_they_were():
    with_bad, without = (amp.cast(norm_net(prefix="n_"), "mixed_float16") for _ in range(2))
    fine, bad = nd.array([[1, 2], [3, 4]]), nd.array([[inf, 2], [3, 4]])
    for net, batches in ((with_bad, (fine, bad, 2 * fine)), (without, (fine, 2 * fine))):
        trainer = Trainer(net.collect_params(), "sgd", {"learning_rate": 0.5}, loss_scale=8)
        for x in batches:
            with autograd.record():
                loss = net(x).sum()
            trainer.backward(loss, accumulate=True)
        assert trainer.step(len(batches)).passes == 2
    same(statistics(without), statistics(with_bad))
    assert (with_bad[0].weight.data() == without[0].weight.data()).asnumpy().all()


def test_a_skipped_step_undoes_all_its_passes():
    net = norm_net()
    trainer = Trainer(
        net.collect_params(),
        "sgd",
        loss_scale=8,
        on_step=lambda trainer, report: report.passes != 2,
    )
    before = statistics(net)
    for x in ([[1, 2], [3, 4]], [[5, 6], [7, 9]]):
        with autograd.record():
            loss = net(nd.array(x)).sum()
        trainer.backward(loss, accumulate=True)
    assert not trainer.step(1).applied
    same(before, statistics(net))


# ------------------------------------------------------------------------------ around a step


def test_clip_allreduce_and_unscale_see_the_sums():
    p = parameter("p", [0.0, 0.0])
    trainer = trainer_of(p)
    passes = [(p, [1.0, 1.0])], [(p, [2.0, 3.0])]
    summed(trainer, *passes, step=False)
    assert p.grad().asnumpy().tolist() == [16, 24]  # those of the last pass, with its scale
    assert trainer.clip_global_norm(2.5, 1) == 5.0
    assert trainer.step(1).grad_norm == 5.0
    assert values(p).tolist() == [-1.5, -2.0]
    assert p.grad().dtype == np.float16

    summed(trainer, *passes, step=False)
    amp.unscale(trainer)
    assert p.grad().asnumpy().tolist() == [3, 4]
    trainer.allreduce_grads()
    trainer.update(1)
    assert values(p).tolist() == [-4.5, -6.0]


def test_sums_of_passes_on_two_devices():
    p = parameter("p", [0.0], ctx=TWO)
    trainer = trainer_of(p)
    for factors in ((1024.0, 0.25), (inf, 1.0), (0.25, 0.25)):
        with autograd.record():
            losses = [nd.cast(p.data(c), "float32") * f for c, f in zip(TWO, factors)]
        trainer.backward(losses, accumulate=True)
    report = trainer.step(1)
    assert (report.passes, report.dropped) == (2, 1)
    assert [one.asscalar() for one in p.list_data()] == [-1537.0] * 2
    assert [m.asscalar() for _, _, m in masters_of(trainer)] == [-1024.75 * 3 / 2] * 2


def test_a_pass_for_each_device_in_threads():
    p = parameter("p", [0.0], ctx=TWO)
    trainer = trainer_of(p)
    losses = losses_on(p, (0.25, 0.5), TWO)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda loss: trainer.backward(loss, accumulate=True), losses))
    report = trainer.step(1)
    assert (report.passes, values(p)[0]) == (2, -0.75)


def test_a_reduction_of_its_own_gets_the_sums_and_then_each_step_has_them():
    p = parameter("p", [0.0])
    trainer = Reducing([p], "sgd", {"learning_rate": 1.0, "multi_precision": True})
    amp.init_trainer(trainer, loss_scale=DynamicLossScale(8.0))
    summed(trainer, [(p, [1.0])], [(p, [0.25])])
    assert (values(p)[0], trainer.reductions) == (-1.25, 1)
    with pytest.raises(RuntimeError, match="has to use it in each step"):
        run(trainer, [(p, [1.0])])


def test_parameters_that_only_some_passes_reach():
    p, q, r = (parameter(name, [0.0]) for name in "pqr")
    trainer = trainer_of(p, q, r)
    summed(trainer, [(p, [1.0]), (q, [0.25])], [(p, [0.5])], step=False)
    with pytest.raises(UserWarning, match="gradient of r"):
        trainer.step(1)
    assert trainer.step(1, ignore_stale_grad=True).applied
    assert [values(one)[0] for one in (p, q, r)] == [-1.5, -0.25, 0]


def test_row_sparse_gradients_are_summed():
    net = nn.Embedding(4, 2, sparse_grad=True, weight_initializer="zeros")
    net.initialize()
    trainer = Trainer(net.collect_params(), "sgd", {"learning_rate": 1.0}, loss_scale=8)
    for ids in ([0, 1], [1, 3]):
        with autograd.record():
            loss = net(nd.array(ids)).sum()
        trainer.backward(loss, accumulate=True)
    trainer.step(1)
    assert net.weight.data().asnumpy()[:, 0].tolist() == [-1, -2, 0, -1]


def test_memory_is_freed_by_a_pass_without_sums():
    p = parameter("p", [0.0])
    trainer = trainer_of(p)
    sums = []
    for _ in range(2):
        summed(trainer, [(p, [1.0])], step=False)
        trainer.clip_global_norm(inf, 1)
        sums.append(p.grad())
        trainer.step(1)
    assert sums[0] is sums[1]
    run(trainer, [(p, [1.0])])
    summed(trainer, [(p, [1.0])], step=False)
    trainer.clip_global_norm(inf, 1)
    assert p.grad() is not sums[0]


# ------------------------------------------------------------------------------ bad input


def test_gradients_that_add_up_by_themselves_are_refused():
    p = parameter("p", [0.0], grad_req="add")
    with pytest.raises(ValueError, match="p has grad_req='add', which would count .* twice"):
        summed(trainer_of(p), [(p, [1.0])])


# ------------------------------------------------------------------------------ devices and workers


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


@pytest.mark.parametrize("kvstore", ["device", "local"])
def test_three_gradients_are_added_in_the_order_of_the_kvstore(kvstore):
    store = mx.kv.create(kvstore)
    store.init(0, nd.zeros((1,), dtype="float16"))
    for factors in ((2048, 1, 1), (1, 2048, 1), (1, 1, 2048)):
        p, trainer = built(ctx=THREE, kvstore=kvstore, loss_scale=1.0)
        backward(trainer, p, factors, THREE)
        expected = [grad.copy() for grad in p.list_grad()]
        store.pushpull(0, expected)
        trainer.allreduce_grads()
        assert p.grad(THREE[0]).asscalar() == expected[0].asscalar()


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


@pytest.mark.parametrize("calls", ["r", "c", "rc", "cr"])
def test_gradients_are_reduced_once_whatever_is_called_first(calls):
    p, trainer = built(loss_scale=8)
    backward(trainer, p, [0.25, 0.5])
    for call in calls:
        if call == "c":
            assert trainer.clip_global_norm(np.inf, 1) == 0.75
        elif call == "r":
            trainer.allreduce_grads()
    if calls[0] == "r":  # its results are plain sums
        assert p.grad(TWO[1]).asnumpy().item() == 8 * 0.75
    assert (trainer.update if "r" in calls else trainer.step)(1).applied
    assert values(p)[0] == 1 - 0.25 * 0.75


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
    assert trainer.clip_global_norm(0.75, 1) == 1.5
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


def test_workers_exchange_sums_under_keys_of_their_own():
    """Where no pass fits either: each has its own loss scale then, and searches for it alone."""
    keys, p = [], parameter("p", [1.0])

    class Recording(TwoWorkers):
        def pushpull(self, key, value, out=None, priority=0):
            keys.append((key, np.dtype(value[0].dtype).name))

    trainer = Trainer([p], "sgd", {"learning_rate": 1.0}, kvstore=Recording())
    for factor in (nan, 0.5):
        report = summed(trainer, [(p, [factor])])
    assert (report.applied, values(p)[0], keys) == (True, 0.5, [(1, "float32")] * 2)


def test_workers_agree_on_the_lowest_of_their_first_scales():
    p = parameter("p", [1.0])

    class WithALowerOne(TwoWorkers):
        exchanged = 0

        def pushpull(self, key, value, out=None, priority=0):
            value[0][:] += 0 if self.exchanged else inf  # of the other, which does not fit at 2**16
            self.exchanged += 1

    trainer = Trainer([p], "sgd", {"learning_rate": 1.0}, kvstore=WithALowerOne())
    report = run(trainer, [(p, [0.5])])
    assert (report.loss_scale, report.next_loss_scale, values(p)[0]) == (2.0**15, 2.0**15, 0.5)


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
