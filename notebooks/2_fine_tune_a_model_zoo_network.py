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
# # Fine-tune a Model Zoo network
#
# A MobileNet from MXNet's Model Zoo is trained on the digits 0 to 4 and then
# fine-tuned to classify 5 to 9 with few images of each. The notebook checks the
# data, replaces the head, and compares three ways to train, each in float32 and
# in float16. It ends with the worst confusions and the export of a plain
# float32 model.

# %% tags=["parameters"] short={"SEEDS": 1, "SOURCE_EPOCHS": 1, "EPOCHS": 2}
SEED = 0
SEEDS = 3  # runs for each mean
MODEL = "mobilenet0.25"
SOURCE, TARGET = range(5), range(5, 10)
PER_CLASS = 20  # training images of each target digit
SOURCE_EPOCHS, SOURCE_RATE, SOURCE_BATCH = 6, 0.1, 20
EPOCHS, RATE, BATCH = 10, 0.05, 20
HEAD_RATE = 2  # the new head learns so many times faster

# %%
# %matplotlib inline
import platform
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

import gluon_amp as amp
from gluon_amp.inspection import figures

import mxnet as mx
from mxnet import autograd, gluon, nd
from mxnet.gluon.model_zoo import vision

plt.style.use(figures.STYLE)

# %% [markdown]
# ## Look at the data first
#
# Wrong data are the usual cause of bad fine-tuning, and most faults are
# visible. The digits are scikit-learn's, of 8×8 pixels. One image in five is
# used for validation.

# %%
everything = load_digits()
order = np.random.RandomState(SEED).permutation(len(everything.target))
validating = np.arange(len(order)) % 5 == 0
images, labels = (part[order[~validating]] for part in (everything.images, everything.target))
val_images, val_labels = (
    part[order[validating]] for part in (everything.images, everything.target)
)


def choose(images, labels, digits, per_class=None):
    """Pictures of some digits, at most so many of each, and labels that count from 0."""
    picked = np.concatenate([np.flatnonzero(labels == digit)[:per_class] for digit in digits])
    return images[picked], labels[picked] - digits[0]


source, source_val = choose(images, labels, SOURCE), choose(val_images, val_labels, SOURCE)
target = choose(images, labels, TARGET, PER_CLASS)
target_val = choose(val_images, val_labels, TARGET)

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), gridspec_kw={"width_ratios": [3, 2]})
framed = np.pad(target[0], ((0, 0), (1, 1), (1, 1)))  # 10×10
rows = [np.hstack(framed[target[1] == label][:10]) for label in range(len(TARGET))]
left.imshow(np.vstack(rows), cmap="gray_r")
left.set_xticks([])
left.set_yticks(np.arange(len(TARGET)) * 10 + 5, [str(digit) for digit in TARGET])
left.grid(False)
left.set(title="Ten training images of each class", ylabel="label")
counts = [np.bincount(part[1], minlength=5) for part in (source, target, target_val)]
right.bar(SOURCE, counts[0], color=figures.SUPPORT, label="to pretrain on")
right.bar(np.array(TARGET) - 0.2, counts[1], width=0.4, color="black", label="to fine-tune on")
right.bar(
    np.array(TARGET) + 0.2, counts[2], width=0.4, color=figures.OTHER, label="to validate with"
)
right.set(xticks=range(10), xlabel="digit", ylabel="images", title="Images of each class")
right.set_ylim(0, 240)
right.legend(fontsize=9)
figure.tight_layout()
plt.show()

# %% [markdown]
# Count what can be counted: both parts have the same classes, the labels are
# 0, 1, 2 and so on without a gap, and no image is in both parts.

# %%
known = {image.tobytes() for image in target[0]}
twice = sum(image.tobytes() in known for image in target_val[0])
for name, (_, part) in (("training", target), ("validation", target_val)):
    found = np.unique(part)
    print(f"{name:10} {len(part):4} images, labels {found.min()} to {found.max()}")
    assert list(found) == list(range(len(TARGET)))
print(f"{twice} images are in both parts")
assert twice == 0

# %% [markdown]
# ## What goes wrong with Caltech-101 and Caltech-256
#
# A label is the rank of a folder's name. One folder more or fewer shifts every
# label after it, and a network learns from wrong labels without complaint.
#
# - Caltech-256 has 257 folders: the last, `257.clutter`, is everything else.
#   A network with 256 outputs is always wrong on clutter, which is 5 % of the
#   images. Use 257 classes, or leave the clutter out.
# - Caltech-101 has 102 folders. `BACKGROUND_Google` is the clutter there. It
#   is sorted first, so it shifts *all* labels.
# - Not everything is an image: `198.spider/RENAME2` is none, and
#   `056.dog/greg/vision309` is an empty folder. Readers that count every
#   folder as a class, hidden ones too, find classes that do not exist.
# - There is no official split. Results from a split without a seed cannot be
#   repeated or compared.
#
# `scripts/prepare_caltech.py` handles all of these. Packed data contain the
# names of their classes, so two parts with different classes are refused.
#
# ## A pretrained network
#
# With an internet connection, one line downloads the Model Zoo's weights for
# ImageNet:
#
#     net = vision.get_model("mobilenet0.25", pretrained=True)
#
# This notebook downloads nothing, so it trains the network on the digits 0 to 4
# first.


# %%
def batch_of(images, generator=None):
    """Standardised RGB, 64×64 (a MobileNet halves them five times); shifted in training."""
    large = nd.contrib.BilinearResize2D(nd.array(images[:, None]), height=64, width=64)
    pixels = large.asnumpy() / 16
    if generator:
        for image in pixels:
            image[0] = np.roll(image[0], generator.integers(-4, 5, size=2), axis=(0, 1))
    return nd.broadcast_axis(nd.array((pixels - 0.305) / 0.324), axis=1, size=3)


def network(seed):
    mx.random.seed(seed)
    net = vision.get_model(MODEL, classes=5)
    net.initialize(mx.init.MSRAPrelu())
    net(nd.zeros((1, 3, 64, 64)))  # now all shapes are known, and all weights drawn
    return net


def train(net, data, val, epochs, rate, batch_size, seed, loss_scale=None, frozen=False):
    """Accuracies in percent by epoch, the causes of skipped steps, and the trainer."""
    net.hybridize(static_alloc=True)
    loss_fn = gluon.loss.SoftmaxCrossEntropyLoss()
    settings = {"learning_rate": rate, "momentum": 0.9, "wd": 1e-4}
    trainer = amp.Trainer(net.collect_params(), "sgd", settings, loss_scale=loss_scale)
    generator = np.random.default_rng(seed)
    step, steps = 0, epochs * -(-len(data[0]) // batch_size)
    accuracies, causes, pictures = [], [], batch_of(val[0])
    for _ in range(epochs):
        order = generator.permutation(len(data[0]))
        for start in range(0, len(order), batch_size):
            part = order[start : start + batch_size]
            warm = min(1, (step + 1) / 10)
            trainer.set_learning_rate(rate * warm * (1 + np.cos(np.pi * step / steps)) / 2)
            batch, truth = batch_of(data[0][part], generator), nd.array(data[1][part])
            with autograd.record(train_mode=not frozen):
                loss = loss_fn(net(batch), truth)
            trainer.backward(loss)
            report = trainer.step(len(part))
            if not report.applied:  # the network is as it was, so the cause can still be found
                causes.append(amp.diagnose(net, loss_fn, batch, truth, report.loss_scale))
            step += 1
        answers = net(pictures).argmax(axis=1).asnumpy()
        accuracies.append(100 * float((answers == val[1]).mean()))
    return accuracies, causes, trainer


pretrained = network(SEED)
recipe = (SOURCE_EPOCHS, SOURCE_RATE, SOURCE_BATCH, SEED)
learned, _, _ = train(pretrained, source, source_val, *recipe)
print(f"accuracy on the digits 0 to 4: {learned[-1]:.1f} %")

# %% [markdown]
# ## Replace the head
#
# The new network keeps the features. Its head is new, because the old head
# belongs to the old classes. A Model Zoo network has its features in
# `features` and its head in `output`.

# %%
folder = Path(tempfile.mkdtemp())
features = str(folder / "features.params")
pretrained.features.save_parameters(features)


def transplanted(seed):
    """A network with the features of the pretrained one, and its head's parameters."""
    net = network(seed)
    net.features.load_parameters(features)
    head = list(net.output.collect_params().values())
    for param in head:
        param.lr_mult = HEAD_RATE
    return net, head


net, head = transplanted(SEED)
size = sum(int(np.prod(param.shape)) for param in net.collect_params().values())
for param in head:
    print(f"{param.name.split('_', 1)[1]:14} {param.shape}")
print(f"{sum(int(np.prod(p.shape)) for p in head)} of {size} numbers are the head's")
assert np.array_equal(
    net.features[0].weight.data().asnumpy(), pretrained.features[0].weight.data().asnumpy()
)

# %% [markdown]
# ## Three ways, two dtypes
#
# - *frozen*: only the head learns. `autograd.record(train_mode=False)` does not
#   change the running statistics of BatchNorm.
# - *full*: all parameters learn, those of the head faster.
# - *scratch*: the same network from random weights, for comparison.
#
# Each runs in float32 and in float16 with the same seeds, so that both have the
# same head, batches and shifts. The dynamic loss scale starts at 16, not at
# 65536. The gradients are sums over a batch here, up to thousands, and a run of
# 50 steps should not lose any of them while the scale falls.

# %%
STARTS = ("frozen", "full", "scratch")
DTYPES = ("float32", "float16")


def fine_tune(start, dtype, seed):
    net = network(seed) if start == "scratch" else transplanted(seed)[0]
    if start == "frozen":
        net.features.collect_params().setattr("grad_req", "null")
    amp.cast(net, dtype)  # before the trainer is built
    scale = amp.DynamicLossScale(init_scale=16) if dtype == "float16" else None
    recipe = (EPOCHS, RATE, BATCH, seed, scale, start == "frozen")
    return (net, *train(net, target, target_val, *recipe))


runs = {
    (start, dtype): [fine_tune(start, dtype, seed) for seed in range(SEED, SEED + SEEDS)]
    for start in STARTS
    for dtype in DTYPES
}

# %%
figure, panels = plt.subplots(1, len(STARTS), figsize=(10, 3.6), sharey=True)
epochs = np.arange(1, EPOCHS + 1)
lines = {"float32": {"lw": 5, "alpha": 0.4}, "float16": {"lw": 1.8}}
for panel, start in zip(panels, STARTS):
    for dtype, line in lines.items():
        curves = np.array([run[1] for run in runs[start, dtype]])
        mean, low, high = curves.mean(axis=0), curves.min(axis=0), curves.max(axis=0)
        colour = figures.COLOURS[dtype]
        panel.plot(epochs, mean, color=colour, label=dtype, **line)
        panel.fill_between(epochs, low, high, color=colour, alpha=0.15, lw=0)
    panel.axhline(20, color=figures.SUPPORT, ls=":")
    panel.set(title=start, xlabel="epoch", ylim=(0, 100))
panels[0].annotate("guessing", (1, 15))
panels[0].set_ylabel("validation accuracy in %")
panels[-1].legend(loc="lower right")
figure.suptitle(f"{PER_CLASS} images of each class: mean, lowest and highest of {SEEDS} seeds")
figure.tight_layout()
plt.show()

# %% [markdown]
# The differences are taken seed by seed. With so few seeds and validation
# images they show whether training works, but no small difference. Training
# from scratch has not converged after 50 steps, so there the seed matters more
# than the dtype.

# %%
final = {key: np.array([run[1][-1] for run in found]) for key, found in runs.items()}
causes = {key: [one for run in found for one in run[2]] for key, found in runs.items()}
print("start      float32 in %  float16 in %  difference, mean ± sd  steps skipped")
for start in STARTS:
    wide, narrow = final[start, "float32"], final[start, "float16"]
    differs = narrow - wide
    print(
        f"{start:10} {wide.mean():12.1f}  {narrow.mean():12.1f}"
        f"  {differs.mean():+14.1f} ± {differs.std():.1f}  {len(causes[start, 'float16']):14}"
    )
if EPOCHS >= 10:  # the short setting is over before anything is learned
    assert final["full", "float32"].mean() > final["scratch", "float32"].mean() + 10
    assert final["full", "float32"].mean() > final["frozen", "float32"].mean()
    assert abs((final["full", "float16"] - final["full", "float32"]).mean()) < 10
assert all(np.isfinite(values).all() for values in final.values())

# %% [markdown]
# A step may still be skipped, mostly in training from scratch. A skipped step
# does not change the network, so `train` calls `amp.diagnose` after each. If it
# names a BatchNorm in the backward pass, look for a channel that is constant
# over the batch. There BatchNorm divides gradients by the root of its epsilon,
# 0.003, so a few hundred become more than 65504.

# %%
for start in STARTS:
    found = [f"{one.verdict} in {one.block} ({one.op})" for one in causes[start, "float16"]]
    print(f"{start:10}", "\n           ".join(found) or "no step lost")

# %% [markdown]
# ## The worst confusions
#
# These are the errors of the fully fine-tuned float16 network, and how sure it
# is of them.

# %%
net, _, _, trainer = runs["full", "float16"][0]
pictures = batch_of(target_val[0])
chances = nd.softmax(net(pictures)).asnumpy()
answers, truth = chances.argmax(axis=1), target_val[1]
matrix = np.zeros((5, 5), np.int64)
np.add.at(matrix, (truth, answers), 1)
errors = matrix - np.diag(np.diag(matrix))
for place in np.argsort(-errors, axis=None, kind="stable")[:3]:
    true, taken = divmod(int(place), len(TARGET))
    print(
        f"{errors[true, taken]} of {matrix[true].sum()} images of {TARGET[true]} "
        f"taken for {TARGET[taken]}"
    )

# %%
wrong = np.flatnonzero(answers != truth)
wrong = wrong[np.argsort(-chances[wrong].max(axis=1))][:8]
figure = plt.figure(figsize=(9, 3.8))
grid = figure.add_gridspec(2, 6, width_ratios=[1, 1, 1, 1, 0.35, 2.4])
panel = figure.add_subplot(grid[:, 5])
panel.imshow(matrix, cmap="Greys")
for (i, j), count in np.ndenumerate(matrix):
    light = count > matrix.max() / 2
    panel.text(j, i, count, ha="center", va="center", color="white" if light else "black")
panel.set_xticks(range(5), [str(digit) for digit in TARGET])
panel.set_yticks(range(5), [str(digit) for digit in TARGET])
panel.set(xlabel="taken for", ylabel="digit", title="Validation images")
panel.grid(False)
for place, index in enumerate(wrong):
    panel = figure.add_subplot(grid[divmod(place, 4)])
    panel.imshow(target_val[0][index], cmap="gray_r")
    panel.axis("off")
    true, taken = TARGET[truth[index]], TARGET[answers[index]]
    panel.set_title(
        f"{true}, taken for {taken}\n{100 * chances[index].max():.0f} % sure", fontsize=10
    )
figure.suptitle("The surest mistakes", x=0.3)
figure.tight_layout()
plt.show()

# %% [markdown]
# ## Export
#
# `net.export` writes a plain float32 model, from the float32 masters that the
# trainer holds; stock MXNet loads it on any device, without gluon_amp. With
# `remove_amp_cast=False` it writes the float16 model, for GPUs.

# %%
net.export(str(folder / "wide"))
net.export(str(folder / "narrow"), remove_amp_cast=False)
for name, file in (("float32", "wide"), ("float16", "narrow")):
    size = (folder / f"{file}-0000.params").stat().st_size
    print(f"{name}: {size / 1000:.0f} kB of parameters")

# %%
symbol = mx.sym.load(str(folder / "wide-symbol.json"))
data = mx.sym.var("data", dtype="float32")  # SymbolBlock.imports leaves the dtype open, and warns
loaded = gluon.SymbolBlock(symbol, data)
loaded.collect_params().load(str(folder / "wide-0000.params"))
assert {np.dtype(param.dtype).name for param in loaded.collect_params().values()} == {"float32"}
plain = loaded(pictures).asnumpy()
before = net(pictures).asnumpy()
amp.cast(net, "float32")  # the same masters, in the network itself
masters = net(pictures).asnumpy()
print(f"same bits as the masters: {np.array_equal(plain, masters)}")
print(f"float16 network: largest difference {np.abs(plain - before).max():.4f} of outputs")
agree = int((plain.argmax(axis=1) == before.argmax(axis=1)).sum())
print(f"same answer on {agree} of {len(before)} validation images")
assert np.allclose(plain, masters, rtol=1e-5, atol=1e-5)
assert agree >= 0.97 * len(before)

# %% [markdown]
# ## Summary
#
# - Count classes and images before training; Caltech shows how much can be
#   wrong in two well-known data sets.
# - Keep the features, add a new head, and let it learn faster. With few images
#   this is better than training from scratch, and full fine-tuning is better
#   than frozen features.
# - float16 needs only `amp.cast(net, "float16")` and `amp.Trainer`, also with
#   frozen features. In a short run, start the loss scale low.
# - float16 is emulated here: it has the roundings of float16, but its time is not
#   indicative of GPU speed.
# - The exported model is float32 and needs no gluon_amp.
#
# The same from the command line, with real data: `python scripts/fine_tune.py`,
# see [the guide](../docs/guide/fine_tune.md). Why the loss has a scale:
# [Watching loss scaling work](3_loss_scaling_seen.ipynb).
#
# ## Exercises
#
# 1. Set `PER_CLASS` to 5 and to 100, or `EPOCHS` to 30. When does training
#    from scratch catch up?
# 2. Start the loss scale at 65536. How many of the 50 steps are lost, and what
#    do they cost?
# 3. Take `MODEL = "mobilenetv2_0.25"`. What are the parameters of its head?
# 4. Train frozen features with `autograd.record()`. How do BatchNorm's
#    statistics change the features?

# %%
print("Python", platform.python_version())
print("MXNet", mx.__version__)
print("numpy", np.__version__)
machine = amp.doctor().machine
print("CPU", machine.cpu_name, "GPUs", [gpu.name for gpu in machine.driver.gpus] or "none")
print("gluon_amp", amp.__version__)
