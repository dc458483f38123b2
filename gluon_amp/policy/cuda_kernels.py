"""Which operators have a float16 CUDA kernel in MXNet 1.9.1: all but those of a list.

They have none, or none was seen. The list was made by running the released CUDA build (the wheel
mxnet-cu112 1.9.1), not by reading: `python -m experiments.cuda_kernels`. There CUDA, cuDNN and
cuBLAS are replaced by libraries that compute nothing, so that MXNet's own host code runs on any
machine: it chooses the kernels, checks the dtypes and launches. Each operator ran on float16
arrays, forward and backward. The file and the line that chose each kernel are in
`experiments/cuda_kernels/kernels.txt`. MXNet names them when the same operator gets bfloat16 arrays
("Unknown type enum 12").
"""

from gluon_amp.base import registry
from gluon_amp.policy import op_table

# In the order of the operator table
WITHOUT = frozenset(
    """
    _contrib_ModulatedDeformableConvolution Convolution_v1 Pooling_v1 Crop _linalg_gelqf
    _linalg_gemm _linalg_gemm2 _linalg_inverse _linalg_makediag _linalg_maketrian
    _linalg_extractdiag _linalg_extracttrian _linalg_potrf _linalg_potri _linalg_syevd _linalg_syrk
    _linalg_trmm _linalg_trsm _linalg_det _linalg_slogdet _linalg_sumlogdiag _npi_cholesky _npi_eig
    _npi_eigh _npi_eigvals _npi_eigvalsh _npi_pinv _npi_pinv_scalar_rcond _npi_solve _npi_svd
    _npi_tensorinv _npi_tensorsolve khatri_rao _contrib_fft _contrib_ifft _contrib_count_sketch
    _npi_around BatchNorm_v1 _contrib_BatchNormWithReLU _contrib_SyncBatchNorm InstanceNorm LRN
    SoftmaxActivation SVMOutput softmax_cross_entropy CTCLoss IdentityAttachKLSparseReg
    _contrib_SparseEmbedding _contrib_hawkesll _square_sum multi_sum_sq col2im _npi_norm _histogram
    _ravel_multi_index _unravel_index sort argsort _npi_unique _npi_percentile _npi_polyval
    _contrib_RROIAlign _contrib_PSROIPooling _contrib_DeformablePSROIPooling _contrib_Proposal
    _contrib_MultiProposal _contrib_MultiBoxPrior _contrib_MultiBoxTarget _contrib_MultiBoxDetection
    _contrib_box_encode _contrib_bipartite_matching _contrib_mrcnn_mask_target Custom
    _CustomFunction _NDArray _Native _foreach _while_loop _cond _CachedOp _CachedOpThreadSafe
    _sg_mkldnn_conv _sg_mkldnn_fully_connected _sg_mkldnn_selfatt_qk _sg_mkldnn_selfatt_valatt
    _TensorRT _FusedOp _FusedOpHelper _FusedOpOutHelper _npi_bernoulli _npi_choice _npi_exponential
    _npi_gamma _npi_gumbel _npi_logistic _npi_multinomial _npi_normal _npi_normal_n _npi_pareto
    _npi_rayleigh _npi_uniform _npi_uniform_n _npi_weibull _random_randint _sample_unique_zipfian
    _npx_constraint_check _npi_lcm _npi_lcm_scalar _npi_bitwise_and _npi_bitwise_and_scalar
    _npi_bitwise_or _npi_bitwise_or_scalar _npi_bitwise_xor _npi_bitwise_xor_scalar _npi_bitwise_not
    _npi_diag_indices_from _npi_share_memory _contrib_dgl_adjacency
    _contrib_dgl_csr_neighbor_non_uniform_sample _contrib_dgl_csr_neighbor_uniform_sample
    _contrib_dgl_graph_compact _contrib_dgl_subgraph _contrib_edge_id _contrib_getnnz
    _contrib_dequantize _contrib_requantize _contrib_quantized_act _contrib_quantized_batch_norm
    _contrib_quantized_concat _contrib_quantized_conv _contrib_quantized_elemwise_add
    _contrib_quantized_elemwise_mul _contrib_quantized_embedding _contrib_quantized_flatten
    _contrib_quantized_fully_connected _contrib_quantized_pooling _contrib_quantized_rnn
    _contrib_quantize _contrib_quantize_asym _contrib_quantize_v2 _contrib_calibrate_entropy
    _cvcopyMakeBorder _cvimdecode _cvimread _cvimresize _imdecode _image_adjust_lighting _image_crop
    _image_flip_left_right _image_flip_top_bottom _image_normalize _image_random_brightness
    _image_random_color_jitter _image_random_contrast _image_random_flip_left_right
    _image_random_flip_top_bottom _image_random_hue _image_random_lighting _image_random_saturation
    _image_resize _image_to_tensor _adamw_update _mp_adamw_update _multi_adamw_update
    _multi_mp_adamw_update _contrib_group_adagrad_update _sparse_adagrad_update adam_update
    ftml_update ftrl_update lamb_update_phase1 lamb_update_phase2 mp_lamb_update_phase1
    mp_lamb_update_phase2 _multi_lamb_update _multi_mp_lamb_update sgd_update sgd_mom_update
    mp_sgd_update mp_sgd_mom_update nag_mom_update mp_nag_mom_update multi_sgd_update
    multi_sgd_mom_update multi_mp_sgd_update multi_mp_sgd_mom_update preloaded_multi_sgd_update
    preloaded_multi_sgd_mom_update preloaded_multi_mp_sgd_update preloaded_multi_mp_sgd_mom_update
    rmsprop_update rmspropalex_update signsgd_update signum_update reset_arrays _set_value
    _onehot_encode fill_element_0index multi_lars _NoGradient _broadcast_backward _split_v2_backward
    _npi_hsplit_backward _contrib_backward_gradientmultiplier _contrib_backward_hawkesll
    _contrib_backward_index_copy _contrib_backward_quadratic _npi_backward_ediff1d
    _npi_backward_nan_to_num _npi_backward_polyval
    """.split()
)


def has_float16_kernel(op: str) -> bool:
    """Return whether an operator of MXNet, or an alias, is known to have a float16 CUDA kernel."""
    return op_table.is_known(op) and registry.canonical(op) not in WITHOUT
