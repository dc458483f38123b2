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
    """An operator of a graph, casts aside.

    Attributes
    ----------
    block, op : str
        The path of its block and its name in MXNet.
    attributes : dict of str to str
    in_float16 : bool
        Whether it computes in float16.
    shapes : list of tuple
        Of its inputs; `()` where the shape is unknown.
    dtypes : list of set of str
        Of its inputs, each with those of the values before they were cast or moved.
    output_dtype : str or None
        Of its first output; None where it is unknown.
    """

    block: str
    op: str
    attributes: Dict[str, str]
    in_float16: bool
    shapes: List[tuple]
    dtypes: List[Set[str]]
    output_dtype: Optional[str]


def operators(
    path: str, block: gluon.HybridBlock, inputs: Sequence[nd.NDArray] = ()
) -> List[Operator]:
    """Return the operators of a block that runs one graph, in the order of the graph.

    Parameters
    ----------
    path : str
        Of the block in the net.
    block : HybridBlock
        Cast, or with float16 parameters.
    inputs : sequence of NDArray
        Of the block; without them the shapes of its data are unknown.

    Raises
    ------
    ValueError
        When the block has never run, so that it has no graph.
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
    shape_of, dtype_of_node = _first_outputs(symbol, nodes, shapes, dtypes)
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


def _sources(nodes: List[dict], i: int) -> List[int]:
    """Return node `i` and those before it, as long as values are only cast or moved."""
    chain = [i]
    while nodes[i]["op"] in _MOVING and len(nodes[i]["inputs"]) == 1:
        i = nodes[i]["inputs"][0][0]
        chain.append(i)
    return chain


_MOVING = {*graph.CASTS, *op_table.MOVES}


def _first_outputs(
    symbol: mx.sym.Symbol, nodes: List[dict], shapes: Dict[str, tuple], dtypes: Dict[str, str]
) -> Tuple[List[tuple], List[Optional[str]]]:
    """Return shape and dtype of each node's first output, `()` and None where they are unknown.

    MXNet names it after the node: `'name'` for a variable, `'name_output'` for an operator with one
    output, and `'name_output0'` for an operator with several.
    """
    internals = symbol.get_internals()
    variables = {*internals.list_inputs()}
    _, all_shapes, _ = internals.infer_shape_partial(
        **{name: shape for name, shape in shapes.items() if name in variables}
    )
    _, all_dtypes, _ = internals.infer_type_partial(
        **{name: dtype for name, dtype in dtypes.items() if name in variables}
    )
    by_output = {}
    for output, shape, dtype in zip(internals.list_outputs(), all_shapes, all_dtypes):
        # Under `npx.set_np()`, unknown shapes are None and unknown dimensions -1, and else 0.
        shape = tuple(max(size, 0) for size in shape or ())
        by_output.setdefault(output, (shape, None if dtype is None else dtype_name(dtype)))
    candidates = ([node["name"] + end for end in ("", "_output", "_output0")] for node in nodes)
    unknown = ((), None)
    outputs = [
        next((by_output[name] for name in names if name in by_output), unknown)
        for names in candidates
    ]
    return [shape for shape, _ in outputs], [dtype for _, dtype in outputs]
