"""The operators of the blocked layout neither read nor write beyond an array's end.

Each array ends, or begins, at a page that the process cannot access. So the process ends when a
kernel, of ours or of oneDNN, reads or writes beyond it. AddressSanitizer sees only our own code.
"""

import ctypes
import mmap
import os
import signal
import sys

import numpy as np
import pytest

from tests.kernels.images import ELEMENTS, invoke, operator
from tests.kernels.products import Convolution, Deconvolution, Depthwise, random_case
from tests.lowering import printed
from tests.marks import needs_library

import mxnet as mx
from mxnet import nd
from mxnet.ndarray.ndarray import DLContext, DLManagedTensor

pytestmark = needs_library

libc = ctypes.CDLL(None, use_errno=True)
kept = []


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


def cases(seed, count):
    """Yield an operator, its attributes, and the shapes of its inputs, of odd sizes."""
    for number in range(count * seed, count * (seed + 1)):
        for make in (Convolution, Deconvolution, Depthwise):
            case = random_case(make, number)
            images, channels, *size = case.shape
            lanes = case.lanes or channels
            blocked = images, -(-channels // lanes), *size, lanes
            layout = {"channels": channels, "lanes": case.lanes, "plain_data": case.plain}
            attributes = {**case.options(), **layout, "variable_weight": True}
            shapes = [case.shape if case.plain else blocked, case.weight_shape()]
            yield case.op[11:], attributes, shapes + [(case.filters,)] * case.bias
        dense = {"num_hidden": case.filters, "variable_weight": True}
        weight = case.filters, int(np.prod(case.shape[1:]))
        yield "dense", dense, [case.shape, weight, (case.filters,)]
        yield "block", {"lanes": case.lanes}, [case.shape]
        yield "unblock", {"channels": channels}, [blocked]
        concat = {"num_args": 2, "channels": (channels, channels), "lanes": case.lanes}
        yield "concat", concat, [blocked] * 2
        window = {"kernel": (2, 3), "stride": (2, 1), "pad": (1, 1), "channels": channels}
        yield "pool", {**window, "pool_type": "max"}, [blocked]
        yield "pool", {**window, "pool_type": "avg"}, [blocked]
        yield "pool", {"channels": channels, "pool_type": "avg", "output_size": 2}, [blocked]
        program = {"channels": channels, "program": "adds 0 3; clip 2 0 6; mul 1 3"}
        yield "pointwise", {**program, "num_inputs": 2}, [blocked] * 2
        for program in ("", "relu 0"):
            norm = {"channels": channels, "num_extras": 0, "program": program}
            yield "norm", norm, [blocked, *[(channels,)] * 4]


# The number of inputs of low precision, if it is not 1
LOW_INPUTS = {"concat": 2, "pointwise": 2}


def call_all(element, seed, count, at_end):
    """Call the operators alone, so that they read and write the guarded arrays themselves."""
    stored = "bfloat16" if "bfloat16" in element else "float32"
    for op, attributes, shapes in cases(seed, count):
        print(element, at_end, op, attributes, shapes, file=sys.stderr, flush=True)
        names = [f"x{i}" for i in range(len(shapes))]
        attributes["in_float32"] = element in ("widened bfloat16", "float32")
        symbol = operator(f"_gluon_amp_{op}", names, "float16", **attributes)  # without casts
        low = LOW_INPUTS.get(op, 1)
        elements = [stored] * low + ["float32"] * (len(shapes) - low)
        args, grads = (
            {n: guarded(s, e, at_end) for n, s, e in zip(names, shapes, elements)} for _ in range(2)
        )
        executor = symbol.bind(
            mx.cpu(),
            args={name: args[name] for name in symbol.list_arguments()},
            args_grad={name: grads[name] for name in symbol.list_arguments()},
            aux_states={name: args[name] for name in symbol.list_auxiliary_states()},
        )
        result = executor.forward(is_train=True)[0]
        executor.backward(guarded(result.shape, stored, at_end))
        nd.waitall()
        if len(symbol.list_outputs()) == 1:
            out = guarded(result.shape, stored, at_end)
            invoke(f"_gluon_amp_{op}", list(args.values()), attributes, out)


CALLS = "import sys; from tests.kernels.test_guard_pages import main; main(*map(int, sys.argv[1:]))"


def main(first, last):
    for seed in range(first, last):
        for element in ELEMENTS:
            for at_end in (True, False):
                call_all(element, seed, 6, at_end)


@pytest.mark.parametrize(
    "at_end, byte, inside", [(True, 59, True), (True, 60, False), (False, -1, False)]
)
def test_a_guarded_array_has_no_neighbours(at_end, byte, inside):
    guarded((3, 5), "float32", at_end)
    address = kept[-1][1].ctypes.data + byte
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)  # MXNet's handler may wait for a lock
        ctypes.string_at(address, 1)
        os._exit(0)
    assert (os.waitpid(child, 0)[1] == 0) == inside


def test_odd_shapes():
    printed(CALLS, 0, 1)


@pytest.mark.slow
def test_many_odd_shapes():
    printed(CALLS, 1, 5)
