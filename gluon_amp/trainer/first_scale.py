"""Search for the first loss scale: replays of a backward pass at lower scales, by bisection.

An overflow does not show at which scale the gradients fit. Halving the scale until they fit costs
one step each time, and a short run has few.

A replay with head gradients of zero finds a loss that ignores them.
"""

import functools
import gc
import math
from contextlib import contextmanager
from typing import Callable, Dict, Iterable, Iterator, List, Optional

from gluon_amp.base.array_kinds import set_to_zero
from gluon_amp.optimizer.arrays import all_finite, all_zero, head_gradients, restored
from gluon_amp.trainer.passes import clear_fresh, mark_fresh

import mxnet as mx
from mxnet import MXNetError, autograd
from mxnet.ndarray import NDArray

# Returns whether the gradients of a pass at this scale are finite, or meet another condition.
Fits = Callable[..., bool]

VARIABLE = "var"  # MXNet names an array with a gradient so, with a number, and others null1
ARRAY_CLASSES = (NDArray, mx.np.ndarray)

IGNORED_HEADS = (
    "The loss ignores its head gradient, as SoftmaxOutput does, so that no loss scale reaches the "
    "gradients: pass loss_scale=None to the Trainer, or use a loss such as "
    "gluon.loss.SoftmaxCrossEntropyLoss."
)


def largest_power(low: float, high: float, fits: Fits) -> Optional[float]:
    """Return the largest power of two from `low` to `high` that fits; None if there is none.

    A number that fits has to fit together with all below it.
    """
    first, last = int(math.log2(low)), int(math.log2(high))
    below, above = first - 1, last + 1
    while above - below > 1:
        middle = (below + above) // 2
        if fits(2.0**middle):
            below = middle
        else:
            above = middle
    return None if below < first else 2.0**below


def search(low: float, high: float, fits: Fits) -> Optional[float]:
    """Return the largest scale from `low` to `high` at which a pass fits; 0 if there is none.

    Most passes after the first one of a step fit at `high`, so it is tried first. Return None if
    the pass cannot be replayed: MXNet runs the backward pass of foreach, while_loop and cond only
    once, or see `variables_of`.
    """
    if not high:
        return 0.0  # an earlier pass of the step fits nowhere
    try:
        return high if fits(high) else largest_power(low, high / 2, fits) or 0.0
    except MXNetError:
        return None


def check_heads(fits: Fits) -> None:
    """Raise `ValueError` for a pass that ignores its head gradients, which no scale can reach.

    Gradients of zero have to follow from head gradients of zero.
    """
    try:
        scalable = fits(0.0, all_zero)
    except MXNetError:  # the pass cannot be replayed, see `search`
        return
    if not scalable:
        raise ValueError(IGNORED_HEADS)


@contextmanager
def replays(
    losses: List[NDArray], weights: Iterable[NDArray], retain_graph: bool, train_mode: bool
) -> Iterator[Fits]:
    """Keep the graph of the backward pass that runs inside, and yield what replays it.

    A replay looks at the gradients of those weights on the losses' devices that the pass reached.
    It restores all gradient buffers, as other trainers and users may need what the pass wrote
    there. On a CPU it writes running statistics. MXNet's Dropout drops nothing in a replay, so the
    pass itself has to be the first.

    It is a backward pass into the present gradient buffers. `autograd.grad` would compute in arrays
    of its own, and there oneDNN's gradient of a deconvolution crashes (`lowering/deconvolution`).
    """
    losses = [one.as_nd_ndarray() for one in losses]
    contexts = {one.context for one in losses}
    weights = [weight for weight in weights if weight.context in contexts]
    marked = clear_fresh(weights)

    @functools.lru_cache(maxsize=None)
    def buffers() -> List[NDArray]:
        return [variable.grad for variable in variables_of(losses, weights)]

    def fits(scale: float, condition: Callable[[List[NDArray]], bool] = all_finite) -> bool:
        reached = [weight for weight in weights if weight._fresh_grad]
        if not reached:
            return True
        with restored(buffers()):
            set_to_zero(buffers())  # for grad_req="add"
            heads = head_gradients(losses, scale)
            autograd.backward(losses, heads, retain_graph=True, train_mode=train_mode)
            return condition([weight.grad for weight in reached])

    try:
        yield fits
    finally:
        mark_fresh(marked)
    if not retain_graph:
        free_graph(losses)


def variables_of(losses: List[NDArray], likely: Iterable[NDArray]) -> List[NDArray]:
    """Return the arrays with gradients that a backward pass of losses writes.

    Those that are not among the likely ones are found among all of Python's arrays: inputs of the
    net, or the weights of another trainer. Raise `MXNetError` if one is not found, as it was
    deleted or has another gradient by now.
    """
    names = {name for loss in losses for name in autograd.get_symbol(loss).list_arguments()}
    names = {name for name in names if name.startswith(VARIABLE)}
    found: Dict[str, NDArray] = {}
    for arrays in (lambda: likely, _all_arrays):
        if names.difference(found):
            marked = (one for one in arrays() if one.grad is not None)
            found.update((autograd.get_symbol(one).name, one) for one in marked)
    if names.difference(found):
        raise MXNetError("The pass writes gradients that are out of reach, so it is not replayed.")
    return [found[name] for name in names]


def _all_arrays() -> List[NDArray]:
    return [one for one in gc.get_objects() if type(one) in ARRAY_CLASSES]


def free_graph(losses: List[NDArray]) -> None:
    """Free the graph of losses, as a backward pass without `retain_graph` does.

    Otherwise the activations stay in memory for as long as the caller keeps a loss, usually until
    the next forward pass is over. The backward pass that frees it here computes nothing but the
    gradient of a constant.
    """
    constants = head_gradients(losses, 0.0)
    with mx.util.np_shape(True):  # losses of `mx.np` can have the shape ()
        for constant in constants:
            constant.attach_grad()
        with autograd.record():
            sums = [one + constant for one, constant in zip(losses, constants)]
        autograd.grad(sums, constants)
