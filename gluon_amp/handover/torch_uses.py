"""Where a net's graph uses its parameters: the layers for which those of PyTorch are matched."""

from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

import numpy as np

from gluon_amp import graph
from gluon_amp.graph import Edge
from gluon_amp.handover.network import Network, run
from gluon_amp.handover.rounding import effect_of_rounding, like
from gluon_amp.handover.to_onnx.parts import levels_of

_ALL = "weight bias running_mean running_var"
# The kind of each operator with parameters, and its inputs after the data, as PyTorch calls them
LAYERS = {
    "BatchNorm": ("batch_norm", _ALL),
    "_contrib_SyncBatchNorm": ("batch_norm", _ALL),
    "Convolution": ("conv", "weight bias"),
    "Deconvolution": ("conv_transpose", "weight bias"),
    "dot": ("dense", "weight"),
    "Embedding": ("embedding", "weight"),
    "FullyConnected": ("dense", "weight bias"),
    "GroupNorm": ("group_norm", "weight bias"),
    "InstanceNorm": ("instance_norm", "weight bias"),
    "LayerNorm": ("layer_norm", "weight bias"),
    "LeakyReLU": ("prelu", "weight"),
    "_npi_matmul": ("dense", "weight"),
    "RNN": ("", ""),
}
# MXNet's epsilons and momentum where a graph does not name them
EPSILONS = {"batch_norm": 1e-3, "instance_norm": 1e-3, "group_norm": 1e-5, "layer_norm": 1e-5}
MOMENTUM = 0.9
NORMS_OF_SAMPLES = ("instance_norm", "group_norm", "layer_norm")

Layout = Tuple[Tuple[str, Any], ...]  # methods of an array, each with its argument
NOWHERE: Edge = (-1, 0)  # in place of an edge, for a tensor that the net does not have


class Source(NamedTuple):
    """Where a tensor gets its values: from an edge of parameters, or a constant."""

    edge: Edge
    layout: Layout = ()
    value: Optional[float] = None  # of all elements, whatever the edge holds

    def then(self, *moves: Tuple[str, Any]) -> "Source":
        """Return the source whose array is moved further."""
        return self._replace(layout=(*self.layout, *moves))

    def read(self, tensors: Dict[Edge, np.ndarray]) -> np.ndarray:
        """Return the values, from those of the edges."""
        if self.edge == NOWHERE:
            return np.array(self.value, np.float32)
        array = tensors[self.edge]
        for method, argument in self.layout:
            array = getattr(array, method)(argument)
        return array if self.value is None else np.full_like(array, self.value)


class Use(NamedTuple):
    """A node that reads parameters."""

    node: int
    kind: str
    input: Edge
    sources: Dict[str, Source]  # by PyTorch's names
    settings: Dict[str, float]  # of a norm: eps and momentum as in PyTorch
    output: Optional[Edge]  # None if the node computes more than this
    flattened: Optional[Tuple[int, ...]]  # the shape of an example before it was flattened


class Layers(NamedTuple):
    """A network, its uses, and the values of their edges with the effect of rounding."""

    network: Network
    uses: List[Use]
    names: Dict[Edge, List[str]]  # the parameters of each edge that depends on nothing else
    values: Dict[Edge, np.ndarray]
    bounds: Dict[Edge, float]

    def tensors(self, parameters: Dict[str, np.ndarray]) -> Dict[Edge, np.ndarray]:
        """Return the values of all edges of parameters, computed from these."""
        return _tensors(self.network, self.names, parameters)

    def needed(self) -> List[str]:
        """Return the parameters that a module has to hold.

        A norm of each sample may have none, if those of the net have no effect.
        """
        spare = set()
        for use in self.uses:
            for slot, source in use.sources.items() if use.kind in NORMS_OF_SAMPLES else ():
                if (self.values[source.edge] == neutral(use.kind, slot)).all():
                    spare.update(self.names[source.edge])
        return [name for name in self.network.parameters if name not in spare]


class Trial(NamedTuple):
    """Random inputs, the network's outputs for them, and the effect of rounding on these."""

    inputs: Dict[str, np.ndarray]
    outputs: List[np.ndarray]
    bounds: List[float]


def trial_of(network: Network) -> Optional[Trial]:
    """Return random inputs and their outputs; None where they might not be like the given ones.

    Of several inputs, whole numbers may be masks or lengths: their samples are exchanged. Where
    rounding may change what a network decides, as in sorting, the outputs cannot be compared.
    """
    if max(levels_of(network)):
        return None
    random, indices = np.random.RandomState(0), network.indices()
    inputs = {}
    for name, value in network.inputs.items():
        whole = len(network.inputs) > 1 and (value == np.rint(value)).all()
        inputs[name] = like(value, True if whole else indices.get(name), random)
    return Trial(inputs, network.run(inputs), effect_of_rounding(network, inputs))


def neutral(kind: str, slot: str) -> Optional[float]:
    """Return the value with which a tensor has no effect, or None."""
    if slot.startswith("bias") or slot == "running_mean":
        return 0.0
    return 1.0 if kind.endswith("norm") and slot in ("weight", "running_var") else None


def kind_of(kind: str, shape: Tuple[int, ...]) -> str:
    """Return the kind of a layer with a weight of this shape: a 1×1 convolution is dense."""
    return "dense" if kind == "conv" and len(stripped(shape)) == 2 else kind


def stripped(shape: Tuple[int, ...]) -> Tuple[int, ...]:
    """Return a shape without the ones at its end, from the third dimension on."""
    shape = tuple(shape)
    while len(shape) > 2 and shape[-1] == 1:
        shape = shape[:-1]
    return shape


def layers_of(network: Network) -> Layers:
    """Run a network, and return where it uses its parameters, in the order of execution."""
    names = _names(network)
    shapes = network.shapes(network.inputs)
    uses = list(_uses(network, names, shapes))
    read = {edge for use in uses for edge in (use.input, use.output) if edge is not None}
    data = sorted({*read, *network.outputs})
    values = dict(zip(data, network.run(network.inputs, data)))
    bounds = dict(zip(data, effect_of_rounding(network, network.inputs, data)))
    values.update(_tensors(network, names, network.parameters))
    return Layers(network, uses, names, values, bounds)


def _names(network: Network) -> Dict[Edge, List[str]]:
    """Return the parameters that an edge depends on, if it depends on parameters alone."""
    found: Dict[Edge, List[str]] = {}
    for edge in graph.edges_of(network.json):
        node, inputs = network.nodes[edge[0]], network.inputs_of(edge[0])
        if node["name"] in network.parameters and node["op"] == "null":
            found[edge] = [node["name"]]
        elif inputs and all(one in found for one in inputs):
            found[edge] = list(dict.fromkeys(name for one in inputs for name in found[one]))
    return found


def _tensors(network, names, parameters) -> Dict[Edge, np.ndarray]:
    edges = [edge for edge in names if network.nodes[edge[0]]["op"] != "null"]
    found = {edge: parameters[name] for edge, (name, *_) in names.items() if edge not in edges}
    symbol = graph.without_own_attributes(network.symbol(edges)) if edges else None
    return {**found, **dict(zip(edges, run(symbol, parameters) if edges else ()))}


def _uses(network: Network, names, shapes) -> Iterator[Use]:
    for i, node in enumerate(network.nodes):
        op, inputs = graph.classic(node["op"]), network.inputs_of(i)
        if op not in LAYERS or len(inputs) < 2 or inputs[1] not in names:
            continue
        kind, slots = LAYERS[op]
        attrs = node["attrs"]
        if op == "RNN":
            yield from _recurrent(network, i, inputs)
            continue
        read = (edge for edge in inputs[1:] if edge in names)
        sources = {slot: Source(edge) for slot, edge in zip(slots.split(), read)}
        if op in ("dot", "_npi_matmul") and not graph.flag(attrs, "transpose_b"):
            sources["weight"] = Source(inputs[1], (("transpose", (1, 0)),))
        if kind == "batch_norm" and graph.flag(attrs, "fix_gamma", True):
            sources["weight"] = sources["weight"]._replace(value=1.0)
        if kind == "group_norm":  # MXNet has one scale for each group, PyTorch for each channel
            times = shapes[inputs[0]][1] // shapes[inputs[1]][0]
            sources = {k: Source(s.edge, (("repeat", times),)) for k, s in sources.items()}
        settings = {}
        if kind in EPSILONS:
            settings["eps"] = graph.number(attrs, "eps", EPSILONS[kind])
        if kind == "batch_norm":
            settings["momentum"] = round(1 - graph.number(attrs, "momentum", MOMENTUM), 12)
        flat = op == "FullyConnected" and graph.flag(attrs, "flatten", True)
        before = _flattened(network, inputs[0], shapes, flat)
        kind = kind_of(kind, shapes[inputs[1]])
        use = Use(i, kind, inputs[0], sources, settings, (i, 0), before)
        yield use
        yield from _parts(network, use, names)


def _flattened(network: Network, edge: Edge, shapes, flat: bool) -> Optional[Tuple[int, ...]]:
    """Return the shape of one example before it was flattened for a dense layer."""
    shape = shapes[edge]
    if flat and len(shape) > 2:
        return shape[1:]
    inputs = network.inputs_of(edge[0])
    before = shapes[inputs[0]] if len(inputs) == 1 else ()
    whole = len(before) > 2 and shape == (*before[:1], int(np.prod(before[1:])))
    return before[1:] if whole else None


def _variables(network: Network, edge: Edge) -> List[Edge]:
    """Return the variables that an edge depends on, in their order."""
    needed = graph.needed({**network.json, "heads": [edge]})
    return [(i, 0) for i in needed if network.nodes[i]["op"] == "null"]


def _parts(network: Network, use: Use, names) -> Iterator[Use]:
    """Yield the uses of several weights that are joined for one product, as in attention."""
    weights = _variables(network, use.sources["weight"].edge)
    biases = _variables(network, use.sources["bias"].edge) if "bias" in use.sources else []
    if use.kind == "dense" and len(weights) > 1:
        for k, weight in enumerate(weights):
            sources = {"weight": Source(weight)}
            if len(biases) == len(weights):
                sources["bias"] = Source(biases[k])
            yield use._replace(sources=sources, output=None)


def _recurrent(network: Network, i: int, inputs: List[Edge]) -> Iterator[Use]:
    """Yield the use of a fused layer: MXNet has all weights first, and the gates as PyTorch."""
    attrs = network.nodes[i]["attrs"]
    edges = _variables(network, inputs[1])
    cells = graph.integer(attrs, "num_layers") * (1 + graph.flag(attrs, "bidirectional"))
    if len(edges) < 4 * cells:  # a vector of all, as Module's cells have it
        return
    weights, biases = edges[: -2 * cells], edges[-2 * cells :]
    kinds = ["weight_ih", "weight_hh", "weight_hr"][: len(weights) // cells]
    sources = {}
    for slots, found in ((kinds, weights), (["bias_ih", "bias_hh"], biases)):
        for k, edge in enumerate(found):
            sources[f"{slots[k % len(slots)]}_{k // len(slots)}"] = Source(edge)
    yield Use(i, attrs["mode"], inputs[0], sources, {}, (i, 0), None)
