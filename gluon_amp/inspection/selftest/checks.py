"""The table of the self-test's checks: what each measures, what is expected, and why."""

from typing import Callable, List, NamedTuple

from gluon_amp.base import bfloat16
from gluon_amp.inspection.selftest import laws, numerics, speed

import mxnet as mx

ANY, NO_SLOWER = "any", "1 or more"


class Check(NamedTuple):
    """One check."""

    name: str
    measure: Callable[[mx.Context], str]  # what it measures on a device, as text
    expected: str  # that text; `ANY`; or `NO_SLOWER`, for a text that begins with a ratio
    source: str = ""  # why: a law of the public contract, or where MXNet does it
    required: bool = True  # whether another result is a failure, or only worth knowing

    def agrees(self, measured: str) -> bool:
        """Return whether a measured text is the expected one."""
        if self.expected == NO_SLOWER:
            return float(measured.split()[0]) >= 1
        return self.expected in (ANY, measured)


UNCHANGED = "0 arrays differ"

# On every device
COMMON = (
    Check("casting one net leaves others alone", laws.scope, "0 outputs differ", "law 1"),
    Check("parameters under scales 2^10 and 2^13", laws.scale_invariance, UNCHANGED, "law 2"),
    Check("one overflow", laws.one_overflow, "1 skip, scale 256 to 128", "law 3"),
    Check("a skip undoes the step", laws.skip_undoes, UNCHANGED, "law 4"),
    Check("resumed equals uninterrupted", laws.resume, UNCHANGED, "law 5"),
    Check("float32 to float16", numerics.rounding, "0 values differ", "law 7, IEEE 754"),
    Check("masters in float32", laws.masters_are_float32, "0 wrong", "api.md: the optimizer"),
    Check("masters after cast to float32", laws.round_trip, UNCHANGED, "law 8"),
    Check("accumulated gradients", laws.accumulation, "within 2 float16 roundings", "law 9"),
    Check("log(0 + 1e-12)", laws.constants, "-27.6", "law 11"),
    Check("arrays of mx.np", laws.arrays_of_numpy, "numpy float32", "law 13"),
    Check("a product in float16", numerics.product, "as numpy, rounded once", "Tensor Cores"),
    Check("norms that overflow at 60000", numerics.norms, "none", "op_table: norm"),
    Check("softmax of 30000 classes", numerics.long_softmax, "1.000", "softmax-inl.h:788"),
    Check("loss of large logits", numerics.kept_in_float32, "2.773", "log(16)"),
    Check("infinities and NaN of 300 gradients", numerics.overflow_check, "0 missed"),
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


def checks_of(ctx: mx.Context) -> List[Check]:
    """Return the checks that a device can run, in their order."""
    on_gpu = ctx.device_type == "gpu"
    checks = list(COMMON)
    for op, (dtype, source) in (ON_GPU if on_gpu else ON_CPU).items():
        measure = numerics.accumulates(op)
        checks.append(Check(f"{op} accumulates in", measure, dtype, source, required=False))
    if not on_gpu or mx.context.num_gpus() > 1:
        name, why = "40000 + 40000 in float16, on 2 devices", "divided before kvstore 'device' adds"
        checks.append(Check(name, numerics.sums_of_two_devices, "80000", why))
    how = {"float16": (NO_SLOWER, "Tensor Cores") if on_gpu else (ANY, "emulated")}
    if not on_gpu and bfloat16.is_native():
        how["bfloat16"] = (ANY, "oneDNN")
    for policy, (expected, why) in how.items():
        for net in speed.NETS:
            name = f"speed of {policy} on a {net} net"
            checks.append(Check(name, speed.faster(net, policy), expected, why, required=False))
    checks.append(Check("bytes of weights, to float32's", speed.bytes_of_weights, "0.50"))
    if on_gpu:
        checks.append(Check("memory", speed.device_memory, ANY, "mx.context", required=False))
    return checks
