"""`Module`: the laws, fit, score and predict, binding, gradients in and out, bad input."""

import logging

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp.symbolic import Module
from tests.symbolic.networks import (
    HALF,
    POLICIES,
    batch_of,
    conv_net,
    exact_problem,
    images,
    linear_module,
    linear_net,
    on_device,
    ops_of,
    same,
    step,
    train,
    values,
)

import mxnet as mx
from mxnet import nd
from mxnet.io import DataBatch, DataDesc, NDArrayIter

# ---------------------------------------------------------------------- Law 2: scale invariance


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
    """Return a module of weight 1, whose gradient for x = 100, y = 0 is 10000 times the scale."""
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
    aux_params = {name: nd.ones(8) * 3 for name in module.symbol.list_auxiliary_states()}
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
    with pytest.raises(FloatingPointError, match="2 steps in a row overflowed, .* of fc_weight"):
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


def test_fit_uses_initial_parameters_and_callbacks(tmp_path):
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
    assert metric.num_inst == 1  # selected by its name


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


def test_collect_params_returns_arrays_that_get_params_reads():
    module = linear_module([[1.0, 2.0]])
    parameter = module.collect_params()["fc_weight"]
    assert parameter.data() is on_device(module)
    parameter.data()[:] = nd.array([[3.0, 4.0]])
    np.testing.assert_array_equal(values(module)["fc_weight"], [[3, 4]])


def test_a_module_has_executors_after_bind_and_a_trainer_after_init_optimizer():
    module = Module(linear_net(), context=[mx.cpu(0), mx.cpu(1)])
    assert module.executors == []
    module.bind([("data", (2, 1))], [("softmax_label", (2, 1))])
    assert len(module.executors) == 2
    assert module.trainer is module.optimizer is None
    module.init_params()
    module.init_optimizer()
    assert module.trainer.optimizer is module.optimizer


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
    """Return y = w · x with w = (1, 2) and no head: its gradients come from outside."""
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


def test_gradients_without_an_optimizer_are_true():
    module = Module(linear_net(), loss_scale=2.0**10)
    module.bind([("data", (1, 1))], [("softmax_label", (1, 1))])
    module.init_params(arg_params={"fc_weight": nd.array([[3.0]])}, aux_params={})
    module.forward(batch_of([[1.0]], [[1.0]]), is_train=True)
    module.backward()
    assert module.executors[0].grad_dict["fc_weight"].asscalar() == 2


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


# ---------------------------------------------------------------------- bad input


def test_update_needs_a_backward_pass():
    module = linear_module([[1.0, 2.0]], loss_scale=2.0)
    with pytest.raises(RuntimeError, match="no new gradients to update with: call forward"):
        module.update()
    step(module, np.ones((2, 2)), np.ones((2, 1)))
    with pytest.raises(RuntimeError, match="no new gradients"):
        module.update()


def test_an_unknown_argument_is_refused():
    with pytest.raises(TypeError, match="unexpected keyword argument 'fixed_params'"):
        Module(conv_net(), fixed_params=["fc_weight"])


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


def test_data_of_another_dtype_is_refused():
    module = Module(linear_net())
    with pytest.raises(TypeError, match="bound as data float64, .* bind them as float32"):
        module.bind([DataDesc("data", (1, 1), "float64")], [("softmax_label", (1, 1))])
    assert not module.binded
    module.bind([("data", (1, 1))], [("softmax_label", (1, 1))])
