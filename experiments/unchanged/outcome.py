"""The outcome of a case as text: what it returns, raises and warns of."""

import hashlib
import os
import random
import warnings
from typing import Any, Callable

import numpy as np

import gluon_amp as amp  # before mxnet
from experiments import ROOT

import mxnet as mx

__all__ = ["amp", "array_text", "mx", "outcome"]


def outcome(case: Callable[[], str]) -> str:
    """Call a case with all seeds set and counters of names at 0; return what it did as text."""
    random.seed(0)
    np.random.seed(0)
    mx.random.seed(0)
    with warnings.catch_warnings(record=True) as caught, mx.name.NameManager():
        warnings.simplefilter("always")
        try:
            text = case()
        except Exception as error:
            text = f"\nRAISED {type(error).__name__}: {error}".partition("Stack trace:")[0]
    # Deprecations are told to whoever imports a package first.
    warned = [each for each in caught if not issubclass(each.category, DeprecationWarning)]
    told = [f"WARNED {each.category.__name__}: {each.message}" for each in warned]
    text = "\n".join([text, *dict.fromkeys(told)])
    return text.replace(os.getcwd(), "HERE").replace(str(ROOT), "ROOT")


def array_text(name: str, array: Any) -> str:
    """Return an array in a line: dtype, shape, a digest of all bits and the first four values."""
    values = np.ascontiguousarray(array.asnumpy() if hasattr(array, "asnumpy") else array)
    digest = hashlib.sha256(values.tobytes()).hexdigest()[:16]
    return f"{name} {values.dtype} {values.shape} {digest} {values.reshape(-1)[:4].tolist()}"
