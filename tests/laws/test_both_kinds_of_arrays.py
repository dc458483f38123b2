"""Law 13: every public name works with the arrays of `mx.np` as with those of `mx.nd`."""

import tempfile

import numpy as np
import pytest

import gluon_amp as amp
from tests import kinds
from tests.laws.training import Training, batch, dense_net

import mxnet as mx
from mxnet import autograd, gluon
from mxnet.gluon.contrib.estimator import Estimator

pytestmark = pytest.mark.usefixtures("arrays")


def is_of_the_kind(array) -> bool:
    return isinstance(array, mx.np.ndarray) == mx.util.is_np_array()


def cast_and_policy_of():
    net = amp.cast(dense_net(), "float16")
    assert amp.policy_of(net).name == "float16"
    assert is_of_the_kind(net(batch(0)))


def trainer_and_report():
    training = Training("adam", 64)
    report = training.step(0)
    assert isinstance(report, amp.StepReport) and report.applied
    assert all(map(is_of_the_kind, training.trainer.master_params().values()))


def loss_scales():
    for scale in (amp.DynamicLossScale(4.0), amp.StaticLossScale(4.0), amp.NoLossScale()):
        assert isinstance(scale, amp.LossScale)
        assert Training("sgd", scale).step(0).applied


def optimizer():
    weight, gradient = kinds.ones((2,)), kinds.ones((2,))
    sgd = amp.optimizer.create("sgd", learning_rate=0.5)
    state = sgd.create_state_multi_precision(0, weight)
    sgd.update_multi_precision(0, weight, gradient, state)
    np.testing.assert_array_equal(weight.asnumpy(), [0.5, 0.5])


def checkpoints():
    saved, loaded = Training("adam", 64), Training("adam", 64)
    saved.step(0)
    with tempfile.TemporaryDirectory() as folder:
        amp.save_checkpoint(f"{folder}/file", saved.net, saved.trainer)
        amp.load_checkpoint(f"{folder}/file", loaded.net, loaded.trainer)
    assert loaded.everything() == saved.everything()


def check():
    assert amp.check(amp.cast(dense_net(), "float16"), None, batch(0)) is not None


def describe():
    rows = amp.describe(amp.cast(dense_net(), "float16"), batch(0)).rows
    assert {row.compute_dtype for row in rows if row.op == "FullyConnected"} == {"float16"}


def l2(out, label):
    return ((out - label) ** 2).mean()


def diagnose():
    net = amp.cast(dense_net(), "float16")
    found = amp.diagnose(net, l2, batch(0), kinds.ones((6, 3)))
    assert isinstance(found, amp.Diagnosis)


def averages():
    training = Training("sgd", 8)
    ema = amp.EMA(training.net, training.trainer, decay=0.5)
    training.step(0)
    assert all(map(is_of_the_kind, ema.averages.values()))
    with ema.applied():
        assert is_of_the_kind(training.net(batch(0)))


def suggest_policy():
    net = dense_net()
    policy = amp.suggest_policy(net, l2, batch(0), kinds.ones((6, 3)))
    assert policy == amp.Policy("float16")
    assert is_of_the_kind(net(batch(0)))


def watch():
    training = Training("sgd", 8)
    with amp.watch(training.net, training.trainer, every=1, what_if=["float16"]) as watched:
        training.step(0)
    assert len(watched.rows) > 4


def gradient_report():
    training = Training("sgd", 8)
    training.backward(0)
    assert amp.gradient_report(training.net, training.trainer).recommended_scale > 8


def contrib_amp():
    net = amp.cast(dense_net(), "mixed_float16")
    trainer = gluon.Trainer(net.collect_params(), "sgd", update_on_kvstore=False)
    amp.init_trainer(trainer)
    with autograd.record():
        loss = (net(batch(0)) * 2**-10).sum()
        with amp.scale_loss(loss, trainer) as scaled:
            autograd.backward(scaled)
    amp.unscale(trainer)
    bias = net[3].bias.grad()
    np.testing.assert_array_equal(bias.asnumpy(), [6 * 2**-10] * 3)
    assert is_of_the_kind(bias)


def input_gradient():
    net, x = amp.cast(dense_net()[3:], "float16"), kinds.ones((2, 8))
    gradient = amp.input_gradient(net, x)
    assert is_of_the_kind(gradient) and gradient.shape == x.shape


def estimator():
    training = Training("sgd", 8)
    fitted = Estimator(
        training.net,
        gluon.loss.L2Loss(),
        trainer=training.trainer,
        batch_processor=amp.BatchProcessor(),
    )
    _, _, _, loss = fitted.batch_processor.fit_batch(fitted, (batch(0), kinds.ones((6, 3))))
    amp.GradientUpdateHandler().batch_end(fitted, loss=loss)
    assert training.trainer.optimizer.num_update == 1


def leave():
    pytest.importorskip("onnxruntime")
    net = amp.cast(dense_net(), "float16")
    with tempfile.TemporaryDirectory() as folder:
        report = amp.export_onnx(net, f"{folder}/net.onnx", batch(0))
    assert {row.output for row in report.rows} == {"output"}


def leave_for_torch():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: run `make handover`")
    training = Training("sgd", 8)
    training.step(0)
    layers = torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 3)
    module = torch.nn.Sequential(*layers)
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    state = amp.torch_state_dict(training.net, module, batch(0))
    assert sorted(state) == sorted(module.state_dict())
    trained = training.trainer, training.net, module, optimizer
    assert amp.torch_training_state(*trained, batch(0))["scaler"]["scale"] == 8


CALLS = {
    cast_and_policy_of: "cast policy_of Policy",
    trainer_and_report: "Trainer StepReport",
    loss_scales: "DynamicLossScale StaticLossScale NoLossScale LossScale",
    optimizer: "optimizer",
    checkpoints: "save_checkpoint load_checkpoint",
    check: "check",
    describe: "describe",
    diagnose: "diagnose Diagnosis",
    averages: "EMA",
    suggest_policy: "suggest_policy",
    watch: "watch",
    gradient_report: "gradient_report",
    contrib_amp: "init_trainer scale_loss unscale",
    input_gradient: "input_gradient",
    estimator: "BatchProcessor GradientUpdateHandler",
    leave: "export_onnx",
    leave_for_torch: "torch_state_dict torch_training_state",
}
# They read or return no arrays, or MXNet has them for arrays of mx.nd alone.
WITHOUT_ARRAYS = "accumulation_dtype bits doctor float_table"
FOR_ND = "symbolic CheckpointHandler"


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
def test_a_public_name(call):
    call()


def test_every_public_name_is_tried():
    tried = " ".join([*CALLS.values(), WITHOUT_ARRAYS, FOR_ND]).split()
    assert sorted(tried) == sorted(amp.__all__)
