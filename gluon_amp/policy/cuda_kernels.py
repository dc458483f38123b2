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
from gluon_amp.graph import op_table

# Groups of the operator table of which only `_grad_add` has one, by how their reasons begin
_GROUPS = (
    *("a legacy operator", "has no float16 kernel", "runs user code", "runs a subgraph"),
    *("created by a later pass", "reads a graph", "computes in int8", "reads only float32 or int8"),
    *("prepares an image", "updates its inputs", "computes learning rates", "part of a gradient"),
)

# Those of the other groups, in the order of the table
_OTHERS = """
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
""".split()

WITHOUT = frozenset(_OTHERS).union(
    *(names.split() for _, reason, names in op_table.GROUPS if reason.startswith(_GROUPS))
) - {"_grad_add"}


def has_float16_kernel(op: str) -> bool:
    """Return whether an operator of MXNet, or an alias, is known to have a float16 CUDA kernel."""
    return op_table.is_known(op) and registry.canonical(op) not in WITHOUT
