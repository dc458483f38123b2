"""Dimensions of float16 products that are no multiples of 8.

Tensor Cores multiply blocks of 8 float16 numbers. Dimensions that are no multiples of 8 are padded
by cuBLAS 11 and cuDNN 7.6.3 and later, and computed without Tensor Cores by earlier ones ("Tensor
Core Requirements" in NVIDIA's Matrix Multiplication Background User's Guide).
"""

from typing import Dict, Iterator, List, NamedTuple, Sequence, Set, Tuple

from gluon_amp.casting.binding import binding_of
from gluon_amp.casting.parameters import dtype_of
from gluon_amp.casting.tracing import symbol_of
from gluon_amp.inspection.findings import Finding
from gluon_amp.inspection.values import arrays_in
from gluon_amp.policy import Policy, graph

import mxnet as mx
from mxnet import gluon, nd

MULTIPLE = 8  # of float16 numbers, which are 16 bytes
IMAGE_CHANNELS = 3
TRUE = ("True", "1")  # as MXNet writes attributes

# role of a dimension: the fix, with `more` for the next multiple of 8 and `rest` for the difference
FIXES = {
    "image": "pad images and weight with zeros to {more} channels, or leave it, as a first layer "
    "is a small part of a deep net",
    "channels": "make them {more}",
    "units": "make the layer before give {more}, or pad the data with zeros",
    "outputs": "make them {more}",
    "head": "make them {more}, and use no label for the {rest} others",
    "batch": "use a batch of {more}",
    "matrix": "pad them with zeros to {more}",
}


class Dimension(NamedTuple):
    """A size that should be a multiple of 8, what the operator does with it, and its role."""

    size: int
    use: str
    role: str

    def finding(self, block: str, op: str) -> Finding:
        """Return what to say of this dimension of an operator."""
        more = -(-self.size // MULTIPLE) * MULTIPLE
        problem = f"{op} {self.use}, which is no multiple of {MULTIPLE} for Tensor Cores"
        fix = FIXES[self.role].format(more=more, rest=more - self.size)
        return Finding("dimension", block, problem, fix)


class Operator(NamedTuple):
    """An operator of a graph.

    Attributes
    ----------
    name, op : str
    attributes : dict of str to str
    shapes : list of tuple
        Of its inputs; `()` where the shape is unknown.
    variables : set of str
        Names of the variables that it reads, directly or through casts.
    """

    name: str
    op: str
    attributes: Dict[str, str]
    shapes: List[tuple]
    variables: Set[str]


def dimension_findings(
    path: str, block: gluon.HybridBlock, inputs: Sequence[nd.NDArray]
) -> Iterator[Finding]:
    """Yield what `check` finds in the float16 products of a block that runs one graph."""
    names, symbol = _graph(path, block)
    parameters = block.collect_params().values()
    shapes = {p.name: p.shape for p in parameters if _is_known(p.shape)}
    shapes.update({name: array.shape for name, array in zip(names, arrays_in(inputs))})
    float16 = {p.name for p in parameters if dtype_of(p) == "float16"}
    binding = binding_of(block)
    nodes = binding.nodes if binding is not None else graph.plan(symbol, Policy(), {})[1]
    nodes = {node.name: node for node in nodes}
    products = [
        operator
        for operator in _operators(symbol, shapes)
        if operator.op in DIMENSIONS and operator.name in nodes
    ]
    for product in products:
        node = nodes[product.name]
        if binding is not None:
            in_float16 = node.dtype == "float16"
        else:
            in_float16 = bool(float16 & product.variables)
        for dimension in DIMENSIONS[product.op](product) if in_float16 else ():
            if dimension.size % MULTIPLE:
                if dimension.role == "outputs" and product is products[-1]:
                    dimension = dimension._replace(role="head")
                yield dimension.finding(node.block, product.op)


def _graph(path: str, block: gluon.HybridBlock) -> Tuple[List[str], mx.sym.Symbol]:
    """Return the inputs' names and the symbol of a block: cast, or as it is if it is not cast."""
    binding = binding_of(block)
    if binding is not None and binding.graph:
        inputs, symbol = binding.graph
        return [variable.name for variable in inputs], symbol
    if binding is None and all(_is_known(p.shape) for p in block.collect_params().values()):
        symbol, names = symbol_of(path, block)
        return sorted(names), symbol
    raise ValueError(
        f"check() needs inputs, since {type(block).__name__} {path or 'net'} has never run: "
        "call check(net, trainer, x) with x as for net(x)."
    )


def _is_known(shape) -> bool:
    return bool(shape) and min(shape) > 0


def _operators(symbol: mx.sym.Symbol, shapes: Dict[str, tuple]) -> Iterator[Operator]:
    """Yield the operators of a graph, given the shapes of some of its variables."""
    nodes = graph.to_json(symbol)["nodes"]
    first_output = _first_output_shapes(symbol, nodes, shapes)
    for node in nodes:
        if node["op"] != "null":
            yield Operator(
                node["name"],
                node["op"],
                node.get("attrs", {}),
                [first_output[i] if k == 0 else () for i, k, *_ in node["inputs"]],
                {nodes[graph.source_of(nodes, i)]["name"] for i, *_ in node["inputs"]},
            )


def _first_output_shapes(
    symbol: mx.sym.Symbol, nodes: List[dict], shapes: Dict[str, tuple]
) -> List[tuple]:
    """Return the shape of each node's first output, `()` where it is unknown.

    MXNet names it after the node: `'name'` for a variable, `'name_output'` for an operator with one
    output, and `'name_output0'` for an operator with several.
    """
    internals = symbol.get_internals()
    known = {name: shapes[name] for name in internals.list_inputs() if name in shapes}
    _, inferred, _ = internals.infer_shape_partial(**known)
    by_output = {}
    for output, shape in zip(internals.list_outputs(), inferred):
        # Under `npx.set_np()`, unknown shapes are None and unknown dimensions -1, and else 0.
        by_output.setdefault(output, tuple(max(size, 0) for size in shape or ()))
    candidates = ([node["name"] + end for end in ("", "_output", "_output0")] for node in nodes)
    return [next((by_output[n] for n in names if n in by_output), ()) for names in candidates]


# -------------------------------------------------------------------- dimensions of each operator


def _convolution(operator: Operator) -> List[Dimension]:
    """Return the channels that one group reads and gives; the weight is (O, C / groups, ...)."""
    weight, groups = operator.shapes[1], int(operator.attributes.get("num_group", 1))
    if len(weight) < 2:
        return []
    if operator.op == "Deconvolution":  # its weight is (C, O / groups, ...)
        weight = weight[1] * groups, weight[0] // groups
    outputs, inputs = weight[:2]
    if 1 < groups == outputs:  # depthwise
        return []
    each = f" in each of {groups} groups" if groups > 1 else ""
    role = "image" if inputs == IMAGE_CHANNELS and groups == 1 else "channels"
    return [
        Dimension(inputs, f"reads {inputs} channels{each}", role),
        Dimension(outputs // groups, f"gives {outputs // groups} channels{each}", "outputs"),
    ]


def _fully_connected(operator: Operator) -> List[Dimension]:
    """Return rows, inputs and outputs; the weight is (outputs, inputs)."""
    data, weight = operator.shapes[:2]
    dimensions = []
    if _is_known(data) and operator.attributes.get("flatten", "True") in TRUE:
        dimensions.append(Dimension(data[0], f"multiplies {data[0]} rows", "batch"))
    if len(weight) == 2:
        outputs, inputs = weight
        dimensions.append(Dimension(inputs, f"reads {inputs} inputs", "units"))
        dimensions.append(Dimension(outputs, f"gives {outputs} outputs", "outputs"))
    return dimensions


def _dot(operator: Operator) -> List[Dimension]:
    left, right = operator.shapes[:2]
    if len(left) < 2 or len(right) < 2:
        return []
    transpose_left, transpose_right = (
        operator.attributes.get(f"transpose_{k}") in TRUE for k in "ab"
    )
    rows, depth = left[-2:][:: -1 if transpose_left else 1]
    columns = right[-2 if transpose_right else -1]
    return [
        Dimension(rows, f"multiplies {rows} rows", "matrix"),
        Dimension(depth, f"adds up {depth} products", "matrix"),
        Dimension(columns, f"gives {columns} columns", "matrix"),
    ]


def _rnn(operator: Operator) -> List[Dimension]:
    units, data = int(operator.attributes["state_size"]), operator.shapes[0]
    dimensions = [Dimension(units, f"has {units} units", "outputs")]
    if len(data) == 3 and _is_known(data):
        _, batch, features = data
        dimensions.insert(0, Dimension(features, f"reads {features} inputs", "units"))
        dimensions.insert(0, Dimension(batch, f"multiplies {batch} rows", "batch"))
    return dimensions


# operator: function that returns its dimensions
DIMENSIONS = {
    "Convolution": _convolution,
    "Deconvolution": _convolution,
    "FullyConnected": _fully_connected,
    "dot": _dot,
    "batch_dot": _dot,
    "_np_dot": _dot,
    "_npi_matmul": _dot,
    "RNN": _rnn,
}
