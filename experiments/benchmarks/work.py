"""Runs a case with MXNet, in a process of its own.

Only this module imports MXNet: the process that compares must not hold memory or threads. Only the
cases of gluon_amp import gluon_amp, because that enables AMX in oneDNN.
"""

from dataclasses import replace
from typing import Any, Callable, Dict, Tuple

import numpy as np

from experiments.benchmarks.serve import Built, serve
from experiments.benchmarks.sizes import RATE, UNET, VOCABULARIES
from experiments.benchmarks.suites import Case
from experiments.standalone import compat

# what `import gluon_amp` does first: MXNet 1.9.1 needs it beside numpy 1.24 or Python 3.12
compat.restore()

from experiments.benchmarks import limit
from experiments.benchmarks.networks import BUILT

import mxnet as mx
from mxnet import autograd, nd
from mxnet.gluon.model_zoo import vision

# small rates, so that training on noise does not overflow
SETTINGS = {
    "sgd": {"learning_rate": 1e-6, "momentum": 0.9, "wd": 1e-4},
    "adam": {"learning_rate": RATE, "wd": 1e-4},
}
CLASSES = 1000


# --------------------------------------------------------------------------------------- networks


def network(case: Case) -> mx.gluon.HybridBlock:
    """Return the case's network, initialized, neither hybridized nor cast."""
    mx.random.seed(0)
    net = BUILT[case.network]() if case.network in BUILT else _model(case.network)
    net.initialize(mx.init.Xavier())
    return net


def _model(name: str) -> mx.gluon.HybridBlock:
    try:
        return vision.get_model(name, classes=CLASSES)
    except ValueError:
        try:
            from gluoncv import model_zoo
        except ImportError:
            model_zoo = None
        if model_zoo is None or name not in model_zoo.get_model_list():
            raise
    return model_zoo.get_model(name, classes=CLASSES)


def batch_of(case: Case) -> Tuple[nd.NDArray, nd.NDArray]:
    """Return images or tokens, and labels, from a seeded generator."""
    random, side = np.random.RandomState(0), case.pixels
    if case.network in VOCABULARIES:
        tokens = random.randint(0, VOCABULARIES[case.network], (2, case.batch, side))
        return nd.array(tokens[0]), nd.array(tokens[1])
    images = random.normal(size=(case.batch, 3, side, side))
    shape, classes = (case.batch,), CLASSES
    if case.network == "unet":  # a label for each pixel
        shape, classes = (case.batch, side, side), UNET.classes
    return nd.array(images), nd.array(random.randint(0, classes, shape))


def train(case: Case) -> Callable[[], Any]:
    """Return a training step with the case's library."""
    if case.library == "contrib.amp":  # as in MXNet's tutorial
        from mxnet.contrib import amp

        amp.init(target_dtype=case.dtype)
    net, options = network(case), (case.optimizer, SETTINGS[case.optimizer])
    loss_fn = mx.gluon.loss.SoftmaxCrossEntropyLoss(axis=1 if case.network == "unet" else -1)
    if case.library == "gluon_amp":
        import gluon_amp

        gluon_amp.cast(net, case.dtype)
        gluon_amp.cast(loss_fn, case.dtype)  # stays in float32, with faster operators
        scaling = {"loss_scale": case.loss_scale, "check_finite": case.check_finite}
        trainer = gluon_amp.Trainer(net.collect_params(), *options, **scaling)
    else:
        trainer = mx.gluon.Trainer(net.collect_params(), *options)
    net.hybridize(static_alloc=True)
    if case.library == "contrib.amp":
        amp.init_trainer(trainer)
    images, labels = batch_of(case)

    def step() -> Any:
        with autograd.record():
            loss = loss_fn(net(images), labels)
            if case.library == "contrib.amp":
                with amp.scale_loss(loss, trainer) as scaled:
                    autograd.backward(scaled)
            else:
                (trainer if case.library == "gluon_amp" else autograd).backward(loss)
        return trainer.step(case.batch)

    # first lower the dynamic scale until an update creates the optimizer's states
    while case.library == "gluon_amp" and not step().applied:
        pass
    return step


def infer(case: Case) -> Callable[[], None]:
    """Return a forward pass without gradients."""
    net = network(case)
    images, _ = batch_of(case)
    if case.library == "gluon_amp":
        import gluon_amp

        net = gluon_amp.cast(net, case.dtype)
    if case.library == "contrib.amp":
        from mxnet.contrib import amp

        net.hybridize()
        net(images)  # determines the shapes, which the conversion needs
        net = amp.convert_hybrid_block(net, target_dtype=case.dtype, ctx=images.context)
    net.hybridize(static_alloc=True, static_shape=True)
    return lambda: net(images)


# ------------------------------------------------------------------------------------- parameters


def shaped_network(case: Case) -> mx.gluon.HybridBlock:
    """Return the case's network after a forward pass, which determines the shapes."""
    net = network(case)
    net(batch_of(replace(case, batch=1, pixels=case.pixels if case.images else 224))[0])
    return net


def trained(net: mx.gluon.HybridBlock) -> Dict[str, mx.gluon.Parameter]:
    """Return the trained parameters of a network by name."""
    return {name: p for name, p in net.collect_params().items() if p.grad_req != "null"}


def gradients(case: Case) -> Dict[str, nd.NDArray]:
    """Return random gradients with the shapes of the network's parameters, by name."""
    random = np.random.RandomState(0)
    return {
        name: nd.array(random.normal(0, 1e-2, p.shape), dtype=case.dtype)
        for name, p in trained(shaped_network(case)).items()
    }


def check(case: Case) -> Callable[[], None]:
    """Return an overflow check, including the transfer of its result."""
    arrays = list(gradients(case).values())
    if case.library == "gluon_amp":
        from gluon_amp.optimizer.arrays import all_finite

        return lambda: all_finite(arrays)
    # contrib.amp's LossScaler.has_overflow
    return lambda: nd.multi_all_finite(*arrays, num_arrays=len(arrays)).asscalar()


def update(case: Case) -> Callable[[], None]:
    """Return an update of all parameters."""
    grads = gradients(case)
    weights = [grad * 3 for grad in grads.values()]
    indices = list(range(len(weights)))
    options = {"param_idx2name": dict(enumerate(grads)), "multi_precision": True}
    grads = list(grads.values())
    if case.library == "gluon_amp":
        from gluon_amp import optimizer

        rule = optimizer.create(case.optimizer, **SETTINGS[case.optimizer], **options)
        states = [rule.create_state_multi_precision(i, w) for i, w in enumerate(weights)]
        return lambda: rule.update_multi_precision(indices, weights, grads, states)

    rule = mx.optimizer.create(case.optimizer, **SETTINGS[case.optimizer], **options)
    rule.aggregate_num = 0  # one operator for each weight, as in MXNet's Updater by default
    states = [rule.create_state_multi_precision(i, w) for i, w in enumerate(weights)]

    def one_by_one() -> None:
        for arrays in zip(indices, weights, grads, states):
            rule.update_multi_precision(*arrays)

    return one_by_one


WORK = {"train": train, "infer": infer, "check": check, "update": update}


def build(options: Dict[str, Any]) -> Built:
    """Return what runs a case, and what counts the network's trained parameters and products."""
    case = Case(**options)

    def count() -> Dict[str, int]:
        net = shaped_network(case)
        found = {"parameters": sum(int(np.prod(p.shape)) for p in trained(net).values())}
        if case.library == "mxnet" and case.images:
            found["products"] = limit.count(net, batch_of(case)[0], case.work == "train")
        return found

    return WORK[case.work](case), count


if __name__ == "__main__":
    serve(build, nd.waitall)
