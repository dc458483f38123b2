"""Which operators run in bfloat16 under a bfloat16 policy, depending on their attributes.

These operators have correct oneDNN kernels for a CPU, forward and backward, or only change a shape;
recurrent layers (`lowering/recurrent.py`) and deconvolutions of images (`lowering/blocked.py`) have
one in gluon_amp's C++ library.
For the others MXNet's CPU build has no bfloat16 kernel ("Unknown type enum 12", raised only when
the result is read), a wrong one (`transpose` writes past the end of its output), or a slow one:
`_plus_scalar` and `broadcast_add` need 12 ns per element and `clip` 16 ns, where the float32 kernel
needs 2 ns and the two casts 1.3 ns. On a GPU, no operator has a bfloat16 kernel.
"""

from typing import Mapping, Optional

from gluon_amp.base import registry
from gluon_amp.graph import flag, integers, is_set

MOST_DIMENSIONS = 6  # the limit of oneDNN's casts between bfloat16 and float32


def has_kernel(op: str, attrs: Optional[Mapping[str, str]] = None) -> bool:
    """Return whether an operator has a correct and fast CPU kernel for bfloat16.

    `attrs` are the node's attributes, as in a symbol's JSON; None stands for any attributes.
    """
    op = registry.canonical(op)
    return op in KERNELS and (attrs is None or KERNELS[op](attrs))


def _activation(attrs: Mapping[str, str]) -> bool:
    return attrs.get("act_type") in ("relu", "sigmoid", "tanh", "softrelu")


def _convolution(attrs: Mapping[str, str]) -> bool:
    """Not 3-D with stride and padding: its weight gradient would read uninitialized memory."""
    strided = any(s > 1 for s in integers(attrs, "stride"))
    return not (len(integers(attrs, "kernel")) == 3 and strided and any(integers(attrs, "pad")))


def _deconvolution(attrs: Mapping[str, str]) -> bool:
    """Of images, whose size follows from the other attributes."""
    is_2d = len(integers(attrs, "kernel")) == 2
    plain = attrs.get("layout", "None") in ("None", "NCHW")
    return is_2d and plain and not any(integers(attrs, "target_shape"))


def _pooling(attrs: Mapping[str, str]) -> bool:
    """Maxima and averages, if the attributes have a kernel (a global pooling needs none)."""
    kernel = integers(attrs, "kernel")
    if attrs.get("pool_type", "max") not in ("max", "avg") or not kernel:
        return False
    if attrs.get("layout", "None") not in ("None", "NCW", "NCHW", "NCDHW"):
        return False
    if attrs.get("pooling_convention") != "full" or flag(attrs, "global_pool"):
        return True
    # Otherwise the last window may contain only padding, and its average is 0/0.
    stride = integers(attrs, "stride", (1,) * len(kernel))
    pad = integers(attrs, "pad", (0,) * len(kernel))
    return all(k >= s + p for k, s, p in zip(kernel, stride, pad))


def _recurrent(attrs: Mapping[str, str]) -> bool:
    """Layers of states alone: no projection, clipping or lengths."""
    options = ("projection_size", "lstm_state_clip_min", "lstm_state_clip_max")
    if any(is_set(attrs, name) for name in options):
        return False
    return not flag(attrs, "use_sequence_length")


def _reshape(attrs: Mapping[str, str]) -> bool:
    """At most six dimensions; -2 stands for any number of them, -4 is followed by two sizes."""
    shape = integers(attrs, "shape")
    return -2 not in shape and len(shape) - shape.count(-4) <= MOST_DIMENSIONS


# Operator: function of its attributes that returns whether there is a kernel
KERNELS = {
    **dict.fromkeys(
        ("BatchNorm", "Concat", "Flatten", "FullyConnected", "elemwise_add", "squeeze"),
        lambda attrs: True,
    ),
    "Activation": _activation,
    "Convolution": _convolution,
    "Deconvolution": _deconvolution,
    "Pooling": _pooling,
    "RNN": _recurrent,
    "Reshape": _reshape,
}

# Those whose kernel is in gluon_amp's C++ library. MXNet has none, or one whose gradient crashes.
OURS = ("Deconvolution", "RNN")
