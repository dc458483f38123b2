"""What runs in which dtype, as data: `Policy`, the presets, and the rule for every operator.

A policy refers to dtypes, operators and their attributes, not to graphs, networks or devices. The
operators' kinds and reasons are in `graph/op_table.py`, their constants in `constants.py`, and the
bfloat16 kernels in `bfloat16_kernels.py`. What the policies decide that study formats is in
`study.py`.
"""

import contextlib
from dataclasses import dataclass, replace
from typing import Any, Dict, Iterable, Mapping, Optional, Tuple, Union

import numpy as np

from gluon_amp.base.dtypes import dtype_name
from gluon_amp.base.messages import did_you_mean
from gluon_amp.graph import op_table
from gluon_amp.policy import bfloat16_kernels, constants
from gluon_amp.policy.decision import Decision, Pin, check_known, matches, pinned_dtype
from gluon_amp.policy.study import FORMATS, Study

# What computes in float32, but as low precision does on a CPU: by the operators of our own
FUSED = "fused_float32"

DTYPES = ("float32", "float16", "bfloat16", FUSED)

Dtype = Union[str, type, "np.dtype[Any]"]

# The names are Keras's, except `float16`: the recipe of MXNet's FAQ (float16 weights, float32
# masters in the optimizer), which Keras does not have.
PRESETS = {
    "float32": ("float32", "float32", "float32"),
    "float16": ("float16", "float16", "float32"),
    "mixed_float16": ("float32", "float16", "float32"),
    "bfloat16": ("float32", "bfloat16", "float32"),
    "mixed_bfloat16": ("float32", "bfloat16", "float32"),
    FUSED: ("float32", FUSED, "float32"),
}

# `Policy.parse` keys and the field each one sets
STRING_KEYS = {
    "params": "param_dtype",
    "compute": "compute_dtype",
    "output": "output_dtype",
    "accumulate": "accumulate_dtype",
    "gradients": "gradient_dtype",
}

# What else the presets are called, for the near match in an error
ELSEWHERE = {
    "fp32": "float32",
    "single": "float32",
    "fp16": "float16",
    "half": "float16",
    "bf16": "bfloat16",
    "tf32": "params=float32,compute=tfloat32",
    "fp8": "params=float32,compute=float8_e4m3,gradients=float8_e5m2",
    "float8": "params=float32,compute=float8_e4m3,gradients=float8_e5m2",
}


@dataclass(frozen=True, init=False)
class Policy:
    """The dtypes of a network's parameters, matrix products and outputs.

    ``Policy('float16')`` is the preset of this name: without `compute_dtype`, the first argument is
    what `parse` takes. A dtype is a name, or a type such as ``numpy.float16``.

    Parameters
    ----------
    param_dtype : {'float32', 'float16'}
        Storage of the parameters that only matrix products read (weights and biases of
        convolutions, dense and recurrent layers). All other parameters stay float32. Float16
        parameters need float32 masters in the optimizer (`amp.Trainer` keeps them).
    compute_dtype : {'float32', 'float16', 'bfloat16', 'fused_float32', 'tfloat32', 'float8_e4m3', \
'float8_e5m2'}
        What convolutions and matrix products compute in. They accumulate in float32. With
        'fused_float32', everything computes in float32, by the fused operators that low precision
        has on a CPU. The last three are formats for study, which are emulated on a CPU: see
        `studies`.
    output_dtype : {'float32', 'float16'}
        What the network returns. With float32, loss and metric are computed in float32.
    pins : tuple of Pin
        Added by `pin`; empty in the presets.
    accumulate_dtype : {'float32', 'float16'}
        What convolutions and matrix products accumulate in on a CPU, where float16 is emulated.
        'float16' shows the effect of a kernel without float32 accumulation
        (`amp.accumulation_dtype`). On a GPU the kernel decides, not the policy.
    gradient_dtype : str, optional
        A format that the gradients of the products' results are rounded to; by default the compute
        dtype. With another one the policy `studies`.

    Attributes
    ----------
    studies : bool
        Whether the policy's formats are emulated for study. The operands of matrix products are
        then rounded to `compute_dtype`, the gradients of their results to `gradient_dtype`, and all
        tensors, sums and results are float32: see `gluon_amp.policy.study`.

    Raises
    ------
    ValueError
        An unknown dtype, or a combination that MXNet cannot run.

    Examples
    --------
    >>> import gluon_amp as amp
    >>> policy = amp.Policy('float16').pin(ops=['tanh'])
    >>> policy
    Policy('float16').pin(ops=['tanh'])
    >>> policy.why('tanh')
    "pinned to float32 by the policy's own pin"
    """

    param_dtype: str
    compute_dtype: str
    output_dtype: str
    pins: Tuple[Pin, ...]
    accumulate_dtype: str
    gradient_dtype: str

    def __init__(
        self,
        param_dtype: Dtype = "float32",
        compute_dtype: Optional[Dtype] = None,
        output_dtype: Optional[Dtype] = None,
        pins: Tuple[Pin, ...] = (),
        accumulate_dtype: Optional[Dtype] = None,
        gradient_dtype: Optional[Dtype] = None,
    ) -> None:
        if compute_dtype is None:
            fields = _parsed(param_dtype)
        else:
            fields = {"param_dtype": param_dtype, "compute_dtype": compute_dtype}
        others = {
            "output_dtype": output_dtype,
            "accumulate_dtype": accumulate_dtype,
            "gradient_dtype": gradient_dtype,
        }
        fields.update((field, dtype) for field, dtype in others.items() if dtype is not None)
        fields.setdefault("gradient_dtype", fields["compute_dtype"])
        for field in STRING_KEYS.values():
            object.__setattr__(self, field, _name(fields.get(field, "float32")))
        object.__setattr__(self, "pins", pins)
        self._check()

    def __repr__(self) -> str:
        return ".".join([f"Policy({self.name!r})", *map(str, self.pins)])

    @property
    def name(self) -> str:
        """A preset's name, or a string such as 'params=float32,compute=tfloat32'; without pins."""
        dtypes = {key: getattr(self, field) for key, field in STRING_KEYS.items()}
        for name in PRESETS:
            if Policy(name) == replace(self, pins=()):
                return name
        # What `_parsed` and `__init__` fill in where a key is missing
        defaults = {**dict.fromkeys(STRING_KEYS, "float32"), "gradients": self.compute_dtype}
        return ",".join(f"{k}={dtype}" for k, dtype in dtypes.items() if dtype != defaults[k])

    @property
    def studies(self) -> bool:
        """Whether the policy's formats are emulated for study; see the class."""
        return self.study.rounds

    @property
    def study(self) -> Study:
        """What decides about products, instead of the policy, if the policy `studies`."""
        return Study(self.compute_dtype, self.gradient_dtype, self.accumulate_dtype, self.pins)

    @property
    def product_dtype(self) -> str:
        """The dtype of the tensors that products read: float32 where the format is none of MXNet's.

        An operand in a format for study is a float32 tensor of its values.
        """
        return "float32" if self.studies or self.compute_dtype == FUSED else self.compute_dtype

    @property
    def needs_loss_scale(self) -> bool:
        """Whether gradients are float16, which small ones underflow and large ones overflow."""
        return self.gradient_dtype == "float16"

    @property
    def is_float32(self) -> bool:
        """Whether everything runs in float32."""
        return self.compute_dtype == "float32" and not self.studies

    def _check(self) -> None:
        """Raise `ValueError` for dtypes that MXNet cannot run together."""
        allowed = {
            "param_dtype": ("float32", "float16"),
            "compute_dtype": (*DTYPES, *FORMATS),
            "output_dtype": ("float32", "float16"),
            "accumulate_dtype": ("float32", "float16"),
            "gradient_dtype": (*DTYPES, *FORMATS),
        }
        for field, choices in allowed.items():
            value = getattr(self, field)
            if value not in choices:
                hint = near_preset(value, choices) if isinstance(value, str) else ""
                if value == "bfloat16":
                    hint = (
                        " (MXNet 1.9.1 updates no bfloat16 parameters and exchanges no bfloat16"
                        " arrays; only compute can be bfloat16)"
                    )
                raise ValueError(
                    f"Policy {field} is {value!r}, expected one of {', '.join(choices)}{hint}."
                )
        if not self.studies:
            self._check_everyday()
        self.study.check(self.param_dtype, self.output_dtype)

    def _check_everyday(self) -> None:
        if self.param_dtype == "float16" and self.compute_dtype != "float16":
            raise ValueError(
                f"Policy has float16 parameters but computes in {self.compute_dtype}: "
                "use params=float32, or compute=float16."
            )
        if self.output_dtype not in ("float32", self.compute_dtype):
            raise ValueError(
                f"Policy output_dtype {self.output_dtype} is neither float32 nor the compute "
                f"dtype {self.compute_dtype}: use output=float32."
            )

    @classmethod
    def parse(cls, policy: Union[Dtype, "Policy"]) -> "Policy":
        """Return the policy for a preset's name or a string like `'params=...,compute=...'`.

        A `Policy` is returned unchanged. Keys missing from the string default to float32. A type
        such as ``numpy.float16`` is the preset of its name.

        Raises
        ------
        ValueError
            An unknown preset, key or dtype; the message lists near matches.
        TypeError
            Neither a string, a floating-point type nor a `Policy`.
        """
        return policy if isinstance(policy, Policy) else cls(policy)

    def pin(
        self,
        ops: Iterable[str] = (),
        blocks: Iterable[str] = (),
        dtype: str = "float32",
        direction: Optional[str] = None,
    ) -> "Policy":
        """Return a policy that also runs these operators and blocks in `dtype`.

        Parameters
        ----------
        ops : list of str
            Operator names as in a symbol's graph (`'softmax'`, `'dot'`, `'elemwise_add'`).
        blocks : list of str
            Regular expressions, searched in the block's path (`'features.0'`), or in the names of a
            symbol's nodes. A block's name counts only if the whole name matches (`'dense2'`), since
            Gluon numbers names in the order in which layers are made. All nodes inside a matching
            block are pinned. A pin of a node's block overrides a pin of its operator.
        dtype : str
            `'float32'` or the policy's compute dtype.
        direction : {'forward', 'data_gradient', 'weight_gradient'}, optional
            Pin only the product that computes this: the result, the gradient of the first operand,
            or that of the second one. For policies that study formats (`studies`). In the two
            gradients, the policy's gradient dtype also stands for its formats. A pin of one
            direction overrides a pin of all of them.

        Raises
        ------
        ValueError
            An unknown operator (the message lists near matches), an invalid regular expression,
            another dtype or direction, or a pin that contradicts an earlier one.

        Examples
        --------
        >>> import gluon_amp as amp
        >>> policy = amp.Policy('params=float32,compute=float8_e4m3,gradients=float8_e5m2')
        >>> policy.pin(blocks=['head'], direction='weight_gradient')
        Policy('compute=float8_e4m3,gradients=float8_e5m2').pin(blocks=['head'], \
direction='weight_gradient')
        """
        for name, value in (("ops", ops), ("blocks", blocks)):
            if isinstance(value, str):
                raise ValueError(f"pin({name}=...) got the string {value!r}: give a list of them.")
        pin = Pin(tuple(ops), tuple(blocks), dtype)
        if not pin.ops and not pin.blocks:
            raise ValueError("pin() got neither ops nor blocks: name at least one of them.")
        if self.studies or direction is not None:
            pin = self.study.pin(pin, direction)
        else:
            pin.check(self.pins, self.compute_dtype)
        return replace(self, pins=(*self.pins, pin))

    def decide(
        self,
        op: str,
        block: Optional[str] = None,
        node: str = "",
        attrs: Optional[Mapping[str, str]] = None,
    ) -> Decision:
        """Return how a node of operator `op` runs; `block` is the path of its block, if it has one.

        A node runs in float32 if its attributes, as in a symbol's JSON, have a constant that
        float16 cannot hold, or if MXNet has no bfloat16 kernel for them. A pin overrides that. Two
        block patterns that pin the node to different dtypes are a `ValueError`.
        """
        rule = op_table.rule(op, attrs)
        if self.studies:
            return self.study.decide(rule, op, block, node)
        if self.is_float32:
            return Decision("float32" if rule.kind != "uncast" else "uncast", "float32 policy")
        pinned = pinned_dtype(self.pins, op, block, node)
        if pinned and rule.kind != "uncast":
            kind = "float32" if pinned == "float32" else "compute"
            if kind == "compute" and rule.kind == "norm":
                kind = "norm"  # a norm's parameters stay float32: no kernel reads float16 ones
            return Decision(kind, f"pinned to {pinned} by the policy's own pin", True)
        reason = ""
        if rule.kind not in ("float32", "uncast"):
            reason = self._float32_reason(op, attrs)
        return Decision("float32", reason) if reason else Decision(rule.kind, rule.reason)

    def _float32_reason(self, op: str, attrs: Optional[Mapping[str, str]]) -> str:
        """Return why a node of a low-precision operator runs in float32, or '' if it does not."""
        if self.compute_dtype == FUSED:
            return ""
        if self.compute_dtype == "bfloat16":
            if not bfloat16_kernels.has_kernel(op, attrs):
                return "MXNet 1.9.1 has no fast and correct bfloat16 kernel for it"
            return ""
        constant = constants.unfit(op, attrs or {})
        return f"its constant {constant} does not fit float16" if constant else ""

    def why(self, op: str) -> str:
        """Return the one-line reason for the dtype that operator `op` runs in.

        Raises
        ------
        ValueError
            An unknown operator; the message lists near matches.
        """
        check_known(op, "Unknown")
        return self.decide(op).reason

    def check_blocks(self, labels: Iterable[Tuple[Optional[str], str]]) -> None:
        """Check the block patterns against path and prefix of every block of a network.

        A node of a symbol has the path None.

        A pattern that matches no block, and two that pin one block to different dtypes, are a
        `ValueError`.
        """
        labels = list(labels)
        for pin in self.pins:
            for pattern in pin.blocks:
                if not any(matches(pattern, *label) for label in labels):
                    known = {text for label in labels for text in label if text}
                    raise ValueError(
                        f"Block pattern {pattern!r} matches no block of this net"
                        f"{did_you_mean(pattern, known)}: expected a regular expression that "
                        "finds a path such as 'features.0', as amp.describe(net) lists them."
                    )
        for block, name in labels:
            self.decide("FullyConnected", block, name)  # which raises, as for all operators


def _name(dtype: Dtype) -> Dtype:
    """Return the name of a floating-point type; what is none is returned unchanged."""
    if isinstance(dtype, (type, np.dtype)):
        with contextlib.suppress(TypeError):  # of a class that is no dtype
            if np.dtype(dtype).kind == "f" or dtype_name(dtype) == "bfloat16":
                return dtype_name(dtype)
    return dtype


def _parsed(policy: Dtype) -> Dict[str, Dtype]:
    """Return the dtypes, by field, that a preset or a string like `'params=...'` gives."""
    policy = _name(policy)
    if not isinstance(policy, str):
        raise TypeError(
            f"policy is a {type(policy).__name__}, expected a preset's name "
            f"({', '.join(PRESETS)}), a string like 'params=float16,compute=float16', "
            "or an amp.Policy."
        )
    if policy in PRESETS:
        return dict(zip(STRING_KEYS.values(), PRESETS[policy]))
    if "=" not in policy:
        raise ValueError(
            f"Unknown policy {policy!r}{near_preset(policy)}: expected one of "
            f"{', '.join(PRESETS)}, or a string like 'params=float16,compute=float16'."
        )
    fields: Dict[str, Dtype] = {}
    for part in policy.split(","):
        key, _, dtype = (text.strip() for text in part.partition("="))
        if key not in STRING_KEYS:
            raise ValueError(
                f"Unknown key {key!r} in policy {policy!r}{did_you_mean(key, STRING_KEYS)}: "
                f"expected {', '.join(STRING_KEYS)}."
            )
        if STRING_KEYS[key] in fields:
            raise ValueError(f"Policy {policy!r} gives {key!r} twice: keep one of them.")
        fields[STRING_KEYS[key]] = dtype
    return {"param_dtype": "float32", "compute_dtype": "float32", **fields}


def near_preset(name: str, names: Iterable[str] = tuple(PRESETS)) -> str:
    """Return `" (did you mean 'float16'?)"` for 'fp16', or '' where no name is similar."""
    meant = ELSEWHERE.get(name.lower())
    return f" (did you mean {meant!r}?)" if meant else did_you_mean(name, names)
