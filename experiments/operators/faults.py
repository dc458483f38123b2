"""Faults of MXNet 1.9.1 that a cast net does not have, each with a program that shows it.

`docs/mxnet_faults.md` has the words of each. `make operators` runs each program in a process of its
own, as some crash. The programs use stock MXNet alone.
"""

import re
import subprocess
import sys
from typing import Callable, List, Tuple

import numpy as np

from experiments import ROOT
from experiments.pages import DOCS
from gluon_amp.base.startup import compat  # noqa: F401, without which MXNet cannot be imported

import mxnet as mx
from mxnet import autograd, nd
from mxnet.gluon import nn, rnn

X, Y = mx.sym.var("x"), mx.sym.var("y")
SHOWN = 10  # the exit status of a program that showed its fault

Shows = Callable[[], bool]  # it returns whether the fault is there, or crashes
FAULTS: List[Tuple[str, Shows]] = []  # the first words of a row of the page, and its program


def fault(operator: str) -> Callable[[Shows], Shows]:
    """Add a program to `FAULTS`."""

    def add(shows: Shows) -> Shows:
        FAULTS.append((operator, shows))
        return shows

    return add


def graph(symbol: mx.sym.Symbol, **flags: bool) -> nd.CachedOp:
    """Return what runs a symbol as a hybridized block does."""
    return nd.CachedOp(symbol, list(flags.items()))


def gradients(run: Callable, *arrays: nd.NDArray, request: str = "write", held: float = 0) -> list:
    """Return the gradients of a pass, in arrays that hold a number before it."""
    for array in arrays:
        array.attach_grad(request)
        array.grad[:] = held
    with autograd.record():
        result = run(*arrays)
    result.backward()
    return [array.grad.asnumpy().tolist() for array in arrays]


def twice(run: Callable, array: nd.NDArray) -> bool:
    """Return whether a second backward pass on the graph of the first has another gradient."""
    array.attach_grad()
    with autograd.record():
        result = run(array)
    found = []
    for _ in range(2):
        result.backward(retain_graph=True)
        found.append(array.grad.asnumpy().tolist())
    return found[0] != found[1]


@fault("`LeakyReLU` with `act_type='prelu'`, `nn.PReLU`")
def _() -> bool:
    symbol = mx.sym.LeakyReLU(X * 1, Y, act_type="prelu") * 1
    return gradients(graph(symbol), nd.array([[-4.0]]), nd.array([0.25])) == [[[0.25]], [-1.0]]


@fault("`hard_sigmoid`")
def _() -> bool:
    x = X * 1
    return not np.isclose(gradients(graph((mx.sym.hard_sigmoid(x) + x) * 1), nd.array([0.5])), 1.2)


@fault("`Dropout`")
def _() -> bool:
    mx.random.seed(1)
    return twice(lambda x: nd.Dropout(x, p=0.5), nd.ones(64))


@fault("`linalg.det`, `linalg.slogdet`")
def _() -> bool:
    return twice(nd.linalg.det, nd.array([[2.0, 1], [1, 3]]))


@fault("`RNN`, `rnn.LSTM`, `rnn.GRU`")
def _() -> bool:
    net = rnn.LSTM(8, 2, dropout=0.9)
    net.initialize()
    x = nd.random.uniform(shape=(5, 2, 4))
    with autograd.train_mode():
        return net(x).asnumpy().tolist() == net(x).asnumpy().tolist()


@fault("`contrib.ROIAlign`")
def _() -> bool:
    values = mx.sym.contrib.ROIAlign(X, Y, (2, 2), 1.0)
    run = graph(values * 1 + values, static_alloc=True, static_shape=True)

    def align(image: int) -> np.ndarray:
        return run(nd.ones((1, 4, 4, 4)), nd.array([[image, 0, 0, 3, 3]])).asnumpy()

    align(0)  # what it leaves in memory
    return bool(align(-1).any())


@fault(
    "`clip`, `mean`, `reverse`, `split` and "
    "[others](results/operators.md#gradients-that-are-not-added)"
)
def _() -> bool:
    return gradients(nd.mean, nd.ones(2), request="add", held=4) != [[4.5] * 2]


@fault("`elemwise_add`")
def _() -> bool:
    add = graph(X + Y, static_alloc=True, static_shape=True)
    return gradients(lambda x: add(x, nd.ones(3)), nd.ones(3), request="add", held=4) != [[5.0] * 3]


@fault("`contrib.cond`")
def _() -> bool:
    symbol = mx.sym.contrib.cond(X.sum() > 0, lambda: X * 2, lambda: Y * 3)
    run = graph(symbol)
    order = symbol.list_inputs()
    at = order.index("y")
    return gradients(lambda *a: run(*a), *(nd.ones(1) for _ in order), held=7)[at] == [7.0]


@fault("`FullyConnected`, `nn.Dense`")
def _() -> bool:
    def dense(bias: nd.NDArray) -> nd.NDArray:
        return nd.FullyConnected(nd.ones((2, 3)), nd.ones((4, 3)), bias, num_hidden=4)

    return gradients(dense, nd.zeros(4), held=7) == [[7.0] * 4]


@fault("`FullyConnected`, `nn.Dense`")
def _() -> bool:
    x, w, v = (nd.array([[value]]) for value in (2.0, 3.0, 5.0))
    for array in (x, w, v):
        array.attach_grad()
    with autograd.record():
        hidden = nd.square(nd.FullyConnected(x, w, num_hidden=1, no_bias=True))
        result = nd.FullyConnected(hidden, v, num_hidden=1, no_bias=True)
        penalty = autograd.grad(result, [x], create_graph=True)[0] ** 2
    penalty.backward()
    return w.grad.asscalar() != 16 * 5**2 * 3**3 * 2**2  # the derivative of (2 v w² x)² by w


@fault("`np.linalg.norm` of a matrix, with `ord` 1, 2 or infinity")
def _() -> bool:
    with mx.util.np_shape(True), mx.util.np_array(True):
        x, found = mx.np.array([[1.0, 2], [3, 4]]), []
        x.attach_grad()
        for head in (1.0, 16.0):
            with autograd.record():
                norm = mx.np.linalg.norm(x, ord=1)
            norm.backward(mx.np.array(head))
            found.append(x.grad.asnumpy())
    return not np.array_equal(found[0] * 16, found[1])


@fault("`optimize_for('MKLDNN')`, `hybridize(backend='MKLDNN')`")
def _() -> bool:
    net = nn.HybridSequential()
    net.add(nn.Conv2D(8, 3, activation="relu"), nn.Dense(2))
    net.initialize()
    x = nd.random.uniform(shape=(2, 3, 8, 8))
    net(x)
    net.optimize_for(x, backend="MKLDNN")
    with autograd.record():
        loss = net(x).sum()
    loss.backward()
    return not any(p.grad().asnumpy().any() for p in net.collect_params().values())


@fault("`BatchNorm` with `fix_gamma=True`")
def _() -> bool:
    gamma = nd.array([3.0])
    nd.BatchNorm(nd.ones((2, 1)), gamma, nd.zeros(1), nd.zeros(1), nd.ones(1)).wait_to_read()
    return gamma.asscalar() == 1.0


@fault("`Deconvolution` in float64")
def _() -> bool:
    options = {**dict.fromkeys(("kernel", "stride", "dilate"), (2, 2)), "num_filter": 1}
    found = [
        nd.Deconvolution(
            nd.ones((1, 1, 3, 3), dtype=dtype),
            nd.ones((1, 1, 2, 2), dtype=dtype),
            no_bias=True,
            **options,
        ).asnumpy()
        for dtype in ("float32", "float64")
    ]
    return not np.array_equal(*found)


@fault("`Deconvolution`, `nn.Conv2DTranspose`")
def _() -> bool:
    def run(x: nd.NDArray, weight: nd.NDArray) -> nd.NDArray:
        return nd.Deconvolution(x, weight * 1, kernel=(3, 3), num_filter=8, no_bias=True)

    try:
        gradients(run, nd.ones((2, 4, 8, 8)), nd.ones((4, 8, 3, 3)))
    except mx.MXNetError:
        return True
    return False


@fault("`Module.get_params`, `save_checkpoint`")
def _() -> bool:
    shape = (64, 32, 64, 64)
    norm = mx.sym.BatchNorm(mx.sym.var("data"), name="norm")
    module = mx.mod.Module(mx.sym.make_loss(mx.sym.mean(norm * norm)), label_names=None)
    module.bind([("data", shape)])
    module.init_params()
    module.init_optimizer()
    batch = mx.io.DataBatch([nd.ones(shape)])
    nd.waitall()
    module.forward_backward(batch)
    module.update()
    return not module.get_params()[1]["norm_moving_mean"].asnumpy().any()


@fault("`softmax(axis=-1)` of a convolution's result")
def _() -> bool:
    weight = nd.ones((16, 16, 3, 3))
    found = nd.Convolution(
        nd.ones((2, 16, 8, 8)), weight, kernel=(3, 3), num_filter=16, no_bias=True
    )
    nd.softmax(found, axis=-1).wait_to_read()
    return False


@fault("`LeakyReLU` with `act_type='rrelu'`")
def _() -> bool:
    gradients(lambda x: nd.LeakyReLU(x, act_type="rrelu")[0], nd.ones((2, 3)))
    return False


def seen(number: int) -> bool:
    """Run a program in a process of its own; return whether it showed its fault, or crashed."""
    command = [sys.executable, "-m", "experiments.operators.faults", str(number)]
    code = subprocess.run(command, cwd=ROOT, capture_output=True).returncode
    return code not in (0, 1)  # an exception is none


def listed() -> List[str]:
    """Return the first words of the page's rows, which are those of `FAULTS`."""
    page = (DOCS / "mxnet_faults.md").read_text(encoding="utf-8")
    return re.findall(r"^\| (`.*?) \|", page, re.MULTILINE)


def check() -> None:
    """Run all programs; one that does not show its fault is a `RuntimeError`."""
    gone = [operator for i, (operator, _) in enumerate(FAULTS) if not seen(i)]
    if gone:
        raise RuntimeError(f"This machine does not show the fault of {', '.join(gone)}.")


if __name__ == "__main__":
    sys.exit(SHOWN if FAULTS[int(sys.argv[1])][1]() else 0)
