"""Law 9: gradients of parts add up to the gradient of the whole batch."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gluon_amp as amp
from tests.laws.training import LOW_PRECISION, OPTIMIZERS
from tests.trainer.helpers import parameter, run

import mxnet as mx
from mxnet import autograd, nd
from mxnet.gluon import HybridBlock, nn

law = settings(deadline=None, derandomize=True, max_examples=12)
names = st.sampled_from(sorted(OPTIMIZERS))


class Loop(HybridBlock):
    """A dense layer in the body of a loop, over the rows of the batch."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.dense = nn.Dense(3, in_units=4)

    def hybrid_forward(self, F, x):
        def body(row, state):
            return self.dense(row.expand_dims(0)), state

        out, _ = F.contrib.foreach(body, x, [])
        return out.reshape((-1, 3))


def convolutions():
    net = nn.HybridSequential()
    net.add(nn.HybridLambda(lambda F, x: x.reshape((-1, 1, 2, 2))))
    net.add(nn.Conv2D(8, 2, padding=1, in_channels=1), nn.PReLU(), nn.Flatten())
    net.add(nn.Dense(3, in_units=72))
    return net


def dense():
    net = nn.HybridSequential()
    net.add(nn.Dense(5, activation="tanh", in_units=4), nn.Dense(3, in_units=5))
    return net


@pytest.mark.parametrize("make", [dense, convolutions, Loop])
@pytest.mark.parametrize("policy", LOW_PRECISION)
def test_parts_of_a_batch(policy, make):
    mx.random.seed(1)
    net = make()
    net.initialize(mx.init.Xavier())
    amp.cast(net, policy)
    x = nd.array(np.random.RandomState(0).normal(size=(8, 4)))
    net(x)
    found = []
    for parts, grad_req in ((1, "write"), (2, "add"), (4, "add")):
        for param in net.collect_params().values():
            param.grad_req = grad_req
            param.zero_grad()
        rows = 8 // parts
        for part in range(parts):
            with autograd.record():
                loss = (net(x[part * rows : (part + 1) * rows]) ** 2).sum()
            loss.backward()
        found.append({n: p.grad().asnumpy().astype("f8") for n, p in net.collect_params().items()})
    whole = found[0]
    rounding = 2**-7 if policy == "bfloat16" else 2**-10  # of the parts' gradients
    for parts in found[1:]:
        for name, gradient in whole.items():
            distance = np.linalg.norm(parts[name] - gradient) / np.linalg.norm(gradient)
            assert distance < 2 * rounding, name


@law
@given(names, st.integers(2, 5), st.data())
def test_across_a_change_of_scale(name, parts, data):
    change = data.draw(st.integers(1, parts - 1))
    factors = np.random.RandomState(parts).randint(-64, 65, (parts, 5)) / 128.0
    results = []
    for accumulated in (True, False):
        p = parameter("p", np.linspace(-1, 1, 5), grad_req="add" if accumulated else "write")
        loss_scale = amp.DynamicLossScale(init_scale=64)
        trainer = amp.Trainer([p], name, OPTIMIZERS[name], loss_scale=loss_scale)
        for _ in range(2):
            if accumulated:
                for part, factor in enumerate(factors):
                    if part == change:
                        loss_scale.update(False)  # as another trainer that shares it may do
                    run(trainer, [(p, factor)], step=False)
                report = trainer.step(parts)
                p.grad()[:] = 0
            else:
                report = run(trainer, [(p, factors.sum(axis=0))], parts)
            assert report.applied
        results.append(trainer.master_params()["p"].asnumpy())
    np.testing.assert_array_equal(*results)


@law
@given(names, st.integers(2, 5), st.data())
def test_float32_sums_are_those_of_numpy_in_the_same_order(name, parts, data):
    """Each pass is rounded to float16 once, whatever its scale; an overflowed one is left out."""
    scales = data.draw(st.lists(st.integers(0, 6), min_size=parts, max_size=parts))
    bad = data.draw(st.integers(1, parts))
    factors = np.random.RandomState(parts).normal(size=(parts, 5)).astype("f4")
    kept = [factor.astype("f2").astype("f4") for k, factor in enumerate(factors) if k != bad]
    total = kept[0]
    for factor in kept[1:]:
        total = total + factor
    results = []
    for accumulate in (True, False):
        p = parameter("p", np.linspace(-1, 1, 5), "float16" if accumulate else "float32")
        scale = amp.DynamicLossScale(2.0**6, min_scale=1.0)
        trainer = amp.Trainer([p], name, OPTIMIZERS[name], loss_scale=scale if accumulate else None)
        for k, factor in enumerate(factors if accumulate else [total]):
            if accumulate:
                scale.scale = 2.0 ** scales[k]
            with autograd.record():
                loss = (nd.cast(p.data(), dtype="float32") * nd.array(factor)).sum()
                loss = loss * (np.inf if accumulate and k == bad else 1.0)
            trainer.backward(loss, accumulate=accumulate)
        # the step counts a batch of 4 in each pass, so 4 · parts / kept of them in the sum
        report = trainer.step(4 * (parts if accumulate else len(kept)))
        assert (report.passes, report.dropped) == (
            (len(kept), parts - len(kept)) if accumulate else (1, 0)
        )
        results.append(trainer.master_params()["p"].asnumpy())
    if len(kept) == parts:
        np.testing.assert_array_equal(*results)
    else:
        np.testing.assert_allclose(*results, rtol=2**-20, atol=2**-24)


@pytest.mark.parametrize("policy", LOW_PRECISION)
def test_parts_of_a_batch_in_a_module(policy):
    data = np.random.RandomState(0).normal(size=(4, 4)).astype("f4")
    symbol = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3, name="fc")
    symbol = mx.sym.MakeLoss(mx.sym.square(symbol))
    found = []
    for rows, grad_req in ((4, "write"), (2, "add")):
        module = amp.symbolic.Module(symbol, label_names=None, policy=policy)
        module.bind([("data", (rows, 4))], grad_req=grad_req)
        mx.random.seed(2)
        module.init_params(mx.init.Xavier())
        for start in range(0, 4, rows):
            batch = mx.io.DataBatch([nd.array(data[start : start + rows])])
            module.forward_backward(batch)
        found.append([grads[0].asnumpy() for grads in module._exec_group.grad_arrays])
    for whole, parts in zip(*found):
        np.testing.assert_allclose(whole, parts, rtol=2**-6, atol=2**-9)
