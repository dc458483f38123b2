"""Which code of Gluon is running, where it passes no argument from which that could be known.

This is the only place that looks at the stack. A thread-local of our own would have to be set by
the caller: a function of MXNet, or a method of a stock block that may be created after the cast.
"""

import sys
from types import CodeType, FrameType
from typing import Any, Callable, Dict, Mapping, Optional

Codes = Dict[int, CodeType]  # by their `id`, as it costs much to compare them


def codes(*functions: Callable) -> Codes:
    """Return what `running` knows functions by."""
    return {id(function.__code__): function.__code__ for function in functions}


def running(functions: Codes, within: int = 0) -> Optional[Mapping[str, Any]]:
    """Return the local variables of the innermost running call of these functions, or None.

    Only the nearest `within` callers of the calling function count, or all if it is 0.
    """
    frame: Optional[FrameType] = sys._getframe(2)
    while frame is not None and id(frame.f_code) not in functions:
        within -= 1
        frame = frame.f_back if within else None
    return None if frame is None else frame.f_locals
