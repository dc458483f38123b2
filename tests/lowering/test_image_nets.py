"""Random networks of images give the same with the blocked layout as without it."""

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp.base import bfloat16
from gluon_amp.lowering import blocked
from tests.image_nets import ImageNet
from tests.marks import needs_layout

import mxnet as mx
from mxnet import autograd, nd

pytestmark = needs_layout

POLICIES = ["float16", "bfloat16"] if bfloat16.is_native() else ["float16"]
# Allowed beyond the distance from float32 of the results without the layout, of the largest value
TOLERANCE = {"float16": 0.01, "bfloat16": 0.1}


def run(seed, policy):
    """Return the outputs, gradients and running statistics of a training pass and of inference."""
    net = ImageNet(seed)
    net.hybridize()
    amp.cast(net, policy)
    x = net.x.copy()
    x.attach_grad()
    mx.random.seed(5)
    with autograd.record():
        outputs = _listed(net(x))
        heads = [np.random.RandomState(1).uniform(-1, 1, y.shape) for y in outputs]
        loss = sum((y * nd.array(head)).mean() for y, head in zip(outputs, heads)) * 64
    loss.backward()
    found = {f"output {k}": y for k, y in enumerate(outputs)}
    found.update({f"inference {k}": y for k, y in enumerate(_listed(net(x)))})
    found["gradient of input"] = x.grad
    for name, param in net.collect_params().items():
        trained = param.grad_req != "null"
        found[f"gradient of {name}" if trained else name] = (
            param.grad() if trained else param.data()
        )
    return {name: array.asnumpy().astype("f8") for name, array in found.items()}


def _listed(outputs):
    return outputs if isinstance(outputs, (list, tuple)) else [outputs]


def _size(values):
    return np.sqrt(np.mean(values**2))


@pytest.mark.filterwarnings("ignore:Parameter")
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", range(10))
def test_the_layout_changes_no_result(seed, policy, monkeypatch):
    actual = run(seed, policy)
    monkeypatch.setattr(blocked, "available", lambda: False)
    expected, wide = run(seed, policy), run(seed, "float32")
    largest = max(_size(values) for name, values in wide.items() if "gradient" in name)
    far = {}
    for name, values in wide.items():
        size = max(_size(values), 0.1 * largest if "gradient" in name else 1e-3)
        allowed = 2 * _size(expected[name] - values) / size + TOLERANCE[policy]
        distance = _size(actual[name] - values) / size
        if not distance <= allowed:
            far[name] = distance, allowed
    assert far == {}
