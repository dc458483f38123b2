"""The description of a net: its rows and its table."""

import pytest

import gluon_amp as amp
from tests import kinds
from tests.casting.nets import images, small_net

import mxnet as mx
from mxnet.gluon import nn

both_kinds = pytest.mark.usefixtures("arrays")  # Law 13


@both_kinds
def test_describe_as_a_table():
    policy = amp.Policy.parse("float16").pin(blocks=["^5$"])
    text = str(amp.describe(amp.cast(small_net(), policy), images()))
    lines = text.splitlines()
    assert lines[0].split() == ["block", "op", "computes", "in", "parameters", "because"]
    assert lines[2].split() == ["0", "Convolution", "float16", "2×float16"]
    assert lines[3].split() == ["1", "BatchNorm", "float32", "4×float32", "[1]"]
    assert lines[-3] == f"[1] {policy.why('BatchNorm')}"
    assert lines[-2].startswith("[2] ")
    assert lines[-2].endswith("pinned to float32 by the policy's own pin")
    assert lines[-1] == "6 operators: 4 in float16 (emulated), 2 in float32"


def test_describe_fits_80_columns():
    net = mx.gluon.model_zoo.vision.resnet50_v1()
    net.initialize()
    policy = amp.Policy.parse("float16").pin(ops=["Pooling"])
    text = str(amp.describe(amp.cast(net, policy), kinds.ones((1, 3, 32, 32))))
    assert max(map(len, text.splitlines())) <= 80
    assert text.count(policy.why("BatchNorm")) == 1


@both_kinds
def test_describe_without_inputs():
    net = amp.cast(small_net(), "float16")
    with pytest.raises(ValueError, match="describe\\(\\) needs inputs"):
        amp.describe(net)
    net(images())
    assert len(amp.describe(net).rows) == 6


@both_kinds
def test_describe_of_a_net_that_is_not_cast():
    rows = amp.describe(small_net(), images()).rows
    assert {row.compute_dtype for row in rows} == {"float32"}
    assert {row.reason for row in rows} == {""}


@pytest.mark.filterwarnings("ignore:Block")
def test_a_block_that_runs_as_python_code_has_a_row_with_the_reason():
    net = nn.HybridSequential()
    net.add(nn.Dense(4, in_units=3), nn.HybridLambda(lambda F, x: x.reshape((x.shape[0], 4))))
    net.initialize()
    description = amp.describe(amp.cast(net, "float16"), mx.nd.ones((2, 3)))
    assert [(row.block, row.op, row.compute_dtype) for row in description.rows] == [
        ("", "(Python code)", "float32"),
        ("0", "FullyConnected", "float16"),
        ("1", "(Python code)", "float32"),
    ]
    assert description.rows[2].reason.endswith("has no attribute 'shape'")
    assert description.rows[0].reason.startswith("block '1' inside it cannot be traced")
    assert "[2] cannot be traced" in str(description)
