"""Shapes of Gluon's parameters, which may be unknown until the first pass."""

from typing import Optional, Sequence


def shape_fits(own: Optional[Sequence[int]], other: Sequence[int]) -> bool:
    """Return whether a parameter can have another shape.

    Its own shape is None, or has sizes of 0 or -1, where it is not known yet.
    """
    if own is None:
        return True
    return len(own) == len(other) and all(a in (b, 0, -1) for a, b in zip(own, other))
