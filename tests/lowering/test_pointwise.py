"""Each elementwise operator's instructions compute, in a program, what the operator computes."""

import numpy as np
import pytest

from gluon_amp.base import registry
from gluon_amp.graph import classic
from gluon_amp.lowering.pointwise import (
    BINARY,
    BROADCASTING,
    UNARY,
    WITH_SCALAR,
    Program,
    instructions_of,
)
from tests.kernels.images import compute, operator
from tests.marks import needs_library

CASES = [
    *((op, 1, {}) for op in UNARY),
    *((op, 2, {}) for op in (*BINARY, *BROADCASTING)),
    *((op, 1, {"scalar": 1.5}) for op in (*WITH_SCALAR, "_minus_scalar", "_rminus_scalar")),
    ("negative", 1, {}),
    *(("Activation", 1, {"act_type": kind}) for kind in ("relu", "sigmoid", "tanh")),
    ("LeakyReLU", 1, {"slope": 0.5}),
    ("LeakyReLU", 1, {}),
    ("clip", 1, {"a_min": -1, "a_max": 1.25}),
    ("hard_sigmoid", 1, {"alpha": 0.5, "beta": 0.25}),
    ("hard_sigmoid", 1, {}),
]
NUMPY = sorted({registry.canonical(name) for name in registry.names() if name.startswith("_np")})
CASES += [(name, *case[1:]) for name in NUMPY for case in CASES if case[0] == classic(name)]


@needs_library
@pytest.mark.parametrize("op, count, attrs", CASES, ids=lambda value: str(value))
def test_instructions_compute_what_the_operator_does(op, count, attrs):
    random = np.random.RandomState(0)
    names = ["x", "y"][:count]
    arrays = {n: random.uniform(0.5, 3, (1, 1, 3, 5, 16)).astype(np.float32) for n in names}
    arrays["x"] -= 1.75
    head = np.ones_like(arrays["x"])
    program = Program()
    values = [program.input(name) for name in names]
    program.append(instructions_of(op, {k: str(v) for k, v in attrs.items()}), values)
    options = {"program": program.text(), "num_inputs": count, "channels": 16}
    actual = compute(operator("_gluon_amp_pointwise", names, "float16", **options), arrays, head)
    expected = compute(operator(op, names, "float16", **attrs), arrays, head)
    for name, values in expected.items():
        np.testing.assert_allclose(actual[name], values, rtol=2.0**-11, atol=1e-6, err_msg=name)


@pytest.mark.parametrize(
    "op, attrs",
    [
        ("Activation", {"act_type": "softrelu"}),
        ("LeakyReLU", {"act_type": "elu"}),
        ("clip", {"a_min": "0", "a_max": "None"}),
        ("sin", {}),
    ],
)
def test_operators_without_instructions(op, attrs):
    assert instructions_of(op, attrs) is None
