"""Nets that share or copy parameters of a cast net, as predictors and tied weights do."""

import _thread
import gc
import threading
import warnings

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp.casting.parameters import CastParameter, dtype_of
from tests.trainer.helpers import backward

from mxnet import autograd, gluon, nd
from mxnet.gluon import nn


class Predictor(gluon.HybridBlock):
    def __init__(self, **options):
        super().__init__(**options)
        with self.name_scope():
            self.body = nn.Dense(8, in_units=3, prefix="body_")
            self.head = nn.Dense(1, in_units=8, prefix="head_")

    def hybrid_forward(self, F, x, *label):
        return self.head(self.body(x))


class Training(Predictor):
    def hybrid_forward(self, F, x, label):
        return F.square(self.head(self.body(x)) - label).mean(axis=1)


def data():
    return nd.array(np.random.RandomState(0).normal(size=(4, 3)))


def trained():
    """Return a net after a step, a function that makes another step, and its trainer."""
    net = Training(prefix="net_")
    net.initialize()
    amp.cast(net, "float16")
    trainer = amp.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1}, loss_scale=8.0)

    def step():
        with autograd.record():
            loss = net(data(), nd.ones((4, 1)))
        trainer.backward(loss)
        assert trainer.step(4).applied

    step()
    return net, step, trainer


def predictor_of(net, policy="float32"):
    return amp.cast(Predictor(prefix="net_", params=net.collect_params()), policy)


@pytest.mark.parametrize("hybridized", [False, True])
def test_a_net_that_is_not_cast_reads_shared_parameters_in_float32(hybridized):
    net, step, _ = trained()
    predictor = predictor_of(net)
    predictor.hybridize(hybridized)
    assert predictor.body.weight is net.body.weight
    for _ in range(2):
        weights = [
            p.data().asnumpy().astype("float32") for p in predictor.collect_params().values()
        ]
        body = data().asnumpy() @ weights[0].T + weights[1]
        out = predictor(data())
        assert out.dtype == np.float32
        np.testing.assert_allclose(out.asnumpy(), body @ weights[2].T + weights[3], rtol=1e-5)
        step()
    assert net.body.weight.dtype == "float16" and net.body.weight.data().dtype == np.float16


def test_gradients_through_a_net_that_is_not_cast():
    net, _, trainer = trained()
    predictor = predictor_of(net)
    backward(trainer, predictor, data())
    assert net.body.weight.grad().dtype == np.float16
    expected = 4 * 8.0 * np.ones(1)
    np.testing.assert_allclose(net.head.bias.grad().asnumpy(), expected)
    assert trainer.step(1).applied


def test_two_cast_nets_share_the_masters(tmp_path):
    net, step, trainer = trained()
    predictor = predictor_of(net, "float16")
    before = predictor(data()).asnumpy()
    step()
    assert (predictor(data()).asnumpy() != before).any()
    predictor.save_parameters(str(tmp_path / "predictor"))
    saved = nd.load(str(tmp_path / "predictor"))["body.weight"]
    master = trainer.master_params()["net_body_weight"]
    assert np.array_equal(master.asnumpy(), saved.asnumpy())
    assert (saved.asnumpy() != net.body.weight.data().asnumpy()).any()


@pytest.mark.parametrize("first", ["net", "predictor"])
def test_undoing_the_cast_of_one_net_leaves_the_other(first):
    net, step, _ = trained()
    predictor = predictor_of(net, "float16")
    expected = predictor(data()).asnumpy()
    amp.cast(net if first == "net" else predictor, "float32")
    assert dtype_of(net.body.weight) == "float16"
    assert isinstance(net.body.weight, CastParameter)
    np.testing.assert_allclose(predictor(data()).asnumpy(), expected, rtol=0.01, atol=0.01)
    step()
    amp.cast(predictor if first == "net" else net, "float32")
    assert type(net.body.weight) is gluon.Parameter
    assert dtype_of(net.body.weight) == "float32"


def test_a_net_that_was_deleted_does_not_count():
    net, _, _ = trained()
    gc.disable()
    try:
        predictor = predictor_of(net, "float16")
        predictor(data())
        del predictor
        amp.cast(net, "float32")
    finally:
        gc.enable()
    assert dtype_of(net.body.weight) == "float32"


def test_a_shared_parameter_keeps_its_dtype_under_another_policy():
    net, step, _ = trained()
    predictor = predictor_of(net)
    expected = predictor(data()).asnumpy()
    for policy in ("mixed_float16", "bfloat16"):
        amp.cast(predictor, policy)
        np.testing.assert_allclose(predictor(data()).asnumpy(), expected, rtol=0.02, atol=0.02)
        assert dtype_of(net.body.weight) == "float16"
        step()
        expected = amp.cast(predictor, "float32")(data()).asnumpy()
    amp.cast(net, "mixed_float16")  # a net's own parameters change
    assert dtype_of(net.body.weight) == "float32"


def test_parameters_that_only_one_of_two_nets_has_change_with_its_cast():
    net, _, _ = trained()
    other = Predictor(prefix="other_")
    other.body = nn.Dense(8, in_units=3, params=net.body.params)
    other.initialize()
    amp.cast(other, "float16")
    amp.cast(net, "float32")
    assert isinstance(net.body.weight, CastParameter) and type(net.head.weight) is gluon.Parameter
    amp.cast(other, "float32")
    assert type(net.body.weight) is gluon.Parameter


def test_a_parameter_of_another_shape_is_still_refused():
    net, _, _ = trained()
    with pytest.raises(AssertionError, match="shape"):
        nn.Dense(7, in_units=3, params=net.body.params)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert nn.Dense(8, in_units=3, params=net.body.params).weight is net.body.weight


def test_a_parameter_is_read_by_a_script():
    """The code of a script has no caller: here it is the first that a thread runs."""
    net = amp.cast(nn.Dense(2, in_units=3), "float16")
    net.initialize()
    names = {"param": net.weight, "done": threading.Event()}
    code = "try: found = param.data().dtype\nfinally: done.set()"
    _thread.start_new_thread(exec, (code, names))
    names["done"].wait(10)
    assert names["found"] == np.float16
