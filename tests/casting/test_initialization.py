"""A seed gives a cast net the float32 net's first weights, each rounded once to its own dtype."""

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp.base.host import host_copy
from gluon_amp.casting.parameters import dtype_of
from tests import kinds
from tests.trainer.helpers import backward

import mxnet as mx
from mxnet import gluon, nd
from mxnet.gluon import nn


class OwnNumbers(mx.init.Initializer):
    """Draws as a user's initializer does: it fills the array from random numbers of its own."""

    def _init_weight(self, name, weight):
        weight[:] = kinds.array(np.random.normal(size=weight.shape)).astype(weight.dtype)


class Net(gluon.HybridBlock):
    """Some shapes are known and some are not; one parameter has an initializer of its own."""

    def __init__(self):
        super().__init__(prefix="net_")
        with self.name_scope():
            self.own = nn.Dense(5, flatten=False, weight_initializer=mx.init.Normal(0.3))
            self.known = nn.Dense(4, in_units=5, flatten=False)
            self.norm = nn.BatchNorm(axis=-1)
            self.last = nn.Dense(2)

    def hybrid_forward(self, F, x):
        return self.last(self.norm(self.known(self.own(x))))


DATA = np.random.RandomState(0).normal(size=(3, 2, 4))


def first_values(make, initializer, policy=None, cast_first=True):
    """Return the parameters of a new net after its first pass, and the random numbers after it."""
    mx.random.seed(5)
    np.random.seed(5)
    net = make()
    if policy and cast_first:
        amp.cast(net, policy)
    net.initialize(initializer)
    if policy and not cast_first:
        amp.cast(net, policy)
    net(kinds.array(DATA))
    return net, [nd.random.uniform(shape=(4,)).asnumpy(), np.random.uniform(size=4)]


def assert_rounded_once(net, expected):
    """Assert that the parameters of a net are those of another, and that some were rounded."""
    rounded = set()
    for name, param in net.collect_params().items():
        wide = host_copy(expected.collect_params()[name].data())
        found = host_copy(param.data())
        np.testing.assert_array_equal(found, wide.astype(found.dtype), err_msg=name)
        if (found != wide).any():
            rounded.add(name)
    low = {name for name, p in net.collect_params().items() if dtype_of(p) == "float16"}
    assert low == {name for name in low if name.endswith("bias")} | rounded


@pytest.mark.parametrize(
    "arrays, initializer, cast_first",
    [
        ("nd", mx.init.Xavier("gaussian", "in", 2), True),
        ("nd", mx.init.Orthogonal(), False),
        ("nd", OwnNumbers(), True),
        ("np", mx.init.Uniform(0.3), True),
        ("np", mx.init.Normal(0.02), False),
        ("np", OwnNumbers(), True),
    ],
    indirect=["arrays"],
)
def test_the_seed_gives_the_weights_of_float32(arrays, initializer, cast_first):
    expected, later = first_values(Net, initializer)
    net, then = first_values(Net, initializer, "float16", cast_first)
    assert_rounded_once(net, expected)
    np.testing.assert_array_equal(then, later)  # shuffles and dropout masks agree as well


class OwnOrder(gluon.HybridBlock):
    """Its layers are called in another order than that of the graph, and of their creation."""

    def __init__(self):
        super().__init__(prefix="net_")
        with self.name_scope():
            self.last, self.first, self.shortcut = nn.Dense(3), nn.Dense(5), nn.Dense(5)

    def hybrid_forward(self, F, x, unread=None):
        shortcut = self.shortcut(x)
        return self.last(self.first(x) + shortcut)


@pytest.mark.parametrize("hybridize", ["never", "before the cast", "after the cast"])
def test_the_order_of_the_first_weights_is_that_of_float32(hybridize):
    def first_values(policy):
        mx.random.seed(5)
        net = OwnOrder()
        if hybridize == "before the cast" or (hybridize != "never" and not policy):
            net.hybridize()
        if policy:
            amp.cast(amp.cast(net, "bfloat16"), policy)
        if hybridize == "after the cast":
            net.hybridize()
        net.initialize(mx.init.Xavier())
        net(kinds.array(DATA))
        return net

    assert_rounded_once(first_values("float16"), first_values(None))


def test_force_reinit_draws_again_on_all_devices():
    contexts = [mx.cpu(0), mx.cpu(1)]

    def again(policy):
        net, _ = first_values(Net, mx.init.One(), policy)
        mx.random.seed(7)
        net.initialize(mx.init.Uniform(0.3), contexts, force_reinit=True)
        net.last.weight.initialize(mx.init.Normal(0.1), contexts, force_reinit=True)
        return net

    expected, net = again(None), again("float16")
    assert_rounded_once(net, expected)
    for param in net.collect_params().values():
        one, other = param.list_data()
        assert (one.context, other.context) == tuple(contexts)
        np.testing.assert_array_equal(one.asnumpy(), other.asnumpy())


def test_new_initial_values_have_no_bits_of_the_old_masters():
    net, one = nn.Dense(1, in_units=1, use_bias=False), nd.ones((1, 1))
    net.initialize(mx.init.One())
    amp.cast(net, "float16")

    def trainer():
        options = {"learning_rate": 2.0**-13}
        return amp.Trainer(net.collect_params(), "sgd", options, loss_scale=1)

    first = trainer()
    backward(first, net, one)
    first.step(1)
    (master,) = first.master_params().values()
    assert master.asscalar() == 1 - 2.0**-13 and net.weight.data().asscalar() == 1
    net.initialize(mx.init.One(), force_reinit=True)
    (master,) = trainer().master_params().values()
    assert master.asscalar() == 1


VALUES = np.random.RandomState(0).normal(size=(3, 4))


class Copied(mx.init.Initializer):
    """MXNet cannot write it as text."""

    def __init__(self, values):
        super().__init__(values=values)
        self.values = values

    def _init_weight(self, name, weight):
        weight[:] = self.values


@pytest.mark.parametrize("initializer", [mx.init.Constant, Copied])
@pytest.mark.parametrize("form", [np.asarray, np.ndarray.tolist, kinds.array])
@pytest.mark.parametrize("policy", ["float16", "bfloat16"])
@pytest.mark.parametrize("in_units", [0, 4])
@pytest.mark.parametrize("arrays", ["nd", "np"], indirect=True)
def test_an_initializer_may_hold_an_array(arrays, in_units, policy, form, initializer):
    shared = initializer(form(VALUES))
    net = nn.HybridSequential()
    net.add(nn.Dense(3, in_units=in_units, weight_initializer=shared))
    net.add(nn.Dense(4, in_units=3), nn.Dense(3, in_units=in_units, weight_initializer=shared))
    net.initialize()
    amp.cast(net, policy)
    for _ in range(2):
        net(kinds.array(np.ones((2, 4))))
        for layer in net[0], net[2]:
            found = host_copy(layer.weight.data())
            np.testing.assert_array_equal(found, VALUES.astype("float32").astype(found.dtype))
        amp.cast(net, policy)  # traces the layers again
