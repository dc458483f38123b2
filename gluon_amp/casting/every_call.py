"""What a block's Python code does at each call, and a trace would do only once.

For a block that the user did not hybridize, a trace must compute what its Python code computes at
each call. So `watch` raises before the code that is traced does what would freeze, and `Attributes`
has the attributes of blocks, which that code may change.
"""

import contextlib
import os
import random
import sys
from typing import Any, Callable, FrozenSet, Iterable, Iterator, List, Optional, Tuple

import numpy as np

from gluon_amp.base.mxnet_internals import imperative_invoke
from gluon_amp.casting.arguments import value_of

import mxnet as mx
from mxnet import autograd
from mxnet.gluon import Block, HybridBlock, Parameter

FUNCTION = "it calls an autograd.Function"

# What code does that calls one of these functions of MXNet
CALLS = {
    autograd.Function.__call__: FUNCTION,  # which would hand symbols to MXNet as arrays: it crashes
    imperative_invoke: "it computes with arrays that are not its arguments, or draws some",
    mx.nd.CachedOp.__call__: "it calls a net on arrays that are not its arguments",
    mx.nd.NDArray.asnumpy: "it reads the values of an array",
}
_REASONS = {id(function.__code__): reason for function, reason in CALLS.items()}

# The owners of all functions in C that draw numbers, those of `random` and `numpy.random` too
GENERATORS = (random.Random, np.random.RandomState, np.random.Generator, np.random.BitGenerator)
DRAWS = "it draws random numbers in Python"

# What Gluon's own code sets in blocks, and this package. A cell keeps its states from one step to
# the next; a block that unrolls it resets them first.
CELL_STATES = frozenset(
    ("_prev_output", "drop_inputs_mask", "drop_states_mask", "drop_outputs_mask")
)
GLUONS = CELL_STATES.union(vars(HybridBlock(prefix="")), ("_amp", "_amp_inputs"))
GLUONS |= {"skip_states", "_counter", "_init_counter", "_modified"}  # in recurrent layers


class WouldFreeze(BaseException):
    """Raised into the code that is traced, past its own `except Exception`."""


def _reason(event: str, frame: Any, function: Any) -> Optional[str]:
    if event == "call":
        return _REASONS.get(id(frame.f_code))
    if event == "c_call":
        owner = getattr(function, "__self__", None)
        return DRAWS if isinstance(owner, GENERATORS) or function is os.urandom else None
    return None


@contextlib.contextmanager
def watch(is_frozen: Callable[[], bool]) -> Iterator[None]:
    """Raise `WouldFreeze` in a with block, before code does what a trace would do only once.

    Nothing but Python's own hook for profilers can see that without patching. `is_frozen` says
    whether the running block was hybridized by the user, so that it would freeze without a cast,
    too. A profiler of the user pauses. One that is unknown and cannot pause stays, and then nothing
    is watched.
    """

    def profile(frame: Any, event: str, function: Any) -> None:
        reason = _reason(event, frame, function)
        if reason and (reason is FUNCTION or not is_frozen()):
            raise WouldFreeze(reason)

    users = sys.getprofile()
    in_c = users is not None and not callable(users)  # as cProfile's before Python 3.12
    if in_c and not hasattr(users, "disable"):
        yield
        return
    if in_c:
        users.disable()
    sys.setprofile(profile)
    try:
        yield
    finally:
        users.enable() if in_c else sys.setprofile(users)


class Attributes:
    """The attributes of blocks at one time, to find those that change, and to restore them."""

    def __init__(
        self, blocks: Iterable[Tuple[str, Block]], ignored: FrozenSet[str] = GLUONS
    ) -> None:
        self._ignored = ignored
        self._before = [(path, block, dict(vars(block))) for path, block in blocks]

    def changed(self) -> List[Tuple[str, str, Any]]:
        """Return path, name and value of the changed ones, but for new children and parameters."""
        changes = self._changes()
        return [(path, name, vars(block).get(name)) for path, block, _, name in changes]

    def restore(self) -> None:
        for _, block, before, name in list(self._changes()):
            vars(block).pop(name, None)  # not by `setattr`, which notes a change
            vars(block).update({name: before[name]} if name in before else {})

    def _changes(self) -> Iterator[tuple]:
        for path, block, before in self._before:
            now = vars(block)
            for name in {**before, **now}.keys() - self._ignored:
                old, new = before.get(name), now.get(name)
                if old is new or isinstance(new, (Block, Parameter)):
                    continue
                if value_of(old) != value_of(new):
                    yield path, block, before, name
