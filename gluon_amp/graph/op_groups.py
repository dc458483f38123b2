"""Which operators may compute in a low precision, and which may not: kinds and reasons.

Every operator registered in MXNet 1.9.1 is listed once, under the name that a symbol's JSON has
for it (`registry.canonical`), in a group with a kind and a reason. The graph pass inserts the casts
that the kind requires:

=========  =======================================  ================================
kind       its float inputs are cast to             its output is in
=========  =======================================  ================================
`compute`  the policy's compute dtype               the policy's compute dtype
`float32`  float32                                  float32
`norm`     float32                                  the dtype of its data input
`follow`   the dtype of the first of them           that dtype
`widest`   the widest dtype among them              that dtype
`uncast`   nothing                                  whatever the operator returns
=========  =======================================  ================================

Some inputs are never cast, whatever the kind: ids, indices, lengths, conditions. Float16 holds all
integers only up to 2048, so a cast would silently corrupt them. The word `uncast` names those that
may have another dtype than the operator's other inputs. An operator that requires one dtype for all
inputs, among them coordinates (`_contrib_ROIAlign`) or labels (`SoftmaxOutput`), runs in float32
instead.

Statements about kernels refer to MXNet's source at tag 1.9.1. Numbers in parentheses are issues of
apache/mxnet.

The first line of a group is its kind and the reason. The lines after it are the names. Words before
names say more about them; `op_words` has their meaning.
"""

TABLE = """
# convolutions, matrix products
compute: Tensor Cores multiply float16 and accumulate in float32
    Convolution Deconvolution FullyConnected RNN
# `dot` of two vectors too: in float16 MXNet 1.9.1 runs it as a matrix product (dot-inl.h), as
# mshadow's product of vectors has no float16 kernel (dot_engine-inl.h:613).
compute: its kernel, cublasSgemmEx, accumulates in float32, but not on Tensor Cores (17665)
    no_tensor_cores: dot _np_dot _npi_tensordot _npi_tensordot_int_axes
compute: its kernel multiplies and accumulates in float32 (np_einsum_op-inl.h)
    _npi_einsum
compute: its kernel, cublasGemmStridedBatchedEx, reads float16 and accumulates in float32
    _contrib_interleaved_matmul_encdec_qk _contrib_interleaved_matmul_encdec_valatt
    _contrib_interleaved_matmul_selfatt_qk _contrib_interleaved_matmul_selfatt_valatt
float32: its float16 kernel, cublasHgemmStridedBatched, accumulates in float16 (18584)
    batch_dot _npi_matmul
float32: its sampling positions are off by half a pixel past 1024 in float16
    _contrib_DeformableConvolution
    once: _contrib_ModulatedDeformableConvolution
float32: accumulates products in the dtype of its inputs (correlation-inl.h)
    Correlation
float32: a legacy operator that was not written for float16
    no_float16: Convolution_v1 Pooling_v1 Crop
float32: has no float16 kernel
    no_float16:
    _linalg_gelqf _linalg_gemm _linalg_gemm2 _linalg_inverse _linalg_makediag _linalg_maketrian
    _linalg_extractdiag _linalg_extracttrian _linalg_potrf _linalg_potri _linalg_syevd
    _linalg_syrk _linalg_trmm _linalg_trsm _linalg_sumlogdiag
    _npi_cholesky _npi_eig _npi_eigh _npi_eigvals _npi_eigvalsh _npi_pinv
    _npi_pinv_scalar_rcond _npi_solve _npi_svd _npi_tensorinv _npi_tensorsolve khatri_rao
    _npi_around
    no_float16,once: _linalg_det _linalg_slogdet _contrib_fft _contrib_ifft _contrib_count_sketch
# normalization
norm: sums its statistics in float32; a normalized value fits float16
    BatchNorm BatchNorm_v1 _contrib_BatchNormWithReLU _contrib_SyncBatchNorm LayerNorm GroupNorm
    InstanceNorm
norm: sums squares in float32; a value divided by their root fits float16
    L2Normalization LRN
# softmax, losses, embedding
float32: sums exponentials in the dtype of its input, even with dtype='float32'
    softmax log_softmax softmin SoftmaxActivation
float32: a loss: the scale multiplies it, and float16 ends at 65504
    SoftmaxOutput LinearRegressionOutput LogisticRegressionOutput MAERegressionOutput SVMOutput
    softmax_cross_entropy CTCLoss smooth_l1 MakeLoss make_loss
    once: IdentityAttachKLSparseReg
float32: the gradient of a repeated row is a sum, which saturates in float16 (17703)
    Embedding
    once: _contrib_SparseEmbedding
float32: likelihoods and their logarithms leave the range of float16
    _contrib_hawkesll
    _random_pdf_dirichlet _random_pdf_exponential _random_pdf_gamma
    _random_pdf_generalized_negative_binomial _random_pdf_negative_binomial _random_pdf_normal
    _random_pdf_poisson _random_pdf_uniform
# reductions
float32: a sum or product of many values: it saturates or leaves the range of float16 (15125)
    sum mean prod nansum nanprod norm moments multi_sum_sq col2im
    _np_sum _np_prod _np_cumsum _np_trace _npi_mean _npi_average _npi_std _npi_var _npi_norm
    _npi_bincount _histogram
    Pooling[pool_type=sum,lp]
    once: _square_sum
float32: returns an index in the dtype of the values: float16 is exact only up to 2048
    argmax argmin argmax_channel _contrib_arange_like _ravel_multi_index _unravel_index
float32: sorts: no float16 kernel, or indices in the dtype of the values
    sort argsort topk _npi_unique _npi_percentile
follow: returns one of its values
    exact: max min _np_max _np_min
# one input, elementwise
float32: a power or an exponential: its values or its gradients leave the range of float16
    exp expm1 square reciprocal rsqrt rcbrt sinh cosh tan gamma gammaln degrees
    _power_scalar _rpower_scalar _rdiv_scalar _hypot_scalar
    _npi_exp _npi_expm1 _npi_square _npi_reciprocal _npi_sinh _npi_cosh _npi_tan _npi_degrees
    _npi_power_scalar _npi_rpower_scalar _npi_rtrue_divide_scalar
    _npi_ldexp_scalar _npi_rldexp_scalar _npi_polyval _contrib_quadratic
float32: a logarithm: float16 rounds a small argument to 0, and the result is -inf
    log log10 log2 log1p _npi_log _npi_log10 _npi_log2 _npi_log1p
float32: replaces infinity by the largest float32 number, which float16 cannot hold
    _npi_nan_to_num
float32: infinite or very steep at the ends of its range
    arccos arcsin arctanh erfinv _npi_arccos _npi_arcsin _npi_arctanh
follow: bounded, or about as large as its input; its kernel computes in float32
    Activation LeakyReLU sigmoid tanh hard_sigmoid softsign erf
    sin cos arctan arcsinh arccosh sqrt cbrt radians _npx_sigmoid _npi_tanh
    _npi_sin _npi_cos _npi_arctan _npi_arcsinh _npi_arccosh _npi_sqrt _npi_cbrt _npi_radians
    _npi_arctan2_scalar _npi_rarctan2_scalar _contrib_div_sqrt_dim
    exact: relu _npx_relu
follow: exact in every dtype
    clip
    exact: abs negative sign ceil floor rint round fix trunc logical_not
    _npi_absolute _npi_negative _npi_sign _npi_ceil _npi_floor _npi_rint _npi_fix _npi_trunc
    _contrib_round_ste _contrib_sign_ste _contrib_gradientmultiplier
follow: one tensor and a constant, which is rounded to the tensor's dtype
    constants(scalar):
    _plus_scalar _minus_scalar _rminus_scalar _mul_scalar _div_scalar _mod_scalar _rmod_scalar
    _maximum_scalar _minimum_scalar _scatter_plus_scalar _scatter_minus_scalar
    _npi_add_scalar _npi_subtract_scalar _npi_rsubtract_scalar _npi_multiply_scalar
    _npi_true_divide_scalar _npi_mod_scalar _npi_rmod_scalar _npi_rcopysign_scalar
    constants(scalar),exact: _npi_copysign_scalar
    constants(scalar),exact,decides:
    _equal_scalar _not_equal_scalar _greater_scalar _greater_equal_scalar _lesser_scalar
    _lesser_equal_scalar
    constants(scalar),exact: _logical_and_scalar _logical_or_scalar _logical_xor_scalar
follow: drops values and scales the others by a small constant
    once,random: Dropout
# pooling, resizing
follow: its kernel pools or resizes in float32; an average is no larger than its values
    Pooling UpSampling _contrib_AdaptiveAvgPooling2D _contrib_BilinearResize2D
# moving values
follow: moves values without arithmetic
    Pad _npi_pad SequenceMask
    once: _sparse_retain
    exact,random: _shuffle
    exact: _identity_with_attr_like_rhs cast_storage
    repeat tile broadcast_to broadcast_axis broadcast_like _npi_broadcast_to im2col
    moves:
    _copy _np_copy _copyto _CrossDeviceCopy BlockGrad
    Reshape _np_reshape _npx_reshape reshape_like Flatten expand_dims squeeze _np_squeeze
    transpose _np_transpose SwapAxis _np_moveaxis depth_to_space space_to_depth
    slice slice_axis slice_like SliceChannel _split_v2 _npi_hsplit _npi_dsplit
    reverse _npi_flip _npi_rot90 _np_roll SequenceLast SequenceReverse
    diag _np_diag _np_diagonal _np_diagflat _npi_tril
follow: picks values by index or condition
    _npi_where_lscalar _npi_where_rscalar _npi_boolean_mask_assign_scalar _slice_assign_scalar
    exact: take batch_take pick gather_nd scatter_nd _contrib_boolean_mask _npi_delete
follow: creates values in the dtype of its input
    _npi_full_like
    exact: zeros_like ones_like
    random:
    _random_exponential_like _random_gamma_like _random_generalized_negative_binomial_like
    _random_negative_binomial_like _random_normal_like _random_poisson_like _random_uniform_like
# several inputs
widest: arithmetic on several tensors
    elemwise_add elemwise_sub elemwise_mul elemwise_div add_n _mod
    broadcast_add broadcast_sub broadcast_mul broadcast_div broadcast_mod
    _npi_add _npi_subtract _npi_multiply _npi_true_divide _npi_mod _npi_arctan2
    _npi_diff _npi_ediff1d _scatter_elemwise_div
    exact: _npi_copysign
widest: selects from several tensors, or compares them
    exact:
    _maximum _minimum broadcast_maximum broadcast_minimum
    exact,decides:
    _equal _not_equal _greater _greater_equal _lesser _lesser_equal
    broadcast_equal broadcast_not_equal broadcast_greater broadcast_greater_equal
    broadcast_lesser broadcast_lesser_equal
    exact:
    _logical_and _logical_or _logical_xor
    broadcast_logical_and broadcast_logical_or broadcast_logical_xor
    integers,decides:
    _npi_equal _npi_not_equal _npi_greater _npi_greater_equal _npi_less _npi_less_equal
    integers: _contrib_allclose
widest: joins several tensors
    moves:
    Concat stack _rnn_param_concat
    _npi_concatenate _npi_stack _npi_vstack _npi_hstack _npi_dstack _npi_column_stack
    _np_atleast_1d _np_atleast_2d _np_atleast_3d
widest: picks from several tensors, or writes into one
    exact:
    where _npi_where _slice_assign _scatter_set_nd _contrib_index_copy
    _npi_boolean_mask_assign_tensor _npi_insert_scalar _npi_insert_slice _npi_insert_tensor
float32: a power or a product of powers: it leaves the range of float16
    _power broadcast_power _hypot broadcast_hypot _npi_power _npi_hypot _npi_ldexp
# boxes, grids, regions
float32: reads coordinates: float16 has no half pixels past 1024, no odd pixels past 2048 (16669)
    ROIPooling _contrib_ROIAlign _contrib_RROIAlign _contrib_PSROIPooling
    _contrib_DeformablePSROIPooling _contrib_Proposal _contrib_MultiProposal
    _contrib_MultiBoxPrior _contrib_MultiBoxTarget _contrib_MultiBoxDetection
    _contrib_box_iou _contrib_box_nms _contrib_box_encode _contrib_box_decode
    _contrib_bipartite_matching _contrib_mrcnn_mask_target
    GridGenerator BilinearSampler
    once: SpatialTransformer
# user code and subgraphs
float32: runs user code, which may expect float32
    code,no_float16: Custom _CustomFunction _NDArray _Native
float32: runs a subgraph, which may expect float32
    code,no_float16: _foreach _while_loop _cond _CachedOp _CachedOpThreadSafe
float32: created by a later pass for one device, from operators that are already cast
    code,no_float16:
    _sg_mkldnn_conv _sg_mkldnn_fully_connected _sg_mkldnn_selfatt_qk _sg_mkldnn_selfatt_valatt
    _TensorRT _FusedOp _FusedOpHelper _FusedOpOutHelper
# random numbers
float32: reads the parameters of a distribution
    random:
    _sample_exponential _sample_gamma _sample_generalized_negative_binomial _sample_multinomial
    _sample_negative_binomial _sample_normal _sample_poisson _sample_uniform
    _npi_bernoulli _npi_choice _npi_exponential _npi_gamma _npi_gumbel _npi_logistic
    _npi_multinomial _npi_normal _npi_normal_n _npi_pareto _npi_powerd _npi_rayleigh
    _npi_uniform _npi_uniform_n _npi_weibull
uncast: has no inputs
    _zeros _zeros_without_dtype _ones _full _eye _arange _linspace
    _npi_zeros _npi_ones _npi_eye _npi_identity _npi_indices _npi_arange _npi_logspace
    _npi_blackman _npi_hamming _npi_hanning
    random:
    _random_exponential _random_gamma _random_generalized_negative_binomial
    _random_negative_binomial _random_normal _random_poisson _random_randint _random_uniform
    _sample_unique_zipfian
# integers, booleans, shapes
uncast: a cast itself
    Cast amp_cast amp_multicast
uncast: reads ids, integers or booleans
    one_hot _npi_where_scalar2 _npx_constraint_check _npi_lcm _npi_lcm_scalar
    _npi_bitwise_and _npi_bitwise_and_scalar _npi_bitwise_or _npi_bitwise_or_scalar
    _npi_bitwise_xor _npi_bitwise_xor_scalar _npi_bitwise_not
uncast: returns a count, an index or a boolean, whatever the dtype of its input
    all_finite multi_all_finite
    integers:
    shape_array size_array _contrib_index_array _npi_diag_indices_from _npi_share_memory
    _npi_argmax _npi_argmin _npx_nonzero _np_all _np_any
    _npi_isfinite _npi_isinf _npi_isnan _npi_isneginf _npi_isposinf _npi_logical_not
    integers,decides:
    _npi_equal_scalar _npi_not_equal_scalar _npi_greater_scalar _npi_greater_equal_scalar
    _npi_less_scalar _npi_less_equal_scalar
uncast: reads a graph with int64 edges
    no_float16: _contrib_dgl_adjacency _contrib_dgl_graph_compact _contrib_dgl_subgraph
    _contrib_edge_id _contrib_getnnz
    no_float16,random:
    _contrib_dgl_csr_neighbor_non_uniform_sample _contrib_dgl_csr_neighbor_uniform_sample
uncast: computes in int8, with ranges in float32
    no_float16: _contrib_dequantize _contrib_requantize
    _contrib_quantized_act _contrib_quantized_batch_norm _contrib_quantized_concat
    _contrib_quantized_conv _contrib_quantized_elemwise_add _contrib_quantized_elemwise_mul
    _contrib_quantized_embedding _contrib_quantized_flatten _contrib_quantized_fully_connected
    _contrib_quantized_pooling _contrib_quantized_rnn
float32: reads only float32 or int8
    no_float16:
    _contrib_quantize _contrib_quantize_asym _contrib_quantize_v2 _contrib_calibrate_entropy
uncast: prepares an image for a network
    no_float16: _cvcopyMakeBorder _cvimdecode _cvimread _cvimresize _imdecode
    _image_adjust_lighting _image_crop _image_flip_left_right _image_flip_top_bottom
    _image_normalize _image_resize _image_to_tensor
    no_float16,random:
    _image_random_brightness _image_random_color_jitter _image_random_contrast
    _image_random_flip_left_right _image_random_flip_top_bottom _image_random_hue
    _image_random_lighting _image_random_saturation
# not in a network's graph
uncast: updates its inputs in place, so after a cast it would update a copy
    no_float16: _adamw_update _mp_adamw_update _multi_adamw_update _multi_mp_adamw_update
    _contrib_group_adagrad_update _sparse_adagrad_update adam_update ftml_update ftrl_update
    lamb_update_phase1 lamb_update_phase2 mp_lamb_update_phase1 mp_lamb_update_phase2
    _multi_lamb_update _multi_mp_lamb_update
    sgd_update sgd_mom_update mp_sgd_update mp_sgd_mom_update nag_mom_update mp_nag_mom_update
    multi_sgd_update multi_sgd_mom_update multi_mp_sgd_update multi_mp_sgd_mom_update
    preloaded_multi_sgd_update preloaded_multi_sgd_mom_update
    preloaded_multi_mp_sgd_update preloaded_multi_mp_sgd_mom_update
    rmsprop_update rmspropalex_update signsgd_update signum_update
    reset_arrays _set_value _onehot_encode fill_element_0index
float32: computes learning rates from sums of squares
    no_float16: multi_lars
uncast: part of a gradient, never in a forward graph
    _grad_add
    no_float16: _NoGradient _broadcast_backward _split_v2_backward _npi_hsplit_backward
    _contrib_backward_gradientmultiplier _contrib_backward_hawkesll
    _contrib_backward_index_copy _contrib_backward_quadratic
    _npi_backward_ediff1d _npi_backward_nan_to_num _npi_backward_polyval
"""
