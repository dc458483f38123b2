"""How one operator runs, and the pins of a policy that decide it."""

import re
from dataclasses import dataclass
from typing import Any, Dict, Iterable, Optional, Sequence, Tuple

from gluon_amp.base import registry
from gluon_amp.base.messages import did_you_mean
from gluon_amp.graph import op_table


@dataclass(frozen=True)
class Decision:
    """How one node of a graph runs under a policy: see `Policy.decide`."""

    kind: str
    reason: str
    pinned: bool = False


@dataclass(frozen=True)
class Pin:
    """Operators and blocks that run in `dtype` instead of what `op_table` says."""

    ops: Tuple[str, ...]
    blocks: Tuple[str, ...]
    dtype: str

    def __str__(self) -> str:
        named: Dict[str, Any] = {**vars(self), "ops": list(self.ops), "blocks": list(self.blocks)}
        dtype = named.pop("dtype")
        named["dtype"] = None if dtype == "float32" else dtype  # the default
        return f"pin({', '.join(f'{name}={value!r}' for name, value in named.items() if value)})"

    def check(self, earlier: Iterable["Pin"], compute_dtype: str, *others: str) -> None:
        """Raise `ValueError` for what cannot be pinned, or contradicts an earlier pin.

        The dtype can be float32, the policy's compute dtype, or one of the others.
        """
        if self.dtype not in ("float32", compute_dtype, *others):
            raise ValueError(
                f"pin(dtype={self.dtype!r}): expected 'float32' or the policy's compute dtype "
                f"{compute_dtype!r}."
            )
        for op in self.ops:
            check_known(op, "pin() got the unknown")
        for pattern in self.blocks:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(
                    f"pin() got the block pattern {pattern!r}, which is not a regular "
                    f"expression: {error}."
                ) from None
        for pin in earlier:
            twice = {*self.ops} & {*pin.ops} | {*self.blocks} & {*pin.blocks}
            if twice and pin.dtype != self.dtype:
                raise ValueError(
                    f"pin() contradicts an earlier pin: {', '.join(map(repr, sorted(twice)))} "
                    f"was pinned to {pin.dtype}, now to {self.dtype}; keep one of them."
                )


def pinned_dtype(pins: Sequence[Pin], op: str, block: Optional[str], node: str) -> Optional[str]:
    """Return what pins say of a node, those of blocks before those of operators; None if nothing.

    Two block patterns that pin the node to different dtypes are a `ValueError`.
    """
    patterns: Dict[str, str] = {}  # dtype -> first pattern that matches
    for pin in pins:
        for pattern in pin.blocks:
            if matches(pattern, block, node):
                patterns.setdefault(pin.dtype, pattern)
    if len(patterns) > 1:
        pairs = " and ".join(f"{pattern!r} to {dtype}" for dtype, pattern in patterns.items())
        raise ValueError(
            f"Contradictory pins: block {block or node!r} matches {pairs}; "
            "narrow one of the two patterns."
        )
    name = registry.canonical(op)
    by_op = (pin.dtype for pin in pins if name in map(registry.canonical, pin.ops))
    return next(iter(patterns), None) or next(by_op, None)


def matches(pattern: str, block: Optional[str], node: str) -> bool:
    """Return whether a pattern finds a block's path, or matches the whole name of a block.

    The name of a node begins with those of the blocks around it, as in net0_dense2_fwd. In the name
    of a node without a path, the pattern is searched.
    """
    if block is None:
        return any(re.search(pattern, text) for text in ("", node))
    names = (node[:k] for end in re.finditer("_|$", node) for k in end.span())
    return bool(re.search(pattern, block)) or any(re.fullmatch(pattern, name) for name in names)


def check_known(op: str, problem: str) -> None:
    """Raise `ValueError` for an operator that MXNet does not have; the message names near ones."""
    if not op_table.is_known(op):
        near = did_you_mean(op, op_table.names())
        raise ValueError(f"{problem} operator {op!r}{near}: expected a name from an MXNet graph.")
