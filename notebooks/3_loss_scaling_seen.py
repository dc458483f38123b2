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
# # Watching loss scaling work
#
# float16 ends at 65504 and has no values below 2^-24. Gradients may be
# smaller, so the loss is multiplied by a *scale* before the backward pass, and
# the update divides by it again. Here a small network learns handwritten
# digits. The figures show:
#
# - how a dynamic scale adapts
# - how an overflow is diagnosed
# - where gradients become zero
# - how far a static scale may be from the best one
# - what no scale can repair

# %% tags=["parameters"] short={"EPOCHS": 3, "SEEDS": 1, "EXPONENTS": [-8, 16, 40]}
SEED = 0
SEEDS = 3  # runs for each mean
EPOCHS = 12
BATCH = 64
GROWTH_INTERVAL = 20  # steps; short, so that growth is seen (default: 2000)
WEIGHT = 2.0**-22  # of the loss, in the second half
EXPONENTS = list(range(-6, 42, 4))  # of the static scales that are tried

# %%
# %matplotlib inline
import platform
import textwrap
from typing import Any, List, NamedTuple

import matplotlib.pyplot as plt
import numpy as np

import gluon_amp as amp
from gluon_amp.inspection import figures
from gluon_amp.training.data.digits import load_digits

import mxnet as mx
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn

plt.style.use(figures.STYLE)
FLOAT32, FLOAT16 = figures.COLOURS["float32"], figures.COLOURS["float16"]
BROKEN, SUPPORT, OTHER = figures.BROKEN, figures.SUPPORT, figures.OTHER

# %% [markdown]
# ## A network without normalisation
#
# It has three dense layers and reads 16×16 pixels. BatchNorm would compensate
# for lost gradients, so there is none.

# %%
(images, labels), (val_images, val_labels) = load_digits()


def flat(pixels):
    """Rows of 256 pixels from -1 to 1."""
    return pixels[:, ::2, ::2].reshape(len(pixels), -1).astype(np.float32) / 127.5 - 1


def network(seed=SEED):
    mx.random.seed(seed)
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Dense(64, activation="relu", in_units=256))
        net.add(nn.Dense(64, activation="relu", in_units=64))
        net.add(nn.Dense(10, in_units=64))
    net.initialize(mx.init.Xavier())
    return net


class Run(NamedTuple):
    """What happened in one run: loss and report of each step, error in % of each epoch."""

    losses: List[float]
    reports: List[amp.StepReport]
    errors: List[float]
    stopped: str  # why the trainer refused to go on, if it did


def train(net, loss_scale: Any, weight=1.0, seed=SEED, prepare=flat, epochs=EPOCHS):
    rows, val_rows = prepare(images), nd.array(prepare(val_images))
    net.hybridize(static_alloc=True)
    loss_fn = gluon.loss.SoftmaxCrossEntropyLoss(weight=weight)
    # a learning rate as much higher as the loss is lower: in float32 nothing changes
    settings = {"learning_rate": 0.02 / weight, "momentum": 0.9}
    trainer = amp.Trainer(net.collect_params(), "sgd", settings, loss_scale=loss_scale)
    run = Run([], [], [], "")
    for epoch in range(epochs):
        order = np.random.default_rng((seed, epoch)).permutation(len(rows))
        for start in range(0, len(order), BATCH):
            part = order[start : start + BATCH]
            with autograd.record():
                loss = loss_fn(net(nd.array(rows[part])), nd.array(labels[part]))
            trainer.backward(loss)
            run.losses.append(float(loss.mean().asscalar()) / weight)
            try:
                run.reports.append(trainer.step(len(part)))
            except FloatingPointError as error:
                run.errors.append(error_in_percent(net, val_rows))
                return run._replace(stopped=str(error))
        run.errors.append(error_in_percent(net, val_rows))
    return run


def error_in_percent(net, val_rows):
    answers = net(val_rows).argmax(axis=1).asnumpy()
    return 100 * float((answers != val_labels).mean())


def skipped(run):
    return sum(not report.applied for report in run.reports)


# %% [markdown]
# ## A dynamic scale finds its level
#
# This scale starts at 2^16. An overflow skips one step and halves the
# scale. After `growth_interval` finite steps in a row the scale doubles.
# The default is 2000 steps; here it is 20, so that the growth can be seen.
# Without `init_scale`, the trainer repeats the first pass at a scale at which
# its gradients fit, and skips no step at the start.

# %%
dynamic = amp.DynamicLossScale(2.0**16, growth_interval=GROWTH_INTERVAL)
net = amp.cast(network(), "float16")
run = train(net, dynamic)
plain = train(network(), None)
for report in run.reports:
    assert report.applied == (not report.overflow)
    if not report.applied:  # one overflow, one step, one halving
        assert report.next_loss_scale == report.loss_scale / 2
assert skipped(run) > 0


# %%
def draw_scale(panel, run):
    """The scale of each step, skipped steps marked."""
    scale = np.log2([report.loss_scale for report in run.reports])
    lost = [step for step, report in enumerate(run.reports) if not report.applied]
    panel.step(range(len(scale)), scale, color=FLOAT16, where="post", label="loss scale")
    panel.plot(lost, scale[lost], "x", color="black", ms=7, mew=2)


figure, (top, bottom) = plt.subplots(2, 1, figsize=(8, 5.4), sharex=True)
draw_scale(top, run)
top.plot([], [], "x", color="black", ms=7, mew=2, label="overflow: step skipped")
top.set(
    ylabel="log2 of the loss scale",
    title="The scale falls until gradients fit, then tries higher values",
)
top.legend()
bottom.plot(plain.losses, color=FLOAT32, lw=3, alpha=0.4, label="float32")
bottom.plot(run.losses, color=FLOAT16, lw=1, label="float16, dynamic scale")
bottom.set(xlabel="step", ylabel="training loss", yscale="log")
bottom.set_title(f"Training loss of seed {SEED}, in both dtypes")
bottom.legend()
figure.tight_layout()
plt.show()
print(f"{skipped(run)} of {len(run.reports)} steps skipped")

# %% [markdown]
# One run says little about the accuracy. The table has the validation error
# after the last epoch for each seed. Both dtypes start from the same weights.

# %%
print("seed  float16 in %  float32 in %  difference")
apart = []
for seed in range(SEEDS):
    scale = amp.DynamicLossScale(2.0**16, growth_interval=GROWTH_INTERVAL)
    half = train(amp.cast(network(seed), "float16"), scale, seed=seed).errors[-1]
    full = train(network(seed), None, seed=seed).errors[-1]
    apart.append(half - full)
    print(f"{seed:4}  {half:12.1f}  {full:12.1f}  {apart[-1]:+10.1f}")
one_image = 100 / len(val_labels)
print(f"mean difference {np.mean(apart):+.2f} points; one image is {one_image:.2f} points")

# %% [markdown]
# Each `trainer.step()` returns a `StepReport`. The figure of the scale is drawn
# from these reports. This is the report of the first overflow:

# %%
first = next(report for report in run.reports if not report.applied)
print(f"applied          {first.applied}")
print(f"loss_scale       {first.loss_scale:g}, next {first.next_loss_scale:g}")
print(f"skipped_total    {first.skipped_total}")
print("overflow        ", "\n                 ".join(first.overflow))

# %% [markdown]
# ## What overflowed?
#
# `amp.diagnose` replays one batch, leaves the network as it was, and names the
# block, the direction, and the largest scale that would have fitted. Here is
# the first batch, at the initial scale of 2^16. The gradients of weights
# overflow: Gluon sums them over the 64 images of a batch, and only the update
# divides by 64.

# %%
fresh = amp.cast(network(), "float16")
order = np.random.default_rng((SEED, 0)).permutation(len(images))[:BATCH]
batch, batch_labels = nd.array(flat(images)[order]), nd.array(labels[order])
loss_fn = gluon.loss.SoftmaxCrossEntropyLoss()
found = amp.diagnose(fresh, loss_fn, batch, batch_labels, loss_scale=2.0**16)
print(found)

# %%
for factor in (1, 2):
    scale = factor * found.recommended_scale
    again = amp.diagnose(fresh, loss_fn, batch, batch_labels, loss_scale=scale)
    print(f"loss scale {scale:6g}: {again.verdict}")
assert again.verdict == "backward_overflow"
assert found.verdict == "backward_overflow" and found.recommended_scale < 2.0**16

# %% [markdown]
# ## Where gradients vanish
#
# From here on the loss has a weight of 2^-22, like one part of a sum of losses,
# and the learning rate is higher by the same factor. In float32 the weight has
# no effect. In float16 the gradients move down by 22 powers of two, and most
# fall below its range. `amp.gradient_report` shows how far they are from both
# ends of the range, and recommends a static scale.


# %%
def gradients(policy, loss_scale):
    """Magnitudes of all gradients of the first batch, and the report on them."""
    net = amp.cast(network(), policy)
    trainer = amp.Trainer(net.collect_params(), "sgd", loss_scale=loss_scale)
    weighted = gluon.loss.SoftmaxCrossEntropyLoss(weight=WEIGHT)
    with autograd.record():
        loss = weighted(net(batch), batch_labels)
    trainer.backward(loss)
    params = net.collect_params().values()
    found = np.concatenate([param.grad().asnumpy().ravel() for param in params])
    return np.abs(found.astype(np.float32)), amp.gradient_report(net, trainer)


_, report = gradients("float16", 1.0)
print(report)
good = report.recommended_scale
print(f"that is 2^{np.log2(good):g}")

# %% [markdown]
# The same as a figure. The histograms show the true gradients, from float32,
# times the scale. The colours show their values in float16. Gradients that are
# zero in float32, too (behind a ReLU that is off), are left out.

# %%
true, _ = gradients("float32", None)
alive = true > 0
bins = np.arange(-64, 28)
scales = (1.0, good, good * 2.0**8)
figure, panels = plt.subplots(3, 1, figsize=(8, 6.6), sharex=True)
flushed = []
for panel, scale in zip(panels, scales):
    seen, _ = gradients("float16", scale)
    flushed.append(100 * np.mean(seen[alive] == 0))
    infinite = 100 * np.mean(~np.isfinite(seen[alive]))
    panel.hist(np.log2(true[alive] * scale), bins=bins, color=FLOAT32, zorder=3)
    panel.axvspan(bins[0], -25, color=BROKEN, alpha=0.35, label="becomes 0")
    panel.axvspan(-25, -14, color=BROKEN, alpha=0.13, label="loses digits")
    panel.axvspan(-14, 16, color=figures.BAND, alpha=0.6, label="kept")
    panel.axvspan(16, bins[-1], color=OTHER, alpha=0.4, label="becomes infinite")
    panel.set(ylabel="gradients", xlim=(-50, bins[-1]), axisbelow=True)
    panel.set_title(
        f"loss scale 2^{np.log2(scale):g}: {flushed[-1]:.0f} % flushed to zero, "
        f"{infinite:.0f} % not finite"
    )
panels[0].legend(loc="upper right", ncol=2)
panels[-1].set_xlabel("log2 of the scaled gradient's magnitude")
figure.tight_layout()
plt.show()
assert flushed[0] > 10 * flushed[1]

# %% [markdown]
# ## Static against dynamic
#
# `amp.gradient_report` has recommended a static scale. The curves compare it
# with no scale and with a dynamic one. They are means over seeds.

# %%
ways = {
    "float32": ("float32", None, FLOAT32, "-"),
    "float16, no scale": ("float16", None, BROKEN, "-."),
    f"float16, static 2^{np.log2(good):g}": ("float16", good, FLOAT16, "--"),
    "float16, dynamic": ("float16", "dynamic", FLOAT16, ":"),
}
figure, panel = plt.subplots(figsize=(8, 4.2))
print(f"{'validation error after the last epoch':38} mean ± sd")
last = {}
for label, (policy, loss_scale, color, style) in ways.items():
    runs = [
        train(amp.cast(network(seed), policy), loss_scale, WEIGHT, seed) for seed in range(SEEDS)
    ]
    errors = np.array([one.errors for one in runs])
    mean, sd = errors.mean(axis=0), errors.std(axis=0)
    epochs = np.arange(1, EPOCHS + 1)
    panel.plot(epochs, mean, style, color=color, lw=2.5, label=label)
    panel.fill_between(epochs, mean - sd, mean + sd, color=color, alpha=0.15)
    last[label] = mean[-1]
    print(f"{label:38} {mean[-1]:5.1f} % ± {sd[-1]:.1f}")
panel.set(xlabel="epoch", ylabel="validation error in %", yscale="log")
panel.set_yticks([2, 5, 10, 20, 50, 100], ["2", "5", "10", "20", "50", "100"])
panel.minorticks_off()
panel.set_title("A loss weight of 2^-22: without a scale float16 falls behind")
panel.legend()
figure.tight_layout()
plt.show()
none, static, moving = list(last.values())[1:]
assert max(static, moving) < none

# %% [markdown]
# ## How wrong may a static scale be?
#
# The figure has a run for every fourth power of two. At lower scales gradients
# become zero. At higher scales they overflow, and the trainer stops after too
# many skipped steps in a row.


# %%
def lost_steps(run):
    return 100.0 if run.stopped else 100 * skipped(run) / len(run.reports)


sweep = [
    [train(amp.cast(network(seed), "float16"), 2.0**k, WEIGHT, seed) for seed in range(SEEDS)]
    for k in EXPONENTS
]
error = [np.mean([run.errors[-1] for run in runs]) for runs in sweep]
lost = [np.mean([lost_steps(run) for run in runs]) for runs in sweep]
zero = [100 * np.mean(gradients("float16", 2.0**k)[0][alive] == 0) for k in EXPONENTS]

figure, (top, bottom) = plt.subplots(2, 1, figsize=(8, 5.6), sharex=True)
top.plot(EXPONENTS, error, "o-", color=FLOAT16)
top.set(ylabel="validation error in %", yscale="log")
top.set_yticks([2, 5, 10, 20, 50, 100], ["2", "5", "10", "20", "50", "100"])
top.minorticks_off()
top.set_title("Too low loses gradients, too high loses steps")
bottom.plot(EXPONENTS, zero, "s-", color=OTHER, label="gradients of the first batch flushed to 0")
bottom.plot(EXPONENTS, lost, "^--", color="black", label="steps skipped; 100 % where it stopped")
bottom.set(xlabel="log2 of the static loss scale", ylabel="share in %", ylim=(-4, 104))
for panel in (top, bottom):
    panel.axvline(np.log2(good), color=SUPPORT, ls=":", lw=2, label="recommended scale")
bottom.legend(loc="center")
figure.tight_layout()
plt.show()
valley = [k for k, e in zip(EXPONENTS, error) if e < 2 * min(error)]
print(f"less than twice the least error: from 2^{valley[0]} to 2^{valley[-1]}")
assert error[0] > 50 and error[-1] > 50 and min(error) < 30

# %% [markdown]
# This is the error of the trainer that stopped:

# %%
print(textwrap.fill(sweep[-1][0].stopped, 78))

# %% [markdown]
# ## What no scale can repair
#
# The scale multiplies the loss, and so every gradient. It does not change the
# *forward* pass. As an example, let the pixels come from a 16-bit scanner, from
# 0 to 65280. Each fits float16, but their weighted sums do not. In float32 a
# BatchNorm after the first layer removes the factor, so training works.


# %%
def with_norm(seed=SEED):
    mx.random.seed(seed)
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Dense(64, in_units=256), nn.BatchNorm(in_channels=64), nn.Activation("relu"))
        net.add(nn.Dense(64, activation="relu", in_units=64), nn.Dense(10, in_units=64))
    net.initialize(mx.init.Xavier())
    return net


def scanned(pixels):
    return (flat(pixels) + 1) * 127.5 * 256


def rescaled(pixels):
    return scanned(pixels) / 65280


scan = nd.array(scanned(images)[order])
broken = amp.cast(with_norm(), "float16")
for scale in (1024.0, 1.0):
    found = amp.diagnose(broken, loss_fn, scan, batch_labels, loss_scale=scale)
    print(found, end="\n\n")
    assert (found.verdict, found.block) == ("forward_overflow", "0")
    assert found.recommended_scale is None

# %% [markdown]
# The verdict is the same for both scales. There are two remedies: pin the block
# to float32, as the diagnosis says, or rescale the input. Both keep the rest of
# the network in float16. Without a remedy, the scale falls without effect, and
# the trainer stops and names the block. The loss alone does not show the fault:
# here it stays finite.

# %%
pinned = amp.Policy.parse("float16").pin(blocks=["^0$"])
cases = {
    "as it is": (amp.cast(with_norm(), "float16"), scanned),
    "block 0 pinned to float32": (amp.cast(with_norm(), pinned), scanned),
    "pixels rescaled to 0…1": (amp.cast(with_norm(), "float16"), rescaled),
    "float32": (with_norm(), scanned),
}
outcome = {}
for label, (net, prepare) in cases.items():
    outcome[label] = train(net, None if label == "float32" else "dynamic", prepare=prepare)

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4))
looks = {  # colour, style, width; what lies behind comes first
    "float32": (FLOAT32, "-", 5),
    "as it is": (BROKEN, "-", 3),
    "block 0 pinned to float32": (FLOAT16, "-", 2),
    "pixels rescaled to 0…1": (FLOAT16, ":", 2),
}
for label, (color, style, width) in looks.items():
    line = {"color": color, "ls": style, "lw": width, "label": label}
    right.plot(outcome[label].losses, **line)
    if label != "float32":
        scale = np.log2([report.loss_scale for report in outcome[label].reports])
        left.step(range(len(scale)), scale, where="post", **line)
left.set(xlabel="step", ylabel="log2 of the loss scale", xlim=(-1, 50))
left.set_title("As it is, the scale falls without effect")
right.set(xlabel="step", ylabel="training loss", yscale="log", xlim=(-2, 100))
right.set_title("Pinned or rescaled, it learns")
right.legend()
figure.tight_layout()
plt.show()
print(textwrap.fill(outcome["as it is"].stopped, 78))
assert outcome["as it is"].stopped and not outcome["block 0 pinned to float32"].stopped
for label in ("block 0 pinned to float32", "pixels rescaled to 0…1"):
    assert outcome[label].errors[-1] < outcome["float32"].errors[-1] + 5

# %% [markdown]
# At 2^16, the network above also overflowed in the *backward* pass. There a
# lower scale was enough. This table has both cases:

# %%
table = [("pixels -1…1, loss scale 2^16", fresh, batch, 2.0**16)]
table += [("pixels -1…1, loss scale 2^10", fresh, batch, 2.0**10)]
table += [("16-bit pixels, loss scale 2^10", broken, scan, 2.0**10)]
table += [("16-bit pixels, loss scale 1", broken, scan, 1.0)]
table += [("16-bit pixels, pinned, 2^10", amp.cast(with_norm(), pinned), scan, 2.0**10)]
verdicts = []
for label, net, data, scale in table:
    verdicts.append(amp.diagnose(net, loss_fn, data, batch_labels, loss_scale=scale).verdict)
    print(f"{label:32} {verdicts[-1]}")
assert verdicts[1] == verdicts[4] == "ok"

# %% [markdown]
# ## Summary
#
# - `loss_scale="dynamic"` finds a scale that fits in the first steps. A skipped
#   step changes no parameter; its `StepReport` records it.
# - `amp.diagnose` shows where an overflow is, and whether a lower scale helps.
# - `amp.gradient_report` recommends a static scale. It need not be exact: here
#   scales over tens of powers of two work.
# - A scale moves gradients only. Activations beyond 65504 need a pin, or
#   inputs in a sensible range; bfloat16 has float32's range and needs neither.
# - float16 is emulated here, with its overflows and underflows.
#
# [How it works](../docs/how_it_works.md) explains more, and
# [troubleshooting](../docs/troubleshooting.md) lists symptoms with remedies.
# [The ablation](../docs/results/ablation.md) repeats this with more seeds and
# tests of equivalence.
#
# ## Exercises
#
# 1. Set `GROWTH_INTERVAL` to 5 and to 200. How many steps are lost, and what
#    would the interval have to be for one in a thousand?
# 2. `hysteresis=2` in `amp.DynamicLossScale` allows one overflow. Draw the
#    first picture with it. When would you want it?
# 3. A dynamic scale ends at 2^24. For which `WEIGHT` is that too low? Try
#    `max_scale=2.0**40`.
# 4. Train the scanned digits with the policy `bfloat16`, as they are.

# %%
print("Python", platform.python_version())
print("MXNet", mx.__version__)
print("numpy", np.__version__)
machine = amp.doctor().machine
print("CPU", machine.cpu_name, "GPUs", [gpu.name for gpu in machine.driver.gpus] or "none")
print("gluon_amp", amp.__version__)
