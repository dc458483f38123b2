"""Graphs that replace others: new nodes between the old ones, and nodes that nobody needs."""

from gluon_amp import graph

import mxnet as mx


def test_a_rule_returns_what_is_read_in_the_place_of_a_node():
    left, _ = mx.sym.split(mx.sym.var("x"), num_outputs=2)
    old, new = graph.to_json(mx.sym.Group([left, mx.sym.relu(left)])), graph.Writer()
    assert new.rewrite(old, lambda out, i, *_: [1, 1, 0] if i == 2 else None)
    assert new.graph(old)["heads"] == [[1, 0, 0], [1, 1, 0]] and len(new.nodes) == 2


def test_a_rule_says_of_each_output_what_is_read():
    left, right = mx.sym.split(mx.sym.var("x"), num_outputs=2, name="s")
    old, new = graph.to_json(mx.sym.Group([left, right])), graph.Writer()

    def negated(out, i, node, inputs):
        if node["op"] == "null":
            return None
        entry = out.copy(node, inputs)
        out.replaced[i, 0] = out.emit("negative", "minus", entry)
        return entry

    assert not graph.Writer().rewrite(old, lambda *_: None)
    assert new.rewrite(old, negated)
    assert [head[:2] for head in new.graph(old)["heads"]] == [[2, 0], [1, 1]]
    found = graph.from_json(new.graph(old)).eval(x=mx.nd.array([[1, 2]]))
    assert [y.asscalar() for y in found] == [-1, 2]


def test_nodes_that_no_output_needs_are_dropped():
    x = mx.sym.var("x")
    whole = graph.to_json(mx.sym.Group([mx.sym.tanh(mx.sym.var("unread")), mx.sym.exp(x * 2)]))
    kept, _ = graph.pruned({**whole, "heads": whole["heads"][1:]})
    assert [node["op"] for node in kept["nodes"]] == ["null", "_mul_scalar", "exp"]
    assert graph.from_json(kept).list_inputs() == ["x"]
