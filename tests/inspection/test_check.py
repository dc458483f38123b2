"""check: each finding, with its place and its fix, and silence where nothing is wrong."""

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp.inspection.dimensions import WITHOUT_TENSOR_CORES
from gluon_amp.inspection.findings import Finding
from gluon_amp.policy import op_table
from tests import kinds

import mxnet as mx
from mxnet import gluon
from mxnet.gluon import nn

pytestmark = pytest.mark.usefixtures("arrays")  # Law 13


def built(*layers, policy="float16"):
    net = nn.HybridSequential()
    net.add(*layers)
    net.initialize(mx.init.Xavier())
    return amp.cast(net, policy)


def sizes(net, *inputs):
    """Return block, problem and fix of each finding, all of them about dimensions."""
    findings = amp.check(net, None, *inputs)
    assert all(finding.kind == "dimension" for finding in findings)
    return [
        (finding.block, finding.problem.partition(", which")[0], finding.fix)
        for finding in findings
    ]


# -------------------------------------------------------------------------------- dimensions


def test_the_images_and_the_head_of_a_network():
    net = built(
        nn.Conv2D(64, 3), nn.BatchNorm(), nn.Activation("relu"), nn.Flatten(), nn.Dense(1001)
    )
    findings = amp.check(net, None, kinds.ones((8, 3, 6, 6)))
    assert str(findings) == (
        "0: Convolution reads 3 channels, which is no multiple of 8 for Tensor Cores: pad\n"
        "  images and weight with zeros to 8 channels, or leave it, as a first layer is a\n"
        "  small part of a deep net.\n"
        "4: FullyConnected gives 1001 outputs, which is no multiple of 8 for Tensor\n"
        "  Cores: make them 1008, and use no label for the 7 others."
    )
    assert findings[1] == Finding(
        "dimension",
        "4",
        "FullyConnected gives 1001 outputs, which is no multiple of 8 for Tensor Cores",
        "make them 1008, and use no label for the 7 others",
    )


@pytest.mark.parametrize("policy", ["float16", "mixed_float16"])
def test_multiples_of_8_are_not_mentioned(policy):
    net = built(nn.Conv2D(16, 3), nn.Flatten(), nn.Dense(24), nn.Dense(8), policy=policy)
    findings = amp.check(net, None, kinds.ones((16, 8, 4, 4)))
    assert findings == [] and str(findings) == "nothing found"


def test_a_hidden_layer_and_its_reader():
    net = built(nn.Dense(100), nn.Dense(16))
    assert sizes(net, kinds.ones((8, 32))) == [
        ("0", "FullyConnected gives 100 outputs", "make them 104"),
        (
            "1",
            "FullyConnected reads 100 inputs",
            "make the layer before give 104, or pad the data with zeros",
        ),
    ]


def test_the_batch_of_a_dense_layer():
    net = built(nn.Dense(8), nn.Activation("relu"))
    assert sizes(net, kinds.ones((30, 16))) == [
        ("0", "FullyConnected multiplies 30 rows", "use a batch of 32")
    ]
    # the batch is one dimension of many in a convolution
    conv = built(nn.Conv2D(8, 3))
    assert sizes(conv, kinds.ones((30, 8, 5, 5))) == []


def test_groups_depthwise_and_transposed_convolutions():
    net = built(
        nn.Conv2D(48, 3, groups=4),
        nn.Conv2D(48, 3, groups=48),
        nn.Conv2DTranspose(12, 3),
        nn.Conv2DTranspose(16, 3, groups=2, in_channels=12),
    )
    assert sizes(net, kinds.ones((8, 32, 8, 8))) == [
        ("0", "Convolution gives 12 channels in each of 4 groups", "make them 16"),
        ("2", "Deconvolution gives 12 channels", "make them 16"),
        ("3", "Deconvolution reads 6 channels in each of 2 groups", "make them 8"),
    ]


def test_a_recurrent_layer():
    net = gluon.rnn.LSTM(20, input_size=10)
    net.initialize()
    assert sizes(amp.cast(net), kinds.ones((5, 6, 10))) == [
        ("", "RNN multiplies 6 rows", "use a batch of 8"),
        ("", "RNN reads 10 inputs", "make the layer before give 16, or pad the data with zeros"),
        ("", "RNN has 20 units", "make them 24, and use no label for the 4 others"),
    ]


class Products(gluon.HybridBlock):
    def __init__(self, name):
        super().__init__()
        self.name_of_op = name

    def hybrid_forward(self, F, x):
        return getattr(kinds.np_of(F), self.name_of_op)(x, x)


def test_shapes_that_only_the_data_would_show():
    class Sequences(gluon.Block):
        def __init__(self):
            super().__init__()
            self.rnn = gluon.rnn.GRU(12, input_size=8)
            self.products = built(Products("matmul" if mx.util.is_np_array() else "batch_dot"))

        def forward(self, x):
            return self.products(self.rnn(x))

    net = Sequences()
    net.initialize()
    units = ("rnn", "RNN has 12 units", "make them 16, and use no label for the 4 others")
    assert sizes(amp.cast(net), kinds.ones((5, 12, 8))) == [units]


def test_a_product_without_a_weight():
    name, op = ("matmul", "_npi_matmul") if mx.util.is_np_array() else ("batch_dot", "batch_dot")
    policy = amp.Policy.parse("float16").pin(ops=[op], dtype="float16")
    assert sizes(built(Products(name), policy=policy), kinds.ones((8, 12, 12))) == [
        ("0", f"{op} multiplies 12 rows", "pad them with zeros to 16"),
        ("0", f"{op} adds up 12 products", "pad them with zeros to 16"),
        ("0", f"{op} gives 12 columns", "pad them with zeros to 16"),
    ]


def test_a_product_without_tensor_cores():
    op = "_np_dot" if mx.util.is_np_array() else "dot"
    assert amp.check(built(Products("dot")), None, kinds.ones((12, 12))) == [
        Finding(
            "kernel",
            "0",
            f"{op} does not run on Tensor Cores, as its kernel is cublasSgemmEx",
            "use FullyConnected for a product with a weight, or leave it where it is small",
        )
    ]
    pinned = amp.Policy.parse("float16").pin(ops=[op])
    assert amp.check(built(Products("dot"), policy=pinned), None, kinds.ones((12, 12))) == []


def test_the_operators_without_tensor_cores_are_those_of_the_table():
    groups = (group for group in op_table.GROUPS if "not on Tensor Cores" in group[1])
    table = {name for _, _, names in groups for name in names.split()}
    assert table == {*WITHOUT_TENSOR_CORES}


def test_what_does_not_run_in_float16_is_left_alone():
    x = kinds.ones((7, 5))
    assert amp.check(built(nn.Dense(3), policy="float32"), None, x) == []
    pinned = amp.Policy.parse("float16").pin(blocks=["^0"])
    half_pinned = built(nn.Dense(3), nn.Dense(3), policy=pinned)
    assert {finding.block for finding in amp.check(half_pinned, None, x)} == {"1"}


def test_a_net_that_mxnet_cast_itself():
    net = nn.HybridSequential()
    net.add(nn.Dense(10, in_units=16))
    net.initialize()
    net.cast("float16")
    findings = amp.check(net)  # without inputs, since MXNet's CPU kernels cannot run it
    assert [(finding.kind, finding.block) for finding in findings] == [("dimension", "0")]
    assert findings[0].fix == "make them 16, and use no label for the 6 others"


def test_the_parts_of_a_plain_block():
    class Plain(gluon.Block):
        def __init__(self):
            super().__init__()
            with self.name_scope():
                self.first, self.second = nn.Dense(12), nn.Dense(10)

        def forward(self, x):
            return self.second(self.first(x))

    net = Plain()
    net.initialize()
    amp.cast(net)
    x = kinds.ones((8, 16))
    assert [finding.block for finding in amp.check(net, None, x)] == ["first", "second", "second"]


@kinds.only_nd  # MXNet's MobileNet does not run with arrays of mx.np
def test_a_net_from_the_model_zoo():
    net = gluon.model_zoo.vision.mobilenet_v2_0_25(classes=10)
    net.initialize(mx.init.Xavier())
    amp.cast(net)
    findings = sizes(net, kinds.ones((1, 3, 32, 32)))
    assert findings[0][:2] == ("features.0", "Convolution reads 3 channels")
    assert findings[-1] == (
        "output.0",
        "Convolution gives 10 channels",
        "make them 16, and use no label for the 6 others",
    )


def test_inputs_are_needed_once():
    net = built(nn.Dense(10))
    with pytest.raises(ValueError) as error:
        amp.check(net)
    assert str(error.value) == (
        "check() needs inputs, since HybridSequential net has never run: call "
        "check(net, trainer, x) with x as for net(x)."
    )
    net(kinds.ones((30, 16)))
    # without inputs the batch is not known
    assert [finding.problem.split(",")[0] for finding in amp.check(net)] == [
        "FullyConnected gives 10 outputs"
    ]


# ------------------------------------------------------------------------- loss head and norms


def test_an_output_in_float16():
    net = built(nn.Dense(8), policy="params=float16,compute=float16,output=float16")
    expected = [
        Finding(
            "loss_head",
            "",
            "its output is float16, in which a loss and its scale overflow past 65504",
            "leave output=float16 out of the policy, or give the loss out.astype('float32')",
        )
    ]
    assert amp.check(net, None, kinds.ones((8, 8))) == expected
    assert amp.check(net) == expected  # without inputs the policy shows it
    assert amp.check(built(nn.Dense(8)), None, kinds.ones((8, 8))) == []


class PlainLinear(gluon.Block):
    def __init__(self):
        super().__init__()
        self.weight = self.params.get("weight", shape=(4, 8))

    def forward(self, x):
        return x * self.weight.data().as_nd_ndarray().sum().asscalar()


def test_parameters_that_python_code_uses():
    net = nn.Sequential()
    net.add(nn.Dense(8, in_units=8), PlainLinear())
    net.initialize()
    assert not amp.check(net)
    name = net[1].weight.name
    with pytest.warns(UserWarning, match=f"The cast leaves out {name}, which Python code"):
        amp.cast(net, "float16")
    assert net[1].weight.data().dtype == np.float32
    (finding,) = amp.check(net, None, kinds.ones((8, 8)))
    assert (finding.kind, finding.block) == ("outside", "1")
    assert name in finding.problem
    *_, row = amp.describe(net).rows
    assert (row.block, row.op, row.param_dtypes) == ("1", "(Python code)", {name: "float32"})
    assert "outside the cast" in row.reason


def test_norm_layers_that_mxnet_cast_to_float16():
    net = nn.HybridSequential()
    net.add(nn.LayerNorm(in_channels=8), nn.BatchNorm(in_channels=8))
    net.initialize()
    net.cast("float16")
    net.hybridize()
    findings = amp.check(net, None, kinds.ones((8, 8), dtype="float16"))
    assert [(finding.kind, finding.block) for finding in findings] == [
        ("loss_head", ""),
        ("norm", "0"),
    ]
    assert str(findings[1]) == (
        "0: LayerNorm has float16 parameters, whose small updates are lost: use amp.cast\n"
        "  in place of net.cast('float16'), or block.cast('float32')."
    )
    net.cast("float32")
    assert amp.check(net, None, kinds.ones((8, 8))) == []


# ------------------------------------------------------------------------------- the trainer


def of_trainer(net, trainer):
    return [
        (finding.kind, finding.problem, finding.fix)
        for finding in amp.check(net, trainer, kinds.ones((8, 8)))
    ]


def test_an_epsilon_that_float16_does_not_have():
    net = built(nn.Dense(8))
    net(kinds.ones((8, 8)))
    assert of_trainer(net, gluon.Trainer(net.collect_params(), "adam")) == [
        (
            "epsilon",
            "Adam's epsilon 1e-08 is 0 in float16, so the update divides by 0",
            "use amp.Trainer, which updates float32 masters, or multi_precision=True",
        )
    ]


@pytest.mark.parametrize(
    "policy, optimizer, options",
    [
        ("float16", "adam", {"multi_precision": True}),
        ("float16", "adam", {"epsilon": 1e-4}),
        ("float16", "sgd", {}),
        ("mixed_float16", "adam", {}),  # its parameters are float32
    ],
)
def test_an_epsilon_that_is_fine(policy, optimizer, options):
    net = built(nn.Dense(8), policy=policy)
    net(kinds.ones((8, 8)))
    assert of_trainer(net, gluon.Trainer(net.collect_params(), optimizer, options)) == []


def test_our_own_trainer_is_fine():
    net = built(nn.Dense(8))
    net(kinds.ones((8, 8)))
    assert of_trainer(net, amp.Trainer(net.collect_params(), "adam")) == []


def test_updates_on_the_kvstore():
    net = built(nn.Dense(8))
    net(kinds.ones((8, 8)))
    expected = [
        (
            "kvstore",
            "the trainer updates on the kvstore, before an overflow can be seen",
            "use amp.Trainer, or gluon.Trainer(..., update_on_kvstore=False)",
        )
    ]

    def trainer(**options):
        return gluon.Trainer(net.collect_params(), "sgd", **options)

    assert of_trainer(net, trainer(update_on_kvstore=True)) == expected
    assert of_trainer(net, trainer(kvstore="dist_sync")) == expected
    assert of_trainer(net, trainer(kvstore="dist_sync", update_on_kvstore=False)) == []
    assert of_trainer(net, trainer()) == []


def test_the_default_of_several_devices_is_the_kvstore(monkeypatch):
    net = nn.HybridSequential()
    net.add(nn.Dense(8, in_units=8))
    net.initialize(ctx=[mx.cpu(0), mx.cpu(1)])
    amp.cast(net)
    trainer = gluon.Trainer(net.collect_params(), "sgd")
    assert [finding[0] for finding in of_trainer(net, trainer)] == ["kvstore"]
    monkeypatch.setenv("MXNET_UPDATE_ON_KVSTORE", "0")
    assert of_trainer(net, trainer) == []


def test_frozen_parameters():
    net = built(nn.Dense(8), nn.BatchNorm(), nn.Dense(8))
    net(kinds.ones((8, 8)))
    trainer = amp.Trainer(net.collect_params(), "sgd")
    assert of_trainer(net, trainer) == []  # running statistics are not meant
    for param in net[0].collect_params().values():
        param.grad_req = "null"
    names = f"{net[0].bias.name}, {net[0].weight.name}"
    assert of_trainer(net, trainer) == [
        (
            "frozen",
            f"the trainer holds {names} with grad_req='null', never updated",
            "set grad_req='write' to train them, or leave them out of the trainer",
        )
    ]


def test_parameters_that_the_trainer_does_not_hold():
    net = built(nn.Dense(8), nn.Dense(8))
    net(kinds.ones((8, 8)))
    names = list(net[0].collect_params()) + list(net[1].collect_params())
    few = amp.Trainer(net[0].collect_params(), "sgd")
    assert of_trainer(net, few) == [
        (
            "frozen",
            f"the trainer does not hold {names[2]}, {names[3]}, so they stay as they are",
            "give it net.collect_params(), or set grad_req='null' to freeze them on purpose",
        )
    ]
    single = amp.Trainer({names[0]: net[0].weight}, "sgd")
    assert of_trainer(net, single)[0][1] == (
        f"the trainer does not hold {names[1]}, {names[2]} and 1 more, so they stay as they are"
    )
