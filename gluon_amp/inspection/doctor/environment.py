"""The environment variables that change what MXNet 1.9.1 and gluon_amp compute, or how fast.

The effects of MXNet's variables are those of its sources at tag 1.9.1: `src/common/cuda_utils.h`,
`src/operator/linalg_impl.h`, `src/operator/nn/cudnn/cudnn_convolution-inl.h`,
`src/imperative/cached_op.h`, `src/engine/openmp.cc`, `src/resource.cc`.
"""

import os
from typing import Callable, Dict, List, NamedTuple, Optional

from gluon_amp.inspection.doctor.detection import Machine

# The machines on which a variable, or a harmful value of it, has an effect
WHERE: Dict[str, Callable[[Machine], bool]] = {
    "anywhere": lambda machine: True,
    "GPU": lambda machine: machine.cuda_build and bool(machine.driver.gpus),
    "compiler": lambda machine: machine.compiler is not None,
    "fast bfloat16": lambda machine: "avx512_bf16" in machine.cpu_flags,
    "slow bfloat16": lambda machine: (
        "avx512f" in machine.cpu_flags and "avx512_bf16" not in machine.cpu_flags
    ),
}


class Harm(NamedTuple):
    """What a value of a variable does wrong, and where, by the names of `WHERE`."""

    warning: str
    where: str = "anywhere"


class Variable(NamedTuple):
    """An environment variable, a sentence on what it does, and its harmful values."""

    name: str
    does: str
    harms: Dict[str, Harm] = {}  # noqa: RUF012
    where: str = "anywhere"


class Setting(NamedTuple):
    """A variable, its value (None if it is not set), and a warning if the value is harmful."""

    name: str
    value: Optional[str]
    does: str
    warning: Optional[str]


VARIABLES = (
    Variable("CUDA_VISIBLE_DEVICES", "The GPUs that MXNet sees."),
    Variable(
        "MXNET_CUDA_ALLOW_TENSOR_CORE",
        "0: no Tensor Cores. Default 1.",
        {"0": Harm("float16 will be slow, since Tensor Cores are turned off: unset it.")},
        "GPU",
    ),
    Variable(
        "MXNET_CUDA_TENSOR_OP_MATH_ALLOW_CONVERSION",
        "1: computes float32 convolutions in float16. Default 0.",
        {"1": Harm("float32 is no longer float32: unset it, and use a float16 policy.")},
        "GPU",
    ),
    Variable(
        "MXNET_FC_TRUE_FP16",
        "1: FullyConnected accumulates in float16. Default 0: in float32.",
        {"1": Harm("sums in FullyConnected overflow past 65504: unset it.")},
        "GPU",
    ),
    Variable(
        "MXNET_SAFE_ACCUMULATION",
        "1: softmax and norm of float16 accumulate in float32. Default 0. A net cast by gluon_amp "
        "computes them in float32 with either value.",
    ),
    Variable(
        "NVIDIA_TF32_OVERRIDE",
        "0: no TF32, in which cuDNN multiplies float32 from capability 8.0 on.",
        where="GPU",
    ),
    Variable(
        "MXNET_CUDNN_AUTOTUNE_DEFAULT",
        "Search for the fastest convolution: 0 no, 1 within the workspace, 2 at any size. Default "
        "1: the first iterations are slow.",
        {"0": Harm("convolutions may use a slow algorithm without Tensor Cores: unset it.")},
        "GPU",
    ),
    Variable(
        "MXNET_ENFORCE_DETERMINISM",
        "1: only algorithms with the same bits in every run. Default 0.",
    ),
    Variable(
        "MXNET_USE_FUSION",
        "0: no fusion of elementwise operators on a GPU. Default 1: fused operators do not round "
        "to float16 between them.",
        where="GPU",
    ),
    Variable(
        "MXNET_MKLDNN_ENABLED",
        "0: no oneDNN on a CPU. Default 1.",
        {"0": Harm("bfloat16 is emulated, and float32 is slow: unset it.")},
    ),
    Variable(
        "DNNL_MAX_CPU_ISA",
        "The newest instruction set that oneDNN may use. gluon_amp permits AMX if the CPU has it.",
    ),
    Variable("OMP_NUM_THREADS", "CPU threads. gluon_amp gives MXNet one for each core."),
    Variable(
        "OMP_WAIT_POLICY",
        "active: CPU threads spin between operators, which takes 8 % off a ResNet-50 step where "
        "nothing else runs. By default they sleep soon.",
        {"active": Harm("a step takes several times as long while other programs run.")},
    ),
    Variable("MXNET_CPU_PARALLEL_SIZE", "Set by gluon_amp, so that threads stay ready."),
    Variable("MXNET_CPU_TEMP_COPY", "Set by gluon_amp, so that MXNet keeps one scratch buffer."),
    Variable(
        "GLUON_AMP_NATIVE",
        "0: no C++ kernels. plain, avx2 or avx512: these. Default: the fastest.",
        {
            "0": Harm(
                "emulated float16 is several times slower without the C++ kernels: unset it.",
                "compiler",
            )
        },
    ),
    Variable(
        "GLUON_AMP_BFLOAT16",
        "emulated or native: how a CPU runs bfloat16. Default: native where that is faster.",
        {
            "emulated": Harm("bfloat16 is faster by oneDNN here: unset it.", "fast bfloat16"),
            "native": Harm("bfloat16 is faster emulated here: unset it.", "slow bfloat16"),
        },
    ),
    Variable("CXX", "The compiler for the C++ kernels. Default g++, c++ or clang++."),
)


def settings(machine: Machine) -> List[Setting]:
    """Return the variables that have an effect on a machine, as this process has them."""
    rows = []
    for variable in VARIABLES:
        if WHERE[variable.where](machine):
            value = os.environ.get(variable.name)
            harm = variable.harms.get((value or "").lower())
            warning = harm.warning if harm and WHERE[harm.where](machine) else None
            rows.append(Setting(variable.name, value, variable.does, warning))
    return rows
