"""Counts the operations of a network's products, and the bytes that these must move."""

import json
from typing import Dict, List, NamedTuple, Set, Tuple

import mxnet as mx

# Products, and whether each weight is used once for every position of the output or of the input,
# in each filter of the weight's first axis
PER_OUTPUT = {"Convolution": True, "FullyConnected": True, "Deconvolution": False}

BFLOAT16_BYTES = 2
# An update of SGD with momentum reads weight, gradient and momentum and writes two of them, in
# float32
UPDATE_BYTES = 20


class Products(NamedTuple):
    """All convolutions and matrix products of a run.

    Attributes
    ----------
    flop : int
        Multiplications and additions.
    moved : int
        Bytes that are read and written if each tensor of a product is in bfloat16 and is moved
        once; and those of an update in float32, if the run trains.
    """

    flop: int
    moved: int


def count(
    symbol: mx.sym.Symbol, data: Tuple[int, ...], trained: Set[str], training: bool
) -> Products:
    """Count the products of a forward pass, or of a training step.

    A backward pass has two products for each of the forward pass: the gradients of the weight and
    of the data. There is none for data that depends on no trained parameter.

    Parameters
    ----------
    symbol : Symbol
        A float32 network with an input named data.
    data : tuple of int
        Shape of that input.
    trained : set of str
        Names of the parameters that are trained.
    training : bool
    """
    nodes = json.loads(symbol.tojson())["nodes"]
    shapes = _shapes(symbol, data)
    depends: List[bool] = []  # for each node, whether it depends on a trained parameter
    flop = elements = 0
    for node in nodes:
        reads = [source for source, *_ in node["inputs"]]
        depends.append(node["name"] in trained or any(depends[source] for source in reads))
        if node["op"] in PER_OUTPUT:
            source, weight = (shapes[_output(nodes[i], j)] for i, j, *_ in node["inputs"][:2])
            output = shapes[_output(node, 0)]
            positions = output if PER_OUTPUT[node["op"]] else source
            passes = 1 + (depends[reads[0]] + depends[reads[1]] if training else 0)
            flop += passes * 2 * _size(positions) * _size(weight[1:])
            elements += passes * (_size(source) + _size(weight) + _size(output))
    moved = BFLOAT16_BYTES * elements
    if training:
        moved += UPDATE_BYTES * sum(_size(shapes[name]) for name in trained)
    return Products(flop, moved)


def _shapes(symbol: mx.sym.Symbol, data: Tuple[int, ...]) -> Dict[str, Tuple[int, ...]]:
    internals = symbol.get_internals()
    _, outputs, _ = internals.infer_shape(data=data)
    return dict(zip(internals.list_outputs(), outputs))


def _output(node: Dict, number: int) -> str:
    """Return the name of a node's output, as `list_outputs` has it."""
    if node["op"] == "null":
        return node["name"]
    several = {"SliceChannel", "split_v2"}
    return f"{node['name']}_output{number if node['op'] in several else ''}"


def _size(shape: Tuple[int, ...]) -> int:
    size = 1
    for length in shape:
        size *= length
    return size
