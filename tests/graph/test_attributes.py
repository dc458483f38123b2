"""Our own attributes in a graph."""

import pytest

from gluon_amp import graph

import mxnet as mx


@pytest.mark.parametrize("name", graph.OWN_ATTRS)
def test_a_graph_for_others_has_none_of_them_in_its_loops_either(name):
    def step(data, state):
        with mx.AttrScope(**{name: "inside"}):
            out = data + state
        return out, out

    with mx.AttrScope(**{name: "outside", "__theirs__": "1"}):
        x = mx.sym.var("x") * 2
    symbol = mx.sym.contrib.foreach(step, x, mx.sym.var("s"))[0]
    text = symbol.tojson()
    assert '"inside"' in text and '"outside"' in text
    left = graph.without_own_attributes(symbol).tojson()
    assert name not in left and '"inside"' not in left and '"outside"' not in left
    assert "__theirs__" in left
