"""Indices, ids and lengths in a low precision, which holds only small whole numbers.

A cast never rounds an operator's indices (`op_table.UNCAST`). What remains is a net whose data are
float16 already, and a net that casts its indices itself, or counts in float16.
"""

from typing import Callable, Dict, Iterator, List, NamedTuple, Optional

from gluon_amp import graph
from gluon_amp.base.formats import FORMATS
from gluon_amp.inspection.findings import Finding
from gluon_amp.inspection.operators import Operator, is_known
from gluon_amp.policy.cast_pass import LOW_PRECISION

# the whole numbers up to this one are exact
EXACT = {
    name: 2 ** (format_.significand_bits + 1)
    for name, format_ in FORMATS.items()
    if name in LOW_PRECISION
}


Count = Callable[[Operator], Optional[int]]  # how many different indices; None if it is unknown


class Index(NamedTuple):
    """The input of an operator that holds indices."""

    position: int
    name: str
    count_of: Count


def index_findings(operators: List[Operator]) -> Iterator[Finding]:
    """Yield what `check` finds in the indices that a graph's operators read or return."""
    for operator in operators:
        if operator.op in READ:
            index = READ[operator.op]
            some = operator.dtypes[index.position : index.position + 1]
            dtypes = {dtype for each in some for dtype in each}
            yield from _findings(operator, f"reads {index.name}", dtypes, index.count_of)
        if operator.op in RETURNED:
            dtypes = {operator.output_dtype or ""}
            yield from _findings(operator, "returns indices", dtypes, RETURNED[operator.op])


def _findings(operator: Operator, use: str, dtypes: set, count_of: Count) -> Iterator[Finding]:
    fix = "keep them in int32 or float32: do not cast them, and give the net data in float32"
    for dtype in sorted(dtypes & EXACT.keys()):
        count = count_of(operator)
        bound = "" if count is None else f" up to {count - 1}"
        infinite = " and infinite above 65504" if dtype == "float16" else ""
        exact = f"which is exact only up to {EXACT[dtype]}{infinite}"
        if count is None or count - 1 > EXACT[dtype]:
            problem = f"{operator.op} {use}{bound} in {dtype}, {exact}"
            yield Finding("index", operator.block, problem, fix)


# ----------------------------------------------------------------------- number of the indices


def _attribute(name: str) -> Count:
    return lambda operator: graph.integer(operator.attributes, name)


def _dimension(axis: int) -> Count:
    """Return a function for the size of the first input along its `axis`, with this default."""

    def size(operator: Operator) -> Optional[int]:
        shape, flat = operator.shapes[0], operator.attributes.get("axis") == "None"
        known = is_known(shape) and not flat
        return shape[graph.integer(operator.attributes, "axis", axis)] if known else None

    return size


def _largest(operator: Operator) -> Optional[int]:
    shape = operator.shapes[0]
    return max(shape) if is_known(shape) else None


def _stop(operator: Operator) -> Optional[int]:
    return int(max(abs(graph.number(operator.attributes, name)) for name in ("start", "stop")))


READ: Dict[str, Index] = {
    "Embedding": Index(0, "ids", _attribute("input_dim")),
    "_contrib_SparseEmbedding": Index(0, "ids", _attribute("input_dim")),
    "one_hot": Index(0, "indices", _attribute("depth")),
    "take": Index(1, "indices", _dimension(0)),
    "pick": Index(1, "indices", _dimension(-1)),
    "batch_take": Index(1, "indices", _dimension(1)),
    "gather_nd": Index(1, "indices", _largest),
    "scatter_nd": Index(1, "indices", lambda operator: None),
    "_scatter_set_nd": Index(2, "indices", _largest),
    "_contrib_index_copy": Index(1, "indices", _dimension(0)),
    "SequenceLast": Index(1, "lengths", _dimension(0)),
    "SequenceMask": Index(1, "lengths", _dimension(0)),
    "SequenceReverse": Index(1, "lengths", _dimension(0)),
    "CTCLoss": Index(1, "labels", _dimension(-1)),
    "SoftmaxOutput": Index(1, "labels", _largest),
    "softmax_cross_entropy": Index(1, "labels", _dimension(-1)),
}

# operators that return whole numbers in the dtype of their input, or in one of their own
RETURNED: Dict[str, Count] = {
    "argmax": _dimension(-1),
    "argmin": _dimension(-1),
    "_contrib_arange_like": _largest,
    "_arange": _stop,
    "_npi_arange": _stop,
}
