"""Run a net and leave no trace, neither in it nor in random numbers, nor in MXNet's engine.

The engine raises an error of an operator where someone waits for its result, and it may do so in
another net, whose operators share the memory for temporary results. So a look waits for all that it
starts.
"""

import contextlib
import random
from typing import Iterator

import numpy as np

from gluon_amp.base.messages import reason_of

import mxnet as mx
from mxnet import autograd, gluon, nd


@contextlib.contextmanager
def same_random_numbers() -> Iterator[None]:
    """Restore the random states of Python and numpy at the end; MXNet's cannot be read."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


def drop_errors() -> None:
    """Wait for all that was started, and forget the errors that nobody has seen."""
    with contextlib.suppress(mx.MXNetError):
        nd.waitall()


@contextlib.contextmanager
def unchanged(function: str, *blocks: object) -> Iterator[None]:
    """Give the parameters of those objects that are blocks copies of their arrays, and restore all.

    A run may write any array: those of a norm, of an imported graph, or what Python code sets. The
    copies have no gradients. The user's arrays, which a later backward pass of the user's own may
    need, keep theirs. An error of MXNet becomes a `RuntimeError` of one sentence, which names the
    function.
    """
    nd.waitall()  # an error of an operator before this one is not a look's
    nets = [block for block in blocks if isinstance(block, gluon.Block)]
    parameters = {id(p): p for net in nets for p in net.collect_params().values()}.values()
    originals = [(p, p._data) for p in parameters if p._data is not None]
    try:
        with autograd.pause():
            for parameter, arrays in originals:
                parameter._data = [array.copy() for array in arrays]
        with same_random_numbers():
            yield
    except mx.MXNetError as error:
        raise RuntimeError(
            f"{function}() runs the net, which MXNet cannot do ({reason_of(error)}): try net(data) "
            "with the same data first."
        ) from None
    finally:
        drop_errors()
        for parameter, arrays in originals:
            parameter._data = arrays
