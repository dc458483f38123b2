"""The environment variables that change what MXNet 1.9.1 and gluon_amp compute, or how fast.

The effects of MXNet's variables are those of its sources at tag 1.9.1: `src/common/cuda_utils.h`,
`src/operator/linalg_impl.h`, `src/operator/nn/cudnn/cudnn_convolution-inl.h`,
`src/imperative/cached_op.h`, `src/engine/openmp.cc`, `src/resource.cc`.
"""

import os
from typing import Dict, List, NamedTuple, Optional


class Variable(NamedTuple):
    """An environment variable, a sentence on what it does, and the harm of its harmful values."""

    name: str
    does: str
    warnings: Dict[str, str] = {}  # noqa: RUF012


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
        {"0": "float16 will be slow, since Tensor Cores are turned off: unset it."},
    ),
    Variable(
        "MXNET_CUDA_TENSOR_OP_MATH_ALLOW_CONVERSION",
        "1: computes float32 convolutions in float16. Default 0.",
        {"1": "float32 is no longer float32: unset it, and use a float16 policy."},
    ),
    Variable(
        "MXNET_FC_TRUE_FP16",
        "1: FullyConnected accumulates in float16. Default 0: in float32.",
        {"1": "sums in FullyConnected overflow past 65504: unset it."},
    ),
    Variable(
        "MXNET_SAFE_ACCUMULATION",
        "1: softmax and norm of float16 accumulate in float32. Default 0. A net cast by gluon_amp "
        "computes them in float32 with either value.",
    ),
    Variable(
        "NVIDIA_TF32_OVERRIDE",
        "0: no TF32, in which cuDNN multiplies float32 from capability 8.0 on.",
    ),
    Variable(
        "MXNET_CUDNN_AUTOTUNE_DEFAULT",
        "Search for the fastest convolution: 0 no, 1 within the workspace, 2 at any size. Default "
        "1: the first iterations are slow.",
        {"0": "convolutions may use a slow algorithm without Tensor Cores: unset it."},
    ),
    Variable(
        "MXNET_ENFORCE_DETERMINISM",
        "1: only algorithms with the same bits in every run. Default 0.",
    ),
    Variable(
        "MXNET_USE_FUSION",
        "0: no fusion of elementwise operators on a GPU. Default 1: fused operators do not round "
        "to float16 between them.",
    ),
    Variable(
        "MXNET_MKLDNN_ENABLED",
        "0: no oneDNN on a CPU. Default 1.",
        {"0": "bfloat16 is emulated, and float32 is slow: unset it."},
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
        {"active": "a step takes several times as long while other programs run: unset it there."},
    ),
    Variable("MXNET_CPU_PARALLEL_SIZE", "Set by gluon_amp, so that threads keep spinning."),
    Variable("MXNET_CPU_TEMP_COPY", "Set by gluon_amp, so that MXNet keeps one scratch buffer."),
    Variable(
        "GLUON_AMP_NATIVE",
        "0: no C++ kernels. plain, avx2 or avx512: these. Default: the fastest.",
        {"0": "emulated float16 is several times slower without the C++ kernels: unset it."},
    ),
    Variable(
        "GLUON_AMP_BFLOAT16",
        "emulated or native: how a CPU runs bfloat16. Default: native with AVX512_BF16 or AMX.",
        {
            "emulated": "with AVX512_BF16 or AMX, bfloat16 is faster by oneDNN: unset it there.",
            "native": "without AVX512_BF16 and AMX, bfloat16 is faster emulated: unset it there.",
        },
    ),
    Variable("CXX", "The compiler for the C++ kernels. Default g++, c++ or clang++."),
)


def settings() -> List[Setting]:
    """Return every variable of the table as it is set in this process."""
    values = ((variable, os.environ.get(variable.name)) for variable in VARIABLES)
    return [
        Setting(v.name, value, v.does, v.warnings.get((value or "").lower())) for v, value in values
    ]
