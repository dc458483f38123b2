"""Conclusions from a `Machine`: which GPUs run MXNet, which policies run here, and how.

`cuobjdump --list-elf` and `--list-ptx` list what MXNet 1.9.1's CUDA wheels hold (mxnet-cu112 and
mxnet-cu117): machine code, and no PTX. Machine code for capability X.y runs on X.z with z >= y, and
on no other X; only PTX is compiled for later ones ("Binary Compatibility" in NVIDIA's CUDA C++
Programming Guide). Tensor Cores came with 7.0, but the chips TU116 and TU117 have none.
"""

import os
from typing import FrozenSet, List, NamedTuple, Optional, Tuple

from gluon_amp.base.messages import install
from gluon_amp.inspection.doctor.detection import Gpu, Machine
from gluon_amp.policy import FUSED, PRESETS, Policy

MACHINE_CODE = ((5, 0), (6, 0), (7, 0), (8, 0), (8, 6))
TENSOR_CORES = (7, 0)

# words in the names of GPUs with the chips TU116 and TU117, of capability 7.5 (NVIDIA's Turing
# GPUs without Tensor Cores; github.com/pytorch/pytorch/issues/58123 has their NaNs in float16)
WITHOUT_TENSOR_CORES = frozenset(
    "1630 1650 1660 MX450 MX550 T400 T500 T550 T600 T1000 T1200 T2000".split()
)
SUPPORTED = "5.0 to 8.9"

# flags as Linux names them, and the name that Intel and AMD use
CPU_FEATURES = (
    ({"f16c"}, "F16C"),
    ({"avx2"}, "AVX2"),
    ({"avx512f"}, "AVX512"),
    ({"avx512_bf16"}, "AVX512_BF16"),
    ({"amx_tile", "amx_bf16"}, "AMX"),
)


def runs_mxnet(gpu: Gpu) -> bool:
    """Return whether MXNet's wheels hold machine code that this GPU can run."""
    return any(gpu.capability[0] == code[0] and gpu.capability >= code for code in MACHINE_CODE)


def has_tensor_cores(gpu: Gpu) -> bool:
    """Return whether float16 can be faster than float32 on this GPU, and not only smaller."""
    return gpu.capability >= TENSOR_CORES and WITHOUT_TENSOR_CORES.isdisjoint(gpu.name.split())


def about_gpu(gpu: Gpu) -> str:
    """Return a sentence: whether MXNet runs on a GPU, and whether float16 is fast there."""
    if runs_mxnet(gpu) and has_tensor_cores(gpu):
        return "runs MXNet, and float16 on Tensor Cores."
    if runs_mxnet(gpu):
        return (
            "runs MXNet, but has no Tensor Cores, which came with 7.0: float16 saves memory here, "
            "but hardly any time."
        )
    if gpu.capability > MACHINE_CODE[-1]:
        return (
            "cannot run MXNet's kernels (\"no kernel image is available\"): MXNet 1.9.1's wheels "
            f"hold machine code for {SUPPORTED} and no PTX; use a GPU up to 8.9, or the CPU."
        )
    return (
        "cannot run MXNet's kernels: it is older than MXNet 1.9.1's wheels, which hold machine "
        f"code for {SUPPORTED}; use a newer GPU, or the CPU."
    )


def about_no_gpu(machine: Machine) -> str:
    """Return a sentence: why there is no GPU, or why MXNet does not use it; '' if it does."""
    if machine.driver.gpus and not machine.cuda_build:
        return (
            "MXNet is installed for CPUs only and uses no GPU: run `pip uninstall mxnet`, then "
            f"`{install('cu117')}`."
        )
    if machine.driver.gpus:
        return ""
    if not machine.driver.found:
        return "no NVIDIA driver here (libcuda.so.1 is not found)."
    return "the NVIDIA driver finds no GPU; see CUDA_VISIBLE_DEVICES and `nvidia-smi`."


def about_load(load: Optional[float], cores: int) -> str:
    """Return a warning if other programs leave too few cores; '' if they do not.

    `load` is that of the last minute, or None; `cores` are those of the machine, 0 if unknown.
    """
    if load is None or not 0 < cores < load:
        return ""
    single = cores == 1 or os.environ.get("OMP_NUM_THREADS") == "1"
    fewer = "" if single else ", or set OMP_NUM_THREADS=1"
    return (
        f"Other programs are using this machine (load {load:.1f} on {cores} cores), so steps may "
        f"take several times as long. Stop them{fewer}."
    )


def cpu_features(cpu_flags: FrozenSet[str]) -> List[str]:
    """Return the names of a CPU's instruction sets that matter for mixed precision."""
    return [name for flags, name in CPU_FEATURES if flags <= cpu_flags]


class Outcome(NamedTuple):
    """Whether a policy runs on a device, and a phrase: how, or why not."""

    policy: str
    runs: bool
    how: str


class Recommendation(NamedTuple):
    """The policy that trains fastest, the device for which it is meant, and the reason."""

    device: str
    policy: str
    reason: str

    def sentence(self, default: str = "cpu") -> str:
        """Return a line of at most 80 columns, for a program whose device is `default`."""
        cpus = "" if self.device == default else "--cpus 1 "
        return f"Recommended here: {cpus}--dtype {self.policy} ({self.reason})"


def recommended(machine: Machine, device: str) -> Recommendation:
    """Return what to train with on a device, or on the CPU if MXNet cannot use the GPU."""
    able = [gpu for gpu in machine.driver.gpus if machine.cuda_build and runs_mxnet(gpu)]
    if device == "cpu" or not able:
        return recommended_on_cpu(machine.cpu_flags, machine.cpu_bfloat16, machine.native)
    if all(map(has_tensor_cores, able)):
        return Recommendation("gpu", "float16", "Tensor Cores; MXNet's wheels end with Ada")
    return Recommendation("gpu", "float32", "no Tensor Cores: float16 saves memory only")


def recommended_on_cpu(cpu_flags: FrozenSet[str], native: bool, kernels: bool) -> Recommendation:
    """Return what to train with on a CPU, as measured (docs/speed.md).

    `native` is whether bfloat16 is native there, `kernels` whether the C++ kernels are in use.
    """
    fast = [name for name in cpu_features(cpu_flags) if name in ("AVX512_BF16", "AMX")]
    if native and fast:
        return Recommendation("cpu", "bfloat16", f"{fast[-1]}, faster than float32")
    if kernels and "avx2" in cpu_flags:
        return Recommendation("cpu", FUSED, "float32 values, mostly faster")
    return Recommendation("cpu", "float32", "emulated low precision is for study")


def default_device(machine: Machine) -> str:
    """Return 'gpu' if there is a GPU, even one that is too new or old, and MXNet has CUDA."""
    return "gpu" if machine.driver.gpus and machine.cuda_build else "cpu"


def outcomes(machine: Machine, device: str, requested: Optional[str] = None) -> List[Outcome]:
    """Return whether the presets and the requested policy run on `device`, and how.

    Raise `ValueError` for an unknown policy, with near matches.
    """
    names = [name for name in PRESETS if name != "mixed_bfloat16"]  # another name of bfloat16
    if requested is not None and requested not in names:
        names.append(requested)
    outcome = _on_gpu if device == "gpu" else _on_cpu
    return [Outcome(name, *outcome(machine, Policy.parse(name))) for name in names]


def _on_gpu(machine: Machine, policy: Policy) -> Tuple[bool, str]:
    gpus = machine.driver.gpus
    if policy.studies:
        return False, "formats for study are emulated on a CPU only: use mx.cpu(), or float16."
    if not machine.cuda_build or not gpus:
        return False, f"There is no GPU to use: {about_no_gpu(machine)}"
    able = [gpu for gpu in gpus if runs_mxnet(gpu)]
    if not able:
        return False, f"{gpus[0].name} {about_gpu(gpus[0])}"
    if policy.compute_dtype == "bfloat16":
        return False, (
            "MXNet 1.9.1 has no bfloat16 kernels for GPUs: use float16 or mixed_float16, or the "
            "CPU."
        )
    if policy.product_dtype == "float32":
        return True, "by cuDNN and cuBLAS."
    slow = [gpu.name for gpu in able if not has_tensor_cores(gpu)]
    if slow:
        return True, (
            f"without Tensor Cores on {slow[0]}: about as fast as float32, half of the memory."
        )
    return True, "on Tensor Cores, which accumulate in float32; half of the memory."


def _on_cpu(machine: Machine, policy: Policy) -> Tuple[bool, str]:
    if policy.studies:
        if not machine.native:
            return False, f"emulating it takes the C++ kernels: {_how_to_get_kernels(machine)}."
        return True, "emulated, for study: the roundings of its formats, slower than float32."
    if policy.compute_dtype == FUSED and machine.native:
        return True, (
            "by oneDNN and fused C++ kernels: float32's values, faster for images and sequences."
        )
    if policy.product_dtype == "float32":
        return True, "by oneDNN, on all cores."
    if policy.compute_dtype == "bfloat16":
        return _bfloat16_on_cpu(machine)
    if machine.native:
        return True, "emulated by C++ kernels: the roundings of float16, about as fast as float32."
    return True, (
        "emulated by MXNet's own operators, several times slower than float32: "
        f"{_how_to_get_kernels(machine)}."
    )


def _how_to_get_kernels(machine: Machine) -> str:
    """Return what a user can do to have the C++ kernels."""
    if os.environ.get("GLUON_AMP_NATIVE") == "0":
        return "unset GLUON_AMP_NATIVE"
    if machine.compiler:
        return "run `gluon-amp build`, which shows why its C++ kernels are missing"
    return "install a C++ compiler (`apt-get install g++`) or gluon_amp's manylinux wheel"


def _without(machine: Machine) -> str:
    """Return why bfloat16 is emulated: the CPU, or the variables that keep it from oneDNN."""
    if "avx512_bf16" not in machine.all_cpu_flags:
        return "This CPU has no AVX512_BF16 and no AMX"
    fast = "avx512_bf16" in machine.cpu_flags
    causes = {
        "DNNL_MAX_CPU_ISA": "DNNL_MAX_CPU_ISA" in os.environ and not fast,
        "MXNET_MKLDNN_ENABLED": os.environ.get("MXNET_MKLDNN_ENABLED") == "0",
        "GLUON_AMP_BFLOAT16": os.environ.get("GLUON_AMP_BFLOAT16", "").lower() == "emulated",
    }
    named = " and ".join(name for name, is_cause in causes.items() if is_cause)
    if not (fast or named):
        return "Intel's AVX512_BF16 without AMX is slower"
    unset = f": unset {named}" if named else ""
    return f"oneDNN does not use the AVX512_BF16 of this CPU{unset}"


def _bfloat16_on_cpu(machine: Machine) -> Tuple[bool, str]:
    if machine.cpu_bfloat16:
        if "amx_bf16" in machine.cpu_flags:
            return True, "by oneDNN, with AMX if Linux permits it (5.16 or later)."
        if "avx512_bf16" in machine.cpu_flags:
            return True, "by oneDNN with AVX512_BF16: two products in the time of one of float32."
        return True, (
            "by oneDNN with AVX512, but without fast bfloat16: saves memory, slower than float32."
        )
    if machine.native:
        return True, (
            f"emulated, about as fast as float32: the roundings of bfloat16. {_without(machine)}."
        )
    return False, (
        "oneDNN has no bfloat16 kernels on this CPU, and emulating it takes the C++ kernels: "
        f"{_how_to_get_kernels(machine)}, or use float16."
    )
