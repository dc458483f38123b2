"""The C++ operators raise an MXNetError for wrong arguments, and never crash."""

import json

import numpy as np
import pytest

from gluon_amp.kernels import updates
from tests.lowering import printed
from tests.marks import needs_library

import mxnet as mx
from mxnet import nd

pytestmark = needs_library

# Calls every operator with random arrays and text, alone and in graphs, and prints how many calls
# were refused. Any other error or a crash ends the program.
RANDOM_CALLS = """
import ctypes, json, random, sys
import gluon_amp
from gluon_amp import kernels
from gluon_amp.policy import registry
import mxnet as mx
from mxnet import autograd, nd
from mxnet.contrib.amp.amp import bfloat16

seed, cases = map(int, sys.argv[1:])
random = random.Random(seed)
assert kernels.available()

FIXED = {"_gluon_amp_round": 1, "_gluon_amp_round_relu": 1, "_gluon_amp_widen": 1,
         "_gluon_amp_narrow": 1,
         "_backward_gluon_amp_round": 1, "_backward_gluon_amp_round_relu": 2,
         "_backward_gluon_amp_widen": 1, "_backward_gluon_amp_narrow": 1}
CONVOLUTIONS = {"_gluon_amp_convolution": 3, "_backward_gluon_amp_convolution": 4}
IMAGES = (2, 3, 3, 4, 8)
BLOCKED = {"_gluon_amp_block": ([(2, 17, 3, 4)], {"lanes": "8"}),
           "_gluon_amp_unblock": ([IMAGES], {"channels": "17"}),
           "_gluon_amp_fork": ([IMAGES] * 2, {"num_outputs": "2"}),
           "_gluon_amp_sum": ([IMAGES] * 2, {"num_args": "2"}),
           "_gluon_amp_concat": ([IMAGES, (2, 1, 3, 4, 8)],
                                 {"num_args": "2", "channels": "(17, 8)", "lanes": "8"}),
           "_gluon_amp_pool": ([IMAGES], {"kernel": "(2, 2)", "stride": "(2, 2)", "pad": "(1, 0)",
                                          "pool_type": "avg", "global_pool": "0", "channels": "17",
                                          "output_size": ""})}
UPDATES = {"_gluon_amp_sgd_update": (2, 3, 4), "_gluon_amp_adam_update": (4, 5)}
DTYPES = ["float16", "float32", "float64", "int8", "uint8", "int32", "int64", bfloat16]
SHAPES = [(2,), (3,), (1,), (2, 3), (3, 2), (1, 1, 1, 1), (), (0,), (0, 3), (70000,), (2, 0, 2)]
TEXTS = ["", ",", "1,", ",1", "-1", "+1", " 1", "1.5", "nan", "abc", "0", "1", "2", "3", "4", "5",
         "6", "7", "8", "1,1", "2,2,2", "4294967295", "4294967296", "18446744073709551617",
         "9" * 400, "1048576", "1" + ",1" * 3000, "1,x", "\\u00fc", "0x2", "(1,)", "None"]
NAMES = ["arrays_per_weight", "lrs", "wds", "decays", "constants", "num_arrays"]
counts = {"refused": 0, "done": 0}


def array(dtype=None, shape=None):
    dtype = dtype or random.choice(DTYPES[:2] * 6 + DTYPES)
    result = nd.ones(random.choice(SHAPES) if shape is None else shape, dtype="float32")
    result = result.astype(dtype)
    if random.random() < 0.02 and result.ndim == 2 and result.size and dtype == "float32":
        result = result.tostype(random.choice(["row_sparse", "csr"]))
    return result


def fitting(count):
    return ",".join(str(random.choice([0, 1065353216, 2**32 - 1])) for _ in range(count))


def call():
    # mostly one argument is wrong, since calls with many errors are refused by the first check
    if random.random() < 0.6:
        op = random.choice(sorted(UPDATES))
        stride, weights = random.choice(UPDATES[op]), random.choice([1, 1, 2, 3])
        half = random.random() < 0.5
        arrays, shape = [], random.choice(SHAPES)
        for _ in range(weights):
            arrays.append(array("float16" if half else "float32", shape))
            arrays.append(array(random.choice(["float16", "float32"]), shape))
            arrays += [array("float32", shape) for _ in range(stride - 2)]
        attributes = {"arrays_per_weight": str(stride), "lrs": fitting(weights),
                      "wds": fitting(weights), "decays": fitting(weights),
                      "constants": fitting(3 if "sgd" in op else 5)}
    elif random.random() < 0.3:
        op = "_gluon_amp_all_finite"
        arrays = [array(random.choice(DTYPES[:2])) for _ in range(random.randrange(1, 4))]
        attributes = {"num_arrays": str(len(arrays))}
    elif random.random() < 0.3:
        op = random.choice(sorted(CONVOLUTIONS))
        width, kernel, stride = (random.randrange(1, 4) for _ in range(3))
        out = max((width + 2 - kernel) // stride + 1, 1)
        shapes = [(2, 16, out), (2, 16, width), (16, 16, kernel), (16,)]
        arrays = [array(bfloat16, shape) for shape in shapes[-CONVOLUTIONS[op]:]]
        attributes = {"kernel": f"({kernel},)", "stride": f"({stride},)", "pad": "(1,)",
                      "num_filter": "16"}
    elif random.random() < 0.6:
        op = random.choice(sorted(BLOCKED))
        shapes, attributes = BLOCKED[op]
        dtype, attributes = random.choice(["float32", bfloat16]), dict(attributes)
        arrays = [array(dtype, shape) for shape in shapes]
    else:
        op = random.choice(sorted(FIXED))
        shape, dtype = random.choice(SHAPES), random.choice(DTYPES[:2] + [bfloat16])
        arrays = [array(dtype, shape) for _ in range(FIXED[op])]
        attributes = {}
    for _ in range(random.choice([0, 1, 1, 1, 2])):
        mutation = random.randrange(7)
        if mutation == 0:
            names = sorted(attributes) if op in {**CONVOLUTIONS, **BLOCKED} else NAMES
            attributes[random.choice(names)] = random.choice(TEXTS)
        elif mutation == 1 and attributes:
            del attributes[random.choice(sorted(attributes))]
        elif mutation == 2 and arrays:
            arrays.pop(random.randrange(len(arrays)))
        elif mutation == 3:
            arrays.insert(random.randrange(len(arrays) + 1), array())
        elif mutation == 4 and arrays:
            arrays[random.randrange(len(arrays))] = array()
        elif mutation == 5 and attributes:
            name = random.choice(sorted(attributes))
            attributes[name] = fitting(random.randrange(6)) if name != "num_arrays" else "7"
        elif mutation == 6 and arrays:
            arrays = [array() for _ in range(random.randrange(8))]
    return op, arrays, attributes


def alone(op, arrays, attributes):
    out = None
    if random.random() < 0.2:
        out = random.choice([array(), *arrays])
    with autograd.record(random.random() < 0.3):
        result = mx.nd._internal._imperative_invoke(
            registry.handle(op).value, arrays, list(attributes), list(attributes.values()),
            out, False, False)
    nd.waitall()
    return result


def in_a_graph(op, arrays, attributes):
    count = len(arrays)
    nodes = [{"op": "null", "name": f"x{i}", "inputs": []} for i in range(count)]
    nodes.append({"op": op, "name": "o", "attrs": attributes,
                  "inputs": [[i, 0, 0] for i in range(count)]})
    graph = mx.sym.load_json(json.dumps(
        {"nodes": nodes, "arg_nodes": list(range(count)), "heads": [[count, 0, 0]],
         "attrs": {"mxnet_version": ["int", random.choice([800, 10901])]}}))
    if random.random() < 0.3:
        graph.infer_shape_partial(**{f"x{i}": a.shape for i, a in enumerate(arrays) if i % 2})
    inputs = {name: arrays[int(name[1:])] for name in graph.list_inputs()}
    if random.random() < 0.4:
        graph.bind(mx.cpu(), inputs, grad_req="null").forward()
        nd.waitall()
        return
    run = nd.CachedOp(graph, [("static_alloc", random.choice(["true", "false"]))])
    for x in inputs.values():
        if x.stype == "default" and random.random() < 0.5:
            x.attach_grad(random.choice(["write", "add"]))
    with autograd.record():
        out = run(*inputs.values())
    nd.waitall()
    if random.random() < 0.5:
        out.backward()
    nd.waitall()


for case in range(cases):
    with mx.util.np_shape(random.random() < 0.5):
        try:
            op, arrays, attributes = call()
            nd.waitall()
        except Exception:
            continue  # arrays that MXNet itself does not create
        print(case, op, attributes, [(x.shape, x.dtype, x.stype) for x in arrays],
              file=sys.stderr, flush=True)
        try:
            # No updates in graphs: MXNet does not check the number of inputs that they write,
            # and crashes with its own updates too.
            graphs = op in {**FIXED, **CONVOLUTIONS, **BLOCKED}
            (in_a_graph if graphs and random.random() < 0.7 else alone)(op, arrays, attributes)
            counts["done"] += 1
        except (mx.base.MXNetError, ValueError) as error:
            counts["refused"] += 1
print(json.dumps(counts))
"""


def random_calls(seed, cases):
    return json.loads(printed(RANDOM_CALLS, seed, cases, MALLOC_CHECK_="3"))


def test_random_arrays_and_text_are_refused_or_done():
    counts = random_calls(0, 500)
    assert counts["refused"] > 150 and counts["done"] > 40


# SGD with momentum of one float32 weight
TEXT = {"arrays_per_weight": "3", "lrs": "0", "wds": "0", "constants": "0,0,0"}


def invoke(op, arrays, **text):
    updates.invoke(op, arrays, **{**TEXT, **text})
    nd.waitall()


@pytest.mark.parametrize(
    "text, message",
    [
        ({"arrays_per_weight": "7"}, "arrays_per_weight must be 2 to 4"),
        ({"arrays_per_weight": "0"}, "arrays_per_weight must be 2 to 4"),
        ({"arrays_per_weight": "3,3"}, "arrays_per_weight must be 2 to 4"),
        ({"arrays_per_weight": "-1"}, "arrays_per_weight must be whole numbers"),
        ({"arrays_per_weight": "4294967298"}, "arrays_per_weight has too large a number"),
        ({"arrays_per_weight": "2"}, "3 inputs|expects 2"),
        ({"arrays_per_weight": "4"}, "3 inputs|expects 4"),
        ({"lrs": "0,0"}, "3 inputs|expects 6"),
        ({"lrs": ""}, "lrs must be whole numbers"),
        ({"wds": "0,0"}, "wds has the wrong length"),
        ({"wds": "zero"}, "wds must be whole numbers"),
        ({"constants": "0"}, "constants has the wrong length"),
        ({"constants": "0,0,0,0"}, "constants has the wrong length"),
    ],
)
def test_wrong_text_of_an_update(text, message):
    with pytest.raises(mx.base.MXNetError, match=message):
        invoke("_gluon_amp_sgd_update", [nd.ones((5,)) for _ in range(3)], **text)


@pytest.mark.parametrize("name", sorted(TEXT))
def test_missing_text_of_an_update(name):
    text = {key: value for key, value in TEXT.items() if key != name}
    with pytest.raises(mx.base.MXNetError, match=f"needs {name}"):
        updates.invoke("_gluon_amp_sgd_update", [nd.ones((5,)) for _ in range(3)], **text)


def of(*dtypes):
    return [nd.ones((5,), dtype=dtype) for dtype in dtypes]


@pytest.mark.parametrize(
    "arrays, message",
    [
        (of("float32", "float32", "float16"), "states and masters are float32"),
        (of("float16", "float16", "float16"), "states and masters are float32"),
        (of("float64", "float32", "float32"), "expects float16 or float32"),
        (of("float32", "int32", "float32"), "expects float16 or float32"),
        ([nd.ones((5,)), nd.ones((5,)), nd.ones((4,))], "shapes differ"),
        ([nd.ones((5,)), nd.ones((500000,)), nd.ones((5,))], "shapes differ"),
        ([nd.ones((5, 1)).tostype("csr"), *of("float32", "float32")], "dense|shapes differ"),
    ],
)
def test_wrong_arrays_of_an_update(arrays, message):
    with pytest.raises(mx.base.MXNetError, match=message):
        invoke("_gluon_amp_sgd_update", arrays)


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
    with pytest.raises(mx.base.MXNetError, match="does not suit the weight's dtype"):
        invoke(op, of(*dtypes), arrays_per_weight=str(len(dtypes)), constants=constants, decays="0")


@pytest.mark.parametrize("count", ["", "0", "3", "-2", "2,2", "1048577", "99999999999"])
def test_wrong_number_of_arrays_to_check(count):
    with pytest.raises(mx.base.MXNetError):
        updates.invoke("_gluon_amp_all_finite", of("float32", "float16"), num_arrays=count)


@pytest.mark.parametrize("inputs", [0, 1, 3])
def test_a_graph_with_a_wrong_number_of_inputs(inputs):
    nodes = [{"op": "null", "name": f"x{i}", "inputs": []} for i in range(3)]
    places = [[i, 0, 0] for i in range(inputs)]
    nodes.append(
        {"op": "_backward_gluon_amp_round_relu", "name": "o", "attrs": {}, "inputs": places}
    )
    text = {"nodes": nodes, "arg_nodes": [0, 1, 2], "heads": [[3, 0, 0]]}
    text["attrs"] = {"mxnet_version": ["int", 10901]}  # otherwise MXNet adds the missing inputs
    graph = mx.sym.load_json(json.dumps(text))
    with pytest.raises(mx.base.MXNetError, match="expects 2 arrays"):
        graph.infer_shape()
    with pytest.raises(mx.base.MXNetError):
        nd.CachedOp(graph)  # builds the graph of the gradient


def test_a_refused_update_changes_nothing_and_the_next_one_works():
    weight, grad, momentum = (nd.ones((5,)) for _ in range(3))
    one = str(np.float32(1).view(np.uint32))
    with pytest.raises(mx.base.MXNetError):
        invoke("_gluon_amp_sgd_update", [weight, grad, momentum], lrs=one, constants=one)
    assert weight.asnumpy().tolist() == momentum.asnumpy().tolist() == [1] * 5
    updates.sgd_update([weight, grad, momentum], 3, [1], [0], 0.5, 1, None)
    assert momentum.asnumpy().tolist() == [-0.5] * 5
    assert weight.asnumpy().tolist() == [0.5] * 5
