"""Finds dropout whose mask is lost in a second backward pass, so that a pass is not repeated.

A cast net's is not lost (`lowering/dropout.py`). This is about MXNet's own Dropout: called in a
loss or a loop of the user, or part of a hybridized block that is not cast.
"""

import gc
from typing import Iterator, List

from gluon_amp.casting.binding import binding_of
from gluon_amp.graph import to_json
from gluon_amp.lowering.dropout import has_unrepeatable

import mxnet as mx
from mxnet import autograd, gluon
from mxnet.ndarray import NDArray


def are_in(losses: List[NDArray]) -> bool:
    """Return whether a pass contains dropout that drops nothing when the pass runs again.

    MXNet shows the operators of a pass, and of a hybridized block only the name of its output.
    """
    for loss in losses:
        tape = autograd.get_symbol(loss)
        try:
            nodes = to_json(tape)
        except mx.MXNetError:  # an operator without a text
            return True
        outputs = tuple(f"_{name}" for name in _lossy_outputs())
        names = tape.get_internals().list_outputs()
        if has_unrepeatable(nodes) or any(name.endswith(outputs) for name in names):
            return True
    return False


def _lossy_outputs() -> Iterator[str]:
    """Yield the names of outputs of hybridized blocks with such dropout."""
    for block in gc.get_objects():
        if isinstance(block, gluon.HybridBlock) and getattr(block, "_cached_op", None):
            cast, graph = binding_of(block), vars(block)["_cached_graph"][1]
            repeatable = cast is not None and cast.policy.gradient_dtype == "float16"
            if not repeatable and has_unrepeatable(to_json(graph)):
                yield from graph.list_outputs()
