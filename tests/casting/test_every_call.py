"""Python code that runs at each call: a net that nobody hybridized computes as without the cast."""

import cProfile
import random
import sys
import warnings

import numpy as np
import pytest

import gluon_amp as amp
from tests.casting.nets import POLICIES, Net, backward, exported, imported

import mxnet as mx
from mxnet import autograd, nd
from mxnet.gluon import contrib, nn, rnn

GENERATOR = np.random.RandomState(5)


class Reversed(autograd.Function):
    def forward(self, x):
        return x.copy()

    def backward(self, dy):
        return -dy


class OwnForward(nn.HybridBlock):
    scale = 1.0

    def forward(self, x):
        return x * self.scale


def in_mode(scope):
    def forward(net, F, x):
        with scope():
            y = F.Dropout(net.dense(x), p=0.5)
        return y + net.dense(x)

    return forward


def draws_once(net, F, x):
    try:
        return net.dense(x) * random.random()
    except Exception:
        return x


def counts(net, F, x):
    net.calls = getattr(net, "calls", 0) + 1
    return net.dense(x) / net.calls


def keeps(net, F, x):
    net.kept = net.dense(x)
    return net.kept * 2


def draws_a_mask_once(net, F, x):
    if not hasattr(net, "mask"):
        net.mask = F.Dropout(F.ones_like(x), p=0.5, mode="always")
    return net.dense(x) * net.mask


def assigns_a_child(net, F, x):
    if not isinstance(net.scale, nn.Activation):
        net.scale = nn.Activation("tanh")
    return net.scale(net.dense(x))


def steps_a_state(net, F, x):
    net.state *= 0.9
    return net.dense(x) * float(net.state.asscalar())


def scaled(net, F, x):
    scale = net.scale() if callable(net.scale) else net.scale
    return net.dense(x) * float(np.sum(scale if isinstance(scale, (list, float)) else scale[0]))


def added(values, step):
    values = values or []
    values += [step / 4]
    return values


def standardized(axis):
    def forward(net, F, x):
        y = net.dense(x)
        return y / F.sqrt(F.mean(y**2, axis=axis, keepdims=True) + 1e-8)

    return forward


# forward, and what the loop changes before each step
PROGRAMS = {
    "draw": (lambda net, F, x: net.dense(x) * float(np.random.rand()), None),
    "attribute": (scaled, lambda net, step: setattr(net, "scale", step / 4)),
    "function": (lambda net, F, x: Reversed()(net.dense(x)), None),
    "child": (assigns_a_child, None),
    "broadcast": (standardized(1), None),
}
CASES = {
    **PROGRAMS,
    "two values": (scaled, lambda net, step: setattr(net, "scale", step % 2 / 2)),
    "list": (scaled, lambda net, step: setattr(net, "scale", [step / 4])),
    "in place": (scaled, lambda net, step: setattr(net, "scale", added(net.scale, step))),
    "array": (scaled, lambda net, step: setattr(net, "scale", np.array([step / 4]))),
    "object": (scaled, lambda net, step: setattr(net, "scale", lambda: step / 4)),
    "deleted": (
        lambda net, F, x: net.dense(x) * getattr(net, "scale", 1),
        lambda net, step: step == 2 and delattr(net, "scale"),
    ),
    "layer": (
        lambda net, F, x: net.drop(net.dense(x)),
        lambda net, step: setattr(net.drop, "_rate", step % 2 / 2),
    ),
    "own forward": (
        lambda net, F, x: net.own(net.dense(x)),
        lambda net, step: setattr(net.own, "scale", step / 4),
    ),
    "caught": (draws_once, None),
    "random": (lambda net, F, x: net.dense(x) * random.choice([1, 2]), None),
    "generator": (lambda net, F, x: net.dense(x) * float(GENERATOR.normal()), None),
    "own generator": (lambda net, F, x: net.dense(x) * float(net.rng.normal()), None),
    "mxnet": (lambda net, F, x: net.dense(x) * nd.random.uniform().asscalar(), None),
    "count": (counts, None),
    "kept": (keeps, None),
    "mask": (draws_a_mask_once, None),
    "state": (steps_a_state, None),
    "value": (lambda net, F, x: x * net.dense.weight.data().norm().asscalar(), None),
    "pause": (in_mode(autograd.pause), None),
    "predict": (in_mode(autograd.predict_mode), None),
    "train": (in_mode(autograd.train_mode), None),
    "batch": (standardized(0), None),
}


def trained(forward, change, policy):
    """Return outputs and gradients of ten steps, and the next random numbers."""
    GENERATOR.seed(1), random.seed(1), np.random.seed(1), mx.random.seed(1)
    children = {"drop": nn.Dropout(0.0), "own": OwnForward()}
    net, inner = nn.HybridSequential(), Net(forward, dense=nn.Dense(4, in_units=4), **children)
    inner.scale, inner.state, inner.rng = 0.0, nd.ones((1,)), np.random.RandomState(1)
    net.add(nn.Dense(4, in_units=3), inner, nn.Dense(2, in_units=4))
    net.initialize(mx.init.Uniform(0.5))
    if policy:
        amp.cast(net, policy)
    seen, data = [], np.random.RandomState(0)
    for step in range(10):
        if change:
            change(inner, step)
        x = nd.array(data.normal(size=(1 if step == 0 else 4, 3)))
        outs = backward(net, x), net(x)
        seen += [a.asnumpy() for a in (*outs, *(p.grad() for p in net.collect_params().values()))]
    seen.append(np.array([random.random(), np.random.rand(), nd.random.uniform().asscalar()]))
    seen.append(np.array(GENERATOR.rand()))
    return seen


@pytest.mark.filterwarnings("ignore:Block")
@pytest.mark.parametrize("name", CASES)
def test_values_gradients_and_random_numbers_are_those_without_the_cast(name):
    for expected, found in zip(trained(*CASES[name], None), trained(*CASES[name], "fused_float32")):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore:Block")
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_with_every_policy(name, policy):
    for expected, found in zip(trained(*CASES[name], None), trained(*CASES[name], policy)):
        np.testing.assert_allclose(found, expected, rtol=0.05, atol=0.05 * np.abs(expected).max())


def scaling_net():
    net = Net(lambda net, F, x: x * net.scale)
    net.scale = 1.0
    return amp.cast(net, "float16")


def test_what_the_user_hybridized_freezes_as_without_the_cast():
    for change in (None, "fused_float32"):
        random.seed(1)
        net = Net(lambda net, F, x: x * random.random() * net.scale)
        net.scale = 2.0
        net.hybridize()
        if change:
            amp.cast(net, change)
        first = net(nd.ones((1,))).asscalar()
        net.scale = 3.0
        assert net(nd.ones((1,))).asscalar() == first == np.float32(0.26872849)


def test_an_attribute_with_a_few_values_is_traced_and_exported_with_its_value(tmp_path):
    net = scaling_net()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        for scale in (1.0, 2.0, 3.0, 1.0, 2.0):
            net.scale = scale
            assert net(nd.ones((1,))).asscalar() == scale
            exported(net, tmp_path)
            assert imported(tmp_path)(nd.ones((1,))).asscalar() == scale
    net.scale = 4.0
    with pytest.raises(RuntimeError, match="on some data once"):
        exported(net, tmp_path)


def test_an_attribute_with_many_values_is_named(tmp_path):
    net = scaling_net()
    text = "Block net cannot be traced .its attribute 'scale' had more than 8 values."
    with pytest.warns(UserWarning, match=text):
        for step in range(10):
            net.scale = float(step)
            assert net(nd.ones((1,))).asscalar() == step
    with pytest.raises(ValueError, match="its attribute 'scale'"):
        exported(net, tmp_path)


@pytest.mark.filterwarnings("ignore:Block")
@pytest.mark.parametrize("profiler", [lambda *_: None, cProfile.Profile()])
def test_a_profiler_pauses_while_a_net_is_traced(profiler):
    is_function = callable(profiler)
    sys.setprofile(profiler) if is_function else profiler.enable()
    try:
        trained(*CASES["function"], "fused_float32")
        assert not is_function or sys.getprofile() is profiler
    finally:
        sys.setprofile(None) if is_function else profiler.disable()
    assert is_function or len(profiler.getstats()) > 100


@pytest.mark.filterwarnings("ignore:Block")
@pytest.mark.parametrize("when", ["before", "after"])
def test_hooks_of_inner_blocks_get_the_arrays_of_each_call(when):
    net, seen = nn.HybridSequential(), []
    net.add(nn.Dense(2, in_units=2), nn.Activation("relu"))
    net.initialize()
    for now in ("before", "after"):
        if now == when:
            net[0].register_forward_hook(lambda block, x, out: seen.append(out.asnumpy().shape))
        if now == "before":
            amp.cast(net, "float16")
            net(nd.ones((1, 2)))
    net(nd.ones((3, 2)))
    assert seen[-1] == (3, 2) and len(seen) == (2 if when == "before" else 1)


@pytest.mark.filterwarnings("ignore:Block")
def test_own_parameters_of_unknown_shape_are_initialized_as_without_the_cast():
    def code(net, F, x, weight):
        x = x * float(np.random.rand())
        return F.FullyConnected(x, weight, None, num_hidden=2, no_bias=True)

    outs = []
    for policy in (None, "fused_float32"):
        np.random.seed(1)
        net = Net(code)
        net.weight = net.params.get("weight", shape=(2, 0), init="ones", allow_deferred_init=True)
        net.initialize()
        if policy:
            amp.cast(net, policy)
        outs.append([net(nd.ones((1, 3))).asnumpy().tolist() for _ in range(3)])
    assert outs[0] == outs[1]


def test_a_cast_runs_no_python_code_that_leaves_a_trace():
    def code(net, F, x, weight):
        net.calls += 1
        return F.FullyConnected(x, weight, None, num_hidden=2, no_bias=True) * np.random.rand()

    np.random.seed(1)
    net = Net(code)
    net.weight, net.calls = net.params.get("weight", shape=(2, 2)), 0
    net.initialize()
    np.random.seed(1)
    amp.cast(net, "float16")
    assert net.calls == 0 and np.random.rand() == 0.417022004702574


CELLS = {
    "zoneout": lambda: rnn.ZoneoutCell(rnn.RNNCell(4, input_size=4), 0.5, 0.5),
    "dropout": lambda: contrib.rnn.VariationalDropoutCell(rnn.LSTMCell(4, input_size=4), 0.5, 0.5),
}


@pytest.mark.parametrize("name", CELLS)
def test_cells_keep_their_states_from_step_to_step_and_are_traced_where_they_are_unrolled(name):
    def stepped(policy):
        mx.random.seed(1)
        cell = CELLS[name]()
        cell.initialize(mx.init.One())
        if policy:
            amp.cast(cell, policy)
        states, outs = cell.begin_state(func=nd.zeros, batch_size=2), []
        for _ in range(3):
            with autograd.record():
                out, states = cell(nd.ones((2, 4)), states)
            outs.append(out.asnumpy())
        return outs

    with pytest.warns(UserWarning, match="it changes its attribute"):
        np.testing.assert_array_equal(stepped("fused_float32"), stepped(None))
    net = Net(lambda net, F, x: net.cell.unroll(3, x, merge_outputs=True)[0], cell=CELLS[name]())
    net.initialize()
    amp.cast(net, "float16")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        for _ in range(2):
            backward(net, nd.ones((2, 3, 4)))


def test_a_hook_may_be_a_method_in_c():
    """Which has no module."""
    net = amp.cast(nn.Dense(2, in_units=3), "float16")
    net.initialize()
    net.register_forward_hook("{}{}{}".format)
    assert net(mx.nd.ones((1, 3))).shape == (1, 2)
