"""What the graph that autograd has recorded shows, read from memory."""

from gluon_amp.graph import tape
from tests import kinds
from tests.casting.nets import OwnNorm

from mxnet import autograd, nd
from mxnet.gluon import nn


def recorded():
    """Return a hybridized block, one that is not, an input, and the loss of both."""
    inner, outer = nn.HybridSequential(), OwnNorm(2)
    inner.add(nn.Dense(2, in_units=3), nn.Dropout(0.5), OwnNorm(2), nn.Activation("relu"))
    for block in (inner, outer):
        block.initialize()
    inner.hybridize()
    x = kinds.ones((4, 3))
    x.attach_grad()
    with autograd.record():
        loss = outer(inner(x)).sum()
    return inner, outer, x, loss


def test_what_the_operators_write_and_which_gradients(arrays):
    inner, outer, x, loss = recorded()
    seen = tape.read([loss])
    norms = [[inner[2].mean, inner[2].var], [outer.mean, outer.var]]
    places = [[tape.memory_of(p.data()) for p in norm] for norm in norms]
    assert [tape.memory_of(one) for one in seen.written] == [*places[0], *places[1]]
    trained = [p for block in (inner, outer) for p in block.collect_params().values()]
    gradients = [x.grad, *(p.grad() for p in trained if p.grad_req != "null")]
    assert {*map(tape.memory_of, seen.gradients)} == {*map(tape.memory_of, gradients)}
    assert all(type(one) is type(x) for one in seen.gradients + seen.written)
    mean, weight, other = outer.mean.data(), inner[0].weight.data(), kinds.ones(2)
    assert [seen.reads(one) for one in (mean, weight, other)] == [True, True, False]
    assert [seen.writes(one) for one in (mean, weight, other)] == [True, False, False]
    assert not seen.writes_early(mean)  # on a CPU


def test_the_graph_of_a_hybridized_block_is_a_body():
    *_, loss = recorded()
    (graph,) = tape.read([loss]).graphs()
    operators = [node for node in graph["nodes"] if node["op"] != "null"]
    assert operators[0]["op"] == "_CachedOp"
    (body,) = operators[0]["subgraphs"]
    inside = [node["op"] for node in body["nodes"] if node["op"] != "null"]
    assert inside[:2] == ["FullyConnected", "Dropout"] and "Activation" in inside


def test_nothing_is_read_where_nothing_is_recorded():
    *_, loss = recorded()
    loss.backward()  # frees the graph
    assert tape.read([loss]) is None
    assert tape.read([nd.ones(1)]) is None and tape.read([]) is None


def test_parts_of_one_memory_differ():
    table = kinds.ones((2, 3))
    assert tape.memory_of(table[0]) == tape.memory_of(table)
    assert tape.memory_of(table[1]) != tape.memory_of(table)
