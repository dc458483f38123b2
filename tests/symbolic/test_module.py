"""`Module`: its steps, its optimizer, binding, gradients in and out, files, bad input."""

from functools import partial

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp.casting import statistics
from gluon_amp.symbolic import Module
from gluon_amp.symbolic.loss_head import SCALE
from tests.symbolic.networks import (
    batch_of,
    conv_net,
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
from tests.two_workers import run_two_workers

import mxnet as mx
from mxnet import nd
from mxnet.io import DataBatch, DataDesc, NDArrayIter

TWO = [mx.cpu(0), mx.cpu(1)]

# ---------------------------------------------------------------------- steps and skips


def test_the_faqs_symbol_itself_trains():
    x = mx.sym.Flatten(mx.sym.Cast(mx.sym.var("data"), dtype="float16"))
    x = mx.sym.Cast(mx.sym.FullyConnected(x, num_hidden=4, name="fc"), dtype="float32")
    symbol = mx.sym.SoftmaxOutput(x, name="softmax", grad_scale=128.0)
    settings = {"learning_rate": 0.1, "momentum": 0.9, "rescale_grad": 1 / 128 / 16}
    module = Module(symbol, policy="float32")
    train(module, *images(), epochs=6, optimizer_params=settings)
    assert on_device(module).dtype == np.float16
    assert dict(module.score(NDArrayIter(*images(), 16), "acc"))["accuracy"] > 0.9


def test_a_skip_undoes_its_step_and_keeps_statistics_that_were_set_before(monkeypatch):
    data, label = images(16)
    with_bad, without = (
        Module(conv_net(), loss_scale=amp.DynamicLossScale(2.0**6)) for _ in range(2)
    )
    for module in (with_bad, without):
        train(module, data, label, epochs=1, optimizer="adam", optimizer_params={})
        aux_params = {name: nd.ones(8) * 3 for name in module.symbol.list_auxiliary_states()}
        module.set_params(module.get_params()[0], aux_params)
    before = values(with_bad)
    assert not step(with_bad, data * 1e5, label).applied
    same(before, values(with_bad))
    assert with_bad.optimizer.num_update == 1
    # on a GPU a forward pass writes the statistics, so it says so
    seen = []
    monkeypatch.setattr(statistics, "keep", seen.extend)
    for is_train in (False, True):
        with_bad.forward(batch_of(data, label), is_train)
    assert sorted(one.name for one in seen) == sorted(aux_params)
    monkeypatch.undo()
    # the scale has changed, but by Law 2 nothing else
    with_bad.loss_scale.load_state_dict(without.loss_scale.state_dict())
    for module in (with_bad, without):
        assert step(module, data, label).applied
    same(values(with_bad), values(without))


def test_an_error_names_the_cause_at_the_floor():
    module = linear_module([[1.0]], loss_scale=amp.StaticLossScale(2), max_consecutive_skips=2)
    assert not step(module, [[1e4]], [[0.0]]).applied
    with pytest.raises(FloatingPointError, match="2 steps in a row overflowed, .* of fc_weight"):
        step(module, [[1e4]], [[0.0]])


def test_update_needs_a_backward_pass():
    module = linear_module([[1.0]], loss_scale=2.0)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no new gradients to update with: call forward"):
            module.update()
        step(module, [[1.0]], [[1.0]])


@pytest.mark.parametrize(
    "exponent, first, grad_req", [(0, 2.0**12, "write"), (8, 2.0**4, "add"), (20, 2.0**-8, "write")]
)
def test_an_overflow_is_repeated_where_the_gradient_fits(exponent, first, grad_req):
    module = linear_module([[0.0]], sgd={"learning_rate": 0.0}, bind={"grad_req": grad_req})
    # the gradient of (w x - y)² / 2 at w = 0 is -x y
    reports = [step(module, [[1.0]], [[2.0**exponent]]) for _ in range(2)]
    assert [(r.applied, r.retried) for r in reports] == [(True, True), (True, False)]
    assert [(r.loss_scale, r.next_loss_scale) for r in reports] == [(first, first)] * 2


def test_the_first_scale_is_that_of_all_devices():
    module = linear_module([[0.0]], 2, {"learning_rate": 0.0}, context=TWO)
    batch = [[1.0], [1.0]], [[1.0], [2.0**8]]
    assert step(module, *batch).loss_scale == 2.0**4
    assert step(module, *batch).applied


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("grad_req", ["write", "add"])
def test_a_repeated_pass_leaves_what_a_pass_at_its_scale_leaves(grad_req, devices):
    data, label = images(16)
    symbol = mx.sym.Dropout(mx.sym.BatchNorm(mx.sym.var("data"), name="norm"), p=0.5)
    symbol = mx.sym.FullyConnected(symbol, num_hidden=4, name="fc")
    symbol = mx.sym.SoftmaxOutput(symbol, name="softmax", grad_scale=2.0**12)
    seen = []
    for init_scale in (None, 0.125):
        mx.random.seed(3)
        module = Module(symbol, context=TWO[:devices], loss_scale=amp.DynamicLossScale(init_scale))
        shapes = [("data", data.shape)], [("softmax_label", label.shape)]
        module.bind(*shapes, inputs_need_grad=True, grad_req=grad_req)
        module.init_params(mx.init.Xavier())
        module.init_optimizer()
        module.forward(batch_of(data, label), is_train=True)
        module.backward()
        gradients = {"weight": on_device(module).grad, "input": module.get_input_grads()[0]}
        arrays = {**gradients, "output": module.get_outputs()[0], **module.get_params()[1]}
        seen.append({name: array.asnumpy() for name, array in arrays.items()})
        module.update()
        assert module.last_report.loss_scale == 0.125
        assert (module.last_report.applied, module.last_report.retried) == (True, not init_scale)
    same(*seen)


def test_gradients_of_outputs_are_repeated_too():
    weight = mx.sym.var("fc_weight")
    symbol = mx.sym.FullyConnected(mx.sym.var("data"), weight, num_hidden=1, no_bias=True)
    module = Module(symbol, label_names=None, context=TWO)
    module.bind([("data", (2, 1))])
    module.init_params(arg_params={"fc_weight": nd.zeros((1, 1))}, aux_params={})
    module.init_optimizer(optimizer_params={"learning_rate": 2.0**-4, "rescale_grad": 1.0})
    module.forward(DataBatch([nd.array([[1.0], [2.0]])]), is_train=True)
    module.backward(nd.array([[2.0**6], [2.0**3]]))
    module.update()
    assert module.last_report.retried
    assert module.get_params()[0]["fc_weight"].asscalar() == -(2.0**6 + 2.0**4) / 2.0**4


# ---------------------------------------------------------------------- the optimizer


@pytest.mark.parametrize("fixed, moved", [([], 0.125 * (4 + 1)), (["fc_weight"], 0)])
def test_multipliers_are_those_of_the_symbol_and_biases_do_not_decay(fixed, moved):
    weight = mx.sym.var("fc_weight", lr_mult=0.5, wd_mult=2.0)
    x = mx.sym.FullyConnected(mx.sym.var("data"), weight=weight, num_hidden=1, name="fc")
    symbol = mx.sym.LinearRegressionOutput(x, mx.sym.var("softmax_label"))
    module = Module(symbol, policy="float32", fixed_param_names=fixed)
    module.bind([("data", (1, 1))], [("softmax_label", (1, 1))])
    ones = {"fc_weight": nd.ones((1, 1)), "fc_bias": nd.ones((1,))}
    module.init_params(arg_params=ones, aux_params={})
    module.init_optimizer(optimizer_params={"learning_rate": 0.25, "wd": 0.5})
    step(module, [[2.0]], [[1.0]])  # 3 - 1, so the gradients are 4 and 2
    found = {name: value.item() for name, value in values(module).items()}
    assert found == {"fc_weight": 1 - moved, "fc_bias": 1 - 0.25 * 2}


def test_a_rescale_grad_set_during_training_is_respected():
    module = linear_module([[4.0]], loss_scale=2.0**4)
    module.optimizer.rescale_grad = 0.5
    step(module, [[1.0]], [[0.0]])
    assert values(module)["fc_weight"].item() == 2
    assert module.optimizer.rescale_grad == 0.5  # without the loss scale


def ready_for_an_optimizer(rows=1, **kwargs):
    module = Module(linear_net(), **kwargs)
    module.bind([("data", (rows, 1))], [("softmax_label", (rows, 1))])
    module.init_params(mx.init.One())
    return module


def test_an_optimizer_by_name_is_ours_and_an_object_keeps_its_rescale_grad():
    module = ready_for_an_optimizer(4, loss_scale=2.0)
    with pytest.raises(ValueError, match="Unknown optimizer 'sdg'"):
        module.init_optimizer(optimizer="sdg")
    assert not module.optimizer_initialized
    module.init_optimizer(optimizer="adam")
    assert type(module.optimizer) is amp.optimizer.Adam
    assert module.optimizer.rescale_grad == 1 / 4
    optimizer = mx.optimizer.SGD(learning_rate=1.0)
    with pytest.warns(UserWarning, match="rescale_grad 1, which is not .* 0.25; it is kept"):
        module.init_optimizer(optimizer=optimizer, force_init=True)
    assert optimizer.multi_precision
    step(module, [[1.0]] * 4, [[0.0]] * 4)
    assert values(module)["fc_weight"].item() == 1 - 4


@pytest.mark.parametrize("kvstore", ["local", "device"])
def test_two_devices_are_one_and_skip_together(kvstore):
    results = []
    for contexts in (mx.cpu(), TWO):
        module = ready_for_an_optimizer(2, context=contexts, loss_scale=4.0)
        module.init_optimizer(kvstore, optimizer_params={"learning_rate": 0.25, "momentum": 0.5})
        assert step(module, [[1.0], [3.0]], [[0.5], [0.25]]).applied
        moved = values(module)["fc_weight"].item()
        assert not step(module, [[1.0], [1e3]], [[0.0], [0.0]]).applied  # the second device
        assert values(module)["fc_weight"].item() == moved
        results.append([moved, *(e.arg_dict["fc_weight"].asscalar() for e in module.executors)])
    (one, weight), two = results
    assert two == [one, weight, weight] and one < 1
    assert module.collect_params()["fc_weight"].data(TWO[1]).context == TWO[1]


def test_compression_is_refused_under_a_scale():
    compression = {"type": "2bit", "threshold": 0.5}
    module = ready_for_an_optimizer(2, context=TWO, compression_params=compression)
    with pytest.raises(ValueError, match="Gradient compression"):
        module.init_optimizer("device")


WORKER = """
import json, sys
from tests.symbolic.networks import linear_module, step, values

first = sys.argv[1] == "0"
# workers begin with different weights, and get those of one worker
module = linear_module([[1.0 if first else 5.0]], kvstore="dist_sync", loss_scale=4.0,
                       sgd={"learning_rate": 0.5})
results = [values(module)["fc_weight"].item()]
for x in (1.0, 300.0 if first else 1.0):  # only one worker has the overflow
    report = step(module, [[x]], [[0.0]])
    results += [report.applied, values(module)["fc_weight"].item()]
with open(sys.argv[2], "w") as file:
    json.dump(results, file)
"""


@pytest.mark.slow
def test_two_workers_step_and_skip_together(tmp_path):
    one, other = run_two_workers(tmp_path, WORKER)
    start = one[0]
    assert start in (1.0, 5.0)  # MXNet numbers workers as they arrive
    # the gradient of w²/2 is w on both, halved for two workers, at rate 0.5
    assert one == other == [start, True, start / 2, False, start / 2]


def test_batches_may_change_their_size():
    module = linear_module([[1.0, 1.0]], 2, loss_scale=8.0)
    for rows in (2, 5, 1):
        assert step(module, np.zeros((rows, 2)), np.ones((rows, 1))).applied
        assert module.get_outputs()[0].shape == (rows, 1)
    step(module, [[1.0, 0.0]] * 4, [[0.0]] * 4)  # averaged over the 2 rows that were bound
    np.testing.assert_array_equal(values(module)["fc_weight"], [[-1, 1]])


def test_names_and_shapes_of_outputs_are_the_symbols():
    x = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3, name="fc")
    module = Module(mx.sym.Group([x, x * 2]), label_names=None)
    module.bind([("data", (2, 5))], for_training=False)
    assert module.output_names[0] == "fc_output"
    assert module.output_shapes == [(name, (2, 3)) for name in module.output_names]
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
    assert SCALE not in rebound.executors[0].arg_dict
    same(values(rebound), values(straight))
    rebound.bind(*shapes, force_rebind=True)
    for module in (rebound, straight):
        step(module, data, label)
    same(values(rebound), values(straight))


@pytest.mark.parametrize("request_, expected", [("write", 0), ("null", 1)])
def test_a_list_of_requests_is_in_the_order_of_the_symbol(request_, expected):
    bind = {"grad_req": ["null", request_, "null"]}  # of data, fc_weight, softmax_label
    module = linear_module([[1.0]], loss_scale=4.0, bind=bind)
    step(module, [[1.0]], [[0.0]])
    assert values(module)["fc_weight"].item() == expected


@pytest.mark.parametrize("scale", [None, 2.0**12])
def test_gradients_from_outside_are_scaled_and_input_gradients_are_true(scale):
    # y = w · x without a head: its gradients come from outside
    symbol = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=1, no_bias=True, name="fc")
    kwargs = {"label_names": None, "loss_scale": scale, "bind": {"inputs_need_grad": True}}
    tiny = nd.array([[2.0**-25], [0.0]])  # below float16 without a scale
    expected = 2.0**-25 if scale else 0.0
    for gradients in (tiny, [tiny]):
        sgd = {"learning_rate": 2.0}  # the rows of a batch are averaged
        module = linear_module([[0.5, 2.0]], 2, sgd, symbol=symbol, **kwargs)
        assert step(module, [[1.0, 0.0], [0.0, 1.0]], None, gradients).applied
        merged = module.get_input_grads()[0].asnumpy()
        by_device = module.get_input_grads(merge_multi_context=False)[0][0].asnumpy()
        assert merged.tolist() == by_device.tolist() == [[expected / 2, 2 * expected], [0, 0]]
        assert values(module)["fc_weight"].tolist() == [[0.5 - expected, 2]]


def test_gradients_without_an_optimizer_are_true():
    module = ready_for_an_optimizer(loss_scale=2.0**10)
    module.forward(batch_of([[1.0]], [[-1.0]]), is_train=True)
    module.backward()
    assert module.executors[0].grad_dict["fc_weight"].asscalar() == 2


# ---------------------------------------------------------------------- files


def test_a_checkpoint_runs_in_stock_mxnet(tmp_path):
    data, label = images(16)
    prefix = str(tmp_path / "net")
    module = train(Module(conv_net(), loss_scale=2.0**6), data, label)
    module.save_checkpoint(prefix, 2)
    symbol, arg_params, aux_params = mx.model.load_checkpoint(prefix, 2)
    assert ops_of(symbol) == ops_of(conv_net())
    assert {a.dtype for a in [*arg_params.values(), *aux_params.values()]} == {np.float32}
    same(values(module), {k: v.asnumpy() for k, v in {**arg_params, **aux_params}.items()})
    outputs = []
    for one in (mx.mod.Module.load(prefix, 2), Module.load(prefix, 2, policy="float32")):
        one.bind([("data", data.shape)], [("softmax_label", label.shape)], for_training=False)
        one.forward(batch_of(data, label), is_train=False)
        outputs.append(one.get_outputs()[0].asnumpy())
    np.testing.assert_array_equal(*outputs)
    # float16 has 11 bits, and three roundings follow each other
    ours = module.predict(NDArrayIter(data[:14], label[:14], 4))  # without the last one's padding
    assert (ours.dtype, ours.shape) == (np.float32, (14, 4))
    np.testing.assert_allclose(ours.asnumpy(), outputs[0][:14], atol=2e-2)


def test_masters_are_what_is_saved_and_states_leave_them_alone(tmp_path):
    module = linear_module([[1.0]], sgd={"learning_rate": 2.0**-14}, loss_scale=4.0)
    step(module, [[1.0]], [[0.0]])
    assert on_device(module).asscalar() == 1  # 1 - 2**-14 rounds to 1 in float16
    module.save_params(str(tmp_path / "p"))
    assert nd.load(str(tmp_path / "p"))["arg:fc_weight"].asscalar() == 1 - 2.0**-14
    module.set_params({"fc_weight": nd.zeros((1, 1))}, {})
    module.load_params(str(tmp_path / "p"))
    assert values(module)["fc_weight"].item() == 1 - 2.0**-14
    module.save_optimizer_states(str(tmp_path / "states"))
    step(module, [[1.0]], [[0.0]])
    before = values(module)
    module.load_optimizer_states(str(tmp_path / "states"))  # the parameters have their own file
    module.collect_params()  # so that the next get_params reads the masters
    same(values(module), before)


def test_resume_equals_uninterrupted(tmp_path):
    data, label = images()
    prefix = str(tmp_path / "net")
    fit = {"optimizer": "adam", "optimizer_params": {"learning_rate": 0.05}}

    def scale():  # epochs of four steps; growth after three: the save is inside a window
        return amp.DynamicLossScale(init_scale=2.0**5, growth_interval=3, max_scale=2.0**8)

    straight = train(Module(conv_net(), loss_scale=scale()), data, label, epochs=2, **fit)
    first = Module(conv_net(), loss_scale=scale())
    save = mx.callback.module_checkpoint(first, prefix, 1, save_optimizer_states=True)
    train(first, data, label, epochs=1, epoch_end_callback=save, **fit)
    second = Module.load(prefix, 1, load_optimizer_states=True, loss_scale=scale())
    with pytest.warns(UserWarning, match="already initialized"):
        train(second, data, label, epochs=2, begin_epoch=1, **fit)
    same(values(second), values(straight))
    assert second.loss_scale.state_dict() == straight.loss_scale.state_dict()


def test_states_move_between_policies(tmp_path):
    data, label = images(16)
    prefix = str(tmp_path / "net")
    wide = train(Module(conv_net(), policy="mixed_float16", loss_scale=2.0**6), data, label)
    wide.save_checkpoint(prefix, 1, save_optimizer_states=True)
    module = Module.load(prefix, 1, load_optimizer_states=True, loss_scale=2.0**6)
    with pytest.warns(UserWarning, match="already initialized"):
        train(module, data, label, epochs=0)
    same(values(module), values(wide))
    masters = {name: array.asnumpy() for name, array in module.trainer.master_params().items()}
    same(masters, values(wide))


@pytest.mark.parametrize("kwargs, error, match", [
    ({"fixed_params": ["fc_weight"]}, TypeError, "unexpected keyword argument 'fixed_params'"),
    ({"loss_scale": 100}, ValueError, "must be a power of two.* the nearest is 128"),
    ({"data_names": ["Data"]}, ValueError, r"no input 'Data' \(did you mean 'data'\?\)"),
    ({"context": mx.gpu(), "policy": "bfloat16"}, ValueError, "bfloat16 cannot run on a GPU: "),
    ({"context": [mx.cpu(), mx.gpu()]}, ValueError, "expected different devices of one type"),
    ({"context": [mx.cpu(), mx.cpu()]}, ValueError, "expected different devices of one type"),
])  # fmt: skip
def test_bad_arguments_are_refused(kwargs, error, match):
    with pytest.raises(error, match=match):
        Module(conv_net(), **kwargs)


def test_the_default_loss_scale_follows_the_policy():
    kinds = {"float16": amp.DynamicLossScale, "mixed_float16": amp.DynamicLossScale}
    for policy, kind in {**kinds, "bfloat16": amp.NoLossScale, "float32": amp.NoLossScale}.items():
        assert type(Module(conv_net(), policy=policy).loss_scale) is kind


def test_data_of_another_dtype_is_refused():
    module = Module(linear_net())
    with pytest.raises(TypeError, match="bound as data float64, .* bind them as float32"):
        module.bind([DataDesc("data", (1, 1), "float64")], [("softmax_label", (1, 1))])
    assert not module.binded
    module.bind([("data", (1, 1))], [("softmax_label", (1, 1))])


# ---------------------------------------------------------------------- sparse arrays


def factors():
    """Return a table that is stored as row_sparse, as in MXNet's matrix factorization."""
    table = mx.sym.var("table", stype="row_sparse", init=mx.init.One())
    options = {"input_dim": 4, "output_dim": 2, "sparse_grad": True}
    rows = mx.sym.sparse.Embedding(mx.sym.var("data"), table, **options)
    out = mx.sym.FullyConnected(rows, num_hidden=1, name="fc")
    return mx.sym.LinearRegressionOutput(out, mx.sym.var("softmax_label"), name="head")


def words():
    """Return a product of csr data."""
    table = mx.sym.var("table", shape=(4, 1), stype="row_sparse", init=mx.init.One())
    out = mx.sym.sparse.dot(mx.sym.var("data", stype="csr"), table)
    return mx.sym.LinearRegressionOutput(out, mx.sym.var("softmax_label"), name="head")


@pytest.mark.parametrize(
    "network, data",
    [(factors, nd.array([0, 2])), (words, nd.array([[0, 3, 0, 0], [0, 0, 1, 0]]).tostype("csr"))],
)
@pytest.mark.parametrize("policy, atol", [("float32", 0), ("float16", 0.01), ("bfloat16", 0.05)])
def test_row_sparse_parameters_train_as_in_mxnet(network, data, policy, atol, tmp_path):
    batches = NDArrayIter(data, nd.zeros(2), 2, last_batch_handle="discard")
    states, trained = str(tmp_path / "states"), []
    for own in (mx.mod.Module, partial(Module, policy=policy)):
        module = own(network())
        module.bind(batches.provide_data, batches.provide_label)
        module.init_params(mx.init.One())
        module.init_optimizer(optimizer="adam", optimizer_params={"learning_rate": 0.125})
        for step_number in range(3):
            if step_number == 2:
                module.save_optimizer_states(states)
                module.load_optimizer_states(states)
            batches.reset()
            module.forward_backward(next(batches))
            module.update()
        trained.append(module.get_params()[0]["table"])
    stock, found = trained
    assert found.stype == stock.stype == "row_sparse" and (found.asnumpy() != 1).any()
    np.testing.assert_allclose(found.asnumpy(), stock.asnumpy(), rtol=1e-5, atol=atol)


def test_running_statistics_are_those_after_the_step():
    """On a CPU, MXNet's engine does not know that a backward pass writes them."""
    norm = mx.sym.BatchNorm(mx.sym.var("data"), name="norm")
    loss = mx.sym.make_loss(mx.sym.mean(norm * norm))
    module = amp.symbolic.Module(loss, label_names=None, context=TWO, policy="float32")
    shape = (64, 32, 64, 64)
    module.bind([("data", shape)])
    module.init_params()
    module.init_optimizer()
    batch = DataBatch([nd.ones(shape)])
    nd.waitall()
    module.forward_backward(batch)
    module.update()
    means = module.get_params()[1]["norm_moving_mean"].asnumpy()
    np.testing.assert_allclose(means, 0.1, rtol=1e-6)
