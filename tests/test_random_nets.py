"""Random networks under every low-precision policy: no errors, and within `closeness`'s bounds.

The suite runs a few of them, which are always the same; `--random-nets 300 --random-nets-seed 7`
runs others.
"""

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp.lowering import bfloat16
from gluon_amp.policy import Policy
from tests import closeness
from tests.random_nets import RandomNet

import mxnet as mx

LARGEST = 4096.0
POLICIES = ["float16", "bfloat16"]


def pytest_generate_tests(metafunc):
    if "seed" in metafunc.fixturenames:
        first = metafunc.config.getoption("--random-nets-seed") * 1000
        count = metafunc.config.getoption("--random-nets")
        metafunc.parametrize("seed", range(first, first + count))


def test_a_random_net_gives_what_it_gives_in_float32(seed):
    net = RandomNet(seed)
    net.hybridize()
    inputs = [net.x]
    try:
        expected = closeness.measure(net, inputs)
    except mx.MXNetError as error:
        pytest.skip(f"float32 fails: {error}")
    if max(np.abs(values).max() for values in expected.values()) > LARGEST:
        pytest.skip("gradients beyond the range of float16, whatever computes them")
    allowed = {
        policy: closeness.bounds(net, inputs, expected, Policy.parse(policy).compute_dtype)
        for policy in POLICIES
    }
    for policy in POLICIES:
        if policy == "bfloat16" and not bfloat16.runs_on_cpu():
            continue
        amp.cast(net, policy)
        found = closeness.distances(closeness.measure(net, inputs), expected)
        far = {k: (d, allowed[policy][k]) for k, d in found.items() if d > allowed[policy][k]}
        assert far == {}, (policy, net.shape, net.names)
        amp.cast(net, "float32")
