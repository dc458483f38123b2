"""The C++ updates compute MXNet's bits for all parameters in one pass on any instruction set."""

import functools
import operator

import numpy as np
import pytest

from gluon_amp.base.host import host_copy
from gluon_amp.kernels import updates
from gluon_amp.optimizer import SGD, ExactFloat
from gluon_amp.optimizer.arrays import add_up
from tests.kernels.images import assert_same_bits
from tests.marks import needs_library

import mxnet as mx
from mxnet import gluon, nd

pytestmark = needs_library

SHAPES = [(3,), (1,), (64, 3, 7, 7), (17, 1), (301, 333)]
COUNT = len(SHAPES)
LRS = [0.1 * 0.9**k for k in range(COUNT)]
WDS = [1e-4 * k for k in range(COUNT)]
RESCALE = 1 / (3 * 256)


def normal(scale, seed, dtype="float32"):
    random = np.random.RandomState(seed)
    return [nd.array(random.normal(0, scale, s).astype(dtype), dtype=dtype) for s in SHAPES]


def copies(arrays):
    return [array.copy() for array in arrays]


def slots(weights, grads, *states, targets):
    """Return the arrays of all weights, weight by weight, and the number of arrays of each.

    `targets` are the masters, or the weights themselves if `weights` is None.
    """
    columns = [weights or targets, grads, *states, weights and targets]
    columns = [column for column in columns if column is not None]
    return [array for slot in zip(*columns) for array in slot], len(columns)


def same(actual, expected):
    """Assert equal bits in all arrays, except in the payload of NaNs."""
    for array, reference in zip(actual, expected):
        assert_same_bits(array.asnumpy(), reference.asnumpy())


def options(clip, **numbers):
    if clip:
        numbers["clip_gradient"] = clip
    return {name: ExactFloat(number) for name, number in numbers.items()}


def gradients(dtype):
    grads = normal(100, 1)
    # the bits of such an update should be the same, too
    grads[0][:] = nd.array([np.inf, np.nan, 6e4])
    return [grad.astype(dtype) for grad in grads]


@pytest.mark.parametrize(
    "dtype, clip, momentum",
    [("float16", None, 0.9), ("float16", 0.05, 0), ("float32", 0.05, 0.9), ("float32", None, 0)],
)
def test_sgd_gives_the_bits_of_mxnets_operators(instruction_set, dtype, clip, momentum):
    grads = gradients(dtype)
    targets = normal(0.1, 0)
    weights = [t.astype("float16") for t in targets] if dtype == "float16" else None
    momenta = normal(0.01, 2) if momentum else None
    ours = [column and copies(column) for column in (weights, momenta, targets)]

    name = ("mp_" if weights else "") + ("sgd_mom_update" if momentum else "sgd_update")
    for k in range(COUNT):
        arrays = [c[k] for c in (weights or targets, grads, momenta, weights and targets) if c]
        numbers = options(clip, lr=LRS[k], wd=WDS[k], rescale_grad=RESCALE)
        if momentum:
            numbers["momentum"] = ExactFloat(momentum)
        getattr(nd, name)(*arrays, out=arrays[0], **numbers)

    our_weights, our_momenta, our_targets = ours
    arrays, stride = slots(our_weights, grads, our_momenta, targets=our_targets)
    updates.sgd_update(arrays, stride, LRS, WDS, momentum, RESCALE, clip)
    same(our_targets, targets)
    same(our_weights or [], weights or [])
    same(our_momenta or [], momenta or [])


@pytest.mark.parametrize(
    "dtype, clip, decoupled",
    [("float16", None, True), ("float16", 0.05, False), ("float32", 0.05, True)],
)
def test_adam_gives_the_bits_of_mxnets_operator(instruction_set, dtype, clip, decoupled):
    grads = gradients(dtype)
    targets, means = normal(0.1, 0), normal(0.01, 2)
    variances = [array.abs() for array in normal(0.01, 3)]
    weights = [t.astype("float16") for t in targets] if dtype == "float16" else None
    ours = [column and copies(column) for column in (weights, means, variances, targets)]
    betas = {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}

    for k, target in enumerate(targets):
        before = target.asnumpy()
        wd = 0 if decoupled else WDS[k]
        arguments = options(clip, lr=LRS[k], wd=wd, rescale_grad=RESCALE, **betas)
        grad = grads[k].astype("float32")
        nd.adam_update(target, grad, means[k], variances[k], out=target, **arguments)
        if decoupled:  # as in _adamw_update, one float32 operation after the other
            lr, decay, epsilon = np.float32([LRS[k], LRS[k] * WDS[k], betas["epsilon"]])
            with np.errstate(invalid="ignore"):
                step = lr * means[k].asnumpy() / (np.sqrt(variances[k].asnumpy()) + epsilon)
            target[:] = nd.array(before - (step + decay * before))
        if weights:
            nd.cast(target, dtype="float16", out=weights[k])

    our_weights, our_means, our_variances, our_targets = ours
    arrays, stride = slots(our_weights, grads, our_means, our_variances, targets=our_targets)
    decays = [lr * wd if decoupled else 0 for lr, wd in zip(LRS, WDS)]
    wds = [0] * COUNT if decoupled else WDS
    updates.adam_update(
        arrays, stride, LRS, wds, **betas, rescale_grad=RESCALE, clip_gradient=clip, decays=decays
    )
    same(our_targets, targets)
    same(our_weights or [], weights or [])
    same(our_means + our_variances, means + variances)


def test_masters_follow_a_weight_that_somebody_wrote(instruction_set):
    targets = normal(0.1, 0)
    weights = [t.astype("float16") for t in targets]
    for weight in weights:
        weight[:1] = 0.5  # set_data, load_parameters, a broadcast
    weights[2][0, 0, 0, 0] = np.nan
    pairs = [(weight.asnumpy(), target.asnumpy()) for weight, target in zip(weights, targets)]
    expected = [nd.array(np.where(t.astype("f2") == w, t, w.astype("f4"))) for w, t in pairs]
    assert expected[0][0].asscalar() == 0.5
    synced = copies(targets)
    for weight, master in zip(weights, synced):
        updates.sync_master(weight, master)
    same(synced, expected)
    zeros = [nd.zeros_like(weight) for weight in weights]
    arrays, stride = slots(weights, zeros, targets=targets)
    updates.sgd_update(arrays, stride, LRS, [0] * COUNT, 0, 1, None)
    same(targets, expected)


@pytest.mark.parametrize("factor", [1.0, 0.25, 8.0])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_sums_of_float16_have_the_bits_of_mxnets_loops(instruction_set, monkeypatch, factor, count):
    """With and without the kernels, of all pairs of neighbours among all float16 values."""
    values = np.arange(2**16, dtype=np.uint16).view(np.float16)
    start = [nd.array(np.roll(values, k), ctx=mx.cpu(k), dtype="float16") for k in range(count)]
    here = [array.as_in_context(mx.cpu()) for array in start]
    terms = here if factor == 1 else [array * factor + 0 for array in here]
    expected = functools.reduce(operator.add, terms)
    for supported in (updates.supported, lambda arrays: False):
        monkeypatch.setattr(updates, "supported", supported)
        arrays = copies(start)
        add_up([arrays], factor)
        same(arrays, [expected] * count)


@pytest.mark.parametrize("bad", [-np.inf, np.nan])
def test_one_bad_element_is_found_in_its_array(instruction_set, bad):
    largest = {"float32": np.finfo("f4").max, "float16": 65504}
    arrays = normal(1, 0) + normal(1, 0, "float16")
    for array in arrays:
        array[-1:] = largest[np.dtype(array.dtype).name]
    assert updates.finite(arrays).all()
    for k, array in enumerate(arrays):
        for place in (0, array.size // 2, array.size - 1):
            values = array.asnumpy()
            values.ravel()[place] = bad
            actual = updates.finite(
                [*arrays[:k], nd.array(values, dtype=values.dtype), *arrays[k + 1 :]]
            )
            assert actual.tolist() == [i != k for i in range(len(arrays))]


def test_every_float16_value_is_finite_or_not_as_numpy_has_it(instruction_set):
    values = np.arange(2**16, dtype=np.uint16).view(np.float16)
    arrays = list(nd.array(values, dtype="float16").reshape((2**16, 1)).split(2**11, axis=0))
    expected = np.isfinite(values.reshape(2**11, -1)).all(axis=1)
    assert np.array_equal(updates.finite(arrays), expected)


def test_no_arrays_and_empty_ones():
    assert updates.finite([]).tolist() == []
    with mx.util.np_shape():
        empty = nd.zeros((0, 3))
        assert updates.finite([empty, nd.ones((2,))]).tolist() == [True, True]


def test_an_update_waits_for_what_comes_before_and_is_seen_by_what_comes_after():
    weight, grad, momentum = nd.ones((700, 700)), nd.ones((700, 700)), nd.zeros((700, 700))
    expected = 1.0
    for _ in range(5):
        grad = nd.dot(grad, nd.ones((700, 700))) / 700  # all ones again, after a while
        updates.sgd_update([weight, grad, momentum], 3, [0.25], [0], 0, 1, None)
        weight = weight * 2
        expected = (expected - 0.25) * 2
    assert (weight.asnumpy() == expected).all()


def test_an_update_of_a_slice_of_a_reordered_weight():
    net = gluon.nn.Conv2D(32, 3, in_channels=32, use_bias=False)
    net.initialize()
    net.hybridize()
    expected = net.weight.data().asnumpy()
    for _ in range(2):  # in inference oneDNN reorders the weight in place
        net(nd.ones((1, 32, 8, 8))).wait_to_read()
    part = net.weight.data()[8:16]
    optimizer = SGD(learning_rate=0.5)
    state = optimizer.create_state_multi_precision(0, part)
    optimizer.update(0, part, nd.ones(part.shape), state)
    expected[8:16] -= 0.5
    np.testing.assert_array_equal(host_copy(net.weight.data()), expected)


def test_float32_gradients_of_float16_weights():
    targets, grads, momenta = normal(0.1, 0), normal(1, 1), normal(0.01, 2)
    expected = copies(targets)
    for k in range(COUNT):
        arguments = options(None, lr=LRS[k], wd=WDS[k], rescale_grad=RESCALE, momentum=0.9)
        weight = expected[k]
        nd.sgd_mom_update(weight, grads[k], momenta[k].copy(), out=weight, **arguments)
    weights = [t.astype("float16") for t in targets]
    arrays, stride = slots(weights, grads, momenta, targets=targets)
    updates.sgd_update(arrays, stride, LRS, WDS, 0.9, RESCALE, None)
    same(targets, expected)
    same(weights, [t.astype("float16") for t in expected])
