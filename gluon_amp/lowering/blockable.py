"""Finds what can have the blocked layout, in a graph whose products are in low precision."""

from collections import defaultdict
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Set, Tuple

from gluon_amp.graph import ACCUMULATE_ATTR, CASTS, Json, classic, edge_of, flag, integer, integers
from gluon_amp.lowering.pointwise import BINARY, BROADCASTING, instructions_of
from gluon_amp.lowering.typed_graph import Edge, TypedGraph
from gluon_amp.policy.cast_pass import LOW_PRECISION

ADAPTIVE_POOLING = "_contrib_AdaptiveAvgPooling2D"

# Operators that take the sizes of any of their inputs; others take those of the first one
EQUALLY_SIZED = {*BINARY, "add_n", "Concat"}

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
Size = Tuple[Any, ...]


class Images(NamedTuple):
    """What the graph says of a tensor of images that can have the blocked layout."""

    channels: int
    size: Size


Finder = Callable[[int, Json], Optional[Images]]


class Analysis:
    """What of a graph can have the blocked layout.

    `images` are the tensors that can have it, found from the inputs to the outputs. `groups` are,
    for each elementwise node, the nodes whose results it is part of, found from the outputs back.
    Arrays of images have one of the dtypes `low`.
    """

    def __init__(self, graph: TypedGraph, low: Tuple[str, ...] = LOW_PRECISION) -> None:
        self.nodes, self.edges, self.low = graph.json["nodes"], graph.edges, low
        self.readers: Dict[Edge, List[int]] = {}
        for i, node in enumerate(self.nodes):
            for source, output, *_ in node["inputs"]:
                self.readers.setdefault((source, output), []).append(i)
        self.heads = {edge_of(entry) for entry in graph.json["heads"]}
        self.images: Dict[Edge, Images] = {}
        self.groups: Dict[int, Set[int]] = {}
        self._wide: Dict[int, Tuple[int, Set[Edge]]] = {}  # see `_is_short`
        # Operators that have one of our own in their place; others become part of programs.
        self._of_images: Dict[str, Finder] = {
            "Concat": self._find_concat,
            "Convolution": self._find_convolution,
            "Deconvolution": self._find_convolution,
            "Pooling": self._find_pooling,
            ADAPTIVE_POOLING: self._find_adaptive_pooling,
        }
        self._in_programs: Dict[str, Finder] = {
            "BatchNorm": self._find_norm,
            **dict.fromkeys(CASTS, self._find_cast),
        }
        self._find_images()
        self._find_groups()

    def is_elementwise(self, node: Json) -> bool:
        """Return whether a node that can be blocked is part of programs."""
        return node["op"] not in self._of_images

    def _find_images(self) -> None:
        """Find the tensors that can have the blocked layout: results of convolutions, and so on."""
        unsized = _unsized(self.nodes)
        for i, node in enumerate(self.nodes):
            in_program = self._in_programs.get(node["op"], self._find_elementwise)
            find = self._of_images.get(node["op"], in_program)
            found = None if i in unsized else find(i, node)
            if found is not None and self._is_short(i, node):
                self.images[i, 0] = found

    def _is_short(self, i: int, node: Json) -> bool:
        """Return whether a value follows by few instructions from few arrays.

        Float32 values are never written, but computed anew for each of their readers.
        """
        if not self.is_elementwise(node):
            return True
        low = self.is_low((i, 0))
        own = instructions_of(node["op"], node["attrs"]) or ()
        instructions = low + (len(node["inputs"]) - 1 if node["op"] == "add_n" else len(own))
        arrays = set()
        for source, output, *_ in node["inputs"]:
            if self.is_low((source, output)) or (source, output) not in self.images:
                arrays.add((source, output))
            else:
                below, read = self._wide[source]
                instructions, arrays = instructions + below, arrays | read
        self._wide[i] = instructions, arrays
        if node["op"] == "BatchNorm":
            return True
        most = LIMIT if low else LIMIT_IN_FLOAT32
        return instructions <= most.instructions and len(arrays) <= most.arrays

    def input(self, node: Json, k: int = 0) -> Optional[Images]:
        return self.images.get(edge_of(node["inputs"][k]))

    def _inputs(self, node: Json) -> List[Images]:
        """Return what all inputs of a node are; nothing if one can not have the layout."""
        found = [self.input(node, k) for k in range(len(node["inputs"]))]
        images = [image for image in found if image is not None]
        return images if len(images) == len(found) else []

    def is_low(self, edge: Edge) -> bool:
        return self.edges.get(edge) in self.low

    def _find_convolution(self, i: int, node: Json) -> Optional[Images]:
        attrs, is_2d = node["attrs"], len(integers(node["attrs"], "kernel")) == 2
        if not self.is_low((i, 0)) or not is_2d or attrs.get("layout", "None") not in UNSET:
            return None
        if attrs.get(ACCUMULATE_ATTR) or any(integers(attrs, "target_shape")):
            return None
        data = self.input(node)
        size = data.size if data else ("of", edge_of(node["inputs"][0]))
        up = node["op"] == "Deconvolution"
        return Images(integer(attrs, "num_filter"), (size, i) if up else _resized(size, attrs))

    def _find_norm(self, i: int, node: Json) -> Optional[Images]:
        attrs, data = node["attrs"], self.input(node)
        if data is None or not self.is_low(edge_of(node["inputs"][0])):
            return None
        if attrs.get("axis", "1") != "1" or flag(attrs, "output_mean_var"):
            return None
        if any(self.readers.get((i, k)) or (i, k) in self.heads for k in (1, 2)):
            return None
        return data

    def _find_pooling(self, i: int, node: Json) -> Optional[Images]:
        attrs, data = node["attrs"], self.input(node)
        if data is None or not self.is_low((i, 0)):
            return None
        if attrs.get("pool_type", "max") not in ("max", "avg"):
            return None
        if attrs.get("layout", "None") not in UNSET:
            return None
        if flag(attrs, "global_pool"):
            return Images(data.channels, _one(data.size))
        if len(integers(attrs, "kernel")) != 2:
            return None
        if attrs.get("pooling_convention", "valid") == "valid":
            return Images(data.channels, _resized(data.size, attrs))
        if attrs["pooling_convention"] == "full":
            return Images(data.channels, (data.size, i))
        return None

    def _find_adaptive_pooling(self, i: int, node: Json) -> Optional[Images]:
        data = self.input(node)
        if data is None or not self.is_low((i, 0)):
            return None
        ones = set(integers(node["attrs"], "output_size")) <= {1}
        return Images(data.channels, _one(data.size) if ones else (data.size, i))

    def _find_concat(self, i: int, node: Json) -> Optional[Images]:
        inputs = self._inputs(node)
        if not inputs or node["attrs"].get("dim", "1") != "1" or not self.is_low((i, 0)):
            return None
        if not all(self.is_low(edge_of(entry)) for entry in node["inputs"]):
            return None
        return Images(sum(image.channels for image in inputs), inputs[0].size)

    def _find_cast(self, i: int, node: Json) -> Optional[Images]:
        dtypes = {self.edges.get((i, 0)), self.edges.get(edge_of(node["inputs"][0]))}
        allowed = dtypes <= {"float32", *LOW_PRECISION} and len(dtypes & set(LOW_PRECISION)) <= 1
        return self.input(node) if allowed else None

    def _find_elementwise(self, i: int, node: Json) -> Optional[Images]:
        op = classic(node["op"])
        if op != "add_n" and instructions_of(op, node["attrs"]) is None:
            return None
        if self.edges.get((i, 0)) not in ("float32", *LOW_PRECISION):
            return None
        inputs = self._inputs(node)
        if not inputs or len({image.channels for image in inputs}) > 1:
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
        lengths: Dict[int, int] = defaultdict(int)  # of programs, by the group's name
        arrays: Dict[int, Set[Edge]] = {}
        read_plain: Set[int] = set()  # nodes in float32 that are computed in plain arrays, too
        for i in reversed(range(len(self.nodes))):
            node = self.nodes[i]
            if (i, 0) not in self.images or not self.is_elementwise(node):
                continue
            above: Set[int] = set()
            only_elementwise = (i, 0) not in self.heads
            for reader in self.readers.get((i, 0), ()):
                joins = self._joins(i, reader)
                above |= self.groups.get(reader, set()) if joins else set()
                only_elementwise = only_elementwise and joins and reader not in read_plain
            low = self.is_low((i, 0))
            if not low and not only_elementwise:
                read_plain.add(i)
            if low:
                length, read = self._wide[i]
                group = i
                if len(above) == 1 and only_elementwise:
                    (common,) = above
                    together = arrays[common]
                    if node["op"] != "BatchNorm":  # its result is the first input
                        together = (together - {(i, 0)}) | read
                    more = len(together) > max(MOST_JOINED, len(arrays[common]))
                    if not more and lengths[common] + length <= LIMIT.instructions:
                        group, read = common, together
                lengths[group] += length
                arrays[group] = read
                above = {group}
            self.groups[i] = above

    def _joins(self, i: int, reader: int) -> bool:
        """Return whether an operator can be computed together with an elementwise reader."""
        node = self.nodes[reader]
        if (reader, 0) not in self.images or not self.is_elementwise(node):
            return False
        if node["op"] == "BatchNorm":
            return False  # it reads an array
        return self.images[i, 0].size == self.images[reader, 0].size or not self.is_low((i, 0))


def _unsized(nodes: List[Json]) -> Set[int]:
    """Return the nodes whose size follows only from that of a tensor with which theirs is combined.

    A recurrent cell creates its first state for a batch of unknown size. MXNet infers the size from
    the results back, through its own operators, but not through those of the blocked layout.
    """
    found = set()
    for i, node in enumerate(nodes):
        if node["inputs"]:
            sources = [entry[0] in found for entry in node["inputs"]]
            unsized = all(sources) if node["op"] in EQUALLY_SIZED else sources[0]
        elif "shape" in node["attrs"]:
            unsized = min(integers(node["attrs"], "shape"), default=0) < 1
        else:
            unsized = False
        if unsized:
            found.add(i)
    return found


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
        kernel, pad = integers(attrs, "kernel")[k], integers(attrs, "pad", (0, 0))[k]
        stride = integers(attrs, "stride", (1, 1))[k]
        dilate = integers(attrs, "dilate", (1, 1))[k]
        steps.append((2 * pad - dilate * (kernel - 1), stride))
    same = all(grown == 0 for grown, _ in steps)
    if same and (_is_one(size) or all(stride == 1 for _, stride in steps)):
        return size
    return (size, *steps)
