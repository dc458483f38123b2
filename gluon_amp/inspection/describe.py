"""In which dtype each operator of a net computes, and why."""

from collections import Counter
from itertools import chain
from typing import Dict, Iterable, Iterator, List, NamedTuple, Set, Tuple

from gluon_amp.casting.binding import binding_of
from gluon_amp.casting.parameters import contexts_of, dtype_of
from gluon_amp.casting.tracing import hybrid_blocks, parameters_of_python_code
from gluon_amp.inspection.operators import Graph, graphs, run
from gluon_amp.inspection.values import Preformatted, paragraph
from gluon_amp.lowering.emulation import is_emulated
from gluon_amp.policy import Policy, cast_pass, study
from gluon_amp.policy.cast_pass import Node

import mxnet as mx
from mxnet.gluon import Block

PYTHON = "(Python code)"  # in place of an operator
OUTSIDE = "outside the cast: no HybridBlock has these parameters, and Python code uses them"


class Row(NamedTuple):
    """How one operator of a net runs, or the Python code of a block that has no graph.

    Attributes
    ----------
    block : str
        Path of its block, as in `'features.0'`.
    node : str
        Name of its node; `''` for Python code.
    op : str
        `'(Python code)'` for Python code.
    compute_dtype : str
        'as fed' if it depends on the inputs, 'none' for an operator that is never cast.
    gradient_dtype : str
        What its gradient is computed in. It is another one only under a policy that studies
        formats (`Policy.studies`).
    param_dtypes : dict of str to str
        Dtypes of the parameters that it reads.
    reason : str
        Why a pin or the operator table overrides the policy's compute dtype, or why the block has
        no graph, or `''`.
    """

    block: str
    node: str
    op: str
    compute_dtype: str
    gradient_dtype: str
    param_dtypes: Dict[str, str]
    reason: str


class Description(Preformatted):
    """What `describe` returns; its text is a table.

    The table numbers the reasons, and lists each of them once below.

    Attributes
    ----------
    rows : list of Row
    emulated : set of str
        The dtypes among the rows that are emulated on the net's device.
    studied : set of str
        The dtypes in which products compute that are emulated for study, as in
        'float8_e4m3, gradients float8_e5m2'.
    """

    HEAD = ("block", "op", "computes in", "parameters", "because")

    def __init__(self, rows: List[Row], emulated: Set[str]) -> None:
        self.rows = rows
        self.studied = {_dtypes(row) for row in rows if _is_studied(row)}
        self.emulated = emulated

    def __str__(self) -> str:
        reasons = list(dict.fromkeys(row.reason for row in self.rows if row.reason))
        notes = {reason: f"[{k}]" for k, reason in enumerate(reasons, 1)}
        rule = tuple("-" * len(title) for title in self.HEAD)
        lines = [self.HEAD, rule, *(_cells(row, notes) for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*lines)]
        table = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
        reasons = [paragraph(reason, f"{note} ") for reason, note in notes.items()]
        return "\n".join([*table, *reasons, self._summary()])

    def __repr__(self) -> str:
        return f"Description({self._summary()})"

    def _summary(self) -> str:
        notes = {
            **dict.fromkeys(self.emulated, " (emulated)"),
            **dict.fromkeys(self.studied, " (emulated, for study)"),
        }
        dtypes = Counter(map(_dtypes, self.rows))
        counts = ", ".join(
            f"{count} in {text}{notes.get(text, '')}" for text, count in dtypes.most_common()
        )
        return f"{len(self.rows)} operators: {counts}"


def _cells(row: Row, notes: Dict[str, str]) -> Tuple[str, ...]:
    counts = Counter(row.param_dtypes.values())
    parameters = " ".join(f"{count}×{dtype}" for dtype, count in sorted(counts.items()))
    return row.block, row.op, _dtypes(row), parameters, notes.get(row.reason, "")


def _dtypes(row: Row) -> str:
    return ", gradients ".join(dict.fromkeys([row.compute_dtype, row.gradient_dtype]))


def _is_studied(row: Row) -> bool:
    return row.compute_dtype in study.FORMATS or row.gradient_dtype != row.compute_dtype


def describe(net: Block, *inputs: mx.nd.NDArray) -> Description:
    """Return the dtype that each operator of a net computes in, and the reason for exceptions.

    Parameters
    ----------
    net : Block
        A net, cast or not.
    inputs : NDArray
        Inputs as for `net(*inputs)`; a net that has run before needs none.

    Returns
    -------
    Description
        `.rows` has a `Row` for each operator, in the order of the graph. `str()` is a table, whose
        last line says which dtypes are emulated.

    Raises
    ------
    ValueError
        Called without inputs on a net that has never run.
    RuntimeError
        MXNet cannot run the net on these inputs.

    Examples
    --------
    >>> import gluon_amp as amp, mxnet as mx
    >>> net = amp.cast(mx.gluon.nn.Dense(2, in_units=8), 'float16')
    >>> net.initialize()
    >>> description = amp.describe(net, mx.nd.ones((1, 8)))
    >>> [(row.op, row.compute_dtype) for row in description.rows]
    [('FullyConnected', 'float16')]
    """
    _, arguments = run("describe", net, inputs)
    rows: List[Row] = []
    emulated: Set[str] = set()
    for traced in graphs("describe", net, arguments):
        found = list(_rows(traced))
        rows += found
        if binding_of(traced.block) is not None:
            emulated.update(row.compute_dtype for row in found if not _is_studied(row))
    if any(binding_of(block) for _, block in hybrid_blocks(net)):
        rows += [
            Row(path, "", PYTHON, "as fed", "as fed", _dtypes_by_name(params), OUTSIDE)
            for path, params in parameters_of_python_code(net).items()
        ]
    of_parameters = chain.from_iterable(map(contexts_of, net.collect_params().values()))
    devices = chain((x.context for x in inputs if hasattr(x, "context")), of_parameters)
    device = next(devices, mx.current_context()).device_type
    return Description(rows, {dtype for dtype in emulated if is_emulated(dtype, device)})


def _dtypes_by_name(params: Iterable[mx.gluon.Parameter]) -> Dict[str, str]:
    return {param.name: dtype_of(param) for param in params}


def _rows(traced: Graph) -> Iterator[Row]:
    """Yield a row for each operator of a block; in a block that is not cast, of its real dtypes."""
    binding = binding_of(traced.block)
    if traced.untraceable:
        failed, reason = traced.untraceable
        where = "" if failed == traced.path else f"block {failed!r} inside it "
        dtypes = _dtypes_by_name(traced.block._reg_params.values())
        dtype = "as fed" if binding is None else binding.policy.output_dtype
        why = f"{where}cannot be traced: {reason}"
        yield Row(traced.path, "", PYTHON, dtype, dtype, dtypes, why)
    elif binding is not None:
        yield from (_row(node, binding.policy) for node in traced.nodes)
    else:
        nodes, _, inferred = traced.first_outputs()
        real = {n["name"]: found for n, found in zip(nodes, inferred) if "float" in str(found)}
        low = any("float16" in node.params.values() for node in traced.nodes)
        for node in traced.nodes:
            unknown = next(iter(node.params.values()), None if low else node.dtype)
            own = real.get(node.name, unknown)
            yield _row(node._replace(dtype=own, gradient_dtype=own), Policy())


def _row(node: Node, policy: Policy) -> Row:
    kind, reason, pinned = node.decision.kind, node.decision.reason, node.decision.pinned
    dtype, of_gradient = node.dtype or "as fed", node.gradient_dtype or "as fed"
    if kind == "uncast":
        dtype = of_gradient = "none"
    elif node.op in cast_pass.NATIVELY_MIXED:
        dtype = of_gradient = "float32"  # whatever it reads and returns
    why = reason if pinned or (not policy.is_float32 and kind in ("float32", "norm")) else ""
    return Row(node.block, node.name, node.op, dtype, of_gradient, node.params, why)
