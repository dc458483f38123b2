"""What `convert` makes of a symbol."""

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp.base.dtypes import dtype_name
from gluon_amp.symbolic import convert, loss_head
from tests.symbolic.networks import conv_net, ops_of, types_of

import mxnet as mx


def test_convert_dtypes_under_float16():
    cast = convert(conv_net(), "float16")
    types = types_of(cast, data="float32", softmax_label="float32")
    assert types["conv_output"] == "float16"
    assert types["fc_output"] == "float16"
    assert types["softmax_output"] == "float32"
    for name in ("conv_weight", "conv_bias", "fc_weight", "fc_bias"):
        assert types[name] == "float16"
    for name in ("gamma", "beta", "moving_mean", "moving_var"):
        assert types[f"stats_of_conv_{name}"] == "float32"
    assert types["data"] == types["softmax_label"] == "float32"


def test_convert_dtypes_under_mixed_float16():
    cast = convert(conv_net(), "mixed_float16")
    types = types_of(cast, data="float32", softmax_label="float32")
    assert types["conv_output"] == types["fc_output"] == "float16"
    assert types["conv_weight"] == types["fc_weight"] == "float32"
    assert types["softmax_output"] == "float32"


def test_convert_dtypes_under_bfloat16():
    cast = convert(conv_net(), "bfloat16")
    types = types_of(cast, data="float32", softmax_label="float32")
    assert types["conv_output"] == types["fc_output"] == "bfloat16"
    assert types["conv_weight"] == types["softmax_output"] == "float32"


def test_convert_has_no_emulation_in_it():
    assert set(ops_of(convert(conv_net(), "float16"))) - set(ops_of(conv_net())) == {"amp_cast"}
    assert loss_head.SCALE not in convert(conv_net(), "float16").list_arguments()


def test_convert_keeps_the_interface():
    plain = conv_net()
    before = plain.tojson()
    cast = convert(plain, "float16")
    assert cast.list_arguments() == plain.list_arguments()
    assert cast.list_auxiliary_states() == plain.list_auxiliary_states()
    assert cast.list_outputs() == plain.list_outputs()  # the head is float32 itself
    assert plain.tojson() == before


def test_convert_allocates_float16_weights():
    executor = convert(conv_net(), "float16").simple_bind(
        mx.cpu(), data=(2, 1, 8, 8), softmax_label=(2,)
    )
    assert executor.arg_dict["conv_weight"].dtype == np.float16
    assert executor.arg_dict["stats_of_conv_gamma"].dtype == np.float32
    assert executor.aux_dict["stats_of_conv_moving_var"].dtype == np.float32
    assert executor.arg_dict["data"].dtype == np.float32


def test_convert_runs_recurrent_layers_in_float16():
    x = mx.sym.RNN(
        mx.sym.var("data"),
        mx.sym.var("parameters"),
        mx.sym.var("state"),
        mx.sym.var("cell"),
        state_size=4,
        num_layers=1,
        mode="lstm",
        name="lstm",
    )
    norm = mx.sym.LayerNorm(x, mx.sym.var("g"), mx.sym.var("b"), name="norm")
    soft = mx.sym.softmax(norm, name="soft")
    cast = convert(soft, "float16", data_names=["data", "state", "cell"])
    types = types_of(cast, data="float32", state="float32", cell="float32")
    assert types["lstm_output"] == types["parameters"] == "float16"
    assert types["norm_output"] == types["soft_output"] == "float32"
    assert types["g"] == types["b"] == "float32"


def test_convert_of_several_outputs():
    x = mx.sym.var("data")
    features = mx.sym.FullyConnected(x, num_hidden=3, name="features")
    scores = mx.sym.softmax(mx.sym.FullyConnected(features, num_hidden=2, name="fc"))
    cast = convert(mx.sym.Group([scores, features, mx.sym.BlockGrad(x)]), "float16")
    _, dtypes, _ = cast.infer_type(data="float32")
    assert [dtype_name(dtype) for dtype in dtypes] == ["float32"] * 3
    assert len(cast.list_outputs()) == 3


def test_convert_of_a_loaded_symbol(tmp_path):
    path = str(tmp_path / "net.json")
    conv_net().save(path)
    loaded = convert(mx.sym.load(path), "float16")
    types = types_of(loaded, data="float32", softmax_label="float32")
    assert types["conv_output"] == types["fc_weight"] == "float16"
    assert types["stats_of_conv_moving_mean"] == types["softmax_output"] == "float32"


def test_convert_to_float32_changes_nothing():
    symbol = conv_net()
    assert ops_of(convert(symbol, "float32")) == ops_of(symbol)


def test_convert_accepts_other_names_and_none():
    x = mx.sym.var("pixels")
    fc = mx.sym.FullyConnected(x, num_hidden=2, name="fc")
    cast = convert(fc, "float16", data_names=["pixels"], label_names=[])
    types = types_of(cast, pixels="float32")
    assert types["fc_weight"] == "float16"
    assert types["pixels"] == "float32"


def test_convert_accepts_pins():
    policy = amp.Policy.parse("float16").pin(blocks=["^fc$"])
    types = types_of(convert(conv_net(), policy), data="float32", softmax_label="float32")
    assert types["fc_output"] == types["fc_weight"] == "float32"
    assert types["conv_output"] == "float16"


def test_convert_refuses_an_unknown_data_name():
    with pytest.raises(ValueError, match=r"no input 'dta' \(did you mean 'data'\?\): pass data"):
        convert(conv_net(), "float16", data_names=["dta"])


def test_convert_refuses_a_string_of_names():
    with pytest.raises(ValueError, match=r"received the string 'data': \['data'\]"):
        convert(conv_net(), "float16", data_names="data")


def test_convert_refuses_an_unknown_policy():
    with pytest.raises(ValueError, match="Unknown policy 'float61'"):
        convert(conv_net(), "float61")


def test_convert_refuses_a_pin_that_matches_nothing():
    with pytest.raises(ValueError, match="matches no block"):
        convert(conv_net(), amp.Policy.parse("float16").pin(blocks=["no_such_layer"]))


@pytest.mark.parametrize("policy", ["mixed_float16", "bfloat16"])
def test_convert_gives_prelu_the_imperative_gradient(policy):
    hidden = mx.sym.var("data") * 1
    slope = mx.sym.var("slope", shape=(1,))
    cast = convert(mx.sym.LeakyReLU(hidden, slope, act_type="prelu") * 2, policy)
    assert cast.list_arguments() == ["data", "slope"]
    executor = cast.simple_bind(mx.cpu(), data=(2, 2))
    executor.arg_dict["slope"][:] = 0.25
    executor.forward(is_train=True, data=mx.nd.array([[-1, 2], [-3, 4]]))
    executor.backward(mx.nd.ones((2, 2)))
    assert executor.grad_dict["slope"].asscalar() == -8


def test_convert_runs_prelu_in_float16():
    hidden = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2, name="fc")
    hidden = mx.sym.LeakyReLU(hidden, mx.sym.var("slope"), act_type="prelu", name="prelu")
    assert types_of(convert(hidden), data="float32")["prelu_output"] == "float16"
