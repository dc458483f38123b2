"""Indices, ids and lengths in a low precision, which holds only small whole numbers.

A cast never rounds an operator's indices (`op_table.UNCAST`). What remains is a net whose data are
float16 already, and a net that casts its indices itself, or counts in float16.
"""

from typing import Callable, Dict, Iterator, List, NamedTuple, Optional

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


class Index(NamedTuple):
    """The input of an operator that holds indices."""

    position: int
    name: str
    count: Callable[[Operator], Optional[int]]  # how many different ones; None if it is unknown


def index_findings(operators: List[Operator]) -> Iterator[Finding]:
    """Yield what `check` finds in the indices that a graph's operators read or return."""
    for operator in operators:
        if operator.op in READ:
            index = READ[operator.op]
            dtypes = operator.dtypes[index.position : index.position + 1]
            for dtype in sorted(set().union(*dtypes) & EXACT.keys()):
                yield from _finding(operator, f"reads {index.name}", dtype, index.count(operator))
        if operator.op in RETURNED and operator.output_dtype in EXACT:
            count = RETURNED[operator.op](operator)
            yield from _finding(operator, "returns indices", operator.output_dtype, count)


def _finding(operator: Operator, use: str, dtype: str, count: Optional[int]) -> Iterator[Finding]:
    if count is not None and count - 1 <= EXACT[dtype]:
        return
    bound = "" if count is None else f" up to {count - 1}"
    yield Finding(
        "index",
        operator.block,
        f"{operator.op} {use}{bound} in {dtype}, which is exact only up to {EXACT[dtype]}"
        + (" and infinite above 65504" if dtype == "float16" else ""),
        "keep them in int32 or float32: do not cast them, and give the net data in float32",
    )


# ----------------------------------------------------------------------- number of the indices


def _attribute(name: str) -> Callable[[Operator], Optional[int]]:
    return lambda operator: int(operator.attributes[name])


def _dimension(axis: int) -> Callable[[Operator], Optional[int]]:
    """Return a function for the size of the first input along its `axis`, with this default."""

    def size(operator: Operator) -> Optional[int]:
        shape = operator.shapes[0]
        text = operator.attributes.get("axis", str(axis))
        if not is_known(shape) or text == "None":
            return None
        return shape[int(text)]

    return size


def _largest(operator: Operator) -> Optional[int]:
    shape = operator.shapes[0]
    return max(shape) if is_known(shape) else None


def _stop(operator: Operator) -> Optional[int]:
    limits = [operator.attributes.get(name, "None") for name in ("start", "stop")]
    return int(max(abs(float(limit)) for limit in limits if limit != "None"))


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
RETURNED: Dict[str, Callable[[Operator], Optional[int]]] = {
    "argmax": _dimension(-1),
    "argmin": _dimension(-1),
    "_contrib_arange_like": _largest,
    "_arange": _stop,
    "_npi_arange": _stop,
}
