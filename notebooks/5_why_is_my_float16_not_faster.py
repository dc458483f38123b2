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
# # Why is my float16 not faster?
#
# There are five reasons, and each has a tool that finds it:
#
# 1. The device has no fast kernels for the dtype.
# 2. Matrix products are too small a part of a step.
# 3. Their sizes miss the Tensor Cores.
# 4. The batch is too small.
# 5. Training waits for its images.
#
# The times are those of the CPU that ran this notebook; they change with the
# load of the machine. Numbers of GPUs are published ones, with their source.
#
# Speeds are relative to float32 under `amp.Trainer`; higher is better. This
# baseline has the same optimizer as the other dtypes. Its update is faster than
# that of stock float32, the main baseline of
# [docs/benchmarks](../docs/speed.md), so the relative speeds here
# are lower than those there.

# %% tags=["parameters"] short={"BATCHES": [1, 8], "REPEATS": 1, "PIXELS": 32, "INPUTS": [0.4, 4]}
SEED = 0
BATCHES = [1, 2, 4, 8, 16]
REPEATS = 5
PIXELS = 112
INPUTS = [0.4, 0.7, 1, 1.5, 2.5, 4]  # images/s of the input, over those of float32

# %%
import json
import platform
import statistics
import tempfile
import textwrap
import time
from itertools import chain, count, islice

import matplotlib.pyplot as plt
import numpy as np

import gluon_amp as amp
from gluon_amp.inspection import figures
from gluon_amp.training.data import TrainingBatches, open_synthetic

import mxnet as mx
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn
from mxnet.gluon.model_zoo import vision

# %matplotlib inline
plt.style.use(figures.STYLE)
mx.random.seed(SEED)

# %% [markdown]
# ## Reason 1: the device has no fast kernels for it
#
# `gluon-amp doctor` reports which dtypes a machine can run, and how. In
# a program, `amp.doctor()` returns the same.

# %%
report = amp.doctor().to_dict()
print(textwrap.fill("CPU: " + ", ".join([report["cpu"]["name"], *report["cpu"]["features"]]), 78))
for one in report["policies"]:
    head = f"{one['policy']:14} {'runs' if one['runs'] else 'CANNOT RUN':10} "
    print(textwrap.fill(head + one["how"], 78, subsequent_indent=" " * 26))

runs = {one["policy"]: one["runs"] for one in report["policies"]}
NAMES = {"float32": "float32", "bfloat16": "bfloat16", "float16": "float16 (emulated)"}
DTYPES = [dtype for dtype in NAMES if runs[dtype]]
if "bfloat16" not in DTYPES:
    print("bfloat16 cannot run on this CPU: its bars and lines are left out below.")
assert {"float32", "float16"} <= set(DTYPES)

# %% [markdown]
# On a CPU float16 is *emulated*: it has the roundings of float16, but its time is
# not indicative of GPU speed. The figures show it because many users first run
# it on a CPU. A CPU with AVX512_BF16 or AMX computes natively in bfloat16.
#
# ## Reason 2: products are too small a part of the step
#
# Only matrix products and convolutions have faster kernels. MXNet's profiler
# measures the time of every operator. Where the engine runs several operators
# at once the profiler sees one, so the bulk sizes are 1 here. The dtypes take
# turns, and the figure shows medians.

# %%
CROSS_ENTROPY = gluon.loss.SoftmaxCrossEntropyLoss()


def build(dtype, **bulk):
    """A ResNet-18 of that dtype: what makes one whole step with a batch."""
    net = vision.resnet18_v1(classes=1000)
    net.initialize(mx.init.Xavier())
    amp.cast(net, dtype)
    net.hybridize(static_alloc=True, static_shape=True, **bulk)
    trainer = amp.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.01, "momentum": 0.9})

    def step(images, labels):
        with autograd.record():
            loss = CROSS_ENTROPY(net(images), labels)
        trainer.backward(loss)
        trainer.step(len(images))
        nd.waitall()

    return step


def noise(batch):
    return nd.random.normal(shape=(batch, 3, PIXELS, PIXELS)), nd.zeros((batch,))


FOLDER = tempfile.TemporaryDirectory()
mx.profiler.set_config(
    profile_symbolic=True,
    profile_imperative=True,
    aggregate_stats=True,
    filename=f"{FOLDER.name}/profile.json",
)


def operators(step, data):
    """Milliseconds of each operator in one step."""
    mx.profiler.set_state("run")
    step(*data)
    mx.profiler.set_state("stop")
    profile = json.loads(mx.profiler.dumps(reset=True, format="json"))["Time"]["operator"]
    # WaitForVar and DeleteVariable are the engine's
    return {name: row["Total"] for name, row in profile.items() if "Var" not in name}


KINDS = {  # the first that has one of the words in the operator's name
    "casts, rounding": ("amp_cast", "round", "widen", "unblock"),
    "products": ("Convolution", "FullyConnected", "convolution", "dense"),
    "BatchNorm": ("BatchNorm", "amp_norm"),
    "ReLU, add, pool": ("Activation", "add", "Pooling", "pool", "pointwise", "sum"),
    "update, check, undo": ("update", "finite", "Concat"),
}
OTHERS = "loss and others"


def by_kind(milliseconds):
    found = dict.fromkeys([*KINDS, OTHERS], 0.0)
    for name, value in milliseconds.items():
        kinds = [kind for kind, words in KINDS.items() if any(word in name for word in words)]
        found[kinds[0] if kinds else OTHERS] += value
    return found


steps = {dtype: build(dtype, forward_bulk_size=1, backward_bulk_size=1) for dtype in DTYPES}
data, turns = noise(16), {dtype: [] for dtype in DTYPES}
for step in steps.values():
    for _ in range(3):  # the first steps allocate memory
        step(*data)
for _ in range(REPEATS):
    for dtype, step in steps.items():
        turns[dtype].append(by_kind(operators(step, data)))
profiles = {
    dtype: {
        kind: statistics.median(turn[kind] for turn in turns[dtype]) for kind in turns[dtype][0]
    }
    for dtype in DTYPES
}

print(f"{'ms a step of 16 images':22}", *(f"{NAMES[dtype]:>18}" for dtype in DTYPES))
for kind in [*KINDS, OTHERS]:
    print(f"{kind:22}", *(f"{profiles[dtype][kind]:18.2f}" for dtype in DTYPES))
print(f"{'all':22}", *(f"{sum(profiles[dtype].values()):18.2f}" for dtype in DTYPES))

# %% [markdown]
# The whole step gains less than its products. If products take the share *p* of
# a float32 step and become *k* times as fast, the step becomes
# 1 / (1 − *p* + *p*/*k*) times as fast (Amdahl's law), if all else stays the
# same.

# %%
# kinds of operators are no dtypes, so they have shades of grey; products are black
COLOURS = dict(zip([*KINDS, OTHERS], (figures.OTHER, "0", "0.35", "0.55", "0.7", "0.85")))
share = profiles["float32"]["products"] / sum(profiles["float32"].values())
faster = np.logspace(0, 5, 60, base=2)

figure, (left, right) = plt.subplots(
    1, 2, figsize=(10.5, 4.2), gridspec_kw={"width_ratios": (3, 2)}
)
start = dict.fromkeys(DTYPES, 0.0)
for kind, colour in COLOURS.items():
    values = [profiles[dtype][kind] for dtype in DTYPES]
    left.barh(
        [NAMES[d] for d in DTYPES], values, 0.6, list(start.values()), color=colour, label=kind
    )
    start = {dtype: start[dtype] + profiles[dtype][kind] for dtype in DTYPES}
left.invert_yaxis()
left.set(xlabel="ms a step", title="A step of ResNet-18 on this CPU, by operator")
left.legend(loc="upper center", bbox_to_anchor=(0.42, -0.17), ncol=3, frameon=False, fontsize=9)
right.plot(faster, 1 / (1 - share + share / faster), color="black")
right.axhline(1 / (1 - share), color=figures.SUPPORT, linestyle="--")
right.text(1.1, 1 / (1 - share), "no faster than this", va="bottom", fontsize=9)
right.set_xscale("log", base=2)
right.set(
    xlabel="products become faster by",
    ylabel="the step becomes faster by",
    title=f"Products are {share:.0%} of this step",
    ylim=(0.9, 1.12 / (1 - share)),
)
figure.tight_layout()
plt.show()

for factor in (2, 8):
    bound = 1 / (1 - share + share / factor)
    print(f"products become {factor} times as fast: the step {bound:.2f} times")
print(f"products take no time at all:   the step {1 / (1 - share):.2f} times")
if "bfloat16" in DTYPES:
    products, whole = (
        profiles["float32"]["products"] / profiles["bfloat16"]["products"],
        sum(profiles["float32"].values()) / sum(profiles["bfloat16"].values()),
    )
    formula = 1 / (1 - share + share / products)
    print(f"measured in bfloat16: products {products:.2f} times as fast as in float32")
    print(f"  so by the formula the step would be {formula:.2f} times as fast")
    print(f"  measured: {whole:.2f} times. The other operators do not stay the same:")
    for kind in [*KINDS, OTHERS]:
        before, after = profiles["float32"][kind], profiles["bfloat16"][kind]
        if kind != "products":
            print(f"    {kind:22}{before:7.2f} -> {after:7.2f} ms ({after - before:+.2f})")
assert 0 < share < 1

# %% [markdown]
# The last lines explain the difference between the formula and the measurement.
# bfloat16 adds casts. An operator that reads and writes bfloat16 moves half of
# the bytes. An operator whose bfloat16 kernel is slower takes more time.
# BatchNorm keeps parameters and statistics in float32, but reads and writes
# bfloat16.
#
# On a GPU `nsys` shows the same by kernel:
# `python scripts/benchmark.py --profile` runs it, and marks the kernels that
# use Tensor Cores.
#
# ## Reason 3: sizes that miss the Tensor Cores
#
# Tensor Cores multiply blocks of 8 float16 numbers. cuBLAS 11 and cuDNN 7.6.3
# and later pad other sizes; earlier versions compute them without Tensor Cores
# (NVIDIA, *Matrix Multiplication Background User's Guide*, "Tensor Core
# Requirements"). `amp.check` names the layers and the fix.


# %%
def classifier(channels, classes):
    net = nn.HybridSequential()
    net.add(
        nn.Conv2D(64, 7, strides=2, in_channels=channels, use_bias=False),
        nn.Activation("relu"),
        nn.GlobalAvgPool2D(),
        nn.Dense(classes, in_units=64),
    )
    net.initialize(mx.init.Xavier())
    return net


plain = classifier(3, 1001)
amp.cast(plain, "float16")
found = amp.check(plain, None, nd.ones((8, 3, 32, 32)))
print(found)
assert [finding.kind for finding in found] == ["dimension", "dimension"]

# %% [markdown]
# Both are repaired without changing the result. The image and the weight get
# five more channels of zeros, and the output gets seven classes that no label
# names.

# %%
padded_net = classifier(8, 1008)
image = nd.random.normal(shape=(8, 3, 32, 32))
zeros = nd.zeros((8, 5, 32, 32))
amp.cast(plain, "float32")
for name in ("weight", "bias"):
    old, new = getattr(plain[3], name).data(), getattr(padded_net[3], name)
    new.set_data(nd.concat(old, nd.zeros((7, *old.shape[1:])), dim=0))
first = plain[0].weight.data()
padded_net[0].weight.set_data(nd.concat(first, nd.zeros((64, 5, 7, 7)), dim=1))
padded = nd.concat(image, zeros, dim=1)
apart = np.abs(padded_net(padded).asnumpy()[:, :1001] - plain(image).asnumpy()).max()
print(f"largest difference of an output: {apart:.1e}")
assert apart < 1e-4
amp.cast(padded_net, "float16")
print("amp.check:", amp.check(padded_net, None, padded))
assert not amp.check(padded_net, None, padded)

# %%
SIZES = (
    (3, "channels of an image"),
    (30, "images in a batch"),
    (64, "channels of ResNet's first layer"),
    (650, "units of a medium LSTM (Zaremba and others, 2014)"),
    (1001, "ImageNet's classes and a background"),
    (33278, "words of WikiText-2"),
)
print(f"{'size':>6} {'padded':>7} {'more work':>10}  what")
for size, what in SIZES:
    more = -(-size // 8) * 8
    print(f"{size:6} {more:7} {more / size - 1:10.2%}  {what}")
    assert more % 8 == 0 and 0 <= more - size < 8

# %% [markdown]
# Padding a large size adds little work. A first layer of three channels is a
# small part of a deep network and needs no padding.
#
# ## Reason 4: the batch is too small
#
# A small batch does not fill the device. Here the dtypes take turns at each
# batch size, and a point is the median of its turns.


# %%
def rates(batch):
    """Images/s of every dtype: a list of turns each."""
    steps, data = {dtype: build(dtype) for dtype in DTYPES}, noise(batch)
    for step in steps.values():
        step(*data)
        step(*data)
    turns = {dtype: [] for dtype in DTYPES}
    for _ in range(REPEATS):
        for dtype, step in steps.items():
            begun = time.perf_counter()
            step(*data)
            turns[dtype].append(batch / (time.perf_counter() - begun))
    return turns


swept = {batch: rates(batch) for batch in BATCHES}
median = {dtype: [statistics.median(swept[batch][dtype]) for batch in BATCHES] for dtype in DTYPES}

# NVIDIA DeepLearningExamples, README of MXNet's ResNet-50 v1.5, inference with mixed precision
PUBLISHED = {
    "V100": {1: 1.27, 8: 2.20, 32: 2.86, 128: 2.69, 256: 2.38},
    "T4": {1: 1.11, 32: 3.85, 256: 3.71},
}
LINES = {
    dtype: (figures.COLOURS[dtype], line)
    for dtype, line in (("float32", "o-"), ("bfloat16", "s-"), ("float16", "^--"))
}

figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 4.2))
for dtype in DTYPES:
    colour, line = LINES[dtype]
    left.plot(BATCHES, median[dtype], line, color=colour, label=NAMES[dtype])
left.set_ylim(0)
left.set(xlabel="batch size", ylabel="training images/s", title="Measured: ResNet-18, this CPU")
left.legend()
for (device, speedups), colour, line in zip(PUBLISHED.items(), ("black", figures.SUPPORT), "os"):
    right.plot(list(speedups), list(speedups.values()), f"{line}-", color=colour, label=device)
right.axhline(1, color=figures.COLOURS["float32"], linestyle=":")
right.set_ylim(0)
right.set(
    xlabel="batch size",
    ylabel="speed relative to float32",
    title="Published by NVIDIA: ResNet-50 inference",
)
right.legend()
for axes, ticks in ((left, BATCHES), (right, (1, 8, 32, 128, 256))):
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks)
    axes.set_xticklabels(ticks)
figure.tight_layout()
plt.show()

print(f"{'images/s, batch of':34}", *(f"{batch:8}" for batch in BATCHES))
for dtype in DTYPES:
    print(f"{NAMES[dtype]:34}", *(f"{value:8.1f}" for value in median[dtype]))
for dtype in DTYPES[1:]:
    over = [
        statistics.median(a / b for a, b in zip(swept[batch][dtype], swept[batch]["float32"]))
        for batch in BATCHES
    ]
    print(f"{dtype + ', speed relative to float32':34}", *(f"{value:8.2f}" for value in over))
assert all(np.isfinite(values).all() for values in median.values())

# %% [markdown]
# The published numbers are from the README of ResNet-50 in [NVIDIA's
# DeepLearningExamples](https://github.com/NVIDIA/DeepLearningExamples). They
# are for NVIDIA's own build of MXNet, with fused kernels that the wheels do not
# have. A batch of one gains little on either GPU. Activations in float16 take
# half the memory, so a batch that does not fill the device can be doubled.
#
# ## Reason 5: training waits for its images
#
# A network cannot train faster than its images arrive. Here the loading of each
# image includes a pause, as from a slow disk. The pauses allow 0.4 to 4 times
# as many images per second as float32 trains on.

# %%
BATCH, WORKERS, WARM_UP, TAKEN = 16, 2, 2, 8
FAST = "bfloat16" if "bfloat16" in DTYPES else "float32"
TRAINED = list(dict.fromkeys(("float32", FAST)))
source = open_synthetic(images=10_000, shape=(3, PIXELS, PIXELS), seed=SEED)


class SlowImages(gluon.data.Dataset):
    """The source's images, each after a pause."""

    def __init__(self, seconds):
        self.seconds = seconds
        self.shape = source.train.shape

    def __len__(self):
        return len(source.train)

    def write(self, position, out):
        time.sleep(self.seconds)
        return source.train.write(position, out)


def measure(step, seconds):
    """Images/s, and the share of the time in which the network had nothing to do."""
    loader = TrainingBatches(SlowImages(seconds), BATCH, seed=SEED, num_workers=WORKERS)
    batches = chain.from_iterable(loader.epoch(number) for number in count())
    for images, labels in islice(batches, WARM_UP):
        step(images, labels)
    begun, waited = time.perf_counter(), 0.0
    for _ in range(TAKEN):
        before = time.perf_counter()
        images, labels = next(batches)
        waited += time.perf_counter() - before
        step(images, labels)
    took = time.perf_counter() - begun
    return TAKEN * BATCH / took, waited / took


steps = {dtype: build(dtype) for dtype in TRAINED}
alone = {}
for dtype, step in steps.items():
    data = noise(BATCH)
    step(*data), step(*data)
    turns = []
    for _ in range(max(3, REPEATS)):
        begun = time.perf_counter()
        step(*data)
        turns.append(BATCH / (time.perf_counter() - begun))
    alone[dtype] = statistics.median(turns)

offered = [factor * alone["float32"] for factor in INPUTS]
got = {(dtype, rate): [] for rate in offered for dtype in TRAINED}
for _ in range(max(1, REPEATS // 2)):
    for rate in offered:
        for dtype in TRAINED:
            got[dtype, rate].append(measure(steps[dtype], WORKERS / rate))
reached = {key: [statistics.median(column) for column in zip(*turns)] for key, turns in got.items()}

# %%
# Oneflow DLPerf, MXNet 1.6 with GluonCV, ResNet-50 v1b: images/s on 1, 2, 4, 8 V100 of 16 GB
GPUS = (1, 2, 4, 8)
DLPERF = {
    "float32": (384.19, 749.04, 1494.58, 2556.03),
    "float16": (833.65, 1373.55, 2331.91, 2908.88),
}

figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 4.4))
left.plot(offered, offered, color=figures.SUPPORT, linestyle="--", label="what the pauses allow")
for dtype in TRAINED:
    colour, line = LINES[dtype]
    left.plot(
        offered, [reached[dtype, rate][0] for rate in offered], line, color=colour, label=dtype
    )
    left.axhline(alone[dtype], color=colour, linestyle=":", linewidth=1)
left.set_ylim(0, 1.35 * max(alone.values()))
left.set(
    xlabel="images/s that the pauses allow",
    ylabel="images/s trained on",
    title="Measured: a slow input makes all dtypes equal",
)
left.legend(loc="lower right", title="dotted: without input", fontsize=9)
places = np.arange(len(GPUS))
for shift, (dtype, values) in zip((-0.2, 0.2), DLPERF.items()):
    colour = LINES[dtype][0]
    right.bar(places + shift, values, 0.38, color=colour, label=dtype)
for place, one, other in zip(places, *DLPERF.values()):
    right.text(place, max(one, other) + 60, f"{other / one:.2f}×", ha="center", fontsize=9)
right.set_xticks(places)
right.set_xticklabels(GPUS)
right.set(
    xlabel="V100 GPUs",
    ylabel="training images/s",
    ylim=(0, 3400),
    title="Published (DLPerf): the gain shrinks",
)
right.legend(loc="upper left")
figure.tight_layout()
plt.show()

print(f"{'allowed':>12}", *(f"{dtype:>12} {'waited':>8}" for dtype in TRAINED))
for rate in offered:
    cells = [f"{reached[dtype, rate][0]:12.1f} {reached[dtype, rate][1]:8.0%}" for dtype in TRAINED]
    print(f"{rate:12.1f}", *cells)
print(f"{'no limit':>12}", *(f"{alone[dtype]:12.1f} {'':8}" for dtype in TRAINED))
for dtype in TRAINED:
    slowest, fastest = reached[dtype, offered[0]], reached[dtype, offered[-1]]
    assert slowest[0] < 1.3 * offered[0]
    assert slowest[1] > fastest[1]

# %% [markdown]
# Where the input is slower than the network, all dtypes train at about the same
# speed, and the share of waiting is high. The published runs of
# [DLPerf](https://github.com/Oneflow-Inc/DLPerf), with MXNet 1.6 and GluonCV,
# show the same: the more GPUs share one machine's input, the smaller the gain,
# from 2.17 times on one GPU to 1.14 on eight.
#
# The scripts report it. `scripts/train_imagenet.py` logs how much of an epoch
# it "waited for data", and advises what to do above 20 %. `--test-io` measures the
# input alone, and `--benchmark` the network alone. The lower of the two speeds
# is the limit of training.
#
# ## In which order to check
#
# | check | with | if so |
# |---|---|---|
# | no fast kernels? | `amp.doctor()` | another device or dtype |
# | waiting for images? | "waited for data", `--test-io` | pack, more workers |
# | small batch? | a sweep of batch sizes | double it, if memory allows |
# | wrong sizes? | `amp.check(net, trainer, data)` | multiples of 8 |
# | small share of products? | the profiler | accept Amdahl's bound |
#
# ## Summary
#
# - Run `amp.doctor()` first: emulated float16 does not measure speed.
# - A step gains less than its products: profile it.
# - Use multiples of 8 for channels, classes, units and batches; `amp.check`
#   names those that are not.
# - Use a batch that fills the device.
# - With a slow input all dtypes are equally fast.
#
# ## Exercises
#
# 1. Profile `mobilenet1.0` in place of ResNet-18. What is the share of
#    products, and what is the most that bfloat16 can gain?
# 2. Set `WORKERS = 4` and keep the pauses. Where does the knee of the left
#    figure move?
# 3. Run `python scripts/train_imagenet.py --test-io` and `--benchmark` on your
#    own data. Which one is the limit?
# 4. Give `amp.check` a network of yours. What does it name, and what part of
#    the step's time is that?

# %% tags=["environment"]
FOLDER.cleanup()
cpu = report["cpu"]
print(f"Python {platform.python_version()}, MXNet {mx.__version__}, numpy {np.__version__}")
print(textwrap.fill(f"CPU: {cpu['name']}, {cpu['cores']} cores, {', '.join(cpu['features'])}", 78))
print(f"GPUs: {mx.context.num_gpus()}")
print("gluon_amp", amp.__version__)
