"""The search for the first loss scale: the pass is repeated where its gradients fit, exactly."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp import DynamicLossScale, Trainer
from gluon_amp.graph import tape
from gluon_amp.trainer.first_scale import largest_power
from tests.casting.nets import small_net
from tests.trainer.helpers import TWO, Reducing, losses_on, parameter, run, same, values

import mxnet as mx
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn

inf, nan = np.inf, np.nan


# ------------------------------------------------------------------------------ bisection


@pytest.mark.parametrize("largest", [-25, -24, -23, -5, 0, 7, 15, 16])
def test_bisection_finds_the_largest_power_in_6_calls(largest):
    tried = []

    def fits(scale):
        tried.append(scale)
        return scale <= 2.0**largest

    expected = None if largest < -24 else 2.0**largest
    assert largest_power(2.0**-24, 2.0**16, fits) == expected
    assert len(tried) <= 6 and len(set(tried)) == len(tried)
    assert largest_power(8.0, 8.0, fits) == (8.0 if largest >= 3 else None)


# ------------------------------------------------------------------------------ one repetition


@pytest.mark.parametrize(
    "exponent, first",
    [
        (-1, 2.0**16),  # 2**15 is a float16
        (0, 2.0**12),  # 2**16 is none: it fits at 2**15, and 3 bits below that is the margin
        (20, 2.0**-8),  # a summed loss, which needs a scale below 1
        (39, 2.0**-24),  # fits at the floor itself
    ],
)
@pytest.mark.parametrize("grad_req", ["write", "add"])
def test_no_step_is_lost_to_a_gradient_of_this_power_of_two(exponent, first, grad_req):
    p = parameter("p", [0.0], grad_req=grad_req)
    trainer = Trainer([p], "sgd", {"learning_rate": 2.0**-exponent})
    reports = []
    for _ in range(4):
        reports.append(run(trainer, [(p, [2.0**exponent])]))
        p.zero_grad()
    assert [r.applied for r in reports] == [True] * 4
    assert [r.retried for r in reports] == [first < 2.0**16, False, False, False]
    assert [(r.loss_scale, r.next_loss_scale) for r in reports] == [(first, first)] * 4
    assert (values(p)[0], trainer.skips.total) == (-4, 0)
    assert (trainer.loss_scale.searching, trainer.loss_scale.finite_steps) == (False, 4)


@pytest.mark.parametrize(
    "dtype, factors, scales",
    [
        ("float32", [2.0**120], [2.0**4]),  # 2**120 * 2**7 is a float32, 2**128 is not
        # where nothing fits, one backoff, and the search goes on
        ("float16", [nan, nan, 2.0**8], [2.0**15, 2.0**14, 2.0**4]),
        # larger gradients of the next batches; 3 bits are the margin
        ("float16", [2.0**8, 2.0**11, 2.0**12, 2.0**24], [2.0**4, 2.0**4, 2.0**3, 2.0**2]),
        # after the first finite step, one backoff
        ("float16", [0.5, 2.0**8], [2.0**16, 2.0**15]),
    ],
)
def test_scales_after_steps_with_these_gradients(dtype, factors, scales):
    p = parameter("p", [0.0], dtype)
    trainer = Trainer([p], "sgd", {"learning_rate": 0}, loss_scale="dynamic")
    assert [run(trainer, [(p, [f])]).next_loss_scale for f in factors] == scales


def test_where_no_scale_fits_the_trainer_does_not_wait_for_the_floor():
    p = parameter("p", [0.0], dtype="float32")
    trainer = Trainer([p], "sgd", loss_scale="dynamic", max_consecutive_skips=3)

    def step():
        with autograd.record():
            loss = nd.sqrt(p.data())  # 0, and its derivative is infinite
        trainer.backward(loss)
        return trainer.step(1)

    assert [step().next_loss_scale for _ in range(2)] == [2.0**15, 2.0**14]
    with pytest.raises(FloatingPointError, match="a lower one would not help, in the gradients"):
        step()


# ------------------------------------------------------------------------------ several passes


def test_gradients_of_several_passes_get_the_scale_of_the_last_repetition():
    p, q = parameter("p", [0.0], grad_req="add"), parameter("q", [0.0])
    r = parameter("r", [0.0], "float32")
    trainer = Trainer([p, q, r], "sgd", {"learning_rate": 1.0})
    scales = []
    for terms in (
        [(p, [0.5]), (r, [0.5])],
        [(p, [2.0]), (q, [2.0**5])],
        [(p, [2.0**9]), (q, [0.125])],
        [(p, [1.0])],
    ):
        run(trainer, terms, step=False)
        scales.append(trainer.current_pass().scale)
    assert scales == [2.0**16, 2.0**7, 2.0**3, 2.0**3]
    report = trainer.step(1)
    assert (report.applied, report.retried, report.loss_scale) == (True, True, 2.0**3)
    # q's last gradient overwrote its first one
    assert [values(one)[0] for one in (p, q, r)] == [-(0.5 + 2 + 2.0**9 + 1), -0.125, -0.5]


def test_a_sum_that_overflows_is_repeated_though_its_passes_fit():
    p = parameter("p", [0.0], grad_req="add")
    trainer = Trainer([p], "sgd", {"learning_rate": 1.0})
    for _ in range(2):
        run(trainer, [(p, [0.75])], step=False)
    report = trainer.step(1)
    assert (report.applied, report.loss_scale, values(p)[0]) == (True, 2.0**13, -1.5)


def test_a_pass_is_not_repeated_after_one_of_its_step_that_fits_nowhere():
    p = parameter("p", [0.0])
    trainer = Trainer([p], "sgd")
    for factor in (nan, 2.0**8):
        run(trainer, [(p, [factor])], step=False)
    report = trainer.step(1)
    assert (report.applied, report.retried, report.next_loss_scale) == (False, False, 2.0**15)


@pytest.mark.parametrize(
    "factors, plain_sums, scale",
    [
        ((2.0, 2.0**8), False, 2.0**4),
        ((0.5, 0.5), True, 2.0**13),  # each fits at 65536, and their sum is skipped
    ],
)
def test_devices(factors, plain_sums, scale):
    p = parameter("p", [0.0], ctx=TWO)
    trainer = Trainer([p], "sgd")
    for applied in (not plain_sums, True):
        trainer.backward(losses_on(p, factors, TWO))
        if plain_sums:
            trainer.allreduce_grads()
        report = (trainer.update if plain_sums else trainer.step)(1)
        assert (report.applied, report.next_loss_scale) == (applied, scale)


def test_a_pass_for_each_device_divides_the_scale_by_256():
    p = parameter("p", [0.0], ctx=TWO)
    trainer = Trainer([p], "sgd")
    losses = losses_on(p, (2.0**6, 2.0**7), TWO)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(trainer.backward, losses))
    assert trainer.step(1).next_loss_scale == 2.0**8


def test_one_pass_for_two_trainers_that_share_a_scale():
    p, q = parameter("p", [0.0]), parameter("q", [1.0])
    shared = DynamicLossScale()
    first, second = (
        Trainer([one], "sgd", {"learning_rate": 1}, loss_scale=shared) for one in (p, q)
    )
    # the pass is repeated for both, where the gradient of q overflows too
    run(first, [(p, [0.25]), (q, [2.0**8])], step=False)
    reports = first.step(1), second.step(1)
    assert [(r.applied, r.retried, r.loss_scale) for r in reports] == [(True, True, 2.0**4)] * 2
    assert (values(p)[0], values(q)[0], shared.scale) == (-0.25, 1 - 2.0**8, 2.0**4)


def test_a_pass_is_not_repeated_while_another_trainers_gradients_have_its_scale():
    p, q = parameter("p", [0.0]), parameter("q", [0.0])
    shared = DynamicLossScale()
    first, second = (Trainer([one], "sgd", loss_scale=shared) for one in (p, q))
    run(first, [(p, [0.25])], step=False)
    run(second, [(q, [2.0**8])], step=False)
    assert first.step(1).applied
    report = second.step(1)
    assert (report.applied, report.retried, report.next_loss_scale) == (False, False, 2.0**4)
    assert shared.searching and second.skips.in_vain == 0  # the finite step did not end the search


# ------------------------------------------------------------------------------ other trainers


@pytest.mark.parametrize("stock", [gluon.Trainer, Reducing])
def test_a_trainer_after_init_trainer(stock):
    p = parameter("p", [0.0])
    trainer = stock([p], "sgd", {"multi_precision": True, "learning_rate": 2.0**-6})
    amp.init_trainer(trainer)
    assert run(trainer, [(p, [2.0**8])]).retried
    report = run(trainer, [(p, [2.0**8])])
    assert (report.applied, report.loss_scale, values(p)[0]) == (True, 2.0**4, -8.0)
    # one for each step, and 7 in which the workers agree on a scale
    assert getattr(trainer, "reductions", 9) == 9


@pytest.mark.parametrize("factor, scales", [(2.0**8, [2.0**8, 1.0, 1.0]), (nan, [2.0**15])])
def test_scale_loss_frees_the_graph_so_the_scale_is_divided_by_256(factor, scales):
    """If the loss is not finite, no scale helps, and it backs off."""
    p = parameter("p", [0.0])
    trainer = Trainer([p], "sgd")
    for scale in scales:
        with autograd.record():
            loss = (nd.cast(p.data(), dtype="float32") * factor).sum()
            with amp.scale_loss(loss, trainer) as scaled:
                autograd.backward(scaled)
        assert trainer.step(1).next_loss_scale == scale
    assert trainer.loss_scale.searching == (factor != factor)


# ------------------------------------------------------------------------------ exact


class Run:
    """A small cast network whose gradients do not fit at 65536, and its trainer."""

    def __init__(self, init_scale, grad_req, hybridize):
        mx.random.seed(3)
        self.net = small_net()
        self.net.add(nn.Dropout(0.5), nn.Dense(3, in_units=4, prefix="last_"))
        self.net[-1].initialize()
        amp.cast(self.net, "float16")
        if hybridize is not None:
            self.net.hybridize(**hybridize)
        self.params = self.net.collect_params()
        self.params.setattr("grad_req", grad_req)
        settings = {"learning_rate": 2.0**-14, "momentum": 0.9}
        scale = DynamicLossScale(init_scale)
        self.trainer = Trainer(self.params, "sgd", settings, loss_scale=scale)
        self.x = nd.random.normal(shape=(8, 3, 8, 8))
        self.x.attach_grad()

    def backward(self, factor, recording=False):
        mx.random.seed(0)
        with autograd.record():
            self.loss = (self.net(self.x) * factor).square().sum()
            if recording:
                self.trainer.backward(self.loss)
        if not recording:
            self.trainer.backward(self.loss)

    def values(self):
        """Return the gradients, also that of the input, the parameters, masters, and the loss."""
        trained = {f"grad {k}": p.grad() for k, p in self.params.items() if p.grad_req != "null"}
        arrays = {"x": self.x.grad, "loss": self.loss, **trained, **self.trainer.master_params()}
        arrays.update((f"value {name}", p.data()) for name, p in self.params.items())
        return {name: array.asnumpy() for name, array in arrays.items()}


STATIC = {"static_alloc": True, "static_shape": True}
MODES = pytest.mark.parametrize(
    "grad_req, hybridize", [("write", None), ("add", None), ("add", {}), ("write", STATIC)]
)


@MODES
@pytest.mark.parametrize("factor, recording", [(64, False), (64, True), (2.0**-8, False)])
def test_a_repeated_pass_leaves_what_a_pass_at_its_scale_leaves(
    grad_req, hybridize, factor, recording
):
    """Gradients and masks, those of the input, too; statistics of one pass; then two steps."""
    searched = Run(None, grad_req, hybridize)
    searched.backward(factor, recording)
    scale = searched.trainer.current_pass().scale
    given = Run(scale, grad_req, hybridize)
    given.backward(factor)
    assert (scale < 2.0**16) == (factor == 64)
    runs = searched, given
    same(*(one.values() for one in runs))
    for _ in range(2):
        assert [one.trainer.step(8).applied for one in runs] == [True, True]
        for one in runs:
            one.backward(factor)
        same(*(one.values() for one in runs))


def test_dropout_in_a_cast_child_of_a_stock_parent_is_repeated():
    parent = nn.HybridSequential()
    child = nn.HybridSequential()
    child.add(nn.Dense(64, in_units=3), nn.Dropout(0.5))
    parent.add(child, nn.HybridLambda(lambda F, x: x * 2.0**8))
    parent.initialize(mx.init.One())
    amp.cast(child, "float16")
    parent.hybridize()
    trainer = Trainer(parent.collect_params(), "sgd")
    with autograd.record():
        out = parent(nd.ones((2, 3)))
        loss = out.sum()
    trainer.backward(loss)
    dropped = (out.asnumpy() == 0).sum(axis=0)
    gradient = child[0].bias.grad().asnumpy() / trainer.current_pass().scale
    assert trainer.step(1).retried
    np.testing.assert_array_equal(gradient, (2 - dropped) * 2.0**9)


@pytest.mark.parametrize("factor, retain_graph", [(1.0, False), (2.0**8, False), (2.0**8, True)])
def test_the_graph_is_freed_unless_the_user_keeps_it(factor, retain_graph):
    p = parameter("p", [0.0])
    trainer = Trainer([p], "sgd")
    with autograd.record():
        loss = (nd.cast(p.data(), dtype="float32") * factor).sum()
    trainer.backward(loss, retain_graph=retain_graph)
    if retain_graph:
        loss.backward()
        assert p.grad().asscalar() == factor
    else:
        with pytest.raises(mx.MXNetError, match="Cannot differentiate node"):
            loss.backward()


def test_a_loop_that_cannot_be_replayed_divides_the_scale_by_256():
    class Loop(nn.Dense):
        def hybrid_forward(self, F, x, **own):
            first = F.squeeze(F.slice_axis(x, axis=0, begin=0, end=1), axis=0)
            body = super().hybrid_forward
            return F.contrib.foreach(lambda x, state: (body(F, x, **own), state), x, first)[0]

    net = amp.cast(Loop(1, in_units=1, use_bias=False), "float16")
    net.initialize(mx.init.One())
    net.hybridize()
    trainer = Trainer(net.collect_params(), "sgd", {"learning_rate": 0})
    reports = []
    for _ in range(2):
        with autograd.record():
            loss = (net(nd.ones((3, 1, 1))) * 4).sum()
        trainer.backward(loss)
        reports.append(trainer.step(1))
    assert [r.loss_scale for r in reports] == [2.0**16, 2.0**8]
    assert reports[1].applied


# ------------------------------------------------------------------------------ deconvolutions


def test_a_float32_deconvolution_is_replayed_without_a_crash():
    net = nn.HybridSequential()
    net.add(nn.Conv2D(8, 3, in_channels=3), nn.Conv2DTranspose(2, 4, strides=2, in_channels=8))
    net.initialize()
    net.hybridize()
    trainer = Trainer(net.collect_params(), "sgd", loss_scale="dynamic")
    with autograd.record():
        loss = net(nd.ones((3, 3, 12, 12))).mean() * 2.0**120  # overflows, so it is searched
    trainer.backward(loss)
    assert trainer.step(1).next_loss_scale < 2.0**15


def test_the_largest_gradient_shows_the_scale_that_fits(monkeypatch):
    """The pass, one without heads, two at lower scales, and the repetition; bisection made six."""
    p, runs, run = parameter("p", [1.0], "float16"), [], autograd.backward
    monkeypatch.setattr(autograd, "backward", lambda *args, **kw: runs.append(run(*args, **kw)))
    trainer = Trainer([p], "sgd", loss_scale="dynamic")
    with autograd.record():
        loss = nd.cast(p.data(), dtype="float32") * 5
    trainer.backward(loss)
    assert trainer.step(1).next_loss_scale == 2.0**10 and len(runs) == 5


@pytest.mark.parametrize("deleted", [False, True])
def test_an_array_that_no_trainer_owns_keeps_its_gradient_even_if_it_is_deleted(deleted):
    p, x = parameter("p", [0.0]), nd.array([3.0])
    x.attach_grad("add")
    gradient = x.grad
    gradient[:] = 5
    trainer = Trainer([p], "sgd", loss_scale="dynamic")
    with autograd.record():
        loss = (nd.cast(p.data(), dtype="float32") * 2.0**8 + x).sum()
    if deleted:
        x = None
    trainer.backward(loss)
    report = trainer.step(1)
    assert (report.applied, report.next_loss_scale) == (True, 2.0**4)
    assert gradient.asscalar() == 5 + 2.0**4


# ------------------------------------------------------------------------------ not repeated


class Twice(mx.operator.CustomOp):
    backward_passes = 0

    def forward(self, is_train, req, in_data, out_data, aux):
        self.assign(out_data[0], req[0], in_data[0] * 1)

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        Twice.backward_passes += 1
        self.assign(in_grad[0], req[0], out_grad[0] * 1)


@mx.operator.register("gluon_amp_test_twice")
class TwiceProp(mx.operator.CustomOpProp):
    def create_operator(self, ctx, shapes, dtypes):
        return Twice()


class TwiceFunction(autograd.Function):
    def forward(self, x):
        return x * 1

    def backward(self, dy):
        Twice.backward_passes += 1
        return dy * 1


def dropout(hybridize):
    block = nn.HybridLambda(lambda F, x: F.Dropout(x, p=0.5))
    block.hybridize(hybridize)
    return block


@pytest.mark.parametrize("policy, factor", [("mixed_float16", 2.0**5), ("float32", 2.0**117)])
@pytest.mark.parametrize(
    "head, reason",
    [
        (lambda x: nd.Custom(x, op_type="gluon_amp_test_twice"), "Custom runs code of its own"),
        (lambda x: TwiceFunction()(x), "_CustomFunction runs code of its own"),
        (lambda x: nd.linalg.det(x.reshape((-1, 3, 3))), "_linalg_det has other gradients in a"),
        (dropout(False), "Dropout has other gradients in a second backward pass"),
        (dropout(True), "Dropout has other gradients in a second backward pass"),
    ],
)
def test_what_is_not_known_to_be_the_same_is_not_run_twice(policy, factor, head, reason):
    mx.random.seed(2)
    net = nn.Dense(9, in_units=2)
    net.initialize(mx.init.Normal(0.7))
    amp.cast(net, policy)
    trainer = Trainer(net.collect_params(), "sgd", {"learning_rate": 0.0}, loss_scale="dynamic")
    Twice.backward_passes, reports = 0, []
    for _ in range(2):
        with autograd.record():
            loss = head(net(nd.random.normal(shape=(6, 2)))) * factor
        trainer.backward(loss)
        reports.append(trainer.step(1))
    assert not reports[0].applied and reason in reports[0].not_repeated
    assert reason in repr(reports[0])
    assert Twice.backward_passes == (2 if "code" in reason else 0)
    assert (reports[1].applied, reports[1].not_repeated) == (True, "")


def test_blocks_that_are_not_cast_are_repeated_if_their_graphs_are():
    """A hybridized one, of which autograd shows only the outputs, and one that is not."""
    head = nn.Dense(1, in_units=4)
    head.initialize()
    blocks = [nn.HybridSequential() for _ in range(2)]
    for block in blocks:
        block.add(nn.Dense(4, in_units=4), nn.BatchNorm(in_channels=4), nn.Dense(4, in_units=4))
        block.initialize()
    blocks[0].hybridize()
    amp.cast(head, "mixed_float16")
    trainer = Trainer(head.collect_params(), "sgd")
    with autograd.record():
        loss = head(blocks[1](blocks[0](nd.ones((3, 4))))) * 2.0**10
    trainer.backward(loss)
    assert trainer.step(3).retried


def test_another_build_of_mxnet_loses_one_step_and_keeps_its_statistics(monkeypatch):
    """Where the recorded graph is not at its places, what Gluon's layers declare is restored."""
    monkeypatch.setattr(tape, "_GRAPH", tape._GRAPH + 8)
    tape._readable.cache_clear()
    try:
        net = nn.HybridSequential()
        net.add(nn.Dense(2, in_units=2), nn.BatchNorm(in_channels=2))
        net.initialize()
        trainer = Trainer(amp.cast(net, "float16").collect_params(), "sgd")
        with autograd.record():
            loss = net(nd.array([[1, 2], [3, 5]])) * 2.0**8
        trainer.backward(loss)
        report = trainer.step(1)
        assert not report.applied and "does not show" in report.not_repeated
        np.testing.assert_array_equal(values(net[1].running_mean), 0)
    finally:
        tape._readable.cache_clear()


# ------------------------------------------------------------------------------ losses as heads


class HeadLoss(gluon.HybridBlock):
    """A cross entropy as GluonCV's segmentation computes it: its gradient ignores the loss."""

    def hybrid_forward(self, F, pred, label):
        return -F.pick(F.log(F.SoftmaxOutput(pred, label)), label)


@pytest.mark.parametrize("loss_scale, hybridize", [("dynamic", True), (128, False)])
def test_a_loss_that_ignores_its_head_gradient_is_refused(loss_scale, hybridize):
    net = nn.HybridSequential()
    net.add(nn.Dense(4, in_units=3), nn.BatchNorm(in_channels=4), nn.Dense(2, in_units=4))
    net.initialize()
    amp.cast(net, "mixed_float16")
    trainer = Trainer(net.collect_params(), "sgd", loss_scale=loss_scale)
    loss_fn = HeadLoss()
    loss_fn.hybridize(hybridize)
    with autograd.record():
        loss = loss_fn(net(nd.random.normal(shape=(8, 3))), nd.zeros((8,)))
    with pytest.raises(ValueError, match="ignores its head gradient, as SoftmaxOutput does"):
        trainer.backward(loss)
