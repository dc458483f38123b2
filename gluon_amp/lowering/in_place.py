"""Gradients of operators that MXNet computes in place and that are wrong there.

MXNet 1.9.1 writes the gradient of an operator's data over the gradient of its result, if nothing
else reads that array. This happens in graphs, thus in hybridized nets and in `Module`, but not in
imperative mode. Two operators go wrong: PReLU reads the overwritten array again, and hard_sigmoid
overwrites an array that others still read. What `DETOURS` writes in their place does not. A graph
that computes no gradients needs none of this.
"""

from typing import Callable, Dict, FrozenSet, List, Optional

from gluon_amp.graph import Entry, Json, Rule, Writer, op_table, source_of, variables, with_bodies
from gluon_amp.lowering.typed_graph import TypedGraph


def avoid_faults(graph: TypedGraph, frozen: FrozenSet[str]) -> TypedGraph:
    """Return a graph of the same values with the gradients of imperative mode.

    It is `graph` itself if it has none of these operators, or computes no gradients. `frozen` are
    the variables that get none.
    """
    learns = not frozen.issuperset(variables(graph.json))
    return graph.by(_rule(graph.json, frozen)) if learns else graph


def avoid_faults_in(graph: Json) -> Json:
    """Do the same to a graph whose dtypes are not known."""
    out = Writer()
    changed = variables(graph) and out.rewrite(graph, _rule(graph, frozenset()))
    return out.graph(graph) if changed else graph


def _rule(graph: Json, frozen: FrozenSet[str]) -> Rule:
    def rule(out: Writer, i: int, node: Json, inputs: List[Entry]) -> Optional[Entry]:
        safe = with_bodies(node, avoid_faults_in)
        if safe is not node:
            return out.copy(safe, inputs)
        detour = _detour(graph["nodes"], node, frozen)
        return detour(out, node, *inputs) if detour else None

    return rule


def _prelu(out: Writer, node: Json, data: Entry, slope: Entry) -> Entry:
    """Write PReLU as relu(x) + slope · min(x, 0).

    Its gradient of the slope is multiplied by the slope where it is computed in place
    (`src/operator/leaky_relu-inl.h`). Here PReLU of -1 brings the slope to the shape of the data,
    and nothing differentiates the -1.
    """
    name = node["name"]
    ones = out.emit("_npi_full_like", f"{name}_minus_ones", data, fill_value="-1")
    slopes = out.copy({**node, "name": f"{name}_minus_slopes"}, [ones, slope])
    positive = out.emit("relu", f"{name}_positive", data)
    negative = out.emit("_minimum_scalar", f"{name}_negative", data, scalar="0")
    negative = out.emit("elemwise_mul", f"{name}_scaled", slopes, negative)
    return out.emit("elemwise_sub", name, positive, negative)


def _hard_sigmoid(out: Writer, node: Json, data: Entry) -> Entry:
    """Write hard_sigmoid(x) · 1.

    The gradient of the product is an array that nothing else reads. That of the sum x + y, say, is
    also the gradient of x and of y, without a copy.
    """
    result = out.copy({**node, "name": f"{node['name']}_alone"}, [data])
    return out.emit("_mul_scalar", node["name"], result, scalar="1")


# What replaces an operator with the word `inplace`
Detour = Callable[..., Entry]
DETOURS: Dict[str, Detour] = {"LeakyReLU": _prelu, "hard_sigmoid": _hard_sigmoid}


def _detour(nodes: List[Json], node: Json, frozen: FrozenSet[str]) -> Optional[Detour]:
    """Return what replaces a node, if anything does and the input with the fault learns."""
    wrong = op_table.inputs("inplace", node["op"], node["attrs"])
    sources = (source_of(nodes, node["inputs"][k][0], through=None) for k in wrong)
    learns = any(nodes[source]["name"] not in frozen for source in sources)
    return DETOURS[node["op"]] if learns else None
