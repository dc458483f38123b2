"""Snapshots of running statistics: taken by one operator, put back bit for bit."""

import numpy as np
import pytest

import gluon_amp  # noqa: F401
from gluon_amp.undo import Snapshot, is_statistic

import mxnet as mx
from mxnet import autograd, gluon, nd


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


@pytest.mark.parametrize("devices", [1, 2])
def test_every_shape_dtype_and_device_comes_back(devices):
    kept = {
        "mean": [1.0, 2.0, 3.0],
        "table": [[1.5, -2.5], [np.inf, 0.1]],
        "scalar": [7.0],
    }
    parameters = [statistic(name, array, devices) for name, array in kept.items()]
    parameters.append(statistic("half", [0.5, 65504.0], devices, "float16"))
    before = [values(parameter) for parameter in parameters]
    snapshot = Snapshot()
    snapshot.take(parameters)
    for parameter in parameters:
        write(parameter, np.nan)
    snapshot.restore()
    assert [values(parameter) for parameter in parameters] == before


def test_all_bits_come_back():
    bits = np.array([0x00000001, 0x7FC12345, 0x80000000, 0x7F800000], np.uint32)
    parameter = statistic("p", bits.view(np.float32))
    snapshot = Snapshot()
    snapshot.take([parameter])
    write(parameter, 0)
    snapshot.restore()
    assert parameter.data().asnumpy().view(np.uint32).tolist() == bits.tolist()


def test_only_the_first_value_of_a_step_is_kept():
    first, second = statistic("a", [1.0]), statistic("b", [2.0])
    snapshot = Snapshot()
    snapshot.take([first])
    write(first, 5)
    snapshot.take([first, second])  # of the same size, so its buffer must be another
    write(second, 6)
    snapshot.restore()
    assert (values(first), values(second)) == ([[1.0]], [[2.0]])


def test_the_next_step_keeps_its_own_values_in_the_same_memory():
    parameter = statistic("p", [1.0, 2.0])
    snapshot = Snapshot()
    snapshot.take([parameter])
    ((_, buffer),) = snapshot._copies
    snapshot.clear()
    write(parameter, 3)
    snapshot.take([parameter])
    ((_, again),) = snapshot._copies
    assert again is buffer
    write(parameter, 4)
    snapshot.restore()
    assert values(parameter) == [[3.0, 3.0]]


def test_what_is_not_initialized_waits():
    parameter = gluon.Parameter("p", shape=(2,), grad_req="null", differentiable=False)
    snapshot = Snapshot()
    snapshot.take([parameter])
    snapshot.restore()
    parameter.initialize(mx.init.One())
    snapshot.take([parameter])
    write(parameter, 9)
    snapshot.restore()
    assert values(parameter) == [[1.0, 1.0]]


def test_nothing_is_recorded():
    parameter = statistic("p", [1.0])
    snapshot = Snapshot()
    x = nd.ones(1)
    x.attach_grad()
    with autograd.record():
        y = x * 2
        snapshot.take([parameter])
    y.backward()
    assert x.grad.asscalar() == 2


def test_which_parameters_are_statistics():
    net = gluon.nn.BatchNorm(in_channels=2)
    net.initialize()
    statistics = [name for name, p in net.collect_params().items() if is_statistic(p)]
    assert [name.rsplit("_", 1)[1] for name in statistics] == ["mean", "var"]
    net.gamma.grad_req = "null"  # frozen, but the optimizer's
    assert not is_statistic(net.gamma)
