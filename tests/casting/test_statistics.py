"""Running statistics: which they are, what is kept of their passes, and snapshots of them."""

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp.casting import snapshots, statistics
from gluon_amp.graph import tape
from tests import kinds
from tests.casting.nets import OwnNorm
from tests.trainer.helpers import backward

import mxnet as mx
from mxnet import autograd, gluon


def statistic(name, values, devices=1, dtype="float32"):
    values = np.asarray(values, dtype=dtype)
    parameter = gluon.Parameter(
        name, shape=values.shape, dtype=dtype, grad_req="null", differentiable=False
    )
    parameter.initialize(mx.init.Zero(), ctx=[mx.cpu(n) for n in range(devices)])
    for array in parameter.list_data():
        array[:] = values
    return parameter


def write(parameter, value):
    """As BatchNorm does, in place and on every device."""
    for place, array in enumerate(parameter.list_data()):
        array[:] = value + place


def values(parameter):
    return [array.asnumpy().tolist() for array in parameter.list_data()]


def copied(parameters):
    return snapshots.take([a for p in parameters for a in p.list_data()])


def test_every_shape_dtype_and_device_comes_back(arrays, devices=2):
    kept = {
        "mean": [1.0, 2.0, 3.0],
        "table": [[1.5, -0.0], [np.inf, 0.1]],
        "scalar": [7.0],
    }
    parameters = [statistic(name, array, devices) for name, array in kept.items()]
    parameters.append(statistic("half", [0.5, 65504.0], devices, "float16"))
    before = [values(parameter) for parameter in parameters]
    copies = copied(parameters)
    assert len(copies) == 2 * devices  # an operator for each device and dtype
    for parameter in parameters:
        write(parameter, np.nan)
    snapshots.undo([snapshots.ended(copies)])
    assert [values(parameter) for parameter in parameters] == before


def test_what_was_written_after_the_pass_stays():
    first, second = statistic("a", [1.0, 2.0]), statistic("b", [3.0])
    copies = copied([first, second])
    write(first, np.nan)
    write(second, 5)
    ended = snapshots.ended(copies)
    second.set_data(kinds.array([8.0]))
    snapshots.undo([ended])
    assert (values(first), values(second)) == ([[1.0, 2.0]], [[8.0]])
    snapshots.undo([copies])  # of which no end is known
    assert (values(first), values(second)) == ([[1.0, 2.0]], [[3.0]])


@pytest.mark.parametrize("between, left", [(None, 1.0), (4.0, 4.0), (1.0, 1.0)])
def test_passes_over_the_same_arrays_hold_the_memory_of_one(between, left):
    parameter = statistic("p", [1.0])
    passes = ()
    for value in (2.0, np.nan, 3.0):
        if between is not None:
            write(parameter, between)
        copies = copied([parameter])
        write(parameter, value)
        passes = snapshots.followed_by(passes, snapshots.ended(copies))
    assert len(passes) == 1
    snapshots.undo(passes)
    assert values(parameter) == [[left]]


def test_passes_over_other_arrays_are_undone_last_first():
    first, second = statistic("a", [1.0]), statistic("b", [2.0])
    passes = ()
    for parameters in ([first], [first, second], [second], []):
        copies = copied(parameters)
        for parameter in parameters:
            write(parameter, values(parameter)[0][0] + 10)
        passes = snapshots.followed_by(passes, snapshots.ended(copies))
    assert len(passes) == 3
    snapshots.undo(passes)
    assert (values(first), values(second)) == ([[1.0]], [[2.0]])


def test_nothing_is_recorded():
    parameter = statistic("p", [1.0])
    x = kinds.ones(1)
    x.attach_grad()
    with autograd.record():
        y = x * 2
        snapshots.undo([snapshots.ended(copied([parameter]))])
    y.backward()
    assert x.grad.asnumpy().item() == 2


def test_which_parameters_are_statistics():
    net = gluon.nn.BatchNorm(in_channels=2)
    net.initialize()
    names = [name for name, p in net.collect_params().items() if statistics.is_statistic(p)]
    assert [name.rsplit("_", 1)[1] for name in names] == ["mean", "var"]
    net.gamma.grad_req = "null"  # frozen, but the optimizer's
    assert not statistics.is_statistic(net.gamma)


# ------------------------------------------------------------------------------ passes


def recorded(net, **mode):
    with autograd.record(**mode):
        return net(kinds.ones((3, 2)))


@pytest.mark.parametrize("hybridize", [False, True])
@pytest.mark.parametrize("make", [lambda: OwnNorm(2), lambda: gluon.nn.BatchNorm(in_channels=2)])
def test_a_pass_that_is_recorded_shows_what_it_writes(make, hybridize):
    """Of a net that no trainer and no cast knows."""
    net = make()
    net.initialize()
    if hybridize:
        net.hybridize()
    statistics.start_keeping()
    statistics.watch(net.collect_params().values())
    loss = recorded(net)
    (copies,) = statistics.begin_backward(tape.read([loss]), [])
    before = [array.asnumpy().tolist() for array in copies.arrays]
    assert before == [[0, 0], [1, 1]]
    loss.backward()
    mean, var = (p for p in net.collect_params().values() if p.grad_req == "null")
    assert all(map(statistics.is_statistic, (mean, var)))
    np.testing.assert_allclose(values(mean)[0], 0.1, rtol=1e-6)
    snapshots.undo([snapshots.ended([copies])])
    assert (values(mean), values(var)) == ([[0, 0]], [[1, 1]])


class Counter(mx.operator.CustomOp):
    def forward(self, is_train, req, in_data, out_data, aux):
        aux[0][:] += 1
        self.assign(out_data[0], req[0], in_data[0])

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        aux[0][:] += 10
        self.assign(in_grad[0], req[0], out_grad[0])


@mx.operator.register("gluon_amp_test_counter")
class CounterProp(mx.operator.CustomOpProp):
    def list_auxiliary_states(self):
        return ["count"]

    def infer_shape(self, shapes):
        return shapes, [shapes[0]], [[1]]

    def create_operator(self, ctx, shapes, dtypes):
        return Counter()


@pytest.mark.parametrize("hybridize", [False, True])
def test_what_the_forward_pass_writes_is_copied_before_it(hybridize):
    """As a GPU's BatchNorm, too; a weight without a gradient is copied only once."""

    class Counting(gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            with self.name_scope():
                self.weight = self.params.get("weight", shape=(2,), init="ones")
                self.frozen = self.params.get("frozen", shape=(2,), init="ones", grad_req="null")
                self.count = self.params.get("count", shape=(1,), init="zeros", grad_req="null")

        def hybrid_forward(self, F, x, weight, frozen, count):
            x = F.broadcast_mul(F.broadcast_mul(x, frozen), weight) * 2
            return F.Custom(x, count, op_type="gluon_amp_test_counter")

    net = Counting()
    net.initialize()
    if hybridize:
        net.hybridize()
    trainer = amp.Trainer(net.collect_params(), "sgd", loss_scale=8.0)
    amp.cast(net, "float32")  # which changes nothing here
    for bad, count in ((1.0, 11), (np.inf, 11), (1.0, 22)):
        backward(trainer, net, kinds.ones((3, 2)) * bad)
        trainer.step(3)
        assert values(net.count) == [[count]]
