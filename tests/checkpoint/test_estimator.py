"""`gluon.contrib.estimator.Estimator` with an `amp.Trainer`."""

import os

import numpy as np
import pytest

import gluon_amp as amp
from tests.log_lines import Lines

import mxnet as mx
from mxnet import gluon
from mxnet.gluon import nn
from mxnet.gluon.contrib import estimator as stock

ENDS = ("ckpt", "params")
EIGHT = np.random.RandomState(3).randn(8, 4).astype("float32")


def network(policy, ctx=None):
    net = nn.HybridSequential()
    net.add(nn.Dense(8, "relu", in_units=4), nn.BatchNorm(in_channels=8), nn.Dense(2, in_units=8))
    if policy:
        amp.cast(net, policy)
    net.initialize(mx.init.Xavier(), ctx=ctx)
    return net


def loader(values=EIGHT, arrays=mx.nd):
    labels = (EIGHT[:, 0] > 0).astype("float32")
    data = gluon.data.ArrayDataset(arrays.array(values), arrays.array(labels))
    return gluon.data.DataLoader(data, batch_size=4)


def estimator(policy="float16", ctx=None, processor=True, trainer=amp.Trainer, **kwargs):
    mx.random.seed(5)
    net = network(policy, ctx)
    made = stock.Estimator(
        net,
        gluon.loss.SoftmaxCrossEntropyLoss(),
        trainer=trainer(net.collect_params(), "adam", {"learning_rate": 0.1}, **kwargs),
        batch_processor=amp.BatchProcessor() if processor else None,
        context=ctx,
    )
    made.logger.handlers.clear()
    made.lines = Lines()
    made.logger.addHandler(made.lines)
    return made


def parameters(made):
    values = made.net._collect_params_with_prefix()
    wide = made.trainer.master_params()
    return {name: wide.get(p.name, p.data()).asnumpy() for name, p in values.items()}


def assert_same(one, other):
    """Assert that two estimators have the same scale, skips and parameters."""
    assert one.trainer.loss_scale.state_dict() == other.trainer.loss_scale.state_dict()
    assert one.trainer.skips == other.trainer.skips
    for name, value in parameters(one).items():
        np.testing.assert_array_equal(value, parameters(other)[name], err_msg=name)


def test_a_fit_learns_and_validates(arrays):
    made = estimator(loss_scale=16)
    made.fit(loader(arrays=arrays), val_data=loader(arrays=arrays), epochs=5)
    assert made.train_metrics[-1].get()[1] < 0.6
    assert made.val_metrics[0].get() == ("validation accuracy", 1.0)
    assert made.trainer.optimizer.num_update == 10


def test_the_losses_of_several_devices_are_one_batch():
    def trainer(params, _, settings, **kwargs):
        return amp.Trainer(params, "sgd", settings, **kwargs)  # Adam's steps have no size

    one, two = (
        estimator(ctx=[mx.cpu(k) for k in range(n)], trainer=trainer, loss_scale=16) for n in (1, 2)
    )
    for made in (one, two):
        # without running statistics, which each device has its own
        made.net[1].collect_params().setattr("grad_req", "null")
        made.net[1]._kwargs["use_global_stats"] = True
        made.fit(loader(), epochs=2, event_handlers=[amp.GradientUpdateHandler()])
    assert two.trainer.optimizer.num_update == 4
    for name, value in parameters(one).items():
        np.testing.assert_allclose(parameters(two)[name], value, rtol=0.02, atol=0.02)


def test_trainers_that_cannot_be_scaled_get_one_sentence():
    made = estimator(processor=False)
    with pytest.raises(RuntimeError, match=r"Estimator, batch_processor=amp.BatchProcessor\(\)"):
        made.fit(loader(), epochs=1)
    made = estimator(None, trainer=gluon.Trainer)
    with pytest.raises(TypeError, match="BatchProcessor.. got a Trainer without a loss scale"):
        made.fit(loader(), epochs=1)
    made.batch_processor = stock.BatchProcessor()
    with pytest.raises(TypeError, match="GradientUpdateHandler.. got a Trainer without a loss"):
        made.fit(loader(), epochs=1, event_handlers=[amp.GradientUpdateHandler()])


def test_skips_and_scale_are_logged():
    values = EIGHT.copy()
    values[5] = np.inf  # in the second batch
    made = estimator(loss_scale=amp.DynamicLossScale(init_scale=16))
    made.fit(loader(values), epochs=2, event_handlers=[amp.GradientUpdateHandler()])
    ours = [line.split(" of ")[0] for line in made.lines.lines if "scale" in line]
    assert ours == [
        "[Epoch 0] Step skipped: gradients",
        "[Epoch 0] Loss scale 8, 1 steps skipped so far",
        "[Epoch 1] Step skipped: gradients",
        "[Epoch 1] Loss scale 4, 2 steps skipped so far",
    ]
    (first, _) = (line for line in made.lines.lines if "Step skipped" in line)
    assert first.endswith("overflowed at loss scale 16; next scale 8")
    assert made.trainer.optimizer.num_update == 2
    made = estimator("bfloat16")  # which has none
    made.fit(loader(), epochs=1, event_handlers=[amp.GradientUpdateHandler()])
    assert not [line for line in made.lines.lines if "scale" in line.lower()]


def fitted(folder, limits, period=None, resume=False, values=EIGHT, **kwargs):
    made = estimator(loss_scale=amp.DynamicLossScale(init_scale=16, growth_interval=3))
    handler = amp.CheckpointHandler(
        str(folder),
        epoch_period=None if period else 1,
        batch_period=period,
        resume_from_checkpoint=resume,
        **kwargs,
    )
    made.fit(loader(values), event_handlers=[handler], **limits)
    return made


@pytest.mark.parametrize("unit, limits", [("epochs", (1, 2, 3)), ("batches", (2, 4, 6))])
def test_a_resumed_fit_equals_an_uninterrupted_one_bit_for_bit(tmp_path, unit, limits):
    values = EIGHT.copy()
    values[5] = np.inf  # each second step is skipped
    period = 2 if unit == "batches" else None
    whole = fitted(tmp_path / "whole", {unit: limits[-1]}, period, values=values)
    runs = [fitted(tmp_path / "parts", {unit: k}, period, True, values) for k in limits]
    assert "CheckpointHandler: no checkpoint found, training from scratch." in runs[0].lines.lines
    assert_same(runs[-1], whole)
    assert sorted(os.listdir(tmp_path / "parts")) == sorted(os.listdir(tmp_path / "whole"))
    with pytest.raises(ValueError, match=f"has reached {limits[-1]} of {limits[-1]} {unit} alread"):
        fitted(tmp_path / "parts", {unit: limits[-1]}, period, True)


def test_only_the_newest_checkpoints_are_kept_and_load_in_stock_mxnet(tmp_path):
    other = "model-epoch0batch20.params"  # begins like the name of one that is removed
    (tmp_path / other).write_text("of another run")
    fitted(tmp_path, {"epochs": 11}, max_checkpoints=2)
    kept = [f"model-epoch{k}batch{2 * k + 2}.{kind}" for k in (10, 9) for kind in ENDS]
    assert sorted(os.listdir(tmp_path)) == [other, *kept, "model-symbol.json"]
    made = fitted(tmp_path, {"epochs": 12}, max_checkpoints=2, resume=True)
    kept = [f"model-epoch{k}batch{2 * k + 2}.{kind}" for k in (10, 11) for kind in ENDS]
    assert sorted(os.listdir(tmp_path)) == [other, *kept, "model-symbol.json"]
    # Stock MXNet loads the parameters, which are the masters, and the symbol.
    fresh = network(None)
    fresh.load_parameters(str(tmp_path / "model-epoch11batch24.params"))
    for name, param in fresh._collect_params_with_prefix().items():
        np.testing.assert_array_equal(param.data().asnumpy(), parameters(made)[name])
    symbol = mx.sym.load(str(tmp_path / "model-symbol.json"))
    assert "amp_cast" not in symbol.tojson(remove_amp_cast=False)


def test_the_best_checkpoint_survives_a_resume(tmp_path):
    def best(limits, resume, values):
        made = estimator(loss_scale=16)
        metric = made.train_metrics[-1]
        saving = {"monitor": metric, "save_best": True, "mode": "min", "max_checkpoints": 1}
        handler = amp.CheckpointHandler(str(tmp_path), resume_from_checkpoint=resume, **saving)
        made.fit(loader(values), epochs=limits, event_handlers=[handler])
        return handler, metric.get()[1]

    handler, loss = best(2, False, EIGHT)
    assert handler.best == loss
    os.utime(tmp_path / "model-best.ckpt", (1, 1))
    resumed, later = best(3, True, -EIGHT)  # of the same labels
    assert resumed.best == loss < later
    assert os.path.getmtime(tmp_path / "model-best.ckpt") == 1
