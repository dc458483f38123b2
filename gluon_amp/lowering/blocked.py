"""Keeps the images of a convolutional network in one blocked layout, between all convolutions.

MXNet's operators exchange arrays in the plain layout or in one of oneDNN's, and reorder them where
two of them differ: 424 times in a training step of a ResNet-50 in bfloat16, which is a third of its
time. Here, operators of gluon_amp's C++ library replace the products in low precision and what
stands between convolutions. They exchange arrays of five dimensions, which MXNet regards as plain
(`native/src/blocked.h`). Arrays are converted only where another operator reads them.

Elementwise operators, and casts to float32 and back between them, become one program that is
computed in one pass over memory, with the BatchNorm before it (`pointwise`).
"""

import os
from collections import Counter
from typing import Dict, List, NamedTuple, Optional, Set, Tuple

from gluon_amp import hardware
from gluon_amp.lowering import narrowing, native
from gluon_amp.lowering.bfloat16 import AVX512, WITHOUT_AVX512
from gluon_amp.lowering.deconvolution import tuple_of
from gluon_amp.lowering.narrowing import ADAPTIVE_POOLING
from gluon_amp.lowering.pointwise import BROADCASTING, RELU, Program, instructions_of
from gluon_amp.policy.graph import ACCUMULATE_ATTR, CASTS, LOW_PRECISION, Writer, edge_dtypes
from gluon_amp.policy.op_table import EXACT
from gluon_amp.policy.registry import canonical

import mxnet as mx

BLOCK, UNBLOCK, FORK = "_gluon_amp_block", "_gluon_amp_unblock", "_gluon_amp_fork"
CONVOLUTION, DEPTHWISE = "_gluon_amp_blocked_convolution", "_gluon_amp_depthwise"
DENSE = "_gluon_amp_dense"
NORM, POINTWISE = "_gluon_amp_norm", "_gluon_amp_pointwise"
CONCAT, POOL = "_gluon_amp_concat", "_gluon_amp_pool"

# Operators that read parameters as they are stored, in float32 or float16
READ_PARAMETERS = (CONVOLUTION, DEPTHWISE, DENSE)

NOT_ELEMENTWISE = ("Concat", "Convolution", "Pooling", ADAPTIVE_POOLING)

Edge = Tuple[int, int]  # a tensor of the old graph: node and output

TRUE = ("True", "true", "1")
UNSET = ("None", "NCHW")  # of the attribute `layout`


class Limit(NamedTuple):
    """How many instructions a program may have, and how many arrays it may read."""

    instructions: int
    arrays: int


# The C++ library accepts 64 instructions and 8 arrays. A float32 value is part of several programs.
LIMIT, LIMIT_IN_FLOAT32 = Limit(48, 6), Limit(24, 3)
MOST_JOINED = 4  # arrays; operators that would make a program read more become its inputs

# The number, height and width of images, as far as a graph without shapes determines them: two
# equal values stand for equal sizes. The first tensor has the size ("of", tensor), one pixel for
# each of its images is ("one", tensor), and other sizes are (size, what changed it).
Size = tuple


class Images(NamedTuple):
    """What the graph says of a tensor of images that can have the blocked layout."""

    channels: int
    size: Size


def use_blocked_layout(graph: dict, dtypes: Dict[str, object]) -> dict:
    """Return a graph of the same values in which images in low precision have the blocked layout.

    It is `graph` itself if it has no product in low precision, or if there is no C++ library or no
    oneDNN.
    """
    products = ("Convolution", "FullyConnected")
    if not any(node["op"] in products for node in graph["nodes"]) or not available():
        return graph
    edges = edge_dtypes(graph, dtypes)
    if not any(dtype in LOW_PRECISION for dtype in edges.values()):
        return graph
    graph, edges = _narrowed(graph, edges, dtypes)
    # The order of the variables is that of the graph, and callers rely on it.
    blocked = _Blocking(graph, edges).rewrite()
    if _variables(blocked) != _variables(graph):
        blocked = _Blocking(graph, edges, keeps_order=True).rewrite()
    return blocked


def _narrowed(
    graph: dict, edges: Dict[Edge, str], dtypes: Dict[str, object]
) -> Tuple[dict, Dict[Edge, str]]:
    """Return the graph with operators brought back to bfloat16, if they are blocked then."""
    chosen = narrowing.find(graph, edges)
    while chosen:
        narrower = narrowing.narrow(graph, edges, chosen)
        narrower_edges = edge_dtypes(narrower, dtypes)
        images = _Blocking(narrower, narrower_edges).find_images()
        names = {narrower["nodes"][i]["name"] for i, _ in images}
        blocked = {i for i in chosen if graph["nodes"][i]["name"] in names}
        if blocked == chosen:
            return narrower, narrower_edges
        chosen = blocked
    return graph, edges


def available() -> bool:
    """Return whether the operators of the blocked layout can be used."""
    enabled = os.environ.get("MXNET_MKLDNN_ENABLED", "1") != "0"
    return enabled and mx.runtime.Features().is_enabled("MKLDNN") and native.available()


def lanes_for(dtype: str) -> int:
    """Return how many channels are stored side by side; 0 stands for all of them.

    oneDNN's kernels for AVX512 read 16 channels at once, those for AVX2 8, and those for AMX, which
    are for bfloat16 alone, read all channels.
    """
    isa = os.environ.get("DNNL_MAX_CPU_ISA", "").upper()
    flags = hardware.cpu_flags()
    if isa in WITHOUT_AVX512 or not flags >= AVX512:
        return 8
    amx = hardware.has_amx() and isa in ("", "ALL", "AVX512_CORE_AMX")
    return 0 if amx and dtype == "bfloat16" else 16


class _Blocking:
    """One graph being rewritten.

    The old graph is analyzed twice: from the inputs to the outputs for what can be blocked
    (`images`), and back for which elementwise operators are computed together (`groups`).

    With `keeps_order`, a program joins a BatchNorm only if that is what it reads first, so that the
    variables keep their order.
    """

    def __init__(self, graph: dict, edges: Dict[Edge, str], keeps_order: bool = False) -> None:
        self.keeps_order = keeps_order
        self.old, self.nodes, self.edges = graph, graph["nodes"], edges
        self.out = Writer()
        self.images: Dict[Edge, Images] = {}
        self.wide: Dict[int, Tuple[int, Set[Edge]]] = {}  # see `_is_short`
        # elementwise node -> nodes whose results it is part of
        self.groups: Dict[int, Set[int]] = {}
        self.plain: Dict[Edge, list] = {}  # old edge -> its entry in the new graph, plain
        self.blocked: Dict[Edge, list] = {}  # and blocked
        self.readers: Dict[Edge, List[int]] = {}
        for i, node in enumerate(self.nodes):
            for source, output, *_ in node["inputs"]:
                self.readers.setdefault((source, output), []).append(i)
        self.heads = {tuple(entry[:2]) for entry in graph["heads"]}
        self._finders = {
            "BatchNorm": self._find_norm,
            "Concat": self._find_concat,
            "Convolution": self._find_convolution,
            "Pooling": self._find_pooling,
            ADAPTIVE_POOLING: self._find_adaptive_pooling,
            **dict.fromkeys(CASTS, self._find_cast),
        }
        self._writers = {
            "Concat": self._write_concat,
            "Convolution": self._write_convolution,
            "Pooling": self._write_pooling,
            ADAPTIVE_POOLING: self._write_pooling,
        }

    def rewrite(self) -> dict:
        self.find_images()
        self._find_groups()
        for i, node in enumerate(self.nodes):
            accumulates = node.get("attrs", {}).get(ACCUMULATE_ATTR)
            if node["op"] == "FullyConnected" and self._is_low((i, 0)) and not accumulates:
                self._write_dense(i, node)
            elif (i, 0) not in self.images:
                self._copy(i)
            elif not _is_elementwise(node) or i in self.groups.get(i, ()):
                self._blocked((i, 0))
        heads = [[*self._plain(tuple(e[:2]))[:2], *e[2:]] for e in self.old["heads"]]
        return _fork({**self.old, "nodes": self.out.nodes, "heads": heads})

    # ----------------------------------------------------------------------------------- analysis

    def find_images(self) -> Dict[Edge, Images]:
        """Find the tensors that can have the blocked layout: results of convolutions, and so on."""
        for i, node in enumerate(self.nodes):
            find = self._finders.get(canonical(node["op"]), self._find_elementwise)
            found = find(i, node)
            if found is not None and self._is_short(i, node):
                self.images[i, 0] = found
        return self.images

    def _is_short(self, i: int, node: dict) -> bool:
        """Return whether a value follows by few instructions from few arrays.

        Float32 values are never written, but computed anew for each of their readers.
        """
        if not _is_elementwise(node):
            return True
        low = self._is_low((i, 0))
        instructions, arrays = self._own_instructions(node) + low, set()
        for source, output, *_ in node["inputs"]:
            if self._is_low((source, output)) or (source, output) not in self.images:
                arrays.add((source, output))
            else:
                below, read = self.wide[source]
                instructions, arrays = instructions + below, arrays | read
        self.wide[i] = instructions, arrays
        if canonical(node["op"]) == "BatchNorm":
            return True
        most = LIMIT if low else LIMIT_IN_FLOAT32
        return instructions <= most.instructions and len(arrays) <= most.arrays

    def _own_instructions(self, node: dict) -> int:
        if canonical(node["op"]) == "add_n":
            return len(node["inputs"]) - 1
        return len(instructions_of(node["op"], node.get("attrs", {})) or ())

    def _input(self, node: dict, k: int = 0) -> Optional[Images]:
        return self.images.get(tuple(node["inputs"][k][:2]))

    def _is_low(self, edge: Edge) -> bool:
        return self.edges.get(edge) in LOW_PRECISION

    def _find_convolution(self, i: int, node: dict) -> Optional[Images]:
        attrs = node["attrs"]
        kernel = tuple_of(attrs["kernel"])
        layout = attrs.get("layout", "None")
        if not self._is_low((i, 0)) or len(kernel) != 2 or layout not in UNSET:
            return None
        if attrs.get(ACCUMULATE_ATTR):
            return None
        data, filters = self._input(node), int(attrs["num_filter"])
        groups = int(attrs.get("num_group", "1"))
        if groups > 1 and data is None:
            return None  # the operator for small groups reads blocked data
        size = data.size if data else ("of", tuple(node["inputs"][0][:2]))
        return Images(filters, _resized(size, attrs))

    def _find_norm(self, i: int, node: dict) -> Optional[Images]:
        attrs, data = node["attrs"], self._input(node)
        if data is None or not self._is_low(tuple(node["inputs"][0][:2])):
            return None
        if attrs.get("axis", "1") != "1" or attrs.get("output_mean_var", "False") in TRUE:
            return None
        if any(self.readers.get((i, k)) or (i, k) in self.heads for k in (1, 2)):
            return None
        return data

    def _find_pooling(self, i: int, node: dict) -> Optional[Images]:
        attrs, data = node["attrs"], self._input(node)
        if data is None or not self._is_low((i, 0)):
            return None
        if attrs.get("pool_type", "max") not in ("max", "avg"):
            return None
        if attrs.get("layout", "None") not in UNSET:
            return None
        if attrs.get("global_pool") in TRUE:
            return Images(data.channels, _one(data.size))
        if len(tuple_of(attrs.get("kernel", ""))) != 2:
            return None
        if attrs.get("pooling_convention", "valid") == "valid":
            return Images(data.channels, _resized(data.size, attrs))
        if attrs["pooling_convention"] == "full":
            return Images(data.channels, (data.size, i))
        return None

    def _find_adaptive_pooling(self, i: int, node: dict) -> Optional[Images]:
        data = self._input(node)
        if data is None or not self._is_low((i, 0)):
            return None
        ones = set(tuple_of(node["attrs"].get("output_size", ""))) <= {1}
        return Images(data.channels, _one(data.size) if ones else (data.size, i))

    def _find_concat(self, i: int, node: dict) -> Optional[Images]:
        inputs = [self._input(node, k) for k in range(len(node["inputs"]))]
        if None in inputs or node["attrs"].get("dim", "1") != "1" or not self._is_low((i, 0)):
            return None
        if not all(self._is_low(tuple(entry[:2])) for entry in node["inputs"]):
            return None
        return Images(sum(image.channels for image in inputs), inputs[0].size)

    def _find_cast(self, i: int, node: dict) -> Optional[Images]:
        dtypes = {self.edges.get((i, 0)), self.edges.get(tuple(node["inputs"][0][:2]))}
        allowed = dtypes <= {"float32", *LOW_PRECISION} and len(dtypes & set(LOW_PRECISION)) <= 1
        return self._input(node) if allowed else None

    def _find_elementwise(self, i: int, node: dict) -> Optional[Images]:
        op = canonical(node["op"])
        if op != "add_n" and instructions_of(op, node.get("attrs", {})) is None:
            return None
        if self.edges.get((i, 0)) not in ("float32", *LOW_PRECISION):
            return None
        inputs = [self._input(node, k) for k in range(len(node["inputs"]))]
        if not inputs or None in inputs or len({image.channels for image in inputs}) > 1:
            return None
        sizes = [image.size for image in inputs]
        if op in BROADCASTING and len(set(sizes)) > 1:
            full = [image for image in inputs if not _is_one(image.size)]
            if len(full) != 1 or _one(full[0].size) not in sizes:
                return None
            return full[0]
        return inputs[0]

    def _find_groups(self) -> None:
        """Decide which elementwise operators are computed together, from the outputs back.

        A group is named by its last node, which writes an array. A node in low precision belongs to
        the group of its readers if they have one in common, otherwise it ends a group of its own. A
        node in float32 belongs to all groups of its readers: in each it is computed anew, since it
        cannot be written without being rounded.
        """
        lengths, arrays = Counter(), {}  # of programs, by the group's name
        read_plain: Set[int] = set()  # nodes in float32 that are computed in plain arrays, too
        for i in reversed(range(len(self.nodes))):
            node = self.nodes[i]
            if (i, 0) not in self.images or not _is_elementwise(node):
                continue
            above: Set[int] = set()
            only_elementwise = (i, 0) not in self.heads
            for reader in self.readers.get((i, 0), ()):
                joins = self._joins(i, reader)
                above |= self.groups.get(reader, set()) if joins else set()
                only_elementwise = only_elementwise and joins and reader not in read_plain
            low = self._is_low((i, 0))
            if not low and not only_elementwise:
                read_plain.add(i)
            if low:
                length, read = self.wide[i]
                group = next(iter(above), None)
                if len(above) == 1 and only_elementwise:
                    if canonical(node["op"]) != "BatchNorm":  # its result is the first input
                        read = (arrays[group] - {(i, 0)}) | read
                    else:
                        read = arrays[group]
                    more = len(read) > max(MOST_JOINED, len(arrays[group]))
                    joins = not more and lengths[group] + length <= LIMIT.instructions
                else:
                    joins = False
                if not joins:
                    group, read = i, self.wide[i][1]
                lengths[group] += length
                arrays[group] = read
                above = {group}
            self.groups[i] = above

    def _joins(self, i: int, reader: int) -> bool:
        """Return whether an operator can be computed together with an elementwise reader."""
        node = self.nodes[reader]
        if (reader, 0) not in self.images or not _is_elementwise(node):
            return False
        if canonical(node["op"]) == "BatchNorm":
            return False  # it reads an array
        return self.images[i, 0].size == self.images[reader, 0].size or not self._is_low((i, 0))

    # ----------------------------------------------------------------------------------- new graph

    def _copy(self, i: int) -> None:
        """Append an operator of the old graph, which reads plain arrays."""
        node = self.nodes[i]
        inputs = [[*self._plain(tuple(e[:2]))[:2], *e[2:]] for e in node["inputs"]]
        number = self.out.copy(node, inputs)[0]
        for output in range(max((k for j, k in self.edges if j == i), default=0) + 1):
            self.plain[i, output] = [number, output, 0]

    def _plain(self, edge: Edge) -> list:
        """Return the entry of a tensor in the plain layout."""
        if edge not in self.plain:
            node = self.nodes[edge[0]]
            if edge in self.images and self._is_low(edge):
                channels = str(self.images[edge].channels)
                name = f"{node['name']}_plain"
                entry = self.out.emit(UNBLOCK, name, self._blocked(edge), channels=channels)
                self.plain[edge] = self._typed(entry, self.edges[edge])
            else:  # it was to be computed together with its readers
                self._copy(edge[0])
        return list(self.plain[edge])

    def _typed(self, entry: list, dtype: str) -> list:
        """Return an entry of the emulation, whose arrays are float32, as one of the cast graph."""
        if dtype != "float16":
            return entry
        return self.out.emit(
            "amp_cast", f"{self.out.nodes[entry[0]]['name']}_half", entry, dtype=dtype
        )

    def _blocked(self, edge: Edge) -> list:
        """Return the entry of a tensor in the blocked layout."""
        if edge not in self.blocked:
            i = edge[0]
            write = self._writers.get(canonical(self.nodes[i]["op"]), self._write_group)
            self.blocked[edge] = write(i, self.nodes[i])
        return list(self.blocked[edge])

    def _data(self, node: dict, k: int = 0) -> list:
        return self._blocked(tuple(node["inputs"][k][:2]))

    def _parameter(self, node: dict, k: int) -> Tuple[list, bool]:
        """Return the tensor that a weight is cast from, and whether it is a variable."""
        edge = tuple(node["inputs"][k][:2])
        source = self.nodes[edge[0]]
        while source["op"] in CASTS and self.edges.get(edge) in LOW_PRECISION:
            below = tuple(source["inputs"][0][:2])
            if self.edges.get(below) not in ("float32", "float16"):
                break
            edge, source = below, self.nodes[below[0]]
        entry = self._plain(edge)
        if self.edges.get(edge) == "bfloat16":
            entry = self.out.emit("amp_cast", f"{source['name']}_float32", entry, dtype="float32")
        return entry, source["op"] == "null"

    def _write_convolution(self, i: int, node: dict) -> list:
        attrs, data = dict(node["attrs"]), self._input(node)
        lanes = lanes_for(self.edges[i, 0])
        weights = [self._parameter(node, k) for k in range(1, len(node["inputs"]))]
        kept = ("kernel", "stride", "pad", "dilate", "num_filter", "num_group")
        attrs = {key: attrs[key] for key in kept if key in attrs}
        attrs["no_bias"] = str(len(weights) == 1)
        attrs["variable_weight"] = str(weights[0][1])
        entries = [entry for entry, _ in weights]
        if data is None:
            source = self._plain(tuple(node["inputs"][0][:2]))
            if self.edges[i, 0] == "float16":  # the emulation's arrays are float32
                name = f"{node['name']}_data"
                source = self.out.emit("amp_cast", name, source, dtype="float32")
            attrs.update(plain_data="True", lanes=str(lanes))
            attrs["reader_rounds"] = str(self._is_rounded_by_reader(i))
            return self.out.emit(CONVOLUTION, node["name"], source, *entries, **attrs)
        attrs["channels"] = str(data.channels)
        groups = int(attrs.get("num_group", "1"))
        small = data.channels // groups % 16 or int(attrs["num_filter"]) // groups % 16
        if groups > 1 and small:
            return self.out.emit(DEPTHWISE, node["name"], self._data(node), *entries, **attrs)
        attrs["lanes"] = str(lanes)
        attrs["reader_rounds"] = str(self._is_rounded_by_reader(i))
        return self.out.emit(CONVOLUTION, node["name"], self._data(node), *entries, **attrs)

    def _is_rounded_by_reader(self, i: int) -> bool:
        """Return whether all that reads a node is a relu whose result is stored, thus rounded."""
        readers = self.readers.get((i, 0), ())
        if len(readers) != 1 or (i, 0) in self.heads:
            return False
        node = self.nodes[readers[0]]
        alone = self.groups.get(readers[0]) == {readers[0]} and self._is_low((readers[0], 0))
        return alone and instructions_of(node["op"], node.get("attrs", {})) == [RELU]

    def _write_dense(self, i: int, node: dict) -> None:
        weights = [self._parameter(node, k) for k in range(1, len(node["inputs"]))]
        attrs = {k: node["attrs"][k] for k in ("num_hidden", "flatten") if k in node["attrs"]}
        attrs["no_bias"] = str(len(weights) == 1)
        attrs["variable_weight"] = str(weights[0][1])
        source = self._plain(tuple(node["inputs"][0][:2]))
        dtype = self.edges[i, 0]
        if dtype == "float16":  # the emulation's arrays are float32
            source = self.out.emit("amp_cast", f"{node['name']}_data", source, dtype="float32")
        entries = [entry for entry, _ in weights]
        self.plain[i, 0] = self._typed(
            self.out.emit(DENSE, node["name"], source, *entries, **attrs), dtype
        )

    def _write_pooling(self, i: int, node: dict) -> list:
        kept = ("kernel", "stride", "pad", "pool_type", "global_pool", "pooling_convention")
        kept = (*kept, "count_include_pad", "output_size")
        attrs = {key: node["attrs"][key] for key in kept if key in node["attrs"]}
        attrs["channels"] = str(self.images[i, 0].channels)
        if canonical(node["op"]) == ADAPTIVE_POOLING:
            attrs = {"output_size": "(1, 1)", **attrs, "pool_type": "avg"}
        return self.out.emit(POOL, node["name"], self._data(node), **attrs)

    def _write_concat(self, i: int, node: dict) -> list:
        count = range(len(node["inputs"]))
        channels = ", ".join(str(self._input(node, k).channels) for k in count)
        inputs = [self._data(node, k) for k in count]
        return self.out.emit(
            CONCAT, node["name"], *inputs, channels=f"({channels})", num_args=str(len(inputs))
        )

    def _write_group(self, i: int, node: dict) -> list:
        """Append the program of an elementwise operator and all those in its group before it.

        If a BatchNorm is among what the program reads, both are computed together.
        """
        program, values = Program(), {}
        members = self._members(i)
        norm = self._norm_of(i, members)
        rounds = self.edges[i, 0] == "float16"

        def value_of(edge: Edge) -> tuple:
            if edge not in values:
                values[edge] = compute(edge)
            return values[edge]

        def compute(edge: Edge) -> tuple:
            j, source = edge[0], self.nodes[edge[0]]
            op = canonical(source["op"])
            if j not in members or (op == "BatchNorm" and j != norm):
                return program.input(edge)
            if j == norm:
                value = program.input(edge)
            elif source["op"] in CASTS:
                value = value_of(tuple(source["inputs"][0][:2]))
                if self.edges[edge] == "float32" or self._is_low(tuple(source["inputs"][0][:2])):
                    return value
            else:
                operands = [value_of(tuple(e[:2])) for e in source["inputs"]]
                if op == "add_n":
                    value = operands[0]
                    for operand in operands[1:]:
                        value = program.add("add", value, operand)
                else:
                    value = program.append(instructions_of(op, source.get("attrs", {})), operands)
            exact = op in EXACT or op in ("relu", "_npx_relu")
            exact = exact or source.get("attrs", {}).get("act_type") == "relu"
            if rounds and j != i and self._is_low(edge) and not exact:
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
            return self.out.emit(
                POINTWISE, node["name"], *inputs, num_inputs=str(len(inputs)), **attrs
            )
        source = self.nodes[norm]
        kept = ("eps", "momentum", "fix_gamma", "use_global_stats")
        attrs.update({key: source["attrs"][key] for key in kept if key in source["attrs"]})
        statistics = [self._plain(tuple(e[:2])) for e in source["inputs"][1:]]
        attrs["num_extras"] = str(len(inputs))
        return self.out.emit(NORM, node["name"], self._data(source), *statistics, *inputs, **attrs)

    def _norm_of(self, i: int, members: Set[int]) -> Optional[int]:
        """Return the first BatchNorm among the arrays that a program reads, None without one."""
        read, pending = [], [i]
        while pending:
            j = pending.pop()
            if j not in members or canonical(self.nodes[j]["op"]) == "BatchNorm":
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
            if canonical(node["op"]) == "BatchNorm":
                continue
            for source, _, *_ in node["inputs"]:
                low = self._is_low((source, 0))
                joins = i in self.groups.get(source, ()) or not low
                if source not in members and (source, 0) in self.images and joins:
                    members.add(source)
                    pending.append(source)
        return members


def _variables(graph: dict) -> List[str]:
    """Return the names of a graph's variables in the order in which MXNet lists them."""
    nodes, seen, names = graph["nodes"], set(), []
    pending = [entry[0] for entry in reversed(graph["heads"])]
    while pending:
        i = pending.pop()
        if i not in seen:
            seen.add(i)
            if nodes[i]["op"] == "null":
                names.append(nodes[i]["name"])
            pending += [entry[0] for entry in reversed(nodes[i]["inputs"])]
    return names


def _is_elementwise(node: dict) -> bool:
    """Return whether a node that can be blocked is part of programs."""
    return canonical(node["op"]) not in NOT_ELEMENTWISE


def _is_one(size: Size) -> bool:
    return size[0] == "one"


def _one(size: Size) -> Size:
    """Return the size of one pixel for each image."""
    while isinstance(size[0], tuple):
        size = size[0]
    return "one", size[1]


def _resized(size: Size, attrs: Dict[str, str]) -> Size:
    """Return the size of an image after a convolution or pooling.

    It depends on how much the image shrinks beyond the stride: a 3×3 kernel with padding 1 and a
    1×1 kernel without padding give the same size.
    """
    steps = []
    for k in range(2):
        kernel, pad = tuple_of(attrs["kernel"])[k], _number(attrs, "pad", k, 0)
        stride, dilate = _number(attrs, "stride", k, 1), _number(attrs, "dilate", k, 1)
        steps.append((2 * pad - dilate * (kernel - 1), stride))
    same = all(grown == 0 for grown, _ in steps)
    if same and (_is_one(size) or all(stride == 1 for _, stride in steps)):
        return size
    return (size, *steps)


def _number(attrs: Dict[str, str], name: str, k: int, default: int) -> int:
    numbers = tuple_of(attrs.get(name, ""))
    return numbers[k] if numbers else default


def _fork(graph: dict) -> dict:
    """Return a graph in which each blocked tensor with several readers is read through a fork.

    MXNet adds the gradients of a tensor's readers by an operator that converts bfloat16 to float32
    first; the gradient of a fork is our own sum.
    """
    blocked = {CONVOLUTION, DEPTHWISE, NORM, POINTWISE, CONCAT, POOL, BLOCK}
    nodes = graph["nodes"]
    uses = Counter(tuple(entry[:2]) for node in nodes for entry in node["inputs"])
    out, forks = Writer(), {}
    for i, node in enumerate(nodes):
        inputs = []
        for entry in node["inputs"]:
            edge = tuple(entry[:2])
            fork = forks.get(edge)
            inputs.append(fork.pop(0) if fork else [out.numbers[edge[0]], *entry[1:]])
        number = out.copy(node, inputs)[0]
        out.numbers.append(number)
        count = uses[i, 0]
        if node["op"] in blocked and count > 1:
            name = f"{node['name']}_fork"
            fork = out.emit(FORK, name, *[[number, 0, 0]] * count, num_outputs=str(count))
            forks[i, 0] = [[fork[0], k, 0] for k in range(count)]
    return out.graph(graph)
