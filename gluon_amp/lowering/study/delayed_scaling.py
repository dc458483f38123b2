"""Delayed scaling: a power of two for each tensor in an 8-bit format, from its earlier magnitudes.

The recipe is that of NVIDIA's Transformer Engine (`DelayedScaling`, margin 0): the scale brings the
largest magnitude of the last 1,024 steps to the end of the format's range, and what is larger in
this step saturates. Three things differ. The scale is a power of two, so that it rounds nothing. A
tensor without a history is scaled by its own magnitude, not by 1. A magnitude of 0, infinity or NaN
is not recorded.

The histories are here. The C++ library (kernels/src/study.cc) has the current exponent of each
tensor, and the largest magnitude of the training passes since the last step.
"""

import ctypes
import itertools
import weakref
from collections import deque
from typing import Collection, Deque, Dict, Iterable, List, Optional, Tuple

import numpy as np

from gluon_amp import kernels
from gluon_amp.base.formats import FloatFormat, exponent_for

import mxnet as mx

HISTORY = 1024  # steps, Transformer Engine's default `amax_history_len`
UNKNOWN = 1 << 20  # the exponent of a tensor without a history, as in study.cc

_counter = itertools.count()
_nets: "weakref.WeakSet[Scales]" = weakref.WeakSet()  # their scales


class Scales:
    """The scales of the tensors of one net, which all of its traces share."""

    def __init__(self) -> None:
        self.created = next(_counter)  # so that the nets of a process have an order
        self._numbers: Dict[str, Tuple[int, FloatFormat]] = {}  # in the library, with the format
        self._histories: Dict[str, Deque[float]] = {}  # the oldest step first
        self.parameters: weakref.WeakSet[mx.gluon.Parameter] = weakref.WeakSet()  # of the net
        _nets.add(self)

    def number(self, key: str, format_: FloatFormat) -> int:
        """Return the number of a tensor's scale in the C++ library; a new tensor gets one."""
        if key not in self._numbers:
            self._numbers[key] = _library().gluon_amp_add_scale(), format_
            self._update(key)
        return self._numbers[key][0]

    def end_step(self, applied: bool) -> None:
        """Record the magnitudes of a step's passes, which have ended; forget those of a skip."""
        for key, (number, _) in self._numbers.items():
            largest = _library().gluon_amp_take_largest(number)
            if applied and 0 < largest < np.inf:
                self._histories.setdefault(key, deque(maxlen=HISTORY)).append(largest)
                self._update(key)

    def histories(self) -> Dict[str, np.ndarray]:
        """Return the largest magnitudes of each tensor, by step, as float32."""
        return {key: np.array(history, np.float32) for key, history in self._histories.items()}

    def set_histories(self, histories: Dict[str, np.ndarray]) -> None:
        """Replace all histories, as `histories` returned them."""
        self._histories = {
            key: deque(map(float, history), maxlen=HISTORY) for key, history in histories.items()
        }
        for key in self._numbers:
            self._update(key)

    def _update(self, key: str) -> None:
        (number, format_), history = self._numbers[key], self._histories.get(key)
        exponent = exponent_for(format_, max(history)) if history else UNKNOWN
        _library().gluon_amp_set_exponent(number, exponent)


def _library() -> ctypes.CDLL:
    library = kernels.library()
    assert library is not None, "only its operators have scales"
    return library


# ------------------------------------------------------------------ whose scales they are


def register(scales: Optional[Scales], parameters: Iterable[mx.gluon.Parameter]) -> None:
    """Record that a step of these parameters is one of the net with these scales, if it has any."""
    if scales is not None:
        scales.parameters.update(parameters)


def scales_of(parameters: Collection[mx.gluon.Parameter]) -> List[Scales]:
    """Return the scales of the nets that contain these parameters, in the order of their cast."""
    found = [net for net in _nets if not net.parameters.isdisjoint(parameters)]
    return sorted(found, key=lambda net: net.created)


def end_step(parameters: Collection[mx.gluon.Parameter], applied: bool) -> None:
    """End a step of these parameters, whose passes the engine may not have run yet."""
    ending = scales_of(parameters)
    if ending:
        mx.nd.waitall()
    for scales in ending:
        scales.end_step(applied)


# ----------------------------------------------------------------------------- in a file


def collect(parameters: Collection[mx.gluon.Parameter]) -> Dict[str, np.ndarray]:
    """Return the histories of the nets that contain these parameters, by net and tensor."""
    return {
        f"{number} {key}": history
        for number, scales in enumerate(scales_of(parameters))
        for key, history in scales.histories().items()
    }


def restore(parameters: Collection[mx.gluon.Parameter], collected: Dict[str, np.ndarray]) -> None:
    """Set the histories to what `collect` returned, in a net that may have other tensors."""
    for number, scales in enumerate(scales_of(parameters)):
        keys = [name.partition(" ") for name in collected]
        own = {key: collected[f"{k} {key}"] for k, _, key in keys if k == str(number)}
        scales.set_histories(own)


def is_history(history: np.ndarray) -> bool:
    """Return whether an array from a file can be a history."""
    return (
        history.ndim == 1
        and 0 < history.size <= HISTORY
        and bool(np.isfinite(history).all() and (history > 0).all())
    )
