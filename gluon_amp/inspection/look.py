"""One look at a training step: the tensors of each layer, and what formats would do to them.

Gradients of parameters are read from their buffers. The other tensors come from calls that were
recorded during the step (`replay`): each is run again, with a probe before each layer.
"""

from collections import defaultdict
from itertools import chain
from typing import Dict, Iterable, Iterator, List, NamedTuple, Optional, Set, Tuple

import numpy as np

from gluon_amp import graph
from gluon_amp.base.formats import FORMATS
from gluon_amp.casting.binding import binding_of
from gluon_amp.casting.parameters import dtype_of
from gluon_amp.casting.statistics import arrays_of
from gluon_amp.casting.tracing import TraceError, named_blocks
from gluon_amp.graph import op_table
from gluon_amp.inspection.format_effects import Effect, effect_of
from gluon_amp.inspection.graph_search import FLOATS, CallGraph, Input
from gluon_amp.inspection.operators import contains_cast, graph_of
from gluon_amp.inspection.replay import Call
from gluon_amp.optimizer.arrays import dense_part
from gluon_amp.optimizer.base import cast

from mxnet import gluon, nd

ELEMENTS = 2**20  # of an activation or its gradient that are looked at, evenly spaced


class Row(NamedTuple):
    """A tensor of a layer at one look."""

    step: int  # the number of steps before this one
    layer: str  # the path of a block, as in 'features.0'; '' is the net itself
    # 'forward', 'data_gradient' or 'weight_gradient': what the layer computed, which is its output,
    # the gradient of its data, or that of a parameter
    direction: str
    tensor: str  # 'output', 'data' or the name of the parameter in its block
    # The dtype it was computed in. A float32 buffer can hold a gradient computed in float16.
    dtype: str
    size: int  # number of elements: of all devices for a parameter, else of the first one
    largest: float  # largest magnitude; inf or NaN after an overflow
    zero: float  # share of the elements that are exactly 0
    loss_scale: float  # that gradients are multiplied by; 1 in the forward direction
    formats: Dict[str, Effect]  # by the name of a format


# The first fields of a row
Place = Tuple[int, str, str, str, str, int]


def weight_gradients(
    net: gluon.Block, formats: Iterable[str], loss_scale: float = 1.0, step: int = 0
) -> Iterator[Tuple[gluon.Parameter, Row]]:
    """Yield each trained parameter of a net with the row of its gradient buffers."""
    places = {
        parameter.name: (path, name)
        for path, block in reversed(list(named_blocks(net)))  # the first of shared ones stays
        for name, parameter in block._reg_params.items()
    }
    computed_in_float16 = _read_in_float16(net)
    for parameter in net.collect_params().values():
        if parameter.grad_req == "null" or not arrays_of([parameter]):
            continue
        gradients = parameter.list_grad()
        # Rows that a row_sparse gradient does not hold are zeros. numpy is slow with float16.
        parts = map(dense_part, gradients)
        wide = (cast(array, np.promote_types(array.dtype, "float32")) for array in parts)
        values = np.concatenate([array.asnumpy().ravel() for array in wide])
        size = sum(int(np.prod(array.shape)) for array in gradients)
        float16 = parameter.name in computed_in_float16 or dtype_of(parameter) == "float16"
        layer, tensor = places.get(parameter.name, ("", parameter.name))
        dtype = "float16" if float16 else "float32"
        place = (step, layer, "weight_gradient", tensor, dtype, size)
        yield parameter, _row(place, values, size, loss_scale, formats)


def activations(
    net: gluon.Block, calls: List[Call], formats: Iterable[str], loss_scale: float, step: int
) -> Iterator[Row]:
    """Yield rows of the outputs of each layer and of the gradients of its data.

    Dropout drops nothing here, as other random numbers would follow in the training otherwise.
    """
    parameters = {p.name: p for p in net.collect_params().values()}
    tensors: Dict[Tuple[str, str], List[Tuple[str, np.ndarray]]] = defaultdict(list)
    for number, call in enumerate(calls):
        tensors_of_call = _tensors_of(call, CallGraph(call, parameters), is_first=number == 0)
        for layer, direction, dtype, array in tensors_of_call:
            tensors[layer, direction].append((dtype, array.asnumpy().ravel()))
    for (layer, direction), found in tensors.items():
        dtypes, arrays = zip(*found)
        values = np.concatenate(arrays)
        # An odd distance, so that it visits all channels of an even number.
        read = values[:: -(-values.size // ELEMENTS) | 1]
        dtype = "+".join(sorted(set(dtypes)))
        tensor, scale = ("output", 1.0) if direction == "forward" else ("data", loss_scale)
        place = (step, layer, direction, tensor, dtype, values.size)
        yield _row(place, read, read.size, scale, formats)


def graph_without_randomness(path: str, block: gluon.Block, arguments: tuple) -> Optional[tuple]:
    """Return inputs and symbol of a block's graph, or None if it has none that can be repeated."""
    try:
        found = None if contains_cast(block) else graph_of(path, block, arguments)
    except TraceError:
        return None
    if found is None:
        return None
    inputs, symbol = found
    json = graph.to_json(symbol)
    return (inputs, graph.from_json(json, like=symbol)) if _derandomize(json) else None


def _derandomize(json: dict) -> bool:
    """Change a graph so that it draws no random numbers and waits for no other device, if it can.

    Return whether that is so.
    """
    for node in json["nodes"]:
        op, attrs = node["op"], node["attrs"]
        if op == "Dropout":
            kept = {name: value for name, value in attrs.items() if name.startswith("__")}
            node.update(op="_copy", attrs=kept)
        elif op == "RNN":
            attrs["p"] = "0"
        elif op == "_contrib_SyncBatchNorm":
            attrs.update(ndev="1", key=f"{attrs['key']}_watched")
        elif op == "Custom" or op_table.has("random", op, attrs):
            return False  # MXNet can neither return nor restore the state of random numbers
        if not all(map(_derandomize, node.get("subgraphs", ()))):
            return False
    return True


def _tensors_of(
    call: Call, ran: CallGraph, is_first: bool
) -> Iterator[Tuple[str, str, str, nd.NDArray]]:
    """Yield layer, direction, dtype and array of each tensor of a call between two layers.

    Layers are the blocks that contain an operator of their own.
    """
    # Training computes no gradient of the data of the first call.
    outputs, places = _borders(ran, set() if is_first else {one.name for one in ran.inputs})
    values = ran.evaluate()
    for tensor, layer in outputs.items():
        if ran.dtypes[tensor] in FLOATS:
            yield layer, "forward", ran.dtypes[tensor], values[tensor]
    heads = [head.as_nd_ndarray() for head in call.output_gradients()]
    for (i, k), array in ran.sent_gradients(values, heads, places).items():
        tensor = graph.edge_of(ran.nodes[i]["inputs"][k])
        yield places[i, k], "data_gradient", ran.dtypes[tensor], array


def _borders(ran: CallGraph, data: Set[str]) -> Tuple[Dict[graph.Edge, str], Dict[Input, str]]:
    """Return the tensors that leave a layer, and the inputs by which others enter one.

    Of the variables, those in `data` do.
    """
    outputs: Dict[graph.Edge, str] = {}
    places: Dict[Input, str] = {}
    is_source = [not node["inputs"] for node in ran.nodes]  # variables and constants

    def source_of(entry: graph.Entry) -> graph.Edge:
        node = ran.nodes[entry[0]]
        is_cast = node["op"] in graph.CASTS
        return source_of(node["inputs"][0]) if is_cast else graph.edge_of(entry)

    for i, node in enumerate(ran.nodes):
        if is_source[i] or node["op"] in graph.CASTS:
            continue
        layer = ran.block_of(i)
        for k, entry in enumerate(node["inputs"]):
            source = source_of(entry)
            if is_source[source[0]]:
                if ran.nodes[source[0]]["name"] in data:
                    places[i, k] = layer
            elif ran.block_of(source[0]) != layer:
                outputs[source] = ran.block_of(source[0])
                places[i, k] = layer
    for entry in ran.json["heads"]:
        source = source_of(entry)
        if not is_source[source[0]]:
            outputs[source] = ran.block_of(source[0])
    return outputs, places


def _row(
    place: Place, values: np.ndarray, size: int, loss_scale: float, formats: Iterable[str]
) -> Row:
    """Return a row; elements of `size` that `values` does not hold are zeros."""
    largest = float(np.abs(values).max(initial=0))
    zero = 1 - int(np.count_nonzero(values)) / max(size, 1)
    effects = {name: effect_of(values, FORMATS[name]) for name in formats}
    return Row(*place, largest, zero, loss_scale, effects)


def _read_in_float16(net: gluon.Block) -> Set[str]:
    """Return the names of the parameters that an operator reads, and so differentiates, in float16.

    A norm reads its parameters in float32, whatever it computes in.
    """
    bindings = filter(None, (binding_of(block) for _, block in named_blocks(net)))
    nodes = chain.from_iterable(binding.nodes or () for binding in bindings)
    read = (n.params for n in nodes if n.dtype == "float16" and n.decision.kind != "norm")
    return set(chain.from_iterable(read))
