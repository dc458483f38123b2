"""The devices of a run."""

from typing import Any, List, Mapping, Optional, Sequence

from gluon_amp import kernels
from gluon_amp.base import hardware
from gluon_amp.base.messages import UsageError
from gluon_amp.inspection.doctor.advice import Recommendation, recommended_on_cpu
from gluon_amp.lowering import emulation
from gluon_amp.policy import FUSED, Policy

import mxnet as mx


def contexts(
    gpus: Optional[Sequence[int]] = None, num_gpus: Optional[int] = None, cpus: Optional[int] = None
) -> List[mx.Context]:
    """Return the devices to train on: by default all GPUs, or the CPU if there is none."""
    if cpus:
        return [mx.cpu(number) for number in range(cpus)]
    count = mx.context.num_gpus()
    if gpus is None:
        gpus = range(count if num_gpus is None else num_gpus)
    if len(set(gpus)) < len(gpus):
        raise UsageError(f"--gpus {','.join(map(str, gpus))} names a GPU twice.")
    for number in gpus:
        if number >= count:
            raise UsageError(
                f"GPU {number} was asked for, but MXNet sees {count or 'no'} "
                f"GPU{'s' if count > 1 else ''} here: leave out --gpus and --num-gpus"
                f"{' to use what there is' if count else ' to train on the CPU'}."
            )
    return [mx.gpu(number) for number in gpus] or [mx.cpu()]


def is_emulated(policy: Policy, devices: Sequence[mx.Context]) -> bool:
    """Return whether one of the devices emulates a policy's dtype: its values, not its speed."""
    dtype = policy.compute_dtype
    return policy.studies or any(
        emulation.is_emulated(dtype, device.device_type) for device in devices
    )


def recommended() -> Recommendation:
    """Return what the doctor recommends to train with on this CPU."""
    native = not emulation.is_emulated("bfloat16")
    return recommended_on_cpu(hardware.onednn_flags(), native, kernels.available())


def default_dtype(options: Mapping[str, Any]) -> str:
    """Return 'fused_float32' if that is recommended for a run with these options, or 'float32'."""
    on_cpu = not contexts_on_gpus(options) and options.get("mode", "hybrid") == "hybrid"
    return FUSED if on_cpu and recommended().policy == FUSED else "float32"


def contexts_on_gpus(options: Mapping[str, Any]) -> bool:
    """Return whether options of a run ask for GPUs, or leave it to MXNet and it has some."""
    if options["cpus"] or options["num_gpus"] == 0:
        return False
    return bool(options["gpus"] or options["num_gpus"] or mx.context.num_gpus())


def other_recommended(policy: Policy, devices: Sequence[mx.Context]) -> Optional[str]:
    """Return the doctor's line if it recommends another dtype than a policy's on a CPU, else None.

    float32 is always a good choice.
    """
    best = recommended()
    on_cpu = all(device.device_type == "cpu" for device in devices)
    good = policy.compute_dtype in ("float32", best.policy)
    return None if good or not on_cpu else best.sentence()
