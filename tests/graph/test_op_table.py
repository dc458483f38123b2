"""The operator table against MXNet itself: what is registered, what runs, what is exact."""

import ctypes
import json
import re
from collections import Counter, defaultdict

import numpy as np
import pytest

from experiments.operators.calls import CANONICAL, ID_DTYPES, NETWORK, REGISTERED, Ids, call, node
from experiments.pages import DOCS
from gluon_amp.base import registry
from gluon_amp.base.mxnet_internals import LIB, check_call
from gluon_amp.graph import classic, op_table, op_words, own_operators
from gluon_amp.policy.cast_pass import NATIVELY_MIXED
from tests.marks import needs_library

import mxnet as mx
from mxnet.base import SymbolHandle, c_str_array

# Registered only if MXNet is built with oneDNN, CUDA, NVRTC or TensorRT; the last two in 1.9.1 only
ONLY_IN_SOME_BUILDS = """
    _sg_mkldnn_conv _sg_mkldnn_fully_connected _sg_mkldnn_selfatt_qk _sg_mkldnn_selfatt_valatt
    _FusedOp _FusedOpHelper _FusedOpOutHelper _TensorRT _contrib_mrcnn_mask_target
    _contrib_quantize_asym _contrib_quantized_rnn
""".split()


# Ranges of values: all operators of one input are defined in the first, except arccosh
UNIT = (0.25, 0.75)
ARCCOSH = (1.25, 1.75)

DTYPES = ("float16", "float32")

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
    if op in op_table.named("integers") | NO_GRADIENT:
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


def test_every_operator_of_mxnet_is_listed_once_under_its_name_in_a_graph():
    listed = [name for group in op_table.GROUPS for name in group.names]
    assert [name for name, n in Counter(listed).items() if n > 1] == []
    assert [name for name in REGISTERED if not op_table.is_known(name)] == []
    assert {*listed} - {*ONLY_IN_SOME_BUILDS} <= {*CANONICAL}
    kinds = {"compute", "float32", "norm", "follow", "widest", "uncast"}
    assert {group.kind for group in op_table.GROUPS} == kinds
    assert all(0 < len(group.reason) <= 100 for group in op_table.GROUPS)


def test_every_word_is_defined_and_every_operator_with_one_is_listed():
    words = re.findall(r"^(\w+)(?:\(.*?\))?:", op_words.WORDS, flags=re.MULTILINE)
    assert {*op_table._MARKS} <= {*words, *own_operators.WORDS}
    named = {nodes.op for nodes in op_table.WORDED if not own_operators.is_own(nodes.op)}
    assert [name for name in named if not op_table.is_known(name)] == []


@needs_library
def test_every_operator_of_the_library_is_registered():
    texts = (value for value in vars(own_operators).values() if isinstance(value, str))
    ours = [text for text in texts if text.startswith("_gluon_amp_") and text != "_gluon_amp_"]
    assert len(ours) > 20 and [name for name in ours if registry.handle(name) is None] == []


def test_aliases_resolve_to_the_same_operator():
    for name, operator in REGISTERED.items():
        assert registry.canonical(name) == operator.canonical
        assert REGISTERED[operator.canonical].handle.value == operator.handle.value
        assert op_table.rule(name) == op_table.rule(operator.canonical)


def test_the_names_are_those_that_mxnet_lists():
    names = op_table.names()
    assert len(names) == len(set(names))
    forward = {name for name in REGISTERED if not name.startswith("_backward_")}
    backward = {name for name in forward if REGISTERED[name].canonical.startswith("_backward_")}
    assert set(names) - set(ONLY_IN_SOME_BUILDS) == forward - backward - set(ONLY_IN_SOME_BUILDS)


# Operators of mx.np whose counterpart in mx.nd is another one than `classic` knows, but of its kind
TWINS = dict(
    pair.split(":")
    for pair in """
    _np_diagonal:diag _np_moveaxis:SwapAxis _npi_average:mean _npi_column_stack:Concat
    _npi_dsplit:SliceChannel _npi_dstack:Concat _npi_einsum:dot _npi_exponential:_sample_exponential
    _npi_flip:reverse _npi_gamma:_sample_gamma _npi_hsplit:SliceChannel _npi_hstack:Concat
    _npi_matmul:batch_dot _npi_multinomial:_sample_multinomial _npi_normal:_sample_normal
    _npi_pad:Pad _npi_std:moments _npi_tensordot:dot _npi_uniform:_sample_uniform _npi_var:moments
    _npi_vstack:Concat
    """.split()
)
SAME = {name: classic(name) for name in NETWORK if classic(name) != name}


def test_operators_of_numpy_have_the_rule_of_their_twin():
    assert len(SAME) > 80 and not SAME.keys() & TWINS.keys()
    for name, twin in {**SAME, **TWINS}.items():
        one, other = op_table.rule(name), op_table.rule(twin)
        if name == "_npi_around":
            assert (one.kind, other.kind) == ("float32", "follow")  # it has no float16 kernel
        elif op_table.has("integers", name):  # where the twin returns the dtype of its input
            assert one.kind in ("uncast", other.kind), name
        else:
            assert (one.kind, one.uncast) == (other.kind, other.uncast), name
            assert op_table.has("exact", name) == op_table.has("exact", twin), name


def test_operators_of_numpy_have_the_words_of_their_counterparts():
    for name, twin in SAME.items():
        for word in ("decides", "head", "moves", "no_tensor_cores", "product", "regions", "shape"):
            assert op_table.arguments(word, name) == op_table.arguments(word, twin), (name, word)


def test_what_float16_decides():
    """Each of these is a statement about a kernel, with its issue in the table."""
    kinds = {
        "compute": "Convolution FullyConnected RNN dot _contrib_interleaved_matmul_selfatt_qk",
        "float32": "batch_dot Embedding softmax SoftmaxOutput mean argmax _contrib_ROIAlign Custom",
        "norm": "BatchNorm LayerNorm",
        "follow": "relu LeakyReLU Pooling Dropout take",
        "widest": "elemwise_add concat where",
        "uncast": "Cast amp_cast one_hot shape_array sgd_update _backward_Convolution",
    }
    for kind, names in kinds.items():
        assert {name: op_table.rule(name).kind for name in names.split()} == dict.fromkeys(
            names.split(), kind
        )
    unknown = op_table.rule("my_gemm")
    assert unknown == ("float32", "not one of MXNet 1.9.1's operators: kept in float32", ())
    assert not op_table.is_known("my_gemm")


@pytest.mark.parametrize("kind", ["follow", "widest"])
def test_every_operator_runs_in_float16_as_in_float32(kind):
    for op in of_kind(kind):
        head = gradient_of(op)
        low, high = ARCCOSH if "arccosh" in op else UNIT
        (out, grads), wide = (run(op, arrays(op, t, low, high), head) for t in DTYPES)
        assert out.dtype == np.float16 or op_table.has("integers", op), op
        assert all(grad.dtype == np.float16 for grad in grads), op
        for a, b in zip([out, *grads], [wide[0], *wide[1]]):
            a, b = a.asnumpy(), b.asnumpy()
            if op_table.has("random", op):
                assert np.isfinite(a).all(), op
            else:
                np.testing.assert_allclose(a, b, rtol=2.0**-9, atol=2.0**-9, err_msg=op)


def test_results_that_are_integers():
    for op in op_table.named("integers"):
        symbol = node(op)
        dtypes = dict.fromkeys(symbol.list_arguments(), "float16")
        _, (dtype, *_), _ = symbol.infer_type(**dtypes)
        assert np.dtype(dtype).kind in "iub", op
        assert op_table.rule(op).kind in ("uncast", "widest"), op


# MXNet's names of inputs that hold ids, lengths, conditions, or only a shape
NOT_VALUES = """
    label data_lengths label_lengths sequence_length like index marks index_vector mask obj
    condition indices shape_like length
""".split()
# Operators where another input does so
ALSO = {
    **dict.fromkeys(("Embedding", "_contrib_SparseEmbedding", "_npi_bincount"), "data"),
    **dict.fromkeys(("broadcast_like", "reshape_like"), "rhs"),
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


def test_inputs_that_are_never_cast():
    """They are no values, and MXNet lets them have another dtype than the other inputs."""
    for op in op_table.named("uncast"):
        names = input_names(op, call(op)[1])
        uncast = op_table.rule(op).uncast
        known = (*NOT_VALUES, ALSO.get(op))
        assert [i for i, name in enumerate(names) if name in known] == list(uncast), op
        other = "float32" if op == "_contrib_hawkesll" else "float16"
        own = ID_DTYPES.get(op, "float32")
        dtypes = {f"x{i}": own if i in uncast else other for i in range(len(call(op)[0]))}
        _, (dtype, *_), _ = node(op).infer_type(**dtypes)
        assert dtype == np.dtype(other), op


def test_exact_operators_return_float16_values():
    exact = op_table.named("exact")
    assert op_table.named("moves") < exact
    assert {op_table.rule(op).kind for op in exact} == {"follow", "widest"}
    for op in ("elemwise_add", "elemwise_mul", "sigmoid", "mean"):  # so that the test can fail
        assert op not in exact and not is_float16(run(op, arrays(op))[0].asnumpy())
    for op in [op for op in NETWORK if op in exact and op not in NOT_RUN]:
        for low, high in ((-2.0, 2.0), (-6e4, 6e4), (-6e-5, 6e-5)):
            out, _ = run(op, arrays(op, "float32", low, high))
            assert out.dtype == np.float32 and is_float16(out.asnumpy()), op


def test_moves_return_each_value_at_most_once_and_so_do_their_gradients():
    def counted(tensors):
        """The values other than 0, and how often each occurs."""
        found = Counter(np.concatenate([t.asnumpy().ravel() for t in tensors]).tolist())
        del found[0.0]
        return found

    for op in [op for op in NETWORK if op_table.has("moves", op) and op not in NOT_RUN]:
        out, grads = run(op, arrays(op), head=head_gradient)
        inputs = [x for x, shape in zip(arrays(op), call(op)[0]) if not isinstance(shape, Ids)]
        assert counted([out]) - counted(inputs) == Counter(), op
        assert counted(grads) - counted([head_gradient(out)]) == Counter(), op


# What MXNet adds to a graph for its backward pass: sums, copies and zeros
OF_BACKWARD_PASSES = ["_grad_add", "add_n", "_copy", "zeros_like", "ones_like", "_zeros"]


def test_every_operator_that_runs_in_float16_has_a_cuda_kernel():
    casts = ["amp_cast", "Cast", "amp_multicast"]
    low = of_kind("compute", "follow", "widest")
    ops = [*low, *NATIVELY_MIXED, *OF_BACKWARD_PASSES, *casts, "flatten"]
    assert [op for op in ops if op_table.has("no_float16", op)] == []
    assert op_table.has("no_float16", "linalg_gemm2") and op_table.has("no_float16", "my_gemm")


def test_attributes_and_devices_decide_whether_a_word_holds():
    for kind, once in (("elu", False), ("rrelu", True)):
        assert op_table.has("once", "LeakyReLU", {"act_type": kind}) is once
    devices = ("cpu", "gpu")
    assert [op_table.has("once", "RNN", {}, device) for device in devices] == [False, True]
    assert [op_table.has("adds", "amp_cast", {}, device) for device in devices] == [False, True]
    for attrs, exact in (({"pool_type": "max"}, True), ({}, True), ({"pool_type": "avg"}, False)):
        assert op_table.has("exact", "Pooling", attrs) is exact
    assert not op_table.has("exact", "Pooling")  # not of all
    for kind, exact in (("relu", True), ("tanh", False)):
        assert op_table.has("exact", "Activation", {"act_type": kind}) is exact
    for text, written in (("None", (1, 3, 4)), ("true", (1, 3, 4)), ("0", (3, 4))):
        assert op_table.inputs("writes", "BatchNorm", {"fix_gamma": text}) == written
    for text, ignores in (("False", True), ("1", False), ("None", True)):
        assert op_table.has("head", "SoftmaxOutput", {"out_grad": text}) is ignores
    assert op_table.rule("Pooling", {"pool_type": "lp"}) == op_table.rule("sum")
    assert op_table.rule("Pooling") == op_table.rule("Pooling", {}) == op_table.rule("UpSampling")


def test_of_an_unknown_operator_nothing_good_is_assumed():
    bad = {"code", "once", "no_float16"}
    words = {"moves", "exact", "random", "adds", "head", *bad}
    assert {word for word in words if op_table.has(word, "my_gemm")} == bad
    assert {word for word in words if op_table.has(word, "_backward_Pooling")} == {"once"}
    for name in ("null", own_operators.DENSE):
        assert not any(op_table.has(word, name) for word in bad)
    with pytest.raises(KeyError):
        op_table.has("mooves", "Reshape")


# ----------------------------------------------- the words, and what `make operators` measured

TEXT = (DOCS / "results/operators.md").read_text()
PAGE = dict(re.findall(r"<!-- (\w+) -->(.*?)<!-- /\1 -->", TEXT, re.DOTALL))


def listed(part):
    return set(re.findall(r"`(\w+)`", PAGE[part]))


def table(part):
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*?) \|$", PAGE[part], re.MULTILINE)
    assert rows
    return rows


def test_operators_that_draw_are_those_that_were_seen_to():
    called = {op for op in NETWORK if op not in listed("refused")}
    seen = listed("random") - {"RNN"}  # in float64 only, or on a GPU
    assert {op for op in called if op_table.has("random", op)} == seen


def test_operators_of_another_second_gradient_are_those_that_were_seen_to_have_one():
    seen = {op for op, *_ in table("once")}
    assert {op for op in seen if not op_table.has("once", op)} == set()
    # code of users, and gradients that only a GPU or sparse arrays have
    marked = {op for op in NETWORK if op_table.has("once", op) and not op_table.has("code", op)}
    not_on_a_cpu = {"_contrib_ModulatedDeformableConvolution", "_contrib_SparseEmbedding"}
    assert marked - seen - listed("refused") == not_on_a_cpu


def test_inputs_that_are_written_are_those_that_were_seen_to_be():
    positions = {"gamma": 1, "moving_mean": 3, "moving_var": 4}
    seen = defaultdict(set)
    for op, place, _ in table("writes"):
        name, *rest = place.split()
        seen[op].add(positions[name] if name in positions else int(rest[0]))
    words = {op: {*op_table.inputs("writes", op, {})} for op in NETWORK}
    assert {op: places for op, places in words.items() if places} == seen


def test_heads_are_the_operators_that_ignore_the_head_gradient():
    heads = {op for op in NETWORK if op_table.has("head", op, {})}
    assert heads == listed("scaled") - {"_npi_norm"}  # whose gradient contains its square


def test_operators_that_add_gradients_were_never_seen_to_fail():
    failed = listed("unadded") | listed("static")
    # a gamma that is fixed has a gradient of zero; oneDNN's RNN adds, the one for float64 refuses
    assert {op for op in failed if op_table.has("adds", op)} == {"BatchNorm", "RNN"}


def test_gradients_that_are_wrong_in_place_are_those_that_were_seen_to_be():
    marked = {op for op in NETWORK if op_table.has("inplace", op, {"act_type": "prelu"})}
    assert marked == {op for op, *_ in table("in_place")}
