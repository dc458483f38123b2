"""Recurrent layers in low precision or fused, by the C++ library's operator, beside MXNet's."""

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp.base import bfloat16, hardware
from gluon_amp.lowering import lower, recurrent
from gluon_amp.policy import Policy, cast_pass
from tests.kernels.images import normal, rounded
from tests.lowering import ops
from tests.marks import needs_bfloat16, needs_layout

import mxnet as mx
from mxnet import autograd, gluon, nd

pytestmark = [needs_layout, pytest.mark.cpu_kind]

MODES = ["rnn_relu", "rnn_tanh", "lstm", "gru"]
# layers, directions; length, batch, inputs, states
SIZES = [
    (1, 1, 1, 1, 1, 1),
    (1, 1, 5, 3, 7, 6),
    (2, 2, 4, 1, 33, 17),
    (3, 1, 3, 5, 4, 40),
    (1, 1, 2, 2, 3, 256),  # an LSTM's rows of gradients are 4 KiB
]
# Of the largest value: bfloat16 rounds the state at each step, the reference does not.
TOLERANCE = {"float16": 2.0**-9, "bfloat16": 2.0**-5, "fused_float32": 2.0**-18}
ELEMENTS = ["float16", "bfloat16"]


def layer(mode, sizes, **options):
    """Return a symbol with all its states, and the shapes of its variables."""
    layers, directions, length, batch, inputs, hidden = sizes
    states = ["state", "cells"] if mode == "lstm" else ["state"]
    symbol = mx.sym.RNN(
        *map(mx.sym.var, ["data", "parameters", *states]),
        **{"mode": mode, "num_layers": layers, "bidirectional": directions == 2, **options},
        state_size=hidden,
    )
    shapes, _, _ = symbol.infer_shape(data=(length, batch, inputs))
    return symbol, dict(zip(symbol.list_arguments(), shapes))


def run(symbol, arrays, heads, grad_req="write"):
    """Return the outputs and the gradients of two passes."""
    args = {name: nd.array(values) for name, values in arrays.items()}
    grads = {name: nd.ones(values.shape) for name, values in arrays.items()}
    executor = symbol.bind(mx.cpu(), args, grads, grad_req)
    for _ in range(2):
        outputs = executor.forward(is_train=True)
        executor.backward([nd.array(head) for head in heads[: len(outputs)]])
    return [x.asnumpy() for x in outputs] + [grads[name].asnumpy() for name in arrays]


def policy_of(element):
    return Policy.parse(f"params=float32,compute={element}" if element in ELEMENTS else element)


def lowered(symbol, element, arrays):
    cast = cast_pass.apply(symbol, policy_of(element), {})
    return lower(cast, dict.fromkeys(arrays, "float32"), "cpu")


def is_ours(element):
    fast = "avx512_bf16" in hardware.onednn_flags()
    return element != "bfloat16" or fast or not bfloat16.is_native()


def compare(mode, sizes, element, grad_req="write", **options):
    symbol, shapes = layer(mode, sizes, **options)
    size = 2.0 ** -(1 + int(np.log2(sizes[-1]) / 2))  # larger weights make them chaotic
    stored = element if element in ELEMENTS else "float32"
    arrays = {n: size * normal(shape, stored, k) for k, (n, shape) in enumerate(shapes.items())}
    _, outputs, _ = symbol.infer_shape(**shapes)
    heads = [normal(shape, element, 9) for shape in outputs]
    ours = lowered(symbol, element, arrays)
    assert ("_gluon_amp_rnn" in ops(ours)) == is_ours(element)
    if element == "fused_float32":  # without casts
        assert ours.list_outputs() == symbol.list_outputs()
    expected, actual = (run(s, arrays, heads, grad_req) for s in (symbol, ours))
    for a, b in zip(actual, expected):
        np.testing.assert_allclose(a, b, rtol=0, atol=TOLERANCE[element] * np.abs(b).max())


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("element", [*ELEMENTS, "fused_float32"])
def test_values_and_gradients(element, mode, sizes):
    compare(mode, sizes, element, state_outputs=True)


@pytest.mark.parametrize("mode", MODES)
def test_instruction_sets_and_added_gradients(instruction_set, mode):
    compare(mode, (2, 2, 3, 2, 5, 19), "float16", "add")


def test_no_sequences():
    with mx.util.np_shape(True):
        symbol, shapes = layer("lstm", (1, 1, 2, 0, 3, 4))
        arrays = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
        results = run(lowered(symbol, "float16", arrays), arrays, [np.ones((2, 0, 4))])
    np.testing.assert_array_equal(results[2], np.zeros(shapes["parameters"]))


@pytest.mark.parametrize("element", ELEMENTS)
def test_what_mxnet_computes(element):
    """Projections; under bfloat16 in float32, as describe says."""
    symbol, shapes = layer("lstm", (2, 1, 3, 2, 5, 6), projection_size=3)
    node = cast_pass.plan(symbol, policy_of(element), {})[1][0]
    assert node.dtype == ("float32" if element == "bfloat16" else "float16")
    assert "RNN" in ops(lowered(symbol, element, shapes))


@pytest.mark.parametrize("kind", [gluon.rnn.LSTM, gluon.rnn.GRU])
@pytest.mark.parametrize("element", [*ELEMENTS, "fused_float32"])
def test_dropout_between_layers(element, kind):
    """As layers of their own with Dropout between them, whose random numbers are the same."""
    if not is_ours(element):
        pytest.skip("MXNet computes it")
    whole = kind(5, 2, dropout=0.5, bidirectional=True, input_size=4, prefix="a_")
    parts = [kind(5, bidirectional=True, input_size=size, prefix="b_") for size in (4, 10)]
    for net in (whole, *parts):
        net.initialize(mx.init.Normal(0.5))
    for k, part in enumerate(parts):
        for name, parameter in part.collect_params().items():
            source = whole.collect_params()[name.replace("b_", "a_").replace("0_", f"{k}_")]
            parameter.set_data(source.data())
    x, first = nd.random.normal(shape=(3, 6, 4)), whole.begin_state(6, func=nd.random.normal)
    for net in (whole, *parts):
        amp.cast(net, policy_of(element))
        net.hybridize()

    def apart(data, first):
        ends = []
        for k, part in enumerate(parts):
            data = nd.Dropout(data, p=0.5) if k else data
            data, states = part(data, [state[2 * k : 2 * k + 2] for state in first])
            ends.append(states)
        return data, [nd.concat(*states, dim=0) for states in zip(*ends)]

    def results(compute, nets):
        mx.random.seed(7)
        with autograd.record():
            out, states = compute(x, first)
        out.backward()
        learned = [p.grad() for net in nets for p in net.collect_params().values()]
        return [array.astype("float32").asnumpy() for array in (out, *states, *learned)]

    for a, b in zip(results(whole, [whole]), results(apart, parts)):
        np.testing.assert_allclose(a, b, rtol=0, atol=4 * TOLERANCE[element] * np.abs(b).max())
    zeros = [nd.zeros_like(state) for state in first]
    np.testing.assert_array_equal(whole(x).asnumpy(), whole(x, zeros)[0].asnumpy())


@pytest.mark.parametrize("element", [*ELEMENTS, "fused_float32"])
def test_dropout_keeps_the_order_of_variables(element):
    """By which Module binds arrays, and a loop calls its body."""
    net = gluon.rnn.GRU(6, 2, dropout=0.5, input_size=6)
    net.initialize(mx.init.Normal(0.5))
    x, first = nd.random.normal(shape=(3, 1, 4, 6)), nd.zeros((2, 4, 6))

    symbol, names = net(mx.sym.var("data"), mx.sym.var("state"))[0], net.collect_params()
    assert lowered(symbol, element, names).list_inputs() == symbol.list_inputs()

    class Loop(gluon.HybridBlock):
        def hybrid_forward(self, F, x, state):
            return F.contrib.foreach(lambda step, states: net(step, states), x, [state])[0]

    loop, expected = Loop(), net(x[:, 0], first)[0]
    loop.register_child(net)
    amp.cast(loop, policy_of(element))
    loop.hybridize()
    found = loop(x, first)[:, 0].astype("float32").asnumpy()
    np.testing.assert_allclose(found, expected.asnumpy(), rtol=0, atol=TOLERANCE[element])


def test_emulated_bfloat16_rounds_what_a_layer_reads_and_returns(monkeypatch):
    monkeypatch.setenv(bfloat16.VARIABLE, "emulated")
    symbol, shapes = layer("lstm", SIZES[2])
    exact = {n: 0.3 * normal(shape, "float32", k) for k, (n, shape) in enumerate(shapes.items())}
    inputs = {name: rounded(values, "bfloat16") for name, values in exact.items()}
    ones = [np.ones((4, 1, 34), np.float32)]
    found = run(lowered(symbol, "bfloat16", exact), exact, ones)
    expected = rounded(run(symbol, inputs, ones)[0], "bfloat16")
    np.testing.assert_allclose(found[0], expected, rtol=2.0**-7)
    of_inputs = zip(exact, found[1:])
    for values in [found[0], *(grad for name, grad in of_inputs if "parameters" not in name)]:
        np.testing.assert_array_equal(values, rounded(values, "bfloat16"))


@needs_bfloat16
def test_without_the_library_bfloat16_computes_in_float32(monkeypatch):
    monkeypatch.setattr(recurrent.blocked, "available", lambda: False)
    symbol, shapes = layer("gru", SIZES[1])
    arrays = {name: normal(shape, "bfloat16") for name, shape in shapes.items()}
    found = lowered(symbol, "bfloat16", arrays)
    assert "RNN" in ops(found)
    out, expected = (run(s, arrays, [np.ones((5, 3, 6))])[0] for s in (found, symbol))
    np.testing.assert_allclose(out, expected, atol=2.0**-8)


@pytest.mark.parametrize("element", [*ELEMENTS, "fused_float32"])
def test_a_layer_reads_its_parameters_as_they_are_stored(element):
    """Nothing flattens them; their gradients have their dtype, and repeat in a second pass."""
    net = gluon.rnn.GRU(5, 2, bidirectional=True, layout="NTC", input_size=4)
    net.initialize(mx.init.Normal(0.3))
    x = nd.random.normal(shape=(3, 6, 4))
    gradients = []
    for policy in ("float32", element):
        amp.cast(net, policy)
        with autograd.record():
            out = net(x)
        for retain in (True, False):
            out.backward(retain_graph=retain)
            gradients.append(net.l1_h2h_weight.grad().asnumpy().astype(np.float32))
    assert net.l1_h2h_weight.grad().dtype == np.dtype(net.l1_h2h_weight.dtype)
    np.testing.assert_array_equal(gradients[2], gradients[3])
    np.testing.assert_allclose(gradients[2], gradients[0], atol=0.02 * abs(gradients[0]).max())
    found = ops(lower(*cast_graph(net, element), "cpu"))
    assert ("_gluon_amp_rnn" in found) == ("_rnn_param_concat" not in found) == is_ours(element)


def cast_graph(net, element):
    """Return the cast graph of a layer, and the dtypes of its variables."""
    parameters = {name: p.var() for name, p in net._reg_params.items()}
    out = net.hybrid_forward(mx.sym, mx.sym.var("data"), [mx.sym.var("state")], **parameters)
    policy = Policy.parse(element)
    names = cast_pass.parameter_dtypes(out, policy, ["data", "state"])
    return cast_pass.apply(out, policy, names), {**names, "data": "float32", "state": "float32"}
