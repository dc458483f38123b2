"""The C++ operators raise an MXNetError for wrong arguments, and never crash."""

import json

import numpy as np
import pytest

from gluon_amp.base import bfloat16
from gluon_amp.graph.own_operators import NARROW_BFLOAT16, WIDEN_BFLOAT16
from gluon_amp.kernels import updates
from tests.kernels.images import operator
from tests.kernels.operator_calls import ALONE, CALLS
from tests.lowering import printed
from tests.marks import needs_library

import mxnet as mx
from mxnet import nd

pytestmark = [needs_library, pytest.mark.cpu_kind]

PROGRAM = "import sys; from tests.kernels.operator_calls import main; main(*map(int, sys.argv[1:]))"


def random_calls(seed, cases):
    return json.loads(printed(PROGRAM, seed, cases, MALLOC_CHECK_="3").splitlines()[-1])


def test_random_arguments_are_refused_or_done():
    counts = random_calls(0, 600)
    assert counts["refused"] > 200 and counts["done"] > 80


@pytest.mark.slow
def test_many_random_arguments():
    for seed in range(1, 6):
        assert sum(random_calls(seed, 2000).values()) > 2000


HUGE = "(2147483647, 2147483647)"
FAR = "(4611686018427387904, 1)"
CONVOLUTIONS = ("blocked_convolution", "blocked_deconvolution", "depthwise")
# Operator, and texts of its attributes that shape inference must refuse; None: missing
WRONG = {
    "blocked_convolution": {
        "lanes": ["5", "-1", "1000000000000"],
        "channels": ["1000000000000", "40", None],
        "kernel": ["(0, 0)", "(9, 9)", None, FAR, "(1,)", "(2, 2, 2)"],
        "pad": [HUGE, "(-1, 0)"],
        "dilate": [FAR],
        "num_group": ["0", "3"],
        "num_filter": ["9223372036854775807"],
        "no_bias": ["True"],
        "plain_data": ["True"],
    },
    "blocked_deconvolution": {
        "num_filter": ["0"],
        "num_group": ["3"],
        "stride": ["(0, 1)"],
        "adj": ["(2, 0)", "(0, -1)"],
        "pad": ["(9, 9)"],
        "dilate": [HUGE],
    },
    "depthwise": {
        "num_filter": ["17", "0", "-2"],
        "num_group": ["3", "0", "-1"],
        "kernel": ["(1,)", "(0, 3)", "(1, 9)"],
        "dilate": ["(1, 0)"],
        "lanes": ["8"],  # those of the data are 16
        "pad": ["(1, 9999999)"],  # too many positions to copy at once
    },
    "dense": {"num_hidden": ["0", "9223372036854775807"], "no_bias": ["True"]},
    "rnn": {
        "mode": ["lstn", "gru"],  # a GRU has no cells
        "state_size": ["0", "6", "9223372036854775807"],
        "num_layers": ["0", "2", "9223372036854775807"],
        "num_parameters": ["0", "4"],
        "bidirectional": ["True"],
    },
    "pool": {
        "kernel": ["(2,)", "(0, 2)", "(9, 2)", "(1000000000, 1)"],
        "stride": ["(0, 1)", "(1, 1, 1)"],
        "channels": ["0", "40"],
        "pool_type": ["sum"],
        "pooling_convention": ["same"],
        "pad": ["(2, 0)"],
        "output_size": ["(2, 2)", "(2, 2, 2)", "(-1, 2)", "-1", "(1000000, 1000000)"],
    },
    "block": {"lanes": ["-1"]},
    "unblock": {"channels": [None, "-5"]},
    "fork": {"num_outputs": ["0", "3", "4294967297"]},
    "concat": {"channels": [None, "(40,)", "(20, -20)", "(8, 8)"], "num_args": ["1"]},
    "pointwise": {
        "program": [
            *("swim 0", "relu", "relu 2", "relu -1", "relu 0.5", "relu 1e300", "relu 0 0"),
            *("clip 0 0 nan", "clip 0 0 6x", "relu 2; relu 0", "; ".join(["relu 0"] * 65)),
        ],
        "num_inputs": ["-1", "0", "9"],
        "channels": ["16", "33"],
    },
    "norm": {
        "program": ["relu 1", "relu 1; relu 0"],
        "channels": ["0", "1000000000000"],
        "num_extras": ["-1", "1"],
    },
}


def infer(op, shapes=(), **changed):
    attributes, low, wide = CALLS[op]
    attributes = {n: text for n, text in {**attributes, **changed}.items() if text is not None}
    known = {f"x{k}": shape for k, shape in enumerate(low + wide)}
    symbol = operator(op, known, "float16", **attributes)
    return symbol.infer_shape(**{**known, **dict(shapes)})


@pytest.mark.parametrize("name", WRONG)
def test_wrong_attributes(name):
    op = f"_gluon_amp_{name}"
    assert infer(op)[0] is not None
    changes = [{key: text} for key, texts in WRONG[name].items() for text in texts]
    averages = [{**change, "pool_type": "avg"} for change in changes if "output_size" in change]
    for changed in changes + averages[1:]:
        print(changed)  # shown if it is not refused
        with pytest.raises(mx.base.MXNetError, match=f"{op}|program"):
            infer(op, **changed)


READ_LANES = ("norm", "pool", "pointwise", "unblock", "concat")
WRONG_SHAPES = [
    *((name, {"x0": (2, 20, 5, 6)}) for name in (*CONVOLUTIONS, "norm", "pool", "unblock")),
    *((name, {"x0": (2, 1, 5, 6, 16)}) for name in (*CONVOLUTIONS, "norm", "pool", "pointwise")),
    *((name, {"x0": (2, 2, 5, 6, 5)}) for name in (*CONVOLUTIONS, "norm", "pool")),
    *((name, {"x1": (3, 3, 3, 3)}) for name in (*CONVOLUTIONS, "dense")),
    *((name, {"x2": (3,)}) for name in (*CONVOLUTIONS, "dense")),
    *(("rnn", {f"x{k}": (3, 2, 8)}) for k in range(4)),
    ("norm", {"x1": (15,)}),
    ("pointwise", {"x1": (2, 2, 5, 7, 16)}),
    ("block", {"x0": (2, 20, 5)}),
    ("unblock", {"x0": (2, 3, 5, 6, 16)}),
    *((name, {"x0": (2, 2, *size, 16)}) for name in CONVOLUTIONS for size in ((0, 3), (1, 0))),
    # No size is divided by the number of lanes: a process ended by SIGFPE.
    *((name, {"x0": (2, 2, 5, 6, 0)}) for name in (*CONVOLUTIONS, *READ_LANES)),
]


@pytest.mark.parametrize("name, shapes", WRONG_SHAPES, ids=str)
def test_wrong_shapes(name, shapes):
    """A size of 0 is no unknown one under `np_shape`."""
    op, empty = f"_gluon_amp_{name}", 0 in shapes.get("x0", ())
    with mx.util.np_shape(empty), pytest.raises(mx.base.MXNetError, match=op):
        infer(op, shapes)


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_wrong_dtypes_of_convolutions(name):
    op = f"_gluon_amp_{name}"
    symbol = operator(op, ["data", "weight", "bias"], "float16", **CALLS[op][0])
    for types in ({"data": "float64"}, {"data": "float32", "weight": "float64"}):
        with pytest.raises(mx.base.MXNetError, match=op):
            symbol.infer_type(**types)


# --------------------------------------------------------------------------------------- updates

# SGD with momentum of one float32 weight
TEXT = {"arrays_per_weight": "3", "lrs": "0", "wds": "0", "decays": "0", "constants": "0,0,0"}


def update(arrays, op="_gluon_amp_sgd_update", **text):
    updates.invoke(op, arrays, **{**TEXT, **text})
    nd.waitall()


def of(*dtypes):
    return [nd.ones((5,), dtype=dtype) for dtype in dtypes]


@pytest.mark.parametrize(
    "text, message",
    [
        *(({"arrays_per_weight": n}, "arrays_per_weight must be 2 to 4") for n in ("7", "3,3")),
        *(({"arrays_per_weight": n}, f"arrays_per_weight has {n}") for n in ("-1", "4294967298")),
        ({"arrays_per_weight": "2"}, "3 inputs|expects 2"),
        ({"lrs": "0,0"}, "3 inputs|expects 6"),
        ({"wds": "0,0"}, "wds has the wrong length"),
        *(({"constants": text}, "constants has the wrong length") for text in ("0", "0,0,0,0")),
        *(({name: text}, f"needs {name}") for name in TEXT for text in ("", "zero", None)),
    ],
)
def test_wrong_text_of_an_update(text, message):
    text = {key: value for key, value in {**TEXT, **text}.items() if value is not None}
    with pytest.raises(mx.base.MXNetError, match=message):
        updates.invoke("_gluon_amp_sgd_update", of(*["float32"] * 3), **text)


@pytest.mark.parametrize(
    "arrays, message",
    [
        (of("float32", "float32", "float16"), "states and masters are float32"),
        (of("float16", "float16", "float16"), "states and masters are float32"),
        (of("float64", "float32", "float32"), "expects float16 or float32"),
        (of("float32", "int32", "float32"), "expects float16 or float32"),
        ([*of("float32", "float32"), nd.ones((4,))], "shapes differ"),
        ([nd.ones((5,)), nd.ones((500000,)), nd.ones((5,))], "shapes differ"),
        ([nd.ones((5, 1)).tostype("csr"), *of("float32", "float32")], "dense|shapes differ"),
    ],
)
def test_wrong_arrays_of_an_update(arrays, message):
    with pytest.raises(mx.base.MXNetError, match=message):
        update(arrays)


@pytest.mark.parametrize(
    "op, dtypes",
    [
        ("_gluon_amp_sgd_update", ["float16", "float32"]),  # no master
        ("_gluon_amp_sgd_update", ["float32"] * 4),  # two states
        ("_gluon_amp_adam_update", ["float16", "float32", "float32", "float32"]),  # no master
        ("_gluon_amp_adam_update", ["float32"] * 5),  # three states
    ],
)
def test_states_that_the_optimizer_does_not_have(op, dtypes):
    constants = "0,0,0" if "sgd" in op else "0,0,0,0,0"
    text = {"arrays_per_weight": str(len(dtypes)), "constants": constants, "decays": "0"}
    with pytest.raises(mx.base.MXNetError, match="does not suit the weight's dtype"):
        update(of(*dtypes), op, **text)


@pytest.mark.parametrize("count", ["", "0", "3", "-2", "2,2", "1048577", "99999999999"])
def test_wrong_number_of_arrays_to_check(count):
    with pytest.raises(mx.base.MXNetError):
        updates.invoke("_gluon_amp_all_finite", of("float32", "float16"), num_arrays=count)


def test_a_refused_update_changes_nothing_and_the_next_one_works():
    weight, grad, momentum = of(*["float32"] * 3)
    one = str(np.float32(1).view(np.uint32))
    with pytest.raises(mx.base.MXNetError):
        update([weight, grad, momentum], lrs=one, constants=one)
    assert weight.asnumpy().tolist() == momentum.asnumpy().tolist() == [1] * 5
    updates.sgd_update([weight, grad, momentum], 3, [1], [0], 0.5, 1, None)
    assert momentum.asnumpy().tolist() == [-0.5] * 5
    assert weight.asnumpy().tolist() == [0.5] * 5


REGISTERED = mx.operator.get_all_registered_operators()
GRADIENTS = [op for op in REGISTERED if op.startswith("_backward_gluon_amp_")]


@pytest.mark.parametrize("inputs", [0, 1, 3])
def test_a_gradient_without_its_operator(inputs):
    assert len(GRADIENTS) > 10
    arrays = {f"x{k}": (2, 1, 3, 3, 16) for k in range(inputs)}
    for op in GRADIENTS:
        attributes = CALLS.get(op.replace("_backward", ""), [{}])[0]
        if "norm" not in op:  # as for updates, see `operator_calls`
            with pytest.raises(mx.base.MXNetError):
                operator(op, arrays, "float16", **attributes).infer_shape(**arrays)
        with pytest.raises(mx.base.MXNetError):
            updates.invoke(op, [nd.ones(shape) for shape in arrays.values()], **attributes)
            nd.waitall()


def test_every_operator_has_a_right_call():
    """But those of one input and no attributes, which are like others."""
    forward = {name for name in REGISTERED if name.startswith("_gluon_amp_")}
    missing = {"_gluon_amp_widen", NARROW_BFLOAT16, WIDEN_BFLOAT16}
    missing |= set() if bfloat16.is_native() else {"_gluon_amp_convolution"}
    assert forward - set(CALLS) == missing and set(ALONE) < set(CALLS)
