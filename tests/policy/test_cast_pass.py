"""The graph pass: where it inserts casts, which parameters are float16, what is never cast."""

import numpy as np
import pytest

from gluon_amp import graph
from gluon_amp.base.dtypes import dtype_name
from gluon_amp.lowering import lower
from gluon_amp.policy import Policy, cast_pass

import mxnet as mx

FLOAT16 = Policy.parse("float16")
BFLOAT16 = Policy.parse("bfloat16")


def var(name):
    return mx.sym.var(name)


def dense(data, name, units=4):
    return mx.sym.FullyConnected(data, var(f"{name}_w"), num_hidden=units, no_bias=True, name=name)


def apply(symbol, policy=FLOAT16, inputs=("x",)):
    """Cast a symbol whose parameters have the dtypes of the policy."""
    dtypes = cast_pass.parameter_dtypes(symbol, policy, inputs)
    return cast_pass.apply(symbol, policy, dtypes), dtypes


def runs_in(symbol, policy=FLOAT16, inputs=("x",), **fed):
    """Return {node name: dtype of its output} by MXNet's own type inference."""
    cast, dtypes = apply(symbol, policy, inputs)
    internals = cast.get_internals()
    fed = {**dict.fromkeys(inputs, "float32"), **fed}
    _, inferred, _ = internals.infer_type(**fed, **dtypes)
    names = (name.replace("_output", "") for name in internals.list_outputs())
    return {name: dtype_name(dtype) for name, dtype in zip(names, inferred)}


def casts(symbol):
    return [n["name"] for n in graph.to_json(symbol)["nodes"] if n["op"] == "amp_cast"]


def test_products_run_in_float16_and_the_output_is_float32():
    symbol = dense(mx.sym.relu(dense(var("x"), "a"), name="r"), "b")
    before = symbol.tojson()
    dtypes = runs_in(symbol)
    assert (dtypes["a"], dtypes["r"], dtypes["b"]) == ("float16",) * 3
    assert dtypes["b_0_cast_float32"] == "float32"
    _, nodes = cast_pass.plan(symbol, FLOAT16, {"a_w": "float16"})
    assert [(n.name, n.op, n.dtype, n.params) for n in nodes] == [
        ("a", "FullyConnected", "float16", {"a_w": "float16"}),
        ("r", "relu", "float16", {}),
        ("b", "FullyConnected", "float16", {}),
    ]
    assert symbol.tojson() == before


def test_each_tensor_is_cast_once_and_float32_parameters_in_the_graph():
    x = var("x")
    symbol = mx.sym.Group([dense(x, "a"), dense(x, "b")])
    cast, dtypes = apply(symbol)
    assert casts(cast) == ["x_0_cast_float16", "a_0_cast_float32", "b_0_cast_float32"]
    assert dtypes == {"a_w": "float16", "b_w": "float16"}
    mixed, dtypes = apply(symbol, Policy.parse("mixed_float16"))
    assert dtypes == {"a_w": "float32", "b_w": "float32"}
    assert {"a_w_0_cast_float16", "b_w_0_cast_float16"} < {*casts(mixed)}


@pytest.mark.parametrize("first", ["pool", "conv"])
def test_concat_of_a_convolution_and_a_pooled_branch_of_raw_input(first):
    # MXNet's own pass fails on one of the two orders (apache/mxnet 20983)
    x = var("x")

    def conv(data, name):
        return mx.sym.Convolution(data, kernel=(1, 1), num_filter=2, name=name)

    pooled = conv(mx.sym.Pooling(x, kernel=(3, 3), pad=(1, 1), name="p"), "c1")
    direct = conv(x, "c2")
    branches = [pooled, direct] if first == "pool" else [direct, pooled]
    for policy in (FLOAT16, BFLOAT16):
        dtypes = runs_in(mx.sym.concat(*branches, dim=1, name="cat"), policy)
        assert dtypes["cat"] == policy.compute_dtype
        assert dtypes["p"] == "float32"  # raw data, which is cast after the pooling


def test_batchnorm_reads_float16_with_float32_parameters():
    symbol = mx.sym.BatchNorm(dense(var("x"), "a"), name="bn")
    cast, dtypes = apply(symbol)
    assert {n: d for n, d in dtypes.items() if n.startswith("bn")} == dict.fromkeys(
        ["bn_gamma", "bn_beta", "bn_moving_mean", "bn_moving_var"], "float32"
    )
    assert runs_in(symbol)["bn"] == "float16"
    assert cast.list_auxiliary_states() == ["bn_moving_mean", "bn_moving_var"]


def test_other_norms_compute_in_float32_and_return_to_float16_and_softmax_stays():
    data = dense(var("x"), "a").reshape((0, 2, 2, 1))
    for norm in (mx.sym.LayerNorm(data, name="n"), mx.sym.LRN(data, nsize=3, name="n")):
        dtypes = runs_in(mx.sym.relu(norm, name="r"))
        assert (dtypes["a"], dtypes["n"], dtypes["r"]) == ("float16", "float32", "float16")
    dtypes = runs_in(mx.sym.relu(mx.sym.softmax(data, name="s"), name="r"))
    assert (dtypes["a"], dtypes["s"], dtypes["r"]) == ("float16", "float32", "float32")


@pytest.mark.parametrize(
    "merge",
    [
        lambda a, b: a + b,
        lambda a, b: mx.sym.concat(a, b, dim=0),
        lambda a, b: mx.sym.where(mx.sym.var("c"), a, b),
        lambda a, b: mx.sym.add_n(a, b, a),
        mx.sym.broadcast_maximum,
    ],
)
@pytest.mark.parametrize("swap", [False, True])
def test_merges_of_float16_and_float32_are_float32(merge, swap):
    low = dense(var("x"), "a")
    pair = (mx.sym.softmax(low), low)
    symbol = merge(*(pair[::-1] if swap else pair))
    inputs = [name for name in symbol.list_inputs() if name in ("x", "c")]
    cast, dtypes = apply(symbol, inputs=inputs)
    _, outputs, _ = cast.infer_type(**dict.fromkeys(inputs, "float32"), **dtypes)
    assert outputs == [np.float32]
    assert runs_in(mx.sym.broadcast_add(low, low, name="sum"))["sum"] == "float16"
    raw = mx.sym.broadcast_add(low, var("x"), name="sum")
    assert runs_in(raw)["sum"] == runs_in(raw, x="float16")["sum"] == "float32"


def test_ids_and_indices_are_never_cast():
    rows = mx.sym.Embedding(var("ids"), var("e_w"), input_dim=9, output_dim=4)
    picked = mx.sym.pick(dense(rows, "a"), var("index"))
    taken = mx.sym.take(dense(rows, "b"), var("where"))
    symbol = mx.sym.Group([picked, taken])
    cast, dtypes = apply(symbol, inputs=("ids", "index", "where"))
    assert not [name for name in casts(cast) if name.startswith(("ids", "index", "where"))]
    assert dtypes["e_w"] == "float32"  # its gradient sums repeated rows


def test_integers_that_reach_an_output_stay_integers():
    symbol = mx.sym.Group([var("ids"), dense(var("x"), "a")])
    cast, dtypes = apply(symbol, inputs=("ids", "x"))
    _, outputs, _ = cast.infer_type(ids="int32", x="float32", **dtypes)
    assert outputs == [np.int32, np.float32]


def test_what_is_known_to_be_integer_is_never_cast():
    size = mx.sym.size_array(var("x")).reshape(
        (1,)
    )  # int64, which amp_cast does not support on a CPU
    symbol = mx.sym.Group([mx.sym.stack(size, size, name="s"), dense(var("x"), "a")])
    for policy in (FLOAT16, BFLOAT16):
        cast, _ = apply(symbol, policy)
        assert not [name for name in casts(cast) if name.startswith(("s_", "size", "reshape"))]


def test_parameters_that_are_reshaped_or_concatenated_are_float16_too():
    weight = mx.sym.concat(var("w1").reshape((2, -1)), var("w2"), dim=0)
    symbol = mx.sym.FullyConnected(var("x"), weight, num_hidden=4, no_bias=True)
    _, dtypes = apply(symbol)
    assert dtypes == {"w1": "float16", "w2": "float16"}


def test_parameters_that_something_else_reads_too_stay_float32():
    w = var("w")
    penalty = mx.sym.sum(w * w)
    symbol = mx.sym.Group([mx.sym.FullyConnected(var("x"), w, num_hidden=4, no_bias=True), penalty])
    cast, dtypes = apply(symbol)
    assert dtypes == {"w": "float32"}
    assert "w_0_cast_float16" in casts(cast)
    assert cast_pass.parameter_dtypes(var("w") * 1, FLOAT16, [])["w"] == "float32"


@pytest.mark.parametrize("output", [lambda w: w, lambda w: w.reshape((-1,))])
def test_a_parameter_that_is_itself_an_output_stays_float32(output):
    """In float16, an output of 0.1 would be 0.099976."""
    w = var("w")
    product = mx.sym.FullyConnected(var("x"), w, num_hidden=1, no_bias=True)
    assert apply(mx.sym.Group([product, output(w)]))[1] == {"w": "float32"}
    assert apply(product)[1] == {"w": "float16"}


def test_pins_by_operator_and_by_block():
    with mx.AttrScope(**{graph.BLOCK_ATTR: "head"}):
        head = dense(var("x"), "a")
    symbol = mx.sym.tanh(head, name="t")
    assert runs_in(symbol)["a"] == "float16"
    pinned = runs_in(symbol, FLOAT16.pin(blocks=["^head$"]))
    assert (pinned["a"], pinned["t"], pinned["a_w"]) == ("float32",) * 3
    pinned = runs_in(symbol, FLOAT16.pin(ops=["tanh"]))
    assert (pinned["a"], pinned["t"]) == ("float16", "float32")
    assert graph.BLOCK_ATTR not in apply(symbol)[0].tojson(remove_amp_cast=False)


def test_the_float32_policy_changes_nothing():
    symbol = mx.sym.softmax(dense(var("x"), "a"))
    cast, _ = apply(symbol, Policy())
    assert casts(cast) == []
    assert [n["op"] for n in graph.to_json(cast)["nodes"]] == [
        n["op"] for n in graph.to_json(symbol)["nodes"]
    ]


def test_the_bodies_of_loops_are_cast_too():
    def step(data, state):
        out = mx.sym.FullyConnected(
            data, var("w"), num_hidden=4, no_bias=True, flatten=False, name="fc"
        )
        return out, out + state

    outs, _ = mx.sym.contrib.foreach(step, var("x"), var("s"))
    cast, dtypes = apply(outs, inputs=("x", "s"))
    assert dtypes == {"w": "float32"}
    (loop,) = [n for n in graph.to_json(cast)["nodes"] if n["op"] == "_foreach"]
    body = loop["subgraphs"][0]["nodes"]
    assert {n["attrs"]["dtype"] for n in body if n["op"] == "amp_cast"} == {"float16", "float32"}
    x, s, w = (mx.nd.random.normal(shape=shape) for shape in ((3, 2, 4), (2, 4), (4, 4)))
    lowered = lower(cast, dict.fromkeys("xsw", "float32"), "cpu")
    actual = lowered.eval(ctx=mx.cpu(), x=x, s=s, w=w)[0].asnumpy()
    expected = outs.eval(ctx=mx.cpu(), x=x, s=s, w=w)[0].asnumpy()
    assert np.abs(actual - expected).max() < 0.02
    assert not np.array_equal(actual, expected)
