"""What reports share: whether arrays are finite, their range, and texts of 80 columns."""

import textwrap
from html import escape
from typing import Optional, Tuple

import numpy as np

from gluon_amp.base.dtypes import dtype_name
from gluon_amp.optimizer.arrays import all_finite

from mxnet import nd

WIDTH = 80  # characters in a line of a report

Range = Optional[Tuple[float, float]]  # smallest and largest finite number, None without any


class Preformatted:
    """A report whose text a notebook shows as it is."""

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"


def is_float(array: nd.NDArray) -> bool:
    """Return whether numpy knows the array's dtype as a floating-point dtype."""
    return np.dtype(array.dtype).kind == "f"


def is_finite(array: nd.NDArray) -> bool:
    """Return whether an array holds no infinity and no NaN; integers never do."""
    return not is_float(array) or all_finite([array])


def readable(array: nd.NDArray) -> nd.NDArray:
    """Return the array, or a float32 copy where numpy cannot read it (bfloat16)."""
    wide = dtype_name(array.dtype) == "bfloat16"
    return nd.amp_cast(array, dtype="float32") if wide else array


def value_range(*arrays: nd.NDArray) -> Range:
    """Return the smallest and the largest finite number in all the arrays."""
    limits = []
    for array in arrays:
        values = array.asnumpy()
        values = values[np.isfinite(values)]
        if values.size:
            limits += [float(values.min()), float(values.max())]
    return (min(limits), max(limits)) if limits else None


def range_text(span: Range) -> str:
    """Return a range as text, as in `'-1 to 300'`."""
    return "no finite number" if span is None else f"{span[0]:.4g} to {span[1]:.4g}"


def non_finite_text(array: nd.NDArray) -> str:
    """Return how many elements of an array are NaN or infinite, as text."""
    values = array.asnumpy()
    nans, infinities = int(np.isnan(values).sum()), int(np.isinf(values).sum())
    return f"{nans} NaN and {infinities} infinite values among {values.size}"


def paragraph(text: str, head: str = "", indent: Optional[str] = None) -> str:
    """Return a head and a text in lines of at most 80 characters, indented by the head's width."""
    indent = " " * len(head) if indent is None else indent
    return textwrap.fill(
        text,
        WIDTH,
        initial_indent=head,
        subsequent_indent=indent,
        break_on_hyphens=False,
        break_long_words=False,
    )
