# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # From float32 to float16 in five lines
#
# A float16 number takes half the memory of a float32 one, and Tensor Cores
# multiply it many times as fast. But its range is smaller, and its steps are
# larger. This notebook shows range and precision, trains a network in both
# formats, breaks the float16 training in three ways, and repairs it.

# %% tags=["parameters"] short={"EPOCHS": 4, "SLOW_EPOCHS": 6}
SEED = 0
EPOCHS = 12  # of the digits
SLOW_EPOCHS = 60  # with a learning rate of 0.0001
BATCH = 64

# %%
# %matplotlib inline
import textwrap
import warnings

import matplotlib.pyplot as plt
import numpy as np

import gluon_amp as amp  # (1) before mxnet
from gluon_amp.inspection import figures
from gluon_amp.training.data.digits import load_digits

import mxnet as mx
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn

plt.style.use(figures.STYLE)
FLOAT32, FLOAT16 = figures.COLOURS["float32"], figures.COLOURS["float16"]
BROKEN, SUPPORT, OTHER = figures.BROKEN, figures.SUPPORT, figures.OTHER

# %% [markdown]
# ## Three formats
#
# The exponent's bits give the range, the significand's bits the precision.
# bfloat16 has the range of float32; float16 has three more bits of precision.

# %%
amp.float_table()

# %%
FIELDS = (SUPPORT, OTHER, figures.BAND)  # sign, exponent, significand
figure, axes = plt.subplots(3, 1, figsize=(9, 2.6))
for axis, dtype in zip(axes, ("float32", "float16", "bfloat16")):
    number = amp.bits(0.1, dtype)
    fields = zip((number.sign, number.exponent, number.significand), FIELDS)
    digits = [(digit, colour) for field, colour in fields for digit in field]
    for place, (digit, colour) in enumerate(digits):
        axis.add_patch(plt.Rectangle((place, 0), 1, 1, facecolor=colour, edgecolor="white"))
        axis.text(place + 0.5, 0.45, digit, ha="center", va="center")
    axis.text(len(digits) + 0.5, 0.45, f"{number.value:.10f}", va="center")
    axis.set(xlim=(0, 40), ylim=(0, 1), xticks=[], yticks=[])
    axis.set_ylabel(dtype, rotation=0, ha="right", va="center")
    axis.spines[:].set_visible(False)
handles = [plt.Rectangle((0, 0), 1, 1, color=colour) for colour in FIELDS]
figure.legend(handles, ("sign", "exponent", "significand"), frameon=False, loc=(0.68, 0.15))
figure.suptitle("The number 0.1, as it is stored")
plt.show()

# %% [markdown]
# A value that does not fit becomes infinity, zero, or the nearest neighbour:

# %%
for number in (65504, 65520, 2**-24, 2**-25, 2049):
    print(f"{number:<13.8g} {amp.bits(number)}")
assert amp.bits(65520).value == float("inf")  # overflow
assert amp.bits(2**-25).value == 0  # underflow
assert amp.bits(2049).value == 2048  # above 2048, odd numbers are gone

# %% [markdown]
# ## The data and the network
#
# The data are scikit-learn's handwritten digits. The network has three dense
# layers. It has no normalisation, which would hide the effects shown here.

# %%
(train_images, train_labels), (val_images, val_labels) = load_digits()


def rows(images):
    """Grey levels of -1 to 1, a row of 256 pixels for each image."""
    return images[:, ::2, ::2].reshape(len(images), -1).astype("float32") / 127.5 - 1


def network(*last):
    net = nn.HybridSequential()
    net.add(nn.Dense(64, activation="relu"), nn.Dense(64, activation="relu"), nn.Dense(10), *last)
    mx.random.seed(SEED)
    net.initialize(mx.init.Xavier())
    net(nd.zeros((1, 256)))  # the layers learn their shapes
    return net


figure, axes = plt.subplots(1, 10, figsize=(9, 1.4))
for digit, axis in enumerate(axes):
    axis.imshow(np.pad(train_images[train_labels == digit][0], 4), cmap="gray_r")
    axis.axis("off")
figure.suptitle(f"One of each class: {len(train_images)} train, {len(val_images)} validate")
plt.show()

# %% [markdown]
# ## In float32 first
#
# This is MXNet's usual loop, without gluon_amp.


# %%
def batches(epoch):
    """The training images of an epoch in a random order, BATCH at a time."""
    order = np.random.RandomState([SEED, epoch]).permutation(len(train_images))
    for start in range(0, len(order), BATCH):
        batch = order[start : start + BATCH]
        yield nd.array(rows(train_images[batch])), nd.array(train_labels[batch])


def accuracy_of(net):
    """Top-1 accuracy in percent, of the validation images."""
    answers = net(nd.array(rows(val_images))).argmax(axis=1).asnumpy()
    return 100 * (answers == val_labels).mean()


loss_fn = gluon.loss.SoftmaxCrossEntropyLoss()
sgd = {"learning_rate": 0.02, "momentum": 0.9}

# %%
net = network()
net.hybridize()
trainer = gluon.Trainer(net.collect_params(), "sgd", sgd)
for epoch in range(EPOCHS):
    for images, labels in batches(epoch):
        with autograd.record():
            loss = loss_fn(net(images), labels)
        loss.backward()
        trainer.step(len(images))
print(f"float32: {accuracy_of(net):.1f} %")

# %% [markdown]
# ## In float16: five lines
#
# The import above is line 1. The other four are marked.
#
# `amp.cast` gives matrix products float16 weights, and keeps in float32 what
# needs float32. `amp.Trainer` keeps a float32 *master* of each float16 weight
# and scales the loss. A dynamic scale starts high. If the first gradients
# overflow, the trainer repeats the pass at a lower scale.
#
# On a CPU float16 is emulated: every result is rounded to float16.

# %%
net = network()
amp.cast(net, "float16")  # (2)
net.hybridize()
trainer = amp.Trainer(net.collect_params(), "sgd", sgd, loss_scale="dynamic")  # (3)
for epoch in range(EPOCHS):
    for images, labels in batches(epoch):
        with autograd.record():
            loss = loss_fn(net(images), labels)
        trainer.backward(loss)  # (4)
        trainer.step(len(images))  # (5)
print(f"float16: {accuracy_of(net):.1f} %, loss scale {trainer.loss_scale.scale:g}")

# %% [markdown]
# The function below is the same loop. Its arguments choose what is broken, and
# it records the losses.


# %%
def train(
    policy="float16",
    loss_scale="dynamic",
    masters=True,
    weight=1.0,
    rate=0.02,
    epochs=EPOCHS,
    last=(),
):
    net = network(*last)
    amp.cast(net, policy)
    net.hybridize()
    loss_fn = gluon.loss.SoftmaxCrossEntropyLoss(weight=weight, from_logits=bool(last))
    params, sgd = net.collect_params(), {"learning_rate": rate / weight, "momentum": 0.9}
    if masters:
        trainer = amp.Trainer(params, "sgd", sgd, loss_scale=loss_scale)
    else:
        warnings.filterwarnings("ignore", "This Trainer trains in float16")  # as is wanted here
        trainer = gluon.Trainer(params, "sgd", sgd)  # MXNet's own
    losses, accuracy = [], []
    for epoch in range(epochs):
        for images, labels in batches(epoch):
            with autograd.record():
                loss = loss_fn(net(images), labels)
            if masters:
                trainer.backward(loss)
            else:
                loss.backward()
            trainer.step(len(images))
            losses.append(loss.mean().asscalar() / weight)
        accuracy.append(accuracy_of(net))
    return {"net": net, "trainer": trainer, "loss": losses, "accuracy": accuracy}


float32 = train("float32", loss_scale=None)
float16 = train("float16", loss_scale="dynamic")
print(f"loss scale: {float16['trainer'].loss_scale.scale:g}")
print(amp.describe(float16["net"], nd.array(rows(val_images))))


# %%
def draw(title, runs):
    """Draw loss and accuracy of runs, the first of them as a broad line below the others."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 2.9), constrained_layout=True)
    lines = (
        {"color": FLOAT32, "lw": 6, "alpha": 0.4},
        {"color": FLOAT16, "lw": 2},
        {"color": BROKEN, "ls": "--", "lw": 2},
    )
    for (label, run), line in zip(runs.items(), lines):
        steps = len(run["loss"]) // len(run["accuracy"])  # in an epoch
        smooth = np.convolve(run["loss"], np.ones(steps) / steps, "valid")
        left.plot(1 + np.arange(len(smooth)) / steps, smooth, label=label, **line)
        right.plot(range(1, len(run["accuracy"]) + 1), run["accuracy"], **line)
    left.set(xlabel="epoch", ylabel="loss, mean of an epoch", ylim=(0, None))
    right.set(xlabel="epoch", ylabel="top-1 accuracy in %", ylim=(0, 100))
    left.legend(frameon=False)
    figure.suptitle(title)
    plt.show()


draw("One run of each: float32 and float16", {"float32": float32, "float16": float16})
assert abs(float16["accuracy"][-1] - float32["accuracy"][-1]) < 5

# %% [markdown]
# ## Where gradients live
#
# Gradients are small, and smaller still if the loss has a small weight in a sum
# of losses. Here the weight is 2^-24. The figure follows
# [Micikevicius et al., ICLR 2018](https://arxiv.org/abs/1710.03740), with the
# gradients of this float32 network. Values to the left of float16's range
# become zero. A loss scale moves all gradients to the right.

# %%
WEIGHT, SCALE = 2.0**-24, 2.0**16
data = nd.array(rows(train_images[::22]))
labels = nd.array(train_labels[::22])


def gradients(net, weight=1.0):
    with autograd.record():
        loss = gluon.loss.SoftmaxCrossEntropyLoss(weight=weight)(net(data), labels)
    loss.backward()
    return np.concatenate([p.grad().asnumpy().ravel() for p in net.collect_params().values()])


def shares(values):
    """Percent of values that float16 makes zero, and that it keeps with fewer digits."""
    half = np.abs(values.astype("float16"))
    return 100 * (half == 0).mean(), 100 * ((half > 0) & (half < 2**-14)).mean()


everything = gradients(float32["net"], WEIGHT)
found = everything[everything != 0]
figure, axis = plt.subplots(figsize=(9, 3.6))
bins = np.arange(-60, 20)
for factor, colour, label in ((1, BROKEN, "no scale"), (SCALE, FLOAT16, "loss scale 2^16")):
    height = np.histogram(np.log2(np.abs(found * factor)), bins)[0] * 100 / len(found)
    lost, subnormal = shares(found * factor)
    label = f"{label}: {lost:.0f} % zero, {subnormal:.0f} % subnormal"
    axis.bar(bins[:-1] + 0.5, height, width=0.9, color=colour, alpha=0.85, label=label)
top = 1.5 * axis.get_ylim()[1]
ranges = (
    ("becomes zero", -60, -25, 0.7),
    ("subnormal", -25, -14, 0.35),
    ("normal", -14, 16, 0),
    ("infinite", 16, 24, 0.7),
)
for text, left, right, alpha in ranges:
    axis.axvspan(left, right, color=figures.BAND, alpha=alpha, zorder=0)
    axis.text((left + right) / 2, 0.97 * top, text, ha="center", va="top")
axis.set(xlim=(-60, 24), ylim=(0, top), xlabel="log2 of |gradient|", ylabel="gradients in %")
axis.legend(frameon=False, loc="upper left", bbox_to_anchor=(0, 0.92))
axis.set_title("In float16's range, only with a loss scale")
plt.show()
print(f"{100 * (everything == 0).mean():.0f} % are 0 in float32 too, and are not drawn.")
assert shares(found * SCALE)[0] < shares(found)[0] / 2

# %% [markdown]
# ## Break it: no loss scale
#
# With this weight, and a learning rate that is higher by the same factor, most
# float16 gradients are zero or have one bit. In float32 the weight has no
# effect.

# %%
no_scale = train(loss_scale=None, weight=WEIGHT)
scale = train(loss_scale="dynamic", weight=WEIGHT)
scale_float32 = train("float32", None, weight=WEIGHT)
draw(
    "A loss of weight 2^-24",
    {
        "float32": scale_float32,
        "dynamic scale": scale,
        "no scale": no_scale,
    },
)
assert scale["accuracy"][-1] > no_scale["accuracy"][-1] + 20

# %% [markdown]
# ## Break it: no masters
#
# With a learning rate of 0.0001 an update is much smaller than its weight.
# float16 has 11 bits: where the update is below half the distance to the next
# number, the sum is the weight itself.

# %%
print("0.1 - 0.00001 == 0.1 in float16:", np.float16(0.1) - np.float16(1e-5) == np.float16(0.1))

RATE = 1e-4
net = network()
update = RATE * gradients(net) / len(data)
weight = np.concatenate([p.data().asnumpy().ravel() for p in net.collect_params().values()])
weight, update = weight[update * weight != 0], update[update * weight != 0]
stays = weight.astype("float16") - update.astype("float16") == weight.astype("float16")

figure, axis = plt.subplots(figsize=(9, 3.6))
for which, colour, label in ((stays, BROKEN, "stays"), (~stays, FLOAT16, "moves")):
    label = f"weight {label}: {100 * which.mean():.0f} %"
    axis.scatter(np.abs(weight[which]), np.abs(update[which]), s=4, color=colour, label=label, lw=0)
axis.plot([1e-5, 1], [1e-5 * 2**-11, 2**-11], color="black", lw=1, label="weight × 2^-11")
axis.set(xscale="log", yscale="log", xlim=(1e-5, 1), ylim=(1e-9, 1e-3))
axis.set(xlabel="|weight|", ylabel="|update|")
axis.legend(frameon=False, loc="upper left", markerscale=4)
axis.set_title("The first step, with a learning rate of 0.0001: most weights stay what they are")
plt.show()
assert stays.mean() > 0.5

# %% [markdown]
# A float32 master receives every update, and the float16 weight is its rounded
# copy. Without masters, only updates that momentum has made large enough have
# an effect. (MXNet warns about this; the warning is switched off here.)

# %%
warnings.filterwarnings("ignore", "Accumulating with float16")
slow = {"rate": RATE, "epochs": SLOW_EPOCHS}
no_masters = train(masters=False, **slow)
masters = train(**slow)
slow_float32 = train("float32", None, **slow)
draw(
    "A learning rate of 0.0001",
    {"float32": slow_float32, "masters": masters, "no masters": no_masters},
)
assert masters["loss"][-1] < no_masters["loss"][-1]


# %% [markdown]
# ## Break it: softmax in float16
#
# Some operators fail in float16 at any scale. This network ends with the
# logarithm of a softmax, written as two operators. A probability below
# 2^-25 is zero in float16, its logarithm is minus infinity, and the next update
# writes NaN into all weights. The policy keeps softmax and logarithms in
# float32. Here both are pinned to float16 to break the training. The curve ends
# where the loss is NaN.


# %%
def log_of_softmax(F, x):
    return F.log(F.softmax(x))


policy = amp.Policy.parse("float16")
broken = policy.pin(ops=["softmax", "log"], dtype="float16")
settings = {"last": [nn.HybridLambda(log_of_softmax)]}
bad_softmax = train(broken, None, **settings)
softmax = train(policy, **settings)
softmax_float32 = train("float32", None, **settings)
draw(
    "Softmax within the network",
    {"float32": softmax_float32, "policy's choice": softmax, "softmax in float16": bad_softmax},
)
print(amp.describe(softmax["net"], nd.array(rows(val_images))))
assert softmax["accuracy"][-1] > bad_softmax["accuracy"][-1] + 20

# %% [markdown]
# With a dynamic scale no infinity reaches the weights: the steps are skipped.
# When no lower scale helps, the trainer stops and names the block. Here the
# lowest scale is 1, not the default of 2^-24, so that it stops earlier.

# %%
try:
    train(broken, amp.DynamicLossScale(2.0**16, min_scale=1), **settings)
    raise AssertionError("it went on")
except FloatingPointError as error:
    print(textwrap.fill(str(error), 78))

# %% [markdown]
# ## Results

# %%
table = (
    ("weight 1, learning rate 0.02", None, float16, float32),
    ("loss weight 2^-24, no scale", no_scale, scale, scale_float32),
    ("learning rate 0.0001, no masters", no_masters, masters, slow_float32),
    ("softmax in float16, no scale", bad_softmax, softmax, softmax_float32),
)
print(f"{'top-1 accuracy in %':<34} {'broken':>8} {'float16':>8} {'float32':>8}")
for name, *runs in table:
    shown = ["" if run is None else f"{run['accuracy'][-1]:.1f}" for run in runs]
    print(f"{name:<34} " + " ".join(f"{text:>8}" for text in shown))

# %% [markdown]
# MXNet's float16 FAQ has *published* results for ResNet-50 on ImageNet with 8
# V100. They were not measured here:
#
# | trained in | top-1 in % | hours |
# | :--- | ---: | ---: |
# | float32 | 76.18 | 11.8 |
# | float16 | 76.34 | 7.3 |
# | float16, twice the batch | 76.29 | 6.5 |
#
# Single runs cannot show whether float16 is better by 0.16 points. The choice
# of the validation images alone gives each accuracy a standard error, and
# another seed gives other weights.

# %%
for name, accuracy, images in (("ImageNet", 0.7618, 50_000), ("digits", 0.96, len(val_images))):
    error = 100 * np.sqrt(accuracy * (1 - accuracy) / images)
    print(f"{name}: {images} images, standard error {error:.2f} points")

# %% [markdown]
# Experiments with many seeds are in
# [the digits in three dtypes](../docs/results.md#the-digits-float16-and-bfloat16) and
# [what masters and loss scaling are for](../docs/results/ablation.md).
#
# ## Summary
#
# - float16 ends at 65504 above and at 2^-24 below, and has 11 bits.
# - A loss scale moves gradients into that range; a dynamic one finds it.
# - float32 masters keep updates that float16 weights would lose.
# - The policy computes sums, exponentials and norms in float32.
# - The code is one `cast`, one `Trainer` and two calls in the loop.
#
# ## Exercises
#
# 1. Set `WEIGHT` to 2^-20. Is the scale still needed? What do the histogram and
#    `amp.gradient_report` show?
# 2. Train with the policy `bfloat16`, a weight of 2^-24 and no scale. Why does it
#    work?
# 3. At which learning rate do masters begin to matter?
# 4. Let the first layer divide each image of 0 to 255 by its length, the root
#    of a sum of squares, and pin `square` and `sum` to float16. What does the
#    network learn? What does `amp.diagnose` say, and why?

# %%
print(str(amp.doctor()).partition("\n\n")[0])
print("gluon_amp", amp.__version__)
