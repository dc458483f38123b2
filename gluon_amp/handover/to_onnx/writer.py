"""The ONNX graph that is being written: its nodes, its constants, and sizes that follow the batch.

Opset 13 is declared, which runtimes of the last five years read.
"""

from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

from gluon_amp.graph import flag, integer, integers, is_set, number

OPSET = 13
IR_VERSION = 7  # the one of opset 13

NONLINEAR = "a size that grows with the square of the batch"


class Tensor(NamedTuple):
    """A tensor of the net, which the ONNX graph has under a name.

    `growth` is by how much each size grows with each sample more in the batch: 0 if it is fixed, -1
    if it grows otherwise, as the number of pairs does.
    """

    shape: Tuple[int, ...]
    growth: Tuple[int, ...]
    dtype: str
    name: str = ""
    value: Optional[np.ndarray] = None  # of a constant

    @property
    def fixed(self) -> bool:
        """Whether no size depends on the batch."""
        return not any(self.growth)

    @property
    def is_computed(self) -> bool:
        """Whether the ONNX graph has it, and not as a constant."""
        return bool(self.name) and self.value is None

    @property
    def rank(self) -> int:
        """The number of axes."""
        return len(self.shape)

    def axis(self, axis: int) -> int:
        """Return an axis counted from the first."""
        return axis + self.rank if axis < 0 else axis


class Node(NamedTuple):
    """An operator of the net: what it reads and returns, and its attributes as MXNet wrote them."""

    op: str
    attrs: Dict[str, str]
    inputs: List[Tensor]
    outputs: List[Tensor]  # without names

    @property
    def data(self) -> Tensor:
        """The first input."""
        return self.inputs[0]

    @property
    def out(self) -> Tensor:
        """The first output."""
        return self.outputs[0]

    @property
    def wide(self) -> str:
        """The dtype of norms and exponentials: float32, or float64 if the data have that."""
        return "float64" if self.data.dtype == "float64" else "float32"

    def text(self, key: str, default: str = "None") -> str:
        """Return an attribute as MXNet wrote it; the default if it is None."""
        return self.attrs[key] if is_set(self.attrs, key) else default

    def flag(self, key: str, default: bool = False) -> bool:
        """Return an attribute that is True or False."""
        return flag(self.attrs, key, default)

    def number(self, key: str, default: float = 0.0) -> float:
        """Return an attribute that is a number."""
        return float(number(self.attrs, key, default))

    def integer(self, key: str, default: int = 0) -> int:
        """Return an attribute that is a whole number."""
        return integer(self.attrs, key, default)

    def integers(self, key: str, default: Tuple[int, ...] = ()) -> Tuple[int, ...]:
        """Return an attribute that is a tuple; the default if it is empty or None."""
        return integers(self.attrs, key, default)

    def members(self, key: str) -> List[str]:
        """Return the texts in an attribute that is a tuple, or one text; none if it is None."""
        texts = self.text(key, "").strip("()[]").split(",")
        return [one.strip() for one in texts if one.strip()]

    def numbers(self, key: str, default: Sequence[float]) -> Tuple[float, ...]:
        """Return an attribute that is a tuple of numbers, or one number."""
        return tuple(map(float, self.members(key) or default))

    def places(self, key: str) -> List[Optional[int]]:
        """Return an attribute such as `'(None, 3)'`, whose members may be None."""
        return [None if one == "None" else int(one) for one in self.members(key)]

    def axes(self, key: str = "axis") -> Optional[Tuple[int, ...]]:
        """Return the axes that an attribute names, counted from the first; None for all of them."""
        named = integers(self.attrs, key)
        return tuple(self.data.axis(axis) for axis in named) if named else None


class Batch(NamedTuple):
    """Where the size of the batch can be read, and the size that the shapes are known for."""

    input: str
    axis: int
    size: int


class UntranslatableError(ValueError):
    """An operator, or this use of it, has no translation; the message says why, as in a clause."""


Value = Union[str, Tensor]


class Writer:
    """Collects nodes and constants; each call returns the name of what it added."""

    def __init__(self, batch: Batch) -> None:
        self.nodes: List[tuple] = []  # operator, inputs, outputs, attributes
        self.constants: Dict[str, np.ndarray] = {}
        self.prefix = ""  # of the names of what the present operator adds
        self.reads_batch = False  # whether a size is read from the batch's input
        self.batch = batch
        self._names: Dict[str, int] = {}
        self._known: Dict[tuple, str] = {}  # the names of small constants

    def add(self, op: str, *inputs: Value, **attributes: object) -> str:
        """Add an operator with one output; an input that is left out is an empty name."""
        return self.several(1, op, *inputs, **attributes)[0]

    def several(self, outputs: int, op: str, *inputs: Value, **attributes: object) -> List[str]:
        """Add an operator with several outputs."""
        read = [one if isinstance(one, str) else one.name for one in inputs]
        names = [self.new_name(op) for _ in range(outputs)]
        self.nodes.append((op, read, names, attributes))
        return names

    def new_name(self, of: str) -> str:
        """Return a name that no other tensor has."""
        name = f"{self.prefix}/{of}" if self.prefix else of
        count = self._names[name] = self._names.get(name, 0) + 1
        return name if count == 1 else f"{name}_{count}"

    def constant(self, value: np.ndarray, name: str = "constant") -> str:
        """Add an array; small ones that are equal are added once."""
        value = np.ascontiguousarray(value).reshape(np.shape(value))
        content = value.tobytes() if value.size <= 16 else len(self.constants)  # which none has
        key = (value.dtype.str, value.shape, content)
        if key not in self._known:
            self._known[key] = self.new_name(name)
            self.constants[self._known[key]] = value
        return self._known[key]

    def scalar(self, value: float, dtype: str) -> str:
        """Add a number of a dtype."""
        return self.constant(np.array(value, dtype))

    def integers(self, values: Sequence[int]) -> str:
        """Add whole numbers, as sizes, axes and places are given."""
        return self.constant(np.array(values, np.int64))

    def cast(self, value: Value, dtype: str) -> str:
        """Add a cast to a dtype of numpy."""
        return self.add("Cast", value, to=dtype)

    def as_dtype(self, value: Tensor, dtype: str) -> str:
        """Return a tensor in a dtype, cast if it has another."""
        return value.name if value.dtype == dtype else self.cast(value, dtype)

    def back(self, value: str, node: Node) -> str:
        """Return what was computed in a node's wide dtype in the dtype of its output."""
        return value if node.out.dtype == node.wide else self.cast(value, node.out.dtype)

    def sizes(self, tensor: Tensor) -> str:
        """Return the sizes of a tensor, which follow the batch."""
        if tensor.fixed:
            return self.integers(tensor.shape)
        if ("sizes",) not in self._known:
            prefix, self.prefix = self.prefix, "batch"
            shape, axis = self.add("Shape", self.batch.input), self.integers([self.batch.axis])
            self._known["sizes",] = self.add("Gather", shape, axis, axis=0)
            self.reads_batch = True
            self.prefix = prefix
        if -1 in tensor.growth:
            raise UntranslatableError(NONLINEAR)
        batch = self.batch.size
        at_zero = [size - batch * growth for size, growth in zip(tensor.shape, tensor.growth)]
        grown = self.add("Mul", self._known["sizes",], self.integers(tensor.growth))
        return self.add("Add", grown, self.integers(at_zero)) if any(at_zero) else grown

    def reshaped(self, value: Value, to: Tensor) -> str:
        """Reshape a tensor to the shape of another, whatever the batch."""
        if sum(map(bool, to.growth)) > 1 or 0 in to.shape:
            return self.add("Reshape", value, self.sizes(to))
        sizes = [-1 if growth else size for size, growth in zip(to.shape, to.growth)]
        return self.add("Reshape", value, self.integers(sizes))

    def transposed(self, value: Value, order: Sequence[int]) -> str:
        """Permute the axes."""
        if list(order) == sorted(order):
            return value if isinstance(value, str) else value.name
        return self.add("Transpose", value, perm=list(order))

    def sliced(self, value: Value, axis: int, begin: int, end: Optional[int], step: int = 1) -> str:
        """Take a range of an axis; an end of None is that of the axis, in the step's direction."""
        if end is None:
            end = np.iinfo(np.int64).max if step > 0 else np.iinfo(np.int64).min
        places = [self.integers([one]) for one in (begin, end, axis, step)]
        return self.add("Slice", value, *places)
