"""The operator table against MXNet itself: what is registered, what runs, what is exact."""

import ctypes
import json
from collections import Counter

import numpy as np
import pytest

from gluon_amp.base import registry
from gluon_amp.base.messages import close_matches
from gluon_amp.base.mxnet_internals import LIB, check_call
from gluon_amp.policy import op_table
from tests.operator_calls import CANONICAL, ID_DTYPES, NETWORK, REGISTERED, Ids, call, node

import mxnet as mx
from mxnet.base import SymbolHandle, c_str_array

# Registered only if MXNet is built with oneDNN, CUDA, NVRTC or TensorRT
ONLY_IN_SOME_BUILDS = """
    _sg_mkldnn_conv _sg_mkldnn_fully_connected _sg_mkldnn_selfatt_qk _sg_mkldnn_selfatt_valatt
    _FusedOp _FusedOpHelper _FusedOpOutHelper _TensorRT _contrib_mrcnn_mask_target
""".split()


# Ranges of values: all operators of one input are defined in the first, except arccosh
UNIT = (0.25, 0.75)
ARCCOSH = (1.25, 1.75)

# Not run: one needs a second device, one a sparse array, and the others write to an input
NOT_RUN = {
    "_CrossDeviceCopy",
    "_sparse_retain",
    "_copyto",
    "_scatter_set_nd",
    "_npi_boolean_mask_assign_scalar",
    "_npi_boolean_mask_assign_tensor",
}
# MXNet 1.9.1 registers a gradient for these that fails in every dtype
NO_GRADIENT = {"_npi_copysign_scalar", "_npi_rcopysign_scalar"}

RANDOM = {"Dropout", "_shuffle", *(name for name in NETWORK if name.startswith("_random_"))}


def of_kind(*kinds):
    return [op for op in NETWORK if op_table.rule(op).kind in kinds and op not in NOT_RUN]


def arrays(op, dtype="float32", low=UNIT[0], high=UNIT[1]):
    """Inputs with float16 values, in arrays of `dtype`."""
    random = np.random.RandomState(7)
    result = []
    for shape in call(op)[0]:
        if isinstance(shape, Ids):
            # 0 or 1; as the length of a sequence, 1 or 2
            values = random.randint(0, 2, shape) + op.startswith("Sequence")
            result.append(mx.nd.array(values, dtype=ID_DTYPES.get(op, "int32")))
        else:
            values = random.uniform(low, high, shape).astype("float16")
            result.append(mx.nd.array(values, dtype=dtype))
    return result


def run(op, inputs, head=None):
    """Return an operator's first output and, with `head`, the gradients of its float inputs."""
    symbol = node(op)
    bound = dict(zip((f"x{i}" for i in range(len(inputs))), inputs))
    aux = {name: bound.pop(name) for name in symbol.list_auxiliary_states()}
    floats = [
        f"x{i}"
        for i, shape in enumerate(call(op)[0])
        if f"x{i}" in bound and not isinstance(shape, Ids)
    ]
    grads = {name: mx.nd.zeros_like(bound[name]) for name in floats} if head else {}
    reqs = {name: "write" if name in grads else "null" for name in bound}
    with mx.util.np_shape(op.startswith("_np")):
        executor = symbol.bind(mx.cpu(), bound, args_grad=grads, aux_states=aux, grad_req=reqs)
        out = executor.forward(is_train=bool(head))[0]
    if head:
        executor.backward([head(out)])
    return out, [grads[name] for name in floats if head]


def gradient_of(op):
    """Return `head_gradient`, or None if the operator has no gradient."""
    if op in op_table.RETURNS_INTEGERS | NO_GRADIENT:
        return None
    try:
        run(op, arrays(op), head=head_gradient)
    except mx.MXNetError as error:
        if "non-differentiable" in str(error):
            return None
        raise
    return head_gradient


def head_gradient(out):
    values = np.random.RandomState(8).uniform(0.5, 1.0, out.shape).astype("float16")
    return mx.nd.array(values, dtype=out.dtype)


def is_float16(values):
    return np.array_equal(values, values.astype("float16").astype(values.dtype))


# ------------------------------------------------------------------------------------ the table


def test_every_registered_operator_is_classified():
    assert [name for name in REGISTERED if not op_table.is_known(name)] == []


def test_every_classified_operator_is_registered():
    classified = {name for _, _, names in op_table.GROUPS for name in names.split()}
    assert classified - set(REGISTERED) - set(ONLY_IN_SOME_BUILDS) == set()


def test_each_operator_is_classified_once_and_by_its_canonical_name():
    classified = [name for _, _, names in op_table.GROUPS for name in names.split()]
    assert [name for name, n in Counter(classified).items() if n > 1] == []
    assert set(classified) - set(ONLY_IN_SOME_BUILDS) <= set(CANONICAL)


def test_aliases_resolve_to_the_same_operator():
    for name, operator in REGISTERED.items():
        assert registry.canonical(name) == operator.canonical
        assert REGISTERED[operator.canonical].handle.value == operator.handle.value
        assert op_table.rule(name) == op_table.rule(operator.canonical)


@pytest.mark.parametrize(
    "alias, name",
    [
        ("concat", "Concat"),
        ("reshape", "Reshape"),
        ("split", "SliceChannel"),
        ("cast", "Cast"),
        ("identity", "_copy"),
        ("stop_gradient", "BlockGrad"),
        ("crop", "slice"),
        ("flip", "reverse"),
        ("_Plus", "elemwise_add"),
        ("broadcast_minus", "broadcast_sub"),
        ("ElementWiseSum", "add_n"),
        ("ctc_loss", "CTCLoss"),
        ("choose_element_0index", "pick"),
        ("_npx_convolution", "Convolution"),
        ("_npi_maximum", "broadcast_maximum"),
        ("_sparse_Embedding", "Embedding"),
        ("softmax", "softmax"),
        ("my_gemm", "my_gemm"),
    ],
)
def test_canonical_name(alias, name):
    assert registry.canonical(alias) == name


def test_the_names_are_those_that_mxnet_lists():
    names = op_table.names()
    assert len(names) == len(set(names))
    forward = {name for name in REGISTERED if not name.startswith("_backward_")}
    backward = {name for name in forward if REGISTERED[name].canonical.startswith("_backward_")}
    assert set(names) - set(ONLY_IN_SOME_BUILDS) == forward - backward - set(ONLY_IN_SOME_BUILDS)


# Parts of names in `mx.np` that have another name in `mx.nd`
OTHER_NAMES = {
    "absolute": "abs",
    "add": "plus",
    "average": "mean",
    "column_stack": "Concat",
    "concatenate": "Concat",
    "copy": "_copy",
    "diagonal": "diag",
    "dsplit": "SliceChannel",
    "dstack": "Concat",
    "einsum": "dot",
    "hsplit": "SliceChannel",
    "hstack": "Concat",
    "less": "lesser",
    "matmul": "batch_dot",
    "moveaxis": "SwapAxis",
    "multiply": "mul",
    "rsubtract": "rminus",
    "rtrue_divide": "rdiv",
    "std": "moments",
    "subtract": "minus",
    "tensordot": "dot",
    "true_divide": "div",
    "var": "moments",
    "vstack": "Concat",
}
PREFIXES = ("", "_", "_sample_")


def twin_of(name):
    """Return the operator of mx.nd that does what an operator of mx.np does, or None."""
    stem = name.split("_", 2)[2]
    words = [stem, *(OTHER_NAMES[w] + stem[len(w) :] for w in OTHER_NAMES if stem.startswith(w))]
    candidates = [f"{prefix}{word}" for prefix in PREFIXES for word in words]
    known = (registry.canonical(c) for c in candidates if op_table.is_known(c))
    return next((c for c in known if not c.startswith(("_np", "_random", "_arange"))), None)


def test_operators_of_numpy_have_the_rule_of_their_twin():
    names = (n for n in CANONICAL if n.startswith(("_np_", "_npi_", "_npx_")))
    twins = {name: twin_of(name) for name in names if "backward" not in name}
    twins = {name: twin for name, twin in twins.items() if twin}
    del twins["_npi_identity"]  # creates a matrix, as `_eye` does
    assert len(twins) > 90
    assert twins["_npi_matmul"] == "batch_dot" and twins["_npi_mean"] == "mean"
    assert twins["_npi_add_scalar"] == "_plus_scalar" and twins["_npi_where"] == "where"
    for name, twin in twins.items():
        one, other = op_table.rule(name), op_table.rule(twin)
        if name in op_table.RETURNS_INTEGERS:  # where the twin returns the dtype of its input
            assert one.kind in ("uncast", other.kind), name
        else:
            assert (one.kind, one.uncast) == (other.kind, other.uncast), name
            assert (name in op_table.EXACT) == (twin in op_table.EXACT), name


def test_kinds_are_known_and_reasons_are_one_line():
    for kind, reason, _ in op_table.GROUPS:
        assert kind in op_table.KINDS
        assert 0 < len(reason) <= 100
        assert "\n" not in reason


def test_sets_name_known_operators():
    sets = (op_table.EXACT, op_table.MOVES, op_table.RETURNS_INTEGERS)
    for names in (*sets, op_table.UNCAST):
        assert [name for name in names if not op_table.is_known(name)] == []


@pytest.mark.parametrize(
    "op, kind",
    [
        ("Convolution", "compute"),
        ("FullyConnected", "compute"),
        ("RNN", "compute"),
        ("dot", "compute"),
        ("_contrib_interleaved_matmul_selfatt_qk", "compute"),
        ("batch_dot", "float32"),  # float16 sums on a GPU, issue 18584
        ("Embedding", "float32"),  # a float16 gradient saturates, issue 17703
        ("softmax", "float32"),
        ("SoftmaxOutput", "float32"),
        ("mean", "float32"),
        ("exp", "float32"),
        ("argmax", "float32"),  # float16 cannot count past 2048
        ("_contrib_ROIAlign", "float32"),
        ("Custom", "float32"),
        ("_foreach", "float32"),
        ("BatchNorm", "norm"),
        ("LayerNorm", "norm"),
        ("relu", "follow"),
        ("LeakyReLU", "follow"),
        ("Pooling", "follow"),
        ("Dropout", "follow"),
        ("take", "follow"),
        ("elemwise_add", "widest"),
        ("Concat", "widest"),
        ("where", "widest"),
        ("Cast", "uncast"),
        ("amp_cast", "uncast"),
        ("one_hot", "uncast"),
        ("shape_array", "uncast"),
        ("sgd_update", "uncast"),
        ("_backward_Convolution", "uncast"),
    ],
)
def test_kind(op, kind):
    assert op_table.rule(op).kind == kind


def test_rule_of_an_alias_is_that_of_the_operator():
    assert op_table.rule("concat") == op_table.rule("Concat")
    assert op_table.rule("_Plus") == op_table.rule("elemwise_add")
    assert op_table.rule("_sparse_Embedding").uncast == (0,)


def test_an_unknown_operator_stays_in_float32():
    rule = op_table.rule("my_gemm")
    assert rule == ("float32", "not one of MXNet 1.9.1's operators: kept in float32", ())
    assert not op_table.is_known("my_gemm")


def test_close_matches():
    assert close_matches("convolutions", op_table.names())[0] == "Convolution"
    assert close_matches("layernorm", op_table.names())[0] == "LayerNorm"
    assert close_matches("batchdot", op_table.names())[0] == "batch_dot"
    assert close_matches("xyzzy", op_table.names()) == []


# ------------------------------------------------------------------------------ running float16


@pytest.mark.parametrize("op", of_kind("follow", "widest"))
def test_runs_in_float16(op):
    head = gradient_of(op)
    low, high = ARCCOSH if "arccosh" in op else UNIT
    out, grads = run(op, arrays(op, "float16", low, high), head=head)
    assert out.dtype == np.float16 or op in op_table.RETURNS_INTEGERS
    assert all(grad.dtype == np.float16 for grad in grads)
    assert_same(op, (out, grads), run(op, arrays(op, "float32", low, high), head=head), 2.0**-9)


def assert_same(op, low, high, tolerance):
    for a, b in zip([low[0], *low[1]], [high[0], *high[1]]):
        a, b = a.asnumpy(), b.asnumpy()
        if op in RANDOM:
            assert np.isfinite(a).all()
        else:
            np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


ONE_INPUT = [
    *(
        (op, {})
        for op in """
        relu sigmoid tanh softsign erf sin cos arctan arcsinh arccosh sqrt cbrt radians hard_sigmoid
        abs negative sign ceil floor rint round fix trunc
        """.split()
    ),
    *(("Activation", {"act_type": act}) for act in ("sigmoid", "tanh", "softrelu", "softsign")),
    *(("LeakyReLU", {"act_type": act}) for act in ("leaky", "elu", "selu", "gelu")),
]


@pytest.mark.parametrize("op, attrs", ONE_INPUT)
def test_every_normal_float16_value_gives_what_float32_gives(op, attrs):
    """So `Activation` and `LeakyReLU` do not need float32, which contrib.amp runs them in."""
    every = np.arange(2**16, dtype=np.uint16).view(np.float16)
    every = every[np.isfinite(every) & (abs(every) >= 2.0**-14)].reshape(1, -1)
    results = []
    for dtype in ("float16", "float32"):
        x = mx.nd.array(every, dtype=dtype)
        x.attach_grad()
        with mx.autograd.record():
            y = getattr(mx.nd, op)(x, **attrs)
        y.backward()
        results.append((y.asnumpy(), x.grad.asnumpy()))
    for low, high in zip(*results):
        with np.errstate(over="ignore"):
            np.testing.assert_allclose(low, high.astype("float16"), rtol=2.0**-8, atol=2.0**-9)


@pytest.mark.parametrize("op", ["InstanceNorm", "LRN", "_contrib_SyncBatchNorm", "sort", "argsort"])
def test_operators_without_float16_do_not_run_in_it(op):
    with pytest.raises(mx.MXNetError):
        run(op, arrays(op, "float16"))[0].asnumpy()


def test_batch_norm_takes_float16_data_with_float32_parameters():
    x, *params = arrays("BatchNorm")
    out, _ = run("BatchNorm", [x.astype("float16"), *params])
    assert out.dtype == np.float16


def test_results_that_are_integers():
    for op in op_table.RETURNS_INTEGERS:
        symbol = node(op)
        dtypes = dict.fromkeys(symbol.list_arguments(), "float16")
        _, (dtype, *_), _ = symbol.infer_type(**dtypes)
        assert np.dtype(dtype).kind in "iub", op
        assert op_table.rule(op).kind in ("uncast", "widest"), op


# ----------------------------------------------------------------------------- uncast positions

UNCAST_NAMES = {
    "CTCLoss": ["label", "data_lengths", "label_lengths"],
    "Embedding": ["data"],
    "RNN": ["sequence_length"],
    "SequenceLast": ["sequence_length"],
    "SequenceMask": ["sequence_length"],
    "SequenceReverse": ["sequence_length"],
    "_contrib_BilinearResize2D": ["like"],
    "_contrib_SparseEmbedding": ["data"],
    "_contrib_boolean_mask": ["index"],
    "_contrib_hawkesll": ["marks"],
    "_contrib_index_copy": ["index_vector"],
    "_npi_bincount": ["data"],
    "_npi_boolean_mask_assign_scalar": ["mask"],
    "_npi_boolean_mask_assign_tensor": ["mask"],
    "_npi_delete": ["obj"],
    "_npi_insert_tensor": ["obj"],
    "_npi_where": ["condition"],
    "_npi_where_lscalar": ["condition"],
    "_npi_where_rscalar": ["condition"],
    "_scatter_set_nd": ["indices"],
    "_sparse_retain": ["indices"],
    "batch_take": ["indices"],
    "broadcast_like": ["rhs"],
    "gather_nd": ["indices"],
    "pick": ["index"],
    "reshape_like": ["rhs"],
    "scatter_nd": ["indices"],
    "slice_like": ["shape_like"],
    "softmax": ["length"],
    "take": ["indices"],
    "where": ["condition"],
}


def input_names(op, attrs):
    """Return MXNet's names of an operator's inputs, in the order of the node's `inputs`."""
    keys = c_str_array(list(attrs))
    values = c_str_array([str(value) for value in attrs.values()])
    handle = SymbolHandle()
    check_call(
        LIB.MXSymbolCreateAtomicSymbol(
            REGISTERED[op].handle, len(attrs), keys, values, ctypes.byref(handle)
        )
    )
    symbol = mx.sym.Symbol(handle)
    graph = json.loads(symbol(name="n").tojson())
    (operator,) = (node for node in graph["nodes"] if node["op"] != "null")
    return [graph["nodes"][i]["name"][2:] for i, *_ in operator["inputs"]]


@pytest.mark.parametrize("op", sorted(op_table.UNCAST))
def test_uncast_positions(op):
    names = input_names(op, call(op)[1])
    assert [names[i] for i in op_table.rule(op).uncast] == UNCAST_NAMES[op]


@pytest.mark.parametrize("op", sorted(op_table.UNCAST))
def test_uncast_inputs_may_have_a_dtype_of_their_own(op):
    symbol, uncast = node(op), op_table.rule(op).uncast
    other = "float32" if op == "_contrib_hawkesll" else "float16"
    names = [f"x{i}" for i in range(len(call(op)[0]))]
    own = ID_DTYPES.get(op, "float32")
    dtypes = {name: own if i in uncast else other for i, name in enumerate(names)}
    _, (dtype, *_), _ = symbol.infer_type(**dtypes)
    assert dtype == np.dtype(other)


def test_optional_inputs_leave_no_gap():
    assert input_names("CTCLoss", {"use_label_lengths": True}) == ["data", "label", "label_lengths"]
    lstm = ["data", "parameters", "state", "state_cell"]
    size = {"state_size": 5, "num_layers": 1}
    assert input_names("RNN", {"mode": "lstm", **size}) == lstm
    gru = {"mode": "gru", "use_sequence_length": True, **size}
    assert input_names("RNN", gru) == [*lstm[:3], "sequence_length"]


# --------------------------------------------------------------------------- exact, and moving


def exact_ops():
    return [op for op in NETWORK if op in op_table.EXACT and op not in NOT_RUN]


@pytest.mark.parametrize("op", exact_ops())
def test_exact_operators_return_float16_values(op):
    for low, high in ((-2.0, 2.0), (-6e4, 6e4), (-6e-5, 6e-5)):
        out, _ = run(op, arrays(op, "float32", low, high))
        assert out.dtype == np.float32
        assert is_float16(out.asnumpy())


def test_random_arithmetic_is_not_exact():
    for op in ("elemwise_add", "elemwise_mul", "sigmoid", "mean"):
        assert op not in op_table.EXACT
        assert not is_float16(run(op, arrays(op))[0].asnumpy())


def test_moves_are_exact():
    assert op_table.MOVES < op_table.EXACT
    assert {op_table.rule(op).kind for op in op_table.EXACT} == {"follow", "widest"}


@pytest.mark.parametrize("op", [op for op in exact_ops() if op in op_table.MOVES])
def test_moves_return_each_value_at_most_once_and_so_do_their_gradients(op):
    out, grads = run(op, arrays(op), head=head_gradient)
    inputs = [x for x, shape in zip(arrays(op), call(op)[0]) if not isinstance(shape, Ids)]
    before, after = values(inputs), values([out])
    assert after - before == Counter()
    assert values(grads) - values([head_gradient(out)]) == Counter()


def values(tensors):
    """The values other than 0, and how often each occurs."""
    counted = Counter(np.concatenate([tensor.asnumpy().ravel() for tensor in tensors]).tolist())
    del counted[0.0]
    return counted
