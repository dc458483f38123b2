"""Constants that float16 cannot hold: epsilons, bounds, mask values, paddings.

A network with such a constant returns what it returns in float32: the same numbers within
float16's resolution, and NaN or inf only where float32 has them.
"""

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp.policy import Policy, cast_pass, constants, op_table
from tests import closeness
from tests.mxnet_operators import registered

import mxnet as mx
from mxnet import gluon, nd

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
    listed = {(op, name) for op, names in constants.CONSTANTS.items() for name in names}
    assert set(numbers) == listed | set(NOT_VALUES)
    assert listed.isdisjoint(NOT_VALUES)


def test_the_defaults_of_all_constants_fit():
    numbers = numbers_of(("compute", "follow", "widest"))
    for op, names in constants.CONSTANTS.items():
        for name in names:
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


class Net(gluon.HybridBlock):
    """Two dense layers with `middle(F, x)` or `middle(F, x, mask)` between them."""

    def __init__(self, middle, units=8):
        super().__init__()
        self.middle = middle
        with self.name_scope():
            self.first = gluon.nn.Dense(units, flatten=False)
            self.last = gluon.nn.Dense(3, flatten=False)

    def hybrid_forward(self, F, x, *mask):
        return self.last(self.middle(F, self.first(x), *mask))


# (batch, length, features); the mask is 1 for positions that count, none in the last row
X = np.random.RandomState(0).uniform(-1, 1, (3, 8, 5)).astype("float32")
MASK = np.array(
    [[1, 1, 1, 0, 0, 0, 0, 0], [1] * 8, [0] * 8],
    "float32",
)


def assert_as_float32(middle, mask=MASK):
    mx.random.seed(1)
    net = Net(middle)
    net.initialize(mx.init.Uniform(0.5))
    inputs = [nd.array(X)] if mask is None else [nd.array(X), nd.array(mask)]
    net.hybridize()
    expected = closeness.measure(net, inputs)
    allowed = closeness.bounds(net, inputs, expected, "float16")
    amp.cast(net, "float16")
    distances = closeness.distances(closeness.measure(net, inputs), expected)
    assert {name: d for name, d in distances.items() if d > allowed[name]} == {}


def scores(F, h):
    """Attention scores: (batch, length, length)."""
    return F.batch_dot(h, h, transpose_b=True)


def attend(F, masked, h):
    return F.batch_dot(F.softmax(masked, axis=-1), h)


def rows(F, mask):
    """The mask in the shape of the scores."""
    row, column = F.expand_dims(mask, axis=1), F.expand_dims(mask, axis=2)
    return F.broadcast_like(row, F.batch_dot(column, row))


EPSILONS = {
    "log of clip": lambda F, h: F.log(F.clip(F.sigmoid(h * 60), 1e-12, 1)),
    "log of maximum": lambda F, h: F.log(F.maximum(F.relu(h), 1e-9)),
    "log of sum": lambda F, h: F.log(F.relu(h) + 1e-7),
    "clip with the bounds of float32": lambda F, h: F.clip(h, -3.4e38, 3.4e38),
    "scaled down and up": lambda F, h: F.reshape(h * 1e-8, (0, 0, -1)) * 1e8,
    "larger than a bound": lambda F, h: F.where(h * 1e4 * 1e4 > 1e5, h, F.zeros_like(h)),
}


@pytest.mark.parametrize("name", EPSILONS)
def test_epsilons_and_bounds(name):
    assert_as_float32(EPSILONS[name], mask=None)


# Ways to mask softmax's input: (F, scores, mask of their shape, mask value)
MASKS = {
    "where": lambda F, s, m, c: F.where(m, s, F.ones_like(s) * c),
    "add twice": lambda F, s, m, c: s + (1 - m) * c + (1 - m) * c,
    "comparison": lambda F, s, m, c: s + (F.sigmoid(m) < 0.6) * c,
    "maximum": lambda F, s, m, c: F.broadcast_minimum(s, (m * 2 - 1) * -c),
}


@pytest.mark.parametrize(
    "name, value",
    [*((name, -1e9) for name in MASKS), ("add twice", -65504.0), ("add twice", -1e4)],
)
def test_attention_masks(name, value):
    def middle(F, h, mask):
        return attend(F, MASKS[name](F, scores(F, h), rows(F, mask), value), h)

    assert_as_float32(middle)


def test_infinite_masks_give_what_float32_gives():
    """Softmax is NaN in the row that is masked completely, and finite in the other rows."""

    def middle(F, h, mask):
        return attend(F, MASKS["where"](F, scores(F, h), rows(F, mask), float("-inf")), h)

    assert_as_float32(middle)
    assert_as_float32(middle, mask=np.where(MASK.any(1, keepdims=True), MASK, 1))


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


def test_float32_ends_at_the_next_product():
    h = mx.sym.FullyConnected(mx.sym.var("x"), num_hidden=4, name="a")
    out = mx.sym.FullyConnected(mx.sym.relu(h + 1e-12), num_hidden=4, name="b")
    _, nodes = cast_pass.plan(mx.sym.tanh(out), FLOAT16, {})
    assert [n.dtype for n in nodes] == ["float16", "float32", "float32", "float16", "float16"]
