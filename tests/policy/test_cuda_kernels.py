"""The list of operators without a float16 CUDA kernel against the operator table."""

from gluon_amp.graph import op_table
from gluon_amp.policy import cuda_kernels
from gluon_amp.policy.cast_pass import NATIVELY_MIXED

NAMES = [op for _, _, names in op_table.GROUPS for op in names.split()]
# What MXNet adds to a graph for its backward pass: sums, copies and zeros
OF_BACKWARD_PASSES = ["_grad_add", "add_n", "_copy", "zeros_like", "ones_like", "_zeros"]


def test_every_operator_that_runs_in_float16_has_a_kernel():
    low = [op for op in NAMES if op_table.rule(op).kind in ("compute", "follow", "widest")]
    casts = ["amp_cast", "Cast", "amp_multicast"]
    ops = [*low, *NATIVELY_MIXED, *OF_BACKWARD_PASSES, *casts, "flatten"]
    assert [op for op in ops if not cuda_kernels.has_float16_kernel(op)] == []


def test_what_has_none():
    for op in ("_linalg_gemm2", "linalg_gemm2", "no_such_operator"):
        assert not cuda_kernels.has_float16_kernel(op)
