"""MXNet's elementwise operators as instructions of our pointwise programs.

A program is the text of an attribute, such as `"adds 0 3; clip 1 0 6; mul 0 2"`. Values are
numbered: first the inputs, then the results of the instructions (`kernels/src/pointwise.h`).
"""

from typing import Dict, List, Mapping, NamedTuple, Optional, Tuple, Union

from gluon_amp.graph import Edge, classic, is_set, number


class Instruction(NamedTuple):
    """One instruction; operands are 'a' and 'b' (inputs) or numbers of instructions before it."""

    name: str
    operands: Tuple[Union[str, int], ...]
    constants: Tuple[str, ...] = ()


RELU = Instruction("relu", ("a",))

# Operators of one input without attributes, and of two inputs
UNARY = {name: name for name in ("relu", "sigmoid", "tanh", "exp", "square", "abs")}
BINARY = {f"elemwise_{name}": name for name in ("add", "sub", "mul", "div")}
BROADCASTING = {f"broadcast_{name}": name for name in ("add", "sub", "mul", "div")}
WITH_SCALAR = {
    "_plus_scalar": "adds",
    "_mul_scalar": "muls",
    "_div_scalar": "divs",
    "_maximum_scalar": "maxs",
    "_minimum_scalar": "mins",
}
ACTIVATIONS = ("relu", "sigmoid", "tanh")


def instructions_of(op: str, attrs: Mapping[str, str]) -> Optional[List[Instruction]]:
    """Return the instructions of an operator, the last of which is its result; None if it has none.

    An operator of `add_n` has as many inputs as it likes, and is not in this table.
    """
    op = classic(op)
    if op in UNARY:
        return [Instruction(UNARY[op], ("a",))]
    if op in BINARY or op in BROADCASTING:
        return [Instruction(BINARY.get(op) or BROADCASTING[op], ("a", "b"))]
    if op in WITH_SCALAR:
        return [Instruction(WITH_SCALAR[op], ("a",), (_constant(attrs, "scalar", 1.0),))]
    if op in _BY_ATTRIBUTES:
        return _BY_ATTRIBUTES[op](attrs)
    return None


def _constant(attrs: Mapping[str, str], name: str, default: float) -> str:
    return repr(number(attrs, name, default))


def _negative(attrs: Mapping[str, str]) -> List[Instruction]:
    return [Instruction("muls", ("a",), ("-1.0",))]


def _minus_scalar(attrs: Mapping[str, str]) -> List[Instruction]:
    return [Instruction("adds", ("a",), (repr(-number(attrs, "scalar", 1.0)),))]


def _scalar_minus(attrs: Mapping[str, str]) -> List[Instruction]:
    constant = _constant(attrs, "scalar", 1.0)
    return [*_negative(attrs), Instruction("adds", (0,), (constant,))]


def _clip(attrs: Mapping[str, str]) -> Optional[List[Instruction]]:
    if not is_set(attrs, "a_min") or not is_set(attrs, "a_max"):
        return None
    bounds = _constant(attrs, "a_min", 0.0), _constant(attrs, "a_max", 0.0)
    return [Instruction("clip", ("a",), bounds)]


def _activation(attrs: Mapping[str, str]) -> Optional[List[Instruction]]:
    kind = attrs.get("act_type")
    return [Instruction(kind, ("a",))] if kind in ACTIVATIONS else None


def _leaky_relu(attrs: Mapping[str, str]) -> Optional[List[Instruction]]:
    if attrs.get("act_type", "leaky") != "leaky":
        return None
    return [Instruction("leaky", ("a",), (_constant(attrs, "slope", 0.25),))]


def _hard_sigmoid(attrs: Mapping[str, str]) -> Optional[List[Instruction]]:
    alpha, beta = _constant(attrs, "alpha", 0.2), _constant(attrs, "beta", 0.5)
    return [
        Instruction("muls", ("a",), (alpha,)),
        Instruction("adds", (0,), (beta,)),
        Instruction("clip", (1,), ("0.0", "1.0")),
    ]


_BY_ATTRIBUTES = {
    "Activation": _activation,
    "LeakyReLU": _leaky_relu,
    "_minus_scalar": _minus_scalar,
    "_rminus_scalar": _scalar_minus,
    "negative": _negative,
    "clip": _clip,
    "hard_sigmoid": _hard_sigmoid,
}


Value = Tuple[str, int]  # 'input' or 'result', and its number


class Program:
    """A program that is being written; values are inputs (by key) or numbers of instructions."""

    def __init__(self) -> None:
        self.inputs: Dict[Edge, int] = {}
        self.lines: List[Tuple[str, Tuple[Value, ...], Tuple[str, ...]]] = []

    def input(self, key: Edge) -> Value:
        """Return the value of an input, the same for the same key."""
        return "input", self.inputs.setdefault(key, len(self.inputs))

    def add(self, name: str, *operands: Value, constants: Tuple[str, ...] = ()) -> Value:
        """Append an instruction; return its value."""
        self.lines.append((name, operands, constants))
        return "result", len(self.lines) - 1

    def append(self, instructions: List[Instruction], operands: List[Value]) -> Value:
        """Append the instructions of an operator; return the value of its result."""
        inputs = dict(zip("ab", operands))
        values: List[Value] = []
        for name, used, constants in instructions:
            read = [inputs[o] if isinstance(o, str) else values[o] for o in used]
            values.append(self.add(name, *read, constants=constants))
        return values[-1]

    def text(self) -> str:
        """Return the program's text."""
        first = len(self.inputs)
        lines = []
        for name, operands, constants in self.lines:
            numbers = [n if kind == "input" else first + n for kind, n in operands]
            lines.append(" ".join([name, *map(str, numbers), *constants]))
        return "; ".join(lines)
