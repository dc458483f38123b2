"""check: dimensions of float16 products that are no multiples of 8."""

import pytest

import gluon_amp as amp
from tests.casting.nets import Net
from tests.inspection.nets import built

import mxnet as mx
from mxnet import gluon, nd
from mxnet.gluon import nn

FLOAT16 = amp.Policy.parse("float16")


def sizes(net, *inputs):
    """Return block, problem and fix of each finding, all of them about dimensions."""
    findings = amp.check(net, None, *inputs)
    assert all(finding.kind == "dimension" for finding in findings)
    return [f"{f.block}: {f.problem.partition(', which')[0]}: {f.fix}" for f in findings]


@pytest.mark.parametrize(
    "layers, shape, expected",
    [
        (
            [nn.Dense(100), nn.Dense(16)],
            (8, 32),
            [
                "0: FullyConnected gives 100 outputs: make them 104",
                "1: FullyConnected reads 100 inputs: give the layer before 104 outputs, or pad the "
                "data with zeros",
            ],
        ),
        ([nn.Dense(8)], (30, 16), ["0: FullyConnected multiplies 30 rows: use a batch of 32"]),
        ([nn.Conv2D(8, 3)], (30, 8, 5, 5), []),  # the batch is one dimension of many
        (
            [
                nn.Conv2D(48, 3, groups=4),
                nn.Conv2D(48, 3, groups=48),  # depthwise
                nn.Conv2DTranspose(12, 3),
                nn.Conv2DTranspose(16, 3, groups=2, in_channels=12),
            ],
            (8, 32, 8, 8),
            [
                "0: Convolution gives 12 channels in each of 4 groups: make them 16",
                "2: Deconvolution gives 12 channels: make them 16",
                "3: Deconvolution reads 6 channels in each of 2 groups: make them 8",
            ],
        ),
        (
            [gluon.rnn.LSTM(20, input_size=10)],
            (5, 6, 10),
            [
                "0: RNN multiplies 6 rows: use a batch of 8",
                "0: RNN reads 10 inputs: give the layer before 16 outputs, or pad the data with "
                "zeros",
                "0: RNN has 20 units: make them 24, and use no label for the 4 others",
            ],
        ),
    ],
    ids=["hidden", "batch", "convolution", "groups", "recurrent"],
)
def test_layers(layers, shape, expected):
    net = built(*layers)
    assert sizes(net, nd.ones(shape)) == expected
    # Without inputs the shapes of the data are unknown.
    batch = [line for line in expected if " rows" in line or "RNN reads" in line]
    assert sizes(net) == [line for line in expected if line not in batch]


def test_the_rows_of_a_first_output_are_known_and_those_of_a_second_are_not():
    def parts(net, F, x):
        few, many = F.split_v2(net.all(x), (3,), axis=0)
        return F.concat(net.few(few), net.many(many), dim=0)

    net = Net(parts, all=nn.Dense(8), few=nn.Dense(8), many=nn.Dense(8))
    found = sizes(built(net), nd.ones((32, 16)))
    assert found == ["0.few: FullyConnected multiplies 3 rows: use a batch of 8"]


def product():
    return nn.HybridLambda(lambda F, x: (F.np if mx.util.is_np_array() else F).dot(x, x))


def test_a_product_without_tensor_cores(arrays):
    op, x = ("_np_dot" if arrays is mx.np else "dot"), arrays.ones((12, 12))
    (finding,) = amp.check(built(product()), None, x)
    assert (finding.kind, finding.block) == ("kernel", "0")
    assert finding.problem == f"{op} does not run on Tensor Cores, as its kernel is cublasSgemmEx"
    assert amp.check(built(product(), policy=FLOAT16.pin(ops=[op])), None, x) == []


def test_a_net_that_mxnet_cast_itself():
    net = built(nn.Dense(10, in_units=16), policy=None)
    net.cast("float16")
    # without inputs, since MXNet's CPU kernels cannot run it
    fix = "make them 16, and use no label for the 6 others"
    assert sizes(net) == [f"0: FullyConnected gives 10 outputs: {fix}"]
