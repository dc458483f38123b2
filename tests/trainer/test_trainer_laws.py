"""The laws of training with a loss scale, for any optimizer and any sequence of overflows."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gluon_amp.casting import statistics
from gluon_amp.trainer import Trainer
from gluon_amp.trainer.loss_scale import DynamicLossScale, LossScale
from tests import kinds
from tests.trainer.helpers import Dense16, parameter, run, values
from tests.two_workers import run_two_workers

import mxnet as mx
from mxnet import autograd, nd
from mxnet.gluon import nn

pytestmark = pytest.mark.usefixtures("arrays")  # Law 13

law = settings(deadline=None, derandomize=True, max_examples=12)
OPTIMIZERS = {
    "sgd": {"momentum": 0.9, "wd": 1e-3},
    "nag": {"momentum": 0.9, "wd": 1e-3},
    "adam": {"wd": 1e-3},
    "adamw": {"wd": 0.1},
    "lars": {"momentum": 0.9, "wd": 1e-3},
    "lamb": {"wd": 1e-3},
    "rmsprop": {},
}
names = st.sampled_from(sorted(OPTIMIZERS))
inf = np.inf


class Scheduled(LossScale):
    """Reads its scales from a list, after finite steps and overflows alike."""

    def __init__(self, exponents):
        self.exponents, self.step = exponents, 0

    @property
    def scale(self):
        return 2.0 ** self.exponents[self.step % len(self.exponents)]

    def update(self, finite):
        self.step += 1


def batch(step, rows=6):
    return kinds.array(np.random.RandomState(step).randn(rows, 4))


class Training:
    """A network with BatchNorm and its trainer; `step(i, poison)` trains on batch i."""

    def __init__(self, name="sgd", loss_scale="dynamic", half=True, hybridize=True):
        mx.random.seed(7)
        np.random.seed(7)
        self.net = nn.HybridSequential(prefix="net_")
        with self.net.name_scope():
            if half:
                self.net.add(Dense16(8, 4), nn.Activation("relu"), Dense16(3, 8))
            else:
                self.net.add(nn.Dense(8, in_units=4), nn.BatchNorm(in_channels=8), nn.Dense(3))
        self.net.initialize(mx.init.Xavier())
        self.net(batch(0))
        if hybridize:
            self.net.hybridize()
        self.params = self.net.collect_params()
        self.trainer = Trainer(
            self.params, name, {"learning_rate": 0.05, **OPTIMIZERS[name]}, loss_scale=loss_scale
        )

    def backward(self, index, poison=None):
        data = batch(index)
        if poison is not None:
            data[poison] = inf
        with autograd.record():
            loss = ((self.net(data) - 1) ** 2).mean(axis=1)
        self.trainer.backward(loss)

    def step(self, index, poison=None, clip=None):
        self.backward(index, poison)
        if clip is not None:
            self.trainer.clip_global_norm(clip)
        return self.trainer.step(6)

    def everything(self):
        """Return all that a step may change, except the loss scale and the gradients."""
        optimizer = self.trainer.optimizer
        state_of = {name: p.data().asnumpy().tobytes() for name, p in self.params.items()}
        for index, state in self.trainer.updaters[0].states.items():
            for part, array in enumerate(state):
                if isinstance(array, nd.NDArray):
                    state_of[index, part] = array.asnumpy().tobytes()
        state_of["counts"] = (optimizer.num_update, json.dumps(optimizer._index_update_count))
        return state_of


# ------------------------------------------------------------------------------ law 2


@law
@given(names, st.lists(st.integers(-24, 24), min_size=1, max_size=5), st.sampled_from([6, 7, 3]))
def test_law_2_any_schedule_of_scales_gives_the_same_bits(name, exponents, batch_size):
    results = []
    for loss_scale in (Scheduled([0]), Scheduled(exponents)):
        training = Training(name, loss_scale, half=False)
        for index in range(5):
            training.backward(index)
            training.trainer.clip_global_norm(0.5)
            training.trainer.step(batch_size)
        results.append(training.everything())
    assert results[0] == results[1]


@law
@given(names, st.lists(st.integers(-17, 12), min_size=1, max_size=5), st.sampled_from([1, 7, 100]))
def test_law_2_also_for_float16_gradients(name, exponents, batch_size):
    # multiples of 1/128 up to 1 are exact in float16 at every one of these scales
    factors = np.random.RandomState(3).randint(-128, 129, (6, 5)) / 128.0
    results = []
    for loss_scale in (Scheduled([0]), Scheduled(exponents)):
        p = parameter("p", np.linspace(-1, 1, 5))
        trainer = Trainer([p], name, OPTIMIZERS[name], loss_scale=loss_scale)
        for factor in factors:
            assert run(trainer, [(p, factor)], batch_size).applied
        results.append(trainer.master_params()["p"].asnumpy())
    np.testing.assert_array_equal(*results)


def test_law_2_without_a_scale_too():
    results = []
    for loss_scale in (None, 2.0**10):
        training = Training("adam", loss_scale, half=False)
        for index in range(5):
            training.step(index)
        results.append(training.everything())
    assert results[0] == results[1]


# ------------------------------------------------------------------------------ law 3


def test_law_3_closed_loop_skips_4_and_settles_at_4096():
    p = parameter("p", [0.0])
    trainer = Trainer([p], "sgd", {"learning_rate": 0.0}, loss_scale=DynamicLossScale(2.0**16))
    # 15.9 · 4096 fits into float16, 15.9 · 8192 does not
    reports = [run(trainer, [(p, [15.9])]) for _ in range(30)]
    assert [r.applied for r in reports] == [False] * 4 + [True] * 26
    assert [r.loss_scale for r in reports[:5]] == [65536.0, 32768.0, 16384.0, 8192.0, 4096.0]
    assert {r.next_loss_scale for r in reports[4:]} == {4096.0}


def test_law_3_before_the_first_finite_step_one_skip_goes_to_where_the_gradients_fit():
    p = parameter("p", [0.0])
    trainer = Trainer([p], "sgd", {"learning_rate": 0.0}, loss_scale="dynamic")
    reports = [run(trainer, [(p, [15.9])]) for _ in range(30)]
    assert [r.applied for r in reports] == [False] + [True] * 29
    # 3 bits below the largest scale that fits
    assert [r.loss_scale for r in reports] == [65536.0] + [512.0] * 29
    assert {r.skipped_total for r in reports} == {1}
    assert not run(trainer, [(p, [2.0**20])]).applied
    assert trainer.loss_scale.scale == 256.0


@law
@given(st.lists(st.booleans(), min_size=1, max_size=25), st.integers(1, 3))
def test_law_3_one_overflow_is_one_skip_and_one_backoff(finites, interval):
    p = parameter("p", [1.0])
    loss_scale = DynamicLossScale(init_scale=2**8, growth_interval=interval, min_scale=2.0**-30)
    trainer = Trainer([p], "sgd", loss_scale=loss_scale, max_consecutive_skips=100)
    twin = DynamicLossScale(init_scale=2**8, growth_interval=interval, min_scale=2.0**-30)
    skipped = 0
    for finite in finites:
        report = run(trainer, [(p, [0.0 if finite else inf])])
        skipped += not finite
        before = twin.scale
        twin.update(finite)
        assert report.applied == finite
        assert (report.loss_scale, report.next_loss_scale) == (before, twin.scale)
        assert report.skipped_total == skipped
        assert finite or twin.scale == before / 2


# ------------------------------------------------------------------------------ law 4


@pytest.mark.parametrize("hybridize", [False, True], ids=["imperative", "hybridized"])
@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_law_4_a_skip_leaves_every_bit_as_it_was(name, hybridize):
    training = Training(name, 1.0, hybridize=hybridize)
    assert not training.step(0, poison=(2, 1)).applied  # the very first step, too
    clean = Training(name, 1.0, hybridize=hybridize)
    clean.net(batch(0))
    assert training.everything() == clean.everything()
    for index in range(3):
        assert training.step(index).applied
        before = training.everything()
        assert not training.step(9, poison=(0, 0), clip=1.0).applied
        assert training.everything() == before


@law
@given(names, st.lists(st.booleans(), min_size=1, max_size=8))
def test_law_4_skipped_steps_might_as_well_not_have_been(name, finites):
    with_skips, without = Training(name, 1.0), Training(name, 1.0)
    for index, finite in enumerate(finites):
        with_skips.step(index, poison=None if finite else (1, 2))
        if finite:
            without.step(index)
    assert with_skips.everything() == without.everything()


def test_law_4_statistics_of_a_whole_window_are_restored():
    training = Training("sgd", 1.0)
    training.step(0)
    before = training.everything()
    training.backward(1)
    training.backward(2, poison=(0, 0))
    training.backward(3)
    # the last pass overwrote the gradients of the poisoned pass, but not its statistics
    for p in training.params.values():
        if p.grad_req != "null":
            p.grad()[:] = np.nan
    assert not training.trainer.step(6).applied
    assert training.everything() == before
    assert all(np.isfinite(p.data().asnumpy()).all() for p in training.params.values())


def test_law_4_statistics_that_the_trainer_was_not_given():
    training = Training("sgd", 1.0)
    own = [p for p in training.params.values() if not p._differentiable]
    learnt = [p for p in training.params.values() if p._differentiable]
    training.trainer = Trainer(learnt, "sgd", loss_scale=1.0)
    statistics.watch(own)  # as `amp.cast` does
    training.step(0)
    before = [p.data().asnumpy() for p in own]
    assert not training.step(1, poison=(0, 0)).applied
    for p, value in zip(own, before):
        np.testing.assert_array_equal(p.data().asnumpy(), value)


def test_law_4_parameters_that_are_initialized_by_the_first_forward():
    net = nn.HybridSequential()
    net.add(nn.Dense(4), nn.BatchNorm())
    net.initialize()
    trainer = Trainer(net.collect_params(), "sgd", loss_scale=8)
    with autograd.record():
        loss = net(kinds.full((2, 3), inf)).sum()
    trainer.backward(loss)
    assert not trainer.step(1).applied
    np.testing.assert_array_equal(net[1].running_mean.data().asnumpy(), np.zeros(4))
    np.testing.assert_array_equal(net[1].running_var.data().asnumpy(), np.ones(4))


def test_law_4_statistics_that_were_set_between_two_steps_stay_set():
    training = Training("sgd", 1.0)
    training.step(0)
    (mean, *_) = [p for name, p in training.params.items() if name.endswith("running_mean")]
    mean.set_data(kinds.full(mean.shape, 5.0))
    assert not training.step(1, poison=(0, 0)).applied
    assert (mean.data().asnumpy() == 5.0).all()


def test_law_4_add_buffers_are_zero_after_a_skip():
    p = parameter("p", [1.0], grad_req="add")
    trainer = Trainer([p], "sgd", {"learning_rate": 1.0}, loss_scale="dynamic")
    for _ in range(3):  # contrib.amp would overflow forever
        run(trainer, [(p, [0.125])], step=False)
        assert not run(trainer, [(p, [inf])]).applied
        assert p.grad().asnumpy().item() == 0.0
    run(trainer, [(p, [0.125])], step=False)
    assert run(trainer, [(p, [0.25])]).applied
    assert values(p)[0] == 0.625


# ------------------------------------------------------------------------------ law 5


@law
@given(
    names,
    st.lists(st.booleans(), min_size=2, max_size=9),
    st.data(),
    st.sampled_from([True, False]),
    st.sampled_from([4, None]),
)
def test_law_5_resume_equals_uninterrupted(tmp_path_factory, name, finites, data, half, init_scale):
    folder = tmp_path_factory.mktemp("resume")
    cut = data.draw(st.integers(1, len(finites) - 1))

    def make():
        loss_scale = DynamicLossScale(init_scale, growth_interval=3, hysteresis=2, min_scale=0.5)
        return Training(name, loss_scale, half=half)

    def steps(training, start, stop):
        return [training.step(i, poison=None if finites[i] else (0, 0)) for i in range(start, stop)]

    whole = make()
    reports = steps(whole, 0, len(finites))
    first = make()
    steps(first, 0, cut)
    first.net.save_parameters(str(folder / "net"))
    first.trainer.save_states(str(folder / "states"))
    second = make()
    steps(second, 0, 1)  # its earlier steps leave no trace
    second.net.load_parameters(str(folder / "net"))
    second.trainer.load_states(str(folder / "states"))
    assert steps(second, cut, len(finites)) == reports[cut:]
    assert second.everything() == whole.everything()
    assert second.trainer.loss_scale.state_dict() == whole.trainer.loss_scale.state_dict()


# ------------------------------------------------------------------------------ law 6


@law
@given(st.lists(st.booleans(), max_size=30), st.integers(-3, 0), st.integers(0, 3))
def test_law_6_the_scale_in_the_gradients_never_leaves_its_bounds(finites, low, high):
    p = parameter("p", [0.0])
    loss_scale = DynamicLossScale(
        init_scale=1, growth_interval=1, min_scale=2.0**low, max_scale=2.0**high
    )
    trainer = Trainer([p], "sgd", {"learning_rate": 0.0}, loss_scale=loss_scale)
    in_a_row = 0
    for finite in finites:
        run(trainer, [(p, [1.0 if finite else 1e30])], step=False)
        if finite:
            assert 2.0**low <= p.grad().asnumpy().item() <= 2.0**high
        at_floor = loss_scale.scale == 2.0**low
        in_a_row = in_a_row + 1 if at_floor and not finite else 0
        if in_a_row == 20:
            with pytest.raises(FloatingPointError, match="20 steps in a row .* gradients of p"):
                trainer.step(1)
            break
        trainer.step(1)


# ------------------------------------------------------------------------------ law 9


@law
@given(names, st.integers(2, 5), st.data())
def test_law_9_accumulated_equals_whole_across_a_change_of_scale(name, parts, data):
    change = data.draw(st.integers(1, parts - 1))
    factors = np.random.RandomState(parts).randint(-64, 65, (parts, 5)) / 128.0
    results = []
    for accumulated in (True, False):
        p = parameter("p", np.linspace(-1, 1, 5), grad_req="add" if accumulated else "write")
        loss_scale = DynamicLossScale(init_scale=64)
        trainer = Trainer([p], name, OPTIMIZERS[name], loss_scale=loss_scale)
        for _ in range(2):
            if accumulated:
                for part, factor in enumerate(factors):
                    if part == change:
                        loss_scale.update(False)  # as another trainer that shares it may do
                    run(trainer, [(p, factor)], step=False)
                report = trainer.step(parts)
                p.grad()[:] = 0
            else:
                report = run(trainer, [(p, factors.sum(axis=0))], parts)
            assert report.applied
        results.append(trainer.master_params()["p"].asnumpy())
    np.testing.assert_array_equal(*results)


def test_law_9_a_window_keeps_its_scale_and_the_next_one_has_the_new():
    p = parameter("p", [0.0], grad_req="add")
    trainer = Trainer([p], "sgd", {"learning_rate": 1.0}, loss_scale=DynamicLossScale(64))
    run(trainer, [(p, [1.0])], step=False)
    trainer.loss_scale.update(False)
    run(trainer, [(p, [1.0])], step=False)
    assert p.grad().asnumpy().item() == 128.0
    report = trainer.step(1)
    assert (values(p)[0], report.loss_scale, report.next_loss_scale) == (-2.0, 64.0, 32.0)
    p.grad()[:] = 0
    assert run(trainer, [(p, [1.0])]).loss_scale == 32.0


def test_law_9_an_overflow_in_one_micro_batch_discards_the_window():
    p = parameter("p", [0.0], grad_req="add")
    trainer = Trainer([p], "sgd", {"learning_rate": 1.0}, loss_scale=64)
    run(trainer, [(p, [inf])], step=False)
    assert not run(trainer, [(p, [1.0])]).applied
    assert run(trainer, [(p, [1.0])]).applied
    assert values(p)[0] == -1.0


# ------------------------------------------------------------------------------ several workers


WORKER = """
import json, sys
import gluon_amp
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon, nd
from gluon_amp.casting import statistics
from gluon_amp.trainer import Trainer

p = gluon.Parameter("p", shape=(3,), dtype="float16")
q = gluon.Parameter("q", shape=(2,), dtype="float32")
for param in (p, q):
    param.initialize(mx.init.One())
trainer = Trainer([p, q], "sgd", {"learning_rate": 0.5}, kvstore="dist_sync")
reports, scales = [], []
for step in range(5):
    with autograd.record():
        # only one worker has the overflow
        factor = np.inf if step in (2, 4) and sys.argv[1] == "0" else 0.25
        # first the gradient of each worker fits at another scale
        first = (2.0**8 if sys.argv[1] == "0" else 2.0) if step == 0 else 0.25
        loss = (p.data().astype("float32") * first).sum() + (q.data() * factor).sum()
    trainer.backward(loss)
    if step == 3:
        trainer.clip_global_norm(1e9)
    report = trainer.step(1)
    reports.append([report.applied, list(report.overflow)])
    scales.append(report.next_loss_scale)
values = [param.data().asnumpy().tolist() for param in (p, q)]
with open(sys.argv[2], "w") as file:
    json.dump({"reports": reports, "values": values, "scales": scales}, file)
"""


@pytest.mark.slow
def test_two_workers_skip_together_when_one_overflows(tmp_path):
    first, second = run_two_workers(tmp_path, WORKER)
    assert first == second
    skip = [False, ["q"]]
    assert first["reports"] == [[False, ["p"]], [True, []], skip, [True, []], skip]
    # two steps of lr 0.5 and two workers' gradients of 0.25
    assert first["values"] == [[0.5] * 3, [0.5] * 2]
    assert first["scales"] == [16.0, 16.0, 8.0, 8.0, 4.0]
