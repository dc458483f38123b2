"""Gradients of operators that MXNet computes in place and that are wrong there.

MXNet 1.9.1 writes the gradient of an operator's data over the gradient of its result, if nothing
else reads that array. This happens in graphs, thus in hybridized nets and in `Module`, but not in
imperative mode. Two operators go wrong: PReLU reads the overwritten array again, and hard_sigmoid
overwrites an array that others still read. What `DETOURS` writes in their place does not. A graph
that computes no gradients needs none of this.
"""

from typing import Callable, Dict, FrozenSet, List, Optional, Tuple

from gluon_amp.graph import Rule, Writer, source_of, variables
from gluon_amp.lowering.typed_graph import TypedGraph


def avoid_faults(graph: TypedGraph, frozen: FrozenSet[str]) -> TypedGraph:
    """Return a graph of the same values with the gradients of imperative mode.

    It is `graph` itself if it has none of these operators, or computes no gradients. `frozen` are
    the variables that get none.
    """
    learns = not frozen.issuperset(variables(graph.json))
    return graph.by(_rule(graph.json, frozen)) if learns else graph


def avoid_faults_in(graph: dict) -> dict:
    """Do the same to a graph whose dtypes are not known."""
    out = Writer()
    changed = variables(graph) and out.rewrite(graph, _rule(graph, frozenset()))
    return out.graph(graph) if changed else graph


def _rule(graph: dict, frozen: FrozenSet[str]) -> Rule:
    def rule(out: Writer, i: int, node: dict, inputs: List[list]) -> Optional[list]:
        bodies = node.get("subgraphs", [])
        safe = [avoid_faults_in(body) for body in bodies]
        if any(new is not old for new, old in zip(safe, bodies)):
            return out.copy({**node, "subgraphs": safe}, inputs)
        detour = _detour(graph["nodes"], node, frozen)
        return detour(out, node, *inputs) if detour else None

    return rule


def _prelu(out: Writer, node: dict, data: list, slope: list) -> list:
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


def _hard_sigmoid(out: Writer, node: dict, data: list) -> list:
    """Write hard_sigmoid(x) · 1.

    The gradient of the product is an array that nothing else reads. That of the sum x + y, say, is
    also the gradient of x and of y, without a copy.
    """
    result = out.copy({**node, "name": f"{node['name']}_alone"}, [data])
    return out.emit("_mul_scalar", node["name"], result, scalar="1")


# By operator and `act_type`: what replaces it, and which input has to get a gradient for that
DETOURS: Dict[Tuple[str, Optional[str]], Tuple[Callable[..., list], int]] = {
    ("LeakyReLU", "prelu"): (_prelu, 1),
    ("hard_sigmoid", None): (_hard_sigmoid, 0),
}


def _detour(nodes: list, node: dict, frozen: FrozenSet[str]) -> Optional[Callable[..., list]]:
    """Return what replaces a node, if anything does and its input gets a gradient."""
    detour, learns = DETOURS.get((node["op"], node["attrs"].get("act_type")), (None, None))
    if detour is None:
        return None
    source = nodes[source_of(nodes, node["inputs"][learns][0], through=None)]
    return None if source["name"] in frozen else detour
