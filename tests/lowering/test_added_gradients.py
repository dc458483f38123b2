"""Gradients that MXNet adds are those of single passes, added: what adds, and what is copied."""

import numpy as np
import pytest

import gluon_amp as amp
from experiments.operators.calls import CALLS, Ids, call, node
from gluon_amp import kernels
from gluon_amp.base import bfloat16
from gluon_amp.graph import op_table, to_json
from gluon_amp.graph import own_operators as own
from gluon_amp.lowering import added_gradients, lower
from gluon_amp.policy import cast_pass
from tests.lowering import back_through, on_symbols, ops
from tests.marks import needs_bfloat16

import mxnet as mx
from mxnet import autograd, nd
from mxnet.gluon import nn

pytestmark = pytest.mark.cpu_kind

make_addable = on_symbols(added_gradients.make_addable)

# Without the C++ library, variables are copied where bfloat16's casts do not add.
POLICIES = ["float16", "mixed_float16", "bfloat16"]
WAYS = [*POLICIES, pytest.param("bfloat16 by copies", marks=needs_bfloat16)]
# The largest distance of a gradient from float32's, relative to its norm
TOLERANCE = {"float16": 5e-3, "mixed_float16": 5e-3, "bfloat16": 8e-2}


def normal(*shape, seed=0):
    return np.random.RandomState(seed).normal(size=shape).astype("f4")


def gradients(net, parts, grad_req, feed_req="write"):
    """Gradients of parameters and of inputs after each of several passes, in float32."""
    params = [p for p in net.collect_params().values() if p.grad_req != "null"]
    for param in params:
        param.grad_req = grad_req
    fed = [nd.zeros(array.shape) for array in parts[0]]
    for array in fed:
        array.attach_grad(feed_req)
    results = []
    for part in parts:
        for array, values in zip(fed, part):
            array[:] = values
        if grad_req == "write":  # without a graph, a branch that is not taken writes no gradients
            for grad in (*(p.grad() for p in params), *(array.grad for array in fed)):
                grad[:] = 0
        back_through(net, *fed, head=lambda shape: nd.array(normal(*shape, seed=9)))
        grads = [p.grad() for p in params if p.grad_req != "null"]
        results.append([grad.asnumpy() for grad in (*grads, *(array.grad for array in fed))])
    return results


def built(make, policy=None, **flags):
    mx.random.seed(0)
    np.random.seed(0)
    net = make()
    net.initialize(mx.init.Normal(0.5))
    if policy:
        amp.cast(net, policy)
    if policy or flags:
        net.hybridize(**flags)
    return net


def added(passes):
    """Sums in the arrays' own dtype, in the order of the passes, as by kAddTo."""
    totals = passes[0]
    for grads in passes[1:]:
        totals = [total + grad for total, grad in zip(totals, grads)]
    return totals


def check_sums(make, way, parts, monkeypatch, **flags):
    """Compare gradients that MXNet adds with those of single passes, and with float32's."""
    policy, *copies = way.split(" by ")
    if copies:
        monkeypatch.setattr(kernels, "available", lambda: False)
    sums = added(gradients(built(make, policy, **flags), parts, "write"))
    results = gradients(built(make, policy, **flags), parts, "add", "add")[-1]
    expected = added(gradients(built(make), parts, "write"))
    for ours, total, reference in zip(results, sums, expected):
        assert ours.dtype == total.dtype
        # a kernel may add each product to the sum, instead of the sum of all products
        np.testing.assert_allclose(ours, total, rtol=2e-3, atol=1e-3 * np.abs(total).max())
        assert np.linalg.norm(ours - reference) <= TOLERANCE[policy] * np.linalg.norm(reference)


# Functions whose operators in MXNet do not add the gradient of their input
READERS = {
    "the input itself": lambda F, x: x,
    "softmax": lambda F, x: F.softmax(x),
    "clip": lambda F, x: F.clip(x, -0.5, 0.5),
    "mean": lambda F, x: F.mean(x, axis=1),
    "reverse": lambda F, x: F.reverse(x, axis=1),
    "split_v2": lambda F, x: F.split_v2(x, 2, axis=1)[0],
    "a sum of two inputs": lambda F, x, y: x + y,
    "a sum of three": lambda F, x, y: F.add_n(x, y, x),
    "a cast of the user's": lambda F, x: F.amp_cast(x, dtype="float32"),
    "a cast and another": lambda F, x: F.amp_cast(x, dtype="float32") + F.relu(x),
    "ten readers": lambda F, x: F.add_n(F.softmax(x), *(F.sin(x * k) for k in range(9))),
    "matrix product": lambda F, x, y: F.dot(x, F.clip(y, -1, 1), transpose_b=True),
}


@pytest.mark.parametrize("way", WAYS)
def test_gradients_of_inputs(way, monkeypatch):
    for function in READERS.values():
        count = function.__code__.co_argcount - 1
        parts = [[normal(3, 4, seed=10 * k + j) for j in range(count)] for k in range(3)]
        check_sums(lambda f=function: nn.HybridLambda(f), way, parts, monkeypatch)


# -------------------------------------------------------------------------- loops and branches


class Cells(nn.HybridBlock):
    """Two dense layers and a clipped scale in a loop or branch that `run` creates."""

    def __init__(self, run):
        super().__init__()
        self._run = run
        with self.name_scope():
            self.a = nn.Dense(4, in_units=4, flatten=False)
            self.b = nn.Dense(4, in_units=4, flatten=False)
            self.scale = self.params.get("scale", shape=(3, 4), init=mx.init.Constant(0.5))

    def hybrid_forward(self, F, x, h, scale):
        return self._run(self, F, x, h, scale)


def foreach(cells, F, x, h, scale):
    def step(data, states):
        out = F.tanh(cells.a(data + states[0])) * F.clip(scale, 0, 1)
        return cells.b(out), [out]

    outs, states = F.contrib.foreach(step, x, [h])
    return F.broadcast_add(outs, states[0].expand_dims(0))


def while_loop(cells, F, x, h, scale):
    first = F.squeeze(F.slice_axis(x, axis=0, begin=0, end=1), axis=0)

    def step(i, state):
        out = F.tanh(cells.a(state + first)) + scale
        return cells.b(out), [i + 1, out]

    outs, (_, state) = F.contrib.while_loop(
        lambda i, _: i < 3, step, [F.zeros((1,)), h], max_iterations=3
    )
    return F.broadcast_add(outs, state.expand_dims(0))


def cond(cells, F, x, h, scale):
    return F.contrib.cond(
        F.sum(h) < 0,
        lambda: cells.a(F.broadcast_add(x, h.expand_dims(0))),
        lambda: cells.b(F.broadcast_mul(x, scale.expand_dims(0))),
    )


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("run", [foreach, while_loop, cond])
def test_loops_and_branches(way, run, monkeypatch):
    # sum(h) is negative in the second part, so that each branch is taken
    signs = (1, -1, 1)
    parts = [
        [normal(5, 3, 4, seed=k), sign * np.abs(normal(3, 4, seed=k))]
        for k, sign in enumerate(signs)
    ]
    flags = dict.fromkeys(("static_alloc", "static_shape"), way in ("float16", "bfloat16"))
    check_sums(lambda: Cells(run), way, parts, monkeypatch, **flags)


@pytest.mark.parametrize("policy", ["float16", "bfloat16"])
def test_the_branch_that_is_not_taken_has_a_zero_gradient(policy):
    net = built(lambda: Cells(cond), policy)
    x = nd.array(normal(5, 3, 4))
    for value, taken, other in ((1, "b", "a"), (-1, "a", "b"), (-1, "a", "b"), (1, "b", "a")):
        back_through(net, x, nd.full((3, 4), value))
        assert np.abs(getattr(net, taken).weight.grad().asnumpy()).max() > 0
        assert np.abs(getattr(net, other).weight.grad().asnumpy()).max() == 0


# --------------------------------------------------------------------- what adds, and what does not


ADDING = """
    BatchNorm Cast Convolution Deconvolution FullyConnected GroupNorm InstanceNorm LayerNorm
    LeakyReLU RNN _copy batch_dot dot
""".split()


def repeats(op, shapes, attrs):
    """Return whether each pass has the same gradients; MXNet has none of a projection on a CPU."""
    random = "p" in attrs or op_table.has("once", op, attrs, "cpu")
    ids = any(isinstance(shape, Ids) for shape in shapes)
    return not (random or ids or "projection_size" in attrs)


@pytest.mark.parametrize("op", ADDING)
def test_operators_that_add(op):
    cases = [case for case in CALLS.get(op, [call(op)]) if repeats(op, *case)]
    assert cases
    for shapes, attrs in cases:
        symbol = node(op, shapes, attrs)
        arrays = {f"x{k}": nd.array(normal(*shape, seed=k)) for k, shape in enumerate(shapes)}
        results = {}
        for grad_req in ("write", "add"):
            for name in symbol.list_arguments():
                arrays[name].attach_grad(grad_req)
            run = nd.CachedOp(symbol)
            for _ in range(3):
                with autograd.record():
                    out = run(*(arrays[name] for name in symbol.list_inputs()))
                out.backward(nd.array(normal(*out.shape, seed=9), dtype=out.dtype))
            grads = [arrays[name].grad.asnumpy() for name in symbol.list_arguments()]
            results[grad_req] = grads
        for once, three in zip(results["write"], results["add"]):
            np.testing.assert_allclose(three, 3 * once, rtol=1e-4, atol=1e-5)


def test_each_operator_that_adds_is_tried():
    # Other files test our own operators; Embedding's ids have no gradient
    tried = {*ADDING, "_cond", "_foreach", "_while_loop", "Embedding"}
    assert {op for op in op_table.named("adds") if not own.is_own(op)} == tried


@pytest.mark.parametrize("policy", ["float16", "bfloat16"])
@pytest.mark.parametrize("sparse", [False, True])
def test_embeddings_add_and_stay_sparse(policy, sparse):
    net = built(lambda: nn.Embedding(7, 4, sparse_grad=sparse), policy)
    ids = nd.array([1, 3, 3])
    net.weight.grad_req = "write" if sparse else "add"  # MXNet adds no sparse gradients
    for _ in range(2):
        back_through(net, ids)
    assert net.weight.grad().stype == ("row_sparse" if sparse else "default")
    times = 1 if sparse else 2
    reference = times * np.array([0, 1, 0, 2, 0, 0, 0])
    np.testing.assert_array_equal(
        net.weight.grad().asnumpy(), np.repeat(reference, 4).reshape(7, 4)
    )


@pytest.mark.parametrize("policy", POLICIES)
def test_no_weight_is_copied(policy):
    dense = mx.sym.FullyConnected(mx.sym.var("x"), mx.sym.var("w"), num_hidden=2, no_bias=True)
    dtypes = {"x": "float32", "w": amp.Policy.parse(policy).param_dtype}
    cast = cast_pass.apply(dense, amp.Policy.parse(policy), {"w": dtypes["w"]})
    found = ops(lower(cast, dtypes, "cpu"))
    copied = policy == "bfloat16" and not kernels.available()
    assert ("_copy" in found) == copied
    assert (own.BFLOAT16 in found) == (
        policy == "bfloat16" and bfloat16.is_native() and kernels.available()
    )


def test_what_reads_a_variable_and_cannot_add_reads_a_copy():
    x, w = mx.sym.var("x"), mx.sym.var("w")
    dense = mx.sym.FullyConnected(x, w, num_hidden=2, no_bias=True)
    assert make_addable(dense, {}, "cpu") is dense
    assert ops(make_addable(mx.sym.clip(dense, 0, 1), {}, "cpu")) == ["FullyConnected", "clip"]
    twice = make_addable(mx.sym.clip(x, 0, 1) + x, {}, "cpu")
    assert ops(twice) == ["_copy", "clip", "elemwise_add"]
    assert twice.list_arguments() == ["x"]
    picked = mx.sym.take(mx.sym.var("table"), mx.sym.var("ids", dtype="int64"))
    results = to_json(make_addable(picked, {"ids": "int64", "table": "float32"}, "cpu"))
    assert [n["name"] for n in results["nodes"] if n["op"] == "_copy"] == ["table_copy"]
    same = mx.sym.amp_cast(x, dtype="float32")
    assert ops(make_addable(same, {"x": "float32"}, "cpu")) == ["_copy"]
    assert make_addable(same, {"x": "float32"}, "cpu").list_outputs() == same.list_outputs()
    for cast in (same, mx.sym.amp_cast(x, dtype="float16")):  # a GPU's cast adds
        assert make_addable(cast, {"x": "float32"}, "gpu") is cast


@pytest.mark.parametrize("policy", ["float16", "bfloat16"])
def test_a_sum_with_a_variable_without_gradient_in_static_memory(policy):
    class Shifted(nn.HybridBlock):
        def __init__(self):
            super().__init__()
            self.dense = nn.Dense(2, in_units=2, use_bias=False)
            self.shift = self.params.get("shift", shape=(1, 2), grad_req="null")

        def hybrid_forward(self, F, x, shift):
            return (self.dense(x) + shift) * 2

    net = Shifted()
    net.initialize(mx.init.One())
    amp.cast(net, policy)
    net.hybridize(static_alloc=True, static_shape=True)
    back_through(net, nd.array([[1, 3]]))
    assert net.dense.weight.grad().asnumpy().tolist() == [[2, 6], [2, 6]]
