"""Which operators may compute in a low precision, and which may not: MXNet 1.9.1's operators, as data.

Every operator registered in MXNet 1.9.1 stands here once, under the name that a symbol's JSON shows, in a group
that gives its kind and the reason for it. The graph pass reads the kind and inserts the casts:

===========  ====================================================  ======================================
kind         float inputs are cast to                              the output is in
===========  ====================================================  ======================================
`compute`    the policy's compute dtype                            the policy's compute dtype
`float32`    float32                                               float32
`norm`       float32 (BatchNorm takes its data as it is)           the dtype of the data input
`follow`     the dtype of the first input that may be cast         that dtype
`widest`     the widest dtype among them                           that dtype
`integer`    nothing: no input is ever cast                        what the operator says
===========  ====================================================  ======================================

`uncast` names inputs, by their position in the node's `inputs`, that keep the dtype they arrive with whatever the
kind: ids, indices, lengths, conditions. float16 counts exactly only to 2048, so such a cast would corrupt them
silently. It lists only inputs whose dtype the operator's type inference leaves free; where the operator demands
one dtype for all (ROIAlign's boxes, SoftmaxOutput's labels), the whole operator is in `float32` instead.

Facts about MXNet below are from its source at tag 1.9.1; numbers are issues of apache/mxnet.
"""

import difflib
from typing import Dict, List, NamedTuple, Tuple

__all__ = ["EXACT", "KINDS", "MOVES", "OpRule", "close_matches", "rule"]

KINDS = ("compute", "float32", "norm", "follow", "widest", "integer")


class OpRule(NamedTuple):
    """What the graph pass does with one operator.

    Attributes
    ----------
    kind : str
        One of `KINDS`.
    reason : str
        Why, in one line.
    uncast : tuple of int
        Positions in the node's inputs that are never cast.
    """

    kind: str
    reason: str
    uncast: Tuple[int, ...] = ()


# (kind, reason, canonical names)
GROUPS = [
    # ---------------------------------------------------------------- products and convolutions
    (
        "compute",
        "products that Tensor Cores multiply in float16 and add up in float32",
        "Convolution Deconvolution FullyConnected RNN",
    ),
    (
        "compute",
        "matrix product with a float32 sum: cublasSgemmEx (dot_engine-inl.h)",
        "dot _np_dot _npi_matmul _npi_tensordot _npi_tensordot_int_axes",
    ),
    (
        "compute",
        "attention products through cublasGemmStridedBatchedEx, which adds up in float32",
        """_contrib_interleaved_matmul_selfatt_qk _contrib_interleaved_matmul_selfatt_valatt
        _contrib_interleaved_matmul_encdec_qk _contrib_interleaved_matmul_encdec_valatt""",
    ),
    (
        "float32",
        "its float16 kernel, cublasHgemmStridedBatched, also adds up in float16 (18584)",
        "batch_dot",
    ),
    # ---------------------------------------------------------------- normalisation
    (
        "norm",
        "statistics need float32; a normalised value fits float16",
        """BatchNorm BatchNorm_v1 _contrib_BatchNormWithReLU _contrib_SyncBatchNorm LayerNorm GroupNorm
        InstanceNorm L2Normalization LRN""",
    ),
    # ---------------------------------------------------------------- softmax, losses
    (
        "float32",
        "exponentials and their sum: with float16 input even dtype='float32' sums in float16",
        "softmax log_softmax softmin SoftmaxActivation",
    ),
    (
        "float32",
        "a loss: it is a sum, and the loss scale multiplies it",
        """SoftmaxOutput LinearRegressionOutput LogisticRegressionOutput MAERegressionOutput SVMOutput
        softmax_cross_entropy CTCLoss MakeLoss make_loss smooth_l1 IdentityAttachKLSparseReg""",
    ),
    (
        "float32",
        "its gradient adds up repeated rows and saturates in float16 (17703)",
        "Embedding _contrib_SparseEmbedding",
    ),
    ("float32", "a reduction over many values", "sum mean norm nansum prod nanprod moments"),
    (
        "float32",
        "leaves the range of float16",
        "exp expm1 log log10 log2 log1p square reciprocal rsqrt rcbrt",
    ),
    # ---------------------------------------------------------------- activations and pooling
    (
        "follow",
        "elementwise, and no larger than its input",
        """Activation LeakyReLU relu sigmoid tanh hard_sigmoid softsign erf clip abs negative Dropout""",
    ),
    (
        "follow",
        "pools values: the result is no larger than they are",
        "Pooling Pooling_v1 UpSampling",
    ),
    (
        "follow",
        "moves values without arithmetic",
        """Reshape Flatten transpose SwapAxis expand_dims squeeze slice slice_axis slice_like SliceChannel
        _split_v2 Pad Crop tile repeat reverse BlockGrad _copy reshape_like broadcast_to broadcast_like
        broadcast_axis depth_to_space space_to_depth take gather_nd pick SequenceMask SequenceLast
        SequenceReverse""",
    ),
    (
        "follow",
        "one input and a constant",
        """_plus_scalar _minus_scalar _rminus_scalar _mul_scalar _div_scalar _maximum_scalar _minimum_scalar""",
    ),
    # ---------------------------------------------------------------- several equal inputs
    (
        "widest",
        "several inputs of equal rank",
        """elemwise_add elemwise_sub elemwise_mul elemwise_div broadcast_add broadcast_sub broadcast_mul
        broadcast_div broadcast_maximum broadcast_minimum _maximum _minimum add_n Concat stack where
        _rnn_param_concat""",
    ),
    # ---------------------------------------------------------------- ids, shapes, constants
    (
        "integer",
        "has no float input to cast",
        """Cast amp_cast amp_multicast one_hot shape_array size_array _zeros _ones _full _arange _eye""",
    ),
]

# Inputs that keep their own dtype, by position
UNCAST = {
    "CTCLoss": (1, 2, 3),
    "Embedding": (0,),
    "SequenceLast": (1,),
    "SequenceMask": (1,),
    "SequenceReverse": (1,),
    "_contrib_SparseEmbedding": (0,),
    "broadcast_like": (1,),
    "gather_nd": (1,),
    "pick": (1,),
    "reshape_like": (1,),
    "slice_like": (1,),
    "softmax": (1,),
    "take": (1,),
    "where": (0,),
}

_MOVES = """Reshape Flatten transpose SwapAxis expand_dims squeeze slice slice_axis SliceChannel _split_v2 reverse
BlockGrad _copy reshape_like Concat stack _rnn_param_concat depth_to_space space_to_depth"""

_EXACT = """relu abs negative tile repeat broadcast_to broadcast_like broadcast_axis take gather_nd pick
SequenceLast SequenceReverse where _maximum _minimum broadcast_maximum broadcast_minimum max min"""

MOVES = frozenset(_MOVES.split())
EXACT = MOVES | frozenset(_EXACT.split())

_UNKNOWN = OpRule("float32", "not one of MXNet 1.9.1's operators: kept in float32")
_BACKWARD = OpRule("integer", "a gradient operator: never in a forward graph")

_RULES: Dict[str, OpRule] = {
    name: OpRule(kind, reason, UNCAST.get(name, ()))
    for kind, reason, names in GROUPS
    for name in names.split()
}


def rule(op: str) -> OpRule:
    """The rule for one operator.

    Parameters
    ----------
    op : str
        Its name in a symbol's JSON, or any alias of it.

    Returns
    -------
    OpRule
        For an operator that MXNet 1.9.1 does not have (a library's), a rule that keeps it in float32.
    """
    if op.startswith("_backward_"):
        return _BACKWARD
    return _RULES.get(op, _UNKNOWN)


def close_matches(op: str) -> List[str]:
    """Known operators whose names are close to `op`, best first, for error messages."""
    return difflib.get_close_matches(op, _RULES, n=3)
