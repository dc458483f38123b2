"""The table of the self-test's checks: what each measures, what is expected, and why."""

from typing import Callable, List, NamedTuple

from gluon_amp.base import bfloat16
from gluon_amp.inspection.selftest import laws, numerics, speed

import mxnet as mx


def equal(measured: str, expected: str) -> bool:
    return measured == expected


def no_slower(measured: str, expected: str) -> bool:
    """Return whether a ratio such as '1.70 times (3.1 ms)' is at least 1."""
    return float(measured.split()[0]) >= 1


def anything(measured: str, expected: str) -> bool:
    return True


class Check(NamedTuple):
    """One check.

    Attributes
    ----------
    name : str
    measure : callable
        Returns what it measured on a `Context`, as text.
    expected : str
        What it should be, for the report.
    source : str
        Why: a law of the public contract, or where MXNet does it.
    required : bool
        Whether another result is a failure, and not only a difference that is worth knowing.
    agrees : callable
        Returns whether the measured text agrees with the expected one.
    """

    name: str
    measure: Callable[[mx.Context], str]
    expected: str
    source: str
    required: bool = True
    agrees: Callable[[str, str], bool] = equal


UNCHANGED = "0 arrays differ"

# On every device
COMMON = (
    Check("casting one net leaves others alone", laws.scope, "0 outputs differ", "law 1"),
    Check("parameters under scales 2^10 and 2^13", laws.scale_invariance, UNCHANGED, "law 2"),
    Check("one overflow", laws.one_overflow, "1 skip, scale 256 to 128", "law 3"),
    Check("growth after 3 finite steps", laws.growth, "64 64 128 128", "DynamicLossScale"),
    Check("scale within its limits", laws.limits, "2 to 8", "law 6"),
    Check("a skip undoes the step", laws.skip_undoes, UNCHANGED, "law 4"),
    Check("resumed equals uninterrupted", laws.resume, UNCHANGED, "law 5"),
    Check("float32 to float16", numerics.rounding, "0 values differ", "law 7, IEEE 754"),
    Check("masters in float32", laws.masters_are_float32, "0 wrong", "api.md: the optimizer"),
    Check("masters after cast to float32", laws.round_trip, UNCHANGED, "law 8"),
    Check("accumulated gradients", laws.accumulation, "within 2 float16 roundings", "law 9"),
    Check("products in float16", laws.no_silent_float32, "4 of 4", "law 10"),
    Check("log(0 + 1e-12)", laws.constants, "-27.6", "law 11"),
    Check("a damaged file of states", laws.damaged_file, "refused", "law 12"),
    Check("arrays of mx.np", laws.arrays_of_numpy, "numpy float32", "law 13"),
    Check("a product in float16", numerics.product, "as numpy, rounded once", "Tensor Cores"),
    Check("parameters of BatchNorm", numerics.batch_norm_dtypes, "float32", "batch_norm.cc:391"),
    Check("norms that overflow at 60000", numerics.norms, "none", "op_table: norm"),
    Check("softmax of 30000 classes", numerics.long_softmax, "1.000", "softmax-inl.h:788"),
    Check("loss of large logits", numerics.kept_in_float32, "2.773", "log(16)"),
    Check("infinities and NaN of 300 gradients", numerics.overflow_check, "0 missed", ""),
    Check("fused update with a master", numerics.momentum_update, "as numpy", "mp_sgd_mom_update"),
)

# Accumulation dtypes: MXNet's kernels on a GPU, by file and line at tag 1.9.1
ON_GPU = {
    "Convolution": ("float32", "convolution.cu:98"),
    "FullyConnected": ("float32", "linalg_impl.h:287, MXNET_FC_TRUE_FP16"),
    "dot": ("float32", "dot_engine-inl.h:534"),
    "batch_dot": ("float16", "dot_engine-inl.h:566"),
}
ON_CPU = dict.fromkeys(ON_GPU, ("float32", "emulated"))

NETS = (("residual net", speed.resnet), ("dense net", speed.dense))


def checks_of(ctx: mx.Context) -> List[Check]:
    """Return the checks that a device can run, in their order."""
    on_gpu = ctx.device_type == "gpu"
    accumulation = [
        Check(f"{op} accumulates in", numerics.accumulates(op), dtype, source, required=False)
        for op, (dtype, source) in (ON_GPU if on_gpu else ON_CPU).items()
    ]
    return [*COMMON, *accumulation, *_two_devices(ctx), *_speed(on_gpu)]


def _two_devices(ctx: mx.Context) -> List[Check]:
    contexts = numerics.two_devices(ctx)
    if not contexts:
        return []
    return [
        Check(
            "40000 + 40000 in float16, on 2 devices",
            lambda ctx: numerics.sums_of_two_devices(contexts),
            "80000",
            "divided before kvstore 'device' adds in float16",
        )
    ]


def _speed(on_gpu: bool) -> List[Check]:
    how = {"float16": ("1 or more", "Tensor Cores") if on_gpu else ("any", "emulated")}
    if not on_gpu and bfloat16.is_native():
        how["bfloat16"] = ("any", "oneDNN")
    agrees = no_slower if on_gpu else anything
    found = [
        Check(f"speed of {policy} on a {net}", make(policy), *how[policy], False, agrees)
        for policy in how
        for net, make in NETS
    ]
    found.append(Check("bytes of weights, to float32's", speed.bytes_of_weights, "0.50", ""))
    if on_gpu:
        found.append(Check("memory", speed.device_memory, "any", "mx.context", False, anything))
    return found
