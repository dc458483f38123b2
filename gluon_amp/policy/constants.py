"""The numeric constants that operators carry, and which of them float16 can hold.

In float16 an epsilon of 1e-12 is 0 and a mask value of -1e9 is -inf: `log` returns -inf and
`softmax` returns NaN where float32 returns numbers. An operator with such a constant runs in
float32 (`Policy.decide`). By the rules of `op_table`, the operators after it also run in float32 up
to the next convolution or matrix product, so a mask stays finite until the softmax.
"""

import math
from typing import Mapping, Optional

from gluon_amp.graph import is_set, number, op_table

# A constant below float16's smallest normal number loses digits: 1e-7 becomes 1.19e-7. A sum of a
# few constants above a quarter of float16's range overflows.
SMALLEST = 2.0**-14
LARGEST = 2.0**14


def unfit(op: str, attrs: Mapping[str, str]) -> Optional[str]:
    """Return a constant of a node that float16 cannot hold, None if there is none.

    The result is attribute and value, as in `'a_min=1e-12'`. Every dtype can hold zero, infinity
    and NaN, and float16 can hold the defaults of all constants.
    """
    for name in op_table.arguments("constants", op) or ():
        if is_set(attrs, name) and not fits(number(attrs, name)):
            return f"{name}={attrs[name]}"
    return None


def fits(value: float) -> bool:
    """Return whether float16 holds a constant with all its digits, and sums of a few of them."""
    if value == 0 or not math.isfinite(value):
        return True
    return SMALLEST <= abs(value) <= LARGEST
