"""The operators of the blocked layout neither read nor write beyond an array's end.

Each array ends, or begins, at a page that the process cannot access. So the process ends when a
kernel, of ours or of oneDNN, reads or writes beyond it. AddressSanitizer sees only our own code.
"""

import ctypes
import mmap
import os
import subprocess
import sys

import numpy as np
import pytest

from gluon_amp.base import registry
from tests.lowering.blocked_images import ELEMENTS, operator
from tests.marks import needs_library

import mxnet as mx
from mxnet import nd
from mxnet.ndarray.ndarray import DLContext, DLManagedTensor

pytestmark = needs_library

libc = ctypes.CDLL(None, use_errno=True)


def guarded(shape, element, at_end):
    """Return an array of ones beside a page without access; its memory is never freed."""
    dtype, code = {"bfloat16": (np.uint16, 4), "float32": (np.float32, 2)}[element]
    count, size = int(np.prod(shape)), np.dtype(dtype).itemsize
    pages = -(-count * size // mmap.PAGESIZE)
    memory = mmap.mmap(-1, (pages + 2) * mmap.PAGESIZE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for guard in (start, start + (pages + 1) * mmap.PAGESIZE):
        assert libc.mprotect(ctypes.c_void_p(guard), ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
    offset = mmap.PAGESIZE + (pages * mmap.PAGESIZE - count * size if at_end else 0)
    values = np.frombuffer(memory, dtype, count, offset)
    values[:] = 0x3F80 if element == "bfloat16" else 1
    sizes = (ctypes.c_int64 * len(shape))(*shape)
    tensor = DLManagedTensor()
    tensor.dl_tensor.data = start + offset
    tensor.dl_tensor.ctx = DLContext(1, 0)
    tensor.dl_tensor.ndim = len(shape)
    tensor.dl_tensor.dtype = (code, 8 * size, 1)
    tensor.dl_tensor.shape = ctypes.cast(sizes, ctypes.POINTER(ctypes.c_int64))
    handle = ctypes.c_void_p()
    call = mx.base._LIB.MXNDArrayFromDLPackEx
    assert call(ctypes.byref(tensor), True, ctypes.byref(handle)) == 0
    kept.append((memory, values, sizes, tensor))
    return nd.NDArray(handle)


kept = []


def groups(channels, lanes):
    return -(-channels // lanes)


def cases(seed):
    """Yield an operator, its attributes, and the shapes of its inputs, of odd sizes."""
    random = np.random.RandomState(seed)
    for _ in range(6):
        images, channels = random.randint(1, 6), random.randint(1, 68)
        width = random.randint(1, 71)
        height = random.randint(1, 70 // width + 1)
        lanes = int(random.choice([16, 16, 8, channels]))
        size = (height, width)
        plain, blocked = (
            (images, channels, *size),
            (images, groups(channels, lanes), *size, lanes),
        )
        filters = random.randint(1, 68)
        kernel = tuple(int(k) for k in random.choice([1, 2, 3, 5], size=2))
        pad = tuple(k // 2 for k in kernel)
        window = {
            "kernel": kernel,
            "pad": pad,
            "stride": tuple(int(s) for s in random.choice([1, 2, 3], size=2)),
            "channels": channels,
            "lanes": lanes if lanes in (8, 16) else 0,
        }
        weight = (filters, channels, *kernel)
        convolution = {**window, "num_filter": filters, "variable_weight": True}
        name = "_gluon_amp_blocked_convolution"
        yield name, convolution, [blocked, weight, (filters,)]
        yield name, {**convolution, "plain_data": True}, [plain, weight, (filters,)]
        name, weight = "_gluon_amp_blocked_deconvolution", (channels, filters, *kernel)
        wide = {**convolution, "pad": (0, 0)}  # so that the result has pixels
        yield name, wide, [blocked, weight, (filters,)]
        yield name, {**wide, "plain_data": True}, [plain, weight, (filters,)]
        name, weight = "_gluon_amp_depthwise", (channels, 1, *kernel)
        depthwise = {**window, "num_filter": channels, "num_group": channels}
        yield name, depthwise, [blocked, weight, (channels,)]
        yield name, {**depthwise, "plain_data": True}, [plain, weight, (channels,)]
        dense = {"num_hidden": filters, "variable_weight": True}
        columns = channels * height * width
        yield "_gluon_amp_dense", dense, [plain, (filters, columns), (filters,)]
        yield "_gluon_amp_block", {"lanes": window["lanes"]}, [plain]
        yield "_gluon_amp_unblock", {"channels": channels}, [blocked]
        yield "_gluon_amp_sum", {"num_args": 3}, [blocked] * 3
        concat = {"num_args": 2, "channels": (channels, channels), "lanes": window["lanes"]}
        yield "_gluon_amp_concat", concat, [blocked] * 2
        for kind in ("max", "avg"):
            yield "_gluon_amp_pool", {**window, "pool_type": kind}, [blocked]
        yield (
            "_gluon_amp_pool",
            {"channels": channels, "pool_type": "avg", "output_size": 2},
            [blocked],
        )
        pointwise = {
            "channels": channels,
            "num_inputs": 2,
            "program": "adds 0 3; clip 2 0 6; mul 1 3",
        }
        yield "_gluon_amp_pointwise", pointwise, [blocked] * 2
        per_channel = [(channels,)] * 4
        for program in ("", "relu 0"):
            norm = {"channels": channels, "num_extras": 0, "program": program}
            yield "_gluon_amp_norm", norm, [blocked, *per_channel]


# The number of inputs of low precision, if it is not 1
LOW_INPUTS = {"_gluon_amp_sum": 3, "_gluon_amp_concat": 2, "_gluon_amp_pointwise": 2}


def call_all(element, seed, at_end):
    """Call the operators alone, so that they read and write the guarded arrays themselves."""
    stored = "bfloat16" if element == "bfloat16" else "float32"
    for op, attributes, shapes in cases(seed):
        print(op, attributes, shapes, file=sys.stderr, flush=True)
        names = [f"x{i}" for i in range(len(shapes))]
        symbol = operator(op, names, "float16", **attributes)  # without casts
        count = LOW_INPUTS.get(op, 1)
        elements = [stored] * count + ["float32"] * (len(shapes) - count)

        def arrays():
            return {n: guarded(s, e, at_end) for n, s, e in zip(names, shapes, elements)}  # noqa: B023

        args, grads = arrays(), arrays()
        executor = symbol.bind(
            mx.cpu(),
            args={name: args[name] for name in symbol.list_arguments()},
            args_grad={name: grads[name] for name in symbol.list_arguments()},
            aux_states={name: args[name] for name in symbol.list_auxiliary_states()},
        )
        result = executor.forward(is_train=True)[0]
        head = guarded(result.shape, stored, at_end)
        executor.backward(head)
        nd.waitall()
        out = guarded(result.shape, stored, at_end)
        if len(symbol.list_outputs()) == 1:
            texts = list(map(str, attributes.values()))
            handle = registry.handle(op).value
            inputs = list(args.values())
            mx.nd._internal._imperative_invoke(
                handle, inputs, list(attributes), texts, out, False, False
            )
            nd.waitall()


CALLS = """
import sys
from tests.lowering.test_guard_pages import call_all
call_all(sys.argv[1], int(sys.argv[2]), sys.argv[3] == "end")
"""


BEYOND = """
import ctypes, sys
from tests.lowering.test_guard_pages import guarded, kept
guarded((3, 5), "float32", at_end=sys.argv[1] == "end")
values = kept[-1][1]
print("guarded", flush=True)
ctypes.string_at(values.ctypes.data + int(sys.argv[2]), 1)
print("read", flush=True)
"""


@pytest.mark.parametrize("side, byte, inside", [("end", 59, 1), ("end", 60, 0), ("start", -1, 0)])
def test_a_guarded_array_has_no_neighbours(side, byte, inside):
    done = subprocess.run(
        [sys.executable, "-c", BEYOND, side, str(byte)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.stdout.split() == ["guarded"] + ["read"] * inside


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("side", ["start", "end"])
def test_odd_shapes(element, side):
    for seed in range(2):
        done = subprocess.run(
            [sys.executable, "-c", CALLS, element, str(seed), side],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            timeout=280,
        )
        assert done.returncode == 0, done.stderr[-2000:]
