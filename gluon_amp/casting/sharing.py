"""Parameters that several nets share, as a training net and its predictor do.

- MXNet compares the dtypes when a block is built with the parameters of another. The blocks of a
  net that is not cast declare float32.
- A block that is not cast reads a float16 parameter in float32.
- A parameter that another cast net uses keeps its dtype when a net is cast, or its cast undone.

Gluon passes no argument from which a parameter could know its reader, so the reader is searched on
the stack.
"""

import gc
import sys
import weakref
from typing import Iterable, List, Optional

from gluon_amp.casting.classes import Mixin

from mxnet.gluon import HybridBlock, Parameter, ParameterDict

# Where a HybridBlock reads its parameters in order to run
READS = (HybridBlock.forward.__code__, HybridBlock._call_cached_op.__code__)

# The cast blocks that own each parameter
_users = weakref.WeakKeyDictionary()


def add_user(block: HybridBlock) -> None:
    """Record that a block is cast."""
    for param in block._reg_params.values():
        _users.setdefault(param, weakref.WeakSet()).add(block)


def remove_user(block: HybridBlock) -> None:
    """Record that a block is no longer cast."""
    for param in block._reg_params.values():
        _users.get(param, set()).discard(block)


def not_shared(params: Iterable[Parameter], blocks: Iterable[HybridBlock] = ()) -> List[Parameter]:
    """Return those of these parameters that no other cast blocks than these have."""
    inside = {id(block) for block in blocks}
    params = list(params)

    def is_shared(param: Parameter) -> bool:
        return any(id(block) not in inside for block in _users.get(param, ()))

    if any(map(is_shared, params)):
        gc.collect()  # a block refers to itself, so one that was deleted may still exist
    return [param for param in params if not is_shared(param)]


def declared_dtype() -> Optional[str]:
    """Return the dtype that a new block declares for the parameter whose `dtype` it now reads.

    It is None if the caller's caller is not `ParameterDict.get`.
    """
    frame = sys._getframe(2)
    is_shared = frame.f_code is ParameterDict.get.__code__
    return frame.f_locals["kwargs"].get("dtype") if is_shared else None


def is_read_by_stock_block() -> bool:
    """Return whether a block that is not cast, and contains none that is, called the caller."""
    caller = sys._getframe(2)
    # Before Python 3.12, a comprehension has a frame of its own. A script has no caller.
    for frame in filter(None, (caller, caller.f_back)):
        if frame.f_code in READS:
            return not isinstance(frame.f_locals["self"], Mixin)
    return False
