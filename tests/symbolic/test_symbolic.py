"""Symbol and Module: what `convert` makes of a symbol, and how the twin of Module trains it."""

import json
import logging
import os
import socket
import subprocess
import sys

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp.dtypes import dtype_name
from gluon_amp.policy import graph
from gluon_amp.symbolic import BucketingModule, Module, convert, loss_head
from tests import ROOT

import mxnet as mx
from mxnet import gluon, nd
from mxnet.io import DataBatch, DataDesc, NDArrayIter

HALF = ("float16", "mixed_float16")
POLICIES = ("float32", *HALF, "bfloat16")


# ---------------------------------------------------------------------- networks and data


def conv_net(**head):
    """A convolution, a norm of an unusual name, a dense layer and the FAQ's head."""
    x = mx.sym.var("data")
    x = mx.sym.Convolution(x, kernel=(3, 3), num_filter=8, name="conv")
    x = mx.sym.BatchNorm(x, fix_gamma=False, name="stats_of_conv")
    x = mx.sym.Activation(x, act_type="relu")
    x = mx.sym.Pooling(x, kernel=(2, 2), stride=(2, 2), pool_type="max")
    x = mx.sym.FullyConnected(x, num_hidden=4, name="fc")
    return mx.sym.SoftmaxOutput(x, name="softmax", **head)


def images(count=64):
    """Noise with a bright square, whose place is the label."""
    rng = np.random.RandomState(1)
    label = rng.randint(0, 4, count)
    data = rng.randn(count, 1, 8, 8) * 0.5
    for k in range(4):
        data[label == k, :, k : k + 4, k : k + 4] += 1
    return data.astype("float32"), label.astype("float32")


def linear_net(hidden=1, head=mx.sym.LinearRegressionOutput, **attrs):
    x = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=hidden, no_bias=True, name="fc")
    return head(x, mx.sym.var("softmax_label"), name="head", **attrs)


def batch_of(data, label=None):
    return DataBatch([nd.array(data)], None if label is None else [nd.array(label)])


def linear_module(weight, data=(2, 2), label=(2, 1), sgd=(("learning_rate", 1.0),), **kwargs):
    """A module of one weight matrix, by default (1, 2), ready to train with given values."""
    symbol = kwargs.pop("symbol", None)
    symbol = linear_net(len(weight)) if symbol is None else symbol
    labels = kwargs.pop("label_names", ("softmax_label",))
    module = Module(symbol, label_names=labels, **kwargs)
    module.bind([("data", data)], [(labels[0], label)] if labels else None)
    module.init_params(arg_params={"fc_weight": nd.array(weight)}, aux_params={})
    module.init_optimizer(optimizer="sgd", optimizer_params={"rescale_grad": 1.0, **dict(sgd)})
    return module


def step(module, data, label=None, out_grads=None):
    module.forward(batch_of(data, label), is_train=True)
    module.backward(out_grads)
    module.update()
    return module.last_report


def train(module, data, label, batch=16, epochs=2, **fit):
    np.random.seed(3)
    mx.random.seed(3)
    settings = {
        "optimizer": "sgd",
        "optimizer_params": {"learning_rate": 0.1, "momentum": 0.9},
        "initializer": mx.init.Xavier(),
        **fit,
    }
    module.fit(NDArrayIter(data, label, batch), num_epoch=epochs, **settings)
    return module


def values(module):
    """All parameters and running statistics, as numpy arrays."""
    arg_params, aux_params = module.get_params()
    return {name: a.asnumpy() for name, a in {**arg_params, **aux_params}.items()}


def same(one, other):
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


def on_device(module, name="fc_weight"):
    return module.executors[0].arg_dict[name]


def types_of(symbol, **fed):
    """Dtype of every tensor that an operator of a graph returns, by the operator's name."""
    internals = symbol.get_internals()
    _, found, _ = internals.infer_type(**fed)
    return dict(zip(internals.list_outputs(), map(dtype_name, found)))


def ops_of(symbol):
    return [node["op"] for node in graph.to_json(symbol)["nodes"]]


# ---------------------------------------------------------------------- convert


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
    _, found, _ = cast.infer_type(data="float32")
    assert [dtype_name(dtype) for dtype in found] == ["float32"] * 3
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


def test_convert_takes_other_names_and_none():
    x = mx.sym.var("pixels")
    fc = mx.sym.FullyConnected(x, num_hidden=2, name="fc")
    cast = convert(fc, "float16", data_names=["pixels"], label_names=[])
    types = types_of(cast, pixels="float32")
    assert types["fc_weight"] == "float16"
    assert types["pixels"] == "float32"


def test_convert_takes_pins():
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


# ---------------------------------------------------------------------- how the scale enters


def scaled_gradient(symbol, x, scale, label=None, **head_grads):
    """Outputs of a graph with the scale in it, and the gradient of its variable `data`."""
    scaled, _ = loss_head.scale_gradients(symbol, amp.Policy(), {"softmax_label"})
    shapes = {"data": x.shape}
    if label is not None:
        shapes["softmax_label"] = label.shape
    reqs = dict.fromkeys(scaled.list_arguments(), "null")
    executor = scaled.simple_bind(mx.cpu(), grad_req={**reqs, "data": "write"}, **shapes)
    executor.arg_dict["data"][:] = x
    executor.arg_dict[loss_head.SCALE][:] = scale
    if label is not None:
        executor.arg_dict["softmax_label"][:] = label
    executor.forward(is_train=True)
    executor.backward(**head_grads)
    return executor.outputs[0].asnumpy(), executor.grad_dict["data"].asnumpy()


X = np.array([[0.5, -1.25, 3.0], [2.0, 0.0, -0.75]], "float32")
HEADS = {
    "SoftmaxOutput": (np.array([2.0, 0.0], "float32"), {"grad_scale": 3.0}),
    "LinearRegressionOutput": (X[::-1] * 2, {}),
    "LogisticRegressionOutput": (np.abs(X) / 4, {}),
    "MAERegressionOutput": (X[::-1] * 2, {"grad_scale": 0.3}),
    "SVMOutput": (np.array([2.0, 0.0], "float32"), {}),
}


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("scale", [1.0, 2.0**-3, 2.0**16])
def test_heads_give_the_scaled_gradient_exactly(name, scale):
    label, attrs = HEADS[name]
    head = getattr(mx.sym, name)(mx.sym.var("data"), mx.sym.var("softmax_label"), **attrs)
    plain = head.simple_bind(mx.cpu(), data=X.shape, softmax_label=label.shape)
    plain.forward(is_train=True, data=nd.array(X), softmax_label=nd.array(label))
    plain.backward()
    out, grad = scaled_gradient(head, X, scale, label)
    np.testing.assert_array_equal(out, plain.outputs[0].asnumpy())
    np.testing.assert_array_equal(grad, plain.grad_dict["data"].asnumpy() * np.float32(scale))


@pytest.mark.parametrize("name", ["MakeLoss", "make_loss"])
def test_a_made_loss_is_scaled(name):
    x = mx.sym.var("data")
    loss = getattr(mx.sym, name)(mx.sym.sum(x * x))
    out, grad = scaled_gradient(loss, np.array([3.0, -1.0], "float32"), 8.0)
    assert out.item() == 10
    np.testing.assert_array_equal(grad, [48, -16])


def test_values_pass_the_scale_bit_for_bit():
    x = np.array([np.inf, -np.inf, np.nan, -0.0, 0.0, 1e-45, -3e38, 1 / 3], "float32")
    loss = mx.sym.MakeLoss(mx.sym.var("data"), grad_scale=0.37)
    out, grad = scaled_gradient(loss, x, 2.0**16)
    np.testing.assert_array_equal(out.view("int32"), x.view("int32"))
    np.testing.assert_array_equal(grad, np.full(8, np.float32(0.37) * 2**16))


def test_masked_logits_stay_masked():
    x = np.array([[1.0, -np.inf, 1.0]], "float32")
    head = mx.sym.SoftmaxOutput(mx.sym.var("data"), mx.sym.var("softmax_label"))
    out, grad = scaled_gradient(head, x, 4.0, np.array([0.0], "float32"))
    np.testing.assert_array_equal(out, [[0.5, 0, 0.5]])
    np.testing.assert_array_equal(grad, [[-2, 0, 2]])


def test_outputs_of_heads_are_told_from_others():
    x = mx.sym.var("data")
    head = mx.sym.SoftmaxOutput(x, mx.sym.var("softmax_label"))
    asking = mx.sym.SoftmaxOutput(x, mx.sym.var("softmax_label"), out_grad=True)
    group = convert(mx.sym.Group([x * 2, head, asking, mx.sym.MakeLoss(x)]), "float16")
    _, inside = loss_head.scale_gradients(group, amp.Policy.parse("float16"), set())
    assert inside == {1, 3}


def test_a_graph_without_heads_gets_no_scale():
    scaled, inside = loss_head.scale_gradients(mx.sym.var("data") * 2, amp.Policy(), set())
    assert loss_head.SCALE not in scaled.list_arguments()
    assert inside == set()


@pytest.mark.parametrize("scale", [1.0, 256.0])
def test_module_scales_the_gradient_before_float16(scale):
    # d/dw of (w·x - y)²/2 with x = 1, w·x - y = 2**-26: below float16 without a scale
    module = linear_module([[2.0**-26]], (1, 1), (1, 1), loss_scale=scale, symbol=None)
    module.set_params({"fc_weight": nd.array([[0.0]])}, {})
    module.forward(batch_of([[1.0]], [[-(2.0**-26)]]), is_train=True)
    module.backward()
    grad = module.executors[0].grad_dict["fc_weight"]
    assert grad.dtype == np.float16
    assert grad.asnumpy().item() == (2.0**-18 if scale == 256 else 0)
    module.update()
    moved = module.get_params()[0]["fc_weight"].asscalar()
    assert moved == (-(2.0**-26) if scale == 256 else 0)


# ---------------------------------------------------------------------- Law 2: scale invariance


def exact_problem():
    """A problem in which no product needs more bits than float16 has."""
    rng = np.random.RandomState(5)
    data = rng.randint(-2, 3, (32, 4)) / 2
    label = data @ np.array([[1.0, -2.0, 0.5, 1.5]]).T
    return data.astype("float32"), label.astype("float32")


def run_steps(steps=8, symbol=None, rescale=1 / 32, policy="float16", **kwargs):
    data, label = exact_problem()
    module = linear_module(
        [[0.25, 0.5, -0.25, 0.125]],
        (32, 4),
        (32, 1),
        sgd={"learning_rate": 0.25, "momentum": 0.5, "rescale_grad": rescale},
        symbol=symbol,
        policy=policy,
        **kwargs,
    )
    for _ in range(steps):
        assert step(module, data, label).applied
    return values(module)


@pytest.mark.parametrize("policy", HALF)
def test_law_2_every_scale_gives_the_same_parameters(policy):
    unscaled = run_steps(policy=policy, loss_scale=None)
    growing = amp.DynamicLossScale(init_scale=1, growth_interval=2, max_scale=16)
    same(unscaled, run_steps(policy=policy, loss_scale=growing))
    assert growing.scale == 16
    for scale in (2.0, 64.0):
        same(unscaled, run_steps(policy=policy, loss_scale=scale))
        fixed = amp.DynamicLossScale(init_scale=scale, growth_interval=100)
        same(unscaled, run_steps(policy=policy, loss_scale=fixed))


@pytest.mark.parametrize("policy", HALF)
def test_the_faqs_static_recipe_is_right_by_hand(policy):
    # https://mxnet.apache.org/versions/1.9.1/api/faq/float16: grad_scale=128, rescale_grad=1/128
    by_hand = linear_net(grad_scale=128.0)
    recipe = {"symbol": by_hand, "rescale": 1 / 128 / 32, "policy": policy}
    unscaled = run_steps(policy=policy, loss_scale=None)
    same(unscaled, run_steps(**recipe, loss_scale=None))
    same(unscaled, run_steps(**recipe, loss_scale=2.0))  # on top of each other


@pytest.mark.parametrize("policy", ["float16", "float32"])
def test_the_faqs_symbol_itself_trains(policy):
    x = mx.sym.Cast(mx.sym.var("data"), dtype="float16")
    x = mx.sym.Flatten(x)
    x = mx.sym.FullyConnected(x, num_hidden=4, name="fc")
    x = mx.sym.Cast(x, dtype="float32")
    symbol = mx.sym.SoftmaxOutput(x, name="softmax", grad_scale=128.0)
    settings = {"learning_rate": 0.1, "momentum": 0.9, "rescale_grad": 1 / 128 / 16}
    module = Module(symbol, policy=policy, loss_scale=None)
    train(module, *images(), epochs=6, optimizer_params=settings)
    assert on_device(module).dtype == np.float16
    assert dict(module.score(NDArrayIter(*images(), 16), "acc"))["accuracy"] > 0.9


def test_conv_net_is_scale_invariant_under_float32():
    data, label = images()
    runs = [
        values(train(Module(conv_net(), policy="float32", loss_scale=s), data, label))
        for s in (None, 2.0**10, "dynamic")
    ]
    same(runs[0], runs[1])
    same(runs[0], runs[2])


# ---------------------------------------------------------------------- Laws 3 and 4: a skip


def overflowing(scale=2.0**10, **kwargs):
    """A weight of 1, whose gradient for x = 100, y = 0 is 10000 times the scale."""
    kwargs = {"loss_scale": amp.DynamicLossScale(init_scale=scale, growth_interval=2), **kwargs}
    return linear_module(
        [[1.0]], (1, 1), (1, 1), {"learning_rate": 1e-4, "momentum": 0.5}, **kwargs
    )


def test_law_3_one_overflow_is_one_skip_and_one_backoff():
    module = overflowing(scale=4.0)
    steps = [step(module, [[x]], [[0.0]]) for x in (1, 200, 1)]  # 200² · 4 > 65504
    assert [r.applied for r in steps] == [True, False, True]
    assert [r.loss_scale for r in steps] == [4, 4, 2]
    assert steps[1].next_loss_scale == 2
    assert steps[1].overflow == ("fc_weight",)
    assert [r.skipped_total for r in steps] == [0, 1, 1]
    assert module.loss_scale.scale == 2


@pytest.mark.parametrize("policy", HALF)
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "rmsprop"])
def test_law_4_a_skip_undoes_everything(policy, optimizer):
    data, label = images(16)
    with_bad, without = (
        Module(conv_net(), policy=policy, loss_scale=amp.DynamicLossScale(2.0**6)) for _ in range(2)
    )
    for module in (with_bad, without):
        train(module, data, label, epochs=1, optimizer=optimizer, optimizer_params={})
    before = values(with_bad)
    states = with_bad.trainer.state_dict()
    report = step(with_bad, data * 1e5, label)
    assert not report.applied
    same(before, values(with_bad))
    assert with_bad.trainer.state_dict()["counts"] == states["counts"]
    assert with_bad.optimizer.num_update == 1
    # the scale has changed, but by Law 2 nothing else
    with_bad.loss_scale.load_state_dict(without.loss_scale.state_dict())
    for module in (with_bad, without):
        assert step(module, data, label).applied
    same(values(with_bad), values(without))


def test_a_skip_keeps_statistics_that_were_set_before_it():
    data, label = images(16)
    module = train(Module(conv_net(), loss_scale=2.0**6), data, label, epochs=1)
    aux_params = {name: nd.ones(8) * 3 for name in module._aux_names}
    module.set_params(module.get_params()[0], aux_params)
    assert not step(module, data * 1e5, label).applied
    for name in aux_params:
        np.testing.assert_array_equal(values(module)[name], np.full(8, 3))


def test_a_skip_empties_accumulated_gradients():
    module = Module(linear_net(), loss_scale=amp.DynamicLossScale(4.0))
    module.bind([("data", (1, 1))], [("softmax_label", (1, 1))], grad_req="add")
    module.init_params(arg_params={"fc_weight": nd.array([[1.0]])}, aux_params={})
    module.init_optimizer(optimizer_params={"learning_rate": 1.0, "rescale_grad": 1.0})
    step(module, [[300.0]], [[0.0]])
    grad = module.executors[0].grad_dict["fc_weight"]
    assert not module.last_report.applied
    assert grad.asscalar() == 0
    for x in (1.0, 2.0):  # accumulates: 1 + 4, at scale 2
        module.forward(batch_of([[x]], [[0.0]]), is_train=True)
        module.backward()
    assert grad.asscalar() == 10
    module.update()
    assert module.get_params()[0]["fc_weight"].asscalar() == -4


def test_an_error_names_the_cause_at_the_floor():
    module = overflowing(2.0, loss_scale=amp.StaticLossScale(2), max_consecutive_skips=2)
    assert not step(module, [[1e4]], [[0.0]]).applied
    with pytest.raises(FloatingPointError, match="2 steps in a row overflowed .* of fc_weight"):
        step(module, [[1e4]], [[0.0]])


def test_no_scale_means_no_check():
    module = overflowing(loss_scale=None)
    assert step(module, [[300.0]], [[0.0]]).applied
    assert np.isinf(values(module)["fc_weight"]).all()


# ---------------------------------------------------------------------- fit, score, predict


@pytest.mark.parametrize("policy", POLICIES)
def test_fit_learns_under_every_policy(policy):
    data, label = images(128)
    module = Module(conv_net(), policy=policy, loss_scale="dynamic" if policy in HALF else None)
    if policy in HALF:
        module.loss_scale.scale = 2.0**8
    train(module, data, label, epochs=4)
    assert isinstance(module, mx.mod.Module)
    assert dict(module.score(NDArrayIter(data, label, 16), "acc"))["accuracy"] > 0.97
    out = module.predict(NDArrayIter(data, label, 16))
    assert out.dtype == np.float32
    assert out.shape == (128, 4)
    assert (out.asnumpy().argmax(1) == label).mean() > 0.97


def test_float32_policy_is_the_stock_module_bit_for_bit():
    data, label = images()
    ours = train(Module(conv_net(), policy="float32"), data, label, optimizer="amp_sgd")
    stock = train(mx.mod.Module(conv_net()), data, label, optimizer="amp_sgd")
    same(values(ours), values(stock))


def test_score_counts_every_sample_once_and_padding_never():
    data, label = images(22)
    module = train(Module(conv_net(), loss_scale=2.0**6), *images(64))
    metric = mx.metric.Accuracy()
    module.score(NDArrayIter(data, label, 8, last_batch_handle="discard"), metric)
    assert metric.num_inst == 16
    predicted = module.predict(NDArrayIter(data, label, 8))
    assert predicted.shape == (22, 4)


def test_fit_takes_initial_parameters_and_callbacks(tmp_path):
    data, label = images()
    seen = []
    start = {
        name: nd.array(np.full(shape, 0.1 + 1e-6))  # needs more bits than float16 has
        for name, shape in (("conv_weight", (8, 1, 3, 3)), ("fc_weight", (4, 72)))
    }
    module = Module(conv_net(), loss_scale=2.0**6)
    train(
        module,
        data,
        label,
        epochs=1,
        arg_params=start,
        aux_params={},
        allow_missing=True,
        eval_data=NDArrayIter(data, label, 16),
        optimizer_params={"learning_rate": 0.0},
        epoch_end_callback=lambda epoch, symbol, args, aux: seen.append((symbol, args)),
        batch_end_callback=mx.callback.Speedometer(16, 1),
    )
    symbol, args = seen[0]
    assert ops_of(symbol) == ops_of(conv_net())
    np.testing.assert_array_equal(args["fc_weight"].asnumpy(), start["fc_weight"].asnumpy())
    assert on_device(module).dtype == np.float16
    assert args["conv_bias"].dtype == np.float32


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_values_of_any_float_dtype_become_masters_and_weights(dtype):
    third = nd.array([[1 / 3, 1 / 7]], dtype=dtype)
    module = linear_module([[1.0, 2.0]])
    module.set_params({"fc_weight": third}, {})
    expected = third.astype("float32").asnumpy()
    np.testing.assert_array_equal(on_device(module).asnumpy(), expected.astype("float16"))
    np.testing.assert_array_equal(values(module)["fc_weight"], expected)
    module._params_dirty = True  # from the masters
    np.testing.assert_array_equal(values(module)["fc_weight"], expected)


def test_set_params_with_missing_ones_keeps_the_others():
    module = train(Module(conv_net(), loss_scale=2.0**6), *images(), epochs=1)
    before = values(module)
    new = nd.ones((4, 72)) / 3
    module.set_params({"fc_weight": new}, None, allow_missing=True)
    after = values(module)
    np.testing.assert_array_equal(after.pop("fc_weight"), new.asnumpy())
    before.pop("fc_weight")
    same(before, after)
    with pytest.raises(ValueError, match=r"no parameter 'fc_wight' \(did you mean 'fc_weight'"):
        module.set_params({"fc_wight": new}, None, allow_missing=True)
    module.set_params({"fc_wight": new}, None, allow_missing=True, allow_extra=True)


def test_weights_written_to_the_executor_are_followed():
    module = linear_module([[1.0, 2.0]], loss_scale=2.0)
    step(module, [[0.0, 0.0]] * 2, [[0.0]] * 2)
    on_device(module)[:] = nd.array([[5.0, 6.0]])
    np.testing.assert_array_equal(values(module)["fc_weight"], [[5, 6]])
    on_device(module)[:] = nd.array([[7.0, 6.0]])
    step(module, [[0.0, 0.0]] * 2, [[0.0]] * 2)
    np.testing.assert_array_equal(values(module)["fc_weight"], [[7, 6]])


def test_batches_may_change_their_size():
    module = linear_module([[1.0, 1.0]], loss_scale=8.0)
    for rows in (2, 5, 1, 2):
        report = step(module, np.zeros((rows, 2)), np.ones((rows, 1)))
        assert report.applied
        assert module.get_outputs()[0].shape == (rows, 1)
    # of x = 0, whatever the batch
    np.testing.assert_array_equal(values(module)["fc_weight"], [[1, 1]])
    step(module, [[1.0, 0.0]] * 4, [[0.0]] * 4)
    np.testing.assert_array_equal(values(module)["fc_weight"], [[-3, 1]])


def test_names_and_shapes_of_outputs_are_the_symbols():
    x = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3, name="fc")
    module = Module(mx.sym.Group([x, x * 2]), label_names=None)
    module.bind([("data", (2, 5))], for_training=False)
    names = ["fc_output", "_mulscalar0_output"]
    assert module.output_names[0] == names[0]
    assert [shape for _, shape in module.output_shapes] == [(2, 3)] * 2
    assert [name for name, _ in module.output_shapes] == module.output_names
    module.init_params()
    metric = mx.metric.MSE(output_names=["fc_output"], label_names=["label"])
    module._exec_group.label_names, module._exec_group.label_layouts = ["label"], [0]
    module.forward(DataBatch([nd.ones((2, 5))]), is_train=False)
    module.update_metric(metric, [nd.zeros((2, 3))])
    assert metric.num_inst == 1  # found by its name


def test_rebinding_keeps_training_state():
    data, label = images(16)
    rebound, straight = (Module(conv_net(), loss_scale=2.0**6) for _ in range(2))
    for module in (rebound, straight):
        train(module, data, label, epochs=1)
        step(module, data, label)
    shapes = [("data", data.shape)], [("softmax_label", label.shape)]
    rebound.bind(*shapes, for_training=False, force_rebind=True)
    same(values(rebound), values(straight))
    rebound.bind(*shapes, force_rebind=True)
    for module in (rebound, straight):
        step(module, data, label)
    same(values(rebound), values(straight))


def test_binding_twice_does_nothing(caplog):
    module = linear_module([[1.0, 2.0]])
    with caplog.at_level(logging.WARNING):
        module.bind([("data", (2, 2))], [("softmax_label", (2, 1))])
        module.init_optimizer()
    assert [r.message.split(",")[0] for r in caplog.records] == [
        "Already bound",
        "optimizer already initialized",
    ]
    with pytest.warns(UserWarning, match="already initialized"):
        module.init_params()
    np.testing.assert_array_equal(values(module)["fc_weight"], [[1, 2]])


def test_fixed_parameters_stay():
    module = Module(conv_net(), fixed_param_names=["fc_weight"], loss_scale=2.0**6)
    train(module, *images(), epochs=1)
    start = Module(conv_net(), fixed_param_names=["fc_weight"])
    train(start, *images(), epochs=0)
    np.testing.assert_array_equal(values(module)["fc_weight"], values(start)["fc_weight"])
    assert (values(module)["conv_weight"] != values(start)["conv_weight"]).any()


def test_grad_req_as_a_list():
    symbol = linear_net()  # data, fc_weight, softmax_label
    module = Module(symbol, loss_scale=4.0)
    module.bind([("data", (1, 1))], [("softmax_label", (1, 1))], grad_req=["null", "write", "null"])
    module.init_params(arg_params={"fc_weight": nd.array([[1.0]])}, aux_params={})
    module.init_optimizer(optimizer_params={"learning_rate": 1.0})
    assert step(module, [[1.0]], [[0.0]]).applied
    assert values(module)["fc_weight"].item() == 0


# ---------------------------------------------------------------------- gradients in and out


def plain_module(**kwargs):
    """y = w · x with w = (1, 2), no head; its gradients come from outside."""
    symbol = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=1, no_bias=True, name="fc")
    module = Module(symbol, label_names=None, **kwargs)
    module.bind([("data", (2, 2))], inputs_need_grad=True)
    module.init_params(arg_params={"fc_weight": nd.array([[1.0, 2.0]])}, aux_params={})
    module.init_optimizer(optimizer_params={"learning_rate": 1.0, "rescale_grad": 1.0})
    return module


@pytest.mark.parametrize("scale", [None, 2.0**12])
@pytest.mark.parametrize("as_list", [True, False])
def test_gradients_from_outside_are_scaled_and_input_gradients_are_true(scale, as_list):
    module = plain_module(loss_scale=scale)
    tiny = nd.array([[2.0**-25], [0.0]])  # below float16 without a scale
    report = step(module, [[1.0, 0.0], [0.0, 1.0]], None, [tiny] if as_list else tiny)
    assert report.applied
    expected = 2.0**-25 if scale else 0.0
    inputs = module.get_input_grads()[0].asnumpy()
    np.testing.assert_array_equal(inputs, [[expected, 2 * expected], [0, 0]])
    by_device = module.get_input_grads(merge_multi_context=False)[0][0].asnumpy()
    np.testing.assert_array_equal(by_device, inputs)
    weight = values(module)["fc_weight"]
    np.testing.assert_array_equal(weight, np.array([[1 - expected, 2]], "float32"))


def test_heads_and_other_outputs_in_one_symbol():
    # loss (w·x - 0)²/2 plus, from outside, 4 · w·x: gradient 3·x + 4·x
    x = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=1, no_bias=True, name="fc")
    head = mx.sym.LinearRegressionOutput(x, mx.sym.var("softmax_label"))
    module = linear_module(
        [[3.0]], (1, 1), (1, 1), symbol=mx.sym.Group([head, x]), loss_scale=2.0**8
    )
    step(module, [[1.0]], [[0.0]], [nd.array([[99.0]]), nd.array([[4.0]])])
    assert values(module)["fc_weight"].item() == 3 - (3 + 4)


class HalfDistance(mx.operator.CustomOp):
    """A loss that makes its own gradient: (x - label) / 2."""

    def forward(self, is_train, req, in_data, out_data, aux):
        self.assign(out_data[0], req[0], in_data[0])

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        self.assign(in_grad[0], req[0], (in_data[0] - in_data[1]) / 2)


@mx.operator.register("gluon_amp_test_half_distance")
class HalfDistanceProp(mx.operator.CustomOpProp):
    def __init__(self):
        super().__init__(need_top_grad=False)

    def list_arguments(self):
        return ["data", "label"]

    def infer_shape(self, in_shape):
        return [in_shape[0], in_shape[0]], [in_shape[0]], []

    def create_operator(self, ctx, shapes, dtypes):
        return HalfDistance()


def test_a_custom_operator_as_head():
    x = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=1, no_bias=True, name="fc")
    label = mx.sym.var("softmax_label")
    symbol = mx.sym.Custom(x, label, op_type="gluon_amp_test_half_distance", name="loss")
    module = linear_module([[4.0]], (1, 1), (1, 1), symbol=symbol, loss_scale=2.0**7)
    step(module, [[1.0]], [[1.0]])
    assert values(module)["fc_weight"].item() == 4 - 1.5
    gradient_of_x = [op for op in ops_of(module._exec_group.symbol) if op.endswith("sign_ste")]
    assert len(gradient_of_x) == 1  # the label gets none


class Double(mx.operator.CustomOp):
    """Not a loss: 2 · x, and the gradient that it is given is doubled too."""

    def forward(self, is_train, req, in_data, out_data, aux):
        self.assign(out_data[0], req[0], in_data[0] * 2)

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        self.assign(in_grad[0], req[0], out_grad[0] * 2)


@mx.operator.register("gluon_amp_test_double")
class DoubleProp(mx.operator.CustomOpProp):
    def create_operator(self, ctx, shapes, dtypes):
        return Double()


def test_a_custom_operator_that_passes_gradients_on():
    x = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=1, no_bias=True, name="fc")
    symbol = mx.sym.Custom(x, op_type="gluon_amp_test_double", name="twice")
    module = linear_module([[4.0]], (1, 1), None, symbol=symbol, label_names=(), loss_scale=2.0**7)
    step(module, [[1.0]], None, [nd.array([[0.25]])])
    assert values(module)["fc_weight"].item() == 4 - 0.5


def test_gradients_without_an_optimizer_are_true():
    module = Module(linear_net(), loss_scale=2.0**10)
    module.bind([("data", (1, 1))], [("softmax_label", (1, 1))])
    module.init_params(arg_params={"fc_weight": nd.array([[3.0]])}, aux_params={})
    module.forward(batch_of([[1.0]], [[1.0]]), is_train=True)
    module.backward()
    assert module.executors[0].grad_dict["fc_weight"].asscalar() == 2


# ---------------------------------------------------------------------- the optimizer


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_optimizers_are_ours_where_we_have_them(name):
    module = Module(conv_net(), loss_scale=2.0**6)
    train(module, *images(), epochs=1, optimizer=name, optimizer_params={})
    assert type(module.optimizer) is amp.optimizer.OPTIMIZERS[name]
    assert module.optimizer.rescale_grad == 1 / 16
    assert module._update_on_kvstore is False


def test_weight_decay_and_multipliers_are_the_modules():
    x = mx.sym.var("data")
    weight = mx.sym.var("fc_weight", lr_mult=0.5)
    x = mx.sym.FullyConnected(x, weight=weight, num_hidden=1, name="fc")
    symbol = mx.sym.LinearRegressionOutput(x, mx.sym.var("softmax_label"))
    results = []
    for kind in (Module, mx.mod.Module):
        module = kind(symbol, **({"policy": "float32"} if kind is Module else {}))
        module.bind([("data", (2, 1))], [("softmax_label", (2, 1))])
        start = {"fc_weight": nd.array([[1.0]]), "fc_bias": nd.array([1.0])}
        module.init_params(arg_params=start, aux_params={})
        module.init_optimizer(optimizer_params={"learning_rate": 0.1, "wd": 0.5})
        module.forward(batch_of([[1.0], [2.0]], [[0.0], [1.0]]), is_train=True)
        module.backward()
        module.update()
        results.append(values(module))
    np.testing.assert_allclose(results[0]["fc_weight"], results[1]["fc_weight"], rtol=1e-6)
    np.testing.assert_allclose(results[0]["fc_bias"], results[1]["fc_bias"], rtol=1e-6)
    # g = ((2 - 0)·1 + (3 - 1)·2) / 2 = 3 with half the rate, and the bias does not decay: g = 2
    np.testing.assert_allclose(results[0]["fc_weight"], 1 - 0.05 * (3 + 0.5), rtol=1e-6)
    np.testing.assert_allclose(results[0]["fc_bias"], 1 - 0.1 * 2, rtol=1e-6)


def test_a_rescale_grad_set_during_training_is_respected():
    module = linear_module([[4.0]], (1, 1), (1, 1), loss_scale=2.0**4)
    module.optimizer.rescale_grad = 0.5
    step(module, [[1.0]], [[0.0]])
    assert values(module)["fc_weight"].item() == 2
    assert module.optimizer.rescale_grad == 0.5  # without the loss scale


def test_an_optimizer_object():
    module = Module(linear_net(), loss_scale=2.0)
    module.bind([("data", (4, 1))], [("softmax_label", (4, 1))])
    module.init_params(arg_params={"fc_weight": nd.array([[1.0]])}, aux_params={})
    optimizer = amp.optimizer.SGD(learning_rate=1.0)
    with pytest.warns(UserWarning, match="rescale_grad 1, which is not .* 0.25; it is kept"):
        module.init_optimizer(optimizer=optimizer)
    step(module, [[1.0]] * 4, [[0.0]] * 4)
    assert values(module)["fc_weight"].item() == 1 - 4


def test_small_updates_reach_the_master():
    module = linear_module([[1.0]], (1, 1), (1, 1), {"learning_rate": 2.0**-14}, loss_scale=4.0)
    for _ in range(3):
        step(module, [[1.0]], [[0.0]])  # 1 - 2**-14 rounds to 1 in float16
    assert on_device(module).asscalar() == 1
    assert 1 - 3.1 * 2**-14 < values(module)["fc_weight"].item() < 1 - 2.9 * 2**-14


@pytest.mark.parametrize("kvstore", ["local", "device"])
def test_two_devices_are_one(kvstore):
    data, label = exact_problem()
    results = []
    for contexts in (mx.cpu(), [mx.cpu(0), mx.cpu(1)]):
        module = Module(linear_net(), context=contexts, loss_scale=2.0)
        module.bind([("data", (32, 4))], [("softmax_label", (32, 1))])
        module.init_params(arg_params={"fc_weight": nd.array([[0.25, 0.5, 1, -1]])}, aux_params={})
        module.init_optimizer(kvstore, optimizer_params={"learning_rate": 0.25, "momentum": 0.5})
        # one step, as the sums over halves of later batches need more bits than float16 has
        assert step(module, data, label).applied
        results.append(values(module))
        weights = [e.arg_dict["fc_weight"].asnumpy() for e in module.executors]
        assert all((weights[0] == weight).all() for weight in weights)
    same(*results)


def test_two_devices_skip_together():
    module = Module(linear_net(), context=[mx.cpu(0), mx.cpu(1)], loss_scale=4.0)
    module.bind([("data", (2, 1))], [("softmax_label", (2, 1))])
    module.init_params(arg_params={"fc_weight": nd.array([[1.0]])}, aux_params={})
    module.init_optimizer("device", optimizer_params={"learning_rate": 1.0})
    report = step(module, [[1.0], [300.0]], [[0.0], [0.0]])  # only the second one overflows
    assert not report.applied
    assert values(module)["fc_weight"].item() == 1


WORKER = """
import json, sys
import gluon_amp
from gluon_amp.symbolic import Module
import mxnet as mx
from mxnet import nd
from mxnet.io import DataBatch

x = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=1, no_bias=True, name="fc")
module = Module(mx.sym.LinearRegressionOutput(x, mx.sym.var("softmax_label")), loss_scale=8)
module.bind([("data", (1, 1))], [("softmax_label", (1, 1))])
first = sys.argv[1] == "0"
start = 1.0 if first else 5.0  # those of one worker count
module.init_params(arg_params={"fc_weight": nd.array([[start]])}, aux_params={})
module.init_optimizer("dist_sync", optimizer_params={"learning_rate": 0.5})
found = [module.get_params()[0]["fc_weight"].asscalar().item()]
for huge in (False, True):
    x = 300.0 if huge and first else 1.0  # only one worker has the overflow
    module.forward(DataBatch([nd.array([[x]])], [nd.zeros((1, 1))]), is_train=True)
    module.backward()
    module.update()
    found += [module.last_report.applied, module.get_params()[0]["fc_weight"].asscalar().item()]
with open(sys.argv[2], "w") as file:
    json.dump(found, file)
"""


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.mark.slow
def test_two_workers_step_and_skip_together(tmp_path):
    env = {
        **os.environ,
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(free_port()),
        "DMLC_NUM_SERVER": "1",
        "DMLC_NUM_WORKER": "2",
        "DMLC_INTERFACE": "lo",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
    }
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    results = [tmp_path / f"result{i}" for i in range(2)]
    # a server serves inside `import mxnet`, which needs gluon_amp's numpy aliases first
    commands = [("scheduler", ["-c", "import gluon_amp"]), ("server", ["-c", "import gluon_amp"])]
    commands += [("worker", [str(script), str(i), str(results[i])]) for i in range(2)]
    processes = [
        subprocess.Popen([sys.executable, *arguments], env={**env, "DMLC_ROLE": role})
        for role, arguments in commands
    ]
    try:
        for process in processes[2:]:
            assert process.wait(timeout=60) == 0
    finally:
        # a worker that fails leaves the others waiting for ever
        for process in processes:
            process.kill()
            process.wait()
    one, other = (json.loads(result.read_text()) for result in results)
    start = one[0]
    assert start in (1.0, 5.0)  # MXNet numbers workers as they arrive
    # the gradient of w²/2 is w on both, halved for two workers, at rate 0.5
    assert one == other == [start, True, start / 2, False, start / 2]


# ---------------------------------------------------------------------- checkpoints


def test_a_checkpoint_runs_in_stock_mxnet(tmp_path):
    data, label = images()
    prefix = str(tmp_path / "net")
    module = train(Module(conv_net(), loss_scale=2.0**6), data, label)
    module.save_checkpoint(prefix, 2)
    symbol, arg_params, aux_params = mx.model.load_checkpoint(prefix, 2)
    assert ops_of(symbol) == ops_of(conv_net())
    assert {a.dtype for a in [*arg_params.values(), *aux_params.values()]} == {np.float32}
    same(values(module), {k: v.asnumpy() for k, v in {**arg_params, **aux_params}.items()})

    stock = mx.mod.Module.load(prefix, 2)
    stock.bind([("data", data.shape)], [("softmax_label", label.shape)], for_training=False)
    in_float32 = Module.load(prefix, 2, policy="float32")
    in_float32.bind([("data", data.shape)], [("softmax_label", label.shape)], for_training=False)
    for one in (stock, in_float32):
        one.forward(batch_of(data, label), is_train=False)
    expected = stock.get_outputs()[0].asnumpy()
    np.testing.assert_array_equal(in_float32.get_outputs()[0].asnumpy(), expected)
    # float16 has 11 bits, and three roundings follow each other
    ours = module.predict(NDArrayIter(data, label, 16)).asnumpy()
    np.testing.assert_allclose(ours, expected, atol=2e-2)


def test_masters_are_what_is_saved(tmp_path):
    module = linear_module([[1.0]], (1, 1), (1, 1), {"learning_rate": 2.0**-14}, loss_scale=4.0)
    step(module, [[1.0]], [[0.0]])
    module.save_params(str(tmp_path / "p"))
    assert nd.load(str(tmp_path / "p"))["arg:fc_weight"].asscalar() == 1 - 2.0**-14
    module.set_params({"fc_weight": nd.zeros((1, 1))}, {})
    module.load_params(str(tmp_path / "p"))
    assert values(module)["fc_weight"].item() == 1 - 2.0**-14


@pytest.mark.parametrize("policy", HALF)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_law_5_resume_equals_uninterrupted(tmp_path, policy, optimizer):
    data, label = images()
    prefix = str(tmp_path / "net")
    fit = {"optimizer": optimizer, "optimizer_params": {"learning_rate": 0.05}}

    def scale():  # epochs of four steps; growth after three: the save is inside a window
        return amp.DynamicLossScale(init_scale=2.0**5, growth_interval=3, max_scale=2.0**8)

    straight = Module(conv_net(), policy=policy, loss_scale=scale())
    train(straight, data, label, epochs=3, **fit)
    first = Module(conv_net(), policy=policy, loss_scale=scale())
    save = mx.callback.module_checkpoint(first, prefix, 1, save_optimizer_states=True)
    train(first, data, label, epochs=1, epoch_end_callback=save, **fit)
    second = Module.load(prefix, 1, load_optimizer_states=True, policy=policy, loss_scale=scale())
    with pytest.warns(UserWarning, match="already initialized"):
        train(second, data, label, epochs=3, begin_epoch=1, **fit)
    same(values(second), values(straight))
    assert second.loss_scale.state_dict() == straight.loss_scale.state_dict()


def test_states_move_between_policies(tmp_path):
    data, label = images()
    prefix = str(tmp_path / "net")
    scale = {"loss_scale": 2.0**6}
    wide = train(Module(conv_net(), policy="mixed_float16", **scale), data, label, epochs=1)
    wide.save_checkpoint(prefix, 1, save_optimizer_states=True)
    module = Module.load(prefix, 1, load_optimizer_states=True, policy="float16", **scale)
    with pytest.warns(UserWarning, match="already initialized"):
        train(module, data, label, epochs=0)
    same(values(module), values(wide))
    held = {name: a.asnumpy() for name, a in module.trainer.master_params().items()}
    same(held, values(wide))
    step(module, data[:16], label[:16])
    assert not np.array_equal(values(module)["fc_weight"], values(wide)["fc_weight"])


def test_states_leave_the_parameters_alone(tmp_path):
    module = linear_module([[1.0]], (1, 1), (1, 1), {"learning_rate": 2.0**-14}, loss_scale=4.0)
    for _ in range(2):
        step(module, [[1.0]], [[0.0]])
        module.save_optimizer_states(str(tmp_path / "states"))
    before = module.trainer.master_params()["fc_weight"].asscalar()
    module.load_optimizer_states(str(tmp_path / "states"))
    assert values(module)["fc_weight"].item() == before


def test_stock_states_go_on(tmp_path):
    data, label = images()
    prefix = str(tmp_path / "net")
    stock = train(mx.mod.Module(conv_net()), data, label, epochs=1)
    stock.save_checkpoint(prefix, 1, save_optimizer_states=True)
    module = Module.load(prefix, 1, load_optimizer_states=True)
    module.bind([("data", (16, 1, 8, 8))], [("softmax_label", (16,))])
    module.init_optimizer(optimizer_params={"learning_rate": 0.1, "momentum": 0.9})
    same(values(module), values(stock))
    momenta = {
        module._param_names[index]: rest[0]
        for index, (_, rest) in module.trainer.state_dict()["states"].items()
    }
    theirs = stock._updater.states
    assert len(momenta) == len(theirs) > 0
    for index, momentum in theirs.items():
        np.testing.assert_array_equal(momenta[stock._param_names[index]], momentum.asnumpy())


def test_a_gluon_export_goes_on_as_a_module(tmp_path):
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(5, activation="relu"), gluon.nn.BatchNorm(), gluon.nn.Dense(4))
    net.initialize(mx.init.Xavier())
    amp.cast(net, "float16")
    x = nd.random.uniform(shape=(6, 3))
    expected = net(x).asnumpy()
    net.export(str(tmp_path / "net"))
    module = Module.load(str(tmp_path / "net"), 0, policy="float16", label_names=None)
    module.bind([("data", (6, 3))], for_training=False)
    module.forward(DataBatch([x]), is_train=False)
    np.testing.assert_array_equal(module.get_outputs()[0].asnumpy(), expected)


def test_modules_in_a_row():
    first = Module(
        mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2, no_bias=True, name="one"),
        label_names=None,
        loss_scale=2.0**6,
    )
    second = Module(linear_net(), loss_scale=2.0**4)
    row = mx.mod.SequentialModule().add(first).add(second, take_labels=True, auto_wiring=True)
    row.bind([("data", (1, 1))], [("softmax_label", (1, 1))])
    row.init_params(mx.init.One())
    row.init_optimizer(optimizer_params={"learning_rate": 0.25})
    row.forward(batch_of([[1.0]], [[1.0]]), is_train=True)  # 1 + 1, one too much
    row.backward()
    row.update()
    np.testing.assert_array_equal(values(second)["fc_weight"], [[0.75, 0.75]])
    np.testing.assert_array_equal(values(first)["one_weight"], [[0.75], [0.75]])


# ---------------------------------------------------------------------- buckets


def sequence_net(length):
    """An LSTM over words, then the next word; all lengths share the parameters."""
    words = mx.sym.Embedding(mx.sym.var("data"), input_dim=8, output_dim=6, name="embed")
    cell = mx.rnn.LSTMCell(num_hidden=8, prefix="lstm_")
    outputs, _ = cell.unroll(length, inputs=words, merge_outputs=True)
    x = mx.sym.reshape(outputs, shape=(-1, 8))
    x = mx.sym.FullyConnected(x, num_hidden=8, name="fc")
    label = mx.sym.reshape(mx.sym.var("softmax_label"), shape=(-1,))
    return mx.sym.SoftmaxOutput(x, label, name="softmax"), ("data",), ("softmax_label",)


def sentences(length, rows=4):
    """Counting modulo 8, from a start of each row's own."""
    words = (np.arange(rows)[:, None] * 3 + np.arange(length + 1)) % 8
    return DataBatch(
        [nd.array(words[:, :-1])],
        [nd.array(words[:, 1:])],
        bucket_key=length,
        provide_data=[DataDesc("data", (rows, length))],
        provide_label=[DataDesc("softmax_label", (rows, length))],
    )


class Sentences(mx.io.DataIter):
    """Batches of three lengths, in turns."""

    def __init__(self, lengths=(6, 3, 5)):
        super().__init__(4)
        self.batches = [sentences(length) for length in lengths]
        self.provide_data = self.batches[0].provide_data
        self.provide_label = self.batches[0].provide_label
        self.default_bucket_key = lengths[0]
        self.reset()

    def reset(self):
        self.rest = iter(self.batches)

    def next(self):
        return next(self.rest)


def bucketing(policy="float16", loss_scale=2.0**6, **kwargs):
    return BucketingModule(
        sequence_net, default_bucket_key=6, policy=policy, loss_scale=loss_scale, **kwargs
    )


def fit_buckets(module, epochs=1, **fit):
    mx.random.seed(2)
    np.random.seed(2)
    settings = {
        "optimizer": "adam",
        "optimizer_params": {"learning_rate": 0.03},
        "initializer": mx.init.Xavier(),
        "eval_metric": mx.metric.Perplexity(None),
        **fit,
    }
    module.fit(Sentences(), num_epoch=epochs, **settings)
    return module


@pytest.mark.parametrize("policy", POLICIES)
def test_buckets_learn(policy):
    module = fit_buckets(bucketing(policy, 2.0**6 if policy in HALF else None), epochs=30)
    assert isinstance(module, mx.mod.BucketingModule)
    assert dict(module.score(Sentences(), mx.metric.Perplexity(None)))["perplexity"] < 1.5
    assert sorted(module._buckets) == [3, 5, 6]
    weights = {key: on_device(m, "lstm_i2h_weight") for key, m in module._buckets.items()}
    expected = np.float16 if policy == "float16" else np.float32
    assert all(weight.dtype == expected for weight in weights.values())
    for weight in weights.values():
        np.testing.assert_array_equal(weight.asnumpy(), weights[6].asnumpy())


def test_buckets_share_one_scale_and_one_optimizer():
    module = fit_buckets(bucketing(loss_scale=amp.DynamicLossScale(2.0**6, growth_interval=4)))
    assert len({id(m.trainer) for m in module._buckets.values()}) == 1
    assert len({id(m.loss_scale) for m in module._buckets.values()}) == 1
    assert module.loss_scale.finite_steps == 3
    assert module._default.optimizer.num_update == 3


def test_an_overflow_in_one_bucket_is_one_skip_for_all():
    module = fit_buckets(bucketing(loss_scale=amp.DynamicLossScale(2.0**6)))
    before = values(module)
    module.loss_scale.scale = 2.0**24  # every gradient above 2**-8 overflows
    reports = []
    for length in (3, 5):
        module.forward(sentences(length), is_train=True)
        module.backward()
        module.update()
        reports.append(module.last_report)
    assert [r.applied for r in reports] == [False, False]
    assert [r.loss_scale for r in reports] == [2.0**24, 2.0**23]
    assert reports[1].skipped_total == 2
    same(before, values(module))


def test_buckets_are_scale_invariant():
    # float32 holds these gradients at any scale
    one = fit_buckets(bucketing("float32", None), epochs=2)
    other = fit_buckets(bucketing("float32", 2.0**12), epochs=2)
    same(values(one), values(other))


def test_bucketing_checkpoint_resumes_bit_for_bit(tmp_path):
    prefix = str(tmp_path / "net")
    straight = fit_buckets(bucketing(), epochs=3)
    first = fit_buckets(bucketing(), epochs=1)
    first.save_checkpoint(prefix, 1, save_optimizer_states=True)
    second = BucketingModule.load(
        prefix,
        1,
        sequence_net,
        default_bucket_key=6,
        load_optimizer_states=True,
        policy="float16",
        loss_scale=2.0**6,
    )
    fit_buckets(second, epochs=3, begin_epoch=1)
    same(values(second), values(straight))
    for _ in range(2):  # in a bucket that is not the default one, and back
        for module in (second, straight):
            module.forward(sentences(3), is_train=True)
            module.backward()
            module.update()
        second.save_optimizer_states(str(tmp_path / "states"))
        second.load_optimizer_states(str(tmp_path / "states"))
        same(values(second), values(straight))
    stock = mx.mod.BucketingModule.load(prefix, 1, sequence_net, default_bucket_key=6)
    batch = sentences(6)
    stock.bind(batch.provide_data, batch.provide_label, for_training=False)
    stock.forward(batch, is_train=False)
    same(values(stock), values(first))


def test_rebound_buckets_go_on():
    rebound, straight = (fit_buckets(bucketing(), epochs=1) for _ in range(2))
    batch = sentences(6)
    rebound.bind(batch.provide_data, batch.provide_label, force_rebind=True)
    for module in (rebound, straight):
        module.forward(sentences(5), is_train=True)
        module.backward()
        module.update()
    same(values(rebound), values(straight))


def test_a_bucket_that_uses_a_part_of_the_parameters():
    def sym_gen(key):
        x = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=1, no_bias=True, name="fc")
        if key == 2:
            x = mx.sym.FullyConnected(x, num_hidden=1, no_bias=True, name="extra")
        head = mx.sym.LinearRegressionOutput(x, mx.sym.var("softmax_label"))
        return head, ["data"], ["softmax_label"]

    module = BucketingModule(sym_gen, 2, loss_scale=2.0)
    data, label = [DataDesc("data", (1, 1))], [DataDesc("softmax_label", (1, 1))]
    module.bind(data, label)
    module.init_params(mx.init.One())
    module.init_optimizer(optimizer_params={"learning_rate": 0.5})
    small = DataBatch(
        [nd.ones((1, 1))],
        [nd.zeros((1, 1))],
        bucket_key=1,
        provide_data=data,
        provide_label=label,
    )
    module.forward(small, is_train=True)
    module.backward()
    module.update()
    same(values(module), {"fc_weight": np.array([[0.5]]), "extra_weight": np.array([[1.0]])})
    # while the small bucket is the current one
    module.init_optimizer(optimizer_params={"learning_rate": 1.0}, force_init=True)
    whole = DataBatch(
        [nd.ones((1, 1))],
        [nd.zeros((1, 1))],
        bucket_key=2,
        provide_data=data,
        provide_label=label,
    )
    module.forward(whole, is_train=True)  # 0.5 · 1
    module.backward()
    module.update()
    same(values(module), {"fc_weight": np.array([[0.0]]), "extra_weight": np.array([[0.75]])})


def test_bucketing_refuses_what_module_refuses():
    with pytest.raises(ValueError, match="must be a power of two"):
        bucketing(loss_scale=100)
    with pytest.raises(ValueError, match="Unknown policy"):
        bucketing("float8")


# ---------------------------------------------------------------------- Law 1: scope


def test_law_1_stock_modules_are_unchanged():
    data, label = images()
    public = {name: getattr(mx.mod, name) for name in dir(mx.mod)}
    members = {name: vars(kind).copy() for name, kind in public.items() if isinstance(kind, type)}
    before = values(train(mx.mod.Module(conv_net()), data, label))
    train(Module(conv_net(), loss_scale=2.0**6), data, label)
    fit_buckets(bucketing())
    same(before, values(train(mx.mod.Module(conv_net()), data, label)))
    assert public == {name: getattr(mx.mod, name) for name in dir(mx.mod)}
    for name, found in members.items():
        assert vars(public[name]) == found


# ---------------------------------------------------------------------- bad input


def test_update_needs_a_backward_pass():
    module = linear_module([[1.0, 2.0]], loss_scale=2.0)
    with pytest.raises(RuntimeError, match="no new gradients to update with: call forward"):
        module.update()
    step(module, np.ones((2, 2)), np.ones((2, 1)))
    with pytest.raises(RuntimeError, match="no new gradients"):
        module.update()


def test_the_loss_scale_is_checked():
    with pytest.raises(ValueError, match="must be a power of two.* the nearest is 128"):
        Module(conv_net(), loss_scale=100)


def test_the_default_loss_scale_follows_the_policy():
    assert isinstance(Module(conv_net()).loss_scale, amp.DynamicLossScale)
    assert isinstance(Module(conv_net(), policy="mixed_float16").loss_scale, amp.DynamicLossScale)
    assert isinstance(Module(conv_net(), policy="bfloat16").loss_scale, amp.NoLossScale)
    assert isinstance(Module(conv_net(), policy="float32").loss_scale, amp.NoLossScale)


def test_an_unknown_data_name_is_refused():
    with pytest.raises(ValueError, match=r"no input 'Data' \(did you mean 'data'\?\)"):
        Module(conv_net(), data_names=["Data"])


def test_bfloat16_on_a_gpu_is_refused():
    with pytest.raises(ValueError, match="bfloat16 cannot run on a GPU: MXNet 1.9.1 has no"):
        Module(conv_net(), context=mx.gpu(), policy="bfloat16")


@pytest.mark.parametrize("contexts", [[mx.cpu(), mx.gpu()], [mx.cpu(0), mx.cpu(0)]])
def test_devices_are_of_one_type_and_different(contexts):
    with pytest.raises(ValueError, match="expected different devices of one type"):
        Module(conv_net(), context=contexts)


def test_parameters_of_another_dtype_are_refused():
    module = linear_module([[1.0, 2.0]])
    with pytest.raises(TypeError, match="for fc_weight are int32, expected float32: convert"):
        module.set_params({"fc_weight": nd.ones((1, 2), dtype="int32")}, {})
    np.testing.assert_array_equal(values(module)["fc_weight"], [[1, 2]])


def test_parameters_of_another_shape_are_refused():
    module = linear_module([[1.0, 2.0]])
    with pytest.raises(ValueError, match=r"shape \(5, 2\), the symbol expects \(1, 2\): leave"):
        module.set_params({"fc_weight": nd.ones((5, 2))}, {})
    np.testing.assert_array_equal(values(module)["fc_weight"], [[1, 2]])


def test_data_of_another_dtype_is_refused():
    module = Module(linear_net())
    with pytest.raises(TypeError, match="bound as data float64, .* bind them as float32"):
        module.bind([DataDesc("data", (1, 1), "float64")], [("softmax_label", (1, 1))])
    assert not module.binded
    module.bind([("data", (1, 1))], [("softmax_label", (1, 1))])


def test_a_head_pinned_to_float16_is_refused_under_a_scale():
    policy = amp.Policy.parse("float16").pin(ops=["SoftmaxOutput"], dtype="float16")
    with pytest.raises(ValueError, match="loss head softmax is pinned to float16"):
        Module(conv_net(), policy=policy)
    Module(conv_net(), policy=policy, loss_scale=None)


def test_a_penalty_inside_the_backward_pass_is_refused_under_a_scale():
    x = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2)
    x = mx.sym.IdentityAttachKLSparseReg(mx.sym.sigmoid(x), name="sparse")
    symbol = mx.sym.SoftmaxOutput(x, name="softmax")
    with pytest.raises(ValueError, match="sparse adds a term of its own to the gradients"):
        Module(symbol)
    Module(symbol, loss_scale=None)


@pytest.mark.parametrize(
    "optimizer, error",
    [
        ("sdg", "Unknown optimizer 'sdg'"),
        (mx.optimizer.SGD(rescale_grad=1.0), "has multi_precision=False"),
    ],
)
def test_optimizers_that_cannot_do_it_are_refused(optimizer, error):
    module = Module(linear_net())
    module.bind([("data", (1, 1))], [("softmax_label", (1, 1))])
    module.init_params()
    with pytest.raises(ValueError, match=error):
        module.init_optimizer(optimizer=optimizer)
    assert not module.optimizer_initialized


def test_compression_is_refused_under_a_scale():
    contexts = [mx.cpu(0), mx.cpu(1)]
    compression = {"type": "2bit", "threshold": 0.5}
    module = Module(linear_net(), context=contexts, compression_params=compression)
    module.bind([("data", (2, 1))], [("softmax_label", (2, 1))])
    module.init_params()
    with pytest.raises(ValueError, match="Gradient compression"):
        module.init_optimizer("device")
