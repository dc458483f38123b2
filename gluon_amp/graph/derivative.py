"""The derivative of a graph by one of its inputs, as a graph of ordinary operators.

MXNet 1.9.1 cannot differentiate a backward pass: a cached op, convolutions, `Activation` and casts
refuse, and the second derivative of `FullyConnected` is zero where it should not be. A derivative
that is itself a graph of forward operators needs one backward pass only.

The chain rule of each operator is in `derivative_rules`.
"""

from typing import Dict, List, Optional

from gluon_amp.graph.attribute_values import flag, integers, number
from gluon_amp.graph.attributes import BLOCK_ATTR
from gluon_amp.graph.derivative_rules import RULES, STOPS
from gluon_amp.graph.op_names import classic
from gluon_amp.graph.symbol_json import from_json, to_json
from gluon_amp.graph.writer import Writer

import mxnet as mx

Entry = list  # a tensor: the number of its node, its number among the outputs, its version


def derivative(symbol: mx.sym.Symbol, by: str, shapes: Dict[str, tuple]) -> mx.sym.Symbol:
    """Return the gradient of the sum of all outputs of a graph by one of its variables.

    `shapes` are those of the graph's data. A ValueError says which operator has no rule, or that
    the variable reaches no output.
    """
    graph = to_json(symbol)
    nodes = graph["nodes"]
    start = next((i for i, node in enumerate(nodes) if node["name"] == by), None)
    reached = {start}
    for i, node in enumerate(nodes):
        if classic(node["op"]) not in STOPS and any(
            source in reached for source, *_ in node["inputs"]
        ):
            reached.add(i)
    heads = [[source, output, 0] for source, output, *_ in graph["heads"] if source in reached]
    if not heads:
        raise ValueError(f"No output of the net depends on {by}, so there is no gradient by it.")
    tape = _Tape(nodes, shapes)
    for head in heads:
        tape.add(head, tape.emit("ones_like", head))
    for i in sorted(reached - {start}, reverse=True):
        tape.differentiate(i, reached)
    total = tape.total([start, 0])
    for node in nodes:  # a variable keeps the dtype of before a cast
        node.get("attrs", {}).pop("__dtype__", None)
    return from_json({**graph, "nodes": tape.nodes, "heads": [total]}, like=symbol)


class _Tape(Writer):
    """The graph with its derivative being written behind it."""

    def __init__(self, nodes: List[dict], shapes: Dict[str, tuple]) -> None:
        super().__init__()
        self.nodes = list(nodes)
        self.forward = nodes
        self.shapes = _shapes(nodes, shapes)
        self.gradients: Dict[tuple, List[Entry]] = {}  # of each tensor, one from each reader
        self.label = {}  # attribute of new nodes: the block whose operator is differentiated

    def emit(self, op: str, *inputs: Entry, **attrs: object) -> Entry:
        """Append an operator."""
        attrs = {**{key: str(value) for key, value in attrs.items()}, **self.label}
        return super().emit(op, f"gradient{len(self.nodes)}_{op}", *inputs, **attrs)

    def times(self, *factors: Entry) -> Entry:
        """Append the product of tensors of one shape."""
        product, *others = factors
        for factor in others:
            product = self.emit("elemwise_mul", product, factor)
        return product

    def add(self, tensor: Entry, gradient: Entry) -> None:
        """Record a gradient of a tensor."""
        self.gradients.setdefault(tuple(tensor[:2]), []).append(gradient)

    def total(self, tensor: Entry) -> Optional[Entry]:
        """Append the sum of a tensor's gradients; None if it has none."""
        gradients = self.gradients.get(tuple(tensor[:2]), [])
        if len(gradients) > 1:
            return self.emit("add_n", *gradients, num_args=len(gradients))
        return gradients[0] if gradients else None

    def differentiate(self, i: int, reached: set) -> None:
        """Append the gradients of an operator's inputs, where the variable reaches them."""
        node = self.forward[i]
        attrs = node.get("attrs", {})
        self.label = {BLOCK_ATTR: attrs[BLOCK_ATTR]} if BLOCK_ATTR in attrs else {}
        outputs = {output for source, output in self.gradients if source == i}
        if not outputs:  # no output of the graph depends on it
            return
        gradient = self.total([i, 0])
        inputs = [list(entry) for entry in node["inputs"]]
        call = _Call(attrs, inputs, [i, 0, 0], [self.shapes[tuple(e[:2])] for e in inputs])
        call.out_shape = self.shapes[i, 0]
        rule = RULES.get(classic(node["op"]))
        gradients = rule(self, call, gradient) if rule and outputs == {0} else []
        for k, entry in enumerate(inputs):
            if entry[0] in reached:
                if k >= len(gradients):
                    raise ValueError(
                        f"input_gradient() has no rule for {node['op']} (node {node['name']}), so "
                        "this net has no gradient penalty: use another layer, or pass the penalty "
                        "the part of the net without it."
                    )
                self.add(entry, gradients[k])


class _Call:
    """One operator: its attributes, the tensors that it reads and returns, and their shapes."""

    out_shape: tuple

    def __init__(self, attrs: dict, inputs: List[Entry], y: Entry, shapes: List[tuple]) -> None:
        self.attrs = attrs
        self.inputs = inputs
        self.x = inputs[0]
        self.y = y
        self.shapes = shapes

    def number(self, name: str, default: float = 0.0) -> float:
        return number(self.attrs, name, default)

    def flag(self, name: str, default: bool = False) -> bool:
        return flag(self.attrs, name, default)

    def axes(self) -> List[int]:
        """Return the axes that a reduction reduces."""
        dims = range(len(self.shapes[0]))
        axes = integers(self.attrs, "axis")
        named = {k % len(dims) for k in axes or dims}
        return [k for k in dims if (k in named) != (bool(axes) and self.flag("exclude"))]


def _shapes(nodes: List[dict], known: Dict[str, tuple]) -> Dict[tuple, tuple]:
    """Return the shapes of the tensors of a graph, by node and output."""
    edges = sorted({tuple(e[:2]) for node in nodes for e in node["inputs"]})
    edges += [(i, 0) for i in range(len(nodes)) if (i, 0) not in edges]
    everything = from_json({"nodes": nodes, "heads": [[*edge, 0] for edge in edges]})
    _, shapes, _ = everything.infer_shape(**known)
    return dict(zip(edges, shapes))
