"""Cast nets that share parameters: one keeps its dtype while another cast net uses it."""

import gc
import weakref
from typing import Iterable, List, MutableMapping

from mxnet.gluon import HybridBlock, Parameter

# The cast blocks that own each parameter
_users: MutableMapping[Parameter, weakref.WeakSet] = weakref.WeakKeyDictionary()


def add_user(block: HybridBlock) -> None:
    """Record that a block is cast."""
    for param in block._reg_params.values():
        _users.setdefault(param, weakref.WeakSet()).add(block)


def remove_user(block: HybridBlock) -> None:
    """Record that a block is no longer cast."""
    for param in block._reg_params.values():
        _users.get(param, weakref.WeakSet()).discard(block)


def not_shared(params: Iterable[Parameter], blocks: Iterable[HybridBlock] = ()) -> List[Parameter]:
    """Return those of these parameters that no other cast blocks than these have."""
    inside = {id(block) for block in blocks}
    params = list(params)

    def is_shared(param: Parameter) -> bool:
        return any(id(block) not in inside for block in _users.get(param, ()))

    if any(map(is_shared, params)):
        gc.collect()  # a block refers to itself, so one that was deleted may still exist
    return [param for param in params if not is_shared(param)]
