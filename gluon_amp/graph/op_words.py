"""What else is known of operators: words, their meaning, and the operators that have them.

Words before names in `op_groups` are also defined here. Some words name inputs of an operator, by
their positions, or attributes: `uncast(1)`, `constants(scalar)`. `Pooling[pool_type=sum,lp]` are
the nodes whose attribute has one of these values (None: it is not set), `RNN@gpu` those on a GPU.
"""

WORDS = """
# Only moves values: each input value occurs at most once in the outputs, so the gradient is only
# moved too (that of a repeated value would be a sum). It is exact.
moves:
# Returns float16 values for float16 values even if it computes in float32: it moves values,
# chooses among them or returns small integers. Constants may be no float16 values (`clip`, `Pad`,
# `SequenceMask`, `_maximum_scalar`).
exact: Activation[act_type=relu] Pooling[pool_type=max,None]
# Returns integers or booleans, whatever it reads.
integers:
# Draws random numbers; so does an RNN with dropout in float64 on a CPU.
random: LeakyReLU[act_type=rrelu] RNN@gpu
# Runs code or a graph of which nothing is known, as does what is not in the table.
code:
# Has other gradients in a second backward pass on a kept graph, as `make operators` measures, or
# may have them: all code. A rrelu ends the process there on a CPU. cuDNN overwrites the reserve
# space of an RNN; torch copies it where a graph is kept (pytorch issue 703).
once: LeakyReLU[act_type=rrelu] RNN@gpu
# Writes these inputs: running statistics, and a gamma that it sets to 1.
writes(3,4): BatchNorm BatchNorm_v1 _contrib_BatchNormWithReLU _contrib_SyncBatchNorm
writes(1): IdentityAttachKLSparseReg BatchNorm[fix_gamma=True,None]
    BatchNorm_v1[fix_gamma=True,None] _contrib_BatchNormWithReLU[fix_gamma=True,None]
    _contrib_SyncBatchNorm[fix_gamma=True,None]
# Adds the gradients of all inputs correctly to those in their arrays (`grad_req="add"`). A loop or
# branch does if its bodies do.
adds: BatchNorm Cast Convolution Deconvolution Embedding FullyConnected GroupNorm InstanceNorm
    LayerNorm LeakyReLU RNN _cond _copy _foreach _while_loop amp_cast@gpu batch_dot dot
# Has a wrong gradient of this input where the gradient of its data is computed in place.
inplace(0): hard_sigmoid
inplace(1): LeakyReLU[act_type=prelu]
# A loss head: computes the gradient of its first input, and ignores its head gradient.
head: SoftmaxOutput[out_grad=False,None] LinearRegressionOutput LogisticRegressionOutput
    MAERegressionOutput SVMOutput MakeLoss make_loss
# A matrix product of these inputs. A bias is added to the product. An RNN is none, as the products
# of its time steps are inside the operator.
product(0,1): Convolution Deconvolution FullyConnected dot batch_dot _np_dot _npi_matmul
    _npi_tensordot _npi_tensordot_int_axes _contrib_interleaved_matmul_encdec_qk
    _contrib_interleaved_matmul_encdec_valatt _contrib_interleaved_matmul_selfatt_valatt
product(0): _contrib_interleaved_matmul_selfatt_qk
# Does not run on Tensor Cores in float16.
no_tensor_cores:
# Its result jumps where it decides: rounding its inputs may change it by any amount.
decides: Cast topk sort argsort argmax argmin argmax_channel _npi_argmax _npi_argmin
    floor ceil round rint fix trunc sign _contrib_round_ste _contrib_sign_ste
    _npi_floor _npi_ceil _npi_around _npi_rint _npi_fix _npi_trunc _npi_sign
    ROIPooling _contrib_box_nms _contrib_MultiBoxDetection _contrib_Proposal
    _contrib_MultiProposal _contrib_bipartite_matching
# Never casts these inputs. A node lists no gaps for optional inputs: `CTCLoss` has its two lengths
# at 2 and 3, or one of them at 2.
uncast(0): Embedding _contrib_SparseEmbedding # ids
    _npi_bincount # whole numbers to count
    _npi_where _npi_where_lscalar _npi_where_rscalar where # condition
uncast(1): SequenceLast SequenceMask SequenceReverse softmax # lengths
uncast(4): RNN # lengths; a GRU has them at 3, where a cast is exact up to 2048 steps
uncast(1,2,3): CTCLoss # labels, lengths
uncast(1): _contrib_index_copy _npi_delete batch_take gather_nd pick scatter_nd take # indices
uncast(2): _npi_insert_tensor _scatter_set_nd # indices
uncast(1): _sparse_retain # rows
    _contrib_boolean_mask _npi_boolean_mask_assign_scalar # mask
    _npi_boolean_mask_assign_tensor # mask
uncast(5): _contrib_hawkesll # marks
uncast(1): broadcast_like reshape_like slice_like # only its shape is read
# Needs only the shape of these inputs.
shape(0): zeros_like ones_like shape_array size_array _contrib_arange_like _contrib_MultiBoxPrior
    _npi_full_like
shape(1): slice_like reshape_like broadcast_like Crop _contrib_BilinearResize2D
# Reads regions there: rows of an image's number and corners.
regions(1): ROIPooling _contrib_ROIAlign
# Has numeric constants in these attributes: all operators that may run in float16.
constants(scalar): _npi_arctan2_scalar _npi_rarctan2_scalar _npi_where_lscalar _npi_where_rscalar
    _slice_assign_scalar _contrib_gradientmultiplier
constants(a_min,a_max): clip
constants(value): SequenceMask _npi_boolean_mask_assign_scalar
constants(constant_value): Pad _npi_pad
constants(fill_value): _npi_full_like
constants(val): _npi_insert_scalar _npi_insert_slice _npi_insert_tensor
constants(to_begin_scalar,to_end_scalar): _npi_ediff1d
constants(initial): _np_max _np_min
constants(alpha,beta): hard_sigmoid _random_gamma_like
constants(slope,lower_bound,upper_bound): LeakyReLU
constants(lstm_state_clip_min,lstm_state_clip_max): RNN
constants(lam): _random_exponential_like _random_poisson_like
constants(loc,scale): _random_normal_like
constants(low,high): _random_uniform_like
constants(mu,alpha): _random_generalized_negative_binomial_like
# Has no float16 CUDA kernel in MXNet 1.9.1, or none was seen. `python -m experiments.cuda_kernels`
# ran the released CUDA build (the wheel mxnet-cu112 1.9.1) on libraries of CUDA, cuDNN and cuBLAS
# that compute nothing, so that MXNet's own host code ran: it chooses the kernels, checks the dtypes
# and launches. Each operator ran on float16 arrays, forward and backward. The file and the line
# that chose each kernel are in `experiments/cuda_kernels/kernels.txt`; MXNet names them when the
# same operator gets bfloat16 arrays ("Unknown type enum 12").
no_float16:
    _contrib_ModulatedDeformableConvolution BatchNorm_v1 _contrib_BatchNormWithReLU
    _contrib_SyncBatchNorm InstanceNorm LRN SoftmaxActivation SVMOutput softmax_cross_entropy
    CTCLoss IdentityAttachKLSparseReg _contrib_SparseEmbedding _contrib_hawkesll _square_sum
    multi_sum_sq col2im _npi_norm _histogram _ravel_multi_index _unravel_index sort argsort
    _npi_unique _npi_percentile _npi_polyval _contrib_RROIAlign _contrib_PSROIPooling
    _contrib_DeformablePSROIPooling _contrib_Proposal _contrib_MultiProposal _contrib_MultiBoxPrior
    _contrib_MultiBoxTarget _contrib_MultiBoxDetection _contrib_box_encode
    _contrib_bipartite_matching _contrib_mrcnn_mask_target _npi_bernoulli _npi_choice
    _npi_exponential _npi_gamma _npi_gumbel _npi_logistic _npi_multinomial _npi_normal _npi_normal_n
    _npi_pareto _npi_rayleigh _npi_uniform _npi_uniform_n _npi_weibull _random_randint
    _sample_unique_zipfian _npx_constraint_check _npi_lcm _npi_lcm_scalar _npi_bitwise_and
    _npi_bitwise_and_scalar _npi_bitwise_or _npi_bitwise_or_scalar _npi_bitwise_xor
    _npi_bitwise_xor_scalar _npi_bitwise_not _npi_diag_indices_from _npi_share_memory
"""

# Words that imply others
IMPLIED = {"moves": ("exact",), "code": ("once",)}

# The words of an operator that is not in the table, and of one that computes a gradient
OF_UNKNOWN = ("code", "once", "no_float16")
OF_BACKWARD = ("once",)
