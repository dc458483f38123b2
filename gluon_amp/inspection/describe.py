"""Tell, operator by operator, what a net computes in, and why."""

import textwrap
from collections import Counter
from typing import Dict, List, NamedTuple, Optional

from gluon_amp.casting.binding import Cast
from gluon_amp.casting.tracing import roots, traced
from gluon_amp.policy import Policy, graph

import mxnet as mx
from mxnet import autograd

Block = mx.gluon.Block
HybridBlock = mx.gluon.HybridBlock

WIDTH = 80


class Row(NamedTuple):
    """How one operator of a cast net runs. See `describe`."""

    block: str
    node: str
    op: str
    compute_dtype: str
    param_dtypes: Dict[str, str]
    reason: str


class Description:
    """What `describe` returns: `.rows`, a list of `Row`, and a table as its text.

    The table numbers the reasons, and tells each below it once.
    """

    def __init__(self, policy: Policy, rows: List[Row]) -> None:
        self.policy = policy
        self.rows = rows

    def __str__(self) -> str:
        reasons = list(dict.fromkeys(row.reason for row in self.rows if row.reason))
        notes = {reason: f"[{k}]" for k, reason in enumerate(reasons, 1)}
        head = ("block", "op", "computes in", "parameters", "because")
        lines = [
            (row.block, row.op, row.compute_dtype, _counted(row.param_dtypes),
             notes.get(row.reason, ""))
            for row in self.rows
        ]  # fmt: skip
        widths = [max(len(line[k]) for line in [head, *lines]) for k in range(4)]
        table = [
            "  ".join([*(line[k].ljust(widths[k]) for k in range(4)), line[4]]).rstrip()
            for line in [head, tuple("-" * len(title) for title in head), *lines]
        ]
        told = [
            textwrap.fill(f"{note} {reason}", WIDTH, subsequent_indent=" " * (len(note) + 1))
            for reason, note in notes.items()
        ]
        ran = Counter(row.compute_dtype for row in self.rows)
        summary = ", ".join(f"{count} in {dtype}" for dtype, count in ran.most_common())
        return "\n".join([*table, *told, f"{len(self.rows)} operators: {summary}"])


def describe(net: Block, *inputs: mx.nd.NDArray) -> Description:
    """Tell, operator by operator, what a net computes in, and why where it is not what was asked.

    Parameters
    ----------
    net : Block
        A net, cast or not.
    inputs : NDArray
        Inputs as for `net(*inputs)`; not needed once the net has been called.

    Returns
    -------
    Description
        `.rows` has, for each operator in the order of the graph, its block's path, its node's name,
        the operator, the dtype it computes in ('as fed' where only its inputs can tell, 'none'
        where nothing is ever cast), the dtypes of the parameters it reads, and the reason where a
        pin or the table keeps it from the policy's compute dtype. `str()` is a table.

    Raises
    ------
    ValueError
        Called without inputs on a net that has never run.

    Examples
    --------
    >>> import gluon_amp as amp, mxnet as mx
    >>> net = amp.cast(mx.gluon.nn.Dense(2, in_units=8), 'float16')
    >>> net.initialize()
    >>> description = amp.describe(net, mx.nd.ones((1, 8)))
    >>> [(row.op, row.compute_dtype) for row in description.rows]
    [('FullyConnected', 'float16')]
    """
    if inputs:
        with autograd.predict_mode():
            net(*inputs)
    rows, policy = [], Policy()
    for path, block in roots(net):
        if isinstance(block, Cast):
            policy = block._amp.policy
            nodes = block._amp.nodes
        else:
            nodes = _plain_nodes(path, block, inputs if block is net else ())
        if nodes is None:
            raise ValueError(
                f"describe() needs inputs, since {type(block).__name__} {path or 'net'} has never "
                "run: call describe(net, x) with x as for net(x)."
            )
        rows += [_row(node, policy) for node in nodes]
    return Description(policy, rows)


def _plain_nodes(path: str, block: HybridBlock, inputs) -> Optional[list]:
    if not inputs and not block._cached_graph:
        return None
    _, symbol = traced(block, path, lambda: HybridBlock._get_graph(block, *inputs))
    return graph.plan(symbol, Policy(), dict.fromkeys(block.collect_params(), "float32"))[1]


def _counted(dtypes: Dict[str, str]) -> str:
    counts = Counter(dtypes.values())
    return " ".join(f"{count}×{dtype}" for dtype, count in sorted(counts.items()))


def _row(node: graph.Node, policy: Policy) -> Row:
    kind, reason, pinned = node.decision
    dtype = {"uncast": "none", "norm": "float32"}.get(kind, node.dtype or "as fed")
    telling = pinned or (policy.compute_dtype != "float32" and kind in ("float32", "norm"))
    return Row(node.block, node.name, node.op, dtype, node.params, reason if telling else "")
