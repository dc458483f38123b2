"""The operators of a net's graph, with the shapes and dtypes of what they read."""

from typing import Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

from gluon_amp import graph
from gluon_amp.base.dtypes import dtype_name
from gluon_amp.casting.arguments import arrays_in
from gluon_amp.casting.binding import binding_of
from gluon_amp.casting.parameters import dtype_of
from gluon_amp.casting.tracing import symbol_of
from gluon_amp.policy import Policy, cast_pass, op_table

import mxnet as mx
from mxnet import gluon, nd


class Operator(NamedTuple):
    """An operator of a graph, casts aside."""

    block: str  # the path of its block
    op: str
    attributes: Dict[str, str]
    in_float16: bool  # whether it computes in float16
    shapes: List[tuple]  # of its inputs; `()` where the shape is unknown
    dtypes: List[Set[str]]  # of its inputs, with those of the values before a cast or a move
    output_dtype: Optional[str]  # of its first output; None where it is unknown


def operators(
    path: str, block: gluon.HybridBlock, inputs: Sequence[nd.NDArray] = ()
) -> List[Operator]:
    """Return the operators of a block, cast or with float16 parameters, in the order of its graph.

    Without inputs the shapes of its data are unknown. A block that has never run, so that it has no
    graph, is a `ValueError`.
    """
    names, symbol = _graph(path, block)
    parameters = {p.name: p for p in block.collect_params().values()}
    shapes = {name: p.shape for name, p in parameters.items() if is_known(p.shape)}
    dtypes = {name: dtype_of(p) for name, p in parameters.items()}
    arrays = dict(zip(names, arrays_in(inputs)))
    shapes.update({name: array.shape for name, array in arrays.items()})
    dtypes.update({name: dtype_name(array.dtype) for name, array in arrays.items()})

    binding = binding_of(block)
    if binding is not None:
        if binding.key is not None:  # the dtypes of the data on which the block ran last
            dtypes.update(zip(names, binding.key.dtypes))
        plan = binding.nodes
    else:
        plan = cast_pass.plan(symbol, Policy(), {})[1]
    plan = {node.name: node for node in plan}
    float16 = {name for name, p in parameters.items() if dtype_of(p) == "float16"}

    nodes = graph.to_json(symbol)["nodes"]
    shape_of, dtype_of_node = _first_outputs(nodes, shapes, dtypes)
    found = []
    for i, node in enumerate(nodes):
        if node["name"] not in plan:
            continue
        planned = plan[node["name"]]
        variables = {nodes[graph.source_of(nodes, j)]["name"] for j, *_ in node["inputs"]}
        found.append(
            Operator(
                planned.block,
                node["op"],
                node.get("attrs", {}),
                bool(float16 & variables) if binding is None else planned.dtype == "float16",
                [shape_of[j] if k == 0 else () for j, k, *_ in node["inputs"]],
                [
                    {dtype_of_node[m] for m in _sources(nodes, j)} - {None} if k == 0 else set()
                    for j, k, *_ in node["inputs"]
                ],
                dtype_of_node[i],
            )
        )
    return found


def is_known(shape: Optional[Sequence[int]]) -> bool:
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


def _sources(nodes: List[dict], i: int) -> List[int]:
    """Return node `i` and those before it, as long as values are only cast or moved."""
    chain = [i]
    while nodes[i]["op"] in _MOVING and len(nodes[i]["inputs"]) == 1:
        i = nodes[i]["inputs"][0][0]
        chain.append(i)
    return chain


_MOVING = {*graph.CASTS, *op_table.MOVES}


def _first_outputs(
    nodes: List[dict], shapes: Dict[str, tuple], dtypes: Dict[str, str]
) -> Tuple[List[tuple], List[Optional[str]]]:
    """Return shape and dtype of each node's first output, `()` and None where they are unknown."""
    outputs = graph.from_json({"nodes": nodes, "heads": [[i, 0, 0] for i in range(len(nodes))]})
    read = {*outputs.list_inputs()}
    shapes, dtypes = ({k: v for k, v in known.items() if k in read} for known in (shapes, dtypes))
    # Under `npx.set_np()`, unknown shapes are None and unknown dimensions -1, and else 0.
    found = [
        tuple(max(size, 0) for size in shape or ())
        for shape in outputs.infer_shape_partial(**shapes)[1]
    ]
    types = outputs.infer_type_partial(**dtypes)[1]
    return found, [None if dtype is None else dtype_name(dtype) for dtype in types]
