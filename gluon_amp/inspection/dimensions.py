"""Dimensions of float16 products that are no multiples of 8.

Tensor Cores multiply blocks of 8 float16 numbers. Dimensions that are no multiples of 8 are padded
by cuBLAS 11 and cuDNN 7.6.3 and later, and computed without Tensor Cores by earlier ones ("Tensor
Core Requirements" in NVIDIA's Matrix Multiplication Background User's Guide).
"""

from typing import Iterator, List, NamedTuple

from gluon_amp.graph import flag, integer, op_table
from gluon_amp.inspection.findings import Finding
from gluon_amp.inspection.operators import Operator, is_known

MULTIPLE = 8  # of float16 numbers, which are 16 bytes
IMAGE_CHANNELS = 3

# role of a dimension: the fix, with `more` for the next multiple of 8 and `rest` for the difference
FIXES = {
    "image": "pad images and weight with zeros to {more} channels, or leave it, as a first layer "
    "is a small part of a deep net",
    "channels": "make them {more}",
    "units": "give the layer before {more} outputs, or pad the data with zeros",
    "outputs": "make them {more}",
    "head": "make them {more}, and use no label for the {rest} others",
    "batch": "use a batch of {more}",
}


class Dimension(NamedTuple):
    """A size that should be a multiple of 8, what the operator does with it, and its role."""

    size: int
    use: str
    role: str


def dimension_findings(operators: List[Operator]) -> Iterator[Finding]:
    """Yield what `check` finds in the float16 products of a graph."""
    slow = op_table.named("no_tensor_cores")
    products = [operator for operator in operators if operator.op in (*DIMENSIONS, *slow)]
    for product in products:
        block, op = product.block, product.op
        if product.in_float16 and op in slow:
            problem = f"{op} does not run on Tensor Cores, as its kernel is cublasSgemmEx"
            fix = "use FullyConnected for a product with a weight, or leave it where it is small"
            yield Finding("kernel", block, problem, fix)
        of_product = DIMENSIONS[op](product) if product.in_float16 and op in DIMENSIONS else ()
        for size, use, role in of_product:
            rest = -size % MULTIPLE
            if rest:
                role = "head" if role == "outputs" and product is products[-1] else role
                problem = f"{op} {use}, which is not a multiple of {MULTIPLE} for Tensor Cores"
                fix = FIXES[role].format(more=size + rest, rest=rest)
                yield Finding("dimension", block, problem, fix)


# -------------------------------------------------------------------- dimensions of each operator


def _convolution(operator: Operator) -> List[Dimension]:
    """Return the channels that one group reads and gives; the weight is (O, C / groups, ...)."""
    weight, groups = operator.shapes[1], integer(operator.attributes, "num_group", 1)
    if len(weight) < 2:
        return []
    if operator.op == "Deconvolution":  # its weight is (C, O / groups, ...)
        weight = weight[1] * groups, weight[0] // groups
    outputs, inputs = weight[:2]
    if 1 < groups == outputs:  # depthwise
        return []
    each = f" in each of {groups} groups" if groups > 1 else ""
    role = "image" if inputs == IMAGE_CHANNELS and groups == 1 else "channels"
    return [
        Dimension(inputs, f"reads {inputs} channels{each}", role),
        Dimension(outputs // groups, f"gives {outputs // groups} channels{each}", "outputs"),
    ]


def _fully_connected(operator: Operator) -> List[Dimension]:
    """Return rows, inputs and outputs; the weight is (outputs, inputs)."""
    data, weight = operator.shapes[:2]
    dimensions = []
    if is_known(data) and flag(operator.attributes, "flatten", True):
        dimensions.append(Dimension(data[0], f"multiplies {data[0]} rows", "batch"))
    if len(weight) == 2:
        outputs, inputs = weight
        dimensions.append(Dimension(inputs, f"reads {inputs} inputs", "units"))
        dimensions.append(Dimension(outputs, f"gives {outputs} outputs", "outputs"))
    return dimensions


def _rnn(operator: Operator) -> List[Dimension]:
    units, data = integer(operator.attributes, "state_size"), operator.shapes[0]
    dimensions = [Dimension(units, f"has {units} units", "outputs")]
    if len(data) == 3 and is_known(data):
        _, batch, features = data
        dimensions.insert(0, Dimension(features, f"reads {features} inputs", "units"))
        dimensions.insert(0, Dimension(batch, f"multiplies {batch} rows", "batch"))
    return dimensions


# operator: function that returns its dimensions
DIMENSIONS = {
    "Convolution": _convolution,
    "Deconvolution": _convolution,
    "FullyConnected": _fully_connected,
    "RNN": _rnn,
}
