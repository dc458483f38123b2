"""Running statistics: which they are, what is kept of their passes, and snapshots of them."""

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp.casting import snapshots, statistics
from tests import kinds

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


# ------------------------------------------------------------------------------ announcements


def announced(use):
    """Return names of the statistics in the snapshots of a backward pass after `use`."""
    net = gluon.nn.BatchNorm(in_channels=2, prefix="norm_")
    net.initialize()
    trainer = amp.Trainer({}, "sgd", loss_scale=8)  # of other parameters
    statistics.watch(net.collect_params().values())
    statistics.forget(undone=True)
    use(net)
    snapshots = statistics.begin_backward([])
    assert trainer.loss_scale.scale == 8
    names = {id(p.data()): name for name, p in net.collect_params().items()}
    return [names[id(array)] for one in snapshots for array in one.arrays]


def forward(net, hybridize=False, **mode):
    if hybridize:
        net.hybridize()
    with autograd.record(**mode):
        net(kinds.ones((3, 2)))


@pytest.mark.parametrize("hybridize", [False, True])
def test_a_training_pass_announces_its_statistics(hybridize):
    names = announced(lambda net: forward(net, hybridize))
    assert sorted(names) == ["norm_running_mean", "norm_running_var"]


def test_an_inference_pass_announces_nothing():
    assert announced(lambda net: net(kinds.ones((3, 2)))) == []
    assert announced(lambda net: forward(net, train_mode=False)) == []


def test_the_end_of_a_step_forgets_the_pass():
    def use(net):
        forward(net)
        statistics.forget(undone=False)  # another trainer's, without a loss scale
        assert len(statistics.begin_backward([])) == 1
        statistics.forget(undone=True)

    assert announced(use) == []


def test_a_device_that_writes_in_the_forward_pass_is_copied_there(monkeypatch):
    """As with cuDNN; the test itself writes the statistics."""
    monkeypatch.setattr(statistics, "writes_in_backward", lambda array: False)
    parameter = statistic("p", [1.0])
    trainer = amp.Trainer({}, "sgd", loss_scale=8)
    statistics.watch([parameter])
    for value in (1.0, 2.0):
        write(parameter, value)
        with autograd.record():
            parameter.data()
            write(parameter, 5)
            parameter.data()
        copies = snapshots.ended(statistics.begin_backward([parameter]))
        snapshots.undo([copies])
        assert values(parameter) == [[value]]
    assert trainer.loss_scale.scale == 8
