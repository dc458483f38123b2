"""Graphs with wrong attributes, inputs, shapes or dtypes raise an MXNetError, and never crash."""

import json

import pytest

from tests.lowering import printed
from tests.lowering.blocked_images import operator
from tests.marks import needs_library

import mxnet as mx

pytestmark = [needs_library, pytest.mark.cpu_kind]

BLOCKED, PLAIN = (2, 2, 5, 6, 16), (2, 20, 5, 6)
CONVOLUTION = {
    "kernel": "(3, 3)",
    "pad": "(1, 1)",
    "num_filter": "24",
    "channels": "20",
    "lanes": "16",
}
NORM = {"channels": "20", "num_extras": "0", "program": "relu 0"}

# Right calls: attributes, and shapes of inputs in low precision or (after the first) float32
CALLS = {
    "_gluon_amp_blocked_convolution": (CONVOLUTION, [BLOCKED, (24, 20, 3, 3), (24,)]),
    "_gluon_amp_depthwise": (
        {**CONVOLUTION, "num_filter": "20", "num_group": "20"},
        [BLOCKED, (20, 1, 3, 3), (20,)],
    ),
    "_gluon_amp_dense": ({"num_hidden": "7"}, [(3, 5), (7, 5), (7,)]),
    "_gluon_amp_block": ({"lanes": "16"}, [PLAIN]),
    "_gluon_amp_unblock": ({"channels": "20"}, [BLOCKED]),
    "_gluon_amp_fork": ({"num_outputs": "2"}, [BLOCKED, BLOCKED]),
    "_gluon_amp_sum": ({"num_args": "2"}, [BLOCKED, BLOCKED]),
    "_gluon_amp_concat": (
        {"num_args": "2", "channels": "(20, 20)", "lanes": "16"},
        [BLOCKED, BLOCKED],
    ),
    "_gluon_amp_pool": (
        {"kernel": "(2, 2)", "stride": "(2, 2)", "pool_type": "max", "channels": "20"},
        [BLOCKED],
    ),
    "_gluon_amp_pointwise": (
        {"channels": "20", "num_inputs": "2", "program": "add 0 1; relu 2"},
        [BLOCKED, BLOCKED],
    ),
    "_gluon_amp_norm": (NORM, [BLOCKED, (20,), (20,), (20,), (20,)]),
}

# Runs calls with some things changed, forward and back, and prints how many were refused. The right
# calls come first. A crash ends the program.
RANDOM_GRAPHS = """
import json, random, sys
from gluon_amp.lowering import bfloat16 as support, native
from tests.lowering.test_forged_graphs import CALLS
import mxnet as mx
from mxnet import autograd, nd
from mxnet.contrib.amp.amp import bfloat16

seed, cases = map(int, sys.argv[1:])
random = random.Random(seed)
assert kernels.available()
low = bfloat16 if support.is_native() else "float32"  # as the emulation stores its values
DTYPES = [bfloat16, "float32", "float16", "float64", "int8", "int64"]
SHAPES = [(2,), (20,), (1,), (2, 3), (), (0,), (0, 2, 5, 6, 16), (2, 2, 0, 6, 16), (2, 20, 5, 6),
          (2, 2, 5, 6, 16), (2, 2, 5, 6, 8), (2, 3, 5, 6, 8), (2, 1, 5, 6, 20), (2, 1, 5, 6, 32),
          (2, 2, 5, 6, 0), (2, 0, 5, 6, 16), (2, 20, 1, 1), (2, 2, 1, 1, 16), (7, 5),
          (24, 20, 3, 3), (24, 10, 3, 3), (0, 20, 3, 3), (20, 1, 3, 3), (2, 20, 5, 6, 1),
          (2, 2, 5, 6, 16, 1)]
TEXTS = ["", "abc", "0", "1", "-1", "2", "7", "8", "16", "17", "20", "24", "True", "(0, 0)",
         "(1, 1)", "(2,)", "(3, 3, 3)", "(-1, 1)", "(1, 99999999999999)", "2147483647",
         "2147483648", "4294967297", "1000000000000", "9223372036854775807",
         "-9223372036854775808", "18446744073709551617", "9" * 400,
         "(4611686018427387904, 4611686018427387904)", "(2147483647, 2147483647)", "nan", "1e400",
         "max", "avg", "(20, 20)", "(20, -20)", "relu 9", "relu -1", "add 0", "add 0 1", "add 0 2",
         "relu 1; relu 0", "clip 0 1 nan", "mul 0 5;", ";;", "adds 0 1e400", "relu 0; " * 5000,
         "relu 0 x", "relu 99999999999999999999", "round 0; add 2 1; relu 3"]
NAMES = ["kernel", "stride", "pad", "dilate", "num_filter", "num_group", "channels", "lanes",
         "plain_data", "no_bias", "num_hidden", "flatten", "num_outputs", "num_args", "num_inputs",
         "num_extras", "program", "pool_type", "global_pool", "output_size", "pooling_convention",
         "count_include_pad", "eps", "momentum", "fix_gamma", "use_global_stats",
         "variable_weight"]
counts = {"done": 0, "refused": 0}


def array(shape, dtype):
    return nd.ones(shape).astype(dtype) if 0 not in shape else nd.zeros(shape, dtype="float32")


def mutate(attributes, arrays):
    for _ in range(random.choice([1, 1, 1, 2, 3])):
        kind = random.randrange(7)
        if kind < 3:
            names = sorted(attributes) if attributes and random.random() < 0.8 else NAMES
            attributes[random.choice(names)] = random.choice(TEXTS)
        elif kind == 3 and attributes:
            del attributes[random.choice(sorted(attributes))]
        elif kind == 4 and arrays:
            i = random.randrange(len(arrays))
            arrays[i] = (random.choice(SHAPES), random.choice(DTYPES[:2]))
        elif kind == 5 and arrays:
            i = random.randrange(len(arrays))
            arrays[i] = (arrays[i][0], random.choice(DTYPES))
        elif random.random() < 0.5 and arrays:
            arrays.pop(random.randrange(len(arrays)))
        else:
            shape = (random.choice(SHAPES), random.choice(DTYPES[:2]))
            arrays.insert(random.randrange(len(arrays) + 1), shape)


def run(op, attributes, arrays, requests):
    count = len(arrays)
    nodes = [{"op": "null", "name": f"x{i}", "inputs": []} for i in range(count)]
    nodes.append({"op": op, "name": "o", "attrs": attributes,
                  "inputs": [[i, 0, 0] for i in range(count)]})
    graph = mx.sym.load_json(json.dumps(
        {"nodes": nodes, "arg_nodes": list(range(count)), "heads": [[count, 0, 0]],
         "attrs": {"mxnet_version": ["int", random.choice([800, 10901])]}}))
    if random.random() < 0.3:
        graph.infer_shape_partial(**{f"x{i}": s for i, (s, _) in enumerate(arrays) if i % 2})
    made = [array(*spec) for spec in arrays]
    inputs = {name: made[int(name[1:])] for name in graph.list_inputs()}
    cached = nd.CachedOp(graph, [("static_alloc", random.choice(["true", "false"]))])
    for x in inputs.values():
        x.attach_grad(random.choice(requests))
    with autograd.record():
        out = cached(*inputs.values())
    nd.waitall()
    (out[0] if isinstance(out, list) else out).backward()
    nd.waitall()


right = len(CALLS)
for case in range(right + cases):
    op = sorted(CALLS)[case % right]
    attributes, shapes = CALLS[op]
    attributes = dict(attributes)
    arrays = [(shape, low if len(shape) > 3 - ("dense" in op) and i == 0 or shape == shapes[0]
               else "float32") for i, shape in enumerate(shapes)]
    if case >= right:
        mutate(attributes, arrays)
    print(case, op, {k: v[:60] for k, v in attributes.items()}, arrays, file=sys.stderr, flush=True)
    with mx.util.np_shape(random.random() < 0.5):
        try:
            run(op, attributes, arrays, ["write"] if case < right else ["write", "write", "add"])
            counts["done"] += 1
        except (mx.base.MXNetError, ValueError) as error:
            if case < right:
                raise
            try:
                nd.waitall()
            except mx.base.MXNetError:
                pass
            counts["refused"] += 1
print(json.dumps(counts))
"""


# Arguments that shape inference must refuse
WRONG = [
    ("_gluon_amp_blocked_convolution", {"lanes": "5"}),
    ("_gluon_amp_blocked_convolution", {"lanes": "-1"}),
    ("_gluon_amp_blocked_convolution", {"lanes": "1000000000000"}),
    ("_gluon_amp_blocked_convolution", {"channels": "1000000000000"}),
    ("_gluon_amp_blocked_convolution", {"channels": "40"}),
    ("_gluon_amp_blocked_convolution", {"channels": None}),
    ("_gluon_amp_blocked_convolution", {"kernel": "(0, 0)"}),
    ("_gluon_amp_blocked_convolution", {"kernel": "(9, 9)"}),
    ("_gluon_amp_blocked_convolution", {"kernel": None}),
    ("_gluon_amp_blocked_convolution", {"kernel": "(4611686018427387904, 1)"}),
    ("_gluon_amp_blocked_convolution", {"pad": "(2147483647, 2147483647)"}),
    ("_gluon_amp_blocked_convolution", {"pad": "(-1, 0)"}),
    ("_gluon_amp_blocked_convolution", {"dilate": "(4611686018427387904, 1)"}),
    ("_gluon_amp_blocked_convolution", {"num_group": "0"}),
    ("_gluon_amp_blocked_convolution", {"num_group": "3"}),
    ("_gluon_amp_blocked_convolution", {"num_filter": "9223372036854775807"}),
    ("_gluon_amp_blocked_convolution", {"no_bias": "True"}),
    ("_gluon_amp_blocked_convolution", {"plain_data": "True"}),
    ("_gluon_amp_dense", {"num_hidden": "0"}),
    ("_gluon_amp_dense", {"num_hidden": "9223372036854775807"}),
    ("_gluon_amp_dense", {"no_bias": "True"}),
    ("_gluon_amp_pool", {"channels": "40"}),
    ("_gluon_amp_pointwise", {"program": "relu 2; relu 0"}),  # value 2 is its own result
    ("_gluon_amp_pointwise", {"program": "relu 3; relu 2"}),
    ("_gluon_amp_pointwise", {"program": "relu"}),
    ("_gluon_amp_pointwise", {"num_inputs": "-1"}),
    ("_gluon_amp_norm", {"program": "relu 1; relu 0"}),
    ("_gluon_amp_norm", {"channels": "1000000000000"}),
]


@pytest.mark.parametrize("op, changed", WRONG)
def test_wrong_attributes(op, changed):
    right, shapes = CALLS[op]
    attributes = {**right, **changed}
    attributes = {name: text for name, text in attributes.items() if text is not None}
    names = [f"x{i}" for i in range(len(shapes))]
    symbol = operator(op, names, "float16", **attributes)
    with pytest.raises(mx.base.MXNetError, match=f"{op}|program"):
        symbol.infer_shape(**dict(zip(names, shapes)))


@pytest.mark.parametrize("op", sorted(CALLS))
def test_right_attributes(op):
    attributes, shapes = CALLS[op]
    names = [f"x{i}" for i in range(len(shapes))]
    symbol = operator(op, names, "float16", **attributes)
    assert symbol.infer_shape(**dict(zip(names, shapes)))[0] is not None


def random_graphs(seed, cases):
    lines = printed(RANDOM_GRAPHS, seed, cases, MALLOC_CHECK_="3").splitlines()
    return json.loads(lines[-1])


def test_random_attributes_and_arrays_are_refused_or_done():
    counts = random_graphs(0, 600)
    assert counts["refused"] > 200 and counts["done"] > 80
