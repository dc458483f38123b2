"""Rounds the operands of products to the formats that are emulated for study, on a CPU.

A product reads its operands through operators that round them. The gradient of its result is
rounded before the backward pass reads it, so that the gradient products multiply rounded numbers
too. If some of the three directions stay in float32, the product is computed twice, rounded and
not, and each direction is that of one of the two.
"""

from typing import Container, List, Optional

from gluon_amp import kernels
from gluon_amp.base.formats import FORMATS
from gluon_amp.graph import Entry, Json, Writer, op_table
from gluon_amp.lowering.emulation import rounding_attrs
from gluon_amp.lowering.study.delayed_scaling import Scales
from gluon_amp.policy.study import DIRECTIONS, Rounding, has_8_bits

# Operators of gluon_amp's C++ library (kernels/src/study.cc)
ROUND_OPERAND, ROUND_GRADIENT = "_gluon_amp_round_operand", "_gluon_amp_round_gradient"
FIRST_OF_TWO = "_gluon_amp_first_of_two"


def add_product(
    out: Writer, node: Json, inputs: List[Entry], rounding: Rounding, scales: Optional[Scales]
) -> Entry:
    """Append a product whose directions are rounded, or some of them; return its entry."""
    if not kernels.available():
        raise ValueError(
            "tfloat32, float8 and policies with gradients=... are emulated by gluon_amp's C++ "
            "kernels, which are not available: install a C++ compiler or gluon_amp's manylinux "
            "wheel, or use policy 'float16'."
        )
    if not rounding.wide:
        return _rounded(out, node, inputs, rounding, scales)
    narrow = [direction for direction in DIRECTIONS if direction not in rounding.wide]
    rounded = _rounded(
        out,
        {**node, "name": f"{node['name']}_rounded"},
        _differentiable(out, node, inputs, narrow),
        rounding,
        scales,
    )
    wide = out.copy(node, _differentiable(out, node, inputs, rounding.wide))
    first, second = (wide, rounded) if "forward" in rounding.wide else (rounded, wide)
    return out.emit(FIRST_OF_TWO, f"{node['name']}_directions", first, second)


def _rounded(
    out: Writer, node: Json, inputs: List[Entry], rounding: Rounding, scales: Optional[Scales]
) -> Entry:
    """Append the product of rounded operands, with a rounded gradient; return its entry."""

    def rounded(op: str, entry: Entry, format_name: str, tensor: str) -> Entry:
        if format_name == "float32":
            return entry
        format_, scaled = FORMATS[format_name], has_8_bits(format_name)
        attrs = {**rounding_attrs(format_, saturates=scaled), "scaled": str(scaled)}
        if scaled and scales is not None:
            attrs["scale"] = str(scales.number(f"{rounding.key}:{tensor}", format_))
        name = f"{out.nodes[entry[0]]['name']}_{entry[1]}_{len(out.nodes)}_{format_name}"
        return out.emit(op, name, entry, **attrs)

    operands = op_table.inputs("product", node["op"])
    inputs = [
        rounded(ROUND_OPERAND, entry, rounding.compute, str(k)) if k in operands else entry
        for k, entry in enumerate(inputs)
    ]
    return rounded(ROUND_GRADIENT, out.copy(node, inputs), rounding.gradients, "gradient")


def _differentiable(
    out: Writer, node: Json, inputs: List[Entry], directions: Container[str]
) -> List[Entry]:
    """Return inputs of which only those are differentiated that belong to the directions.

    A bias belongs to the weight.
    """
    return [
        entry
        if ("weight_gradient" if k else "data_gradient") in directions
        else out.emit("BlockGrad", f"{node['name']}_input{k}_without_gradient", entry)
        for k, entry in enumerate(inputs)
    ]
