"""Changes of layout: from what oneDNN and MXNet's profiler print, and of a small network."""

import os
import stat

import pytest

from experiments.benchmarks import reorders
from experiments.benchmarks.measure import BenchmarkError
from experiments.benchmarks.suites import Case
from tests.training.runs.scripts import skip_without_native_bfloat16

PRINTED = """dnnl_verbose,info,cpu,runtime:OpenMP
dnnl_verbose,exec,cpu,reorder,jit:uni,undef,src_f32::blocked:a:f0 dst_bf16::blocked:a:f0,,,64,9.0
begin
dnnl_verbose,exec,cpu,reorder,jit:uni,undef,src_f32::blocked:a:f0 dst_bf16::blocked:a:f0,,,64,0.5
dnnl_verbose,exec,cpu,convolution,jit:avx512,forward_training,src_bf16 wei_bf16,,alg:direct,mb1,4.0
dnnl_verbose,exec,cpu,reorder,jit:uni,undef,src_bf16::blocked:a:f0 dst_f32::blocked:a:f0,,,64,0.5
end
{"Convolution": 7, "_gluon_amp_block": 2, "_backward_gluon_amp_block": 1, "_gluon_amp_unblock": 4,
 "_gluon_amp_blocked_norm": 8, "_backward_gluon_amp_unblock": 3}
""".replace(",\n ", ", ")


def test_only_reorders_of_the_step_and_own_changes_of_layout_count():
    counted = reorders.parse(PRINTED)
    assert counted == (2, 10)
    assert counted.total == 12


def test_reorders_of_a_small_network_in_training_and_inference():
    skip_without_native_bfloat16()
    options = {"network": "mobilenet0.25", "batch": 2, "pixels": 32, "loss_scale": None}
    train = reorders.count(Case("t", "train", "gluon_amp", "bfloat16", **options))
    infer = reorders.count(Case("i", "infer", "gluon_amp", "bfloat16", **options))
    assert 0 < infer.total < train.total
    # MXNet's profiler deletes the file that it writes to
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


def test_a_case_that_fails_is_an_error():
    with pytest.raises(BenchmarkError, match="x: KeyError: 'nothing'"):
        reorders.count(Case("x", "nothing", "mxnet", "float32"))
