"""Law 4: a skip leaves every bit as it was, and what the user wrote in between."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gluon_amp as amp
from tests import kinds
from tests.casting.nets import OwnNorm
from tests.laws.training import LOW_PRECISION, OPTIMIZERS, Training, batch
from tests.trainer.helpers import parameter, run, values

import mxnet as mx
from mxnet import autograd, gluon
from mxnet.gluon import nn

law = settings(deadline=None, derandomize=True, max_examples=8)


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_a_skip_leaves_every_bit(name):
    training = Training(name, 1.0)
    assert not training.step(0, overflow=True).applied  # the very first step, too
    clean = Training(name, 1.0)
    clean.net(batch(0))
    for key, value in clean.everything().items():
        assert training.everything()[key] == value
    for index in range(2):
        assert training.step(index).applied
        before = training.everything()
        assert not training.step(9, overflow=True, clip=1.0).applied
        assert training.everything() == before


@pytest.mark.parametrize("policy", LOW_PRECISION)
@law
@given(st.sampled_from(sorted(OPTIMIZERS)), st.lists(st.booleans(), min_size=1, max_size=6))
def test_skipped_steps_might_as_well_not_have_been(policy, name, finites):
    with_skips, without = (Training(name, 1.0, policy) for _ in range(2))
    for index, finite in enumerate(finites):
        with_skips.step(index, overflow=not finite)
        if finite:
            without.step(index)
    if any(finites):
        assert with_skips.everything() == without.everything()


def test_statistics_of_a_whole_window():
    training = Training("sgd", 1.0)
    training.step(0)
    before = training.everything()
    training.backward(1)
    training.backward(2, overflow=True)
    training.backward(3)
    # the last pass overwrote the gradients of the overflow, but not its statistics
    for p in training.params.values():
        if p.grad_req != "null":
            p.grad()[:] = np.nan
    assert not training.trainer.step(6).applied
    assert training.everything() == before


def test_statistics_that_the_trainer_was_not_given():
    training = Training("sgd", 1.0)
    own = [p for p in training.params.values() if p.grad_req == "null"]
    learnt = [p for p in training.params.values() if p.grad_req != "null"]
    training.trainer = amp.Trainer(learnt, "sgd", loss_scale=1.0)
    training.step(0)
    before = [p.data().asnumpy() for p in own]
    assert not training.step(1, overflow=True).applied
    for p, value in zip(own, before):
        np.testing.assert_array_equal(p.data().asnumpy(), value)


def test_parameters_that_the_first_forward_initializes():
    net = nn.HybridSequential()
    net.add(nn.Dense(4), nn.BatchNorm())
    net.initialize()
    trainer = amp.Trainer(amp.cast(net, "float16").collect_params(), "sgd", loss_scale=8)
    with autograd.record():
        loss = (net(kinds.ones((2, 3))) * np.inf).sum()
    trainer.backward(loss)
    assert not trainer.step(1).applied
    np.testing.assert_array_equal(net[1].running_mean.data().asnumpy(), np.zeros(4))
    np.testing.assert_array_equal(net[1].running_var.data().asnumpy(), np.ones(4))


def test_what_was_written_between_two_steps_stays():
    training = Training("sgd", 1.0)
    training.step(0)
    (mean,) = [p for name, p in training.params.items() if name.endswith("running_mean")]
    mean.set_data(kinds.full(mean.shape, 5.0))
    assert not training.step(1, overflow=True).applied
    assert (mean.data().asnumpy() == 5.0).all()


def test_buffers_that_accumulate_are_zero_after_a_skip():
    p = parameter("p", [1.0], grad_req="add")
    trainer = amp.Trainer([p], "sgd", {"learning_rate": 1.0}, loss_scale="dynamic")
    for _ in range(3):  # contrib.amp would overflow forever
        run(trainer, [(p, [0.125])], step=False)
        assert not run(trainer, [(p, [np.inf])]).applied
        assert p.grad().asnumpy().item() == 0.0
    run(trainer, [(p, [0.125])], step=False)
    assert run(trainer, [(p, [0.25])]).applied
    assert values(p)[0] == 0.625


# ------------------------------------------------------------------------------ whoever holds them


def imported(size):
    """A net of a file of symbols, whose parameters all look alike."""
    x = mx.sym.var("x")
    out = mx.sym.FullyConnected(x, num_hidden=size, name="fc")
    return gluon.SymbolBlock(mx.sym.BatchNorm(out, fix_gamma=False, name="bn"), [x])


def dense_and(norm):
    def make(size):
        part = nn.HybridSequential()
        part.add(nn.Dense(size), norm(size))
        return part

    return make


PARTS = [dense_and(lambda size: nn.BatchNorm()), dense_and(OwnNorm), imported]


class Mixture:
    """Three random parts: cast or not, hybridized or not, in the trainer or not; a cast head."""

    def __init__(self, seed, loss_scale):
        draw = np.random.RandomState(seed)
        self.batches = np.random.RandomState(seed)
        mx.random.seed(seed)
        policy = ("float16", "mixed_float16", "bfloat16", "float32")[draw.randint(4)]
        self.parts = [PARTS[draw.randint(len(PARTS))](8) for _ in range(3)] + [nn.Dense(3)]
        params = {}
        for part in self.parts:
            part.initialize(mx.init.Uniform(0.5))
            is_cast, is_hybridized, is_trained = draw.randint(2, size=3)
            if is_hybridized:
                part.hybridize()
            self.forward(np.zeros((2, 8)), self.parts[: self.parts.index(part) + 1])
            if is_cast or part is self.parts[-1]:
                amp.cast(part, policy)
            if is_trained or part is self.parts[-1]:
                params.update(part.collect_params())
            elif is_cast:
                amp.Trainer(part.collect_params(), "sgd", loss_scale=8.0)
        self.veto = False
        self.trainer = amp.Trainer(
            params,
            "sgd",
            {"learning_rate": 0.05, "momentum": 0.9},
            loss_scale=loss_scale,
            on_step=lambda trainer, report: not self.veto,
        )

    def forward(self, x, parts=None):
        x = mx.nd.array(x)
        for part in parts or self.parts:
            x = part(x)
        return x

    def backward(self, factor=1.0, **options):
        with autograd.record():
            out = self.forward(self.batches.randn(5, 8))
            loss = (out * factor).square().mean(axis=1)
        self.trainer.backward(loss, **options)

    def bytes(self):
        return [
            p.data().asnumpy().tobytes()
            for part in self.parts
            for p in part.collect_params().values()
        ]


SEEDS = [pytest.param(n, marks=[pytest.mark.slow] * (n >= 12)) for n in range(60)]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_skip_a_veto_and_a_dropped_pass_undo_what_operators_wrote(seed):
    run = Mixture(seed, 8.0)
    for event in np.random.RandomState(seed).permutation(["overflow", "veto", "drop", "ok", "ok"]):
        before = run.bytes()
        if event == "drop":
            run.backward(np.inf, accumulate=True)
            assert run.bytes() == before
            run.backward(accumulate=True)
        else:
            run.backward(np.inf if event == "overflow" else 1.0)
        run.veto = event == "veto"
        assert run.trainer.step(5).applied == (event in ("ok", "drop"))
        assert (run.bytes() == before) == (event in ("overflow", "veto"))


@pytest.mark.parametrize("seed", SEEDS)
def test_the_first_step_writes_what_one_pass_writes(seed):
    """Its pass is replayed, and repeated where it overflows."""
    searching = Mixture(seed, "dynamic")
    searching.backward(2.0**10)
    scale = searching.trainer.current_pass().scale
    once = Mixture(seed, amp.DynamicLossScale(scale))
    once.backward(2.0**10)
    assert [run.trainer.step(5).applied for run in (searching, once)] == [True, True]
    assert searching.bytes() == once.bytes()
