"""Runs an operator with a program on blocked arrays, and MXNet's operators in float32 beside it."""

from typing import Dict, List, NamedTuple, Optional, Sequence

import numpy as np

from gluon_amp.graph import from_json
from tests.lowering.test_blocked_moves import to_blocked, to_plain

from mxnet import autograd, nd

# Relative error of one rounding; DTYPES are those of the arrays, float32 holds float16 values.
ROUNDING = {"bfloat16": 2.0**-8, "float32": 2.0**-10}
DTYPES = list(ROUNDING)

# images, channels, height, width, lanes (0: as many as channels)
SHAPES = [
    (2, 16, 4, 4, 16),
    (3, 32, 28, 21, 16),  # several spans of an image
    (5, 3, 7, 10, 16),
    (1, 67, 3, 5, 16),
    (2, 17, 7, 7, 8),
    (4, 24, 1, 1, 8),
    (3, 5, 6, 1, 0),
    (2, 24, 5, 13, 0),
    (2, 67, 8, 8, 0),
    (2, 1, 70, 1, 0),
    (1, 600, 3, 4, 0),  # more lanes than a table of the kernels has
]


class Run(NamedTuple):
    """What a graph computed, as float32 arrays in the plain layout."""

    result: np.ndarray
    gradients: List[np.ndarray]
    padding: List[np.ndarray]  # what stands in the lanes beyond the last channel


def rounded(values: np.ndarray, dtype: str) -> np.ndarray:
    """Return the nearest values that arrays of this dtype hold here."""
    if dtype == "float32":
        return values.astype(np.float16).astype(np.float32)
    low = nd.amp_cast(nd.array(values), dtype=np.dtype([("bfloat16", np.uint16)]))
    return nd.amp_cast(low, dtype="float32").asnumpy()


def normal(shape: Sequence[int], dtype: str, seed: int = 0) -> np.ndarray:
    """Return random values that are already rounded."""
    return rounded(np.random.RandomState(seed).normal(size=shape).astype(np.float32), dtype)


def padding_of(blocked: np.ndarray, channels: int) -> np.ndarray:
    n, groups, height, width, lanes = blocked.shape
    plain = blocked.transpose(0, 1, 4, 2, 3).reshape(n, groups * lanes, height, width)
    return plain[:, channels:]


def run_operator(
    op: str,
    attrs: Dict[str, str],
    images: Sequence[np.ndarray],
    head: Optional[np.ndarray],
    dtype: str,
    lanes: int,
    statistics: Sequence[nd.NDArray] = (),
    grad_req: str = "write",
    train_mode: bool = True,
    passes: int = 1,
    static_alloc: bool = True,
) -> Run:
    """Run an operator on images (N, C, H, W); with `head`, compute the gradients of the images.

    `statistics` are further float32 inputs after the first image; their gradients are in their
    `grad`, if they have one. The padding of all images holds ones.
    """
    channels = images[0].shape[1]
    order = [images[0], *statistics, *images[1:]]
    data = [
        nd.array(_padded_with_ones(x, lanes)) if isinstance(x, np.ndarray) else x for x in order
    ]
    nodes = [{"op": "null", "name": f"x{i}", "inputs": []} for i in range(len(data))]

    def cast(source: list, to: str) -> list:
        if dtype == "float32":
            return source
        name, attrs = f"n{len(nodes)}", {"dtype": to}
        nodes.append({"op": "amp_cast", "name": name, "attrs": attrs, "inputs": [source]})
        return [len(nodes) - 1, 0, 0]

    is_image = [isinstance(x, np.ndarray) for x in order]
    inputs = [cast([i, 0, 0], "bfloat16") if is_image[i] else [i, 0, 0] for i in range(len(data))]
    attrs = {"channels": str(channels), **attrs}
    nodes.append({"op": op, "name": "op", "attrs": attrs, "inputs": inputs})
    symbol = from_json({"nodes": nodes, "heads": [cast([len(nodes) - 1, 0, 0], "float32")]})
    cached = nd.CachedOp(symbol, [("static_alloc", str(static_alloc))])
    arrays = [x for x, image in zip(data, is_image) if image]
    for array in arrays:
        array.attach_grad(grad_req)
    for _ in range(passes):
        if head is None:
            out = cached(*data)
            continue
        with autograd.record(train_mode=train_mode):
            out = cached(*data)
        out.backward(nd.array(to_blocked(head, lanes)))
    blocked = [out.asnumpy()]
    if head is not None and grad_req != "null":
        blocked += [array.grad.asnumpy() for array in arrays]
    plain = [to_plain(x, channels) for x in blocked]
    return Run(plain[0], plain[1:], [padding_of(x, channels) for x in blocked])


def _padded_with_ones(plain: np.ndarray, lanes: int) -> np.ndarray:
    mask = to_blocked(np.ones_like(plain), lanes)
    return to_blocked(plain, lanes) + (1 - mask)


def run_mxnet(
    function, images: Sequence[np.ndarray], head: Optional[np.ndarray], train_mode: bool = True
) -> Run:
    """Run MXNet's operators in float32 on the same images."""
    arrays = [nd.array(x) for x in images]
    for array in arrays:
        array.attach_grad()
    with autograd.record(train_mode=train_mode):
        out = function(*arrays)
    if head is None:
        return Run(out.asnumpy(), [], [])
    out.backward(nd.array(head))
    return Run(out.asnumpy(), [array.grad.asnumpy() for array in arrays], [])


def assert_close(actual: Run, expected: Run, dtype: str, roundings: float = 1) -> None:
    """Compare results and gradients; allow the rounding of each, and require zeros as padding."""
    assert len(actual.gradients) == len(expected.gradients)
    pairs = zip([actual.result, *actual.gradients], [expected.result, *expected.gradients])
    for i, (a, e) in enumerate(pairs):
        tolerance = roundings * ROUNDING[dtype]
        size = np.abs(e[np.isfinite(e)]).max(initial=0)
        message = "result" if i == 0 else f"gradient {i - 1}"
        np.testing.assert_allclose(
            a, e, rtol=tolerance, atol=1e-3 * tolerance * size + 1e-7, err_msg=message
        )
    for i, padding in enumerate(actual.padding):
        assert not np.any(padding), f"padding of array {i}"
