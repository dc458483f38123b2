"""`BucketingModule`: all buckets share parameters, optimizer and loss scale."""

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp.symbolic import BucketingModule, Module
from tests.symbolic.networks import on_device, same, values

import mxnet as mx
from mxnet import nd
from mxnet.io import DataBatch, DataDesc


def net_of(length):
    """Return a symbol that predicts the next of 8 words; all lengths share the parameters."""
    words = mx.sym.Embedding(mx.sym.var("data"), input_dim=8, output_dim=6, name="embed")
    x = mx.sym.FullyConnected(mx.sym.reshape(words, shape=(-1, 6)), num_hidden=8, name="fc")
    label = mx.sym.reshape(mx.sym.var("softmax_label"), shape=(-1,))
    return mx.sym.SoftmaxOutput(x, label, name="softmax"), ("data",), ("softmax_label",)


def sentences(length, rows=4):
    """Return rows that count modulo 8, each from another number."""
    words = (np.arange(rows)[:, None] * 3 + np.arange(length + 1)) % 8
    return DataBatch(
        [nd.array(words[:, :-1])],
        [nd.array(words[:, 1:])],
        bucket_key=length,
        provide_data=[DataDesc("data", (rows, length))],
        provide_label=[DataDesc("softmax_label", (rows, length))],
    )


class Sentences(mx.io.DataIter):
    """Batches of three lengths, one after another."""

    provide_data, provide_label = sentences(6).provide_data, sentences(6).provide_label
    default_bucket_key = 6

    def reset(self):
        self.rest = map(sentences, (6, 3, 5))

    def next(self):
        return next(self.rest)


def fitted(epochs, module=None, **fit):
    """Return a module after epochs of three steps, one in each bucket."""
    mx.random.seed(2)
    if module is None:
        module = BucketingModule(net_of, 6, loss_scale=amp.DynamicLossScale(2.0**6))
    settings = {"optimizer": "adam", "eval_metric": mx.metric.Perplexity(None), **fit}
    data = Sentences()
    data.reset()
    settings.update(optimizer_params={"learning_rate": 0.1}, initializer=mx.init.Xavier())
    module.fit(data, num_epoch=epochs, **settings)
    return module


def make_step(module, batch):
    module.forward(batch, is_train=True)
    module.backward()
    module.update()
    return module.last_report


def test_buckets_learn_with_one_scale_and_one_optimizer():
    module = fitted(30)
    assert dict(module.score(Sentences(), mx.metric.Perplexity(None)))["perplexity"] < 1.5
    modules = [module.buckets[key] for key in (3, 5, 6)]
    assert {one.trainer for one in modules} == {modules[0].trainer}
    assert {one.loss_scale for one in modules} == {module.loss_scale}
    assert module.loss_scale.finite_steps == modules[0].optimizer.num_update == 90
    weights = [on_device(one) for one in modules]
    assert {weight.dtype for weight in weights} == {np.float16}
    assert len({weight.asnumpy().tobytes() for weight in weights}) == 1


def test_a_checkpoint_resumes_bit_for_bit(tmp_path):
    prefix = str(tmp_path / "net")
    straight, first = fitted(3), fitted(1)
    first.save_checkpoint(prefix, 1, save_optimizer_states=True)
    options = {"default_bucket_key": 6, "load_optimizer_states": True}
    scale = amp.DynamicLossScale(2.0**6)
    second = BucketingModule.load(prefix, 1, net_of, loss_scale=scale, **options)
    fitted(3, second, begin_epoch=1)
    same(values(second), values(straight))
    for _ in range(2):  # in a bucket that is not the default one, and back
        for module in (second, straight):
            make_step(module, sentences(3))
        second.save_optimizer_states(str(tmp_path / "states"))
        second.load_optimizer_states(str(tmp_path / "states"))
        same(values(second), values(straight))
    stock = mx.mod.BucketingModule.load(prefix, 1, net_of, default_bucket_key=6)
    stock.bind(sentences(6).provide_data, sentences(6).provide_label, for_training=False)
    same(values(stock), values(first))


def test_loaded_symbols_run_in_place_of_those_of_sym_gen():
    inputs = mx.sym.var("data"), mx.sym.var("softmax_label")
    loaded = mx.sym.LinearRegressionOutput(*inputs, name="loaded")
    module = BucketingModule.load_dict({6: loaded}, net_of, 6, {}, {}, loss_scale=None)
    assert module.buckets[6].symbol.list_outputs() == ["loaded_output"]


def test_rebound_buckets_go_on():
    rebound, straight = fitted(1), fitted(1)
    rebound.bind(sentences(6).provide_data, sentences(6).provide_label, force_rebind=True)
    for module in (rebound, straight):
        make_step(module, sentences(5))
    same(values(rebound), values(straight))


def test_a_bucket_that_uses_a_part_of_the_parameters():
    def sym_gen(key):
        x = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=1, no_bias=True, name="fc")
        if key == 2:
            x = mx.sym.FullyConnected(x, num_hidden=1, no_bias=True, name="extra")
        head = mx.sym.LinearRegressionOutput(x, mx.sym.var("softmax_label"))
        return head, ["data"], ["softmax_label"]

    def weights_after(key):
        shapes = {"provide_data": data, "provide_label": label}
        batch = DataBatch([nd.ones((1, 1))], [nd.zeros((1, 1))], bucket_key=key, **shapes)
        make_step(module, batch)
        return {name: value.item() for name, value in values(module).items()}

    data, label = [DataDesc("data", (1, 1))], [DataDesc("softmax_label", (1, 1))]
    module = BucketingModule(sym_gen, 2, loss_scale=2.0)
    module.bind(data, label)
    module.init_params(mx.init.One())
    module.init_optimizer(optimizer_params={"learning_rate": 0.5})
    assert weights_after(1) == {"fc_weight": 0.5, "extra_weight": 1.0}
    # while the small bucket is the current one
    module.init_optimizer(optimizer_params={"learning_rate": 1.0}, force_init=True)
    assert weights_after(2) == {"fc_weight": 0.0, "extra_weight": 0.75}  # of 0.5 · 1
    assert weights_after(1) == {"fc_weight": 0.0, "extra_weight": 0.75}  # no gradient of `extra`


def test_the_loss_scale_is_checked_and_by_default_one_object():
    with pytest.raises(ValueError, match="must be a power of two"):
        BucketingModule(net_of, 6, loss_scale=100)
    module = BucketingModule(net_of, 6)
    assert module.buckets[6].loss_scale is module.loss_scale
    borrower = Module(net_of(3)[0])  # with a scale of its own
    borrower.borrow_optimizer(fitted(1).buckets[6])
    assert borrower.loss_scale is borrower.trainer.loss_scale
