"""How close a cast network has to come to the float32 one: the yardstick of the numeric tests.

A fixed tolerance has no meaning across networks, since some amplify any change of their input. So
each float32 network is its own measure: its weights and inputs are changed by the relative error of
one rounding. A cast network, which rounds at every operator, may differ by `FACTOR` times the
largest of a few such changes of the result, plus `FACTOR` roundings of the result itself.
`docs/results/zoo_coverage.md` uses the same idea.

A network with the attributes `rounding` and `gradient_rounding` also changes inside. With the first
the results of its steps change, too. With the second only the gradients of these results do, while
the forward pass is that of float32. A sum of large gradients may cancel, such as that of the bias
before a steep norm. Then their rounding is what is left of it, and changed results may not show
that, since they can make the norm less steep.
"""

import contextlib
from typing import Dict, List

import numpy as np

import mxnet as mx
from mxnet import autograd

# Largest relative error of one rounding to nearest
ROUNDING = {"float32": 0.0, "float16": 2.0**-11, "bfloat16": 2.0**-8}
FACTOR = 8
CHANGES = 4
# Where a few changes show too little: one element in a hundred nets is so near the kink of a ReLU
MANY_CHANGES = 64

# A gradient smaller than the first share of the largest one may be zero but for rounding, such as
# that of a bias before a BatchNorm: it has to stay below the second share
ZERO, SMALL = 0.03, 0.1


def measure(net, inputs: List) -> Dict[str, np.ndarray]:
    """Return output and gradients, of float inputs and parameters, of a training pass.

    The head gradients are random and positive, and the same in each call.
    """
    array = _maker(inputs)
    floats = [x for x in inputs if x.dtype == np.float32]
    for x in floats:
        x.attach_grad()
    with autograd.record():
        out = net(*inputs)
        heads = np.random.RandomState(2).uniform(0.5, 1, out.shape)
        loss = (out * array(heads, dtype="float32")).sum()
    loss.backward()
    found = {f"gradient of input {k}": x.grad.asnumpy() for k, x in enumerate(floats)}
    for name, param in net.collect_params().items():
        if param.grad_req != "null":
            found[f"gradient of {name[len(net.prefix) :]}"] = param.grad().asnumpy()
    return {"output": out.asnumpy(), **found}


def distances(got: Dict, expected: Dict) -> Dict[str, float]:
    """Return by how much of its size each result differs; inf where only one of them is finite."""
    sizes = {name: _size(values) for name, values in expected.items()}
    largest = max(size for name, size in sizes.items() if name != "output")
    found = {}
    for name, values in expected.items():
        zero = name != "output" and sizes[name] < ZERO * largest
        if not np.array_equal(np.isfinite(got[name]), np.isfinite(values)):
            found[name] = np.inf
        elif zero:
            found[name] = 0.0 if _size(got[name]) <= SMALL * largest else np.inf
        else:
            found[name] = _size(got[name].astype("f8") - values) / max(sizes[name], 1e-30)
    return found


def bounds(
    net, inputs: List, expected: Dict, dtype: str, changes: int = CHANGES
) -> Dict[str, float]:
    """Return by how much each result may differ where the float32 `net` is cast to `dtype`."""
    random, array = np.random.RandomState(3), _maker(inputs)
    kept = {p: p.data().copy() for p in net.collect_params().values()}

    def changed(x):
        values = x.asnumpy()
        signs = random.choice([-1, 1], values.shape)
        new = values * (1 + ROUNDING[dtype] * signs)
        return array(new, dtype=x.dtype)

    largest = dict.fromkeys(expected, 0.0)

    def move(*given):
        for name, distance in distances(measure(net, list(given)), expected).items():
            largest[name] = max(largest[name], distance)

    if hasattr(net, "gradient_rounding"):
        with _set(net, "gradient_rounding", ROUNDING[dtype]):
            for _ in range(changes):
                move(*inputs)
    with _set(net, "rounding", ROUNDING[dtype]):
        for _ in range(changes):
            for param, value in kept.items():
                if param.grad_req != "null":
                    param.set_data(changed(value))
            move(*(changed(x) if x.dtype == np.float32 else x for x in inputs))
    for param, value in kept.items():
        param.set_data(value)
    return {name: FACTOR * (distance + ROUNDING[dtype]) for name, distance in largest.items()}


@contextlib.contextmanager
def _set(net, attribute: str, size: float):
    """Let a network that has the attribute trace itself with it."""
    if not hasattr(net, attribute):
        yield
        return
    setattr(net, attribute, size)
    net.hybridize()
    try:
        yield
    finally:
        setattr(net, attribute, 0.0)
        net.hybridize()


def _maker(inputs: List):
    return mx.np.array if isinstance(inputs[0], mx.np.ndarray) else mx.nd.array


def _size(values: np.ndarray) -> float:
    """Return the root of the mean square of what is finite."""
    finite = values[np.isfinite(values)].astype("f8")
    return float(np.sqrt(np.mean(finite**2))) if finite.size else 0.0
