"""The derivative of a graph by one of its inputs, as a graph of ordinary operators.

MXNet 1.9.1 cannot differentiate a backward pass: a cached op, convolutions, `Activation` and casts
refuse, and the second derivative of `FullyConnected` is zero where it should not be. A derivative
that is itself a graph of forward operators needs one backward pass only.

The chain rule of each operator is in `derivative_rules`.
"""

from typing import Dict, List, Optional, Set

from gluon_amp.graph.attributes import BLOCK_ATTR
from gluon_amp.graph.derivative_rules import RULES, Call, Shape
from gluon_amp.graph.op_names import classic
from gluon_amp.graph.symbol_json import Edge, Entry, Json, edge_of, edges_of, from_json, to_json
from gluon_amp.graph.writer import Writer

import mxnet as mx


def derivative(symbol: mx.sym.Symbol, by: str, shapes: Dict[str, Shape]) -> mx.sym.Symbol:
    """Return the gradient of the sum of all outputs of a graph by one of its variables.

    `shapes` are those of the graph's data. A ValueError says which operator has no rule, or that
    the variable reaches no output.
    """
    graph = to_json(symbol)
    nodes = graph["nodes"]
    start = next((i for i, node in enumerate(nodes) if node["name"] == by), -1)
    reached = {start}
    for i, node in enumerate(nodes):
        reads = any(source in reached for source, *_ in node["inputs"])
        if reads and RULES.get(classic(node["op"]), ...) is not None:
            reached.add(i)
    heads = [[source, output, 0] for source, output, *_ in graph["heads"] if source in reached]
    if not heads:
        raise ValueError(f"No output of the net depends on {by}, so there is no gradient by it.")
    tape = _Tape(nodes, shapes)
    for head in heads:
        tape.add(head, tape.append("ones_like", head))
    for i in sorted(reached - {start}, reverse=True):
        tape.differentiate(i, reached)
    total = tape.total([start, 0])
    for node in nodes:  # a variable keeps the dtype of before a cast
        node["attrs"].pop("__dtype__", None)
    return from_json({**graph, "nodes": tape.nodes, "heads": [total]}, like=symbol)


class _Tape(Writer):
    """The graph with its derivative being written behind it."""

    def __init__(self, nodes: List[Json], shapes: Dict[str, Shape]) -> None:
        super().__init__()
        self.nodes = list(nodes)
        self.forward = nodes
        self.shapes = _shapes(nodes, shapes)
        self.gradients: Dict[Edge, List[Entry]] = {}  # of each tensor, one from each reader
        # attribute of new nodes: the block whose operator is differentiated
        self.label: Dict[str, str] = {}

    def append(self, op: str, *inputs: Entry, **attrs: object) -> Entry:
        """Append an operator."""
        texts = {**{key: str(value) for key, value in attrs.items()}, **self.label}
        return self.emit(op, f"gradient{len(self.nodes)}_{op}", *inputs, **texts)

    def add(self, tensor: Entry, gradient: Entry) -> None:
        """Record a gradient of a tensor."""
        self.gradients.setdefault(edge_of(tensor), []).append(gradient)

    def total(self, tensor: Entry) -> Optional[Entry]:
        """Append the sum of a tensor's gradients; None if it has none."""
        gradients = self.gradients.get(edge_of(tensor), [])
        if len(gradients) > 1:
            return self.append("add_n", *gradients, num_args=len(gradients))
        return gradients[0] if gradients else None

    def differentiate(self, i: int, reached: Set[int]) -> None:
        """Append the gradients of an operator's inputs, where the variable reaches them."""
        node = self.forward[i]
        attrs = node["attrs"]
        self.label = {BLOCK_ATTR: attrs[BLOCK_ATTR]} if BLOCK_ATTR in attrs else {}
        outputs = {output for source, output in self.gradients if source == i}
        if not outputs:  # no output of the graph depends on it
            return
        gradient = self.total([i, 0])
        inputs = [list(entry) for entry in node["inputs"]]
        shapes = [self.shapes[edge_of(entry)] for entry in inputs]
        call = Call(self.append, attrs, inputs, [i, 0, 0], shapes, self.shapes[i, 0])
        rule = RULES.get(classic(node["op"]))
        gradients = rule(call, gradient) if rule and gradient and outputs == {0} else []
        for k, entry in enumerate(inputs):
            if entry[0] in reached:
                if k >= len(gradients):
                    raise ValueError(
                        f"input_gradient() has no rule for {node['op']} (node {node['name']}), so "
                        "this net has no gradient penalty: use another layer, or pass the penalty "
                        "the part of the net without it."
                    )
                self.add(entry, gradients[k])


def _shapes(nodes: List[Json], known: Dict[str, Shape]) -> Dict[Edge, Shape]:
    """Return the shapes of the tensors of a graph, by node and output."""
    edges = edges_of({"nodes": nodes, "heads": [[i, 0, 0] for i in range(len(nodes))]})
    everything = from_json({"nodes": nodes, "heads": [[*edge, 0] for edge in edges]})
    _, shapes, _ = everything.infer_shape(**known)
    return dict(zip(edges, shapes))
