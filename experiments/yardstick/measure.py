"""Compares losses and gradients of each dtype with float64, and outputs with themselves.

The reference is MXNet's own float64 on the CPU. `check` compares its gradients with differences of
its losses, and the tests compare it with numpy.
"""

from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

import numpy as np

import gluon_amp as amp
from experiments.yardstick.networks import BATCH, NETWORKS, Network, batches
from gluon_amp.inspection.look import weight_gradients

import mxnet as mx
from mxnet import autograd, gluon, nd

STEPS = 40  # of the short training, in float32
MOMENTUM = 0.9
LARGEST_SCALE = 2.0**16  # a dynamic scale begins there, too
RESOLUTION = 2.0**-52  # of float64: no error is known to be smaller, relative to the value
STEP = 1e-9  # of the differences that check float64, so small that few kinks of ReLU are on it

# The policies by the names of formats; float8 has its gradients in E5M2.
POLICIES = {
    "float32": "float32",
    "tfloat32": "compute=tfloat32",
    "float16": "float16",
    "bfloat16": "bfloat16",
    "float8_e4m3": "compute=float8_e4m3,gradients=float8_e5m2",
}
WATCHED = tuple(name for name in POLICIES if name != "float32")

Arrays = List[np.ndarray]


class Pass(NamedTuple):
    """A forward and a backward pass: the loss, and the gradients of the weights in float64."""

    loss: float
    gradients: Arrays
    scale: float = 1.0


def decibels(value: Any, error: Any) -> float:
    """Return the ratio of the squared norms of a value and of its error, in dB."""
    signal, noise = np.linalg.norm(value), np.linalg.norm(error)
    return float(20 * np.log10(1 / max(noise / signal, RESOLUTION)))


def weights(net: gluon.Block) -> Dict[str, gluon.Parameter]:
    """Return the weights of a network's layers by their paths, from the input to the output."""
    named = net._collect_params_with_prefix()
    return {
        name: p for name, p in named.items() if name.endswith("weight") and p.grad_req != "null"
    }


def new(network: Network, parameters: Sequence[np.ndarray], data: np.ndarray, dtype="float32"):
    """Return a network with these parameters; `data` is an input for the shapes."""
    net = network.build()
    net.cast(dtype)
    net.initialize()
    with autograd.predict_mode():
        net(nd.array(data[:1], dtype=dtype))
    for parameter, value in zip(net.collect_params().values(), parameters):
        parameter.set_data(nd.array(value, dtype=dtype))
    return net


def values_of(net: gluon.Block) -> Arrays:
    """Return the parameters of a network, running statistics included."""
    return [parameter.data().asnumpy() for parameter in net.collect_params().values()]


def loss_of(net: gluon.Block, data: nd.NDArray, label: nd.NDArray) -> nd.NDArray:
    """Return the mean cross-entropy."""
    return gluon.loss.SoftmaxCrossEntropyLoss()(net(data), label).mean()


def backward(net: gluon.Block, data: np.ndarray, label: np.ndarray, dtype="float32", scale=1.0):
    """Return a `Pass` whose loss is multiplied by a scale, and its gradients divided by it."""
    x, y = nd.array(data, dtype=dtype), nd.array(label, dtype=dtype)
    with autograd.record():
        loss = loss_of(net, x, y)
        scaled = loss * scale
    scaled.backward()
    gradients = [w.grad().asnumpy().astype(np.float64) / scale for w in weights(net).values()]
    return Pass(float(loss.asscalar()), gradients, scale)


def in_format(network: Network, parameters: Arrays, batch: Tuple, policy: str) -> Pass:
    """Return the pass under a policy; in float16 at the highest scale that does not overflow."""
    net = amp.cast(new(network, parameters, batch[0]), policy)
    scale = LARGEST_SCALE if amp.Policy(policy).needs_loss_scale else 1.0
    while True:
        found = backward(net, *batch, scale=scale)
        if all(np.isfinite(gradient).all() for gradient in found.gradients):
            return found
        scale /= 2


def check(net: gluon.Block, batch: Tuple, gradients: Arrays) -> float:
    """Return the error in dB of float64's gradient against a central difference of its losses.

    Both are the derivative along the gradient, which is the norm of the gradient.
    """
    x, y = (nd.array(array, dtype="float64") for array in batch)
    norm = np.sqrt(sum(np.square(gradient).sum() for gradient in gradients))
    losses = []
    for sign in (1, -1):
        for weight, gradient in zip(weights(net).values(), gradients):
            moved = STEP * sign * gradient / norm
            weight.set_data(weight.data() + nd.array(moved, dtype="float64"))
        with autograd.train_mode():
            losses.append(float(loss_of(net, x, y).asscalar()))
        for weight, gradient in zip(weights(net).values(), gradients):
            moved = STEP * sign * gradient / norm
            weight.set_data(weight.data() - nd.array(moved, dtype="float64"))
    return decibels(norm, (losses[0] - losses[1]) / (2 * STEP) - norm)


def at(network: Network, parameters: Arrays, batch: Tuple) -> Dict[str, Any]:
    """Return what is known of a network with these parameters: dB by format and layer."""
    net = new(network, parameters, batch[0], "float64")
    exact = backward(net, *batch, dtype="float64")
    result = {"check": check(net, batch, exact.gradients), "loss": exact.loss, "formats": {}}
    for name, policy in POLICIES.items():
        found = in_format(network, parameters, batch, policy)
        pairs = zip(exact.gradients, found.gradients)
        result["formats"][name] = {
            "loss": decibels(exact.loss, found.loss - exact.loss),
            "layers": [decibels(one, other - one) for one, other in pairs],
            "scale": found.scale,
        }
    result["watch"] = watched(new(network, parameters, batch[0]), batch)
    return result


def watched(net: gluon.Block, batch: Tuple) -> Dict[str, List[float]]:
    """Return what `amp.watch` says of the gradients of a float32 network: dB by format and layer.

    It rounds these tensors alone, and not what they were computed from.
    """
    backward(net, *batch)
    rows = {parameter.name: row for parameter, row in weight_gradients(net, WATCHED)}
    own = [rows[weight.name].formats for weight in weights(net).values()]
    return {name: [decibels(1.0, effects[name].error) for effects in own] for name in WATCHED}


def trained(network: Network, parameters: Arrays, inputs: np.ndarray, labels: np.ndarray) -> Arrays:
    """Return the parameters after a short training in float32, one step for each batch."""
    net = new(network, parameters, inputs[0])
    net.hybridize(static_alloc=True)
    options = {"learning_rate": network.rate, "momentum": MOMENTUM}
    trainer = amp.Trainer(net.collect_params(), "sgd", options, loss_scale=None)
    for data, label in zip(inputs, labels):
        with autograd.record():
            loss = loss_of(net, nd.array(data), nd.array(label))
        trainer.backward(loss)
        trainer.step(1)
    return values_of(net)


def outputs(net: gluon.Block, data: np.ndarray, size: int = BATCH) -> np.ndarray:
    """Return the outputs of a batch in prediction, from batches of a size, in float64."""
    with autograd.predict_mode():
        parts = [net(nd.array(data[first : first + size])) for first in range(0, len(data), size)]
    return np.concatenate([part.asnumpy().astype(np.float64) for part in parts])


def dependence(network: Network, parameters: Arrays, data: np.ndarray) -> Dict[str, Dict]:
    """Return how far outputs are from those of one batch of a hybridized network, by a change."""

    def run(policy: str, size: int = BATCH, hybridized: bool = True) -> np.ndarray:
        net = new(network, parameters, data)
        net.hybridize(active=hybridized)
        return outputs(amp.cast(net, policy) if policy != "float32" else net, data, size)

    result = {}
    for policy in ("float32", "float16", "bfloat16"):
        whole = run(policy)
        found = {f"in batches of {size}": run(policy, size) for size in (1, 8)}
        if policy == "float32":
            found["not hybridized"] = run(policy, hybridized=False)
            found["fused operators"] = run("fused_float32")
        result[policy] = {
            name: {
                "same": float((values == whole).mean()),
                "decibels": decibels(whole, values - whole),
                "classes": int((values.argmax(-1) != whole.argmax(-1)).sum()),
                "of": int(whole[..., 0].size),
            }
            for name, values in found.items()
        }
    return result


def measure(name: str) -> Dict[str, Any]:
    """Return the measurements of a network."""
    network = NETWORKS[name]
    mx.random.seed(0)
    np.random.seed(0)  # MXNet's initializers draw from it, too
    inputs, labels = batches(network.data, STEPS + 1)
    batch = inputs[-1], labels[-1]
    net = network.build()
    net.initialize(mx.init.MSRAPrelu())
    with autograd.predict_mode():
        net(nd.array(batch[0][:1]))
    initial = values_of(net)
    after = trained(network, initial, inputs[:-1], labels[:-1])
    return {
        "layers": list(weights(net)),
        "initial": at(network, initial, batch),
        "trained": at(network, after, batch),
        "outputs": dependence(network, after, batch[0]),
    }
