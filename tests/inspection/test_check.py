"""check: the findings of a whole net, their order and their text; loss head and norms."""

import pytest

import gluon_amp as amp
from tests.inspection.nets import built

from mxnet import gluon, nd
from mxnet.gluon import nn


def test_the_text_of_findings():
    net = built(nn.Conv2D(64, 3), nn.BatchNorm(), nn.Flatten(), nn.Dense(1001))
    findings = amp.check(net, None, nd.ones((8, 3, 6, 6)))
    assert str(findings) == (
        "0: Convolution reads 3 channels, which is not a multiple of 8 for Tensor Cores:\n"
        "  pad images and weight with zeros to 8 channels, or leave it, as a first layer\n"
        "  is a small part of a deep net.\n"
        "3: FullyConnected gives 1001 outputs, which is not a multiple of 8 for Tensor\n"
        "  Cores: make them 1008, and use no label for the 7 others."
    )
    trainer = gluon.Trainer(net.collect_params(), "sgd", update_on_kvstore=True)
    assert [each.kind for each in amp.check(net, trainer)] == ["dimension", "dimension", "kvstore"]
    fine = amp.check(built(nn.Dense(8)), None, nd.ones((8, 8)))
    assert fine == [] and str(fine) == "nothing found"


def test_the_parts_of_a_plain_block():
    net = nn.Sequential()
    net.add(nn.Dense(12), nn.Dense(10))
    net.initialize()
    findings = amp.check(amp.cast(net), None, nd.ones((8, 16)))
    assert [finding.block for finding in findings] == ["0", "1", "1"]


def test_inputs_are_needed_once():
    net = built(nn.Dense(10))
    with pytest.raises(ValueError) as error:
        amp.check(net)
    assert str(error.value) == (
        "check() needs inputs, since HybridSequential net has never run: call "
        "check(net, trainer, x) with x as for net(x)."
    )
    with pytest.raises(TypeError, match="check.. got a NDArray as its trainer"):
        amp.check(net, nd.ones((30, 16)))
    net(nd.ones((30, 16)))
    # without inputs the batch is not known
    assert [finding.problem.split(",")[0] for finding in amp.check(net)] == [
        "FullyConnected gives 10 outputs"
    ]


def test_an_output_in_float16():
    net = built(nn.Dense(8), policy="params=float16,compute=float16,output=float16")
    for inputs in ([nd.ones((8, 8))], []):  # without inputs the policy shows it
        (finding,) = amp.check(net, None, *inputs)
        assert (finding.kind, finding.block) == ("loss_head", "")
        assert finding.fix.startswith("leave output=float16 out of the policy, or give the loss ")


def test_norm_layers_that_mxnet_cast_to_float16():
    net = built(nn.LayerNorm(in_channels=8), nn.BatchNorm(in_channels=8), policy=None)
    net.cast("float16")
    net.hybridize()
    findings = amp.check(net, None, nd.ones((8, 8), dtype="float16"))
    assert [(f.kind, f.block) for f in findings] == [("loss_head", ""), ("norm", "0")]
    assert str(findings[1]) == (
        "0: LayerNorm has float16 parameters, whose small updates are lost: use amp.cast\n"
        "  in place of net.cast('float16'), or block.cast('float32')."
    )
    net.cast("float32")
    assert amp.check(net, None, nd.ones((8, 8))) == []
