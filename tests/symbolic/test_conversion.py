"""What `convert` makes of a symbol."""

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp.symbolic import convert, loss_head
from tests.marks import needs_bfloat16
from tests.symbolic.networks import conv_net, ops_of, types_of

import mxnet as mx


@pytest.mark.parametrize("policy, computed, weights", [
    ("float16", "float16", "float16"),
    ("mixed_float16", "float16", "float32"),
    ("bfloat16", "bfloat16", "float32"),
])  # fmt: skip
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


@pytest.mark.parametrize("kwargs, match", [
    ({"data_names": ["dta"]}, r"no input 'dta' \(did you mean 'data'\?\): pass data_names, pro"),
    ({"data_names": "data"}, r"received the string 'data': \['data'\]"),
    ({"label_names": "x"}, r"received the string 'x': \['x'\]"),
    ({"policy": "float61"}, "Unknown policy 'float61'"),
    ({"policy": amp.Policy.parse("float16").pin(blocks=["no_such_layer"])}, "matches no block"),
    ({"policy": "params=float32,compute=float8_e4m3,output=float32"}, "MXNet has no kernels"),
])  # fmt: skip
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


OUTPUT_IN_FLOAT16 = "params=float32,compute=float16,output=float16"
DATA = mx.sym.var("data")
DENSE = mx.sym.FullyConnected(DATA, num_hidden=4, name="fc")
FIRST, SECOND = mx.sym.split(DENSE, num_outputs=2, name="split")


def rnn(mode, layers=1, bidirectional=False, name="rnn", **options):
    states = [mx.sym.zeros((layers * (1 + bidirectional), 2, 5))] * (2 if mode == "lstm" else 1)
    options.update(num_layers=layers, bidirectional=bidirectional, state_size=5, name=name)
    return mx.sym.RNN(DATA, mx.sym.var("weight"), *states, mode=mode, **options)


@pytest.mark.parametrize("symbol", [
    DENSE,
    DENSE.get_internals(),  # variables among the outputs
    SECOND,
    mx.sym.Group([SECOND, mx.sym.SoftmaxOutput(DENSE, name="softmax"), SECOND, DENSE, FIRST]),
    mx.sym.Activation(DENSE, act_type="relu", name="relu"),
    mx.sym.BatchNorm(DENSE, output_mean_var=True, name="norm"),
    mx.sym.LeakyReLU(DENSE, mx.sym.var("slope"), act_type="prelu", name="prelu"),
    mx.sym.topk(DENSE, k=2, ret_typ="both", dtype="int32", name="best"),
    rnn("lstm", state_outputs=True),
])  # fmt: skip
def test_outputs_keep_their_names(symbol):
    for policy in ("float16", "mixed_float16", "bfloat16", "fused_float32", OUTPUT_IN_FLOAT16):
        cast = convert(symbol, policy)
        assert cast.list_outputs() == symbol.list_outputs()
        assert mx.sym.load_json(cast.tojson()).list_outputs() == symbol.list_outputs()
        assert cast.list_arguments() == symbol.list_arguments()


def test_an_output_is_found_by_its_name():
    types = types_of(convert(mx.sym.Group([DENSE, SECOND]), "mixed_float16"), data="float32")
    assert types["fc_output"] == types["split_output1"] == "float32"
    assert types["fc_uncast_output"] == "float16"


def values_and_gradients(symbol, shape):
    """Return outputs and gradients for random arguments and head gradients."""
    executor, rng = symbol.simple_bind(mx.cpu(), data=shape), np.random.RandomState(0)
    for name in sorted(executor.arg_dict):
        executor.arg_dict[name][:] = rng.randn(*executor.arg_dict[name].shape)
    outputs = [output.copy() for output in executor.forward(is_train=True)]
    executor.backward([mx.nd.array(rng.randn(*output.shape)) for output in outputs])
    return [array.asnumpy() for array in [*outputs, *executor.grad_arrays]]


@pytest.mark.cpu_kind
@needs_bfloat16
@pytest.mark.parametrize("symbol, shape", [
    *((rnn(mode), (3, 2, 4)) for mode in ("lstm", "gru", "rnn_tanh", "rnn_relu")),
    *((rnn(mode, 2, True), (3, 2, 4)) for mode in ("lstm", "rnn_relu")),
    (mx.sym.FullyConnected(rnn("gru"), num_hidden=3, flatten=False), (3, 2, 4)),
    (mx.sym.Deconvolution(DATA, kernel=(4, 4), stride=(2, 2), num_filter=2), (2, 3, 5, 5)),
    (mx.sym.Group([SECOND, DENSE, FIRST]), (2, 3)),
])  # fmt: skip
def test_a_converted_symbol_runs_in_bfloat16(symbol, shape):
    expected = values_and_gradients(symbol, shape)
    for one, other in zip(values_and_gradients(convert(symbol, "bfloat16"), shape), expected):
        np.testing.assert_allclose(one, other, atol=2.0**-5 * abs(other).max())
