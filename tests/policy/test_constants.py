"""Constants that float16 cannot hold: epsilons, bounds, mask values, paddings."""

from experiments.operators.registered import registered
from gluon_amp.graph import op_table
from gluon_amp.policy import Policy, cast_pass, constants

import mxnet as mx

FLOAT16 = Policy.parse("float16")


def numbers_of(kinds):
    """Return {(operator, attribute): type} of the real-valued attributes of all operators."""
    return {
        (op.canonical, name): kind
        for op in registered().values()
        if op_table.rule(op.canonical).kind in kinds
        for name, kind in op.arguments
        if not kind.startswith("{") and ("float" in kind or "double" in kind)
    }


# (operator, attribute) of numbers that are not combined with a tensor's values, and why
NOT_VALUES = {
    ("Dropout", "p"): "a probability; the factor 1/(1-p) overflows only for p above 0.99998",
    ("RNN", "p"): "a probability, as Dropout's",
    ("_random_negative_binomial_like", "p"): "a probability",
    ("_contrib_BilinearResize2D", "scale_height"): "sets the size of the output",
    ("_contrib_BilinearResize2D", "scale_width"): "sets the size of the output",
    # with a tolerance of 0 or inf, the result is the same for any two float16 values
    ("_contrib_allclose", "rtol"): "a tolerance",
    ("_contrib_allclose", "atol"): "a tolerance",
}


def test_every_number_of_an_operator_that_may_compute_in_float16_is_classified():
    # norms (kind 'norm') apply their epsilons in float32
    numbers = numbers_of(("compute", "follow", "widest"))
    named = op_table.named("constants")
    listed = {(op, name) for op in named for name in op_table.arguments("constants", op)}
    assert set(numbers) == listed | set(NOT_VALUES)
    assert listed.isdisjoint(NOT_VALUES)


def test_the_defaults_of_all_constants_fit():
    numbers = numbers_of(("compute", "follow", "widest"))
    for op in op_table.named("constants"):
        for name in op_table.arguments("constants", op):
            default = numbers[op, name].partition("default=")[2] or "None"
            assert default == "None" or constants.fits(float(default)), (op, name)


def test_which_constants_fit():
    fit = [0.0, -0.0, 1.0, 1e-4, -6.2e-5, 2.0**-14, 255, -1e4, 2.0**14]
    same_everywhere = [float("inf"), float("-inf"), float("nan")]
    assert all(map(constants.fits, [*fit, *same_everywhere]))
    zero, subnormal = [1e-12, -1e-38, 1e-8], [1e-7, 1e-5, 6e-5]  # 1e-7 is 1.19e-7
    infinite = [65520, 7e4, -1e9, -1e18, 3.4e38]
    infinite_in_sums = [-65504, 4e4, 2e4]  # when added to itself, twice or four times
    assert not any(map(constants.fits, [*zero, *subnormal, *infinite, *infinite_in_sums]))


def test_the_reason_names_the_constant():
    decision = FLOAT16.decide("clip", attrs={"a_min": "1e-12", "a_max": "1"})
    assert decision[:3] == ("float32", "its constant a_min=1e-12 does not fit float16", False)
    assert FLOAT16.decide("clip", attrs={"a_min": "0", "a_max": "6"}).kind == "follow"
    assert FLOAT16.decide("_npi_clip", attrs={"a_min": "0", "a_max": "1e9"}).kind == "float32"
    assert FLOAT16.decide("LeakyReLU", attrs={"lower_bound": "None"}).kind == "follow"


def test_a_pin_overrides_the_constant():
    pinned = FLOAT16.pin(ops=["clip"], dtype="float16")
    assert pinned.decide("clip", attrs={"a_min": "-1e9", "a_max": "1"}).kind == "compute"


def test_ordinary_constants_drag_nothing_into_float32():
    x = mx.sym.var("x")
    h = mx.sym.Convolution(x, kernel=(1, 1), num_filter=4, name="c")
    for k, node in enumerate(
        [
            mx.sym.clip(h, 0, 6),  # ReLU6
            h * mx.sym.clip(h + 3, 0, 6) / 6,  # hard swish
            mx.sym.clip(h, float("-inf"), float("inf")),
            mx.sym.LeakyReLU(h, slope=0.1),
            (h * 255 - 127.5) * 0.01,
            mx.sym.Pad(h, mode="constant", pad_width=(0, 0, 0, 0, 1, 1, 1, 1)),
        ]
    ):
        _, nodes = cast_pass.plan(mx.sym.relu(node), FLOAT16, {})
        assert {n.dtype for n in nodes} == {"float16"}, k


def test_float32_reaches_back_from_a_constant_to_the_last_product():
    """In float16 the sigmoid would be 0 long before the clip."""
    h = mx.sym.FullyConnected(mx.sym.var("x"), num_hidden=4)
    clipped = mx.sym.clip(mx.sym.sigmoid(h * 60), 1e-12, 1)
    _, nodes = cast_pass.plan(mx.sym.log(clipped), FLOAT16, {})
    assert [n.dtype for n in nodes] == ["float16"] + ["float32"] * 4
    _, nodes = cast_pass.plan(mx.sym.Group([clipped, h * 2]), FLOAT16, {})  # another reader of h
    assert [n.dtype for n in nodes] == ["float16"] + ["float32"] * 3 + ["float16"]


def test_float32_ends_at_the_next_product():
    h = mx.sym.FullyConnected(mx.sym.var("x"), num_hidden=4, name="a")
    out = mx.sym.FullyConnected(mx.sym.relu(h + 1e-12), num_hidden=4, name="b")
    _, nodes = cast_pass.plan(mx.sym.tanh(out), FLOAT16, {})
    assert [n.dtype for n in nodes] == ["float16", "float32", "float32", "float16", "float16"]
