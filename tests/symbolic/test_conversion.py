"""What `convert` makes of a symbol."""

import pytest

import gluon_amp as amp
from gluon_amp.symbolic import convert, loss_head
from tests.symbolic.networks import conv_net, ops_of, types_of

import mxnet as mx


@pytest.mark.parametrize(
    "policy, computed, weights",
    [
        ("float16", "float16", "float16"),
        ("mixed_float16", "float16", "float32"),
        ("bfloat16", "bfloat16", "float32"),
    ],
)
def test_dtypes(policy, computed, weights):
    types = types_of(convert(conv_net(), policy), data="float32", softmax_label="float32")
    assert types["conv_output"] == types["fc_output"] == computed
    for name in ("conv_weight", "conv_bias", "fc_weight", "fc_bias"):
        assert types[name] == weights
    for name in ("gamma", "beta", "moving_mean", "moving_var"):
        assert types[f"stats_of_conv_{name}"] == "float32"
    assert types["data"] == types["softmax_label"] == types["softmax_output"] == "float32"


def test_it_keeps_the_interface_and_has_no_emulation():
    plain = conv_net()
    before = plain.tojson()
    cast = convert(plain)
    assert cast.list_arguments() == plain.list_arguments()
    assert cast.list_auxiliary_states() == plain.list_auxiliary_states()
    assert cast.list_outputs() == plain.list_outputs()  # the head is float32 itself
    assert plain.tojson() == before
    assert set(ops_of(cast)) - set(ops_of(plain)) == {"amp_cast"}
    assert loss_head.SCALE not in cast.list_arguments()
    assert ops_of(convert(plain, "float32")) == ops_of(plain)


def test_several_inputs_are_no_parameters():
    inputs = ("pixels", "parameters", "state", "cell")
    options = {"state_size": 4, "num_layers": 1, "mode": "lstm", "name": "lstm"}
    x = mx.sym.RNN(*map(mx.sym.var, inputs), **options)
    norm = mx.sym.LayerNorm(x, mx.sym.var("g"), mx.sym.var("b"), name="norm")
    cast = convert(norm, "float16", data_names=["pixels", "state", "cell"], label_names=[])
    types = types_of(cast, pixels="float32", state="float32", cell="float32")
    assert types["lstm_output"] == types["parameters"] == "float16"
    assert types["norm_output"] == types["g"] == types["b"] == types["state"] == "float32"


def test_pins_apply_to_the_names_of_nodes():
    policy = amp.Policy.parse("float16").pin(blocks=["^fc$"])
    types = types_of(convert(conv_net(), policy), data="float32", softmax_label="float32")
    assert types["fc_output"] == types["fc_weight"] == "float32"
    assert types["conv_output"] == "float16"


@pytest.mark.parametrize(
    "kwargs, match",
    [
        (
            {"data_names": ["dta"]},
            r"no input 'dta' \(did you mean 'data'\?\): pass data_names, pro",
        ),
        ({"data_names": "data"}, r"received the string 'data': \['data'\]"),
        ({"label_names": "x"}, r"received the string 'x': \['x'\]"),
        ({"policy": "float61"}, "Unknown policy 'float61'"),
        ({"policy": amp.Policy.parse("float16").pin(blocks=["no_such_layer"])}, "matches no block"),
        ({"policy": "params=float32,compute=float8_e4m3,output=float32"}, "MXNet has no kernels"),
    ],
)
def test_bad_input_is_refused(kwargs, match):
    with pytest.raises(ValueError, match=match):
        convert(conv_net(), **kwargs)


def test_prelu_gets_the_imperative_gradient():
    slope = mx.sym.var("slope", shape=(1,))
    hidden = mx.sym.LeakyReLU(mx.sym.var("data") * 1, slope, act_type="prelu")
    executor = convert(hidden * 2, "mixed_float16").simple_bind(mx.cpu(), data=(2, 2))
    executor.arg_dict["slope"][:] = 0.25
    executor.forward(is_train=True, data=mx.nd.array([[-1, 2], [-3, 4]]))
    executor.backward(mx.nd.ones((2, 2)))
    assert executor.grad_dict["slope"].asscalar() == -8
