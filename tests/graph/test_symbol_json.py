"""A symbol's JSON: read, built again, and what is asked of it."""

import pytest

from gluon_amp import graph
from gluon_amp.base.mxnet_internals import NumpySymbol

import mxnet as mx


def var(name):
    return mx.sym.var(name)


def dense(data, name):
    return mx.sym.FullyConnected(data, var(f"{name}_w"), num_hidden=4, no_bias=True, name=name)


def nodes_of(symbol):
    return graph.to_json(symbol)["nodes"]


def loop():
    """A loop whose body is `fc(x) + s` and does not read its variables in their order."""

    def step(data, state):
        out = mx.sym.FullyConnected(data, var("w"), num_hidden=4, no_bias=True, name="fc")
        return out, out + state

    return mx.sym.contrib.foreach(step, var("x"), var("s"))[0]


def test_variables_may_be_added_to_a_graph_and_to_the_body_of_a_loop():
    json = graph.to_json(loop())
    (outer,) = [node for node in json["nodes"] if "subgraphs" in node]
    (body,) = outer["subgraphs"]
    assert all("attrs" in node for node in body["nodes"])
    body["nodes"].append({"op": "null", "name": "unread", "inputs": []})
    json["nodes"].insert(0, {"op": "null", "name": "first", "inputs": []})
    for node in json["nodes"]:
        node["inputs"] = [[i + 1, *rest] for i, *rest in node["inputs"]]
    json["heads"] = [[i + 1, *rest] for i, *rest in json["heads"]]
    assert graph.from_json(json).list_inputs() == loop().list_inputs()


def test_a_name_outside_of_ascii():
    symbol = mx.sym.relu(mx.sym.var("größe"))
    assert graph.from_json(graph.to_json(symbol)).list_inputs() == ["größe"]


@pytest.mark.parametrize("kind", [mx.sym.Symbol, NumpySymbol])
def test_a_symbol_has_the_kind_of_another(kind):
    like = var("x").as_np_ndarray() if kind is NumpySymbol else var("x")
    assert type(graph.from_json(graph.to_json(var("x")), like=like)) is kind


def test_the_dtypes_of_all_tensors():
    symbol = mx.sym.amp_cast(dense(var("x"), "a"), dtype="float32", name="cast")
    json = graph.to_json(symbol)
    place = {node["name"]: i for i, node in enumerate(json["nodes"])}
    found = graph.edge_dtypes(json, {"x": "float16", "a_w": "float16"})
    names = ("x", "a_w", "a", "cast")
    assert [found[place[name], 0] for name in names] == ["float16"] * 3 + ["float32"]
    assert set(graph.edge_dtypes(json, {}).values()) == {"float32"}
    with pytest.raises(mx.MXNetError):
        graph.edge_dtypes(json, {"x": "float16"})  # beside a float32 weight


def test_the_source_of_a_tensor():
    half = mx.sym.Cast(var("x"), dtype="float16")
    moved = mx.sym.transpose(mx.sym.amp_cast(half, dtype="float32"), name="t")
    nodes = nodes_of(moved + var("y"))
    names = [node["name"] for node in nodes]
    cast = nodes[names.index("t")]["inputs"][0][0]
    assert names[graph.source_of(nodes, cast)] == "x"
    assert names[graph.source_of(nodes, names.index("t"))] == "t"
    assert names[graph.source_of(nodes, names.index("t"), None)] == "x"
    assert graph.source_of(nodes, len(nodes) - 1, None) == len(nodes) - 1  # it has two inputs


def test_what_the_outputs_need_in_the_order_in_which_mxnet_lists_it():
    late, early = dense(var("x"), "a"), dense(var("y"), "b")
    json = graph.to_json(mx.sym.Group([early + late, late]))
    json["nodes"].append({"op": "null", "name": "unread", "attrs": {}, "inputs": []})
    needed = [json["nodes"][i] for i in graph.needed(json)]
    inputs = [node["name"] for node in needed if node["op"] == "null"]
    assert inputs == ["y", "b_w", "x", "a_w"] == graph.from_json(json).list_inputs()
    assert len(needed) == len(json["nodes"]) - 1


def test_the_readers_of_a_tensor():
    x = var("x")
    json = graph.to_json(mx.sym.Group([x * x, x]))
    assert [node["op"] for node in json["nodes"]] == ["null", "elemwise_mul"]
    assert graph.readers_of(json) == {0: [(None, 0), (1, 0), (1, 1)], 1: [(None, 0)]}


def test_the_nodes_of_bodies_are_walked_and_rewritten():
    json = graph.to_json(loop())
    assert [n["op"] for n in graph.every_node(json)].count("FullyConnected") == 1
    (outer,) = [node for node in json["nodes"] if "subgraphs" in node]
    assert graph.with_bodies(outer, lambda body: body) is outer
    assert graph.with_bodies(outer, lambda body: {**body, "heads": []})["subgraphs"][0] == {
        **outer["subgraphs"][0],
        "heads": [],
    }
