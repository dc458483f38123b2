"""The cast of a net: scope, undo, every kind of block, and errors for bad input."""

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp.base.dtypes import dtype_name
from gluon_amp.casting.binding import binding_of
from gluon_amp.policy import cast_pass
from tests.casting.nets import POLICIES, Net, backward, dtypes_of, images, small_net

import mxnet as mx
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn, rnn


@pytest.mark.parametrize("policy", POLICIES)
def test_float32_undoes_a_cast(policy):
    net, x = small_net(), images()
    for p in net.collect_params().values():
        p.set_data(p.data().astype("float16").astype("float32"))  # representable in float16
    expected = net(x).asnumpy()
    before = {name: p.data().asnumpy() for name, p in net.collect_params().items()}
    for _ in range(2):
        amp.cast(net, policy)
        rounds = not np.array_equal(net(x).asnumpy(), expected)
        assert rounds or policy == "fused_float32"
        amp.cast(net, "float32")
        assert type(net) is nn.HybridSequential
        assert all(type(child).__module__.startswith("mxnet") for child in net)
        assert binding_of(net) is None
        for name, p in net.collect_params().items():
            assert type(p) is gluon.Parameter and dtype_name(p.dtype) == "float32"
            assert "_amp_gradient_dtype" not in vars(p)
            assert np.array_equal(p.data().asnumpy(), before[name])
        assert np.array_equal(net(x).asnumpy(), expected)


def test_twice_is_once():
    net, x = small_net(), images()
    once = amp.cast(net, "float16")(x).asnumpy()
    kind = type(net)
    assert np.array_equal(amp.cast(net, "float16")(x).asnumpy(), once)
    assert type(net) is kind
    assert isinstance(net, nn.HybridSequential) and type(kind()) is nn.HybridSequential
    assert repr(net).startswith("HybridSequential(")


@pytest.mark.parametrize("policy", POLICIES)
def test_weights_of_products_are_in_the_parameter_dtype_and_outputs_in_float32(policy):
    net, low = amp.cast(small_net(), policy), amp.Policy(policy).param_dtype
    dtypes = dtypes_of(net)
    assert {name for name, dtype in dtypes.items() if dtype != "float32"} == (
        {name for name in dtypes if "norm" not in name} if low == "float16" else set()
    )
    assert backward(net, images()).dtype == np.float32
    assert net[0].weight.grad().dtype == np.dtype(low)


def test_float16_data_gives_what_float32_data_gives():
    net, x = amp.cast(small_net(), "float16"), images()
    out = net(x).asnumpy()
    assert np.array_equal(net(x.astype("float16")).asnumpy(), out)
    assert np.array_equal(net(x).asnumpy(), out)


def test_a_plain_block_gets_its_hybrid_parts_cast():
    class Plain(gluon.Block):
        def __init__(self):
            super().__init__()
            self.body = nn.HybridSequential()
            self.body.add(nn.Dense(8), nn.Dense(8))
            self.head = nn.Dense(2)

        def forward(self, x):
            hidden = self.body(x)
            assert hidden.dtype == np.float32  # its own code never sees float16
            return self.head(hidden * float(hidden.max().asscalar() > -1))

    net = Plain()
    net.initialize()
    amp.cast(net, "float16")
    assert backward(net, nd.ones((2, 3))).dtype == np.float32
    assert net.body[0].weight.dtype == "float16"
    rows = amp.describe(net).rows
    assert [row.block for row in rows if row.op == "FullyConnected"] == ["body.0", "body.1", "head"]
    amp.cast(net, "float32")
    assert type(net.body) is nn.HybridSequential
    assert net(nd.ones((2, 3))).dtype == np.float32


def test_a_symbol_block_with_batchnorms_of_any_name():
    x = mx.sym.var("data")
    names = ("g", "b", "moving_average_a", "another")
    hidden = mx.sym.Convolution(x, kernel=(3, 3), num_filter=4, name="c")
    hidden = mx.sym.BatchNorm(hidden, *(mx.sym.var(n) for n in names), fix_gamma=False, name="odd")
    out = mx.sym.FullyConnected(hidden, num_hidden=3, name="fc")
    net = gluon.SymbolBlock([out, hidden], [x])
    net.initialize(mx.init.One())
    expected = [o.asnumpy() for o in net(images())]
    amp.cast(net, "float16")
    assert {p: dtype_name(net.params[p].dtype) for p in names} == dict.fromkeys(names, "float32")
    assert net.params["c_weight"].dtype == "float16"
    amp.cast(net, "float32")
    assert all(np.array_equal(a.asnumpy(), b) for a, b in zip(net(images()), expected))
    outs = backward(amp.cast(net, "float16"), images())
    assert [o.dtype for o in outs] == [np.float32, np.float32]


def test_a_part_of_another_net_takes_the_place_of_a_cast_one():
    """As in MXNet's FAQ: a net of other classes gets the features of a pretrained one."""

    net = Net(lambda net, F, x: net.features(x), features=small_net())
    net, pretrained = amp.cast(net, "float16"), small_net()
    old = net.features
    net.features = pretrained  # Gluon requires a block of the old one's class
    assert type(old) is nn.HybridSequential and net.features is pretrained
    amp.cast(net, "float16")
    assert pretrained[0].weight.dtype == "float16"
    assert backward(net, images()).dtype == np.float32


class Cell(rnn.HybridRecurrentCell):
    """A cell whose states nobody knows before it is called, so it cannot be traced by itself."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.weight = self.params.get("weight", shape=(2, 2), init="ones")

    def hybrid_forward(self, F, x, states, weight):
        return F.dot(x, weight) + states[0], states


def test_parameters_of_a_block_that_cannot_be_traced_by_itself_stay_float32():
    net = Cell()
    net.initialize()
    amp.cast(net, "float16")
    assert dtype_name(net.weight.dtype) == "float32"
    out, _ = net(nd.ones((1, 2)), [nd.ones((1, 2))])
    assert out.asnumpy().tolist() == [[3, 3]]
    assert amp.describe(net).rows[0].compute_dtype == "float16"


def test_an_error_of_our_own_is_not_taken_for_a_block_that_cannot_be_traced(monkeypatch):
    net = small_net()
    monkeypatch.setattr(cast_pass, "parameter_dtypes", lambda *_: {}["a bug"])
    with pytest.raises(KeyError, match="a bug"):
        amp.cast(net, "float16")
    assert type(net) is nn.HybridSequential
    assert set(dtypes_of(net).values()) == {"float32"}


def test_blocks_that_are_no_net():
    with pytest.raises(TypeError, match=r"policy_of\(\) got a Symbol, expected a gluon Block\."):
        amp.policy_of(mx.sym.var("x"))
    with pytest.raises(TypeError, match="cast\\(\\) got a list, expected a gluon Block"):
        amp.cast([small_net()])
    with pytest.raises(TypeError, match="holds no HybridBlock"):
        amp.cast(nn.Sequential())


def test_parameters_of_other_dtypes():
    net = nn.Dense(2, in_units=3, dtype="float64")
    net.initialize()
    with pytest.raises(TypeError, match="weight is float64, expected float32"):
        amp.cast(net)
    assert type(net) is nn.Dense

    net = Net(lambda net, F, x, ids: F.broadcast_add(net.rows(ids), x), rows=nn.Embedding(4, 2))
    net.ids = net.params.get("ids", shape=(3,), dtype="int32", init="ones")
    with pytest.raises(TypeError, match="ids is int32, expected float32"):
        amp.cast(net)
    net.ids.grad_req = "null"
    net.initialize()
    amp.cast(net, "float16")
    assert net(nd.ones((1, 2))).dtype == np.float32
    assert net.ids.data().dtype == np.int32


@pytest.mark.parametrize("policy", ["float16", "compute=float8_e4m3,gradients=float32"])
def test_a_constant_in_float64_keeps_its_digits(policy):
    def add(net, F, x, table):
        beyond = F.broadcast_sub(table, F.cast(F.ones_like(x), "float64")) * 2.0**40
        return net.dense(x) + F.cast(beyond, "float32")

    net = Net(add, dense=nn.Dense(1, in_units=1, weight_initializer="zeros"))
    value = nd.full((1, 1), 1 + 2**-40, dtype="float64")
    net.table = net.params.get_constant("table", value)
    net.initialize()
    amp.cast(net, policy)
    assert net(nd.ones((1, 1))).asscalar() == 1
    assert net.table.data().dtype == np.float64


def test_a_pin_that_matches_nothing_is_refused_and_nothing_changes():
    net = small_net()
    with pytest.raises(ValueError, match="'haed' matches no block"):
        amp.cast(net, amp.Policy.parse("float16").pin(blocks=["haed"]))
    assert set(dtypes_of(net).values()) == {"float32"}
    assert type(net) is nn.HybridSequential


@pytest.mark.parametrize("before, policy", [(None, "float16"), ("float16", "float32")])
def test_a_cast_while_autograd_records_is_refused_and_no_gradient_is_lost(before, policy):
    net = nn.Dense(1, in_units=2)
    net.initialize(mx.init.One())
    if before:
        amp.cast(net, before)
    dtype = net.weight.dtype
    with autograd.record():
        loss = net(nd.array([[2, 3]]))
        with pytest.raises(RuntimeError, match=r"inside autograd.record\(\), .* before the record"):
            amp.cast(net, policy)
    loss.backward()
    assert net.weight.grad().asnumpy().tolist() == [[2, 3]]
    assert net.weight.dtype == dtype
    with autograd.train_mode():
        amp.cast(net, policy)  # nothing is recorded


def test_bfloat16_on_a_gpu_is_refused_with_the_reason():
    net = nn.Dense(2, use_bias=False)  # deferred: no GPU is touched
    net.initialize(ctx=mx.gpu(0))
    with pytest.raises(ValueError, match="no bfloat16 kernels there"):
        amp.cast(net, "bfloat16")
    assert type(net) is nn.Dense
    amp.cast(net, "float16")


# ---------------------------------------------------------------------------------- policy_of


def dense_pair(kind=nn.HybridSequential):
    net = kind()
    net.add(nn.Dense(2, in_units=3), nn.Dense(2, in_units=2))
    return net


@pytest.mark.parametrize("kind", [nn.HybridSequential, nn.Sequential])
def test_a_net_has_the_policy_of_its_last_cast(kind):
    net = dense_pair(kind)
    assert amp.policy_of(net) == amp.Policy("float32")
    for policy in (np.float16, "mixed_float16", amp.Policy("bfloat16").pin(ops=["tanh"])):
        amp.cast(net, policy)
        assert amp.policy_of(net) == amp.policy_of(net[0]) == amp.Policy.parse(policy)
    amp.cast(net, "float32")
    assert amp.policy_of(net) == amp.Policy()


def test_parts_with_different_policies_are_named():
    net = dense_pair(nn.Sequential)
    amp.cast(net[1], "float16")
    with pytest.raises(
        ValueError, match=r"0 has Policy\('float32'\) and 1 has Policy\('float16'\); ask for that"
    ):
        amp.policy_of(net)
