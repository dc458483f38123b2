"""PyTorch, torchvision and GluonCV in one process; nets whose values show mistakes."""

import sys

import numpy as np
import pytest

import gluon_amp as amp

import mxnet as mx
from mxnet.gluon import nn

torch = pytest.importorskip("torch", reason="PyTorch is not installed: run `make handover`")


class Net(nn.HybridBlock):
    """A net whose layers are attributes, and whose forward is a function."""

    def __init__(self, forward, **layers):
        super().__init__()
        self.forward_ = forward
        for name, layer in layers.items():
            shape = layer if isinstance(layer, tuple) else None  # of a parameter
            setattr(self, name, self.params.get(name, shape=shape) if shape else layer)

    def hybrid_forward(self, F, *inputs, **params):
        return self.forward_(F, self, *inputs, **params)


class Module(torch.nn.Module):
    """The same in PyTorch."""

    def __init__(self, forward, **layers):
        super().__init__()
        self.forward_ = forward
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, *inputs):
        return self.forward_(self, *inputs)


def gluoncv_zoo():
    """Return GluonCV's Model Zoo, whose import fails if it finds a PyTorch of today."""
    sys.modules["torch"] = None
    try:
        import gluoncv
    finally:
        sys.modules["torch"] = torch
    return gluoncv.model_zoo


def torchvision_zoo():
    """Return torchvision's networks; its import fails without the C++ operators of a wheel."""
    try:
        import torchvision
    except RuntimeError:  # the wheel of PyPI is for CUDA: declare what the import registers
        for name in [name for name in sys.modules if name.startswith("torchvision")]:
            del sys.modules[name]
        for name in ("nms", "qnms"):
            torch.library.define(f"torchvision::{name}", "(Tensor boxes) -> Tensor")
        import torchvision
    return torchvision.models


def randomized(net, seed=0):
    """Return a net with other values than 0 and 1 in norms and biases."""
    random = np.random.RandomState(seed)
    for name, param in net.collect_params().items():
        shape = param.shape
        if name.endswith(("gamma", "running_var")):
            param.set_data(mx.nd.array(random.uniform(0.5, 1.5, shape)))
        elif name.endswith(("beta", "running_mean", "bias")):
            param.set_data(mx.nd.array(random.uniform(-0.3, 0.3, shape)))
    return net


def loaded(net, module, *inputs, **options):
    """Return the module with the net's parameters, in inference."""
    state = amp.torch_state_dict(net, module, *inputs, **options)
    module.load_state_dict({name: torch.from_numpy(array) for name, array in state.items()})
    return module.eval()


def relative_difference(net, module, *inputs):
    """Return the largest difference of the first outputs, over the largest element."""
    with torch.no_grad():
        theirs = module(*(torch.from_numpy(array.asnumpy()) for array in inputs))
    own, theirs = net(*inputs).asnumpy(), theirs.numpy()
    return np.abs(own - theirs).max() / np.abs(own).max()
