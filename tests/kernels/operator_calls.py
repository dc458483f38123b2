"""Right calls of every C++ operator, and a program that makes random wrong ones of them.

Run as `python -m tests.kernels.operator_calls SEED CASES`, it prints how many calls were done and
refused. A crash ends the program, and so does any error but MXNet's.
"""

import contextlib
import json
import random
import sys

from gluon_amp.base import bfloat16 as support
from gluon_amp.base.formats import FORMATS
from gluon_amp.lowering.emulation import rounding_attrs
from tests.kernels.images import invoke

import mxnet as mx
from mxnet import autograd, nd
from mxnet.contrib.amp.amp import bfloat16

# The dtype in which arrays of low precision are stored; the emulation stores float32
LOW = bfloat16 if support.is_native() else "float32"
IMAGES, PLAIN = (2, 2, 5, 6, 16), (2, 20, 5, 6)
WINDOW = {"kernel": "(3, 3)", "pad": "(1, 1)", "channels": "20", "lanes": "16"}
FORMAT = rounding_attrs(FORMATS["float8_e4m3"], saturates=True)
UPDATE = {"wds": "0", "lrs": "0", "decays": "0"}

# Attributes, and shapes of inputs; those of the second list, after the ones in low precision, are
# float32, and those of a third one are float16.
CALLS = {
    "_gluon_amp_blocked_convolution": (
        {**WINDOW, "num_filter": "24"},
        [IMAGES],
        [(24, 20, 3, 3), (24,)],
    ),
    "_gluon_amp_blocked_deconvolution": (
        {**WINDOW, "num_filter": "24", "stride": "(2, 2)", "adj": "(1, 1)"},
        [IMAGES],
        [(20, 24, 3, 3), (24,)],
    ),
    "_gluon_amp_depthwise": (
        {**WINDOW, "num_filter": "20", "num_group": "20"},
        [IMAGES],
        [(20, 1, 3, 3), (20,)],
    ),
    "_gluon_amp_dense": ({"num_hidden": "7"}, [(3, 5)], [(7, 5), (7,)]),
    "_gluon_amp_rnn": (
        {"mode": "lstm", "state_size": "7", "num_layers": "1", "num_parameters": "1"},
        [],
        [(3, 2, 5), (4 * 7 * (5 + 7 + 2),), (1, 2, 7), (1, 2, 7)],
    ),
    "_gluon_amp_block": ({"lanes": "16"}, [PLAIN], []),
    "_gluon_amp_unblock": ({"channels": "20"}, [IMAGES], []),
    "_gluon_amp_fork": ({"num_outputs": "2"}, [IMAGES, IMAGES], []),
    "_gluon_amp_concat": (
        {"num_args": "2", "channels": "(20, 20)", "lanes": "16"},
        [IMAGES, IMAGES],
        [],
    ),
    "_gluon_amp_pool": (
        {"kernel": "(2, 2)", "stride": "(2, 2)", "pool_type": "max", "channels": "20"},
        [IMAGES],
        [],
    ),
    "_gluon_amp_pointwise": (
        {"channels": "20", "num_inputs": "2", "program": "add 0 1; relu 2"},
        [IMAGES, IMAGES],
        [],
    ),
    "_gluon_amp_norm": (
        {"channels": "20", "num_extras": "0", "program": "relu 0"},
        [IMAGES],
        [(20,)] * 4,
    ),
    "_gluon_amp_batch_dot": ({"transpose_a": "True"}, [], [(2, 5, 3), (2, 5, 4)]),
    "_gluon_amp_layer_norm": ({"eps": "1e-05"}, [(4, 20)], [(20,)] * 2),
    "_gluon_amp_softmax": ({"scale": "0.125"}, [], [(4, 20)]),
    "_gluon_amp_log_softmax": ({"scale": "2"}, [], [(4, 20)]),
    "_gluon_amp_gelu": ({}, [(4, 20)], []),
    "_gluon_amp_picked_log_softmax": ({}, [], [(4, 20), (4,)]),
    "_gluon_amp_split": ({"axis": "-1", "num_outputs": "2"}, [(7, 20)], []),
    "_gluon_amp_round": ({}, [], [(2, 3)]),
    "_gluon_amp_round_relu": (FORMAT, [], [(2, 3)]),
    "_gluon_amp_narrow": ({}, [], [(2, 3)]),
    "_gluon_amp_bfloat16": ({}, [], [(2, 3)]),
    "_gluon_amp_round_operand": ({**FORMAT, "scaled": "True"}, [], [(2, 3)]),
    "_gluon_amp_round_gradient": ({**FORMAT, "scaled": "True"}, [], [(2, 3)]),
    "_gluon_amp_first_of_two": ({}, [], [(2, 3)] * 2),
    # MXNet does not check the number of inputs that an operator writes in a graph, and crashes with
    # its own updates too. So these are called alone.
    "_gluon_amp_sgd_update": (
        {**UPDATE, "arrays_per_weight": "3", "constants": "0,0,0"},
        [],
        [(5,)] * 3,
    ),
    "_gluon_amp_adam_update": (
        {**UPDATE, "arrays_per_weight": "4", "constants": "0,0,0,0,0"},
        [],
        [(5,)] * 4,
    ),
    "_gluon_amp_sync_masters": (
        {**UPDATE, "arrays_per_weight": "2", "constants": "0"},
        [],
        [(5,)],
        [(5,)],
    ),
    "_gluon_amp_sum": (
        {"num_arrays": "2", "arrays_per_sum": "2", "factor": "0"},
        [],
        [],
        [(5,)] * 2,
    ),
    "_gluon_amp_all_finite": ({"num_arrays": "2"}, [], [(5,)] * 2),
}
ALONE = ("_gluon_amp_sgd_update", "_gluon_amp_adam_update", "_gluon_amp_all_finite")
ALONE += ("_gluon_amp_sync_masters", "_gluon_amp_sum")
if support.is_native():
    strided = {"kernel": "(3,)", "stride": "(2,)", "pad": "(1,)", "num_filter": "16"}
    shapes = [(2, 16, 3), (16, 16, 3), (16,)]
    CALLS["_gluon_amp_convolution"] = strided, shapes, []

DTYPES = [LOW, "float32", "float16", "float64", "int8", "int64", "csr", "row_sparse"]
SHAPES = [
    *[(2,), (20,), (1,), (2, 3), (), (0,), (7, 5), (5,), (70000,), PLAIN, IMAGES, (2, 2, 0)],
    *[(0, 2, 5, 6, 16), (2, 2, 0, 6, 16), (2, 2, 5, 6, 8), (2, 3, 5, 6, 8), (2, 1, 5, 6, 20)],
    *[(2, 1, 5, 6, 32), (2, 2, 5, 6, 0), (2, 0, 5, 6, 16), (2, 20, 1, 1), (2, 2, 1, 1, 16)],
    *[(24, 20, 3, 3), (24, 10, 3, 3), (0, 20, 3, 3), (20, 1, 3, 3), (2, 2, 5, 6, 16, 1)],
]
TEXTS = [
    *["", ",", "1,", "abc", "0", "1", "-1", "2", "7", "8", "16", "17", "20", "24", "True", "1.5"],
    *["(0, 0)", "(1, 1)", "(2,)", "(3, 3, 3)", "(-1, 1)", "(1, 99999999999999)", "1,1", "2,2,2"],
    *["2147483647", "2147483648", "4294967297", "1000000000000", "9223372036854775807"],
    *["-9223372036854775808", "18446744073709551617", "9" * 400, "1,x", "\u00fc"],
    "1" + ",1" * 3000,
    *["(4611686018427387904, 4611686018427387904)", "(2147483647, 2147483647)", "nan", "1e400"],
    *["max", "avg", "(20, 20)", "(20, -20)", "relu 9", "relu -1", "add 0", "add 0 1", "add 0 2"],
    *["relu 1; relu 0", "clip 0 1 nan", "mul 0 5;", ";;", "adds 0 1e400", "relu 0; " * 5000],
    *["relu 0 x", "relu 99999999999999999999", "round 0; add 2 1; relu 3"],
]
OPTIONAL = """
    dilate plain_data no_bias flatten global_pool output_size eps momentum pooling_convention
    count_include_pad fix_gamma use_global_stats scale
""".split()
NAMES = sorted({*OPTIONAL, *(name for attributes, *_ in CALLS.values() for name in attributes)})


def right_call(op):
    """Return the attributes, and the shapes and dtypes of the arrays."""
    attributes, *shapes = CALLS[op]
    dtypes = zip(shapes, (LOW, "float32", "float16"))
    return dict(attributes), [(shape, dtype) for group, dtype in dtypes for shape in group]


def mutate(attributes, arrays):
    for _ in range(random.choice([1, 1, 1, 2, 3])):
        kind, place = random.randrange(7), random.randrange(len(arrays)) if arrays else None
        other = random.choice(SHAPES), random.choice(DTYPES[:2])
        if kind < 3:
            names = sorted(attributes) if attributes and random.random() < 0.8 else NAMES
            attributes[random.choice(names)] = random.choice(TEXTS)
        elif kind == 3 and attributes:
            del attributes[random.choice(sorted(attributes))]
        elif place is None or (kind == 6 and random.random() < 0.5):
            arrays.insert(random.randrange(len(arrays) + 1), other)
        elif kind == 4:
            arrays[place] = other
        elif kind == 5:
            arrays[place] = arrays[place][0], random.choice(DTYPES)
        else:
            arrays.pop(place)


def array(shape, dtype):
    if 0 in shape:
        return nd.zeros(shape, dtype="float32")
    if dtype in ("csr", "row_sparse"):
        return nd.ones((2, 3)).tostype(dtype)
    return nd.ones(shape).astype(dtype)


def alone(op, attributes, arrays, may_write=True):
    made = [array(*spec) for spec in arrays]
    out = (
        random.choice([array(*arrays[0]), *made])
        if made and may_write and random.random() < 0.2
        else None
    )
    with autograd.record(random.random() < 0.3):
        invoke(op, made, attributes, out)


def in_a_graph(op, attributes, arrays, requests=("write", "write", "add")):
    count = len(arrays)
    nodes = [{"op": "null", "name": f"x{i}", "inputs": []} for i in range(count)]
    inputs = [[i, 0, 0] for i in range(count)]
    nodes.append({"op": op, "name": "o", "attrs": attributes, "inputs": inputs})
    # MXNet adds missing inputs to a graph of an old version
    version = {"mxnet_version": ["int", random.choice([800, 10901])]}
    graph = {"nodes": nodes, "arg_nodes": list(range(count)), "heads": [[count, 0, 0]]}
    symbol = mx.sym.load_json(json.dumps({**graph, "attrs": version}))
    if random.random() < 0.3:
        symbol.infer_shape_partial(**{f"x{i}": s for i, (s, _) in enumerate(arrays) if i % 2})
    made = [array(*spec) for spec in arrays]
    inputs = {name: made[int(name[1:])] for name in symbol.list_inputs()}
    cached = nd.CachedOp(symbol, [("static_alloc", random.choice(["true", "false"]))])
    for x in inputs.values():
        if x.stype == "default":
            x.attach_grad(random.choice(requests))
    with autograd.record():
        out = cached(*inputs.values())
    nd.waitall()
    (out[0] if isinstance(out, list) else out).backward()
    nd.waitall()


def main(seed, cases):
    random.seed(seed)
    counts = {"done": 0, "refused": 0}
    for case in range(len(CALLS) + cases):
        right = case < len(CALLS)
        op = sorted(CALLS)[case % len(CALLS)]
        attributes, arrays = right_call(op)
        if not right:
            mutate(attributes, arrays)
        shown = {name: text[:60] for name, text in attributes.items()}
        print(case, op, shown, arrays, file=sys.stderr, flush=True)
        with mx.util.np_shape(random.random() < 0.5):
            try:
                if right and op in ALONE:
                    alone(op, attributes, arrays, may_write=False)
                elif right:
                    in_a_graph(op, attributes, arrays, ["write"])
                elif op in ALONE or random.random() < 0.2:
                    alone(op, attributes, arrays)
                else:
                    in_a_graph(op, attributes, arrays)
                counts["done"] += 1
            except (mx.base.MXNetError, ValueError):
                if right:
                    raise
                with contextlib.suppress(mx.base.MXNetError):
                    nd.waitall()
                counts["refused"] += 1
    print(json.dumps(counts))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
