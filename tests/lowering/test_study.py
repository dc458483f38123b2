"""Formats for study: rounded operands and gradients, directions, and delayed scaling."""

import copy

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp import graph, kernels
from gluon_amp.base.formats import FORMATS, exponent_for, rounded_array
from gluon_amp.kernels import INSTRUCTION_SETS
from gluon_amp.lowering import delayed_scaling, lower
from gluon_amp.lowering.emulation import rounding_attrs
from gluon_amp.policy import cast_pass
from tests.marks import needs_library

import mxnet as mx
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn

HYBRID = "params=float32,compute=float8_e4m3,gradients=float8_e5m2"
E4M3, E5M2 = FORMATS["float8_e4m3"], FORMATS["float8_e5m2"]
DIRECTIONS = ("forward", "data_gradient", "weight_gradient")

pytestmark = needs_library


def operator(op, attrs):
    nodes = [
        {"op": "null", "name": "x", "attrs": {}, "inputs": []},
        {"op": op, "name": "o", "attrs": attrs, "inputs": [[0, 0, 0]]},
    ]
    return graph.from_json({"nodes": nodes, "heads": [[1, 0, 0]]})


def inside(net):
    """Put a net between two products, so that its own are not the ends."""
    whole = nn.HybridSequential()
    whole.add(nn.Dense(4, in_units=4, use_bias=False), net, nn.Dense(2, use_bias=False))
    return whole


def rounded(values, format_, largest=None):
    """Round with the scale that belongs to the largest magnitude, by default the array's own."""
    largest = float(np.abs(values).max()) if largest is None else largest
    scale = 2.0 ** exponent_for(format_, largest)
    scaled = (values * scale).astype(np.float32)
    return rounded_array(scaled, format_, saturates=True) / scale


def one_product(policy):
    """Return a cast net of one Dense layer without the defaults for the ends."""
    net = nn.Dense(3, in_units=4, use_bias=False)
    if amp.Policy(policy).keeps_ends_wide:
        policy = amp.Policy(policy).pin(ops=["FullyConnected"], dtype="float8_e4m3")
    net = amp.cast(net, policy)
    net.initialize(mx.init.Normal(1))
    return net


def run(net, x, head):
    """Return the output, the gradient of the data and that of the weight."""
    x = nd.array(x)
    x.attach_grad()
    with autograd.record():
        y = net(x)
    y.backward(nd.array(head))
    return y.asnumpy(), x.grad.asnumpy(), net.weight.grad().asnumpy()


@pytest.fixture
def arrays(seed):
    random = np.random.RandomState(1)
    return random.normal(size=(5, 4)).astype("f"), random.normal(size=(5, 3)).astype("f")


@pytest.fixture
def seed():
    mx.random.seed(0)
    np.random.seed(0)


def test_operands_and_gradients_are_rounded_by_the_scale_of_each_tensor(arrays):
    x, head = arrays
    net = one_product(HYBRID)
    w = net.weight.data().asnumpy()
    x8, w8, g8 = rounded(x, E4M3), rounded(w, E4M3), rounded(head, E5M2)
    assert not np.array_equal(x8, x)
    y, dx, dw = run(net, x, head)
    np.testing.assert_allclose(y, x8 @ w8.T, rtol=1e-6)
    np.testing.assert_allclose(dx, g8 @ w8, rtol=1e-6)
    np.testing.assert_allclose(dw, g8.T @ x8, rtol=1e-6)


def test_a_format_of_19_bits_has_no_scale(arrays):
    x, head = arrays
    net = one_product("compute=tfloat32")
    w = net.weight.data().asnumpy()
    x, head = x * 1e-5, head * 1e5
    tf32 = FORMATS["tfloat32"]
    x19, w19, g19 = (rounded_array(a.astype("f"), tf32) for a in (x, w, head))
    y, dx, dw = run(net, x, head)
    np.testing.assert_allclose(y, x19 @ w19.T, rtol=1e-6)
    np.testing.assert_allclose(dx, g19 @ w19, rtol=1e-6)
    np.testing.assert_allclose(dw, g19.T @ x19, rtol=1e-6)


@pytest.mark.parametrize("wide", DIRECTIONS)
def test_a_pin_of_a_direction_leaves_the_others_rounded(arrays, wide):
    x, head = arrays
    net = nn.Dense(3, in_units=4, use_bias=False)
    policy = amp.Policy(HYBRID).pin(ops=["FullyConnected"], dtype="float8_e4m3")
    net = amp.cast(net, policy.pin(ops=["FullyConnected"], direction=wide))
    net.initialize(mx.init.Normal(1))
    w = net.weight.data().asnumpy()
    x8, w8, g8 = rounded(x, E4M3), rounded(w, E4M3), rounded(head, E5M2)
    expected = {
        direction: (a @ b, exact)
        for direction, a, b, exact in (
            ("forward", x8, w8.T, x @ w.T),
            ("data_gradient", g8, w8, head @ w),
            ("weight_gradient", g8.T, x8, head.T @ x),
        )
    }
    for direction, actual in zip(DIRECTIONS, run(net, x, head)):
        narrow, exact = expected[direction]
        value = exact if direction == wide else narrow
        np.testing.assert_allclose(actual, value, rtol=1e-5, atol=1e-6)
        assert not np.allclose(narrow, exact, rtol=1e-3)
    assert (
        amp.describe(net)
        .rows[0]
        .reason.endswith(f"pinned to float32 in {wide} by the policy's own pin")
    )


def test_two_directions_may_be_pinned(arrays):
    x, head = arrays
    policy = amp.Policy(HYBRID).pin(ops=["FullyConnected"], dtype="float8_e4m3")
    for direction in DIRECTIONS[1:]:
        policy = policy.pin(ops=["FullyConnected"], direction=direction)
    net = amp.cast(nn.Dense(3, in_units=4, use_bias=False), policy)
    net.initialize(mx.init.Normal(1))
    w = net.weight.data().asnumpy()
    y, dx, dw = run(net, x, head)
    np.testing.assert_allclose(y, rounded(x, E4M3) @ rounded(w, E4M3).T, rtol=1e-6)
    np.testing.assert_allclose(dx, head @ w, rtol=1e-5)
    np.testing.assert_allclose(dw, head.T @ x, rtol=1e-5)


def test_gradients_alone_may_be_rounded(arrays):
    x, head = arrays
    policy = amp.Policy("gradients=float8_e5m2")
    for direction in DIRECTIONS[1:]:
        policy = policy.pin(ops=["FullyConnected"], dtype="float8_e5m2", direction=direction)
    net = amp.cast(nn.Dense(3, in_units=4, use_bias=False), policy)
    net.initialize(mx.init.Normal(1))
    w = net.weight.data().asnumpy()
    y, dx, dw = run(net, x, head)
    g8 = rounded(head, E5M2)
    np.testing.assert_allclose(y, x @ w.T, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(dx, g8 @ w, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(dw, g8.T @ x, rtol=1e-5, atol=1e-6)


def test_a_bias_is_added_in_float32_and_has_the_sum_of_the_rounded_gradient(seed):
    net = nn.Dense(2, in_units=2)
    net = amp.cast(net, amp.Policy(HYBRID).pin(ops=["FullyConnected"], dtype="float8_e4m3"))
    net.initialize()
    net.bias.set_data(nd.array([0.3, 1e-4]))
    x = nd.zeros((2, 2))
    head = np.array([[1, 0.3], [0.1, 0.7]], "f")
    with autograd.record():
        y = net(x)
    y.backward(nd.array(head))
    np.testing.assert_array_equal(y.asnumpy(), np.array([[0.3, 1e-4]] * 2, "f"))
    np.testing.assert_allclose(net.bias.grad().asnumpy(), rounded(head, E5M2).sum(0), rtol=1e-6)


# ------------------------------------------------------------------------- other operators


class _Products(gluon.HybridBlock):
    def hybrid_forward(self, F, a, b, images, kernel):
        conv = F.Convolution(images, kernel, kernel=(3, 3), num_filter=2, no_bias=True)
        deconv = F.Deconvolution(images, kernel, kernel=(3, 3), num_filter=2, no_bias=True)
        return F.dot(a, b), F.batch_dot(a.expand_dims(0), b.expand_dims(0)), conv, deconv


def test_each_kind_of_product_is_rounded(seed):
    shapes = ((3, 4), (4, 2), (1, 2, 6, 6), (2, 2, 3, 3))
    tensors = [nd.random.normal(shape=shape) for shape in shapes]
    ops = ["dot", "batch_dot", "Convolution", "Deconvolution"]
    net = amp.cast(_Products(), amp.Policy("compute=float8_e4m3").pin(ops=ops, dtype="float8_e4m3"))
    expected = _Products()(*(nd.array(rounded(t.asnumpy(), E4M3)) for t in tensors))
    for y, exact in zip(net(*tensors), expected):
        np.testing.assert_allclose(y.asnumpy(), exact.asnumpy(), rtol=1e-5, atol=1e-6)
    assert {row.compute_dtype for row in amp.describe(net).rows if row.op in ops} == {"float8_e4m3"}


def test_an_rnn_stays_in_float32_and_says_so(seed):
    net = amp.cast(gluon.rnn.LSTM(4), HYBRID)
    net.initialize()
    net(nd.ones((3, 2, 4)))
    row = next(row for row in amp.describe(net).rows if row.op == "RNN")
    assert (row.compute_dtype, row.reason) == (
        "float32",
        "its products are inside one operator and cannot be rounded",
    )


class _Loop(gluon.HybridBlock):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.first = nn.Dense(4, in_units=4, flatten=False)
            self.cell = gluon.rnn.RNNCell(4, input_size=4)
            self.last = nn.Dense(4, in_units=4)

    def hybrid_forward(self, F, x):
        states = [F.zeros_like(F.slice_axis(x, axis=0, begin=0, end=1).reshape((-1, 4)))]
        outputs, _ = F.contrib.foreach(self.cell, self.first(x), states)
        return self.last(F.slice_axis(outputs, axis=0, begin=-1, end=None).reshape((-1, 4)))


def test_products_in_a_loop_are_rounded(seed):
    net = amp.cast(_Loop(), HYBRID)
    net.initialize()
    trainer = amp.Trainer(net.collect_params(), "sgd")
    with autograd.record():
        loss = net(nd.random.normal(shape=(3, 2, 4))).sum()
    trainer.backward(loss)
    trainer.step(1)
    dtypes = [row.compute_dtype for row in amp.describe(net).rows if row.op == "FullyConnected"]
    assert dtypes == ["float32", "float8_e4m3", "float8_e4m3", "float32"]
    assert len(histories(trainer)) == 6


# ----------------------------------------------------------------------------------- ends


def products(net, x):
    return [row.compute_dtype for row in amp.describe(net, x).rows if row.op == "FullyConnected"]


class _Plain(gluon.Block):
    def __init__(self, *layers):
        super().__init__()
        for layer in layers:
            self.register_child(layer)

    def forward(self, x):
        for layer in self._children.values():
            x = layer(x)
        return x


@pytest.mark.parametrize("container", ["hybrid", "plain", "nested"])
def test_the_ends_stay_in_float32(seed, container):
    layers = [nn.Dense(4, in_units=4) for _ in range(4)]
    if container == "hybrid":
        net = nn.HybridSequential()
        net.add(*layers)
    elif container == "plain":
        net = _Plain(*layers)
    else:
        inner = nn.HybridSequential()
        inner.add(*layers[:2])
        net = _Plain(inner, *layers[2:])
    net = amp.cast(net, HYBRID)
    net.initialize()
    assert products(net, nd.ones((1, 4))) == ["float32", "float8_e4m3", "float8_e4m3", "float32"]
    reasons = [row.reason for row in amp.describe(net).rows]
    assert "first product" in reasons[0] and "last product" in reasons[-1]


class _Branches(gluon.HybridBlock):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = (nn.Dense(4, in_units=4) for _ in range(3))
        self.d, self.e = (nn.Dense(4, in_units=4) for _ in range(2))

    def hybrid_forward(self, F, x):
        joined = self.c(F.relu(self.a(x)) + F.relu(self.b(x)))
        return self.d(joined), self.e(joined).sum()


def test_an_end_may_have_several_products(seed):
    net = amp.cast(_Branches(), HYBRID)
    net.initialize()
    assert products(net, nd.ones((1, 4))) == [*["float32"] * 2, "float8_e4m3", *["float32"] * 2]


def test_a_pin_returns_an_end_to_its_format(seed):
    net = nn.HybridSequential()
    net.add(nn.Dense(4, in_units=4), nn.Dense(4, in_units=4))
    net = amp.cast(net, amp.Policy(HYBRID).pin(blocks=["^0$"], dtype="float8_e4m3"))
    net.initialize()
    assert products(net, nd.ones((1, 4))) == ["float8_e4m3", "float32"]


# ------------------------------------------------------------------------- delayed scaling


def histories(trainer):
    return {
        name.split(" ", 1)[1]: values.tolist()
        for name, values in delayed_scaling.collect(trainer.parameters).items()
    }


def trained(net, data, trainer=None, head=1.0, **arguments):
    """Make one step per array of data; return the trainer and the reports."""
    if trainer is None:
        trainer = amp.Trainer(net.collect_params(), "sgd", {"learning_rate": 0}, **arguments)
    reports = []
    for x in data:
        with autograd.record():
            loss = net(nd.array(x)) * head
        trainer.backward(loss)
        reports.append(trainer.step(1))
    return trainer, reports


def test_a_scale_follows_the_largest_magnitude_of_earlier_steps(seed):
    net = one_product(HYBRID)
    net.weight.set_data(nd.ones((3, 4)))
    x = np.array([[1, 0.3, 0.017, 0]], "f")
    trainer, _ = trained(net, [x, 4 * x, 2 * x])
    assert histories(trainer) == {
        ":FullyConnected:1:0": [1, 4, 2],
        ":FullyConnected:1:1": [1, 1, 1],
        ":FullyConnected:1:gradient": [1, 1, 1],
    }
    # The largest is 4, so 448 / 4 holds 4 * 2**6 and not 4 * 2**7; 28 saturates at 448 / 2**6 = 7.
    y = net(nd.array(28 * x)).asnumpy()
    saturated = rounded(28 * x, E4M3, largest=4)
    assert saturated.max() == 7
    np.testing.assert_allclose(y, [[saturated.sum()] * 3], rtol=1e-6)
    assert histories(trainer)[":FullyConnected:1:0"] == [1, 4, 2]  # prediction records nothing


def test_without_a_trainer_the_scale_follows_the_tensor(arrays):
    x, head = arrays
    net = one_product(HYBRID)
    w = net.weight.data().asnumpy()
    for factor in (1, 100, 0.01):
        y, _, _ = run(net, x * factor, head)
        expected = rounded((x * factor).astype("f"), E4M3) @ rounded(w, E4M3).T
        np.testing.assert_allclose(y, expected, rtol=1e-6)


def test_the_history_has_1024_steps(seed):
    net = one_product(HYBRID)
    trainer, _ = trained(net, [[[9, 0, 0, 0]], *[[[1, 0, 0, 0]]] * 1023])
    history = histories(trainer)[":FullyConnected:1:0"]
    assert (len(history), history[0]) == (1024, 9)
    trainer, _ = trained(net, [[[2, 0, 0, 0]]], trainer)
    history = histories(trainer)[":FullyConnected:1:0"]
    assert (len(history), max(history), history[-1]) == (1024, 2, 2)


def test_zeros_and_infinities_are_not_recorded(seed):
    net = one_product(HYBRID)
    trainer, _ = trained(net, [np.zeros((1, 4)), [[np.inf, 1, 0, 0]], [[np.nan, 1, 0, 0]]])
    assert histories(trainer)[":FullyConnected:1:0"] == [1]


def test_micro_batches_share_the_scale_of_a_step(seed):
    net = one_product(HYBRID)
    net.collect_params().setattr("grad_req", "add")
    trainer, _ = trained(net, [[[1, 2, 3, 4]]])
    net.collect_params().zero_grad()
    parts = nd.random.normal(shape=(4, 4))
    for part in (parts[:1], parts[1:]):
        with autograd.record():
            loss = net(part)
        trainer.backward(loss)
    added = net.weight.grad().asnumpy()
    assert len(histories(trainer)[":FullyConnected:1:0"]) == 1
    net.collect_params().zero_grad()
    with autograd.record():
        loss = net(parts)
    trainer.backward(loss)
    np.testing.assert_allclose(added, net.weight.grad().asnumpy(), rtol=1e-6)


def test_a_skipped_step_leaves_no_trace_in_the_history(seed):
    net = one_product(HYBRID)
    trainer, _ = trained(net, [[[1, 1, 1, 1]]], check_finite=True)
    before = histories(trainer)
    _, (report,) = trained(net, [[[7, 1, 1, 1]]], trainer, head=np.nan)
    assert not report.applied and histories(trainer) == before
    trained(net, [[[2, 1, 1, 1]]], trainer)
    assert histories(trainer)[":FullyConnected:1:0"] == [1, 2]


def test_a_resumed_run_has_the_bits_of_the_uninterrupted_one(seed, tmp_path):
    def build():
        net = inside(nn.Dense(4, in_units=4))
        amp.cast(net, HYBRID)
        net.initialize(mx.init.Constant(0.1))
        return net, amp.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.01})

    data = np.random.RandomState(2).normal(size=(6, 3, 4)).astype("f")
    data[1] *= 30  # so that the scale of the later steps depends on an earlier one
    whole, trainer = build()
    trained(whole, data, trainer)
    first, trainer = build()
    trained(first, data[:3], trainer)
    path = amp.save_checkpoint(str(tmp_path / "net.ckpt"), first, trainer)
    resumed, trainer = build()
    amp.load_checkpoint(path, resumed, trainer)
    trained(resumed, data[3:], trainer)
    for one, other in zip(*(net.collect_params().values() for net in (whole, resumed))):
        np.testing.assert_array_equal(one.data().asnumpy(), other.data().asnumpy())
    forgotten, trainer = build()
    amp.load_checkpoint(path, forgotten, trainer)
    delayed_scaling.restore(trainer.parameters, {})
    trained(forgotten, data[3:], trainer)
    assert any(
        (one.data() != other.data()).sum().asscalar()
        for one, other in zip(*(net.collect_params().values() for net in (whole, forgotten)))
    )


@pytest.mark.parametrize("forged", [[], [0.0], [-1.0], [np.inf], [np.nan], [[1.0]], [1.0] * 1025])
def test_a_forged_history_is_refused(seed, forged):
    net = one_product(HYBRID)
    trainer, _ = trained(net, [[[1, 2, 3, 4]]])
    state = trainer.state_dict()
    name = next(iter(state["amax_histories"]))
    state["amax_histories"][name] = np.array(forged, np.float32)
    with pytest.raises(ValueError, match="largest magnitudes of up to 1,024 steps"):
        trainer.load_state_dict(state)


def test_a_state_without_histories_fits(seed):
    net = one_product(HYBRID)
    trainer, _ = trained(net, [[[1, 2, 3, 4]]])
    state = trainer.state_dict()
    del state["amax_histories"]
    trainer.load_state_dict(state)
    assert histories(trainer) == {}


def test_traces_share_scales_and_copies_do_not(seed):
    net = one_product(HYBRID)
    trained(net, [[[1, 2, 3, 400]]])
    twin = copy.deepcopy(net)
    x = nd.array([[1, 1, 1, 1]])
    delayed = net(x).asnumpy()  # another trace, that of inference
    with autograd.record():
        np.testing.assert_array_equal(net(x).asnumpy(), delayed)
    w8 = rounded(net.weight.data().asnumpy(), E4M3)
    np.testing.assert_allclose(twin(x).asnumpy(), w8.sum(1)[None], rtol=1e-6)


def test_two_devices_share_the_largest_magnitude(seed):
    net = amp.cast(
        nn.Dense(3, in_units=4, use_bias=False),
        amp.Policy(HYBRID).pin(ops=["FullyConnected"], dtype="float8_e4m3"),
    )
    devices = [mx.cpu(0), mx.cpu(1)]
    net.initialize(ctx=devices)
    trainer = amp.Trainer(net.collect_params(), "sgd")
    with autograd.record():
        losses = [net(nd.full((1, 4), size, ctx=device)) for size, device in zip((1, 5), devices)]
    trainer.backward(losses)
    trainer.step(1)
    assert histories(trainer)[":FullyConnected:1:0"] == [5]


# --------------------------------------------------------------------------------- elsewhere


def test_a_gpu_is_refused_before_anything_runs():
    x = mx.sym.var("x")
    symbol = cast_pass.apply(
        mx.sym.FullyConnected(x, num_hidden=2, name="fc"), amp.Policy("compute=tfloat32"), {}
    )
    with pytest.raises(ValueError, match=r"emulated for study on a CPU only: train on mx.cpu\(\)"):
        lower(symbol, {"x": "float32"}, "gpu")


def test_a_module_trains_in_a_format_for_study(seed):
    x = mx.sym.var("data")
    for k in range(3):
        x = mx.sym.FullyConnected(x, num_hidden=8, name=f"fc{k}")
    symbol = mx.sym.SoftmaxOutput(x, name="softmax")
    module = amp.symbolic.Module(symbol, policy=HYBRID)
    data = np.random.RandomState(0).normal(size=(32, 4)).astype("f")
    labels = (data[:, 0] > 0) * 1.0
    iterator = mx.io.NDArrayIter(data, labels, batch_size=8)
    metric = mx.metric.create("acc")
    module.fit(
        iterator,
        eval_metric=metric,
        num_epoch=20,
        optimizer_params={"learning_rate": 0.1},
        initializer=mx.init.Xavier(),
    )
    assert metric.get()[1] > 0.9
    assert {len(values) for values in histories(module.trainer).values()} == {80}


def test_convert_refuses_what_no_device_computes_in():
    symbol = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2, name="fc")
    with pytest.raises(ValueError, match="for which MXNet has no kernels: use amp.symbolic.Module"):
        amp.symbolic.convert(symbol, HYBRID)


def test_what_an_export_writes_is_the_stock_graph(seed, tmp_path):
    net = inside(nn.Dense(4, in_units=4))
    amp.cast(net, HYBRID)
    net.initialize()
    net(nd.ones((1, 4)))
    net.export(str(tmp_path / "net"))
    ops = {
        node["op"]
        for node in graph.to_json(mx.sym.load(str(tmp_path / "net-symbol.json")))["nodes"]
    }
    assert ops == {"null", "FullyConnected"}


@pytest.mark.parametrize("scale", ["-2", "1000000000", "99999999999999999999"])
def test_a_forged_number_of_a_scale_is_an_error(scale):
    rounding = {**rounding_attrs(E4M3, saturates=True), "scaled": "True", "scale": scale}
    symbol = operator("_gluon_amp_round_operand", rounding)
    with pytest.raises(mx.MXNetError, match="expects the number of a scale"):
        symbol.eval(x=nd.ones((2,)))[0].wait_to_read()


@pytest.mark.parametrize("largest", [1.0, 3.5, 447.9, 448.0, 448.1, 2.0**-140, 2.0**127, 3e38])
@pytest.mark.parametrize("format_", [E4M3, E5M2])
def test_the_library_chooses_the_exponent_of_the_reference(format_, largest):
    x = np.array([largest, largest / 3, largest / 1000, 0], np.float32)
    rounding = {**rounding_attrs(format_, saturates=True), "scaled": "True"}
    symbol = operator("_gluon_amp_round_operand", rounding)
    y = symbol.eval(x=nd.array(x))[0].asnumpy()
    scale = 2.0 ** exponent_for(format_, float(x[0]))
    expected = rounded_array(x.astype(np.float64) * scale, format_, saturates=True) / scale
    np.testing.assert_array_equal(y, expected.astype(np.float32))


@pytest.mark.parametrize("shape", [(1,), (7,), (3, 5, 7), (2**16 + 3,)])
def test_all_lengths_and_instruction_sets_round_alike(shape):
    x = np.random.RandomState(0).normal(size=shape).astype(np.float32)
    x.flat[-1] = 40  # the largest magnitude is in the last element
    expected = rounded(x, E4M3)
    rounding = {**rounding_attrs(E4M3, saturates=True), "scaled": "True"}
    symbol = operator("_gluon_amp_round_operand", rounding)
    try:
        for instruction_set in INSTRUCTION_SETS:
            if kernels.select(instruction_set):
                y = symbol.eval(x=nd.array(x))[0].asnumpy()
                np.testing.assert_array_equal(y, expected.astype(np.float32))
    finally:
        kernels.select(None)


@pytest.mark.parametrize("policy", [HYBRID, "compute=tfloat32"])
def test_transposed_convolutions_train(policy):
    net = nn.HybridSequential()
    net.add(nn.Conv2D(4, 1, in_channels=4), nn.Conv2DTranspose(4, 4, strides=2, in_channels=4))
    net.add(nn.Conv2D(2, 1, in_channels=4))
    net.initialize(mx.init.One())
    amp.cast(net, policy)
    with autograd.record():
        loss = net(nd.ones((1, 4, 1, 1))).sum()
    loss.backward()
    # the data is 4, and each of the two last filters sends back a gradient of 1
    assert (net[1].weight.grad().asnumpy() == 8).all()
