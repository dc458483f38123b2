"""Blocked images: to and from the plain layout, forks and concatenations."""

import numpy as np
import pytest

from gluon_amp.graph import from_json
from tests.kernels.images import (
    ELEMENTS,
    compute,
    integers,
    operator,
    rounded,
    to_blocked,
)
from tests.lowering import printed
from tests.marks import needs_library

import mxnet as mx
from mxnet import nd

pytestmark = needs_library

# Channels, positions and lanes (0: as many as channels): whole tiles, parts of tiles, less than one
SHAPES = [
    (1, 16, 4, 4, 16),
    (3, 3, 13, 5, 16),
    (1, 67, 1, 1, 16),
    (2, 17, 7, 7, 16),
    (1, 40, 9, 7, 8),
    (5, 24, 5, 5, 0),
    (1, 1, 2, 2, 0),
    (1, 67, 10, 7, 0),
]


@pytest.mark.parametrize("element", ELEMENTS)
def test_block_and_unblock_and_their_gradients(instruction_set, element):
    for *shape, lanes in SHAPES:
        plain, head = integers(*shape), integers(*shape, seed=1)
        blocked, blocked_head = to_blocked(plain, lanes), to_blocked(head, lanes)
        block = operator("_gluon_amp_block", ["x"], element, lanes=lanes)
        results = compute(block, {"x": plain}, blocked_head)
        np.testing.assert_array_equal(results["result"], blocked)
        np.testing.assert_array_equal(results["x"], head)
        unblock = operator("_gluon_amp_unblock", ["x"], element, channels=shape[1])
        results = compute(unblock, {"x": to_blocked(plain, lanes, padding=7)}, head)
        np.testing.assert_array_equal(results["result"], plain)
        np.testing.assert_array_equal(results["x"], blocked_head)


def test_gradients_of_images_add_up():
    plain, head = integers(2, 17, 3, 3), integers(2, 17, 3, 3, seed=1)
    block = operator("_gluon_amp_block", ["x"], "float16", lanes=16)
    results = compute(block, {"x": plain}, to_blocked(head, 16), "add")
    np.testing.assert_array_equal(results["x"], head + 1)


@pytest.mark.parametrize("static_alloc", [True, False])
def test_images_in_the_layout_of_a_convolution(static_alloc):
    """The result of oneDNN's convolution is blocked; the operator reads its values all the same."""
    data, weight = integers(2, 16, 6, 6) / 64, integers(32, 16, 1, 1, seed=1) / 64
    options = {"kernel": (1, 1), "num_filter": 32, "no_bias": True}
    convolution = mx.sym.Convolution(mx.sym.var("x"), mx.sym.var("w"), **options)
    block = operator("_gluon_amp_block", ["conv"], "float16", lanes=16)
    op = nd.CachedOp(block(conv=convolution), [("static_alloc", str(static_alloc))])
    expected = np.einsum("nchw,fc->nfhw", data, weight[:, :, 0, 0])
    for _ in range(2):
        out = op(nd.array(data), nd.array(weight)).asnumpy()
        np.testing.assert_allclose(out, to_blocked(expected, 16), rtol=1e-5, atol=1e-5)


# ---------------------------------------------------------------------------------------- forks


@pytest.mark.parametrize("element", ELEMENTS)
def test_fork_adds_the_gradients_of_its_readers(instruction_set, element):
    data = integers(2, 2, 5, 7, 16)
    for readers in (1, 2, 3, 9):
        # The sums are exact in float32, but neither in bfloat16 nor in float16.
        heads = [rounded(integers(*data.shape, seed=i) * 0.97, element) for i in range(readers)]
        fork = operator(
            "_gluon_amp_fork", ["x"] * readers, element, outputs=readers, num_outputs=readers
        )
        results = compute(fork, {"x": data}, heads)
        np.testing.assert_array_equal(results.pop("x"), rounded(sum(heads), element))
        assert len(results) == readers
        for out in results.values():
            np.testing.assert_array_equal(out, data)


def forked(readers=("sin", "cos", "tanh"), forked=True):
    """Return a graph of operators that read one computed tensor, or a fork of it."""
    nodes = [{"op": "null", "name": "x", "inputs": []}]
    nodes.append({"op": "relu", "name": "relu", "inputs": [[0, 0, 0]]})
    fork = {"op": "_gluon_amp_fork", "attrs": {"num_outputs": "3"}}
    nodes.append({**fork, "name": "fork", "inputs": [[1, 0, 0]] * 3})
    for i, op in enumerate(readers):
        read = [2, i, 0] if forked else [1, 0, 0]
        nodes.append({"op": op, "name": op, "inputs": [read]})
    return from_json({"nodes": nodes, "heads": [[i, 0, 0] for i in (3, 4, 5)]})


# Prints the time of each operator in a pass over a fork of a computed tensor with three readers
FORK = """
import sys
from gluon_amp import kernels
from tests.kernels.test_blocking import forked
from mxnet import autograd, nd, profiler

assert kernels.available()
x = nd.zeros((2, 64, 8, 8)) + 1
x.attach_grad()
profiler.set_config(profile_imperative=True, aggregate_stats=True, filename=sys.argv[1])
profiler.set_state("run")
for static_alloc in ("True", "False"):
    op = nd.CachedOp(forked(), [("static_alloc", static_alloc)])
    with autograd.record():
        outs = op(x)
    autograd.backward(outs)
    assert x.grad.asnumpy().min() == x.grad.asnumpy().max() != 0
profiler.set_state("stop")
print(profiler.dumps(format="json"))
"""


def test_a_fork_leaves_no_sum_to_mxnet(tmp_path):
    executed = printed(FORK, tmp_path / "p.json", timeout=100, MXNET_EXEC_BULK_EXEC_TRAIN="0")
    assert '"_backward_gluon_amp_fork"' in executed
    for absent in ("ElementWiseSum", "add_n", "_grad_add", "elemwise_add", "zeros_like", "_copy"):
        assert f'"{absent}"' not in executed


def test_the_outputs_of_a_fork_share_its_memory():
    def megabytes(symbol) -> str:
        executor = symbol.simple_bind(mx.cpu(), grad_req="null", x=(1024, 1024))
        return executor.debug_str().splitlines()[-2]

    assert "MB allocated" in megabytes(forked())
    assert megabytes(forked()) == megabytes(forked(forked=False))


# ------------------------------------------------------------------------------------- concat


@pytest.mark.parametrize(
    "lanes, parts",
    [
        (16, [(16, 16), (32, 16)]),
        (16, [(32, 16), (17, 16)]),
        (16, [(3, 16), (40, 16), (20, 16)]),
        (8, [(12, 8), (24, 8), (1, 8)]),
        (0, [(24, 24), (40, 40)]),
        (0, [(5, 5), (3, 3), (7, 7)]),
        (16, [(24, 24), (8, 8)]),
        (16, [(35, 16)]),
    ],
)
def test_concat_and_its_gradient(lanes, parts):
    channels = [count for count, _ in parts]
    plain = [integers(3, count, 5, 3, seed=count) for count in channels]
    head = integers(3, sum(channels), 5, 3, seed=99)
    arrays = {f"x{k}": to_blocked(plain[k], narrow) for k, (_, narrow) in enumerate(parts)}
    attrs = {"num_args": len(parts), "channels": tuple(channels), "lanes": lanes}
    for element in ELEMENTS:
        concat = operator("_gluon_amp_concat", arrays, element, low=arrays, **attrs)
        results = compute(concat, arrays, to_blocked(head, lanes))
        whole = to_blocked(np.concatenate(plain, 1), lanes)
        np.testing.assert_array_equal(results["result"], whole)
        for k, first in enumerate(np.cumsum([0, *channels])[:-1]):
            part = to_blocked(head[:, first : first + channels[k]], parts[k][1])
            np.testing.assert_array_equal(results[f"x{k}"], part)
