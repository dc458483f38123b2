"""One look at a training step: its calls are recorded, and each is run again for its tensors.

A probe before each layer has the gradient of the layer's data (`graph_search`).
"""

import logging
from collections import defaultdict
from typing import Dict, Iterable, Iterator, List, Optional, Set, Tuple

import numpy as np

from gluon_amp import graph
from gluon_amp.base.messages import reason_of
from gluon_amp.casting.binding import binding_of, running_blocks
from gluon_amp.casting.tracing import TraceError
from gluon_amp.graph import op_table
from gluon_amp.inspection.graph_search import FLOATS, CallGraph, Input
from gluon_amp.inspection.look import Row, row_of, weight_gradients
from gluon_amp.inspection.operators import contains_cast, graph_of
from gluon_amp.inspection.recording import Recording
from gluon_amp.inspection.replay import Call, record
from gluon_amp.inspection.unchanged import drop_errors

import mxnet as mx
from mxnet import autograd, gluon, nd

logger = logging.getLogger("gluon_amp")

ELEMENTS = 2**20  # of an activation or its gradient that are looked at, evenly spaced


class Sampler:
    """Looks at steps of a training: it records the calls of a step, and runs them once more.

    The state between two looks is the blocks that cannot be run again, of which a warning tells.
    """

    def __init__(self, net: gluon.Block, trainer: gluon.Trainer, formats: Tuple[str, ...]) -> None:
        self._net, self._trainer, self._formats = net, trainer, formats
        self._calls: List[Call] = []
        self._recording: Optional[Recording] = None
        self._python: Set[gluon.Block] = set()  # blocks without a graph that can be repeated
        self._warned: Set[str] = set()  # their paths

    @property
    def is_recording(self) -> bool:
        """Whether the calls of the present step are recorded."""
        return self._recording is not None

    def begin(self) -> None:
        """Record the calls of the next step."""
        blocks = self._blocks(self._net)
        self._recording = record(blocks, self._calls, graph_without_randomness)

    def end(self) -> List[Call]:
        """Return the calls since `begin`, and record no more."""
        if self._recording is not None:
            self._recording.close()
        calls, self._calls, self._recording = self._calls, [], None
        return calls

    def rows(self, step: int, calls: List[Call]) -> List[Row]:
        """Return the rows of a step, whose gradients are in their buffers."""
        trainer = self._trainer
        scale = trainer.used_scale()
        calls = [call for call in calls if call.device == trainer.contexts[0]]
        # Those that a backward pass has reached
        reached = [c for c in calls if any(p is not None and p._fresh_grad for p in c.probes)]
        repeatable = [call for call in reached if call.graph]
        for call in reached:
            if not call.graph:
                self._warn(call, "it cannot be traced, or draws random numbers")
        with autograd.pause():
            rows = [row for _, row in weight_gradients(self._net, self._formats, scale, step)]
            try:
                rows += activations(self._net, repeatable, self._formats, scale, step)
            except mx.MXNetError as error:  # a look must not end a training
                drop_errors()
                self._warn(repeatable[0], reason_of(error))
        return rows

    def _blocks(self, net: gluon.Block, path: str = "") -> Iterator[Tuple[str, gluon.Block]]:
        """Yield path and block of the outermost blocks that can be run again, as far as known."""
        for at, block in running_blocks(net, path):
            if block in self._python or (contains_cast(block) and not block._active):
                for name, child in block._children.items():
                    yield from self._blocks(child, f"{at}.{name}" if at else name)
            elif not getattr(binding_of(block), "untraceable", None):
                yield at, block

    def _warn(self, call: Call, reason: str) -> None:
        if binding_of(call.block) is None and not call.block._active:
            self._python.add(call.block)  # which calls its children with arrays
        if call.path not in self._warned:
            self._warned.add(call.path)
            logger.warning(
                "watch() sees only the gradients of the parameters of block %s, which cannot be "
                "run again (%s), and in later looks what its children compute, unless it is cast "
                "or hybridized.",
                repr(call.path) if call.path else "'' (the net itself)",
                reason,
            )


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
        yield row_of(place, read, read.size, scale, formats)


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
    for node in graph.every_node(json):
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
