"""Operations and bytes of a network's products, against sums by hand."""

import pytest

from experiments.benchmarks import products

import mxnet as mx

CONVOLUTION = {"kernel": (3, 3), "pad": (1, 1), "num_filter": 8, "no_bias": True}


def two_layers():
    data = mx.sym.var("data")
    first = mx.sym.Convolution(data, name="first", **CONVOLUTION)
    return mx.sym.FullyConnected(mx.sym.relu(first), name="second", num_hidden=5, no_bias=True)


# by hand for 2 images of 3 × 4 × 4
FIRST = 2 * (2 * 8 * 4 * 4) * (3 * 9)
SECOND = 2 * (2 * 5) * (8 * 4 * 4)
FIRST_MOVED = 2 * (2 * 3 * 16 + 8 * 3 * 9 + 2 * 8 * 16)
SECOND_MOVED = 2 * (2 * 8 * 16 + 5 * 128 + 2 * 5)


def test_a_forward_pass_has_every_product_once():
    counted = products.count(two_layers(), (2, 3, 4, 4), {"first_weight", "second_weight"}, False)
    assert counted == (FIRST + SECOND, FIRST_MOVED + SECOND_MOVED)


def test_the_first_layer_of_a_training_step_has_no_gradient_of_its_data():
    trained = {"first_weight", "second_weight"}
    counted = products.count(two_layers(), (2, 3, 4, 4), trained, True)
    assert counted.flop == 2 * FIRST + 3 * SECOND
    update = 20 * (8 * 3 * 9 + 5 * 128)
    assert counted.moved == 2 * FIRST_MOVED + 3 * SECOND_MOVED + update


def test_frozen_layers_have_no_gradients():
    counted = products.count(two_layers(), (2, 3, 4, 4), {"second_weight"}, True)
    assert counted.flop == FIRST + 2 * SECOND


def test_what_the_data_passes_before_a_product_may_be_trained():
    norm = mx.sym.BatchNorm(mx.sym.var("data"), name="norm")
    symbol = mx.sym.Convolution(norm, name="first", **CONVOLUTION)
    counted = products.count(symbol, (2, 3, 4, 4), {"norm_gamma", "first_weight"}, True)
    assert counted.flop == 3 * FIRST


@pytest.mark.parametrize(
    ("operator", "options", "flop"),
    [
        # each of 8 groups of one channel: 9 operations for each of 2 × 8 × 16 outputs
        ("Convolution", {**CONVOLUTION, "num_group": 8}, 2 * 256 * 9),
        # each of 2 × 8 × 16 inputs reaches 3 × 3 positions of 4 filters
        ("Deconvolution", {"kernel": (3, 3), "num_filter": 4}, 2 * 256 * 4 * 9),
    ],
)
def test_other_products(operator, options, flop):
    halves = mx.sym.SliceChannel(mx.sym.var("data"), num_outputs=2, name="halves")
    symbol = getattr(mx.sym, operator)(halves[1], name="product", **options)
    assert products.count(symbol, (2, 16, 4, 4), set(), False).flop == flop


def test_resnet50_has_the_operations_of_its_paper():
    net = mx.gluon.model_zoo.vision.resnet50_v1()
    net.initialize()
    net(mx.nd.zeros((1, 3, 64, 64)))
    counted = products.count(net(mx.sym.var("data")), (1, 3, 224, 224), set(), False)
    # 3.8 billion multiplications and additions in table 1 of "Deep Residual Learning"
    assert counted.flop / 2 == pytest.approx(3.8e9, rel=0.02)
