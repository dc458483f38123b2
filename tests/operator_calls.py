"""How every operator can be called: shapes of its inputs and attributes."""

import json

from tests.mxnet_operators import registered

import mxnet as mx


class Ids(tuple):
    """The shape of an input that holds indices, lengths or conditions."""


def ids(*shape):
    return Ids(shape)


IMAGE = (2, 4, 4, 4)
PAIR = [(2, 3), (2, 3)]
PIXELS = [(4, 4, 3)]
FACTORS = {"min_factor": 0.1, "max_factor": 9}
BINOMIAL = {"k": 2, "p": 0.5}
COLORS = "brightness contrast saturation hue".split()
# Operator: shapes of its inputs, attributes. The inputs of all others have shape (2, 3).
CALLS = {
    # products
    "Convolution": ([IMAGE, (3, 4, 2, 2), (3,)], {"kernel": (2, 2), "num_filter": 3}),
    "FullyConnected": ([(2, 3), (4, 3), (4,)], {"num_hidden": 4}),
    "RNN": (
        [(2, 3, 4), (220,), (1, 3, 5), (1, 3, 5), ids(3)],
        {"mode": "lstm", "state_size": 5, "num_layers": 1, "use_sequence_length": True},
    ),
    # norms
    "BatchNorm": ([IMAGE, (4,), (4,), (4,), (4,)], {"fix_gamma": False}),
    "BatchNorm_v1": ([IMAGE, (4,), (4,), (4,), (4,)], {}),
    "_contrib_SyncBatchNorm": ([IMAGE, (4,), (4,), (4,), (4,)], {"key": "k"}),
    "LayerNorm": ([(2, 3), (3,), (3,)], {}),
    "GroupNorm": ([IMAGE, (2,), (2,)], {"num_groups": 2}),
    "InstanceNorm": ([IMAGE, (4,), (4,)], {}),
    "LRN": ([IMAGE], {"nsize": 3}),
    # float32
    "softmax": ([(2, 3), ids(2)], {"use_length": True}),
    "CTCLoss": (
        [(5, 2, 4), ids(2, 3), ids(2), ids(2)],
        {"use_data_lengths": True, "use_label_lengths": True},
    ),
    "Embedding": ([ids(2), (4, 3)], {"input_dim": 4, "output_dim": 3}),
    "_contrib_SparseEmbedding": ([ids(2), (4, 3)], {"input_dim": 4, "output_dim": 3}),
    "_contrib_hawkesll": (
        [(2, 3), (3,), (3,), (2, 3), (2, 4), ids(2, 4), (2,), (2,)],
        {},
    ),
    "_npi_bincount": ([ids(4), (4,)], {"has_weights": True}),
    # one input
    "Activation": ([(2, 3)], {"act_type": "softrelu"}),
    "LeakyReLU": ([(2, 3), (3,)], {"act_type": "prelu"}),
    "clip": ([(2, 3)], {"a_min": 0.0, "a_max": 0.5}),
    "Pooling": ([IMAGE], {"kernel": (2, 2), "pool_type": "avg"}),
    "UpSampling": (
        [IMAGE, IMAGE],
        {"scale": 2, "sample_type": "nearest", "num_args": 2},
    ),
    "_contrib_AdaptiveAvgPooling2D": ([IMAGE], {"output_size": 2}),
    "_contrib_BilinearResize2D": ([IMAGE, (2, 4, 7, 7)], {"mode": "like"}),
    # random numbers
    **{
        f"_random_{d}": ([], {"shape": 9})
        for d in "exponential gamma normal poisson uniform".split()
    },
    "_random_generalized_negative_binomial": ([], {"shape": 9}),
    **{
        f"_npi_{d}": ([], {"loc": 0, "scale": 1}) for d in "gumbel logistic normal normal_n".split()
    },
    **{f"_npi_{d}": ([], {"a": 2}) for d in ("pareto", "powerd", "weibull")},
    **{f"_npi_{d}": ([], {"scale": 1, "size": 1}) for d in ("exponential", "rayleigh")},
    **{f"_npi_uniform{n}": ([], {"low": 0, "high": 1}) for n in ("", "_n")},
    "_npi_gamma": ([], {"shape": 2, "scale": 1}),
    "_npi_bernoulli": ([], {"prob": 0.5, "logit": None, "is_logit": False, "size": 9}),
    "_npi_choice": ([], {"a": 999, "size": 9}),
    "_npi_multinomial": ([], {"n": 99, "pvals": (0.2, 0.3, 0.5)}),
    "_random_randint": ([], {"low": 0, "high": 999, "shape": 9}),
    "_random_negative_binomial": ([], {**BINOMIAL, "shape": 9}),
    "_random_negative_binomial_like": ([(2, 3)], BINOMIAL),
    "_sample_multinomial": ([(2, 3)], {"shape": 9}),
    "_sample_unique_zipfian": ([], {"range_max": 99, "shape": (1, 9)}),
    **{f"_image_random_{color}": (PIXELS, FACTORS) for color in COLORS},
    "_image_random_color_jitter": (PIXELS, dict.fromkeys(COLORS, 0.9)),
    **{
        f"_image_random_{d}": (PIXELS, {})
        for d in "flip_left_right flip_top_bottom lighting".split()
    },
    # moving values
    "Reshape": ([(2, 3)], {"shape": (3, 2)}),
    "_np_reshape": ([(2, 3)], {"newshape": (3, 2)}),
    "_npx_reshape": ([(2, 3)], {"newshape": (3, 2)}),
    "reshape_like": ([(2, 3), (3, 2)], {}),
    "expand_dims": ([(2, 3)], {"axis": 1}),
    "squeeze": ([(2, 1, 3)], {}),
    "_np_squeeze": ([(2, 1, 3)], {}),
    "SwapAxis": ([(2, 3)], {"dim1": 0, "dim2": 1}),
    "_np_moveaxis": ([(2, 3)], {"source": (0,), "destination": (1,)}),
    "depth_to_space": ([IMAGE], {"block_size": 2}),
    "space_to_depth": ([IMAGE], {"block_size": 2}),
    "slice": ([(2, 3)], {"begin": (0, 1), "end": (2, 3)}),
    "slice_axis": ([(2, 3)], {"axis": 1, "begin": 0, "end": 2}),
    "slice_like": ([(2, 3), (1, 2)], {}),
    "SliceChannel": ([(2, 4)], {"num_outputs": 2}),
    "_split_v2": ([(2, 4)], {"indices": (0, 2), "axis": 1}),
    "_npi_hsplit": ([(2, 4)], {"indices": (0, 2), "axis": 1}),
    "_npi_dsplit": ([(2, 2, 4)], {"indices": (0, 2), "axis": 2}),
    "reverse": ([(2, 3)], {"axis": (1,)}),
    "_npi_flip": ([(2, 3)], {"axis": (1,)}),
    "_npi_rot90": ([(2, 3)], {"k": 1, "axes": (0, 1)}),
    "_np_roll": ([(2, 3)], {"shift": (1,)}),
    "_np_max": ([(2, 3)], {"axis": (1,)}),
    "_np_min": ([(2, 3)], {"axis": (1,)}),
    "repeat": ([(2, 3)], {"repeats": 2}),
    "tile": ([(2, 3)], {"reps": (2, 1)}),
    "broadcast_to": ([(1, 3)], {"shape": (2, 3)}),
    "_npi_broadcast_to": ([(1, 3)], {"shape": (2, 3)}),
    "broadcast_axis": ([(1, 3)], {"axis": 0, "size": 2}),
    "broadcast_like": ([(1, 3), (2, 3)], {}),
    "im2col": ([IMAGE], {"kernel": (2, 2)}),
    "Pad": ([IMAGE], {"mode": "constant", "pad_width": (0, 0, 0, 0, 1, 1, 1, 1)}),
    "_npi_pad": ([(2, 3)], {"mode": "constant", "pad_width": ((1, 1), (1, 1))}),
    "SequenceLast": ([(2, 3, 4), ids(3)], {"use_sequence_length": True}),
    "SequenceMask": ([(2, 3, 4), ids(3)], {"use_sequence_length": True}),
    "SequenceReverse": ([(2, 3, 4), ids(3)], {"use_sequence_length": True}),
    "cast_storage": ([(2, 3)], {"stype": "default"}),
    # picking values
    "take": ([(4, 3), ids(2)], {}),
    "batch_take": ([(4, 3), ids(4)], {}),
    "pick": ([(4, 3), ids(4)], {}),
    "gather_nd": ([(4, 3), ids(2, 1)], {}),
    "scatter_nd": ([(1,), ids(2, 1)], {"shape": (4, 3)}),
    "_contrib_boolean_mask": ([(4, 3), ids(4)], {}),
    "_npi_delete": ([(4, 3), ids(1)], {"axis": 0}),
    "_npi_where_lscalar": ([ids(2, 3), (2, 3)], {"scalar": 1.0}),
    "_npi_where_rscalar": ([ids(2, 3), (2, 3)], {"scalar": 1.0}),
    "_npi_boolean_mask_assign_scalar": ([(2, 3), ids(2, 3)], {"value": 1.0}),
    "_slice_assign_scalar": ([(2, 3)], {"begin": (0, 0), "end": (1, 1), "scalar": 1.0}),
    "_npi_insert_scalar": ([(4, 3), (1, 3)], {"int_ind": 1, "axis": 0}),
    "_npi_insert_slice": ([(4, 3), (1, 3)], {"start": 0, "stop": 1, "step": 1, "axis": 0}),
    "_npi_insert_tensor": ([(4, 3), (1, 3), ids(1)], {"axis": 0}),
    "_npi_full_like": ([(2, 3)], {"fill_value": 1.5}),
    # several equal inputs
    "_rnn_param_concat": ([(3,), (3,)], {"num_args": 2, "dim": 0}),
    "_npi_ediff1d": (
        [(4,), (2,), (1,)],
        {"to_begin_arr_given": True, "to_end_arr_given": True},
    ),
    "where": ([ids(2, 3), *PAIR], {}),
    "_npi_where": ([ids(2, 3), *PAIR], {}),
    "_slice_assign": ([(2, 3), (1, 1)], {"begin": (0, 0), "end": (1, 1)}),
    "_scatter_set_nd": ([(4, 3), (1,), ids(2, 1)], {"shape": (4, 3)}),
    "_contrib_index_copy": ([(4, 3), ids(1), (1, 3)], {}),
    "_npi_boolean_mask_assign_tensor": ([(2, 3), ids(2, 3), (1,)], {}),
    "_sparse_retain": ([(4, 3), ids(2)], {}),
}

# MXNet 1.9.1 requires a certain integer dtype of these inputs
ID_DTYPES = {
    "batch_take": "int32",
    "_npi_insert_tensor": "int64",
    "_npi_bincount": "int32",
    "_contrib_hawkesll": "int32",
}


REGISTERED = registered()
CANONICAL = sorted({operator.canonical for operator in REGISTERED.values()})
NETWORK = [name for name in CANONICAL if not name.startswith("_backward_")]


def call(op):
    if op in CALLS:
        return CALLS[op]
    operator = REGISTERED[op]
    return (PAIR, {operator.count: 2}) if operator.count else ([(2, 3)] * len(operator.inputs), {})


def node(op):
    """A symbol of one operator with inputs x0, x1, ..."""
    shapes, attrs = call(op)
    nodes = [{"op": "null", "name": f"x{i}", "inputs": []} for i in range(len(shapes))]
    inputs = [[i, 0, 0] for i in range(len(shapes))]
    attrs = {key: str(value) for key, value in attrs.items()}
    nodes.append({"op": op, "name": "node", "attrs": attrs, "inputs": inputs})
    graph = {
        "nodes": nodes,
        "arg_nodes": list(range(len(shapes))),
        "heads": [[len(nodes) - 1, 0, 0]],
        "attrs": {"mxnet_version": ["int", 10901]},
    }
    return mx.sym.load_json(json.dumps(graph))
