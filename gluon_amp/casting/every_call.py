"""What a block's Python code does at each call, and a trace would do only once.

For a block that the user did not hybridize, a trace must compute what its Python code computes at
each call. So `watch` raises before the code that is traced does what would freeze, and `Attributes`
has the attributes of blocks, which that code may change.
"""

import contextlib
import os
import random
import sys
import threading
from inspect import getattr_static
from types import BuiltinMethodType
from typing import Any, Callable, FrozenSet, Iterable, Iterator, List, Tuple

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
GLUONS = CELL_STATES.union(vars(HybridBlock(prefix="")), ("_amp", "_amp_arguments"))
GLUONS |= {"skip_states", "_counter", "_init_counter", "_modified"}  # in recurrent layers


class WouldFreeze(BaseException):
    """Raised into the code that is traced, past its own `except Exception`."""


def _is_generator(value: Any) -> bool:
    """Return whether a value is a generator or its method."""
    return isinstance(value, GENERATORS) or isinstance(getattr(value, "__self__", None), GENERATORS)


def _draws(function: Any, first: Any) -> bool:
    """Return whether a function in C draws numbers; `first` is its argument, as of a method."""
    if _is_generator(function) or function is os.urandom:
        return True
    name = getattr(function, "__name__", "")
    return isinstance(first, GENERATORS) and getattr_static(type(first), name, None) is function


# Whether Python's profiler sees no draws of numpy, as numpy 2 has methods that it takes for none
HIDDEN = not isinstance(np.random.rand, BuiltinMethodType)


def _may_draw(frame: Any) -> bool:
    """Return whether code of the user names numpy's random module or a generator."""
    names, world = frame.f_code.co_names, frame.f_globals
    if world.get("__name__", "").partition(".")[0] in ("mxnet", "gluon_amp"):
        return False
    values = [*map(world.get, names), *frame.f_locals.values()]
    values += [value for one in values if isinstance(one, Block) for value in vars(one).values()]
    return any(
        value is np.random or (value is np and "random" in names) or _is_generator(value)
        for value in values
    )


def watch(notice: Callable[[str], None]) -> contextlib.AbstractContextManager:
    """Say in a with block what code is about to do of `CALLS`, or that it draws random numbers.

    Nothing but Python's own hooks for profilers can see that without patching. `notice` may raise
    `WouldFreeze` into the code. Nothing is noticed where no hook is free.
    """
    return (_monitored if sys.version_info >= (3, 12) else _profiled)(notice)


@contextlib.contextmanager
def _monitored(notice: Callable[[str], None]) -> Iterator[None]:
    """Watch by `sys.monitoring`, beside the user's own tools; it sees all threads."""
    monitoring = sys.monitoring  # type: ignore[attr-defined]  # since Python 3.12
    thread = threading.get_ident()
    tool = next((one for one in range(6) if monitoring.get_tool(one) is None), None)
    if tool is None:
        yield
        return

    def starts(code: Any, offset: int) -> None:
        if id(code) in _REASONS and threading.get_ident() == thread:
            notice(_REASONS[id(code)])

    def calls(code: Any, offset: int, function: Any, first: Any) -> None:
        if threading.get_ident() == thread and _draws(function, first):
            notice(DRAWS)

    events = monitoring.events
    monitoring.use_tool_id(tool, "gluon_amp")
    try:
        monitoring.register_callback(tool, events.PY_START, starts)
        monitoring.register_callback(tool, events.CALL, calls)
        monitoring.set_events(tool, events.PY_START | events.CALL)
        yield
    finally:
        monitoring.set_events(tool, 0)
        monitoring.free_tool_id(tool)


@contextlib.contextmanager
def _profiled(notice: Callable[[str], None]) -> Iterator[None]:
    """Watch by `sys.setprofile`: a profiler of the user pauses, and one that cannot pause stays."""

    def profile(frame: Any, event: str, function: Any) -> None:
        if event == "c_call" and _draws(function, None):
            notice(DRAWS)
        elif event == "call" and id(frame.f_code) in _REASONS:
            notice(_REASONS[id(frame.f_code)])
        elif event == "call" and HIDDEN and _may_draw(frame):
            notice(DRAWS)

    users: Any = sys.getprofile()
    in_c = users is not None and not callable(users)  # as cProfile's
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
