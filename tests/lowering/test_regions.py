"""Regions of no image, which MXNet's ROIAlign does not write on a CPU."""

import numpy as np
import pytest

import gluon_amp as amp
from tests.lowering import back_through

from mxnet import nd
from mxnet.gluon import nn

CORNERS = [0, 0, 3, 3]


@pytest.mark.parametrize("policy", ["float16", "fused_float32"])
def test_a_region_of_no_image_is_zero_and_gives_no_gradient(policy):
    net = nn.HybridLambda(lambda F, x, r: F.contrib.ROIAlign(x * 2, r, (2, 2), 1.0))
    amp.cast(net, policy)
    net.hybridize()
    x, nothing = nd.ones((1, 3, 4, 4)), [-1, *CORNERS]
    x.attach_grad()
    # what a result of an earlier call left in memory
    net(x, nd.array([[0, *CORNERS]] * 4)).wait_to_read()
    y = back_through(net, x, nd.array([nothing, [0, *CORNERS], nothing, nothing]))
    expected = np.zeros((4, 3, 2, 2))
    expected[1] = 2
    np.testing.assert_array_equal(y.asnumpy(), expected)
    assert x.grad.sum().asscalar() == 2 * 3 * 4  # of four averages in each channel
