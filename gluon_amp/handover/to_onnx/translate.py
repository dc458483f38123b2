"""A network as an ONNX model: every operator that reads data translated, all others computed."""

from typing import Callable, Dict, Iterable, List, NamedTuple, Optional, Set, Tuple

import numpy as np

from gluon_amp import graph
from gluon_amp.base.messages import UsageError
from gluon_amp.graph import Edge, classic, integers, op_table
from gluon_amp.handover.network import Network
from gluon_amp.handover.to_onnx import (
    detection,
    elementwise,
    layers,
    norms,
    pooling,
    recurrent,
    reductions,
    sampling,
    shapes,
)
from gluon_amp.handover.to_onnx.writer import Batch, Node, Tensor, UntranslatableError, Writer

_KINDS = (elementwise, reductions, shapes, layers, pooling, norms, recurrent, detection, sampling)
TRANSLATIONS: Dict[str, Callable] = {
    op: translation for kind in _KINDS for op, translation in kind.TRANSLATIONS.items()
}


class Translated(NamedTuple):
    """What the writer has, and the edges of the network; those that are in it have a name."""

    writer: Writer
    tensors: Dict[Edge, Tensor]
    inputs: Dict[str, Tensor]


def translate(network: Network, batch_axes: Dict[str, Optional[int]]) -> Translated:
    """Translate a network; `batch_axes` has the axis of each input that follows the batch.

    Raise `UsageError` for an operator without a translation.
    """
    tensors, batch = _tensors(network, batch_axes)
    constant = _constants(network, tensors)
    read = _read(network, constant)
    frontier = sorted(edge for edge in read if edge[0] in constant)
    writer = Writer(batch)
    for edge, value in zip(frontier, network.run(network.inputs, frontier) if frontier else ()):
        name = writer.constant(value, network.nodes[edge[0]]["name"])
        tensors[edge] = tensors[edge]._replace(value=value, name=name)
    outputs: Dict[int, List[int]] = {}
    for i, k in sorted(read):
        outputs.setdefault(i, []).append(k)
    variables: Dict[str, Edge] = {}
    used: Set[str] = set()
    for i, json in enumerate(network.nodes):
        found = []
        if json["op"] == "null" and i not in constant:
            found = [json["name"]]
            variables[json["name"]] = i, 0
            used.update(found if i in outputs else ())
        elif i in outputs and i not in constant:
            found = _translated(network, i, tensors, outputs[i], writer)
        for k, name in enumerate(found):
            if (i, k) in tensors:
                tensors[i, k] = tensors[i, k]._replace(name=name)
    used.update([batch.input] if writer.reads_batch else [])
    inputs = {name: tensors[variables[name]] for name in network.inputs if name in used}
    return Translated(writer, tensors, inputs)


def canonical(op: str) -> str:
    """Return the name under which an operator is translated: its own, or that of mx.nd."""
    return op if op in TRANSLATIONS else classic(op)


def _tensors(
    network: Network, batch_axes: Dict[str, Optional[int]]
) -> Tuple[Dict[Edge, Tensor], Batch]:
    """Return what is known of each edge: its shape, dtype, and how it follows the batch."""
    shapes, dtypes = network.shapes(network.inputs), network.dtypes()
    there = {*graph.variables(network.json)}
    batch = batch_of(network, {n: axis for n, axis in batch_axes.items() if n in there})
    first = second = shapes
    if batch.input:
        larger = [with_batch(network.inputs, batch_axes, batch.size + more) for more in (1, 2)]
        first, second = map(network.shapes, larger)
    tensors = {}
    for edge, shape in shapes.items():
        if len(shape) != len(first[edge]):
            raise UsageError(
                f"{network.place_of(edge[0])}, returns {len(shape)} axes for a batch of "
                f"{batch.size}, and {len(first[edge])} for one more: name the axes to squeeze."
            )
        sizes = zip(shape, first[edge], second[edge])
        growth = tuple(b - a if c - b == b - a else -1 for a, b, c in sizes)
        tensors[edge] = Tensor(tuple(shape), growth, dtypes[edge])
    return tensors, batch


def batch_of(network: Network, batch_axes: Dict[str, Optional[int]]) -> Batch:
    """Return the first input that follows the batch; without one an empty name and a size of 1."""
    for name, axis in batch_axes.items():
        if axis is not None:
            return Batch(name, axis, network.inputs[name].shape[axis])
    return Batch("", 0, 1)


def with_batch(
    inputs: Dict[str, np.ndarray], batch_axes: Dict[str, Optional[int]], size: int
) -> Dict[str, np.ndarray]:
    """Return the inputs for a batch of another size: samples repeated, or left out."""
    sized = dict(inputs)
    for name, axis in batch_axes.items():
        if axis is not None:
            sized[name] = np.take(inputs[name], np.arange(size) % inputs[name].shape[axis], axis)
    return sized


def _constants(network: Network, tensors: Dict[Edge, Tensor]) -> Set[int]:
    """Return the nodes whose values depend neither on the inputs nor on the batch's size."""
    constant: Set[int] = set()
    outputs_of: Dict[int, List[Tensor]] = {}
    for (i, _), tensor in tensors.items():
        outputs_of.setdefault(i, []).append(tensor)
    for i, node in enumerate(network.nodes):
        if node["op"] == "null":
            if node["name"] in network.parameters:
                constant.add(i)
            continue
        outputs = outputs_of.get(i, [])
        if node["op"] in ("shape_array", "size_array"):
            outputs = [tensors[network.inputs_of(i)[0]]]  # its sizes are the values
        # MXNet infers an unknown size from what reads the node, so that it cannot run by itself
        unknown = not network.numpy and 0 in integers(node["attrs"], "shape")
        fixed = not unknown and all(one.fixed for one in outputs)
        if fixed and all(k in constant for k, _ in _values_of(network, i)) and not _draws(node):
            constant.add(i)
    return constant


def _values_of(network: Network, i: int) -> List[Edge]:
    """Return the edges whose values a node needs, and not their shapes alone."""
    alone = op_table.inputs("shape", network.nodes[i]["op"])
    return [edge for k, edge in enumerate(network.inputs_of(i)) if k not in alone]


def _draws(node: dict) -> bool:
    """Return whether an operator or its body draws random numbers in inference."""
    if node["op"] == "Dropout":
        return node["attrs"].get("mode") == "always"
    inside = (one for body in node.get("subgraphs", ()) for one in body["nodes"])
    return op_table.has("random", node["op"]) or any(map(_draws, inside))


def _read(network: Network, constant: Iterable[int]) -> Set[Edge]:
    """Return the edges that are needed, back from the outputs to the data."""
    found: Set[Edge] = set()
    pending = list(network.outputs)
    while pending:
        edge = pending.pop()
        if edge not in found and edge[0] not in constant:
            pending += _values_of(network, edge[0])
        found.add(edge)
    return found


def _translated(
    network: Network, i: int, tensors: Dict[Edge, Tensor], outputs: List[int], writer: Writer
) -> List[str]:
    """Translate a node of which some outputs are read; return the names of its outputs."""
    json, first = network.nodes[i], tensors[i, outputs[0]]
    returned = [tensors.get((i, k), first) for k in range(max(outputs) + 1)]
    inputs = [tensors[edge] for edge in network.inputs_of(i)]
    node = Node(canonical(json["op"]), json["attrs"], inputs, returned)
    writer.prefix = json["name"]
    try:
        if node.op not in TRANSLATIONS:
            random = op_table.has("random", node.op)
            unknown = "ONNX has no such operator, or no translation is known"
            raise UntranslatableError("it draws random numbers" if random else unknown)
        found = TRANSLATIONS[node.op](node, writer)
        if isinstance(found, str):
            return [found]
        if len(found) < len(node.outputs):
            raise UntranslatableError("the use of its second output")
        return found
    except UntranslatableError as reason:
        raise UsageError(
            f"block {network.path_of(i) or 'net'}, operator {node.op} has no translation to ONNX "
            f"({reason}): replace it by other operators, or export the net up to that block."
        ) from None
