"""Which operators have a float16 CUDA kernel in MXNet 1.9.1, and where: a table.

The table was made by running the released CUDA build (the wheel mxnet-cu112 1.9.1), not by reading:
`python -m experiments.cuda_kernels`. There CUDA, cuDNN and cuBLAS are replaced by libraries that
compute nothing, so that MXNet's own host code runs on any machine: it chooses the kernels, checks
the dtypes and launches. Each operator ran on float16 arrays, forward and backward. The file and
line are those of the switch over the dtypes that chose the kernel. MXNet names them when the same
operator gets bfloat16 arrays ("Unknown type enum 12").
"""

from typing import Dict, Optional

from gluon_amp.base import registry


def _by_source(table: str) -> Dict[str, str]:
    """Return the operators of a table by source; a number is a line of the file before it."""
    found: Dict[str, str] = {}
    for word in table.split():
        if word.endswith(":"):
            source = place = word[:-1]
        elif word.isdigit():
            source = f"src/operator/{place}:{word}"
        else:
            found[source] = f"{found.get(source, '')} {word}"
    return found


# Where MXNet chooses the kernel: file in src/operator, lines, and the operators of each
SWITCHES = _by_source("""
bilinear_sampler.cu: 237 BilinearSampler
contrib/adaptive_avg_pooling-inl.h: 94 _contrib_AdaptiveAvgPooling2D
contrib/all_finite.cu: 61 all_finite 96 multi_all_finite
contrib/allclose_op-inl.h: 151 _contrib_allclose
contrib/bilinear_resize-inl.h: 209 _contrib_BilinearResize2D
contrib/boolean_mask.cu: 155 _contrib_boolean_mask
contrib/bounding_box-inl.h: 490 _contrib_box_nms 620 _contrib_box_iou 1065 _contrib_box_decode
contrib/deformable_convolution.cu: 25 _contrib_DeformableConvolution
contrib/index_copy.cu: 69 _contrib_index_copy
contrib/quadratic_op-inl.h: 142 _contrib_quadratic
contrib/roi_align.cu: 412 _contrib_ROIAlign
contrib/transformer-inl.h: 60 _contrib_div_sqrt_dim
contrib/transformer.cu: 201 _contrib_interleaved_matmul_selfatt_qk 321
    _contrib_interleaved_matmul_selfatt_valatt 449 _contrib_interleaved_matmul_encdec_qk 577
    _contrib_interleaved_matmul_encdec_valatt
correlation.cu: 625 Correlation
grid_generator.cu: 35 GridGenerator
l2_normalization.cu: 32 L2Normalization
leaky_relu-inl.h: 346 LeakyReLU
make_loss.cu: 33 MakeLoss
nn/activation-inl.h: 101 Activation
nn/batch_norm.cu: 709 BatchNorm
nn/concat-inl.h: 140 Concat _rnn_param_concat 162 _npi_hstack 193 _npi_dstack
nn/convolution.cu: 123 Convolution
nn/deconvolution.cu: 121 Deconvolution
nn/dropout.cc: 46 Dropout
nn/fully_connected.cu: 42 FullyConnected
nn/group_norm-inl.h: 121 GroupNorm
nn/im2col-inl.h: 105 im2col
nn/layer_norm.cu: 322 LayerNorm
nn/pooling.cu: 64 Pooling
nn/softmax-inl.h: 835 log_softmax softmax softmin
nn/upsampling-inl.h: 200 UpSampling
numpy/np_bincount_op.cu: 110 _npi_bincount
numpy/np_broadcast_reduce_op.h: 404 _npi_argmax _npi_argmin 829 _npi_average 930 _npi_std _npi_var
numpy/np_cumsum-inl.h: 107 _np_cumsum
numpy/np_delete_op-inl.h: 340 _npi_delete
numpy/np_diff-inl.h: 117 _npi_diff
numpy/np_dot-inl.h: 74 _np_dot
numpy/np_ediff1d_op-inl.h: 149 _npi_ediff1d
numpy/np_einsum_op-inl.h: 691 _npi_einsum
numpy/np_insert_op-inl.h: 314 _npi_insert_scalar _npi_insert_slice 340 _npi_insert_tensor
numpy/np_matmul_op-inl.h: 260 _npi_matmul
numpy/np_matrix_op-inl.h: 178 _npi_column_stack 250 _npi_vstack 369 _np_roll 593 _np_moveaxis 731
    _npi_rot90 1102 _np_diag 1329 _np_diagonal 1456 _np_diagflat
numpy/np_matrix_op.cu: 102 _npi_flip
numpy/np_tensordot_op-inl.h: 326 _npi_tensordot 618 _npi_tensordot_int_axes
numpy/np_trace_op-inl.h: 204 _np_trace
numpy/np_tril_op-inl.h: 165 _npi_tril
numpy/np_true_divide-inl.h: 73 _npi_true_divide_scalar 112 _npi_true_divide
numpy/np_where_op-inl.h: 173 _npi_where 321 _npi_where_lscalar _npi_where_rscalar
numpy/random/np_power_op.h: 122 _npi_powerd
pad.cu: 731 Pad
random/multisample_op.h: 186 _sample_exponential _sample_gamma _sample_generalized_negative_binomial
    _sample_negative_binomial _sample_normal _sample_poisson _sample_uniform
random/pdf_op.h: 524 _random_pdf_dirichlet _random_pdf_exponential _random_pdf_gamma
    _random_pdf_generalized_negative_binomial _random_pdf_negative_binomial _random_pdf_normal
    _random_pdf_poisson _random_pdf_uniform
random/sample_multinomial_op.h: 174 _sample_multinomial
random/sample_op.h: 389 _random_uniform_like 407 _random_normal_like 426 _random_gamma_like 444
    _random_exponential_like 462 _random_poisson_like 481 _random_negative_binomial_like 502
    _random_generalized_negative_binomial_like
random/shuffle_op.cu: 99 _shuffle
regression_output-inl.h: 150 LinearRegressionOutput LogisticRegressionOutput MAERegressionOutput
rnn.cc: 271 RNN
roi_pooling.cu: 200 ROIPooling
sequence_last.cu: 36 SequenceLast
sequence_mask.cu: 96 SequenceMask
sequence_reverse.cu: 36 SequenceReverse
slice_channel.cu: 35 SliceChannel
softmax_output-inl.h: 292 SoftmaxOutput
spatial_transformer.cu: 223 SpatialTransformer
swapaxis.cu: 36 SwapAxis
tensor/amp_cast.h: 145 amp_cast 167 amp_multicast
tensor/broadcast_reduce-inl.cuh: 630 _np_prod _np_sum _npi_broadcast_to _npi_mean moments
tensor/broadcast_reduce_op.h: 603 argmax argmax_channel argmin 1018 _np_max _np_min max min nanprod
    nansum norm prod 1316 mean 1737 pick
tensor/control_flow_op.h: 304 where
tensor/diag_op-inl.h: 271 diag
tensor/dot-inl.h: 84 dot 1364 batch_dot
tensor/elemwise_binary_op.h: 524 _equal _greater _greater_equal _hypot _lesser _lesser_equal
    _logical_and _logical_or _logical_xor _maximum _minimum _not_equal _npi_copysign _npi_ldexp
    _npi_mod _npi_subtract _power _scatter_elemwise_div broadcast_add broadcast_div broadcast_equal
    broadcast_greater broadcast_greater_equal broadcast_hypot broadcast_lesser
    broadcast_lesser_equal broadcast_logical_and broadcast_logical_or broadcast_logical_xor
    broadcast_maximum broadcast_minimum broadcast_mod broadcast_mul broadcast_not_equal
    broadcast_power broadcast_sub 597 _grad_add _mod elemwise_add elemwise_div elemwise_mul
    elemwise_sub 755 _npi_add _npi_multiply _npi_power
tensor/elemwise_binary_scalar_op.h: 298 _contrib_gradientmultiplier _div_scalar _equal_scalar
    _greater_equal_scalar _greater_scalar _hypot_scalar _lesser_equal_scalar _lesser_scalar
    _logical_and_scalar _logical_or_scalar _logical_xor_scalar _maximum_scalar _minimum_scalar
    _minus_scalar _mod_scalar _mul_scalar _not_equal_scalar _npi_add_scalar _npi_arctan2_scalar
    _npi_copysign_scalar _npi_ldexp_scalar _npi_mod_scalar _npi_multiply_scalar _npi_power_scalar
    _npi_rarctan2_scalar _npi_rcopysign_scalar _npi_rldexp_scalar _npi_rmod_scalar
    _npi_rpower_scalar _npi_rsubtract_scalar _npi_subtract_scalar _plus_scalar _power_scalar
    _rdiv_scalar _rminus_scalar _rmod_scalar _rpower_scalar _scatter_minus_scalar
    _scatter_plus_scalar smooth_l1
tensor/elemwise_sum.h: 124 add_n
tensor/elemwise_unary_op.h: 251 _contrib_round_ste _contrib_sign_ste _npi_absolute _npi_arccos
    _npi_arccosh _npi_arcsin _npi_arcsinh _npi_arctan _npi_arctanh _npi_cbrt _npi_ceil _npi_cos
    _npi_cosh _npi_degrees _npi_exp _npi_expm1 _npi_fix _npi_floor _npi_log _npi_log10 _npi_log1p
    _npi_log2 _npi_negative _npi_radians _npi_reciprocal _npi_rint _npi_sign _npi_sin _npi_sinh
    _npi_sqrt _npi_square _npi_tan _npi_tanh _npi_trunc _npx_relu _npx_sigmoid abs arccos arccosh
    arcsin arcsinh arctan arctanh cbrt ceil cos cosh degrees erf erfinv exp expm1 fix floor gamma
    gammaln log log10 log1p log2 logical_not negative radians rcbrt reciprocal relu rint round rsqrt
    sigmoid sign sin sinh softsign sqrt square tan tanh trunc 541 hard_sigmoid 797 _npi_nan_to_num
tensor/indexing_op.cu: 182 Embedding
tensor/indexing_op.h: 1084 take 1149 batch_take
tensor/init_op.h: 627 _contrib_arange_like
tensor/matrix_op-inl.h: 339 _np_transpose transpose 1080 slice 1124 _slice_assign 1228
    _slice_assign_scalar 1355 slice_axis 1544 slice_like 1653 clip 2198 reverse 2556 depth_to_space
    2709 space_to_depth 2968 _npi_dsplit _npi_hsplit _split_v2
tensor/ordering_op-inl.h: 768 topk
""")

# Kernels for any dtype, so no switch rejects one: the name of the launched kernel and its operators
ANY_DTYPE = _by_source("""
BooleanAssign: _npi_boolean_mask_assign_scalar _npi_boolean_mask_assign_tensor
PrefixSumInit: _npx_nonzero
SampleExponentialKernel: _random_exponential
SampleGammaKernel: _random_gamma
SampleGeneralizedNegativeBinomialKernel: _random_generalized_negative_binomial
SampleNegativeBinomialKernel: _random_negative_binomial
SampleNormalKernel: _random_normal
SamplePoissonKernel: _random_poisson
SampleUniformKernel: _random_uniform
SparseRetain: _sparse_retain
arctan2: _npi_arctan2
blackman_fwd: _npi_blackman
broadcast::reduce_kernel: _np_all _np_any sum
broadcast_kernel_gpu: broadcast_axis broadcast_like broadcast_to repeat tile
constant_pad: _npi_pad
cuda::MapPlanKernel: Cast _npi_concatenate _npi_stack one_hot stack
eye_dns_fill: _eye _npi_eye
gather_nd: gather_nd
hamming_fwd: _npi_hamming
hanning_fwd: _npi_hanning
hypot: _npi_hypot
identity: _full _npi_full_like _npi_identity
indices_fwd: _npi_indices
isfinite: _npi_isfinite
isinf: _npi_isinf
isnan: _npi_isnan
isneginf: _npi_isneginf
isposinf: _npi_isposinf
linspace_fwd: _linspace
logspace_fwd: _npi_logspace
np_equal: _npi_equal _npi_equal_scalar
np_greater: _npi_greater _npi_greater_scalar
np_greater_equal: _npi_greater_equal _npi_greater_equal_scalar
np_less: _npi_less _npi_less_scalar
np_less_equal: _npi_less_equal _npi_less_equal_scalar
np_logical_not: _npi_logical_not
np_not_equal: _npi_not_equal _npi_not_equal_scalar
numpy_where_scalar2_kernel: _npi_where_scalar2
range_fwd: _arange _npi_arange
rtrue_divide: _npi_rtrue_divide_scalar
scatter_nd: _scatter_set_nd scatter_nd
set_to_int: BlockGrad _contrib_index_array _identity_with_attr_like_rhs _np_atleast_1d
    _np_atleast_2d _np_atleast_3d _npi_ones _npi_zeros _ones _zeros _zeros_without_dtype make_loss
    ones_like reshape_like shape_array size_array zeros_like
cudaMemcpy: Flatten Reshape _CrossDeviceCopy _copy _copyto _np_copy _np_reshape _np_squeeze
    _npx_reshape cast_storage expand_dims squeeze
""")

_SOURCES: Dict[str, str] = {
    op: source
    for table in (SWITCHES, ANY_DTYPE)
    for source, ops in table.items()
    for op in ops.split()
}


def float16_source(op: str) -> Optional[str]:
    """Return where an operator's float16 CUDA kernel comes from, or None if it has none.

    It is a file and line in MXNet 1.9.1's sources, or the name of the CUDA kernel or function. The
    operator has its name in a symbol's JSON, or an alias.
    """
    return _SOURCES.get(registry.canonical(op))
