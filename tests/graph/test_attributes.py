"""Our own attributes in a graph."""

import pytest

from gluon_amp import graph
from gluon_amp.graph import Rounding

import mxnet as mx


def test_a_rounding_is_read_back_from_its_node():
    rounding = Rounding("0:dot:1", "float8_e4m3", "float8_e5m2", ("forward",))
    found = Rounding.of({"attrs": {graph.ROUNDING_ATTR: rounding.to_text()}})
    assert (found.key, found.compute, found.gradients) == rounding[:3]
    assert list(found.wide) == ["forward"]
    assert Rounding.of({"attrs": {}}) is None


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
