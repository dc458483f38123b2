"""Policies that study formats: what `compute=float8_e4m3`, `gradients=` and `accumulate=` change.

MXNet 1.9.1 has no kernels of float8, and none that a policy could choose of TF32, in which cuDNN
multiplies float32 on GPUs of compute capability 8.0 and later. What these formats do to a training
is computed on a CPU: the operands of each matrix product are rounded to a format, and so is the
gradient of its result, which the products of the backward pass read. Products, sums and all other
tensors are float32, as in NVIDIA's Transformer Engine with float32 activations. A tensor in 8 bits
has a power of two as its scale: by delayed scaling (`lowering/study/delayed_scaling.py`) if an
`amp.Trainer` makes the steps, and from its own magnitude otherwise. In these formats the first and
the last product of a net stay in float32 unless they are pinned. A float16 product whose sums are
float16, too, shows the effect of a kernel without float32 accumulation.

A policy's `Study` decides about these products instead of the policy, and marks them in the cast
graph. `lowering/study/` reads the marks.
"""

import json
from dataclasses import dataclass
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Set, Tuple

from gluon_amp.base.formats import FORMATS as ALL_FORMATS
from gluon_amp.base.messages import did_you_mean
from gluon_amp.graph import BLOCK_ATTR, STUDY_ATTR, op_table, readers_of
from gluon_amp.policy.decision import Decision, Pin, pinned_dtype

FORMATS = ("tfloat32", "float8_e4m3", "float8_e5m2")

# The three products of a layer: its result, the gradient of its data, that of its weight.
DIRECTIONS = ("forward", "data_gradient", "weight_gradient")

# The ends of a net
ENDS = ("first", "last")

# The mark of a product that accumulates in float16; the others are those of `Rounding`
FLOAT16_SUMS = "float16_sums"

EXAMPLES = ("Convolution", "FullyConnected", "dot")

# The input and the output have few values to average an error over. Wang et al. 2018
# (arXiv:1812.08011), who trained with 8 bits first, and Sun et al. 2019 ("Hybrid 8-bit Floating
# Point (HFP8) Training", NeurIPS) keep these layers in 16 bits.
END_REASON = "the {} product of the net, which 8-bit training keeps wide (arXiv:1812.08011)"


def has_8_bits(*formats: str) -> bool:
    """Return whether one of these formats has 8 bits, and so a scale for each tensor."""
    return any(ALL_FORMATS[name].bits <= 8 for name in formats)


class Rounding(NamedTuple):
    """How a product is rounded; as text, its mark in the cast graph."""

    key: str  # the product's name among those of its net, the same in all traces
    compute: str  # the format of the operands
    gradients: str  # and of the gradient of the result
    wide: Tuple[str, ...]  # the directions in which it stays in float32


@dataclass(frozen=True)
class DirectedPin(Pin):
    """A pin of the product that computes one of `DIRECTIONS`."""

    direction: str


@dataclass(frozen=True)
class RoundedDecision(Decision):
    """About a product, whose `wide` directions stay in float32."""

    wide: Tuple[str, ...] = ()


class Study(NamedTuple):
    """What a policy asks for beyond an everyday one; nothing, in most policies."""

    compute_dtype: str
    gradient_dtype: str
    accumulate_dtype: str
    pins: Tuple[Pin, ...]

    @property
    def rounds(self) -> bool:
        """Whether the operands or gradients of products are rounded: see `Policy.studies`."""
        return self.compute_dtype in FORMATS or self.gradient_dtype != self.compute_dtype

    @property
    def keeps_ends_wide(self) -> bool:
        """Whether the first and the last product of a net stay in float32 unless pinned."""
        return self.rounds and has_8_bits(self.compute_dtype, self.gradient_dtype)

    def check(self, param_dtype: str, output_dtype: str) -> None:
        """Raise `ValueError` for dtypes that cannot be emulated together."""
        stored = (param_dtype, output_dtype, self.accumulate_dtype)
        if self.rounds and stored != ("float32",) * 3:
            raise ValueError(
                f"Policy computes in {self.compute_dtype} with gradients in {self.gradient_dtype}, "
                "which is emulated for study in float32: leave out params, output and accumulate."
            )
        if self.rounds and not {self.compute_dtype, self.gradient_dtype} <= ALL_FORMATS.keys():
            raise ValueError(
                f"Policy computes in {self.compute_dtype} with gradients in {self.gradient_dtype}, "
                "but fused_float32 is no format to round to: use float32 in its place."
            )
        if self.accumulate_dtype == "float16" and self.compute_dtype != "float16":
            raise ValueError(
                f"Policy accumulates in float16 but computes in {self.compute_dtype}: "
                "use compute=float16, or accumulate=float32."
            )

    def pin(self, pin: Pin, direction: Optional[str]) -> Pin:
        """Return a new pin for one direction, or None for all of them; check it as `Policy.pin`."""
        formats = [self.compute_dtype]
        if direction is not None:
            self._check_direction(direction)
            pin = DirectedPin(pin.ops, pin.blocks, pin.dtype, direction)
            formats += [self.gradient_dtype] * (direction != "forward")
        pin.check(self._pins(direction), *formats)
        for op in pin.ops:
            if pin.dtype != "float32" and not op_table.has("product", op):
                raise ValueError(
                    f"pin(ops=[{op!r}], dtype={pin.dtype!r}): the formats for study are those of "
                    f"matrix products, such as {', '.join(EXAMPLES)}; leave out {op!r}."
                )
        return pin

    def _check_direction(self, direction: str) -> None:
        if direction not in DIRECTIONS:
            raise ValueError(
                f"pin(direction={direction!r}){did_you_mean(str(direction), DIRECTIONS)}: expected "
                f"one of {', '.join(DIRECTIONS)}."
            )
        if not self.rounds:
            raise ValueError(
                f"pin(direction={direction!r}) is for policies that study formats, such as "
                "'compute=float8_e4m3,gradients=float8_e5m2': MXNet's kernels compute the gradients"
                f" in {self.compute_dtype} if they compute the result in it; leave out the "
                "direction."
            )

    def _pins(self, direction: Optional[str]) -> List[Pin]:
        return [pin for pin in self.pins if getattr(pin, "direction", None) == direction]

    def decide(
        self, rule: op_table.OpRule, op: str, block: Optional[str], node: str, end: str = ""
    ) -> Decision:
        """Return how a node runs where products alone are rounded.

        `end` is one of `ENDS` for the first or the last product of a net.
        """
        if not op_table.has("product", op):
            if rule.kind != "compute":
                return Decision(rule.kind, rule.reason)
            return Decision("float32", "its products are inside one operator and cannot be rounded")
        of_all = pinned_dtype(self._pins(None), op, block, node)
        pins = {d: pinned_dtype(self._pins(d), op, block, node) or of_all for d in DIRECTIONS}
        default = "float32" if end or rule.kind != "compute" else None
        wide = tuple(d for d, dtype in pins.items() if (dtype or default) == "float32")
        is_wide = len(wide) == len(DIRECTIONS)
        pinned = any(pins.values())
        reason = END_REASON.format(end) if end else rule.reason
        if pinned:
            where = f" in {' and '.join(wide)}" if wide and not is_wide else ""
            dtype = "float32" if wide else self.compute_dtype
            reason = f"pinned to {dtype}{where} by the policy's own pin"
        if is_wide:
            return Decision("float32", reason, pinned or bool(end))
        return RoundedDecision("compute", reason, pinned or bool(end), wide)

    def widen_ends(
        self, graph: Dict[str, Any], decisions: Dict[int, Decision], ends: Iterable[str]
    ) -> None:
        """Decide again about those products of a graph that are at the ends of a net."""
        for end in ends if self.keeps_ends_wide else ():
            for i in _products_at(graph, decisions, end):
                op, attrs, name = (graph["nodes"][i][key] for key in ("op", "attrs", "name"))
                rule = op_table.rule(op, attrs)
                decisions[i] = self.decide(rule, op, attrs.get(BLOCK_ATTR), name, end)

    def mark(
        self, node: Dict[str, Any], block: str, decision: Decision, counts: Dict[str, int]
    ) -> Optional[Tuple[str, str]]:
        """Mark a product of the cast graph for the lowering.

        Return the formats of its operands and of its gradients if it is rounded. `counts` are those
        of the rounded products of the net so far, by block and operator.
        """
        if isinstance(decision, RoundedDecision):
            place = f"{block}:{node['op']}"
            counts[place] += 1
            formats = self.compute_dtype, self.gradient_dtype
            rounding = Rounding(f"{place}:{counts[place]}", *formats, decision.wide)
            node["attrs"][STUDY_ATTR] = json.dumps(rounding)
            return formats
        if self.accumulate_dtype == "float16" and decision.kind == "compute":
            node["attrs"][STUDY_ATTR] = FLOAT16_SUMS
        return None


def _products_at(graph: Dict[str, Any], decisions: Dict[int, Decision], end: str) -> List[int]:
    """Return the products that no other one precedes, or that none follows."""
    nodes, readers = graph["nodes"], readers_of(graph)
    order = range(len(nodes))
    found: List[int] = []
    beyond: Set[Optional[int]] = set()  # nodes behind a product, seen from the end
    for i in order if end == "first" else reversed(order):
        is_product = i in decisions and decisions[i].kind == "compute"
        if is_product and i not in beyond:
            found.append(i)
        if i in beyond or is_product or "subgraphs" in nodes[i]:
            before, after = nodes[i]["inputs"], readers.get(i, ())
            beyond.update(one[0] for one in (after if end == "first" else before))
    return found
