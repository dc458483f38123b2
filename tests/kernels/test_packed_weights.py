"""Packed weights are those of the parameter's present value, and their memory is freed."""

import ctypes
import gc
import os

import numpy as np
import pytest

import gluon_amp as amp
from tests.kernels.images import ELEMENTS, normal, operator, to_blocked
from tests.marks import needs_library

import mxnet as mx
from mxnet import autograd, gluon, nd

pytestmark = needs_library


def product(variable=True, element="float16", hidden=2):
    """Return a dense layer without a bias, called with data and weight."""
    attrs = {"num_hidden": hidden, "no_bias": True, "variable_weight": variable}
    return nd.CachedOp(operator("_gluon_amp_dense", ["data", "weight"], element, **attrs))


@pytest.fixture(params=ELEMENTS)
def first(request):
    """Return a function: the first result of a layer, with a weight of 2 x 3 values."""
    layer, data = product(element=request.param), nd.array([[1, 2, 4]])
    return lambda weight: layer(data, weight).asnumpy()[0, 0]


WRITERS = {
    "in place": lambda weight: weight.__setitem__(slice(None), 2),
    "through a view": lambda weight: weight.reshape((3, 2)).__setitem__(slice(None), 2),
    "by out": lambda weight: nd.elemwise_add(weight, weight, out=weight),
}


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_a_written_weight_is_packed_again(first, write):
    """Also under bulk, where one operation of the engine writes and reads the weight."""
    weight = nd.ones((2, 3))
    assert first(weight) == 7
    for bulk in (0, 10):
        weight[:] = 1
        with mx.engine.bulk(bulk):
            write(weight)
            assert first(weight) == 14
        assert first(weight) == 14


def test_parts_of_an_array_are_different_weights(first):
    both = nd.array(np.repeat([1, 10], 6).reshape(4, 3))
    assert [first(both[:2]), first(both[2:]), first(both[1:3]), first(both[:2])] == [7, 70, 7, 7]


def test_memory_that_mxnet_does_not_own(first):
    values = np.ones((2, 3), np.float32)
    writable = values.view()
    weight = nd.from_numpy(values, zero_copy=True)
    assert first(weight) == 7
    writable[:] = 2
    assert first(weight) == 14


def test_new_weights_at_the_addresses_of_deleted_ones(first):
    for i in range(200):
        weight = nd.full((2, 3), i % 30)
        assert first(weight) == 7 * (i % 30)
        del weight


def test_layers_that_share_a_weight_in_several_shapes():
    data, values = nd.array([[1, 2, 4]]), nd.arange(12)
    layers = [(hidden, product(hidden=hidden)) for hidden in (1, 2, 2, 4)]
    for _ in range(3):
        for hidden, layer in layers:
            weight = values[: 3 * hidden].reshape((hidden, 3))
            expected = weight.asnumpy() @ [1, 2, 4]
            np.testing.assert_array_equal(layer(data, weight).asnumpy()[0], expected)
        values[:] = values + 1


def test_a_weight_that_the_graph_computes():
    layer, data = product(variable=False), nd.array([[1, 2, 4]])
    variable, weight = mx.sym.var("w"), nd.ones((2, 3))
    graph = mx.sym.relu(variable * 2)
    compute = nd.CachedOp(graph, [("static_alloc", "true"), ("static_shape", "true")])
    for value in (1, 2, 3):
        weight[:] = value
        assert layer(data, compute(weight)).asnumpy()[0, 0] == 14 * value


def resident():
    """Return the bytes of memory of this process, without what glibc keeps of freed memory."""
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/statm") as status:
        return int(status.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_memory_of_deleted_weights_is_freed():
    layer, data = product(hidden=1024), nd.ones((1, 1024))
    for i in range(25):  # 4 MB each, and as much packed
        layer(data, nd.ones((1024, 1024))).wait_to_read()
        gc.collect()
        if i == 5:
            before = resident()
    assert resident() - before < 40e6


def test_memory_of_the_last_net_is_freed_too():
    before = resident()
    net = amp.cast(gluon.nn.Dense(4096, in_units=4096), "mixed_float16")
    net.initialize()
    net(nd.ones((1, 4096))).wait_to_read()  # 64 MB, and half as much in float16
    assert resident() - before > 90e6
    del net
    gc.collect()
    nd.waitall()
    assert resident() - before < 40e6


def gradient_of_data(element, channels, filters, kernel, groups, variable, written=False):
    """Return the gradient of a convolution's data; the weight may be written before it."""
    attrs = {"kernel": (kernel, kernel), "num_filter": filters, "num_group": groups}
    attrs.update(no_bias=True, channels=channels, variable_weight=variable)
    names = ["data", "weight"]
    layer = nd.CachedOp(operator("_gluon_amp_blocked_convolution", names, element, **attrs))
    data = nd.array(to_blocked(normal((2, channels, 5, 6), element, 1), 16))
    weight = nd.array(
        np.random.RandomState(2).normal(size=(filters, channels // groups, *[kernel] * 2))
    )
    data.attach_grad()
    with autograd.record():
        out = layer(data, weight)
    if written:
        weight *= 2
    out.backward(nd.array(normal(out.shape, element, 3)))
    return data.grad.asnumpy()


@pytest.mark.parametrize(
    "channels, filters, kernel, groups",
    [(16, 16, 1, 1), (32, 64, 3, 1), (20, 40, 3, 1), (67, 17, 1, 1), (3, 5, 2, 1), (64, 32, 3, 2)],
)
def test_the_gradient_of_the_data_reads_the_same_weight(channels, filters, kernel, groups):
    """It is packed from the convolution's packed weight, if that is kept and still right."""
    for element in ELEMENTS:
        case = element, channels, filters, kernel, groups
        kept = gradient_of_data(*case, variable=True)
        assert np.abs(kept).max() > 1
        np.testing.assert_array_equal(kept, gradient_of_data(*case, variable=False))
        written = gradient_of_data(*case, variable=True, written=True)
        np.testing.assert_array_equal(2 * kept, written)
