"""The operators of gluon_amp's C++ library that graphs have, and their words for `op_table`."""

PREFIX = "_gluon_amp_"

# Between dtypes: to round values in place, also a relu of them, and to convert them
ROUND, ROUND_RELU = "_gluon_amp_round", "_gluon_amp_round_relu"
WIDEN, NARROW = "_gluon_amp_widen", "_gluon_amp_narrow"
WIDEN_BFLOAT16, NARROW_BFLOAT16 = "_gluon_amp_widen_bfloat", "_gluon_amp_narrow_bfloat"
BFLOAT16 = "_gluon_amp_bfloat16"  # `amp_cast` of float32, whose gradient is added correctly

# Of images in the blocked layout
BLOCK, UNBLOCK, FORK = "_gluon_amp_block", "_gluon_amp_unblock", "_gluon_amp_fork"
BLOCKED_CONVOLUTION = "_gluon_amp_blocked_convolution"
BLOCKED_DECONVOLUTION, DEPTHWISE = "_gluon_amp_blocked_deconvolution", "_gluon_amp_depthwise"
NORM, POINTWISE = "_gluon_amp_norm", "_gluon_amp_pointwise"
CONCAT, POOL = "_gluon_amp_concat", "_gluon_amp_pool"

# Of plain arrays
CONVOLUTION, DENSE, RNN = "_gluon_amp_convolution", "_gluon_amp_dense", "_gluon_amp_rnn"
BATCH_DOT, SPLIT = "_gluon_amp_batch_dot", "_gluon_amp_split"
LAYER_NORM, GELU = "_gluon_amp_layer_norm", "_gluon_amp_gelu"
SOFTMAX, LOG_SOFTMAX = "_gluon_amp_softmax", "_gluon_amp_log_softmax"
PICKED_LOG_SOFTMAX = "_gluon_amp_picked_log_softmax"

# The dtypes of results that have one; others have that of their attribute `dtype`, or else that of
# what they read first
RESULTS = {BFLOAT16: "bfloat16", NARROW: "float16", WIDEN: "float32"}

WORDS = {
    "adds": (
        *(BFLOAT16, ROUND, ROUND_RELU, WIDEN, NARROW, BATCH_DOT, SPLIT, LAYER_NORM, GELU, SOFTMAX),
        *(LOG_SOFTMAX, PICKED_LOG_SOFTMAX, BLOCKED_CONVOLUTION, DEPTHWISE, NORM, DENSE, RNN),
    ),
    # returns images in the blocked layout
    "blocked": (
        *(BLOCK, BLOCKED_CONVOLUTION, BLOCKED_DECONVOLUTION, DEPTHWISE, NORM, POINTWISE),
        *(CONCAT, POOL),
    ),
    # reads parameters as they are stored, in float32 or float16
    "stored": (BLOCKED_CONVOLUTION, BLOCKED_DECONVOLUTION, DEPTHWISE, DENSE, RNN),
}


def is_own(op: str) -> bool:
    """Return whether an operator is one of the C++ library."""
    return op.startswith(PREFIX)
