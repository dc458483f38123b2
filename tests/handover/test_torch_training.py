"""A training that begins here and goes on in PyTorch, beside one that was not interrupted."""

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp.base.messages import UsageError
from tests.handover.pytorch import Module, Net, torch

import mxnet as mx
from mxnet import autograd, gluon
from mxnet.gluon import nn

T = torch.nn

STEPS, BATCH, BATCHES = 50, 16, 10  # steps here and in PyTorch, of so many batches in turn
SEEDS = 4  # runs that measure the tolerance
# What a layer rounds: its result, the gradients of its data and of its weight, the update
ROUNDINGS = 4
# In float32 both frameworks round, each on its own; in float16 only the steps here do.
DISTURBED = {"float32": 2 * ROUNDINGS * 2.0**-24, "float16": ROUNDINGS * 2.0**-11}

# Epsilon is small, as frameworks add it at different places: with 1e-8 the losses of the LSTM
# differ by up to 3e-8, and without the factor of the bias correction by 1.4e-7.
OPTIMIZERS = {
    "sgd": ({"learning_rate": 0.05, "momentum": 0.9, "wd": 1e-3}, torch.optim.SGD),
    "nag": ({"learning_rate": 0.05, "momentum": 0.9, "wd": 1e-3}, torch.optim.SGD),
    "adam": ({"learning_rate": 0.003, "epsilon": 1e-14, "wd": 1e-3}, torch.optim.Adam),
    "adamw": ({"learning_rate": 0.003, "epsilon": 1e-14, "wd": 0.1}, torch.optim.AdamW),
}


def images(random):
    return random.normal(size=(BATCH, 3, 8, 8)).astype(np.float32)


def tokens(random):
    return random.randint(0, 9, (BATCH, 6)).astype(np.float32)


def batches(draw):
    """Return data and targets: one-hot, of the largest of four random functions."""
    random = np.random.RandomState(3)
    data = [draw(random) for _ in range(BATCHES)] * (2 * STEPS // BATCHES)
    weight = random.normal(size=(data[0][0].size, 4))
    labels = [(x.reshape(BATCH, -1) @ weight).argmax(1) for x in data]
    return [(x, np.eye(4, dtype=np.float32)[label]) for x, label in zip(data, labels)]


def conv_pair():
    net, module = nn.HybridSequential(), T.Sequential()
    for layer, other in (
        (
            nn.Conv2D(8, 3, padding=1, in_channels=3, use_bias=False),
            T.Conv2d(3, 8, 3, 1, 1, bias=False),
        ),
        (nn.BatchNorm(in_channels=8), T.BatchNorm2d(8)),
        (nn.Activation("relu"), T.ReLU()),
        (nn.Conv2D(8, 3, groups=2, in_channels=8), T.Conv2d(8, 8, 3, groups=2)),
        (nn.BatchNorm(in_channels=8), T.BatchNorm2d(8)),
        (nn.Activation("relu"), T.ReLU()),
        (nn.Flatten(), T.Flatten()),
        (nn.Dense(4, in_units=288), T.Linear(288, 4)),
    ):
        net.add(layer)
        module.append(other)
    return net, module


def lstm_pair():
    net = Net(
        lambda F, s, x: s.out(s.lstm(s.embedding(x))),
        embedding=nn.Embedding(9, 8),
        lstm=gluon.rnn.LSTM(12, layout="NTC", input_size=8),
        out=nn.Dense(4, in_units=72),
    )
    module = Module(
        lambda m, x: m.out(m.lstm(m.embedding(x))[0].flatten(1)),
        embedding=T.Embedding(9, 8),
        lstm=T.LSTM(8, 12, batch_first=True),
        out=T.Linear(72, 4),
    )
    return net, module


PAIRS = {"conv": (conv_pair, images), "lstm": (lstm_pair, tokens)}


def begin(build, dtype, optimizer):
    """Return a net and a trainer, always of the same weights, and a module."""
    mx.random.seed(1)
    net, module = build()
    net.initialize(mx.init.Xavier())
    amp.cast(net, dtype)
    scale = amp.DynamicLossScale(1024, growth_interval=30) if dtype == "float16" else None
    options, _ = OPTIMIZERS[optimizer]
    trainer = amp.Trainer(net.collect_params(), optimizer, options, loss_scale=scale)
    return net, trainer, module


def mean_loss(outputs, target):
    """Return the mean of `L2Loss` in float64.

    Its gradient has no cancellation. MXNet's `log_softmax` of oneDNN is exact to 1e-6 only, and the
    gradient of a small cross entropy to 1e-4.
    """
    return np.mean((outputs.astype(np.float64) - target) ** 2) / 2


def train(net, trainer, data, change=0.0, seed=0):
    """Return the loss of each step.

    Each step computes with weights that are changed by some roundings, up or down, and so are its
    gradients. The weights themselves are updated.
    """
    loss_function, losses = gluon.loss.L2Loss(), []
    trained = [param for param in net.collect_params().values() if param.grad_req != "null"]
    weights = [param.data() for param in trained]
    random = np.random.RandomState(seed)

    def disturb(arrays):
        for array in arrays if change else ():
            array *= mx.nd.array(
                1 + random.choice([-change, change], array.shape), dtype=array.dtype
            )

    for x, target in data:
        before = [weight.copy() for weight in weights]
        disturb(weights)
        with autograd.record():
            outputs = net(mx.nd.array(x))
            loss = loss_function(outputs, mx.nd.array(target))
        trainer.backward(loss)
        if change:
            disturb(param.grad() for param in trained)
            for weight, values in zip(weights, before):
                values.copyto(weight)
        assert trainer.step(BATCH).applied
        losses.append(mean_loss(outputs.asnumpy(), target))
    return np.array(losses)


def go_on(module, optimizer, scaler, data):
    """Return the loss of each step of PyTorch, in float32."""
    losses = []
    module.train()
    for x, target in data:
        inputs = torch.from_numpy(x)
        outputs = module(inputs.long() if x.ndim == 2 else inputs)
        optimizer.zero_grad()
        scaler.scale(T.functional.mse_loss(outputs, torch.from_numpy(target)) / 2).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(mean_loss(outputs.detach().numpy(), target))
    return np.array(losses)


def handed_over(net, trainer, module, kind, data, **options):
    """Return PyTorch's optimizer and scaler, and the module with the net's parameters."""
    optimizer = kind(module.parameters(), lr=1.0, **options)
    state = amp.torch_state_dict(net, module, data)
    module.load_state_dict({name: torch.from_numpy(array) for name, array in state.items()})
    training = amp.torch_training_state(trainer, net, module, optimizer, data)
    optimizer.load_state_dict(training["optimizer"])
    scaler = torch.amp.GradScaler("cpu", enabled=bool(training["scaler"]))
    scaler.load_state_dict(training["scaler"])
    return optimizer, scaler


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("dtype", DISTURBED)
@pytest.mark.parametrize("name", PAIRS)
def test_the_training_goes_on(name, dtype, optimizer):
    """The losses differ from an uninterrupted float32 run's by no more than a rounding causes."""
    build, draw = PAIRS[name]
    data = batches(draw)
    net, trainer, _ = begin(build, "float32", optimizer)
    reference = train(net, trainer, data)[STEPS:]
    bound = np.zeros(STEPS)
    for seed in range(SEEDS):
        net, trainer, _ = begin(build, "float32", optimizer)
        train(net, trainer, data[:STEPS], DISTURBED["float16"] if dtype == "float16" else 0, seed)
        disturbed = train(net, trainer, data[STEPS:], DISTURBED["float32"], seed)
        bound = np.maximum(bound, np.abs(disturbed - reference))
    # The losses of some batches vary more: a bound is that of the steps up to the next such batch
    bound = np.maximum.accumulate(bound)
    bound = np.append(bound[BATCHES - 1 :], bound[-1].repeat(BATCHES - 1))

    net, trainer, module = begin(build, dtype, optimizer)
    train(net, trainer, data[:STEPS])
    first = mx.nd.array(data[0][0])
    torch_optimizer, scaler = handed_over(net, trainer, module, OPTIMIZERS[optimizer][1], first)
    losses = go_on(module, torch_optimizer, scaler, data[STEPS:])
    far = np.abs(losses - reference)
    print(f"{name} {dtype} {optimizer}: {far.max():.2g} of {bound.max():.2g}")
    assert (far <= bound).all()
    for _ in range(STEPS):
        trainer.loss_scale.update(finite=True)
    assert scaler.get_scale() == trainer.loss_scale.scale
    assert dtype == "float32" or scaler.get_scale() == 8192


def dense_pair(optimizer, options, steps=1, **loss_scale):
    """Return a net that was trained for some steps, with its trainer, and a module."""
    net = nn.Dense(2, in_units=3)
    net.initialize(mx.init.Normal(0.5))
    trainer = amp.Trainer(net.collect_params(), optimizer, options, **loss_scale)
    step(net, trainer, steps)
    return net, trainer, T.Linear(3, 2)


DATA = np.array([[1.0, -2.0, 0.5], [0.25, 1.0, 3.0]], np.float32)


def training_state(trainer, net, module, data=None, params=None):
    """Return what is handed over to SGD."""
    optimizer = torch.optim.SGD(module.parameters() if params is None else params, lr=1)
    data = mx.nd.array(DATA) if data is None else data
    return amp.torch_training_state(trainer, net, module, optimizer, data)


def step(net, trainer, steps=1):
    for _ in range(steps):
        with autograd.record():
            loss = net(mx.nd.array(DATA)).square().sum(axis=1)
        trainer.backward(loss)
        trainer.step(len(DATA))


def torch_step(module, optimizer):
    optimizer.zero_grad()
    module(torch.from_numpy(DATA)).square().sum(1).mean().backward()
    optimizer.step()


@pytest.mark.parametrize("optimizer, options, kind", [
    ("sgd", {"learning_rate": 0.01}, torch.optim.SGD),
    ("sgd", {"learning_rate": 0.01, "momentum": 0.5, "wd": 0.1}, torch.optim.SGD),
    ("nag", {"learning_rate": 0.01, "momentum": 0.5, "wd": 0.1}, torch.optim.SGD),
    (mx.optimizer.NAG, {"learning_rate": 0.01, "momentum": 0.5, "wd": 0.1}, torch.optim.SGD),
    (mx.optimizer.Adam, {"learning_rate": 0.01, "epsilon": 0.1}, torch.optim.Adam),
    ("adam", {"learning_rate": 0.01, "epsilon": 0.1, "wd": 0.1}, torch.optim.Adam),
    ("adamw", {"learning_rate": 0.01, "epsilon": 0.1, "wd": 0.1}, torch.optim.AdamW),
])  # fmt: skip
@pytest.mark.parametrize("steps", [0, 3])
def test_the_next_update_is_the_same(optimizer, options, kind, steps):
    """Epsilon is large, as the frameworks add it at different places."""
    if not isinstance(optimizer, str):  # one of MXNet's own
        optimizer, options = optimizer(**options), None
    net, trainer, module = dense_pair(optimizer, options, steps)
    others = {"amsgrad": True} if kind is not torch.optim.SGD else {"maximize": True}
    torch_optimizer, _ = handed_over(net, trainer, module, kind, mx.nd.array(DATA), **others)
    step(net, trainer)
    torch_step(module, torch_optimizer)
    for own, other in ((net.weight, module.weight), (net.bias, module.bias)):
        np.testing.assert_allclose(own.data().asnumpy(), other.detach().numpy(), rtol=1e-5)


def test_a_stock_trainer_and_a_rate_from_a_schedule():
    net = nn.Dense(2, in_units=3)
    net.initialize(mx.init.Normal(0.5))
    schedule = mx.lr_scheduler.FactorScheduler(step=2, factor=0.5, base_lr=0.02)
    options = {"momentum": 0.5, "lr_scheduler": schedule, "learning_rate": 0.02}
    trainer = gluon.Trainer(net.collect_params(), "sgd", options)
    for _ in range(4):
        with autograd.record():
            loss = net(mx.nd.array(DATA)).square().sum(axis=1)
        loss.backward()
        trainer.step(len(DATA))
    state = training_state(trainer, net, T.Linear(3, 2))
    group = state["optimizer"]["param_groups"][0]
    assert (group["lr"], group["momentum"], state["scaler"]) == (trainer.learning_rate, 0.5, {})
    assert group["lr"] < 0.02
    (momentum,) = (s for s in trainer._updaters[0].states.values() if s.shape == (2, 3))
    buffer = state["optimizer"]["state"][0]["momentum_buffer"].numpy()
    np.testing.assert_allclose(buffer, -momentum.asnumpy() / group["lr"], rtol=1e-6)


def test_states_have_the_layout_of_their_weights():
    """Columns are permuted."""
    data = mx.nd.random.normal(shape=(3, 2, 3, 4))
    net = amp.cast(nn.Dense(5, in_units=24), "float16")
    net.initialize(mx.init.Normal(0.3))
    trainer = amp.Trainer(net.collect_params(), "adam", loss_scale=8)
    with autograd.record():
        loss = net(data).square().sum(axis=1)
    trainer.backward(loss)
    trainer.step(3)
    module = Module(lambda m, x: m.out(x.permute(0, 2, 3, 1).flatten(1)), out=T.Linear(24, 5))
    optimizer = torch.optim.Adam(module.parameters())
    state = amp.torch_training_state(trainer, net, module, optimizer, data)
    (mean,) = (s[1] for s in trainer.updaters[0].states.values() if s[1].shape == (5, 24))
    expected = mean.asnumpy().reshape(5, 2, 3, 4).transpose(0, 2, 3, 1).reshape(5, 24)
    entry = state["optimizer"]["state"][0]
    np.testing.assert_array_equal(entry["exp_avg"].numpy(), expected)
    assert entry["step"] == 1
    scaler = {"scale": 8.0, "growth_factor": 1.0, "backoff_factor": 1.0, "growth_interval": 2000}
    assert state["scaler"] == {**scaler, "_growth_tracker": 0}


def test_rates_of_their_own_need_a_group_of_their_own():
    net, trainer, module = dense_pair("sgd", {"learning_rate": 0.1, "wd": 0.01}, steps=0)
    net.bias.lr_mult, net.bias.wd_mult = 2.0, 0.0
    with pytest.raises(UsageError, match="of bias differs .* a group of their own"):
        training_state(trainer, net, module)
    groups = [{"params": [module.weight]}, {"params": [module.bias]}]
    state = training_state(trainer, net, module, params=groups)
    found = state["optimizer"]["param_groups"]
    assert [(one["lr"], one["weight_decay"]) for one in found] == [(0.1, 0.01), (0.2, 0.0)]
    net, trainer, module = dense_pair("sgd", {"learning_rate": 0.1, "momentum": 0.9})
    net.bias.lr_mult = 0.0
    groups = [{"params": [module.weight]}, {"params": [module.bias]}]
    state = training_state(trainer, net, module, params=groups)
    assert not state["optimizer"]["state"][1]["momentum_buffer"].any()


@pytest.mark.parametrize("optimizer, options, kind, sentence", [
    ("lamb", {}, torch.optim.AdamW, "PyTorch has no LAMB that makes its update"),
    ("lars", {}, torch.optim.SGD, "PyTorch has no LARS"),
    ("lbsgd", {}, torch.optim.SGD, "PyTorch has no LBSGD"),
    ("rmsprop", {}, torch.optim.RMSprop, "has no RMSProp that"),
    ("adam", {}, torch.optim.AdamW, r"AdamW does not continue Adam: create a torch\.optim\.Adam"),
    ("adamw", {}, torch.optim.Adam, r"Adam does not continue AdamW: create a torch\.optim\.AdamW"),
    ("sgd", {"clip_gradient": 1.0}, torch.optim.SGD, "has no clip_gradient: call torch.nn.utils"),
    ("sgd", {"learning_rate": 0.0}, torch.optim.SGD, "learning rate is 0"),
])  # fmt: skip
def test_what_pytorch_cannot_continue_is_a_sentence(optimizer, options, kind, sentence):
    net, trainer, module = dense_pair(optimizer, options, steps=0)
    with pytest.raises(UsageError, match=sentence):
        amp.torch_training_state(
            trainer, net, module, kind(module.parameters(), lr=1), mx.nd.array(DATA)
        )


def test_parameters_that_one_side_alone_trains():
    net, trainer, module = dense_pair("sgd", {}, steps=0)
    with pytest.raises(UsageError, match=r"bias of the net has no trained parameter"):
        training_state(trainer, net, module, params=[module.weight])
    more = [*module.parameters(), T.Parameter(torch.ones(3))]
    with pytest.raises(UsageError, match=r"parameter of \(3,\) that is not the module's"):
        training_state(trainer, net, module, params=more)
    with pytest.raises(TypeError, match="got a Dense and a SGD, expected a Trainer"):
        training_state(net, net, module)
    net.weight.grad_req = "null"
    with pytest.raises(UsageError, match=r"weight cannot be trained as here.*does not train"):
        training_state(trainer, net, module)
    module.weight.requires_grad_(False)
    assert list(training_state(trainer, net, module)["optimizer"]["state"]) == []
    no_bias = nn.Dense(2, use_bias=False, in_units=3)
    no_bias.initialize()
    trainer = amp.Trainer(no_bias.collect_params(), "sgd")
    with pytest.raises(UsageError, match="bias cannot be .* the net has no such parameter"):
        training_state(trainer, no_bias, T.Linear(3, 2))


def test_norms_that_train_other_numbers():
    data = mx.nd.random.normal(shape=(4, 6, 5))
    for layer, other, sentence in (
        (nn.BatchNorm(scale=False, in_channels=6), T.BatchNorm1d(6), "it is constant in the net"),
        (nn.GroupNorm(2), T.GroupNorm(2, 6), "one value for each group"),
    ):
        layer.initialize()
        layer(data)
        trainer = amp.Trainer(layer.collect_params(), "sgd")
        with pytest.raises(UsageError, match=sentence):
            training_state(trainer, layer, other, data)


def test_weights_that_are_tied_on_one_side():
    shared = nn.Dense(3, in_units=3)
    net = nn.HybridSequential()
    net.add(shared, nn.Dense(3, in_units=3, params=shared.params))
    net.initialize(mx.init.Normal(0.5))
    module = T.Sequential(T.Linear(3, 3), T.Linear(3, 3))
    trainer = amp.Trainer(net.collect_params(), "sgd", {"momentum": 0.9})
    with pytest.raises(UsageError, match=r"1\.weight .* has one parameter for it and 0\.weight"):
        training_state(trainer, net, module)
    step(net, trainer)
    state = training_state(trainer, net, T.Sequential(module[0], module[0]))
    assert len(state["optimizer"]["state"]) == 2


def test_the_scale_of_a_search_and_a_check_without_a_scale():
    for loss_scale, expected in (
        ({"loss_scale": "dynamic"}, (65536.0, 2.0, 0.5, 2000, 2)),
        ({"check_finite": True}, (1.0, 1.0, 1.0, 2000, 0)),
    ):
        net, trainer, module = dense_pair("sgd", {"learning_rate": 1e-3}, steps=2, **loss_scale)
        state = training_state(trainer, net, module)
        assert tuple(state["scaler"].values()) == expected
