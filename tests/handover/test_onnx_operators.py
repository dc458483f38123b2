"""Every translated operator, by what it computes: MXNet's results against onnxruntime's.

A row of the table is an expression of MXNet's operators and the tensors that it reads. Those of
lower case are inputs whose first axis follows the batch, or whose second does if the name begins
with t. Those of upper case are parameters. Of words in braces, or of texts between bars, each is a
row.
"""

import functools
import re

import numpy as np
import pytest

from gluon_amp import Policy, graph
from gluon_amp.base.messages import UsageError
from gluon_amp.handover.network import Network
from gluon_amp.handover.to_onnx.model import Session, encode
from gluon_amp.handover.to_onnx.translate import translate, with_batch

import mxnet as mx

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

# Operators of ONNX that add many values, or that overflow float16 soon
WIDE = {
    *"BatchNormalization CumSum Erf LRN LogSoftmax ReduceMean ReduceSum".split(),
    *"ReduceSumSquare Softmax Softplus".split(),
}
# Two implementations may round each of some 16 steps differently, relative to the largest value.
ROUNDINGS = 16


def normal(*shape, seed=0, dtype="float32"):
    return np.random.RandomState(seed).standard_normal(shape).astype(dtype)


def positive(*shape, seed=0):
    return np.random.RandomState(seed).uniform(0.1, 2, shape).astype("float32")


def ints(*values, dtype="int32"):
    return np.array(values, dtype)


def boxes(batch, count, classes=3, seed=0):
    """Rows of an id, a score and two corners, of which many overlap."""
    draw = np.random.RandomState(seed)
    ids = draw.randint(-1, classes, (batch, count, 1))
    scores = draw.uniform(0, 1, (batch, count, 1)).round(1)  # some are equal
    corner = draw.uniform(0.05, 0.6, (batch, count, 2))
    size = draw.uniform(0.1, 0.4, (batch, count, 2))
    return np.concatenate([ids, scores, corner, corner + size], 2).astype("float32")


X = {"x": normal(2, 3, 4)}
PAIR = {**X, "y": normal(2, 3, 4, seed=1), "z": normal(2, 1, 4, seed=2)}


def rnn(mode, gates, layers, ways=1):
    """A recurrent layer of three features and four hidden values, with and without its states."""
    weights = sum(
        ways * gates * 4 * ((4 * ways if layer else 3) + 4 + 2) for layer in range(layers)
    )
    tensors = {"t": normal(5, 2, 3), "W": 0.5 * normal(weights)}
    for k, name in enumerate(("ts", "tc")[: 2 if mode == "lstm" else 1]):
        tensors[name] = normal(layers * ways, 2, 4, seed=k + 1)
    kind = f"mode='{mode}', num_layers={layers}, bidirectional={ways == 2}, state_size=4, p=0.5"
    return tensors, f"RNN({', '.join(tensors)}, {kind}, state_outputs={{False True}})"


TABLE = [
    (
        X,
        """
        {abs ceil floor exp erf sigmoid relu tanh sign negative sin cos tan arctan sinh cosh
            arcsinh}(x)
        {softsign square cbrt rcbrt expm1 degrees radians reciprocal hard_sigmoid smooth_l1}(x)
        hard_sigmoid(x, alpha=0.1, beta=0.3)
        {round rint}({x * 2 | round(x * 4) / 2})
        {trunc fix}(x * 3)
        {arcsin arccos arctanh}(tanh(x))
        arccosh(abs(x) + 1)
        {log log2 log10 log1p sqrt rsqrt}(abs(x))
        smooth_l1(x, scalar=0.5)
        clip(x, -0.5, 1)
        {BlockGrad identity make_loss zeros_like LeakyReLU softmax SoftmaxActivation
            L2Normalization}(x)
        MakeLoss(x, grad_scale=2)
        Dropout(x, p=0.5)
        x {+ - * /} 1.5
        1.5 {- / **} x
        abs(x) ** 1.5
        x ** {2 -1}
        x % {0.5 -0.5}
        0.5 % x
        {_maximum_scalar _minimum_scalar _hypot_scalar}(x, scalar=0.5)
        -x
        x {> >= < <= == !=} 0.5
        _logical_{and xor}_scalar(relu(x), scalar=2)
        _logical_or_scalar(relu(x), scalar=0)
        logical_not(relu(x))
        ones_like(x) + x
        Cast({x, dtype='float64' | x * 3, dtype='int32' | Cast(x * 3, dtype='int8'), dtype='int64'})
        amp_cast(x, dtype='float16')
        Activation(x, act_type='{relu sigmoid tanh softrelu softsign}')
        LeakyReLU(x, act_type='{leaky elu}', slope=0.1)
        LeakyReLU(x, act_type='{selu gelu}')
        LeakyReLU(x, act_type='rrelu', lower_bound=0.1, upper_bound=0.3)[0]
        softmax(x, axis={0 1})
        softmin(x, axis=1)
        log_softmax(x, axis=-2, temperature=0.5)
        SoftmaxActivation(x, mode='channel')
        {sum mean max norm argmax cumsum}(x)
        sum(x, axis={1 -1})
        sum(x, axis=(0, 2), keepdims=True)
        mean(x, axis=0, exclude=True, keepdims=True)
        min(x, axis=(1, 2), keepdims=True)
        prod(x, axis=2)
        norm(x, ord=1, axis=1)
        norm(x, axis=2, keepdims=True)
        argmax(x, axis=-1, keepdims=True)
        argmin(x, axis=2)
        argmax_channel(Flatten(x))
        L2Normalization(x, mode='spatial', eps=0.1)
        moments(x, axes=(0,), keepdims=True)
        cumsum(x, axis={0 1})
        """,
    ),
    (
        PAIR,
        """
        contrib.gradientmultiplier(x, scalar=-1)
        {shape_array size_array contrib.div_sqrt_dim contrib.arange_like contrib.sign_ste}(x)
        contrib.round_ste(x * 3)
        elemwise_{add sub mul div}(x, y)
        x {+ - * / % > >= < <=} y
        abs(x) ** y
        add_n(x, y, x)
        broadcast_{add sub mul div maximum minimum mod hypot}(x, z)
        broadcast_power(abs(x), z)
        {maximum minimum hypot reshape_like}(x, y)
        broadcast_{equal not_equal}(round(x), round(z))
        broadcast_{greater greater_equal lesser lesser_equal}(x, z)
        x {== !=} x
        broadcast_logical_{and or xor}(relu(x), relu(z))
        where(x, y, x)
        where(Cast(x > 0, dtype='int32'), x, y)
        where(sum(x, axis=(1, 2)) > 0, x, y)
        Concat(x, y, {dim=1 | z, dim=-2})
        stack(x, y, axis={0 1 -1})
        squeeze(z, axis=1)
        broadcast_axis(z, axis=1, size=3)
        broadcast_to(z, shape=(0, 5, 0))
        broadcast_like(z, x)
        slice_like(Concat(x, y, dim=1), x)
        slice_like(Concat(x, y, dim=0), x, axes=(0,))
        batch_dot(x, y, transpose_{a b}=True)
        batch_dot(x, transpose(y, axes=(0, 2, 1)))
        linalg_gemm2(x, y, {transpose_b=True, alpha=0.5 | transpose_a=True})
        linalg_gemm(x, y, batch_dot(x, y, transpose_b=True), transpose_b=True, alpha=2, beta=0.5)
        contrib.arange_like(x, axis=1) + sum(x, axis=(0, 2))
        contrib.arange_like(x, axis=0, start=2, step=0.5)
        """,
    ),
    (
        {"x": normal(2, 12, 5)},
        """
        reshape(x, shape={(0, -1) | (-1, 5) | (0, -4, -1, 4, -2) | (-1,)})
        Flatten(x)
        expand_dims(x, axis={0 1 -1})
        transpose({x | x, axes=(1, 0, 2)})
        SwapAxis(x, dim1=0, dim2=2)
        SliceChannel(x, num_outputs=3)
        SliceChannel(x, num_outputs=5, axis=2, squeeze_axis=True)
        split_v2(x, {(2, 5), axis=1 | (3,), axis=-1 | 5, axis=1})
        split_v2(x, 5, axis=2, squeeze_axis=True)
        slice(x, begin=(None, -5), end=(None, -1))
        slice(x, begin=(None, 10, None), end=(None, 2, None), step=(None, -3, -1))
        slice(x, begin=(None, None), end=(None, 100))
        split_v2(x, (1,), axis=0)[0]
        slice(x, begin=(-1,), end=(None,))
        slice_axis(x, axis=-1, begin=-3, end=None)
        slice_axis(x, axis=0, begin=0, end=1)
        tile(x, reps={(1, 2, 3) | (2,) | (2, 1, 1, 1)})
        repeat(x, repeats=2, axis={0 1})
        repeat(x, repeats=2)
        reverse(x, axis={1 | (0, 2)})
        sort(x, axis=1, is_ascend=False)
        argsort(x, axis=1)
        argsort(x, is_ascend=False, dtype='int32')
        topk(x, k=3)
        topk(x, k=3, axis=1, ret_typ='both', is_ascend=True)
        topk(x, k=2, ret_typ='indices', dtype='int32')
        topk(x, k=3, axis=1, ret_typ='mask')
        topk(x, {k=0, axis=1 | k=1, axis=0 | k=3, axis=None, ret_typ='value'})
        diag(x, {k=1, axis1=1, axis2=2 | k=-2, axis1=-2, axis2=-1})
        """,
    ),
    (
        {"x": normal(2, 5), "i": ints(1, 7, dtype="float32"), "P": normal(6, 3), "Q": normal(3, 4)},
        """
        take(P, {i | i, mode='wrap' | i - 9, mode='wrap' | Cast(i, dtype='int32') - 9})
        take(x, i, {axis=1 | axis=-1, mode='wrap'})
        take(x, zeros_like(i))
        pick(x, i - 1, axis=1, keepdims=True)
        pick(x, i, mode='wrap')
        pick(transpose(x), i, axis=0)
        Embedding(i, P, input_dim=6, output_dim=3)
        batch_take(x, Cast(i, dtype='int32'))
        one_hot(i, {depth=8 | depth=5, on_value=2, off_value=-1, dtype='int32'})
        gather_nd(x, stack(zeros_like(i), i % 5))
        gather_nd(P, expand_dims(i % 5, axis=0))
        where(i > 1, x, -x)
        softmax_cross_entropy(x, i % 5)
        dot(slice_axis(x, axis=1, begin=0, end=3), {Q | P, transpose_b=True})
        dot(x, x, transpose_{a b}=True)
        reshape(dot(x, x, transpose_b=True), shape={(-1,) | (0, 1, -1)})
        ones_like(dot(x, x, transpose_b=True))
        SequenceMask(dot(x, x, transpose_b=True), i, use_sequence_length=True)
        take(x, i, mode='wrap')
        dot(slice_axis(x, axis=1, begin=0, end=3), reshape(Q, shape=(3, 2, 2)))
        dot(reshape(x, shape=(-1,)), reshape(x, shape=(-1,)))
        """,
    ),
    (
        {"x": normal(2, 4, 7, 6), "W": normal(6, 4, 3, 2), "V": normal(6, 2, 3, 3), "B": normal(6)},
        """
        Convolution(x, W, B, kernel=(3, 2), num_filter=6)
        Convolution(x, W, kernel=(3, 2), num_filter=6, no_bias=True, stride=(2, 3), pad=(2, 1))
        Convolution(x, V, B, kernel=(3, 3), num_filter=6, num_group=2, dilate=(2, 1), pad=(1, 1))
        FullyConnected(x, reshape(W, shape=(-1, 6)), num_hidden=24, no_bias=True, flatten=False)
        FullyConnected(x, tile(reshape(W, shape=(6, -1)), reps=(1, 7)), B, num_hidden=6)
        Pooling(x, kernel=(3, 2), stride=(2, 2), pad=(1, 1))
        Pooling(x, kernel=(3, 3), stride=(2, 2), pad=(1, 0), pooling_convention='full')
        Pooling(x, kernel=(3, 2), pool_type='avg', stride=(2, 1), pad=(1, 1))
        Pooling(x, kernel=(3, 3), pool_type='avg', pad=(1, 1), count_include_pad=False)
        Pooling(x, kernel=(3, 3), pool_type='avg', stride=(2, 2), pooling_convention='full')
        Pooling(x, kernel=(3, 3), pool_type='avg', stride=(3, 3), pad=(1, 1),
            pooling_convention='full', count_include_pad={True False})
        Pooling(x, kernel=(3, 3), pool_type='sum', stride=(2, 2), pooling_convention='full')
        Pooling(x, global_pool=True, {kernel=(1, 1) | pool_type='avg' | pool_type='sum'})
        Pooling_v1(x, kernel=(3, 2), stride=(2, 2), pool_type='avg')
        contrib.AdaptiveAvgPooling2D(x)
        contrib.AdaptiveAvgPooling2D(x, output_size={(3, 4) | 5 | (9, 6)})
        UpSampling(x, scale=3, sample_type='nearest')
        contrib.BilinearResize2D(x, {height=5, width=11 | height=1, width=1})
        contrib.BilinearResize2D(x, height=14, width=12, align_corners=False)
        contrib.BilinearResize2D(x, slice_axis(x, axis=2, begin=0, end=3), mode='like')
        Crop(x, h_w=(3, 4), offset=(1, 2))
        Crop(x, {h_w=(4, 3) | Pooling(x, kernel=(3, 3))}, center_crop=True)
        Pad(x, mode='constant', pad_width=(0, 0, 0, 0, 1, 2, 3, 0), constant_value=1.5)
        Pad(x, mode='{edge reflect}', pad_width=(0, 0, 0, 0, 1, 2, 3, 0))
        depth_to_space(x, block_size=2)
        space_to_depth(slice_axis(x, axis=2, begin=0, end=6), block_size=2)
        LRN(x, {nsize=5 | nsize=3, alpha=0.1, beta=0.5, knorm=1})
        broadcast_add(contrib.MultiBoxPrior(x, sizes=(0.5, 0.2)), mean(x))
        image.normalize(slice_axis(x, axis=1, begin=0, end=3), mean=(0.1, 0.2, 0.3), std=(1, 2, 3))
        image.normalize(slice_axis(x, axis=1, begin=0, end=1), mean=0.5, std=2)
        image.to_tensor(Cast(x * 20, dtype='uint8'))
        """,
    ),
    (
        {
            "x": normal(2, 4, 5, 3),
            "E": normal(4, 6, 4, 4),
            "K": normal(4, 1, 4, 4),
            "L": normal(4, 1, 5, 5),
            "W": normal(4, 6, 3, 2),
            "V": normal(4, 3, 3, 2),
            "B": normal(6),
        },
        """
        Deconvolution(x, W, B, kernel=(3, 2), num_filter=6, no_bias=False, stride=(2, 2), pad=(1,
            1))
        Deconvolution(x, V, B, kernel=(3, 2), num_filter=6, no_bias=False, num_group=2, stride=(2,
            2))
        Deconvolution(x, E, kernel=(4, 4), num_filter=6, stride=(2, 2), pad=(1, 1),
            target_shape=(10, 6))
        Deconvolution(x, E, kernel=(4, 4), num_filter=6, stride=(2, 2), pad=(1, 1), adj=(1, 1),
            target_shape=(11, 7))
        UpSampling(x, {K, scale=2 | L, scale=3}, sample_type='bilinear', num_filter=4, num_args=2)
        Deconvolution(x, W, kernel=(3, 2), num_filter=6, {stride=(3, 2), adj=(2, 1) |
            dilate=(2, 1)})
        """,
    ),
    (
        {"x": normal(2, 4, 6), "W": normal(6, 4, 3), "D": normal(4, 6, 3), "B": normal(6)},
        """
        Convolution(x, W, B, kernel=(3,), num_filter=6, stride=(2,), pad=(1,))
        Deconvolution(x, D, kernel=(3,), num_filter=6, stride=(2,), adj=(1,))
        Pooling(x, kernel=(3,), stride=(2,), pool_type='avg', pooling_convention='full')
        Pooling(x, kernel=(3,), stride=(2,), pad=(1,), pool_type='avg', count_include_pad=False)
        """,
    ),
    (
        {"x": normal(2, 4, 3, 5, 4), "W": normal(6, 4, 2, 3, 2), "D": normal(4, 6, 2, 3, 2)},
        """
        Convolution(x, W, kernel=(2, 3, 2), num_filter=6, no_bias=True, stride=(1, 2, 1), pad=(1, 1,
            0))
        Deconvolution(x, D, kernel=(2, 3, 2), num_filter=6, stride=(1, 2, 1), pad=(1, 1, 0))
        Pooling(x, kernel=(2, 3, 2), stride=(1, 2, 2), pool_type='avg', pooling_convention='full')
        Pooling(x, global_pool=True, pool_type='avg', kernel=(1, 1, 1))
        InstanceNorm(x, slice_axis(slice_axis(reshape(W, shape=(-1,)), axis=0, begin=0, end=4),
            axis=0, begin=0, end=4), slice_axis(reshape(W, shape=(-1,)), axis=0, begin=4, end=8))
        """,
    ),
    (
        {
            "x": normal(2, 4, 3, 6),
            "G": positive(4),
            "B": normal(4),
            "M": normal(4, seed=1),
            "V": positive(4, seed=1),
            "H": positive(6),
            "C": normal(6),
            "S": positive(2),
            "T": normal(2),
        },
        """
        BatchNorm(x, G, B, M, {V | V, fix_gamma=False, eps=1e-5})
        BatchNorm(transpose(x, axes=(0, 2, 3, 1)), G, B, M, V, axis=-1, fix_gamma=False)
        BatchNorm(reshape(x, shape=(-1, 4)), G, B, M, V, fix_gamma=False)
        contrib.SyncBatchNorm(x, G, B, M, V, fix_gamma=False, key='a')
        LayerNorm({x, H, C | x, G, B, axis=1, eps=1e-3 | 1000 * x, H, C, eps=1e-12})
        InstanceNorm(x, G, B)
        GroupNorm(x, {S, T, num_groups=2 | G, B, num_groups=4, eps=0.1})
        LeakyReLU(x, {G | slice_axis(G, axis=0, begin=0, end=1)}, act_type='prelu')
        LeakyReLU(reshape(x, shape=(-1, 4)), G, act_type='prelu')
        L2Normalization(x, mode='channel')
        Activation(100 * x, act_type='softrelu')
        """,
    ),
    (
        {"t": normal(5, 2, 3), "l": ints(4, 2, dtype="float32"), "x": normal(2, 5, 3)},
        """
        SequenceMask(t)
        SequenceMask({t, l, value=-1 | x, l, axis=1}, use_sequence_length=True)
        SequenceLast({t | x, axis=1})
        SequenceLast({t, l | x, l, axis=1}, use_sequence_length=True)
        SequenceReverse(t, l, use_sequence_length=True)
        SequenceReverse(t)
        softmax(x, tile(expand_dims(Cast(l, dtype='int32') - 1, axis=1), reps=(1, 5)),
            use_length=True)
        softmax(x, broadcast_axis(expand_dims(Cast(l, dtype='int32') + 1, axis=1), axis=1, size=3),
            use_length=True, axis=1, temperature=2)
        reshape(t, shape=(-1, 3))
        """,
    ),
    (
        {"t": normal(5, 2, 24), "ts": normal(5, 2, 12), "a": normal(2, 5, 5)},
        """
        contrib.interleaved_matmul_selfatt_qk(t, heads=2)
        contrib.interleaved_matmul_selfatt_valatt(t,
            softmax(contrib.interleaved_matmul_selfatt_qk(t, heads=2)), heads=2)
        contrib.interleaved_matmul_encdec_qk(slice_axis(ts, axis=0, begin=0, end=3), t, heads=2)
        contrib.interleaved_matmul_encdec_valatt(contrib.div_sqrt_dim(slice_axis(t, axis=2, begin=0,
            end=24)), contrib.interleaved_matmul_encdec_qk(ts, t, heads=2), heads=2)
        """,
    ),
    rnn("rnn_tanh", gates=1, layers=1),
    rnn("rnn_relu", gates=1, layers=2, ways=2),
    rnn("gru", gates=3, layers=2, ways=2),
    rnn("lstm", gates=4, layers=1),
    rnn("lstm", gates=4, layers=3, ways=2),
    (
        {"x": boxes(3, 30), "s": np.tile(boxes(1, 30)[..., 1:], (3, 1, 1))},
        """
        contrib.box_nms(x, id_index=0)
        contrib.box_nms(x, id_index=0, force_suppress=True, overlap_thresh=0.3)
        contrib.box_nms(x, overlap_thresh=0.2, valid_thresh=0.5)
        contrib.box_nms(x, overlap_thresh=0.4, topk=8, id_index=0, valid_thresh=0.3)
        contrib.box_nms(x, overlap_thresh=0.4, {valid_thresh=2 | id_index=0, background_id=1})
        contrib.box_nms(s, overlap_thresh=0.3, coord_start=1, score_index=0)
        contrib.box_nms(s - 0.1, overlap_thresh=0.3, coord_start=1, score_index=0,
            out_format='center')
        contrib.box_nms(x, overlap_thresh=0.3, in_format='center')
        contrib.box_nms(x, overlap_thresh=0.3, in_format='center', out_format='center', topk=0)
        contrib.box_nms(expand_dims(x, axis=1), id_index=0)
        """,
    ),
    (
        {
            "x": normal(2, 3, 5, 4),
            "m": np.array([[1, 0.2, 0.1, 0, 0.8, 0], [0.5, 0, 1.2, 0.3, -1, 0.4]], "float32"),
            "g": normal(2, 2, 3, 6),
            "f": normal(2, 2, 5, 4, seed=1),
        },
        """
        GridGenerator(m, transform_type='affine', target_shape=(3, 6))
        GridGenerator(f, transform_type='warp')
        BilinearSampler(x, {g | GridGenerator(f, transform_type='warp')})
        SpatialTransformer(x, m, target_shape=(3, 6), transform_type='affine',
            sampler_type='bilinear')
        """,
    ),
    (
        {
            "x": normal(2, 3, 5, 4),
            "d": normal(2, 12, 5, 4, seed=1),
            "e": 2 * normal(2, 12, 3, 2, seed=1),
            "k": positive(2, 6, 5, 4),
            "W": normal(4, 3, 3, 2),
            "B": normal(4),
        },
        """
        contrib.DeformableConvolution(x, e, W, kernel=(3, 2), num_filter=4, no_bias=True, stride=(2,
            2), pad=(1, 1), dilate=(1, 2))
        contrib.ModulatedDeformableConvolution(x, slice_axis(d, axis=3, begin=0, end=3),
            slice_axis(k, axis=3, begin=0, end=3), W, B, kernel=(3, 2), num_filter=4, pad=(1, 0))
        """,
    ),
    (  # overlaps that are as large as the threshold
        {
            "x": np.array([[[0.9, 0, 0, 1, 1], [0.8, 0, 0, 1, 0.5]]], "float32"),
            "c": np.array([[[0.1, 0.2], [0.9, 0.8]]], "float32"),
            "z": np.zeros((1, 8), "float32"),
            "A": np.array([[[0, 0, 1, 1], [0, 0, 1, 0.5]]], "float32"),
        },
        """
        contrib.box_nms(x, overlap_thresh=0.5, coord_start=1, score_index=0)
        contrib.MultiBoxDetection(c, z, A, nms_threshold=0.5)
        """,
    ),
    (
        {
            "x": normal(3, 20, 4),
            "A": boxes(1, 20)[..., 2:],
            "c": np.random.RandomState(1)
            .dirichlet([1] * 4, (3, 20))
            .transpose(0, 2, 1)
            .astype("float32"),
        },
        """
        contrib.box_decode(x, A)
        contrib.box_decode(x, A, 0.1, 0.1, 0.2, 0.3, clip=0.1, format='corner')
        contrib.MultiBoxDetection(c, Flatten(x), A)
        contrib.MultiBoxDetection(c, Flatten(x), A, threshold=0.6, nms_threshold=0.3,
            force_suppress=True)
        contrib.MultiBoxDetection(c, Flatten(x), A, clip=False, nms_threshold=0.25, variances=(0.1,
            0.2, 0.3, 0.4))
        contrib.MultiBoxDetection(c, Flatten(x), A, nms_threshold=1.5, threshold=0.4)
        contrib.MultiBoxDetection(c, Flatten(x), A, nms_threshold=0.3, nms_topk=5)
        """,
    ),
    (
        {
            "x": normal(1, 4, 9, 8),
            "R": np.array([[0, 0, 0, 7, 7], [0, 2.2, 3, 13.7, 9], [0, 5, 5, 5, 5]], "float32"),
            "Q": np.array([[0, 0, 0, 7, 7], [-1] * 5], "float32"),
        },
        """
        contrib.ROIAlign(x, R, pooled_size=(3, 2), spatial_scale=0.5)
        contrib.ROIAlign(x, R, pooled_size=(2, 2), spatial_scale=1, sample_ratio=2)
        ROIPooling(x, R, pooled_size=(3, 2), spatial_scale=0.5)
        ROIPooling(x, {R | Q}, pooled_size=(2, 2), spatial_scale=0.6)
        """,
    ),
    (
        {"x": ints([3, -2, 0], [5, 1, -7]), "y": ints([2, 2, -2], [4, -3, 3])},
        """
        x {+ - >} y
        x {* / %} 3
        {abs negative sign square}(x)
        broadcast_maximum(x, y)
        clip(x, -1, 3)
        {sum max}(x, axis=1)
        x == 1
        where(x, x, y)
        Concat(x, y, dim=1)
        Cast(x, dtype='float32') / 3
        one_hot(x, depth=4)
        topk(x, k=2, ret_typ='value')
        reshape(x, shape=(-1,))
        """,
    ),
    (
        {"x": normal(2, 4, 4, dtype="float64"), "y": normal(2, 4, 4, dtype="float64", seed=1)},
        """
        x + y
        x * 1.1
        {exp mean softmax}(x)
        {sum norm}(x, axis=1)
        Cast(x, dtype='float32')
        batch_dot(x, y)
        """,
    ),
    (
        {"x": normal(2, 3, 4), "y": normal(2, 3, 4, seed=1), "P": normal(4, 5), "i": ints(2, 0)},
        """
        np.{abs exp expm1 square sign floor ceil rint tanh sin arctan cbrt reciprocal negative
            degrees}(x)
        np.{log1p sqrt}(np.abs(x))
        np.{fix trunc}(x * 3)
        np.around(x, 1)
        np.{isnan isfinite}(np.log(x))
        np.{isinf isposinf isneginf}(x / (x - x))
        np.{logical_not sum mean max std argmax transpose flip zeros_like ones_like tril ravel}(x)
        np.clip(x, -0.5, 0.5)
        x + y
        np.{add multiply true_divide mod maximum minimum hypot}(x, y)
        np.add(x, 2)
        np.subtract(1, x)
        np.true_divide(2, x)
        np.true_divide(i, {4 | i + 1})
        np.power({np.abs(x), y | np.abs(x), 2 | 2, x})
        np.mod({x, 0.7 | 0.7, x})
        np.maximum(x, 0)
        np.add(np.mean(x, axis=(1, 2)), i)
        np.{equal not_equal greater less_equal}(x, y)
        np.{less greater_equal}(x, 0.5)
        np.where(x > 0, {x, y | x, 0 | 1.5, x | 1.5, 0})
        np.sum(x) * x + np.max(x)
        np.reshape(np.sum(x), (1, 1))
        np.stack([np.sum(x), np.mean(x)])
        np.dot(np.sum(x), y)
        np.{sum max prod var argmax cumsum linalg.norm}(x, axis=1)
        np.sum(x, axis=(0, -1), keepdims=True)
        np.sum(x > 0, axis=1)
        np.{sum mean sqrt}(i)
        np.{mean argmin}(x, axis=-1)
        np.mean(x, axis=1, dtype='float64')
        np.{min std}(x, axis=(1, 2))
        np.var(x, axis=-1, ddof=1, keepdims=True)
        np.linalg.norm({x | x, ord=1, axis=1 | x, axis=(1, 2), keepdims=True})
        np.reshape(x, (-1, 4))
        npx.reshape(x, (-2, -6, 1, 3, -4))
        np.moveaxis(x, {2, 0 | (0, 1), (1, 2)})
        np.squeeze(np.expand_dims(x, 1), axis=1)
        np.max(x > 0, axis=1)
        np.{concatenate stack}([x, y])
        np.{concatenate stack}([x, y], axis={1 -1})
        np.split(x, {2, axis=2 | (1, 2), axis=1})
        np.array_split(x, 3, axis=2)
        np.hsplit(x, 3)
        np.flip(x, {1 | (0, 2)})
        np.roll(x, {1, axis=1 | (1, -1), axis=(1, 2) | 2 | 1, axis=0 | (1, 5), axis=(1, 2)})
        np.pad(x, ((0, 0), (1, 2), (0, 1)), mode='{constant edge reflect}')
        np.full_like(x, 2.5)
        np.dot(x, P)
        np.matmul(x, {P | np.swapaxes(y, 1, 2)})
        np.tensordot(x, {P, axes=1 | y, axes=([1, 2], [1, 2])})
        np.einsum({'nij,jk->nik', x, P | 'nij,nkj->nik', x, y})
        np.diagonal(x, {offset=1, axis1=1, axis2=2 | axis1=2, axis2=1})
        np.arange(3) + np.sum(x, axis=(0, 2))
        x.astype('{int32 float64}')
        npx.{relu sigmoid log_softmax smooth_l1 erf batch_flatten}(x)
        npx.pick(x, np.ones_like(np.sum(x, axis=2)))
        npx.one_hot(i, 4)
        npx.fully_connected(x, np.transpose(P), num_hidden=5, no_bias=True, flatten=False)
        """,
    ),
]


class Names(dict):
    """MXNet's operators by their names."""

    def __missing__(self, name):
        rooms = (mx.sym, mx.sym._internal)
        return next(getattr(room, name) for room in rooms if hasattr(room, name))


def network_of_row(row, tensors, dtype="float32"):
    numpy = bool(re.search(r"\bnpx?\.", row))
    with mx.util.np_shape(numpy), mx.util.np_array(numpy), mx.name.NameManager():
        variables = {name: mx.sym.var(name) for name in tensors}
        for name, value in tensors.items():
            if dtype != "float32" and value.dtype == "float32" and name.islower():
                variables[name] = mx.sym.amp_cast(variables[name], dtype=dtype)
        if numpy:
            variables = {name: one.as_np_ndarray() for name, one in variables.items()}
        rooms = {
            "contrib": mx.sym.contrib,
            "image": mx.sym.image,
            "np": mx.sym.np,
            "npx": mx.sym.npx,
        }
        rooms["half"] = functools.partial(mx.sym.amp_cast, dtype="float16")
        rooms["draw"] = lambda d, s: (s, s + d * mx.sym.random_normal(shape=(4,)))
        symbol = eval(row, {}, Names({**rooms, **variables}))
        symbol = mx.sym.Group(symbol) if isinstance(symbol, (list, tuple)) else symbol
    json = graph.to_json(symbol)
    read = {name: tensors[name] for name in graph.variables(json)}
    inputs = {name: value for name, value in read.items() if name.islower()}
    values = {name: value for name, value in read.items() if name not in inputs}
    return Network(json, inputs, values, numpy, {})


def expanded(row):
    """Return a row with each option in braces in turn, as in `{sin cos}(x)` and `{x | x, 1}`."""
    before, brace, rest = row.partition("{")
    if not brace:
        return [row]
    options, _, after = rest.partition("}")
    options = options.split(" | ") if " | " in options else options.split()
    return [one for option in options for one in expanded(f"{before}{option}{after}")]


def rows_of(text):
    rows = (" ".join(row.split()) for row in re.split(r"\n {8}(?! )", text.strip()))
    return [one for row in rows for one in expanded(row)]


CASES = [(rows_of(rows), tensors) for tensors, rows in TABLE]
each_group = pytest.mark.parametrize("rows, tensors", CASES, ids=[rows[0] for rows, _ in CASES])


def check_each(rows, check):
    """Call check(row) for all rows; name those that fail, with the first lines of the reasons."""
    failed = {}
    for row in rows:
        try:
            check(row)
        except Exception as error:
            failed[row] = str(error).strip()[:300]
    assert not failed


def translated(network):
    axes = {name: int(name.startswith("t")) for name in network.inputs}
    found = translate(network, axes)
    return encode(found, network.outputs, {}), axes


def assert_same(expected, results):
    assert len(expected) == len(results)
    for a, b in zip(expected, results):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        if a.dtype.kind == "f":
            tolerance = ROUNDINGS * np.finfo(a.dtype).eps / 2 * np.abs(a).max()
            np.testing.assert_allclose(b, a, rtol=0, atol=tolerance)
        else:
            np.testing.assert_array_equal(b, a)


def assert_same_for_every_batch(network):
    model, axes = translated(network)
    session = Session(model)
    for size in (None, 1, 5):
        inputs = network.inputs if size is None else with_batch(network.inputs, axes, size)
        assert_same(network.run(inputs), session.run(inputs))


@each_group
def test_an_operator_computes_the_same_for_every_batch(rows, tensors):
    check_each(rows, lambda row: assert_same_for_every_batch(network_of_row(row, tensors)))


def test_outputs_may_be_inputs_and_constants():
    rows = "[x, x * 2, x]", "[P, x]", "ones_like(P)", "elemwise_add(x * 0, x)"
    tensors = {"x": normal(2, 3), "P": normal(4)}
    check_each(rows, lambda row: assert_same_for_every_batch(network_of_row(row, tensors)))


def test_sizes_are_named_by_how_they_follow_the_batch():
    tensors = {"x": normal(2, 3), "P": normal(1, 3)}
    network = network_of_row("[tile(x, reps=(2, 1)), Concat(x, P, dim=0), x * 2]", tensors)
    outputs = onnx.load_model_from_string(translated(network)[0]).graph.output
    shapes = [output.type.tensor_type.shape.dim for output in outputs]
    sizes = [[size.dim_param or size.dim_value for size in shape] for shape in shapes]
    assert sizes == [["2*batch", 3], ["output1_0", 3], ["batch", 3]]


REFUSED = {
    "gamma(x)": "operator gamma has no translation to ONNX (ONNX has no such operator",
    "contrib.boolean_mask(x, i)": "_contrib_boolean_mask, returns a shape that depends on",
    "sample_normal(y, y)": "it draws random numbers",
    "Dropout(x, mode='always')": "it draws random numbers in inference, too",
    # Draws without data, which are no constants of the file
    "np.random.gumbel(size=(1, 4)) + x": "it draws random numbers",
    "npx.dropout(np.ones((1, 4)), mode='always') + x": "it draws random numbers",
    "broadcast_add(s, contrib.foreach(draw, ones(shape=(2, 4)), ones(shape=4))[1])": "_foreach",
    "squeeze(o)": "name the axes to squeeze",
    "norm(x, ord=3)": "a norm other than that of order 1",
    "np.linalg.norm(x, ord='nuc', axis=(1, 2))": "a norm other than that of order 1",
    "Pooling(x, kernel=(2,), pool_type='lp', p_value=2)": "(pool_type lp)",
    "sort(x, axis=0)": "an order of the whole batch",
    "sort(x, axis=None)": "an order of the whole batch",
    "split_v2(x, 1, axis=0)": "sections of the batch",
    "diag(x)": "a diagonal of the batch",
    "contrib.arange_like(x, axis=0, repeat=2)": "(repeated numbers)",
    "contrib.arange_like(reshape(dot(y, y, transpose_b=True), shape=(-1,)))": "square",
    "contrib.MultiBoxDetection(x, Flatten(batch_dot(x, x, True)), Z, background_id=1)":
        "a background_id other",
    "contrib.ROIAlign(expand_dims(x, axis=1), r, (2, 2), spatial_scale=1, aligned=True)":
        "aligned",
    "RNN(t, broadcast_mul(C, sum(t)), ts, mode='rnn_tanh', state_size=1, num_layers=1)":
        "computed from the data",
}  # fmt: skip


@pytest.mark.parametrize("row", REFUSED)
def test_what_has_no_translation_is_refused_by_a_sentence(row):
    tensors = {"x": normal(2, 3, 4), "y": normal(2, 3), "o": normal(1, 3), "i": ints(1, 0)}
    tensors.update(r=normal(2, 5), s=normal(2, 4), C=normal(7), Z=normal(1, 4, 4))
    tensors.update(t=normal(5, 2, 4), ts=normal(1, 2, 1))
    with pytest.raises(UsageError) as raised:
        translated(network_of_row(row, tensors))
    assert REFUSED[row] in str(raised.value)
    assert str(raised.value).startswith("block net, operator ")


def test_regions_of_no_image_are_zero():
    """MXNet's ROIAlign leaves them as they are in memory on a CPU; `Network.run` does not."""
    row = "contrib.ROIAlign(x, r, pooled_size=(2, 2), spatial_scale=1)"
    regions = np.array([[0, 0, 0, 7, 7], [0, 2, 3, 6, 8]], "float32")
    network = network_of_row(row, {"x": normal(1, 4, 9, 8), "r": regions})
    (expected,), session = network.run(network.inputs), Session(translated(network)[0])
    inputs = {**network.inputs, "r": np.array([[-1] * 5, regions[0]], "float32")}
    for (found,) in (session.run(inputs), network.run(inputs)):
        np.testing.assert_allclose(found, [np.zeros((4, 2, 2)), expected[0]], rtol=1e-5, atol=1e-6)


def assert_mixed_types_are_consistent(row, tensors):
    network = network_of_row(row, tensors, "float16").under(Policy("float16"))
    model, _ = translated(network)
    onnx.checker.check_model(onnx.load_model_from_string(model), full_check=True)
    exact = {
        name: value.astype("float16").astype("float32") if value.dtype == "float32" else value
        for name, value in network.inputs.items()
    }
    results = Session(model).run(exact)
    expected = network_of_row(row, tensors).run(exact)
    for a, b in zip(expected, results):
        assert a.shape == b.shape
        if a.dtype.kind == "f" and np.isfinite(b).all():
            assert np.abs(a - b).max() <= 0.02 * np.abs(a).max()


@each_group
def test_an_operator_of_a_mixed_graph_has_consistent_types(rows, tensors):
    check_each(rows, lambda row: assert_mixed_types_are_consistent(row, tensors))


IN_FLOAT32 = """
        {softmax SoftmaxActivation L2Normalization}(x)
        {log_softmax norm cumsum}(x, axis=1)
        moments(x, axes=1)
        softmax_cross_entropy(x, max(x, axis=1))
        BatchNorm(x, G, G, G, G)
        LayerNorm(x, half(G), half(G))
        GroupNorm(expand_dims(x, axis=2), half(G), half(G))
        LRN(expand_dims(expand_dims(x, 2), 3), nsize=3)
        Activation(x, act_type='softrelu')
        LeakyReLU(x, act_type='gelu')
"""


@pytest.mark.parametrize("row", rows_of(IN_FLOAT32))
def test_norms_and_exponentials_of_float16_values_are_computed_in_float32(row):
    network = network_of_row(row, {"x": normal(2, 3), "G": positive(3)}, "float16")
    model, _ = translated(network)
    model = onnx.shape_inference.infer_shapes(onnx.load_model_from_string(model), True, True)
    dtypes = {info.name: info.type.tensor_type.elem_type for info in model.graph.value_info}
    computing = [n for n in model.graph.node if n.op_type in WIDE]
    assert computing
    assert all(dtypes[node.input[0]] == onnx.TensorProto.FLOAT for node in computing)
