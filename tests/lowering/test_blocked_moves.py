"""Blocked images: to and from the plain layout, forks, sums and concatenations."""

from typing import Dict, List, Optional, Sequence, Tuple

import numpy as np
import pytest

from gluon_amp.graph import from_json
from tests.lowering import printed
from tests.marks import needs_library

import mxnet as mx
from mxnet import autograd, nd

pytestmark = needs_library

DTYPES = ["bfloat16", "float32"]

# Channels, positions and lanes (0: as many as channels): whole tiles, parts of tiles, less than one
SHAPES = [
    (1, 16, 4, 4, 16),
    (2, 32, 8, 8, 16),
    (3, 3, 13, 5, 16),
    (1, 67, 1, 1, 16),
    (2, 64, 1, 1, 16),
    (2, 17, 7, 7, 16),
    (1, 40, 9, 7, 8),
    (2, 7, 1, 3, 8),
    (5, 24, 5, 5, 0),
    (1, 1, 2, 2, 0),
    (1, 67, 10, 7, 0),
    (2, 48, 12, 11, 0),
]


def run(
    op: str,
    attrs: Dict[str, str],
    arrays: Sequence[np.ndarray],
    dtype: str = "bfloat16",
    heads: Optional[Sequence[np.ndarray]] = None,
    outputs: int = 1,
    same_input: bool = False,
    grad_req: str = "write",
) -> Tuple[List[np.ndarray], List[np.ndarray]]:
    """Run an operator on arrays in a dtype; return its outputs and, with `heads`, the gradients.

    With `same_input`, the operator has as many inputs as outputs, all of them the one array.
    """
    nodes = [{"op": "null", "name": f"x{i}", "inputs": []} for i in range(len(arrays))]

    def add(name: str, inputs: list, attrs: dict) -> int:
        node = {"op": name, "name": f"n{len(nodes)}", "attrs": attrs, "inputs": inputs}
        nodes.append(node)
        return len(nodes) - 1

    def cast(entry: list, to: str) -> list:
        return [add("amp_cast", [entry], {"dtype": to}), 0, 0] if dtype == "bfloat16" else entry

    inputs = [cast([i, 0, 0], "bfloat16") for i in range(len(arrays))]
    if same_input:
        inputs = inputs * outputs
    node = add(op, inputs, attrs)
    heads_of_graph = [cast([node, i, 0], "float32") for i in range(outputs)]
    symbol = from_json({"nodes": nodes, "heads": heads_of_graph})
    data = [nd.array(array) for array in arrays]
    for array in data:
        array.attach_grad(grad_req)
        array.grad[:] = 1
    cached = nd.CachedOp(symbol, [("static_alloc", "True")])
    with autograd.record(heads is not None):
        results = cached(*data)
    results = results if isinstance(results, list) else [results]
    if heads is not None:
        autograd.backward(results, [nd.array(head) for head in heads])
    gradients = [array.grad.asnumpy() for array in data] if heads is not None else []
    return [result.asnumpy() for result in results], gradients


def integers(*shape: int, seed: int = 0) -> np.ndarray:
    """Return values that bfloat16 and float16 hold, as do sums of two of them."""
    return np.random.RandomState(seed).randint(-60, 60, shape).astype(np.float32)


def to_blocked(plain: np.ndarray, lanes: int) -> np.ndarray:
    """Return images (N, C, H, W) as (N, groups, H, W, lanes), with zeros as padding."""
    n, channels, height, width = plain.shape
    lanes = lanes or channels
    groups = -(-channels // lanes)
    padded = np.zeros((n, groups * lanes, height, width), np.float32)
    padded[:, :channels] = plain
    return padded.reshape(n, groups, lanes, height, width).transpose(0, 1, 3, 4, 2)


def to_plain(blocked: np.ndarray, channels: int) -> np.ndarray:
    """Return blocked images as (N, C, H, W)."""
    n, groups, height, width, lanes = blocked.shape
    plain = blocked.transpose(0, 1, 4, 2, 3).reshape(n, groups * lanes, height, width)
    return plain[:, :channels]


@pytest.mark.parametrize("dtype", DTYPES)
def test_block_and_its_gradient(instruction_set, dtype):
    for *shape, lanes in SHAPES:
        plain = integers(*shape)
        expected = to_blocked(plain, lanes)
        head = to_blocked(integers(*shape, seed=1), lanes)
        (out,), (grad,) = run("_gluon_amp_block", {"lanes": str(lanes)}, [plain], dtype, [head])
        np.testing.assert_array_equal(out, expected)
        np.testing.assert_array_equal(grad, to_plain(head, shape[1]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_unblock_and_its_gradient(instruction_set, dtype):
    for *shape, lanes in SHAPES:
        blocked, head = to_blocked(integers(*shape), lanes), integers(*shape, seed=1)
        attrs = {"channels": str(shape[1])}
        (out,), (grad,) = run("_gluon_amp_unblock", attrs, [blocked], dtype, [head])
        np.testing.assert_array_equal(out, to_plain(blocked, shape[1]))
        np.testing.assert_array_equal(grad, to_blocked(head, lanes))


def test_padding_of_the_input_is_ignored():
    blocked = np.full((1, 1, 2, 2, 16), 7, np.float32)
    (out,), (grad,) = run(
        "_gluon_amp_unblock", {"channels": "3"}, [blocked], heads=[np.ones((1, 3, 2, 2))]
    )
    np.testing.assert_array_equal(out, np.full((1, 3, 2, 2), 7))
    assert grad[..., :3].all() and not grad[..., 3:].any()


def test_gradients_of_images_add_up():
    plain = integers(2, 17, 3, 3)
    head = to_blocked(integers(2, 17, 3, 3, seed=1), 16)
    attrs = {"lanes": "16"}
    _, (grad,) = run("_gluon_amp_block", attrs, [plain], "float32", [head], grad_req="add")
    np.testing.assert_array_equal(grad, to_plain(head, 17) + 1)


def test_images_in_the_layout_of_a_convolution():
    """The result of oneDNN's convolution is blocked; the operator reads its values all the same."""
    data, weight = integers(2, 16, 6, 6) / 64, integers(32, 16, 1, 1, seed=1) / 64
    nodes = [
        {"op": "null", "name": "x", "inputs": []},
        {"op": "null", "name": "w", "inputs": []},
        {
            "op": "Convolution",
            "name": "conv",
            "inputs": [[0, 0, 0], [1, 0, 0]],
            "attrs": {"kernel": "(1, 1)", "num_filter": "32", "no_bias": "True"},
        },
        {"op": "_gluon_amp_block", "name": "b", "inputs": [[2, 0, 0]], "attrs": {"lanes": "16"}},
    ]
    symbol = from_json({"nodes": nodes, "heads": [[3, 0, 0]]})
    expected = np.einsum("nchw,fc->nfhw", data, weight[:, :, 0, 0])
    for static_alloc in ("True", "False"):
        op = nd.CachedOp(symbol, [("static_alloc", static_alloc)])
        for _ in range(2):
            out = op(nd.array(data), nd.array(weight)).asnumpy()
            np.testing.assert_allclose(out, to_blocked(expected, 16), rtol=1e-5, atol=1e-5)


def test_shapes_are_inferred_in_both_directions():
    graph = {"nodes": [{"op": "null", "name": "x", "inputs": []}]}
    node = {"name": "o", "inputs": [[0, 0, 0]]}
    graph["heads"] = [[1, 0, 0]]
    graph["nodes"].append({**node, "op": "_gluon_amp_block", "attrs": {"lanes": "8"}})
    block = from_json(graph)
    assert block.infer_shape(x=(2, 17, 3, 4))[1] == [(2, 3, 3, 4, 8)]
    assert block.infer_type(x="float32")[1] == [np.float32]
    with pytest.raises(mx.MXNetError, match="4 dimensions"):
        block.infer_shape(x=(2, 17, 3))
    graph["nodes"][1] = {**node, "op": "_gluon_amp_unblock", "attrs": {"channels": "17"}}
    unblock = from_json(graph)
    assert unblock.infer_shape(x=(2, 3, 3, 4, 8))[1] == [(2, 17, 3, 4)]
    for shape in [(2, 2, 3, 4, 8), (2, 4, 3, 4, 8), (2, 3, 3, 4)]:
        with pytest.raises(mx.MXNetError):
            unblock.infer_shape(x=shape)


@pytest.mark.parametrize(
    "op, attrs",
    [
        ("_gluon_amp_block", {"lanes": "-1"}),
        ("_gluon_amp_unblock", {}),
        ("_gluon_amp_unblock", {"channels": "-5"}),
        ("_gluon_amp_fork", {"num_outputs": "0"}),
        ("_gluon_amp_fork", {"num_outputs": "2"}),
        ("_gluon_amp_fork", {"num_outputs": "4294967297"}),
        ("_gluon_amp_sum", {}),
        ("_gluon_amp_sum", {"num_args": "2"}),
        ("_gluon_amp_concat", {"num_args": "1"}),
        ("_gluon_amp_concat", {"num_args": "1", "channels": "(40,)", "lanes": "16"}),
        ("_gluon_amp_concat", {"num_args": "2", "channels": "(8, 8)", "lanes": "16"}),
        ("_gluon_amp_concat", {"num_args": "1", "channels": "(-8,)", "lanes": "16"}),
        ("_gluon_amp_concat", {"num_args": "1", "channels": "(40,)"}),
    ],
)
def test_wrong_attributes_are_refused(op, attrs):
    with pytest.raises(mx.MXNetError, match=op):
        run(op, attrs, [np.zeros((1, 2, 3, 4, 16) if "_block" not in op else (1, 2, 3, 4))])


# ------------------------------------------------------------------------------- forks and sums


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("readers", [1, 2, 3, 9])
def test_fork_adds_the_gradients_of_its_readers(instruction_set, dtype, readers):
    data = integers(2, 2, 5, 7, 16)
    # The sums are exact in float32, but neither in bfloat16 nor in float16.
    heads = [rounded(integers(*data.shape, seed=i) * 0.97, dtype) for i in range(readers)]
    attrs = {"num_outputs": str(readers)}
    outs, (grad,) = run(
        "_gluon_amp_fork", attrs, [data], dtype, heads, outputs=readers, same_input=True
    )
    for out in outs:
        np.testing.assert_array_equal(out, data)
    np.testing.assert_array_equal(grad, rounded(sum(heads), dtype))


def rounded(values: np.ndarray, dtype: str) -> np.ndarray:
    """Round to bfloat16, or to float16 if `dtype` is float32, which holds emulated float16."""
    if dtype == "float32":
        return values.astype(np.float16).astype(np.float32)
    cast = nd.amp_cast(nd.array(values), dtype=np.dtype([("bfloat16", np.uint16)]))
    return nd.amp_cast(cast, dtype="float32").asnumpy()


@pytest.mark.parametrize("dtype", DTYPES)
def test_sum_and_its_gradient(instruction_set, dtype):
    for size in (1, 15, 16, 17, 70):
        arrays = [integers(1, 1, 1, size, 1, seed=i) for i in range(3)]
        head = integers(1, 1, 1, size, 1, seed=3)
        (out,), grads = run("_gluon_amp_sum", {"num_args": "3"}, arrays, dtype, [head])
        np.testing.assert_array_equal(out, rounded(sum(arrays), dtype))
        for grad in grads:
            np.testing.assert_array_equal(grad, head)


# Prints the time of each operator in a pass over a fork of a computed tensor with three readers
FORK = """
import sys
from gluon_amp import kernels
from gluon_amp.graph import from_json
from tests.lowering import printed
import mxnet as mx
from mxnet import autograd, nd, profiler

assert kernels.available()
nodes = [
    {"op": "null", "name": "x", "inputs": []},
    {"op": "_gluon_amp_block", "name": "b", "inputs": [[0, 0, 0]], "attrs": {"lanes": "16"}},
    {"op": "_gluon_amp_fork", "name": "f", "inputs": [[1, 0, 0]] * 3,
     "attrs": {"num_outputs": "3"}},
    *({"op": "_gluon_amp_unblock", "name": f"u{i}", "inputs": [[2, i, 0]],
       "attrs": {"channels": "64"}} for i in range(3)),
]
op = nd.CachedOp(from_json({"nodes": nodes, "heads": [[3, 0, 0], [4, 0, 0], [5, 0, 0]]}),
                 [("static_alloc", sys.argv[1])])
x = nd.ones((8, 64, 32, 32))
x.attach_grad()
profiler.set_config(profile_imperative=True, aggregate_stats=True, filename=sys.argv[2])
profiler.set_state("run")
with autograd.record():
    outs = op(x)
autograd.backward(outs)
assert x.grad.asnumpy().min() == x.grad.asnumpy().max() == 3
profiler.set_state("stop")
print(profiler.dumps(format="json"))
"""


@pytest.mark.parametrize("static_alloc", ["True", "False"])
def test_a_fork_leaves_no_sum_to_mxnet(static_alloc, tmp_path):
    profile = tmp_path / "profile.json"
    executed = printed(FORK, static_alloc, profile, timeout=100, MXNET_EXEC_BULK_EXEC_TRAIN="0")
    assert '"_backward_gluon_amp_fork"' in executed
    for absent in ("ElementWiseSum", "add_n", "_grad_add", "elemwise_add", "zeros_like", "_copy"):
        assert f'"{absent}"' not in executed


def test_the_outputs_of_a_fork_share_its_memory():
    def megabytes(forked: bool) -> str:
        readers = [
            {"op": op, "name": op, "inputs": [[2 if forked else 1, i if forked else 0, 0]]}
            for i, op in enumerate(("sin", "cos", "tanh"))
        ]
        nodes = [
            {"op": "null", "name": "x", "inputs": []},
            {"op": "relu", "name": "relu", "inputs": [[0, 0, 0]]},
            {
                "op": "_gluon_amp_fork",
                "name": "fork",
                "inputs": [[1, 0, 0]] * 3,
                "attrs": {"num_outputs": "3"},
            },
            *readers,
        ]
        symbol = from_json({"nodes": nodes, "heads": [[i, 0, 0] for i in (3, 4, 5)]})
        executor = symbol.simple_bind(mx.cpu(), grad_req="null", x=(1024, 1024))
        return executor.debug_str().splitlines()[-2]

    assert "MB allocated" in megabytes(True)
    assert megabytes(True) == megabytes(False)


# ------------------------------------------------------------------------------------- concat

CONCATENATIONS = [
    (16, [(16, 16), (32, 16)]),
    (16, [(32, 16), (17, 16)]),
    (16, [(3, 16), (40, 16), (20, 16)]),
    (8, [(12, 8), (24, 8), (1, 8)]),
    (0, [(24, 24), (40, 40)]),
    (0, [(5, 5), (3, 3), (7, 7)]),
    (16, [(24, 24), (8, 8)]),
    (16, [(35, 16)]),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lanes, parts", CONCATENATIONS)
def test_concat_and_its_gradient(dtype, lanes, parts):
    channels = [count for count, _ in parts]
    plain = [integers(3, count, 5, 3, seed=count) for count in channels]
    head = integers(3, sum(channels), 5, 3, seed=99)
    attrs = {"num_args": str(len(parts)), "channels": str(tuple(channels)), "lanes": str(lanes)}
    arrays = [to_blocked(array, count) for array, (_, count) in zip(plain, parts)]
    (out,), grads = run("_gluon_amp_concat", attrs, arrays, dtype, [to_blocked(head, lanes)])
    np.testing.assert_array_equal(out, to_blocked(np.concatenate(plain, 1), lanes))
    if all(narrow == lanes for _, narrow in parts):  # this is then the default
        del attrs["lanes"]
        (default,), _ = run("_gluon_amp_concat", attrs, arrays, dtype)
        np.testing.assert_array_equal(default, out)
    firsts = np.cumsum([0, *channels])
    for first, grad, (count, narrow) in zip(firsts, grads, parts):
        expected = to_blocked(head[:, first : first + count], narrow)
        np.testing.assert_array_equal(grad, expected)
