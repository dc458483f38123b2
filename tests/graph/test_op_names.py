"""One name for an operator, its aliases and its counterpart of mx.np."""

import pytest

from gluon_amp.base import registry
from gluon_amp.graph import classic, op_names


@pytest.mark.parametrize(
    "name, names",
    [
        ("Concat", ["concat", "Concat", "_npi_concatenate"]),
        ("Reshape", ["_np_reshape", "_npx_reshape", "reshape"]),
        ("tanh", ["tanh", "_npi_tanh"]),
        ("broadcast_add", ["broadcast_plus", "_npi_add"]),
        ("_power_scalar", ["_PowerScalar", "_npi_power_scalar"]),
    ],
)
def test_aliases_and_operators_of_numpy_have_the_name_of_mx_nd(name, names):
    assert {classic(one) for one in names} == {name}


@pytest.mark.parametrize("op", ["_npi_einsum", "_npi_gamma", "_npi_matmul", "my_gemm", "null"])
def test_what_has_no_counterpart_keeps_its_name(op):
    assert classic(op) == op


def test_the_name_is_one_of_a_graph_and_has_itself():
    for name in registry.names():
        found = classic(name)
        assert registry.canonical(found) == found == classic(found), name
    assert {*op_names._OTHER_NAMES} <= {*map(registry.canonical, registry.names())}
