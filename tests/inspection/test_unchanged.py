"""Functions that look change nothing: nets of every kind, every function."""

import contextlib
import random

import numpy as np
import pytest

import gluon_amp as amp
from tests.casting.nets import OwnNorm, exported, imported
from tests.inspection.nets import L2, Recipe, built, images, labels, make_net
from tests.inspection.test_watch import train, trainer_of

import mxnet as mx
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn


def own_norm(grad_req):
    norm = OwnNorm(4)
    norm.mean.grad_req = norm.var.grad_req = grad_req
    return norm


class PythonNorm(nn.Sequential):
    """Python code that writes its statistic and draws random numbers."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.mean = self.params.get("running_mean", shape=(4,), init="zeros", grad_req="null")

    def forward(self, x):
        with autograd.pause():
            self.mean.set_data(self.mean.data() + x.mean() + random.random() + np.random.rand())
        return x


def read_back(policy, folder):
    net = make_net(policy=None)
    net.hybridize()
    net(images())
    exported(net, folder)
    return amp.cast(imported(folder), policy)


def constructed(policy, folder):
    net, x = make_net(policy=None), mx.sym.var("data")
    return amp.cast(gluon.SymbolBlock(net(x), x, params=net.collect_params()), policy)


def adding(policy, folder):
    net = read_back(policy, folder)
    net.collect_params().setattr("grad_req", "add")  # of the statistics, too
    return net


def with_norm(make_norm, container=nn.HybridSequential):
    def make(policy, folder):
        net = container()
        net.add(nn.Conv2D(4, 3, in_channels=3), make_norm(), nn.Dense(3, in_units=64))
        net.initialize()
        return amp.cast(net, policy)

    return make


def partly(policy, folder):
    layers = nn.Conv2D(4, 3, in_channels=3), nn.BatchNorm(in_channels=4), nn.Dense(3, in_units=64)
    net = built(*layers, policy=None)
    amp.cast(net[2], policy)
    return net


NETS = {
    "imported": read_back,
    "constructed": constructed,
    "adding": adding,
    "own": with_norm(lambda: own_norm("null")),
    "trained": with_norm(lambda: own_norm("write")),
    "python": with_norm(PythonNorm, nn.Sequential),
    "partly": partly,
    "recipe": lambda policy, folder: Recipe(),
}
LOOKS = {
    "describe": lambda net, trainer, x: amp.describe(net, x),
    "check": amp.check,
    "check without inputs": lambda net, trainer, x: amp.check(net, trainer),
    "diagnose": lambda net, trainer, x: amp.diagnose(net, L2, x, labels()),
    "overflow": lambda net, trainer, x: amp.diagnose(net, L2, x * 1e6, labels(), 2.0**24),
    "suggest_policy": lambda net, trainer, x: amp.suggest_policy(net, L2, x, labels()),
    "gradient_report": lambda net, trainer, x: amp.gradient_report(net, trainer),
}


def content(net):
    parameters = net.collect_params().values()
    arrays = [array for p in parameters for array in (*p.list_data(), *(p._grad or ()))]
    values = [(id(array), array.asnumpy().tobytes(), array._fresh_grad) for array in arrays]
    kinds = [(str(p.dtype), p.grad_req) for p in parameters]
    return values, kinds, random.getstate(), str(np.random.get_state())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("policy", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("name", NETS)
def test_no_look_changes_a_bit_or_leaves_an_error(name, policy, tmp_path):
    net = NETS[name](policy, tmp_path)
    trainer = amp.Trainer(net.collect_params(), "sgd", check_finite=True)
    with contextlib.suppress(mx.MXNetError):
        with autograd.record():
            loss = L2(net(images()), labels())
        trainer.backward(loss)
    with contextlib.suppress(mx.MXNetError):
        nd.waitall()
    before = content(net)
    for look in LOOKS.values():
        with contextlib.suppress(RuntimeError, ValueError):  # of a net that no CPU runs
            look(net, trainer, images())
        nd.waitall()  # raises what a look has left behind
        assert content(net) == before
    assert "grad_req='write'" not in str(amp.check(net, trainer, images())) or name == "python"


@pytest.mark.parametrize("look", [amp.diagnose, amp.suggest_policy])
def test_a_backward_pass_that_is_still_to_come_is_made(look):
    net = make_net()
    trainer = amp.Trainer(net.collect_params(), "adam", loss_scale=4)
    with autograd.record():
        loss = L2(net(images()), labels())
    look(net, L2, images(), labels())
    trainer.backward(loss)
    assert all(gradient.asnumpy().any() for gradient in trainer.gradients())
    report = trainer.step(2)
    assert report.applied and report.loss_scale == 4


@pytest.mark.parametrize("look", [amp.diagnose, amp.suggest_policy])
def test_everything_is_restored_when_the_loss_function_fails(look):
    net = make_net()
    before = content(net)
    with pytest.raises(ZeroDivisionError):
        look(net, lambda out, label: 1 / 0, images(), labels())
    assert not any("forward" in vars(block) for block in (net, *net))
    assert content(net) == before


def test_the_statistics_of_the_loss_and_what_it_reads_stay():
    class Loss(nn.HybridSequential):
        def forward(self, out, label):
            weight = net[0].weight.data().astype("float32")
            return L2(super().forward(out), label) + weight.norm() * 1e-3

    net, loss = built(nn.Dense(3, in_units=3)), Loss()
    loss.add(nn.BatchNorm(in_channels=3))
    loss.initialize()
    before = content(net), content(loss)
    for look in (amp.diagnose, amp.suggest_policy):
        look(net, loss, nd.ones((2, 3)), labels())
        assert (content(net), content(loss)) == before


@pytest.mark.parametrize("wrong", [None, 1.0, np.ones(3), [1.0], [], {}, mx.sym.var("loss")])
def test_a_loss_that_is_none_is_one_sentence(wrong):
    net = make_net()
    for look in (amp.diagnose, amp.suggest_policy):
        with pytest.raises(TypeError, match="The loss is .*, expected an NDArray") as error:
            look(net, lambda out, label: wrong, images(), labels())
        assert "\n" not in str(error.value)


def test_an_error_of_the_run_is_one_sentence_and_stays_here():
    net = Recipe()
    with pytest.raises(RuntimeError, match=r"^diagnose\(\) runs the net, .*FP16 gemm") as error:
        amp.diagnose(net, L2, images(), labels())
    assert "\n" not in str(error.value)
    other = make_net(policy=None)
    assert np.isfinite(other(images()).asnumpy()).all()


@pytest.mark.parametrize("name", ["imported", "own"])
def test_a_look_of_watch_changes_no_statistic(name, tmp_path):
    def trained(watched):
        mx.random.seed(0)
        net = NETS[name]("float16", tmp_path)
        trainer = trainer_of(net)
        with amp.watch(net, trainer, every=1) if watched else contextlib.nullcontext():
            train(net, trainer, 2)
        return [p.data().asnumpy().tobytes() for p in net.collect_params().values()]

    assert trained(watched=True) == trained(watched=False)
