"""Profiles of a training step: from the output of oneDNN and nsys to a table."""

from experiments.benchmarks import profile

VERBOSE = """dnnl_verbose,info,oneDNN v2.4.0
dnnl_verbose,exec,cpu,reorder,jit:uni,undef,src_f32::blocked:a:f0 dst_bf16::blocked:a:f0,,,64,9.0
begin
dnnl_verbose,exec,cpu,reorder,jit:uni,undef,src_f32::blocked:a:f0 dst_bf16::blocked:a:f0,,,64,0.5
dnnl_verbose,exec,cpu,convolution,brgconv:avx512_core_amx_bf16,forward_training,src_bf16::blocked:acdb:f0 wei_bf16::blocked:x dst_bf16::blocked:y,,alg:direct,mb1,4.0
dnnl_verbose,exec,cpu,convolution,brgconv:avx512_core_amx_bf16,forward_training,src_bf16::blocked:acdb:f0 wei_bf16::blocked:x dst_bf16::blocked:y,,alg:direct,mb2,6.0
end
"""  # noqa: E501

KERNELS = """Processing [report]...
Time (%),Total Time (ns),Instances,Avg (ns),Name
60.0,30000000,5,6000000,volta_fp16_s884cudnn_fp16_128x128_ldg8_relu_f2f_exp_small_nhwc2nchw_tn_v1
40.0,20000000,10,2000000,void mxnet::op::mxnet_op::mxnet_generic_kernel<...>
"""


def test_primitives_are_summed_by_name_and_dtype():
    entries = profile.onednn_primitives(VERBOSE)
    assert entries == [
        ("convolution forward_training, bf16, brgconv:avx512_core_amx_bf16", 0.4, 2.0, False),
        ("reorder, bf16+f32, jit:uni", 0.2, 0.1, False),
    ]
    assert "| 2.00 | 95.2 % | 0.4 | convolution forward_training, bf16" in profile.as_table(entries)


def test_tensor_core_kernels_are_recognized_by_their_names():
    first, second = profile.gpu_kernels(KERNELS)
    assert (first.calls, first.milliseconds, first.tensor_cores) == (1.0, 6.0, True)
    assert (second.calls, second.milliseconds, second.tensor_cores) == (2.0, 4.0, False)
    assert profile.as_table([first, second]).endswith(
        "Tensor Core kernels take 60.0 % of 10.00 ms."
    )
    for name in ("ampere_fp16_s16816gemm_fp16_128x64", "turing_h1688gemm_128x128", "xmma_fprop"):
        assert profile.TENSOR_CORE.search(name)
    assert not profile.TENSOR_CORE.search("volta_sgemm_128x64_nn")
