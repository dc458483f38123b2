"""The bits of the C++ operators do not depend on the number of threads; threads may share them."""

import hashlib
import json
import threading

import numpy as np
import pytest

from tests.kernels import test_norm, test_products
from tests.kernels.images import ELEMENTS, compute, normal, to_blocked
from tests.kernels.products import Convolution, Depthwise, exact_results
from tests.lowering import printed
from tests.marks import needs_library

import mxnet as mx
from mxnet import nd

pytestmark = needs_library

PROGRAM = (
    "import json; from tests.kernels.test_threads import digests; print(json.dumps(digests()))"
)


def digests():
    """Return a digest of results, gradients and statistics for each of several operators."""
    cases = {name: test_products.CASES[name] for name in ("3x3", "first layer", "groups of 4")}
    found = {name: exact_results(case)[1] for name, case in cases.items()}
    pairs = {"kernel": (3, 3), "stride": (2, 2), "pad": (1, 1)}
    case = Depthwise((5, 40, 57, 57), 40, num_group=40, **pairs)
    head = normal((5, 40, 29, 29), "float16", 9)
    found["depthwise"] = case.compute(case.arrays("float16"), head, "float16")
    # Three groups: one thread and three process whole groups, two threads share them.
    for program, inputs in (("relu 0", 1), ("add 0 1; relu 2", 2), ("sigmoid 0; mul 0 1", 1)):
        images = [normal((3, 48, 28, 28), ELEMENTS[0], seed) for seed in range(inputs)]
        symbol = test_norm.norm(program, inputs - 1, ELEMENTS[0], 48)
        found[program] = compute(symbol, test_norm.arrays_of(images), to_blocked(images[0], 16))
    return {
        name: hashlib.sha1(b"".join(v.tobytes() for _, v in sorted(arrays.items()))).hexdigest()
        for name, arrays in found.items()
    }


@pytest.mark.parametrize("threads", ["2", "3"])
def test_threads_do_not_change_the_bits(threads):
    lines = printed(PROGRAM, OMP_NUM_THREADS=threads).splitlines()
    assert json.loads(lines[-1]) == digests()


# Several threads train the same layers; each must get the results that one thread alone gets.
TRAIN = "from tests.kernels.test_threads import train_in_threads; train_in_threads()"


def train_in_threads():
    wrong = []

    def train(case, element, passes):
        arrays = case.arrays(element)
        arrays["data"] = to_blocked(arrays["data"], case.lanes)
        arrays = {name: nd.array(values) for name, values in arrays.items()}
        grads = {name: nd.zeros(array.shape) for name, array in arrays.items()}
        executor = case.symbol(element).bind(mx.cpu(), args=arrays, args_grad=grads)
        wanted = None
        for _ in range(passes):
            (out,) = executor.forward(is_train=True)
            executor.backward(nd.ones(out.shape))
            actual = [array.asnumpy() for array in (out, *grads.values())]
            wanted = wanted or actual
            if not all(np.array_equal(a, b) for a, b in zip(actual, wanted)):
                wrong.append((case.shape, element))

    for element in ELEMENTS:
        case = Convolution((4, 64, 14, 14), 64, kernel=(3, 3), pad=(1, 1))
        threads = [threading.Thread(target=train, args=(case, element, 30)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong, wrong


@pytest.mark.parametrize("engine", ["ThreadedEnginePerDevice", "NaiveEngine"])
def test_threads_that_call_the_same_layer(engine):
    """In the naive engine, the threads that call an operator compute it."""
    printed(TRAIN, MXNET_ENGINE_TYPE=engine, MXNET_CPU_WORKER_NTHREADS="3")
