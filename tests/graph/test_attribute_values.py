"""The texts of attributes, read as MXNet reads them."""

import pytest

from gluon_amp import graph

import mxnet as mx


@pytest.mark.parametrize("text", ["True", "true", "TRUE", "1", "False", "false", "FALSE", "0"])
def test_a_flag(text):
    x = mx.sym.var("x")
    dense_of_one_axis = mx.sym.FullyConnected(x, num_hidden=2, flatten=False).tojson()
    symbol = mx.sym.load_json(dense_of_one_axis.replace('"False"', f'"{text}"'))
    flattens = symbol.infer_shape(x=(2, 3, 4))[1] == [(2, 2)]
    assert graph.flag({"flatten": text}, "flatten", not flattens) is flattens


def test_numbers():
    for text in ("(2, 3)", "[2,3]", "(2L, 3L)", " ( 2, 3, ) "):
        axes = mx.sym.sum(mx.sym.var("x"), axis=(0, 1)).tojson().replace("(0, 1)", text)
        assert mx.sym.load_json(axes).infer_shape(x=(9, 8, 7, 6))[1] == [(9, 8)]
        assert graph.integers({"axis": text}, "axis") == (2, 3)
    assert graph.integers({"k": "-1"}, "k") == (-1,)
    assert (graph.number({"n": "1e-3"}, "n"), graph.integer({"n": "7"}, "n")) == (0.001, 7)


@pytest.mark.parametrize("attrs", [{}, {"n": "None"}])
def test_what_is_not_set_has_its_default(attrs):
    assert not graph.is_set(attrs, "n")
    assert [graph.flag(attrs, "n", True), graph.flag(attrs, "n")] == [True, False]
    assert (graph.number(attrs, "n", 0.25), graph.integer(attrs, "n", 3)) == (0.25, 3)
    assert graph.integers(attrs, "n", (1, 1)) == graph.integers({"n": "()"}, "n", (1, 1)) == (1, 1)
