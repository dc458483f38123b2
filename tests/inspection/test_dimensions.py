"""check: dimensions of float16 products that are no multiples of 8."""

import pytest

import gluon_amp as amp
from gluon_amp.inspection.dimensions import WITHOUT_TENSOR_CORES
from gluon_amp.inspection.findings import Finding
from gluon_amp.policy import Policy, op_table
from tests.inspection.nets import built

import mxnet as mx
from mxnet import gluon, nd
from mxnet.gluon import nn


def sizes(net, *inputs):
    """Return block, problem and fix of each finding, all of them about dimensions."""
    findings = amp.check(net, None, *inputs)
    assert all(finding.kind == "dimension" for finding in findings)
    return [(f.block, f.problem.partition(", which")[0], f.fix) for f in findings]


FIRST_LAYER = (
    "pad images and weight with zeros to 8 channels, or leave it, as a first layer is a small part "
    "of a deep net"
)
NETS = {
    "images and a head": (
        lambda: [nn.Conv2D(64, 3), nn.Flatten(), nn.Dense(1001)],
        (8, 3, 6, 6),
        [
            ("0", "Convolution reads 3 channels", FIRST_LAYER),
            (
                "2",
                "FullyConnected gives 1001 outputs",
                "make them 1008, and use no label for the 7 others",
            ),
        ],
    ),
    "multiples of 8": (
        lambda: [nn.Conv2D(16, 3), nn.Flatten(), nn.Dense(24), nn.Dense(8)],
        (16, 8, 4, 4),
        [],
    ),
    "a hidden layer and its reader": (
        lambda: [nn.Dense(100), nn.Dense(16)],
        (8, 32),
        [
            ("0", "FullyConnected gives 100 outputs", "make them 104"),
            (
                "1",
                "FullyConnected reads 100 inputs",
                "make the layer before give 104, or pad the data with zeros",
            ),
        ],
    ),
    "the batch of a dense layer": (
        lambda: [nn.Dense(8)],
        (30, 16),
        [("0", "FullyConnected multiplies 30 rows", "use a batch of 32")],
    ),
    "the batch of a convolution": (lambda: [nn.Conv2D(8, 3)], (30, 8, 5, 5), []),
    "groups": (
        lambda: [
            nn.Conv2D(48, 3, groups=4),
            nn.Conv2D(48, 3, groups=48),  # depthwise
            nn.Conv2DTranspose(12, 3),
            nn.Conv2DTranspose(16, 3, groups=2, in_channels=12),
        ],
        (8, 32, 8, 8),
        [
            ("0", "Convolution gives 12 channels in each of 4 groups", "make them 16"),
            ("2", "Deconvolution gives 12 channels", "make them 16"),
            ("3", "Deconvolution reads 6 channels in each of 2 groups", "make them 8"),
        ],
    ),
}


@pytest.mark.parametrize("name", NETS)
def test_layers(name):
    layers, shape, expected = NETS[name]
    assert sizes(built(*layers()), nd.ones(shape)) == expected


def test_a_recurrent_layer():
    net = gluon.rnn.LSTM(20, input_size=10)
    net.initialize()
    assert sizes(amp.cast(net), nd.ones((5, 6, 10))) == [
        ("", "RNN multiplies 6 rows", "use a batch of 8"),
        ("", "RNN reads 10 inputs", "make the layer before give 16, or pad the data with zeros"),
        ("", "RNN has 20 units", "make them 24, and use no label for the 4 others"),
    ]


class Product(gluon.HybridBlock):
    def __init__(self, name, **attributes):
        super().__init__()
        self.of = name, attributes

    def hybrid_forward(self, F, x):
        name, attributes = self.of
        return getattr(F.np if mx.util.is_np_array() else F, name)(x, x, **attributes)


def test_a_product_without_a_weight(arrays):
    name, op = ("matmul", "_npi_matmul") if arrays is mx.np else ("batch_dot", "batch_dot")
    attributes = {} if arrays is mx.np else {"transpose_b": True}
    net = built(
        Product(name, **attributes), policy=Policy.parse("float16").pin([op], dtype="float16")
    )
    shape = (8, 12, 12) if arrays is mx.np else (8, 12, 20)
    inner = 12 if arrays is mx.np else 20
    assert sizes(net, arrays.ones(shape)) == [
        ("0", f"{op} multiplies 12 rows", "pad them with zeros to 16"),
        ("0", f"{op} adds up {inner} products", f"pad them with zeros to {-(-inner // 8) * 8}"),
        ("0", f"{op} gives 12 columns", "pad them with zeros to 16"),
    ]


def test_a_product_without_tensor_cores(arrays):
    op, x = ("_np_dot" if arrays is mx.np else "dot"), arrays.ones((12, 12))
    assert amp.check(built(Product("dot")), None, x) == [
        Finding(
            "kernel",
            "0",
            f"{op} does not run on Tensor Cores, as its kernel is cublasSgemmEx",
            "use FullyConnected for a product with a weight, or leave it where it is small",
        )
    ]
    pinned = amp.Policy.parse("float16").pin(ops=[op])
    assert amp.check(built(Product("dot"), policy=pinned), None, x) == []


def test_the_operators_without_tensor_cores_are_those_of_the_table():
    groups = (group for group in op_table.GROUPS if "not on Tensor Cores" in group[1])
    table = {name for _, _, names in groups for name in names.split()}
    assert table == {*WITHOUT_TENSOR_CORES}


def test_shapes_that_only_the_data_would_show():
    class Sequences(gluon.Block):
        def __init__(self):
            super().__init__()
            self.rnn = gluon.rnn.GRU(12, input_size=8)
            self.products = Product("batch_dot")

        def forward(self, x):
            return self.products(self.rnn(x))

    net = Sequences()
    net.initialize()
    units = ("rnn", "RNN has 12 units", "make them 16, and use no label for the 4 others")
    assert sizes(amp.cast(net), nd.ones((5, 12, 8))) == [units]


def test_what_does_not_run_in_float16_is_left_alone():
    pinned = amp.Policy.parse("float16").pin(blocks=["^0"])
    findings = sizes(built(nn.Dense(3), nn.Dense(3), policy=pinned), nd.ones((7, 5)))
    assert {block for block, *_ in findings} == {"1"}
    assert sizes(built(nn.Dense(3), policy="float32"), nd.ones((7, 5))) == []


def test_a_net_that_mxnet_cast_itself():
    net = built(nn.Dense(10, in_units=16), policy=None)
    net.cast("float16")
    # without inputs, since MXNet's CPU kernels cannot run it
    fix = "make them 16, and use no label for the 6 others"
    assert sizes(net) == [("0", "FullyConnected gives 10 outputs", fix)]
