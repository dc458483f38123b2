"""The operators of a net's graph, with the shapes of what they read."""

from typing import Dict, List, NamedTuple, Sequence, Tuple

from gluon_amp import graph
from gluon_amp.casting.arguments import arrays_in
from gluon_amp.casting.binding import binding_of
from gluon_amp.casting.parameters import dtype_of
from gluon_amp.casting.tracing import symbol_of
from gluon_amp.policy import Policy, cast_pass

import mxnet as mx
from mxnet import gluon, nd


class Operator(NamedTuple):
    """An operator of a graph, casts aside."""

    block: str  # the path of its block
    op: str
    attributes: Dict[str, str]
    in_float16: bool  # whether it computes in float16
    shapes: List[tuple]  # of its inputs; `()` where the shape is unknown


def operators(
    path: str, block: gluon.HybridBlock, inputs: Sequence[nd.NDArray] = ()
) -> List[Operator]:
    """Return the operators of a block that runs one graph, in the order of the graph.

    The block is cast, or has float16 parameters. Without inputs the shapes of its data are unknown.
    Raise `ValueError` when the block has never run, so that it has no graph.
    """
    names, symbol = _graph(path, block)
    parameters = {p.name: p for p in block.collect_params().values()}
    shapes = {name: p.shape for name, p in parameters.items() if is_known(p.shape)}
    shapes.update((name, array.shape) for name, array in zip(names, arrays_in(inputs)))
    float16 = {name for name, p in parameters.items() if dtype_of(p) == "float16"}
    binding = binding_of(block)
    plan = binding.nodes if binding else cast_pass.plan(symbol, Policy(), {})[1]
    plan = {node.name: node for node in plan}
    nodes = graph.to_json(symbol)["nodes"]
    shape_of = _shapes(symbol, nodes, shapes)
    found = []
    for node in nodes:
        if node["name"] not in plan:
            continue
        planned = plan[node["name"]]
        variables = {nodes[graph.source_of(nodes, j)]["name"] for j, *_ in node["inputs"]}
        in_float16 = planned.dtype == "float16" if binding else bool(float16 & variables)
        read = [shape_of[j] if k == 0 else () for j, k, *_ in node["inputs"]]
        attributes = node.get("attrs", {})
        found.append(Operator(planned.block, node["op"], attributes, in_float16, read))
    return found


def is_known(shape) -> bool:
    """Return whether all dimensions of a shape are known."""
    return bool(shape) and min(shape) > 0


def _graph(path: str, block: gluon.HybridBlock) -> Tuple[List[str], mx.sym.Symbol]:
    """Return the inputs' names and the symbol of a block: cast, or as it is if it is not cast."""
    binding = binding_of(block)
    if binding is not None and binding.graph:
        inputs, symbol = binding.graph
        return [variable.name for variable in inputs], symbol
    if binding is None and all(is_known(p.shape) for p in block.collect_params().values()):
        symbol, names = symbol_of(path, block)
        return sorted(names), symbol
    raise ValueError(
        f"check() needs inputs, since {type(block).__name__} {path or 'net'} has never run: "
        "call check(net, trainer, x) with x as for net(x)."
    )


def _shapes(symbol: mx.sym.Symbol, nodes: List[dict], shapes: Dict[str, tuple]) -> List[tuple]:
    """Return the shape of each node's first output, `()` where it is unknown.

    MXNet names it after the node: `'name'` for a variable, `'name_output'` for an operator with one
    output, and `'name_output0'` for an operator with several.
    """
    internals = symbol.get_internals()
    variables = {*internals.list_inputs()}
    known = {name: shape for name, shape in shapes.items() if name in variables}
    _, inferred, _ = internals.infer_shape_partial(**known)
    by_output = {}
    for output, shape in zip(internals.list_outputs(), inferred):
        # Under `npx.set_np()`, unknown shapes are None and unknown dimensions -1, and else 0.
        by_output.setdefault(output, tuple(max(size, 0) for size in shape or ()))
    candidates = ([node["name"] + end for end in ("", "_output", "_output0")] for node in nodes)
    return [
        next((by_output[name] for name in names if name in by_output), ()) for names in candidates
    ]
