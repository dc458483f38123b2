"""Finds operators whose second backward pass is another one, so that a pass cannot be repeated.

MXNet's own Dropout drops nothing in it. That of a cast net does (`lowering/dropout.py`), so this is
about Dropout that is called in a loss or a loop of the user, or is part of a hybridized block that
is not cast. On a GPU, cuDNN overwrites what it keeps of an RNN.
"""

import gc
from typing import Iterator, List, Tuple

from gluon_amp.casting.binding import binding_of
from gluon_amp.graph import to_json
from gluon_amp.policy.runs_once import graph_runs_once, runs_once

import mxnet as mx
from mxnet import autograd, gluon
from mxnet.ndarray import NDArray


def can_repeat(losses: List[NDArray]) -> bool:
    """Return whether a pass contains no such operator, as far as MXNet shows.

    It shows the operators of a pass, and of a hybridized block only the names of its outputs. That
    is enough for blocks that are not cast; an RNN in any other one counts on a GPU.
    """
    device = losses[0].context.device_type
    names: List[str] = []
    for loss in losses:
        tape = autograd.get_symbol(loss)
        try:
            operators = to_json(tape)
        except mx.MXNetError:  # one of them has no text
            return False
        nodes = [node for node in operators["nodes"] if node["op"] != "_CachedOp"]
        if any(runs_once(node["op"], node["attrs"], device) for node in nodes):
            return False
        names += tape.get_internals().list_outputs()
    for graph, outputs, is_cast in _hybridized():
        if any(runs_once(node["op"], {}, device) for node in graph["nodes"] if node["op"] == "RNN"):
            return False
        own = tuple(f"_{name}" for name in outputs)
        found = not is_cast and graph_runs_once(graph, device)
        if found and any(name.endswith(own) for name in names):
            return False
    return True


def _hybridized() -> Iterator[Tuple[dict, List[str], bool]]:
    """Yield graphs, outputs, and whether their dropout can be repeated, of blocks that have run."""
    for block in gc.get_objects():
        if issubclass(type(block), gluon.HybridBlock) and block._cached_op:
            cast, symbol = binding_of(block), vars(block)["_cached_graph"][1]
            is_cast = cast is not None and cast.policy.needs_loss_scale
            yield to_json(symbol), symbol.list_outputs(), is_cast
