"""The one name under which an operator is looked up, whatever the name or the array kind it has."""

from gluon_amp.base import registry

# Operators of mx.np with the name of one of mx.nd, but for the prefix
_SAME = (
    ("_np_", "dot max min prod squeeze sum transpose"),
    (
        "_npi_",
        """
        arccos arccosh arcsin arcsinh arctan arctanh argmax argmin broadcast_to cbrt ceil cos cosh
        degrees exp expm1 fix floor log log10 log1p log2 logical_not mean negative norm radians
        reciprocal rint sign sin sinh sqrt square stack tan tanh trunc where
        """,
    ),
    ("_npx_", "relu sigmoid"),
)
# Those that have its name behind another prefix
_PREFIXED = (
    ("broadcast_", "equal greater greater_equal hypot mod not_equal power"),
    (
        "_",
        """
        equal_scalar greater_equal_scalar greater_scalar mod_scalar not_equal_scalar ones
        power_scalar rmod_scalar rpower_scalar zeros
        """,
    ),
)
_CLASSIC = {
    **{f"{prefix}{name}": name for prefix, names in _SAME for name in names.split()},
    **{f"_npi_{name}": f"{prefix}{name}" for prefix, names in _PREFIXED for name in names.split()},
    "_np_copy": "_copy",
    "_np_reshape": "Reshape",
    "_npi_absolute": "abs",
    "_npi_add": "broadcast_add",
    "_npi_add_scalar": "_plus_scalar",
    "_npi_around": "round",
    "_npi_concatenate": "Concat",
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


def classic(op: str) -> str:
    """Return the name in a graph of the operator of mx.nd that does the same as an operator.

    `op` may be an alias, and an operator of mx.np: `'Concat'` for `'concat'` and for
    `'_npi_concatenate'`. The two may differ in the names of attributes and in the dtype of integer
    results. An operator without such a counterpart has its own name in a graph.
    """
    name = registry.canonical(op)
    return _CLASSIC.get(name, name)
