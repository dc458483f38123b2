# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Which format does my network need?
#
# float16 has a small range, bfloat16 has low precision, and float8 has both
# limits. `amp.watch` samples a float32 training run. For each of these formats
# and every layer, it measures the share of values that would underflow to 0,
# the share that would overflow, and the rounding error of the rest. It does not
# change the training. Here it samples a network for handwritten digits and a
# small language model.

# %% tags=["parameters"] short={"STEPS": 40, "EVERY": 10, "FINAL": 60}
SEED = 0
STEPS = 240
EVERY = 20  # steps between samples
FINAL = 480  # of the trainings that test the answer
BATCH = 64

# %%
import platform
import tempfile
from pathlib import Path

import numpy as np
from IPython.display import Image

import gluon_amp as amp
from gluon_amp.training.data.digits import load_digits
from gluon_amp.training.data.text import CLASSES, open_text

import mxnet as mx
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn, rnn

FORMATS = ("float16", "bfloat16", "float8_e4m3", "float8_e5m2")
DIRECTIONS = ("forward", "data_gradient", "weight_gradient")
folder = Path(tempfile.mkdtemp())
loss_fn = gluon.loss.SoftmaxCrossEntropyLoss()

# %% [markdown]
# ## A network for digits
#
# Two convolutions, a norm and two dense layers. The loss is the mean over the
# batch, as most programs have it, so gradients are small.

# %%
(images, labels), (val_images, val_labels) = load_digits()


def pixels(of):
    return nd.array(of[:, None, ::2, ::2].astype(np.float32) / 255)


def digits_batches(steps):
    random = np.random.default_rng(SEED)
    for _ in range(steps):
        part = random.choice(len(images), BATCH)
        yield pixels(images[part]), nd.array(labels[part])


def digits_network():
    mx.random.seed(SEED)
    net = nn.HybridSequential()
    net.add(
        nn.Conv2D(16, 3, activation="relu"),
        nn.Conv2D(16, 3, strides=2, use_bias=False),
        nn.BatchNorm(),
        nn.Activation("relu"),
        nn.Dense(32, activation="relu"),
        nn.Dense(10),
    )
    net.initialize(mx.init.Xavier())
    return net


def train(net, batches, loss_scale, rate=0.1, watched=True):
    """Train a network in its present dtype; return its watch and the loss of each step."""
    settings = {"learning_rate": rate, "momentum": 0.9}
    trainer = amp.Trainer(net.collect_params(), "sgd", settings, loss_scale=loss_scale)
    losses = []
    watch = amp.watch(net, trainer, every=EVERY, what_if=FORMATS) if watched else None
    for data, label in batches:
        with autograd.record():
            loss = loss_fn(net(data), label).mean()
        trainer.backward(loss)
        trainer.step(1)
        losses.append(float(loss.asscalar()))
    if watch:
        watch.close()
    return watch, losses


# %%
unscaled, losses = train(digits_network(), digits_batches(STEPS), loss_scale=None)
unscaled.plot(folder / "unscaled.png", "float16", "digits without a loss scale")
print(f"loss {losses[0]:.2f} at first, {np.mean(losses[-10:]):.2f} in the last steps")
Image(folder / "unscaled.png")

# %% [markdown]
# Each row is a layer, and each column is a sampled step. The darker the blue,
# the more values would become 0; the scale is logarithmic, so 1 % is visible.
# Outputs fit into float16. Gradients do not, and they shrink as the network
# learns. The map shows only the largest parameter of a layer. The table covers
# all formats: the shares in the worst tensor, averaged over the samples, and the
# median relative error.


# %%
def table(watch):
    """Print underflow, overflow and error by format and direction, and return them."""
    results = {}
    print(f"{'':28}underflow  {'in':16}{'overflow':>10}{'error':>9}")
    for name in FORMATS:
        for direction in DIRECTIONS:
            tensors = {}
            for row in watch.rows:
                if row.direction == direction:
                    place = f"{row.layer} {row.tensor}"
                    tensors.setdefault(place, []).append(row.formats[name])
            lost = {at: np.mean([e.underflow for e in effects]) for at, effects in tensors.items()}
            worst = max(lost, key=lost.get)
            overflow = max(np.mean([e.overflow for e in effects]) for effects in tensors.values())
            error = np.median([e.error for effects in tensors.values() for e in effects])
            results[name, direction] = lost[worst], overflow, error
            print(
                f"{name:12}{direction:16}{lost[worst]:9.2%}  {worst if lost[worst] else '':16}"
                f"{overflow:10.2%}{error:9.2%}"
            )
    return results


alone = table(unscaled)
gradients = DIRECTIONS[1:]
assert all(alone["bfloat16", direction][0] == 0 for direction in DIRECTIONS)
assert alone["float16", "forward"][0] < 0.01 < alone["float16", "data_gradient"][0]

# %% [markdown]
# ## What a loss scale changes
#
# Gradients include the loss scale. Here is the same training with a scale of
# 2^14, still in float32. A power of two changes none of its digits.

# %%
scaled, scaled_losses = train(digits_network(), digits_batches(STEPS), loss_scale=2.0**14)
assert scaled_losses == losses
scaled.plot(folder / "scaled.png", "float16", "digits with a loss scale of 2^14")
Image(folder / "scaled.png")

# %%
helped = table(scaled)
for name in FORMATS:
    before, after = (max(shares[name, d][0] for d in gradients) for shares in (alone, helped))
    print(f"{name}: up to {before:.2%} of gradients lost without the scale, {after:.2%} with it")
ratio = helped["bfloat16", "forward"][2] / helped["float16", "forward"][2]
print(f"the error of bfloat16 is {ratio:.1f} times that of float16")
assert helped["float16", "data_gradient"][0] < alone["float16", "data_gradient"][0] / 10
assert 6 < ratio < 10  # three bits
assert helped["float8_e5m2", "data_gradient"][0] < helped["float8_e4m3", "data_gradient"][0]

# %% [markdown]
# Here float16 needs the scale, and bfloat16 does not. But the error of bfloat16
# is about eight times as large, because it has three fewer bits. For the 8-bit
# formats, `watch` scales each tensor by its own power of two to the top of the
# range, so the loss scale makes no difference. Even so, E4M3 loses gradients,
# because they spread over more powers of two than it has. E5M2 loses fewer, at
# twice the error. This is why float8 recipes compute in E4M3 and keep gradients
# in E5M2.
#
# ## A language model
#
# An LSTM predicts the next character of the sources of Python.

# %%
text = open_text(100_000).train


def text_batches(steps):
    random = np.random.default_rng(SEED)
    for _ in range(steps):
        starts = random.integers(0, len(text) - 33, 32)
        lines = np.stack([text[start : start + 33] for start in starts])
        yield nd.array(lines[:, :-1]), nd.array(lines[:, 1:])


def language_model():
    mx.random.seed(SEED)
    net = nn.HybridSequential()
    net.add(
        nn.Embedding(CLASSES, 32),
        rnn.LSTM(64, layout="NTC", input_size=32),
        nn.Dense(CLASSES, flatten=False),
    )
    net.initialize(mx.init.Xavier())
    return net


model, _ = train(language_model(), text_batches(STEPS), loss_scale=None, rate=1.0)
model.plot(folder / "model.png", "float16", "language model without a loss scale")
Image(folder / "model.png")

# %%
of_model = table(model)
assert max(underflow for underflow, _, _ in of_model.values()) < 0.01

# %% [markdown]
# This network needs no loss scale: each format keeps more than 99 % of the
# values of every tensor, averaged over the samples. The formats differ only in
# their errors.
#
# ## The answer, tested
#
# `watch` measures the effect of one rounding. Only a training run shows whether
# the network still learns. These are the mean losses of the last 30 steps,
# with the policy and the loss scale of each column.


# %%
def final_loss(make, batches, policy, loss_scale, rate):
    net = make()
    if policy != "float32":
        amp.cast(net, policy)
    _, losses = train(net, batches(FINAL), loss_scale, rate, watched=False)
    return np.mean(losses[-30:])


CASES = (("float32", None), ("float16", 1), ("float16", 2.0**14), ("bfloat16", None))
print(f"{'':16}" + "".join(f"{f'{policy}, {scale or 1:g}':>16}" for policy, scale in CASES))
for title, make, batches, rate in (
    ("digits", digits_network, digits_batches, 0.1),
    ("language model", language_model, text_batches, 1.0),
):
    results = [final_loss(make, batches, policy, scale, rate) for policy, scale in CASES]
    print(f"{title:16}" + "".join(f"{loss:16.5f}" for loss in results))

# %% [markdown]
# Here float16 learns the digits even without the scale: gradients are lost late,
# when the loss is small. A dark map does not mean that training fails. One seed
# cannot show small differences; the tables in `docs/results` compare means over
# several. The method is the same for any network: watch a training run in
# float32, choose a format whose map stays pale, and train in it.

# %%
print("Python", platform.python_version())
print("MXNet", mx.__version__)
print("numpy", np.__version__)
machine = amp.doctor().machine
print("CPU", machine.cpu_name, "GPUs", [gpu.name for gpu in machine.driver.gpus] or "none")
print("gluon_amp", amp.__version__)
