"""Keeps the images of a convolutional network in one blocked layout, between all convolutions.

MXNet's operators exchange arrays in the plain layout or in one of oneDNN's, and reorder them where
two of them differ: 424 times in a training step of a ResNet-50 in bfloat16, which is a third of its
time. Here, operators of gluon_amp's C++ library replace the products in low precision and what
stands between convolutions. They exchange arrays of five dimensions, which MXNet regards as plain
(`kernels/src/blocked.h`). Arrays are converted only where another operator reads them.

Elementwise operators, and casts to float32 and back between them, become one program that is
computed in one pass over memory, with the BatchNorm before it (`pointwise`).
"""

import os
from collections import Counter
from typing import Dict, List, Optional, Set, Tuple

from gluon_amp import kernels
from gluon_amp.base import bfloat16, hardware
from gluon_amp.graph import (
    CASTS,
    FUSED_ATTR,
    ROUNDED_ATTR,
    Edge,
    Entry,
    Json,
    Writer,
    edge_of,
    integer,
    integers,
    needed,
    op_table,
)
from gluon_amp.graph import own_operators as own
from gluon_amp.lowering.blockable import ADAPTIVE_POOLING, Analysis
from gluon_amp.lowering.narrowing import narrowed
from gluon_amp.lowering.pointwise import RELU, Program, Value, instructions_of
from gluon_amp.lowering.typed_graph import TypedGraph
from gluon_amp.policy.cast_pass import LOW_PRECISION

import mxnet as mx

# Of one position, in a group of a convolution; with more, oneDNN's kernels are faster than ours.
FEW_PRODUCTS = 64


def use_blocked_layout(graph: TypedGraph) -> TypedGraph:
    """Return a graph of the same values in which images in low precision have the blocked layout.

    It is `graph` itself if it has no product in low precision, or if there is no C++ library or no
    oneDNN. A graph that `fused_float32` has marked has this layout in float32.
    """
    products = ("Convolution", "Deconvolution", "FullyConnected")
    if not any(node["op"] in products for node in graph.json["nodes"]) or not available():
        return graph
    if any(FUSED_ATTR in node["attrs"] for node in graph.json["nodes"]):
        found = Analysis(graph, ("float32",))
    elif set(LOW_PRECISION).intersection(graph.edges.values()):
        graph, found = narrowed(graph)
    else:
        return graph
    # The order of the variables is that of the graph, and callers rely on it.
    blocked = _Writing(graph, found).rewrite()
    if _variables(blocked) != _variables(graph):
        blocked = _Writing(graph, found, keeps_order=True).rewrite()
    return blocked


def available() -> bool:
    """Return whether the operators of the blocked layout can be used."""
    enabled = os.environ.get("MXNET_MKLDNN_ENABLED", "1") != "0"
    return enabled and mx.runtime.Features().is_enabled("MKLDNN") and kernels.available()


def lanes_for(dtype: str) -> int:
    """Return how many channels are stored side by side; 0 stands for all of them.

    oneDNN's kernels for AVX512 read 16 channels at once, those for AVX2 8, and those for AMX, which
    are for bfloat16 alone, read all channels.
    """
    if not hardware.onednn_flags() >= hardware.AVX512_FLAGS:
        return 8
    return 0 if dtype == "bfloat16" and bfloat16.is_native() and hardware.has_amx() else 16


class _Writing:
    """The new graph, while it is written.

    With `keeps_order`, a program joins a BatchNorm only if that is what it reads first, so that the
    variables keep their order.
    """

    def __init__(self, graph: TypedGraph, found: Analysis, keeps_order: bool = False) -> None:
        self.old, self.nodes, self.edges = graph, found.nodes, found.edges
        self.found, self.images, self.groups = found, found.images, found.groups
        self.keeps_order, self.outputs = keeps_order, graph.outputs()
        # Emulated bfloat16 is stored as such, and widened for oneDNN's products.
        self.widened = () if bfloat16.is_native() else ("bfloat16",)
        self.in_float32 = ("float32", *self.widened)  # what products are computed in float32
        self.out = Writer()
        self.plain: Dict[Edge, Entry] = {}  # old edge -> its entry in the new graph, plain
        self.blocked: Dict[Edge, Entry] = {}  # and blocked
        self._writers = {
            "Concat": self._write_concat,
            "Convolution": self._write_convolution,
            "Deconvolution": self._write_deconvolution,
            "Pooling": self._write_pooling,
            ADAPTIVE_POOLING: self._write_pooling,
        }

    def rewrite(self) -> TypedGraph:
        for i, node in enumerate(self.nodes):
            if node["op"] == "FullyConnected" and self.found.is_low((i, 0)):
                self._write_dense(i, node)
            elif (i, 0) not in self.images:
                self._copy(i)
            elif not self.found.is_elementwise(node) or i in self.groups.get(i, ()):
                self._blocked((i, 0))
        old = self.old.json
        heads = [[*self._plain(edge_of(e))[:2], *e[2:]] for e in old["heads"]]
        kept = {
            edge_of(entry): self.edges[edge]
            for edge, entry in self.plain.items()
            if edge in self.edges
        }
        new = {**old, "nodes": self.out.nodes, "heads": heads}
        return _fork(self.old.rewritten(new, kept))

    def _copy(self, i: int) -> None:
        """Append an operator of the old graph, which reads plain arrays."""
        node = self.nodes[i]
        inputs = [[*self._plain(edge_of(e))[:2], *e[2:]] for e in node["inputs"]]
        number = self.out.copy(node, inputs)[0]
        for output in range(max(self.outputs.get(i, ()), default=0) + 1):
            self.plain[i, output] = [number, output, 0]

    def _plain(self, edge: Edge) -> Entry:
        """Return the entry of a tensor in the plain layout."""
        if edge not in self.plain:
            node = self.nodes[edge[0]]
            if edge in self.images and self.found.is_low(edge):
                channels = str(self.images[edge].channels)
                name = f"{node['name']}_plain"
                entry = self._emit(edge, own.UNBLOCK, name, self._blocked(edge), channels=channels)
                if self.edges[edge] in self.widened:
                    entry = self.out.emit(own.WIDEN_BFLOAT16, f"{name}_wide", entry)
                self.plain[edge] = self._typed(entry, self.edges[edge])
            else:  # it was to be computed together with its readers
                self._copy(edge[0])
        return list(self.plain[edge])

    def _typed(self, entry: Entry, dtype: str) -> Entry:
        """Return an entry of the emulation, rounded values in float32, as one of the cast graph."""
        if dtype not in ("float16", *self.widened):
            return entry
        name = self.out.nodes[entry[0]]["name"]
        attrs = {"dtype": dtype, ROUNDED_ATTR: "True"}
        return self.out.emit("amp_cast", f"{name}_{dtype}", entry, **attrs)

    def _emit(self, edge: Edge, op: str, name: str, *inputs: Entry, **attrs: str) -> Entry:
        """Append an operator of images, with what `element_of` in `kernels/src/blocked.h` reads."""
        if self.edges[edge] in self.in_float32:
            attrs["in_float32"] = "True"
        return self.out.emit(op, name, *inputs, **attrs)

    def _blocked(self, edge: Edge) -> Entry:
        """Return the entry of a tensor in the blocked layout."""
        if edge not in self.blocked:
            i = edge[0]
            write = self._writers.get(self.nodes[i]["op"], self._write_group)
            self.blocked[edge] = write(i, self.nodes[i])
        return list(self.blocked[edge])

    def _data(self, node: Json, k: int = 0) -> Entry:
        return self._blocked(edge_of(node["inputs"][k]))

    def _plain_data(self, i: int, node: Json) -> Entry:
        """Return what a product reads, in the plain layout; in the emulation it is float32."""
        source = self._plain(edge_of(node["inputs"][0]))
        if self.edges[i, 0] not in ("float16", *self.widened):
            return source
        return self.out.emit("amp_cast", f"{node['name']}_data", source, dtype="float32")

    def _parameters(self, node: Json) -> Tuple[List[Entry], Dict[str, str]]:
        """Return the weight and bias that a product reads, and its attributes about them."""
        found = [self._parameter(node, k) for k in range(1, len(node["inputs"]))]
        attrs = {"no_bias": str(len(found) == 1), "variable_weight": str(found[0][1])}
        return [entry for entry, _ in found], attrs

    def _parameter(self, node: Json, k: int) -> Tuple[Entry, bool]:
        """Return the tensor that a weight is cast from, and whether it is a variable."""
        edge = self.old.stored(edge_of(node["inputs"][k]))
        entry, source = self._plain(edge), self.nodes[edge[0]]
        if self.edges.get(edge) == "bfloat16":
            entry = self.out.emit("amp_cast", f"{source['name']}_float32", entry, dtype="float32")
        return entry, source["op"] == "null"

    def _write_convolution(self, i: int, node: Json) -> Entry:
        inputs, attrs = self._convolved(i, node)
        data, groups = self.found.input(node), integer(attrs, "num_group", 1)
        group_out = integer(attrs, "num_filter") // groups
        group_in = data.channels // groups if data else group_out
        # Our own operator keeps the number of lanes, which is that of the channels if `lanes` is 0.
        keeps_lanes = lanes_for(self.edges[i, 0]) or (data is not None and group_in == group_out)
        few = groups > 1 and group_in * group_out <= FEW_PRODUCTS
        if few and keeps_lanes and not self._has_fast_depthwise(i, group_in * group_out):
            return self._emit((i, 0), own.DEPTHWISE, node["name"], *inputs, **attrs)
        attrs["reader_rounds"] = str(self._is_rounded_by_reader(i))
        return self._emit((i, 0), own.BLOCKED_CONVOLUTION, node["name"], *inputs, **attrs)

    def _has_fast_depthwise(self, i: int, products: int) -> bool:
        """Return whether oneDNN is faster than our operator: for 3×3 in float32, with AVX512."""
        attrs, wide = self.nodes[i]["attrs"], self.edges[i, 0] in ("float32", "float16")
        simple = set(integers(attrs, "kernel")) == {3} and set(integers(attrs, "dilate")) <= {1}
        return wide and simple and products == 1 and lanes_for(self.edges[i, 0]) == 16

    def _write_deconvolution(self, i: int, node: Json) -> Entry:
        inputs, attrs = self._convolved(i, node)
        return self._emit((i, 0), own.BLOCKED_DECONVOLUTION, node["name"], *inputs, **attrs)

    def _convolved(self, i: int, node: Json) -> Tuple[List[Entry], Dict[str, str]]:
        """Return what a convolution or deconvolution reads, and its attributes."""
        data, parameters, attrs = self.found.input(node), *self._parameters(node)
        kept = ("kernel", "stride", "pad", "adj", "dilate", "num_filter", "num_group")
        attrs.update({key: node["attrs"][key] for key in kept if key in node["attrs"]})
        attrs["lanes"] = str(lanes_for(self.edges[i, 0]))
        if data is None:
            source = self._plain_data(i, node)
            if self.edges[i, 0] in self.widened:
                source = self.out.emit(own.NARROW_BFLOAT16, f"{node['name']}_narrow", source)
            return [source, *parameters], {**attrs, "plain_data": "True"}
        return [self._data(node), *parameters], {**attrs, "channels": str(data.channels)}

    def _is_rounded_by_reader(self, i: int) -> bool:
        """Return whether all that reads a node is a relu whose result is stored, thus rounded."""
        readers = self.found.readers.get((i, 0), ())
        if len(readers) != 1 or (i, 0) in self.found.heads:
            return False
        node = self.nodes[readers[0]]
        alone = self.groups.get(readers[0]) == {readers[0]} and self.found.is_low((readers[0], 0))
        return alone and instructions_of(node["op"], node["attrs"]) == [RELU]

    def _write_dense(self, i: int, node: Json) -> None:
        parameters, attrs = self._parameters(node)
        kept = ("num_hidden", "flatten")
        attrs.update({key: node["attrs"][key] for key in kept if key in node["attrs"]})
        if self.edges[i, 0] in self.widened:
            attrs["bfloat_values"] = "True"  # arrays of float32 hold them between dense layers
        source = self._plain_data(i, node)
        result = self._emit((i, 0), own.DENSE, node["name"], source, *parameters, **attrs)
        self.plain[i, 0] = self._typed(result, self.edges[i, 0])

    def _write_pooling(self, i: int, node: Json) -> Entry:
        kept = ["kernel", "stride", "pad", "pool_type", "global_pool", "pooling_convention"]
        kept += ["count_include_pad", "output_size"]
        attrs = {key: node["attrs"][key] for key in kept if key in node["attrs"]}
        attrs["channels"] = str(self.images[i, 0].channels)
        if node["op"] == ADAPTIVE_POOLING:
            attrs = {"output_size": "(1, 1)", **attrs, "pool_type": "avg"}
        return self._emit((i, 0), own.POOL, node["name"], self._data(node), **attrs)

    def _write_concat(self, i: int, node: Json) -> Entry:
        images = (self.images[edge_of(entry)] for entry in node["inputs"])
        channels = ", ".join(str(image.channels) for image in images)
        inputs = [self._data(node, k) for k in range(len(node["inputs"]))]
        attrs = {"channels": f"({channels})", "lanes": str(lanes_for(self.edges[i, 0]))}
        attrs["num_args"] = str(len(inputs))
        return self._emit((i, 0), own.CONCAT, node["name"], *inputs, **attrs)

    def _write_group(self, i: int, node: Json) -> Entry:
        """Append the program of an elementwise operator and all those in its group before it.

        If a BatchNorm is among what the program reads, both are computed together.
        """
        program = Program()
        values: Dict[Edge, Value] = {}
        members = self._members(i)
        norm = self._norm_of(i, members)
        rounds = self.edges[i, 0] == "float16"

        def value_of(edge: Edge) -> Value:
            if edge not in values:
                values[edge] = compute(edge)
            return values[edge]

        def compute(edge: Edge) -> Value:
            j, source = edge[0], self.nodes[edge[0]]
            op = source["op"]
            if j not in members or (op == "BatchNorm" and j != norm):
                return program.input(edge)
            if j == norm:
                value = program.input(edge)
            elif source["op"] in CASTS:
                below = edge_of(source["inputs"][0])
                value = value_of(below)
                if self.edges[edge] == "float32" or self.found.is_low(below):
                    return value
            else:
                operands = [value_of(edge_of(e)) for e in source["inputs"]]
                instructions = instructions_of(op, source["attrs"])
                if instructions is not None:
                    value = program.append(instructions, operands)
                else:  # add_n
                    value = operands[0]
                    for operand in operands[1:]:
                        value = program.add("add", value, operand)
            exact = op_table.has("exact", op, source["attrs"])
            if rounds and j != i and self.found.is_low(edge) and not exact:
                value = program.add("round", value)
            return value

        if norm is not None:
            program.input((norm, 0))  # the first input
        value_of((i, 0))
        leaves = [edge for edge in program.inputs if norm is None or edge != (norm, 0)]
        inputs = [self._blocked(edge) for edge in leaves]
        channels = str(self.images[i, 0].channels)
        attrs = {"program": program.text(), "channels": channels}
        if norm is None:
            attrs["num_inputs"] = str(len(inputs))
            return self._emit((i, 0), own.POINTWISE, node["name"], *inputs, **attrs)
        source = self.nodes[norm]
        kept = ("eps", "momentum", "fix_gamma", "use_global_stats")
        attrs.update({key: source["attrs"][key] for key in kept if key in source["attrs"]})
        statistics = [self._plain(edge_of(e)) for e in source["inputs"][1:]]
        attrs["num_extras"] = str(len(inputs))
        inputs = [self._data(source), *statistics, *inputs]
        return self._emit((i, 0), own.NORM, node["name"], *inputs, **attrs)

    def _norm_of(self, i: int, members: Set[int]) -> Optional[int]:
        """Return the first BatchNorm among the arrays that a program reads, None without one."""
        read, pending = [], [i]
        while pending:
            j = pending.pop()
            if j not in members or self.nodes[j]["op"] == "BatchNorm":
                read.append(j)
            else:
                pending += [entry[0] for entry in reversed(self.nodes[j]["inputs"])]
        for j in read[:1] if self.keeps_order else read:
            if j in members and self.images[j, 0].size == self.images[i, 0].size:
                return j
        return None

    def _members(self, i: int) -> Set[int]:
        """Return the nodes that are computed together with node i."""
        members, pending = {i}, [i]
        while pending:
            node = self.nodes[pending.pop()]
            if node["op"] == "BatchNorm":
                continue
            for source, _, *_ in node["inputs"]:
                low = self.found.is_low((source, 0))
                joins = i in self.groups.get(source, ()) or not low
                if source not in members and (source, 0) in self.images and joins:
                    members.add(source)
                    pending.append(source)
        return members


def _variables(graph: TypedGraph) -> List[str]:
    """Return the names of a graph's variables in the order in which MXNet lists them."""
    nodes = [graph.json["nodes"][i] for i in needed(graph.json)]
    return [node["name"] for node in nodes if node["op"] == "null"]


def _fork(graph: TypedGraph) -> TypedGraph:
    """Return a graph in which each blocked tensor with several readers is read through a fork.

    MXNet adds the gradients of a tensor's readers by an operator that converts bfloat16 to float32
    first; the gradient of a fork is our own sum.
    """
    nodes = graph.json["nodes"]
    uses = Counter(edge_of(entry) for node in nodes for entry in node["inputs"])
    forks: Dict[Edge, List[Entry]] = {}  # of old tensors: what is left for their readers

    def forked(out: Writer, i: int, node: Json, inputs: List[Entry]) -> Entry:
        edges = map(edge_of, node["inputs"])
        read = [forks[edge].pop(0) if edge in forks else new for edge, new in zip(edges, inputs)]
        entry = out.copy(node, read)
        count = uses[i, 0]
        if op_table.has("blocked", node["op"]) and count > 1:
            attrs = {k: v for k, v in node["attrs"].items() if k == "in_float32"}
            attrs["num_outputs"] = str(count)
            fork = out.emit(own.FORK, f"{node['name']}_fork", *[entry] * count, **attrs)
            forks[i, 0] = [[fork[0], k, 0] for k in range(count)]
        return entry

    return graph.by(forked)
