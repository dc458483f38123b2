"""The description of a net: its rows and its table."""

import pytest

import gluon_amp as amp
from tests.casting.nets import small_net
from tests.inspection.nets import Recipe, built, images, unit

from mxnet import gluon, nd
from mxnet.gluon import nn


def test_describe_as_a_table():
    policy = amp.Policy.parse("float16").pin(blocks=["^5$"])
    net, x = amp.cast(small_net(), policy), nd.ones((2, 3, 8, 8))
    with pytest.raises(ValueError, match="describe\\(\\) needs inputs"):
        amp.describe(net)
    text = str(amp.describe(net, x))
    assert text == str(amp.describe(net))
    lines = text.splitlines()
    assert lines[0].split() == ["block", "op", "computes", "in", "parameters", "because"]
    assert lines[2].split() == ["0", "Convolution", "float16", "2×float16"]
    assert lines[3].split() == ["1", "BatchNorm", "float32", "4×float32", "[1]"]
    assert lines[-3] == f"[1] {policy.why('BatchNorm')}"
    assert lines[-2].startswith("[2] ")
    assert lines[-2].endswith("pinned to float32 by the policy's own pin")
    assert lines[-1] == "6 operators: 4 in float16 (emulated), 2 in float32"
    assert max(map(len, lines)) <= 80


def test_nets_that_are_not_cast_and_dtypes_for_study():
    rows = amp.describe(small_net(), nd.ones((2, 3, 8, 8))).rows
    assert {(row.compute_dtype, row.reason) for row in rows} == {("float32", "")}
    for dtype in ("float8_e4m3", "bfloat16"):
        layers = [unit(1) for _ in range(3)]  # the first and the last one stay wide
        studied = built(*layers, policy=f"compute={dtype},gradients=float8_e5m2")
        text = str(amp.describe(studied, nd.ones((1, 1))))
        assert f"1 in {dtype}, gradients float8_e5m2 (emulated, for study)" in text


@pytest.mark.filterwarnings("ignore:Block")
@pytest.mark.parametrize(
    "policy, own, dense", [("float16", "float32", "float16"), (None, "as fed", "float32")]
)
def test_a_block_that_runs_as_python_code_has_a_row_with_the_reason(policy, own, dense):
    layers = nn.Dense(4, in_units=3), nn.HybridLambda(lambda F, x: x.reshape((x.shape[0], 4)))
    description = amp.describe(built(*layers, policy=policy), nd.ones((2, 3)))
    assert [(row.block, row.op, row.compute_dtype) for row in description.rows] == [
        ("", "(Python code)", own),
        ("0", "FullyConnected", dense),
        ("1", "(Python code)", own),
    ]
    assert description.rows[2].reason.endswith("has no attribute 'shape'")
    assert description.rows[0].reason.startswith("block '1' inside it cannot be traced")
    assert "[2] cannot be traced" in str(description)


class PlainLinear(gluon.Block):
    def __init__(self):
        super().__init__()
        self.weight = self.params.get("weight", shape=(4, 8))

    def forward(self, x):
        return x * self.weight.data().sum().asscalar()


def test_parameters_that_python_code_uses_have_a_row():
    net = nn.Sequential()
    net.add(nn.Dense(8, in_units=8), PlainLinear())
    net.initialize()
    name = net[1].weight.name
    with pytest.warns(UserWarning, match=f"The cast leaves out {name}, which Python code"):
        amp.cast(net, "float16")
    *_, row = amp.describe(net, nd.ones((8, 8))).rows
    assert (row.block, row.op, row.compute_dtype) == ("1", "(Python code)", "as fed")
    assert row.param_dtypes == {name: "float32"} and "outside the cast" in row.reason


@pytest.mark.parametrize("hybridized", [False, True])
def test_a_net_in_float16_that_was_not_cast_shows_its_real_dtypes(hybridized):
    net = Recipe()
    if hybridized:
        net.hybridize()
    description = amp.describe(net, images())
    assert [
        (row.block, row.compute_dtype, {*row.param_dtypes.values()}) for row in description.rows
    ] == [
        ("", "none", set()),
        ("0", "float16", {"float16"}),
        ("1", "float32", {"float32"}),
        ("2", "float16", {"float16"}),
        ("", "none", set()),
    ]
    assert "emulated" not in str(description)
    nd.waitall()  # raises if an error was left


@pytest.mark.parametrize("cast", [None, "head", "back"])
def test_the_parts_of_a_plain_block_that_are_not_cast(cast):
    net = nn.Sequential()
    net.add(nn.Embedding(10, 4), gluon.rnn.LSTM(4), nn.Dense(2))
    net.initialize()
    if cast == "back":
        amp.cast(amp.cast(net, "float16"), "float32")
    if cast == "head":
        amp.cast(net[2], "float16")
    rows = amp.describe(net, nd.ones((3, 2))).rows
    found = {row.op: row.compute_dtype for row in rows}
    assert found["Embedding"] == found["RNN"] == "float32"
    assert found["FullyConnected"] == ("float16" if cast == "head" else "float32")
