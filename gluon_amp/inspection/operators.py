"""The graphs that a net runs, cast or not, and their operators with what these read."""

import contextlib
from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

from gluon_amp import graph
from gluon_amp.base.dtypes import dtype_name
from gluon_amp.casting.arguments import arrays_in
from gluon_amp.casting.binding import binding_of, running_blocks
from gluon_amp.casting.parameters import dtype_of
from gluon_amp.casting.tracing import TraceError, named_blocks, trace, trace_alone
from gluon_amp.graph import op_table
from gluon_amp.inspection.recording import Recording
from gluon_amp.inspection.unchanged import same_random_numbers, unchanged
from gluon_amp.policy import Policy, cast_pass

import mxnet as mx
from mxnet import autograd, gluon, nd

Arguments = Dict[gluon.Block, tuple]  # those of each block's first call


class Graph(NamedTuple):
    """What a block runs: its graph, or Python code."""

    path: str
    block: gluon.HybridBlock
    inputs: List[str]  # the names of the variables that are data
    symbol: Optional[mx.sym.Symbol]  # None for Python code, and for a block that never ran
    arrays: List[nd.NDArray]  # the data, as far as known
    untraceable: Optional[Tuple[str, str]]  # of Python code: see `Binding`

    @property
    def nodes(self) -> List[cast_pass.Node]:
        """How each operator runs, in order; without a cast, as if all data were float32."""
        binding = binding_of(self.block)
        if binding is not None:
            return binding.nodes or []
        return cast_pass.plan(self.symbol, Policy(), variable_dtypes(self.block, ()))[1]

    def first_outputs(self) -> Tuple[List[dict], List[tuple], List[Optional[str]]]:
        """Return the nodes of its JSON, with shape and dtype of the first output of each.

        They are `()` and None where they are unknown.
        """
        nodes = graph.to_json(self.symbol)["nodes"]
        outputs = graph.from_json({"nodes": nodes, "heads": [[i, 0, 0] for i in range(len(nodes))]})
        parameters = self.block.collect_params().values()
        shapes = {p.name: _shape_of(p) for p in parameters}
        shapes.update(zip(self.inputs, (array.shape for array in self.arrays)))
        dtypes = dict(zip(self.inputs, (dtype_name(array.dtype) for array in self.arrays)))
        dtypes.update(variable_dtypes(self.block, self.inputs))
        read = {*outputs.list_inputs()}
        shapes = {name: x for name, x in shapes.items() if name in read and is_known(x)}
        dtypes = {name: x for name, x in dtypes.items() if name in read}
        # Under `npx.set_np()`, unknown shapes are None and unknown dimensions -1, and else 0.
        found = [
            tuple(max(size, 0) for size in shape or ())
            for shape in outputs.infer_shape_partial(**shapes)[1]
        ]
        types = outputs.infer_type_partial(**dtypes)[1]
        return nodes, found, [None if dtype is None else dtype_name(dtype) for dtype in types]


def run(function: str, net: gluon.Block, inputs: tuple) -> Tuple[List[nd.NDArray], Arguments]:
    """Run a net for inference, and return its outputs and the arguments of its blocks.

    An error that appears only where values are computed, as that of a float16 product on a CPU, is
    none here: the outputs have dtypes and shapes, and nobody reads their values.
    """
    arguments: Arguments = {}

    def called(_: str, block: gluon.Block, args: tuple, result: Any) -> Any:
        if all(isinstance(x, nd.NDArray) for x in arrays_in(args)):  # and no trace calls the block
            arguments.setdefault(block, args)
        return result

    recording = contextlib.closing(Recording(named_blocks(net), called))
    with recording, unchanged(function, net), autograd.pause():
        return list(arrays_in(net(*inputs) if inputs else ())), arguments


def graphs(function: str, net: gluon.Block, arguments: Arguments) -> Iterator[Graph]:
    """Yield the graphs of a net that ran with these arguments; earlier, if there are none.

    With arguments, a block that never ran takes no part. Without, it is a `ValueError`.
    """
    for path, block in running_blocks(net):
        for found in _graphs(path, block, arguments):
            if found.symbol is not None or found.untraceable:
                yield found
            elif not arguments:
                given = "net, trainer, x" if function == "check" else "net, x"
                raise ValueError(
                    f"{function}() needs inputs, since {type(block).__name__} {path or 'net'} has "
                    f"never run: call {function}({given}) with x as for net(x)."
                )


def _graphs(path: str, block: gluon.HybridBlock, arguments: Arguments) -> Iterator[Graph]:
    binding, args = binding_of(block), arguments.get(block)
    untraceable = binding.untraceable if binding is not None else None
    if not contains_cast(block):
        try:
            inputs, symbol = graph_of(path, block, args) or ((), None)
        except TraceError as error:
            inputs, symbol, untraceable = (), None, (error.path, error.reason)
        names, arrays = [one.name for one in inputs], list(arrays_in(args))
        yield Graph(path, block, names, symbol, arrays, untraceable)
    if binding is None and (untraceable or contains_cast(block)):
        for name, child in block._children.items():
            for at, inside in running_blocks(child, f"{path}.{name}" if path else name):
                yield from _graphs(at, inside, arguments)


def graph_of(path: str, block: gluon.HybridBlock, args: Optional[tuple]) -> Optional[tuple]:
    """Return the input symbols and the symbol of a block, or None if that is not known.

    Raise `TraceError` for a block without a cast that has no graph for these arguments.
    """
    binding = binding_of(block)
    if binding is not None:
        return None if binding.untraceable else binding.graph
    with same_random_numbers():  # a trace runs the user's Python code
        if args is not None or isinstance(block, gluon.SymbolBlock):
            return trace(block, path, args or ())[:2]
        if block._cached_graph:
            return block._cached_graph
        if all(is_known(_shape_of(p)) for p in block.collect_params().values()):
            return (), trace_alone(block, path).symbol
    return None


def variable_dtypes(block: gluon.HybridBlock, inputs: Iterable[str]) -> Dict[str, str]:
    """Return the dtypes of a block's parameters, and of the data on which its cast graph ran last.

    `inputs` are the names of the data.
    """
    dtypes = {p.name: dtype_of(p) for p in block.collect_params().values()}
    key = getattr(binding_of(block), "key", None)
    return {**dtypes, **dict(zip(inputs, key.dtypes if key else ()))}


def contains_cast(block: gluon.Block) -> bool:
    """Return whether a block contains a cast one and is not cast, so that its own trace is wrong.

    It calls the cast block with arrays. If it is hybridized, see `casting/composing.py`.
    """
    inside = (binding_of(child) for _, child in named_blocks(block))
    return binding_of(block) is None and any(inside)


def _shape_of(parameter: gluon.Parameter) -> Optional[tuple]:
    """Return a parameter's shape, which one of an imported graph has only as that of its arrays."""
    return parameter._data[0].shape if parameter._data else parameter.shape


def is_known(shape: Optional[Sequence[int]]) -> bool:
    """Return whether all dimensions of a shape are known."""
    return min(shape or (0,)) > 0


class Operator(NamedTuple):
    """An operator of a graph, casts aside."""

    block: str  # the path of its block
    op: str
    attributes: Dict[str, str]
    in_float16: bool  # whether it computes in float16
    shapes: List[tuple]  # of its inputs; `()` where the shape is unknown
    dtypes: List[Set[str]]  # of its inputs, with those of the values before a cast or a move
    output_dtype: Optional[str]  # of its first output; None where it is unknown


def operators(traced: Graph) -> List[Operator]:
    """Return the operators of a block, cast or with float16 parameters, in the order of its graph.

    Without inputs the shapes of its data are unknown.
    """
    plan = {node.name: node for node in traced.nodes}
    parameters = traced.block.collect_params().values()
    float16 = {p.name for p in parameters if dtype_of(p) == "float16"}
    is_cast = binding_of(traced.block) is not None

    nodes, shape_of, dtype_of_node = traced.first_outputs()
    found = []
    for i, node in enumerate(nodes):
        if node["name"] not in plan:
            continue
        block, dtype = plan[node["name"]].block, plan[node["name"]].dtype
        variables = {nodes[graph.source_of(nodes, j)]["name"] for j, *_ in node["inputs"]}
        low = dtype == "float16" if is_cast else bool(float16 & variables)
        shapes: List[tuple] = []
        dtypes: List[Set[str]] = []
        for j, output in map(graph.edge_of, node["inputs"]):  # of which the first ones are known
            sources = _sources(nodes, j) if output == 0 else ()
            shapes.append(shape_of[j] if output == 0 else ())
            dtypes.append({dtype for dtype in (dtype_of_node[k] for k in sources) if dtype})
        op, attrs = node["op"], node["attrs"]
        found.append(Operator(block, op, attrs, low, shapes, dtypes, dtype_of_node[i]))
    return found


def _sources(nodes: List[dict], i: int) -> List[int]:
    """Return node `i` and those before it, as long as values are only cast or moved."""
    chain = [i]
    while len(nodes[i]["inputs"]) == 1:
        op = nodes[i]["op"]
        if op not in graph.CASTS and not op_table.has("moves", op):
            break
        i = nodes[i]["inputs"][0][0]
        chain.append(i)
    return chain
