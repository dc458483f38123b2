"""The table of float16 CUDA kernels against the operator table."""

from gluon_amp.base.registry import canonical
from gluon_amp.policy import cuda_kernels, op_table
from gluon_amp.policy.cast_pass import NATIVELY_MIXED

LISTED = [
    op
    for table in (cuda_kernels.SWITCHES, cuda_kernels.ANY_DTYPE)
    for ops in table.values()
    for op in ops.split()
]
NAMES = [op for _, _, names in op_table.GROUPS for op in names.split()]
# What MXNet adds to a graph for its backward pass: sums, copies and zeros
OF_BACKWARD_PASSES = ["_grad_add", "add_n", "_copy", "zeros_like", "ones_like", "_zeros"]


def test_every_operator_is_listed_once_under_its_name_in_a_graph():
    assert sorted(set(LISTED)) == sorted(LISTED)
    assert [op for op in LISTED if canonical(op) != op or not op_table.is_known(op)] == []


def test_every_operator_that_runs_in_float16_has_a_kernel():
    low = [op for op in NAMES if op_table.rule(op).kind in ("compute", "follow", "widest")]
    casts = ["amp_cast", "Cast", "amp_multicast"]
    ops = [*low, *NATIVELY_MIXED, *OF_BACKWARD_PASSES, *casts]
    assert [op for op in ops if cuda_kernels.float16_source(op) is None] == []


def test_no_operator_is_said_to_have_and_not_to_have_one():
    without = [op for op in NAMES if op_table.rule(op).reason == "has no float16 kernel"]
    assert "_linalg_gemm2" in without
    assert [op for op in without if cuda_kernels.float16_source(op)] == []


def test_aliases_and_unknown_operators():
    assert cuda_kernels.float16_source("Convolution") == "src/operator/nn/convolution.cu:123"
    assert cuda_kernels.float16_source("flatten") == cuda_kernels.float16_source("Flatten")
    assert cuda_kernels.float16_source("no_such_operator") is None
