"""The numeric constants that operators carry, and which of them float16 can hold.

In float16 an epsilon of 1e-12 is 0 and a mask value of -1e9 is -inf: `log` returns -inf and
`softmax` returns NaN where float32 returns numbers. An operator with such a constant runs in
float32 (`Policy.decide`). By the rules of `op_table`, the operators after it also run in float32 up
to the next convolution or matrix product, so a mask stays finite until the softmax.
"""

import math
from typing import Dict, Mapping, Optional, Tuple

from gluon_amp.base import registry
from gluon_amp.graph import op_table

# A constant below float16's smallest normal number loses digits: 1e-7 becomes 1.19e-7. A sum of a
# few constants above a quarter of float16's range overflows.
SMALLEST = 2.0**-14
LARGEST = 2.0**14

# (attributes with constants, operators that have them), for all operators that may run in float16
_GROUPS = (
    (
        "scalar",
        f"""
        {op_table.WITH_SCALAR} _npi_arctan2_scalar _npi_rarctan2_scalar
        _npi_where_lscalar _npi_where_rscalar _slice_assign_scalar _contrib_gradientmultiplier
        """,
    ),
    ("a_min a_max", "clip"),
    ("value", "SequenceMask _npi_boolean_mask_assign_scalar"),
    ("constant_value", "Pad _npi_pad"),
    ("fill_value", "_npi_full_like"),
    ("val", "_npi_insert_scalar _npi_insert_slice _npi_insert_tensor"),
    ("to_begin_scalar to_end_scalar", "_npi_ediff1d"),
    ("initial", "_np_max _np_min"),
    ("alpha beta", "hard_sigmoid _random_gamma_like"),
    ("slope lower_bound upper_bound", "LeakyReLU"),
    ("lstm_state_clip_min lstm_state_clip_max", "RNN"),
    ("lam", "_random_exponential_like _random_poisson_like"),
    ("loc scale", "_random_normal_like"),
    ("low high", "_random_uniform_like"),
    ("mu alpha", "_random_generalized_negative_binomial_like"),
)

CONSTANTS: Dict[str, Tuple[str, ...]] = {
    op: tuple(attributes.split()) for attributes, ops in _GROUPS for op in ops.split()
}


def unfit(op: str, attrs: Mapping[str, str]) -> Optional[str]:
    """Return a constant of a node that float16 cannot hold, None if there is none.

    The result is attribute and value, as in `'a_min=1e-12'`. Every dtype can hold zero, infinity
    and NaN, and float16 can hold the defaults of all constants.
    """
    for name in CONSTANTS.get(registry.canonical(op), ()):
        text = attrs.get(name, "None")
        if text != "None" and not fits(float(text)):
            return f"{name}={text}"
    return None


def fits(value: float) -> bool:
    """Return whether float16 holds a constant with all its digits, and sums of a few of them."""
    if value == 0 or not math.isfinite(value):
        return True
    return SMALLEST <= abs(value) <= LARGEST
