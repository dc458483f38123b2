"""watch: looks at a training that change nothing in it."""

import copy
import math

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp.base.array_kinds import set_to_zero
from gluon_amp.base.messages import UsageError
from gluon_amp.inspection.recording import Recorded
from tests.inspection.nets import built, chain, images, make_net, one, total

import mxnet as mx
from mxnet import autograd, nd
from mxnet.gluon import nn

FLOAT8 = "compute=float8_e4m3,gradients=float8_e5m2"
DIRECTIONS = {"forward", "data_gradient", "weight_gradient"}


def train(net, trainer, steps, data=None):
    for _ in range(steps):
        with autograd.record():
            loss = total(net(images() if data is None else data), None)
        trainer.backward(loss)
        trainer.step(2)


def trainer_of(net, scale=1024.0):
    options = {"learning_rate": 0.01}
    return amp.Trainer(net.collect_params(), "sgd", options, loss_scale=scale)


def by_place(rows, step=0):
    return {(row.layer, row.direction, row.tensor): row for row in rows if row.step == step}


def look(net, data, scale=1.0, steps=1, **options):
    """Return the rows of a training that is looked at."""
    trainer = trainer_of(net, scale)
    with amp.watch(net, trainer, **{"what_if": ["float16"], **options}) as watch:
        train(net, trainer, steps, data)
    return watch.rows


# ------------------------------------------------------------------------------- literal numbers


def test_half_of_a_weight_gradient_underflows():
    net = built(nn.Dense(1, in_units=2, use_bias=False), policy=None)
    data = nd.array([[1, 2**-28]])  # the gradient of the weight
    rows = look(net, data, 4.0, what_if=["float16", "bfloat16"])
    assert [row.direction for row in rows] == ["weight_gradient", "forward"]
    row = by_place(rows)["0", "weight_gradient", "weight"]
    assert (row.largest, row.size, row.loss_scale, row.dtype) == (4.0, 2, 4.0, "float32")
    assert row.formats["float16"][:2] == (0.5, 0.0)
    assert row.formats["bfloat16"][:3] == (0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    "policy, hybridized",
    [("float32", False), ("float32", True), ("float16", True), ("bfloat16", True)],
)
def test_each_direction_of_a_chain(policy, hybridized):
    net = chain(2, 4, 8, policy=policy)
    if hybridized:
        net.hybridize()
    rows = by_place(look(net, one(3), 16.0))
    assert {place[:2]: row.largest for place, row in rows.items()} == {
        ("0", "forward"): 6,
        ("1", "forward"): 24,
        ("2", "forward"): 192,
        # gradients of the data, by the layers behind; training computes none for the input
        ("1", "data_gradient"): 16 * 8 * 4,
        ("2", "data_gradient"): 16 * 8,
        ("0", "weight_gradient"): 16 * 8 * 4 * 3,
        ("1", "weight_gradient"): 16 * 8 * 6,
        ("2", "weight_gradient"): 16 * 24,
    }
    assert {row.loss_scale for row in rows.values()} == {1, 16}


# ------------------------------------------------------------------------------- it changes nothing


def random_net(policy, hybridized):
    mx.random.seed(3)
    np.random.seed(3)
    layers = nn.Conv2D(8, 3, activation="relu"), nn.BatchNorm(), nn.Dropout(0.5), nn.Dense(3)
    net = built(*layers, policy=policy)
    if hybridized:
        net.hybridize()
    return net


@pytest.mark.parametrize("policy, hybridized, grad_req", [
    (None, False, "write"),
    (None, True, "add"),
    ("float16", True, "write"),
    ("float16", True, "add"),
    ("bfloat16", True, "write"),
    (FLOAT8, True, "write"),
])  # fmt: skip
def test_a_look_changes_no_bit(policy, hybridized, grad_req):
    results = []
    for watched in (False, True):
        net = random_net(policy, hybridized)
        trainer = trainer_of(net)
        watch = amp.watch(net, trainer, every=1) if watched else None
        data = images()
        net(data)
        for name, parameter in net.collect_params().items():
            if "running" not in name:
                parameter.grad_req = grad_req
        for _ in range(2):
            for _ in range(2):  # micro-batches
                with autograd.record():
                    loss = total(net(data), None)
                trainer.backward(loss)
            trainer.step(2)
            if grad_req == "add":
                set_to_zero(trainer.gradients())
        numbers = [p.data().asnumpy() for p in net.collect_params().values()]
        results.append((*numbers, nd.random.uniform(shape=4).asnumpy(), np.random.uniform(size=4)))
        if watched:
            watch.close()
            assert {row.direction for row in watch.rows} == DIRECTIONS
    for alone, watched in zip(*results):
        assert alone.tobytes() == watched.tobytes()


def test_a_net_may_be_cast_while_it_is_looked_at():
    net = make_net("float16")
    with amp.watch(net, trainer_of(net), what_if=["float16"]):
        net(images())
        amp.cast(net, "float32")
        stock = net(images()).asnumpy()
        amp.cast(net, FLOAT8)
        assert np.allclose(net(images()).asnumpy(), stock, rtol=0.3, atol=0.3)


def test_a_copy_of_a_net_that_is_looked_at_is_a_net_of_its_own():
    net = make_net("float16")
    with amp.watch(net, trainer_of(net), what_if=["float16"]) as watch:
        other = copy.deepcopy(net)
        assert not any(isinstance(vars(b).get("forward"), Recorded) for b in (other, *other))
        for parameter in other.collect_params().values():
            parameter.set_data(parameter.data() * 0)
        with autograd.record():
            assert not other(images()).asnumpy().any() and net(images()).asnumpy().any()
    assert watch.rows == [] and net(images()).asnumpy().any()


def test_the_probes_keep_the_sign_of_zeros():
    net = built(nn.Dense(1, in_units=1, use_bias=False), nn.HybridLambda("negative"), policy=None)
    with amp.watch(net, trainer_of(net)), autograd.record():
        assert math.copysign(1, net(nd.zeros((1, 1))).asscalar()) == -1


def test_between_looks_nothing_is_recorded():
    net = random_net("float16", True)
    trainer = trainer_of(net)
    with amp.watch(net, trainer, every=3, what_if=["float16"]) as watch:
        recorded = []
        for _ in range(5):
            recorded.append(any("forward" in vars(block) for block in (net, *net)))
            train(net, trainer, 1)
        train(net, trainer, 1)
        assert "forward" in vars(net)  # of the look that close() ends
    assert recorded == [True, False, False, True, False]
    assert {row.step for row in watch.rows} == {0, 3}
    assert trainer.step_listeners == [] and "forward" not in vars(net)


# ------------------------------------------------------------------------------- all kinds of nets


def test_several_devices():
    contexts = [mx.cpu(0), mx.cpu(1)]
    net = chain(1, 1, policy="float32")
    net.collect_params().reset_ctx(contexts)
    trainer = trainer_of(net, scale=1.0)
    with amp.watch(net, trainer, what_if=["float16"]) as watch:
        with autograd.record():
            losses = [net(nd.ones((1, 1), ctx) * (k + 1)).sum() for k, ctx in enumerate(contexts)]
        trainer.backward(losses)
        trainer.step(2)
    rows = by_place(watch.rows)
    output, gradient = rows["0", "forward", "output"], rows["1", "weight_gradient", "weight"]
    assert (output.size, output.largest) == (1, 1)
    # The buffers of both devices, before they are added up
    assert (gradient.size, gradient.largest) == (2, 2)


def test_micro_batches_are_looked_at_together():
    net = chain(2, 4, policy="float32")
    net.collect_params().setattr("grad_req", "add")
    trainer = trainer_of(net, scale=1.0)
    with amp.watch(net, trainer, what_if=["float16"]) as watch:
        for value in (3, 5):
            with autograd.record():
                loss = total(net(one(value)), None)
            trainer.backward(loss)
        trainer.step(2)
    rows = by_place(watch.rows)
    assert (rows["0", "forward", "output"].size, rows["0", "forward", "output"].largest) == (2, 10)
    assert rows["0", "weight_gradient", "weight"].largest == 4 * 3 + 4 * 5


@pytest.mark.parametrize("hybridized", [False, True])
def test_a_net_that_draws_other_random_numbers_is_named_once(hybridized, caplog):
    noise = nn.HybridLambda(lambda F, x: x + F.random.uniform_like(x))
    net = built(nn.Dense(1, in_units=2), noise, policy=None)
    if hybridized:
        net.hybridize()
    rows = look(net, nd.ones((1, 2)), steps=3, every=1)
    assert {direction for _, direction, _ in by_place(rows)} == {"weight_gradient"}
    assert caplog.text.count("the net itself") == 1
    # Later looks see the children, if Python calls them one by one
    later = {place[:2] for place in by_place(rows, step=2)}
    assert later == {("0", "weight_gradient")} | (set() if hybridized else {("0", "forward")})


class TwoHeads(mx.gluon.Block):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Dense(4, in_units=3), nn.Dense(2, in_units=4)

    def forward(self, x):
        features = self.body(x)
        return self.head(features) + self.head(2 * features)


def test_blocks_that_python_calls_one_by_one():
    net = TwoHeads()
    net.initialize()
    rows = by_place(look(amp.cast(net), nd.ones((5, 3))))
    assert rows["head", "forward", "output"].size == 2 * 5 * 2  # of both calls
    assert rows["head", "data_gradient", "data"].size == 2 * 5 * 4
    assert ("body", "data_gradient", "data") not in rows  # of the input


def test_a_look_that_fails_ends_no_training(caplog, monkeypatch):
    def fail(*args):
        raise mx.MXNetError("Traceback (most recent call last):\nMXNetError: no memory.")

    monkeypatch.setattr("gluon_amp.inspection.sampler.activations", fail)
    rows = look(chain(2), one(1), steps=2, every=1)
    assert {row.direction for row in rows} == {"weight_gradient"}
    assert caplog.text.count("cannot be run again (no memory)") == 1


# ------------------------------------------------------------------------------- wrong use


@pytest.mark.parametrize(("arguments", "error", "message"), [
    ({"every": 0}, ValueError, "every"),
    ({"what_if": []}, ValueError, "no format"),
    ({"what_if": ["flaot16"]}, ValueError, "did you mean 'float16'"),
    ({"what_if": "float16"}, ValueError, "expected a list"),
    ({"file": "/no/such/folder/f"}, UsageError, "cannot write"),
    ({"file": __file__}, UsageError, "Line 1 of"),
])  # fmt: skip
def test_wrong_arguments_are_one_sentence(arguments, error, message):
    net = chain(1)
    trainer = trainer_of(net)
    with pytest.raises(error, match=message):
        amp.watch(net, trainer, **arguments)
    assert trainer.step_listeners == []
    with pytest.raises(TypeError, match="watch"):
        amp.watch(net, mx.gluon.Trainer(net.collect_params(), "sgd", {"multi_precision": True}))
