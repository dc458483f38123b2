"""The one name under which an operator is looked up, whatever its alias and its kind of arrays."""

import functools
import re

from gluon_amp.base import registry

# Operators of mx.np whose counterpart of mx.nd has another name behind the prefix
_OTHER_NAMES = {
    "_np_reshape": "Reshape",
    "_npi_absolute": "abs",
    "_npi_add_scalar": "_plus_scalar",
    "_npi_around": "round",
    "_npi_concatenate": "Concat",
    "_npi_gamma": "_npi_gamma",  # random numbers: `gamma` is the function
    "_npi_less": "broadcast_lesser",
    "_npi_less_equal": "broadcast_lesser_equal",
    "_npi_less_equal_scalar": "_lesser_equal_scalar",
    "_npi_less_scalar": "_lesser_scalar",
    "_npi_multiply": "broadcast_mul",
    "_npi_multiply_scalar": "_mul_scalar",
    "_npi_rsubtract_scalar": "_rminus_scalar",
    "_npi_rtrue_divide_scalar": "_rdiv_scalar",
    "_npi_subtract": "broadcast_sub",
    "_npi_subtract_scalar": "_minus_scalar",
    "_npi_true_divide": "broadcast_div",
    "_npi_true_divide_scalar": "_div_scalar",
    "_npx_reshape": "Reshape",
}


@functools.lru_cache(maxsize=None)
def classic(op: str) -> str:
    """Return the name in a graph of the operator of mx.nd that does the same as an operator.

    `op` may be an alias, and an operator of mx.np: `'Concat'` for `'concat'` and for
    `'_npi_concatenate'`. The two may differ in the names of attributes and in the dtype of integer
    results. An operator without such a counterpart has its own name in a graph.
    """
    name = registry.canonical(op)
    stem = re.sub("^_np[ix]?_", "", name)
    options = [_OTHER_NAMES.get(name), stem, f"broadcast_{stem}", f"_{stem}"]
    known = (one for one in options if one and registry.canonical(one) == one)
    return next((one for one in known if registry.handle(one)), name)
