"""Which operators run in bfloat16 under a bfloat16 policy, by their attributes.

oneDNN has correct CPU kernels for these, forward and backward, or they only reinterpret a shape.
For the others, MXNet's CPU build has no bfloat16 kernel ("Unknown type enum 12", raised only when
the result is read), a wrong one (`transpose` writes past the end of its output), or a slow one: 12
ns per element for `_plus_scalar` and `broadcast_add` and 16 for `clip`, where float32 needs 2 and
the two casts need 1.3. No operator has a bfloat16 kernel on a GPU.
"""

import re
from typing import Mapping, Optional, Tuple

from gluon_amp.policy import registry

MOST_DIMENSIONS = 6  # the limit of oneDNN's casts between bfloat16 and float32

TRUE = ("True", "true", "1")


def has_kernel(op: str, attrs: Optional[Mapping[str, str]] = None) -> bool:
    """Return whether an operator has a CPU kernel for bfloat16 that is correct and fast.

    Parameters
    ----------
    op : str
        The operator's name.
    attrs : dict of str to str, optional
        The node's attributes, as in a symbol's JSON. None asks whether some attributes have one.
    """
    op = registry.canonical(op)
    return op in KERNELS and (attrs is None or KERNELS[op](attrs))


def _always(attrs: Mapping[str, str]) -> bool:
    return True


def _activation(attrs: Mapping[str, str]) -> bool:
    return attrs.get("act_type") in ("relu", "sigmoid", "tanh", "softrelu")


def _convolution(attrs: Mapping[str, str]) -> bool:
    """All but 3-D ones with stride and padding, whose weight gradient reads unwritten memory."""
    strided = any(s > 1 for s in _integers(attrs, "stride"))
    return not (len(_integers(attrs, "kernel")) == 3 and strided and any(_integers(attrs, "pad")))


def _pooling(attrs: Mapping[str, str]) -> bool:
    """Maxima and averages over a kernel that is given, be it a global pooling's."""
    kernel = _integers(attrs, "kernel")
    if attrs.get("pool_type", "max") not in ("max", "avg") or not kernel:
        return False
    if attrs.get("layout", "None") not in ("None", "NCW", "NCHW", "NCDHW"):
        return False
    if attrs.get("pooling_convention") != "full" or attrs.get("global_pool") in TRUE:
        return True
    # else the last window may lie in the padding alone, and its average is 0/0
    stride = _integers(attrs, "stride") or (1,) * len(kernel)
    pad = _integers(attrs, "pad") or (0,) * len(kernel)
    return all(k >= s + p for k, s, p in zip(kernel, stride, pad))


def _reshape(attrs: Mapping[str, str]) -> bool:
    """No more dimensions than can be cast; -2 stands for any number, -4 takes two more entries."""
    shape = _integers(attrs, "shape")
    return -2 not in shape and len(shape) - shape.count(-4) <= MOST_DIMENSIONS


def _integers(attrs: Mapping[str, str], name: str) -> Tuple[int, ...]:
    return tuple(map(int, re.findall(r"-?\d+", attrs.get(name, ""))))


# Operator: whether it has a kernel, of its attributes
KERNELS = {
    "Activation": _activation,
    "BatchNorm": _always,
    "Concat": _always,
    "Convolution": _convolution,
    "Flatten": _always,
    "FullyConnected": _always,
    "Pooling": _pooling,
    "Reshape": _reshape,
    "elemwise_add": _always,
    "squeeze": _always,
}
