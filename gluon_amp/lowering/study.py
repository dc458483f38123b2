"""Rounds the operands of products to the formats that are emulated for study, on a CPU.

A product reads its operands through operators that round them. The gradient of its result is
rounded before the backward pass reads it, so that the gradient products multiply rounded numbers
too. If some of the three directions stay in float32, the product is computed twice, rounded and
not, and each direction is that of one of the two.
"""

from typing import List, Optional

from gluon_amp import kernels
from gluon_amp.base import registry
from gluon_amp.base.formats import FORMATS
from gluon_amp.graph import ROUNDING_ATTR, Rounding, Writer
from gluon_amp.lowering.delayed_scaling import Scales
from gluon_amp.lowering.emulation import rounding_attrs
from gluon_amp.policy.study import DIRECTIONS, OPERANDS, has_8_bits

# Operators of gluon_amp's C++ library (kernels/src/study.cc)
ROUND_OPERAND, ROUND_GRADIENT = "_gluon_amp_round_operand", "_gluon_amp_round_gradient"
FIRST_OF_TWO = "_gluon_amp_first_of_two"


def has_roundings(graph: dict) -> bool:
    """Return whether a graph or a body in it has a product in a format for study."""
    return any(
        ROUNDING_ATTR in node["attrs"] or any(map(has_roundings, node.get("subgraphs", ())))
        for node in graph["nodes"]
    )


def round_products(graph: dict, scales: Optional[Scales]) -> dict:
    """Return a float32 graph with its products rounded; it is `graph` itself if there are none.

    Without the scales of its net, each tensor's scale follows the tensor itself.
    """
    if not has_roundings(graph):
        return graph
    if not kernels.available():
        raise ValueError(
            "tfloat32, float8 and policies with gradients=... are emulated by gluon_amp's C++ "
            "kernels, which are not available: install a C++ compiler or gluon_amp's manylinux "
            "wheel, or use policy 'float16'."
        )
    out = _StudiedGraph(scales)
    for node in graph["nodes"]:
        rounding = Rounding.of(node)
        inputs = [out.remap(entry) for entry in node["inputs"]]
        if "subgraphs" in node:
            bodies = [round_products(body, scales) for body in node["subgraphs"]]
            node = {**node, "subgraphs": bodies}
        entry = out.add_product(node, inputs, rounding) if rounding else out.copy(node, inputs)
        out.numbers.append(entry[0])
    return out.graph(graph)


class _StudiedGraph(Writer):
    """The graph with rounded products that is being written."""

    def __init__(self, scales: Optional[Scales]) -> None:
        super().__init__()
        self.scales = scales

    def add_product(self, node: dict, inputs: List[list], rounding: Rounding) -> list:
        """Append a product whose directions are rounded, or some of them; return its entry."""
        attrs = {key: value for key, value in node["attrs"].items() if key != ROUNDING_ATTR}
        node = {**node, "attrs": attrs}
        if not rounding.wide:
            return self._rounded(node, inputs, rounding)
        narrow = tuple(direction for direction in DIRECTIONS if direction not in rounding.wide)
        rounded = self._rounded(
            {**node, "name": f"{node['name']}_rounded"},
            self._differentiable(node, inputs, narrow),
            rounding,
        )
        wide = self.copy(node, self._differentiable(node, inputs, rounding.wide))
        first, second = (wide, rounded) if "forward" in rounding.wide else (rounded, wide)
        return self.emit(FIRST_OF_TWO, f"{node['name']}_directions", first, second)

    def _rounded(self, node: dict, inputs: List[list], rounding: Rounding) -> list:
        """Append the product of rounded operands, with a rounded gradient; return its entry."""
        operands = OPERANDS[registry.canonical(node["op"])]
        inputs = [
            self._round(ROUND_OPERAND, entry, rounding.compute, f"{rounding.key}:{k}")
            if k < operands
            else entry
            for k, entry in enumerate(inputs)
        ]
        result = self.copy(node, inputs)
        return self._round(ROUND_GRADIENT, result, rounding.gradients, f"{rounding.key}:gradient")

    def _round(self, op: str, entry: list, format_name: str, key: str) -> list:
        """Append an operator that rounds to a format; `key` is the tensor's among its net's."""
        if format_name == "float32":
            return entry
        format_ = FORMATS[format_name]
        scaled = has_8_bits(format_name)
        attrs = {**rounding_attrs(format_, saturates=scaled), "scaled": str(scaled)}
        if scaled and self.scales is not None:
            attrs["scale"] = str(self.scales.number(key, format_))
        name = f"{self.nodes[entry[0]]['name']}_{entry[1]}_{len(self.nodes)}_{format_name}"
        return self.emit(op, name, entry, **attrs)

    def _differentiable(self, node: dict, inputs: List[list], directions: tuple) -> List[list]:
        """Return inputs of which only those are differentiated that belong to the directions.

        A bias belongs to the weight.
        """
        kept = []
        for k, entry in enumerate(inputs):
            direction = "weight_gradient" if k else "data_gradient"
            if direction not in directions:
                name = f"{node['name']}_input{k}_without_gradient"
                entry = self.emit("BlockGrad", name, entry)
            kept.append(entry)
        return kept
