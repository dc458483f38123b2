"""Wrong arguments and wrong order of calls: each error says what to do."""

import numpy as np
import pytest

from gluon_amp import Trainer, init_trainer
from gluon_amp.casting.parameters import bind_parameter
from tests.trainer.helpers import backward, parameter, run

import mxnet as mx
from mxnet import autograd, gluon


def test_a_float16_loss_is_refused():
    p = parameter("p", [1.0])
    trainer = Trainer([p], "sgd")
    with autograd.record():
        loss = p.data() * 2
    with pytest.raises(TypeError, match="The loss is float16, .* cast the network's output to"):
        trainer.backward(loss)
    with pytest.raises(ValueError, match="no loss"):
        trainer.backward([])
    for wrong in (None, 1.0, np.ones(2), [loss.astype("float32"), None], mx.sym.var("loss")):
        with pytest.raises(TypeError, match="The loss is .*, expected an NDArray or a list"):
            trainer.backward(wrong)


def test_a_trainer_built_before_a_cast_that_leaves_the_parameters_alone():
    p = parameter("p", [1.0], "float32")
    trainer, sure = Trainer([p], "sgd"), Trainer([p], "sgd", loss_scale=8)
    bind_parameter(p, "float16")
    with pytest.raises(RuntimeError, match="before the cast of p: build it after amp.cast"):
        run(trainer, [(p, [1.0])])
    assert run(sure, [(p, [1.0])]).applied


def test_updates_on_the_kvstore_are_refused():
    p = parameter("p", [1.0])
    with pytest.raises(ValueError, match="update_on_kvstore=True would apply gradients before"):
        Trainer([p], "sgd", update_on_kvstore=True)
    Trainer([p], "sgd", update_on_kvstore=False)
    with pytest.raises(ValueError, match="async kvstore .* use 'dist_sync'"):
        Trainer([p], "sgd", kvstore="dist_async")
    with pytest.raises(ValueError, match="Gradient compression"):
        Trainer([p], "sgd", compression_params={"type": "2bit", "threshold": 0.5})
    Trainer([p], "sgd", compression_params={"type": "2bit", "threshold": 0.5}, loss_scale=None)


@pytest.mark.parametrize("wrong", [0, None, "8", mx.nd.array([1, 2]), mx.nd.array([-1])])
def test_wrong_numbers(wrong):
    p = parameter("p", [1.0])
    trainer = Trainer([p], "sgd")
    run(trainer, [(p, [1.0])], step=False)
    with pytest.raises((ValueError, TypeError), match="batch.size (must be|is missing)"):
        trainer.step(wrong)
    with pytest.raises(ValueError, match="max_norm must be a number above 0"):
        trainer.clip_global_norm(wrong, 1)
    with pytest.raises(ValueError, match="max_consecutive_skips must be a whole number"):
        Trainer([p], "sgd", max_consecutive_skips=wrong)


def test_an_optimizer_of_float32_parameters_stays_as_it_is():
    optimizer = mx.optimizer.SGD()
    Trainer([parameter("p", [1.0], "float32")], optimizer)
    assert not optimizer.multi_precision


@pytest.mark.parametrize(
    "method, size",
    [
        ("step", np.inf),
        ("step", mx.nd.array([np.inf])),
        ("update", np.nan),
        ("update", 5e-324),
        ("clip_global_norm", -1),
        ("clip_global_norm", np.inf),
    ],
)
def test_a_batch_size_by_which_nothing_can_be_divided(method, size):
    p = parameter("p", [1.0])
    trainer = Trainer([p], "sgd", {"wd": 0.5}, loss_scale=8)
    run(trainer, [(p, [0.5])], step=False)
    call = getattr(trainer, method)
    with pytest.raises(ValueError, match="batch_size"):
        call(1.0, size) if method == "clip_global_norm" else call(size)
    assert p.data().asscalar() == 1
    assert trainer.step(1).applied


@pytest.mark.parametrize("size", [4, np.float32(4), mx.nd.array([4]), mx.np.array(4)])
def test_batch_sizes_of_any_type(size):
    p = parameter("p", [1.0])
    run(Trainer([p], "sgd", {"learning_rate": 0.5}, loss_scale=8), [(p, [0.5])], size)
    assert p.data().asscalar() == 1 - 0.5 * 0.5 / 4


@pytest.mark.parametrize("optimizer", [None, mx.optimizer.SGD])
def test_an_optimizer_of_another_type(optimizer):
    with pytest.raises(TypeError, match=r"^The optimizer must be a name such as 'sgd'.*\.$"):
        Trainer([parameter("p", [1.0])], optimizer)


def embedding():
    net = gluon.contrib.nn.SparseEmbedding(3, 2)
    net.initialize(mx.init.One())
    return net


@pytest.mark.parametrize("way", ["Trainer", "init_trainer"])
def test_row_sparse_parameters_train_without_a_scale_as_in_mxnet(way):
    net, settings = embedding(), {"learning_rate": 0.5}
    if way == "Trainer":
        trainer = Trainer(net.collect_params(), "sgd", settings)
    else:
        trainer = gluon.Trainer(net.collect_params(), "sgd", settings)
        init_trainer(trainer)
    for _ in range(2):
        backward(trainer, net, mx.nd.array([0, 2, 2]))
        assert trainer.step(2).applied
    rows = net.weight.row_sparse_data(mx.nd.arange(3)).asnumpy()
    np.testing.assert_array_equal(rows, [[0.5, 0.5], [1, 1], [0, 0]])
    for call in (
        trainer.state_dict,
        trainer.master_params,
        trainer.allreduce_grads,
        lambda: trainer.load_states("missing"),
        lambda: trainer.update(1),
        lambda: trainer.clip_global_norm(1, 1),
    ):
        with pytest.raises(ValueError, match=r"row_sparse.*sparse_grad=True"):
            call()


def test_row_sparse_parameters_are_refused_with_a_scale():
    trainer = gluon.Trainer(embedding().collect_params(), "sgd")
    with pytest.raises(ValueError, match=r"row_sparse.*sparse_grad=True"):
        Trainer(embedding().collect_params(), "sgd", loss_scale="dynamic")
    with pytest.raises(ValueError, match=r"row_sparse.*sparse_grad=True"):
        init_trainer(trainer, loss_scale=8)
