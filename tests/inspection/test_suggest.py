"""suggest_policy: pins at planted places, none in sound nets, and a net that stays as it was."""

import copy
import itertools
import re

import numpy as np
import pytest

import gluon_amp as amp
from tests.casting.nets import Net
from tests.inspection.nets import L2, built, chain, one, total

import mxnet as mx
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn
from mxnet.gluon.model_zoo import vision

CROSS_ENTROPY = gluon.loss.SoftmaxCrossEntropyLoss()
FLOAT16 = amp.Policy("float16")
Planted = nn.HybridLambda  # computes a function of `F` and its input


def attention(factor):
    """Return attention of 8 positions, whose keys and queries are multiplied by `factor`."""

    def forward(net, F, x):
        x = net.project(F.expand_dims(x, 1)) * factor
        weights = F.softmax(F.contrib.interleaved_matmul_selfatt_qk(x, heads=2))
        out = F.contrib.interleaved_matmul_selfatt_valatt(x, weights, heads=2)
        return F.reshape(out, (-1, 32)) / factor

    return Net(forward, project=nn.Dense(96, flatten=False, in_units=16))


class Unnamed(nn.HybridBlock):
    """Has all its operators in one block, two matrix products among them."""

    def __init__(self):
        super().__init__()
        self.weight = self.params.get("weight", shape=(16, 16), init=mx.init.Xavier())

    def hybrid_forward(self, F, x, weight):
        x = F.tanh(F.FullyConnected(x, weight, num_hidden=16, no_bias=True))
        return F.FullyConnected(near(F, x), weight, num_hidden=16, no_bias=True)


def near(F, x):
    return ((x * 1e-3 + 1) - 1) * 1e3


def centered(F, x):
    x = x + 4096
    return F.broadcast_sub(x, F.mean(x, axis=1, keepdims=True))


def standardized(F, x):
    x = x + 200
    mean, squares = (F.mean(y, axis=1, keepdims=True) for y in (x, x * x))
    return F.broadcast_div(F.broadcast_sub(x, mean), F.sqrt(squares - mean * mean + 1e-3))


def exponential(F, x):
    return F.exp(x / 10 + 12)  # about 160,000


def tiny_epsilon(F, x):
    return x / (F.abs(x) + 1e-8)  # which the package keeps in float32


def small_squares(F, x):
    x = x * 1e-4
    return F.broadcast_div(x, F.sqrt(F.mean(x * x, axis=1, keepdims=True)))


def steep(F, x):
    """Return x, whose gradient becomes 2**36 times larger on its way, and then smaller again."""
    small = x * 2**-12 * 2**-12 * 2**-12
    same = small * 2**12 * 2**12 * 2**12
    return x + same - F.BlockGrad(same)


def hidden(net, F, x):
    """Return x; the gradient of the weight, which is 0, becomes 2**36 times smaller."""
    return x + net.zero(x) * 2**12 * 2**12 * 2**12 * 2**-12 * 2**-12 * 2**-12


def net_with(*layers):
    """Return layers between two Dense layers; the first one has the path '1'."""
    net = built(nn.Dense(16, in_units=16), *layers, nn.Dense(4), policy=None)
    net(data())
    return net


def data():
    return nd.array(np.random.RandomState(0).randn(8, 16))


def classes(count=8):
    return nd.arange(count) % 4


def distances(net, policy):
    """Return how far outputs and gradients are from float32, with a loss scale of 16."""
    results = []
    for cast_by in (policy, "float32"):
        twin = amp.cast(copy.deepcopy(net), cast_by)
        arrays = [parameter.data() for parameter in twin.collect_params().values()]
        for array in arrays:
            array.attach_grad()
        with autograd.record():
            out = twin(data())
            loss = CROSS_ENTROPY(out, classes()) * 16
        loss.backward()
        results.append([a.asnumpy().astype("float32") for a in (out, *(a.grad for a in arrays))])
    return [np.linalg.norm(a - b) / np.linalg.norm(b) for a, b in zip(*results)]


def are_close(policy, net):
    output, *gradients = distances(net, policy)
    return output <= 1 / 64 and max(gradients) <= 1 / 8


@pytest.mark.parametrize(
    "layers, pins",
    [
        (
            [Planted(exponential), nn.Dense(16, weight_initializer=mx.init.Normal(1e-6))],
            ["2"],
        ),
        ([Planted(centered)], ["1"]),
        ([nn.Dense(16, bias_initializer=mx.init.Constant(4096)), nn.LayerNorm()], ["1"]),
        ([Planted(tiny_epsilon)], []),
        ([Planted(small_squares)], ["1"]),
        ([Planted(steep)], ["1"]),
        ([Net(hidden, zero=nn.Dense(16, use_bias=False, weight_initializer="zeros"))], ["1"]),
        ([nn.Dense(16, weight_initializer=mx.init.Normal(1e5)), nn.LayerNorm()], ["1"]),
        ([nn.Dense(16, weight_initializer=mx.init.Normal(1e-9)), nn.LayerNorm(epsilon=0)], ["1"]),
        ([Planted(centered), nn.Dense(16), Planted(standardized)], ["1", "3"]),
    ],
    ids="exp mean bias epsilon squares steep hidden large_weight small_weight two".split(),
)
def test_pins_are_where_trouble_is_planted_and_are_few(layers, pins):
    net = net_with(*layers)
    policy = amp.suggest_policy(net, CROSS_ENTROPY, data(), classes())
    blocks = [f"^{path}$" for path in pins]
    assert sorted(itertools.chain(*(pin.blocks for pin in policy.pins))) == blocks
    assert are_close(policy, net)
    for dropped in blocks:
        others = [block for block in blocks if block != dropped]
        assert not are_close(FLOAT16.pin(blocks=others) if others else FLOAT16, net)


def test_a_block_with_matrix_products_is_narrowed_to_an_operator():
    net = net_with(attention(500))
    policy = amp.suggest_policy(net, CROSS_ENTROPY, data(), classes())
    assert policy == FLOAT16.pin(ops=["_contrib_interleaved_matmul_selfatt_qk"])
    assert amp.suggest_policy(net_with(attention(1)), CROSS_ENTROPY, data(), classes()) == FLOAT16
    net = built(Unnamed(), policy=None)[0]
    assert amp.suggest_policy(net, total, data(), None) == FLOAT16.pin(ops=["_plus_scalar"])


def test_a_gradient_that_is_a_rounding_needs_no_pin():
    net = net_with(nn.Dense(16), nn.BatchNorm())  # before which the gradient of a bias is 0
    assert amp.suggest_policy(net, CROSS_ENTROPY, data(), classes()) == FLOAT16


@pytest.mark.parametrize("factor", [1e6, 1e-9])
def test_a_large_or_small_loss_needs_no_pin(factor):
    def loss_fn(out, label):
        return CROSS_ENTROPY(out, label) * factor

    net = net_with(nn.Dense(16, activation="relu"), nn.Dropout(0.5))
    assert amp.suggest_policy(net, loss_fn, data(), classes()) == FLOAT16


def test_what_is_printed(capsys):
    net = chain(300, 1e-3, 1, policy=None)
    policy = amp.suggest_policy(net, L2, one(300), one(0), FLOAT16.pin(ops=["tanh"]))
    printed = capsys.readouterr().out
    for path in "01":
        row = f"\n{path}                          overflow  overflow  to 9e+04, above 65504\n"
        assert row in printed
    assert "is within 0.016 and 0.12 of float32. A row has" in printed
    assert max(map(len, printed.splitlines())) <= 80
    code = printed[printed.index("amp.cast(") :]
    eval(code, {"amp": amp, "net": net})
    assert amp.policy_of(net) == policy
    assert policy == FLOAT16.pin(ops=["tanh"]).pin(blocks=["^0$", "^1$"])
    own = FLOAT16.pin(blocks=["^1$"], dtype="float16")  # which stays, though it overflows
    assert amp.suggest_policy(net, L2, one(300), one(0), own) == own
    amp.suggest_policy(net_with(Planted(near)), CROSS_ENTROPY, data(), classes())
    assert re.search(r"\n1 +0\.\d+ +0\.\d+  to [1-9.]+, rounded by 0\.\d", capsys.readouterr().out)
    small = net_with(nn.Dense(16, weight_initializer=mx.init.Normal(1e-9)), nn.LayerNorm(epsilon=0))
    amp.suggest_policy(small, CROSS_ENTROPY, data(), classes())
    assert "100% of one tensor becomes 0" in capsys.readouterr().out


@pytest.mark.parametrize("name, policy", [
    ("mobilenet0.25", "float16"),
    ("mobilenet0.25", "bfloat16"),
    pytest.param("mobilenetv2_0.25", "mixed_float16", marks=pytest.mark.slow),
    pytest.param("resnet18_v1", "float16", marks=pytest.mark.slow),
])  # fmt: skip
def test_nets_of_the_zoo_need_no_pins(name, policy, capsys):
    net = vision.get_model(name, classes=4)
    net.initialize(mx.init.Xavier())
    images = nd.array(np.random.randn(4, 3, 32, 32))
    suggested = amp.suggest_policy(net, CROSS_ENTROPY, images, classes(4), policy)
    assert suggested == amp.Policy(policy)
    if name.startswith("mobilenet"):
        assert "not within" in capsys.readouterr().out


def test_trouble_in_a_deep_net_is_found_beside_its_roundings(capsys):
    net = vision.get_model("mobilenet0.25", classes=4)
    layers, net.features = list(net.features), nn.HybridSequential(prefix="")
    net.features.add(*layers[:9], Planted(centered), *layers[9:])
    net.initialize(mx.init.Xavier())
    images = nd.array(np.random.randn(4, 3, 32, 32))
    policy = amp.suggest_policy(net, CROSS_ENTROPY, images, classes(4))
    assert policy == FLOAT16.pin(blocks=[r"^features\.9$"])
    printed = " ".join(capsys.readouterr().out.split())
    assert "is not within 0.016 and 0.12 of float32, and no other pin lowers" in printed


def test_the_net_stays_as_it_was_and_random_numbers_follow_their_seed():
    net = net_with(nn.Dropout(0.5), nn.BatchNorm(), Planted(centered))
    net.hybridize()
    net(data())
    op, drawn = net._cached_op, []
    for seed in (1, 1, 2):
        mx.random.seed(seed)
        assert amp.suggest_policy(net, CROSS_ENTROPY, data(), classes()).pins
        drawn.append(nd.random.uniform(shape=4).asnumpy().tolist())
    assert drawn[0] == drawn[1] != drawn[2]
    assert net._cached_op is op and amp.policy_of(net) == amp.Policy()
    deferred = built(nn.Dense(4), policy=None)
    amp.suggest_policy(deferred, CROSS_ENTROPY, data(), classes())
    assert deferred[0].weight.shape == (4, 0)


def test_a_cast_net_counts_with_its_masters():
    net = amp.cast(net_with(Planted(centered)), "float16")
    net(data())
    trainer = amp.Trainer(net.collect_params(), "sgd")
    masters = {name: m.asnumpy() for name, m in trainer.master_params().items()}
    assert amp.suggest_policy(net, CROSS_ENTROPY, data(), classes()) == FLOAT16.pin(blocks=["^1$"])
    assert amp.policy_of(net) == FLOAT16
    assert all((m.asnumpy() == masters[name]).all() for name, m in trainer.master_params().items())


def test_several_batches_and_several_inputs():
    net = chain(300, 1e-3, 1, policy=None)
    large = amp.suggest_policy(net, L2, [one(1), one(300)], [one(0), one(0)])
    assert sorted(large.pins[0].blocks) == ["^0$", "^1$"]
    assert amp.suggest_policy(net, L2, [one(1), one(2)], [one(0), one(0)]) == FLOAT16

    net = nn.HybridLambda(lambda F, x, y: F.dot(x * 300 + y, F.ones_like(y)) / 300)
    for inputs in ((one(300), one(1)), [one(300), one(1)]):
        assert amp.suggest_policy(net, total, inputs, None).pins
    assert not amp.suggest_policy(net, total, [(one(1), one(1))] * 2, [None] * 2).pins


def test_blocks_of_python_code_and_symbols():
    class Python(gluon.Block):
        def __init__(self):
            super().__init__()
            self.inside = net_with(Planted(centered))

        def forward(self, x):
            return self.inside(x) if x.shape[0] else x

    net = Python()
    policy = amp.suggest_policy(net, CROSS_ENTROPY, data(), classes())
    assert policy == FLOAT16.pin(blocks=[r"^inside\.1$"])
    x = mx.sym.var("data")
    for name in ("body", "head"):
        x = mx.sym.FullyConnected(x, num_hidden=16, no_bias=True, name=name)
        x = near(mx.sym, x) if name == "body" else x
    net = gluon.SymbolBlock(x, [mx.sym.var("data", dtype="float32")])
    net.initialize(mx.init.Xavier())
    policy = amp.suggest_policy(net, CROSS_ENTROPY, data(), classes())
    assert policy == FLOAT16.pin(ops=["_plus_scalar"])


@pytest.mark.parametrize("changes, error, message", [
    ({"policy": "fp16"}, ValueError, "did you mean 'float16'"),
    ({"policy": "float32"}, ValueError, "which needs no pins: pass a policy that computes in"),
    ({"policy": "compute=tfloat32"}, ValueError, "which needs no pins"),
    ({"loss_fn": 3}, TypeError, "a loss_fn of type int, expected a function of output and"),
    ({"data": data().astype("float64")}, TypeError, "got float64 data, expected float32"),
    ({"data": data() * np.nan}, ValueError, "no pin helps: Fix or drop sample 0 of this batch"),
    ({"loss_fn": lambda out, _: out.astype("float16")}, TypeError, "The loss is float16"),
    ({"net": nn.Dense(3, in_units=16)}, ValueError, "which has none: call net.initialize()"),
    ({"loss_fn": lambda out, _: out * next(COUNTER)}, ValueError, "differs by .* between two"),
])  # fmt: skip
def test_bad_input(changes, error, message):
    arguments = {"loss_fn": CROSS_ENTROPY, "data": data(), "label": classes(), **changes}
    net = arguments.pop("net", None) or net_with()
    with pytest.raises(error, match=message) as caught:
        amp.suggest_policy(net, **arguments)
    assert len(re.findall(r"\.(?: |$)", str(caught.value))) == 1


COUNTER = itertools.count(1)
