"""The proof: an ONNX model is run and compared with the net before anything is written."""

from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from gluon_amp.base.messages import UsageError
from gluon_amp.handover.network import Network
from gluon_amp.handover.rounding import (
    distance,
    effect_of_rounding,
    largest,
    like,
    mean_distance,
    refuse_without_numbers,
)
from gluon_amp.handover.to_onnx.model import Session, encode, output_names
from gluon_amp.handover.to_onnx.parts import Part, compared, levels_of, results_of
from gluon_amp.handover.to_onnx.translate import Translated, batch_of, with_batch

BATCHES_MORE = 3  # samples more than given, in the largest batch that is tried
FLOAT32, CAST = "float32 net", "cast net"  # what a row compares with
WEAK = 0.1  # of an output: what rounding explains there may be a mistake, too
AT_ONCE = 64  # edges that are compared in one run, where a difference is searched

About = Tuple[Optional[int], str]  # the first two fields of a `Row`


class Row(NamedTuple):
    """One output of one run, compared with a net; all numbers but `agreement` are relative.

    `largest` and `mean` are the differences, and `allowed` what rounding explains, each divided by
    the output's largest value. `agreement` is the share of rows with the same largest place.
    """

    batch: Optional[int]
    inputs: str  # 'given' or 'random'
    output: str
    against: str
    largest: float
    mean: float
    allowed: Optional[float]
    agreement: Optional[float]


def compare(
    model: bytes,
    translated: Translated,
    network: Network,
    float32: Network,
    others: Sequence[Tuple[str, List[np.ndarray]]],
    batch_axes: Dict[str, Optional[int]],
    dtype: str,
) -> List[Row]:
    """Return how a model's outputs differ from those of `network`, which it has to equal.

    `float32` is the net of the masters, which the rows also show if it is another one. `others` are
    outputs of further nets for the given inputs.
    """
    session, rows = Session(model), []
    for about, inputs in _trials(network, batch_axes):
        found, kind = session.run(inputs), about[1]
        allowed = effect_of_rounding(network, inputs, dtype=dtype)
        against, expected = CAST if network.cast else FLOAT32, network.run(inputs)
        if kind == "given":
            refuse_without_numbers(expected, "export_onnx")
        own = [*_rows(about, against, found, expected, allowed)]
        proves_little = any(_is_wrong(row) or (row.allowed or 0) > WEAK for row in own)
        decided = max(levels_of(network)) > 0 and proves_little
        if decided:
            parts = compared(network, translated, inputs, dtype)
            own = [_row_of(part, about, against) for part in parts]
        rows += own
        if network.cast:
            _refuse_overflows(network, float32, inputs, dtype)
            bounds = None if decided else effect_of_rounding(float32, inputs, dtype=dtype)
            rows += _rows(about, FLOAT32, found, float32.run(inputs), bounds)
        for other, outputs in others if kind == "given" else ():
            rows += _rows(about, other, found, outputs)
    return rows


def _is_wrong(row: Row) -> bool:
    return row.allowed is not None and not row.largest <= row.allowed


def _row_of(part: Part, about: About, against: str) -> Row:
    """Return the row of the result of a part that is nearest to what is allowed, or beyond it."""
    rows = _rows(about, against, part.found, part.expected, part.allowed)
    worst = max(rows, key=lambda row: row.largest / max(row.allowed or 0, 1e-30))
    return worst._replace(output=f"part {part.number}", agreement=None)


def _trials(
    network: Network, batch_axes: Dict[str, Optional[int]]
) -> Iterator[Tuple[About, Dict[str, np.ndarray]]]:
    """Yield the given inputs, then random ones, of several batch sizes where these may vary."""
    inputs, indices = network.inputs, network.indices()
    batch = batch_of(network, batch_axes)
    yield (batch.size if batch.input else None, "given"), inputs
    random = np.random.RandomState(0)
    for size in (1, batch.size + BATCHES_MORE) if batch.input else (None,):
        sized = inputs if size is None else with_batch(inputs, batch_axes, size)
        yield (size, "random"), {n: like(v, indices.get(n), random) for n, v in sized.items()}


def _rows(
    about: About,
    against: str,
    found: List[np.ndarray],
    expected: List[np.ndarray],
    allowed: Optional[List[float]] = None,
) -> Iterator[Row]:
    for k, (name, x, y) in enumerate(zip(output_names(len(found)), found, expected)):
        scale = largest(y) or 1.0
        agreement = None
        if y.ndim == 2 and y.shape[1] > 1 and x.shape == y.shape:
            agreement = float((x.argmax(1) == y.argmax(1)).mean())
        bound = allowed[k] / scale if allowed else None
        far, mean = distance(x, y), mean_distance(x, y) if x.shape == y.shape else np.inf
        yield Row(*about, name, against, far / scale, mean / scale, bound, agreement)


def _refuse_overflows(
    cast: Network, float32: Network, inputs: Dict[str, np.ndarray], dtype: str
) -> None:
    """Raise `UsageError` if the net itself is another one in the policy's dtype.

    What decisions make of small differences does not count.
    """
    edges = results_of(float32, levels_of(float32), 0)
    numbers = {node["name"]: i for i, node in enumerate(cast.nodes)}
    named = [(float32.nodes[i]["name"], k) for i, k in edges]
    values = cast.run(inputs, [(numbers[name], k) for name, k in named])
    bounds = effect_of_rounding(float32, inputs, edges, dtype)
    for x, y, bound in zip(values, float32.run(inputs, edges), bounds):
        if not distance(x, y) <= bound:
            raise UsageError(
                f"export_onnx(): in float16 the net itself is {distance(x, y):.2g} away from "
                f"float32, where rounding explains {bound:.2g}: pass a policy with the pins that "
                "amp.suggest_policy finds; nothing was written."
            )


def refuse_differences(
    rows: List[Row], network: Network, translated: Translated, dtype: str
) -> None:
    """Raise `UsageError` if a row differs by more than rounding; name the first such block."""
    wrong = [row for row in rows if _is_wrong(row)]
    if not wrong:
        return
    row = max(wrong, key=lambda row: row.largest)
    of_batch = "" if row.batch is None else f"a batch of {row.batch} with "
    raise UsageError(
        f"export_onnx(): {row.output} of the ONNX file differs from the net by {row.largest:.2g} "
        f"of its largest value for {of_batch}{row.inputs} inputs, where rounding "
        f"explains {row.allowed:.2g}{_first(network, translated, dtype)}: nothing was written."
    )


def _first(network: Network, translated: Translated, dtype: str) -> str:
    """Return the first operator whose result differs, for the given inputs, as a clause."""
    edges = sorted(edge for edge, tensor in translated.tensors.items() if tensor.is_computed)
    edges = [edge for edge in edges if network.nodes[edge[0]]["inputs"]]
    for begin in range(0, len(edges), AT_ONCE):
        some = edges[begin : begin + AT_ONCE]
        allowed = effect_of_rounding(network, network.inputs, some, dtype, draws=1)
        found = Session(encode(translated, some, {})).run(network.inputs)
        for (i, _), x, y, bound in zip(some, found, network.run(network.inputs, some), allowed):
            if not distance(x, y) <= 2 * bound:
                name = network.nodes[i]["name"]
                return f"; the first to differ is {network.place_of(i)} ({name})"
    return ", though each operator by itself agrees"
