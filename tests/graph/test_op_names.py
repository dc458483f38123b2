"""One name for an operator, its aliases and its counterpart of mx.np."""

from gluon_amp.base import registry
from gluon_amp.graph import classic, op_names, op_table


def test_aliases_and_operators_of_numpy_have_the_name_of_mx_nd():
    assert {classic(name) for name in ("concat", "Concat", "_npi_concatenate")} == {"Concat"}
    assert {classic(name) for name in ("_np_reshape", "_npx_reshape", "reshape")} == {"Reshape"}
    assert (classic("_npi_einsum"), classic("my_gemm")) == ("_npi_einsum", "my_gemm")


def test_all_names_are_those_of_a_graph():
    for name, same in op_names._CLASSIC.items():
        assert op_table.is_known(name) and op_table.is_known(same), name
        assert (registry.canonical(name), registry.canonical(same)) == (name, same)
