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
# # The Symbol and Module twin, and moving from `mxnet.contrib.amp`
#
# The first part trains one network twice in float16, once with Gluon and once
# with `amp.symbolic.Module`, from the same weights on the same batches, and
# looks at what the cast did to the graph, node by node. The second part goes
# through MXNet's own `contrib.amp` line by line: what it does wrong is run and
# shown, and what to write in its place is run beside it.

# %% tags=["parameters"] short={"EPOCHS": 1}
SEED = 0
EPOCHS = 6
BATCH = 32
RATE = 0.05

# %%
import json
import os
import platform
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

import gluon_amp as amp

import mxnet as mx
from mxnet import autograd, gluon, nd
from mxnet.contrib.amp.loss_scaler import LossScaler
from mxnet.gluon import nn

# %matplotlib inline
os.environ["MXNET_SUBGRAPH_VERBOSE"] = "0"  # MXNet reports every graph that it binds
plt.rcParams.update({"figure.dpi": 80, "savefig.dpi": 80, "axes.grid": True, "grid.alpha": 0.3})
FOLDER = tempfile.TemporaryDirectory()

# %% [markdown]
# ## Part one: the same network, twice
#
# The data are scikit-learn's handwritten digits, 8×8 pixels. The order is
# drawn once, so that both trainings see the same batches.

# %%
digits = load_digits()
order = np.random.RandomState(SEED).permutation(len(digits.target))
images = (digits.images[order, None] / 16).astype("float32")
labels = digits.target[order].astype("float32")
TRAIN = 1408


def batches(start, stop):
    return mx.io.NDArrayIter(
        images[start:stop], labels[start:stop], BATCH, last_batch_handle="discard"
    )


train, val = batches(0, TRAIN), batches(TRAIN, None)
print(TRAIN // BATCH, "batches to train on,", len(images[TRAIN:]) // BATCH, "to validate with")


# %% [markdown]
# The network in both languages. Three defaults differ, and are given here:
# Symbol's BatchNorm has `fix_gamma=True` and `eps=1e-3`, and calls its
# statistics `moving_mean` and `moving_var`.


# %%
def in_gluon():
    net = nn.HybridSequential(prefix="")
    for k, channels in enumerate((16, 32), 1):
        net.add(
            nn.Conv2D(channels, 3, padding=1, prefix=f"conv{k}_"),
            nn.BatchNorm(prefix=f"bn{k}_"),
            nn.Activation("relu", prefix=f"relu{k}_"),
            nn.MaxPool2D(2, prefix=f"pool{k}_"),
        )
    net.add(nn.Dense(10, prefix="fc_"))
    return net


def as_symbol():
    x = mx.sym.var("data")
    for k, channels in enumerate((16, 32), 1):
        x = mx.sym.Convolution(x, kernel=(3, 3), pad=(1, 1), num_filter=channels, name=f"conv{k}")
        x = mx.sym.BatchNorm(x, fix_gamma=False, eps=1e-5, name=f"bn{k}")
        x = mx.sym.Activation(x, act_type="relu", name=f"relu{k}")
        x = mx.sym.Pooling(x, kernel=(2, 2), stride=(2, 2), pool_type="max", name=f"pool{k}")
    x = mx.sym.FullyConnected(x, num_hidden=10, name="fc")
    return mx.sym.SoftmaxOutput(x, name="softmax")


mx.random.seed(SEED)
first, symbol = in_gluon(), as_symbol()
first.initialize(mx.init.Xavier())
first(nd.array(images[:1]))

initial = {
    name.replace("running", "moving"): parameter.data().copy()
    for name, parameter in first.collect_params().items()
}
states = {name: initial[name] for name in symbol.list_auxiliary_states()}
weights = {name: value for name, value in initial.items() if name not in states}
assert {*weights, "data", "softmax_label"} == set(symbol.list_arguments())
print(len(weights), "weights and", len(states), "running statistics, the same for both")

# %% [markdown]
# Gluon first: a cast, a trainer, and the loop that you write.


# %%
def train_gluon(policy, loss_scale):
    net = in_gluon()
    net.initialize()
    net(nd.array(images[:1]))
    for name, parameter in net.collect_params().items():
        parameter.set_data(initial[name.replace("running", "moving")])
    amp.cast(net, policy)
    how = {"learning_rate": RATE, "momentum": 0.9}
    trainer = amp.Trainer(net.collect_params(), "sgd", how, loss_scale=loss_scale)
    loss_fn = gluon.loss.SoftmaxCrossEntropyLoss()
    losses, scales = [], []
    for _ in range(EPOCHS):
        train.reset()
        for batch in train:
            with autograd.record():
                loss = loss_fn(net(batch.data[0]), batch.label[0])
            trainer.backward(loss)
            report = trainer.step(BATCH)
            losses.append(loss.mean().asscalar())
            scales.append(report.loss_scale)
    return net, np.array(losses), scales


# %% [markdown]
# The Module next. `fit` is MXNet's own; the policy and the loss scale are all
# that is new. A callback notes what the Gluon loop noted.


# %%
def train_module(policy, loss_scale):
    module = amp.symbolic.Module(symbol, policy=policy, loss_scale=loss_scale)
    losses, scales = [], []

    def note(progress):
        losses.append(progress.eval_metric.get()[1])
        scales.append(module.last_report.loss_scale)
        progress.eval_metric.reset()

    train.reset()
    module.fit(
        train,
        eval_metric=mx.metric.CrossEntropy(),
        optimizer="sgd",
        optimizer_params={"learning_rate": RATE, "momentum": 0.9},
        arg_params=weights,
        aux_params=states,
        batch_end_callback=note,
        num_epoch=EPOCHS,
    )
    return module, np.array(losses), scales


# %% [markdown]
# Both in float16 with a dynamic scale, and both in float32, to see how far
# apart they are without a cast.

# %%
net, gluon_losses, gluon_scales = train_gluon("float16", "dynamic")
module, module_losses, module_scales = train_module("float16", "dynamic")
apart = np.abs(gluon_losses - module_losses)
apart_in_float32 = np.abs(train_gluon("float32", None)[1] - train_module("float32", None)[1])

figure, (above, below) = plt.subplots(
    2, 1, figsize=(8, 6), sharex=True, gridspec_kw={"height_ratios": (3, 2)}
)
above.plot(gluon_losses, color="#9ecae1", linewidth=5, label="Gluon: amp.cast, amp.Trainer")
above.plot(module_losses, color="#08306b", linewidth=1.2, label="Module: amp.symbolic.Module")
above.set_ylabel("training loss of a batch")
above.set_title("One network in float16, in Gluon and as a Module")
above.legend()
FLOOR = 1e-9
for values, colour, label in (
    (apart, "#d95f0e", "float16"),
    (apart_in_float32, "#444444", "float32"),
):
    below.semilogy(np.maximum(values, FLOOR), ".", color=colour, markersize=4, label=label)
below.set_ylabel("difference")
below.set_xlabel("step")
below.set_title(f"|loss in Gluon - loss in Module|; 0 is drawn at {FLOOR:g}")
below.legend(ncol=2, loc="lower right")
figure.tight_layout()
plt.show()

print(f"difference at the first step: float16 {apart[0]:.1e}, float32 {apart_in_float32[0]:.1e}")
print(f"median of all {len(apart)} steps:      "[:29], end="")
print(f" float16 {np.median(apart):.1e}, float32 {np.median(apart_in_float32):.1e}")
print("same loss scale at every step:", gluon_scales == module_scales)
assert gluon_scales == module_scales
assert apart[:6].max() < 1e-2 and apart_in_float32[:6].max() < 1e-4

# %% [markdown]
# They begin one rounding of float32 apart: Gluon differentiates the logarithm
# of its softmax, `SoftmaxOutput` makes its gradient itself. Training carries
# that on, in float32 too, where a ReLU or a maximum goes the other way; and
# in float16 sooner, where a weight that rounds the other way is 2^-11 of
# itself off. Neither twin is the better one. On the digits held back:


# %%
def accuracy(predict):
    val.reset()
    right = [(predict(b).asnumpy().argmax(1) == b.label[0].asnumpy()).mean() for b in val]
    return np.mean(right)


from_gluon = accuracy(lambda batch: net(batch.data[0]))
val.reset()
from_module = module.score(val, "acc")[0][1]
print(f"top-1, Gluon {from_gluon:.1%}, Module {from_module:.1%}")
assert abs(from_gluon - from_module) < 0.02
assert from_module > 0.8

# %% [markdown]
# ### The graph, node by node
#
# `amp.symbolic.convert` is what the Module does first. It returns a symbol, so
# MXNet's own type inference shows what every node computes in.

# %%
converted = amp.symbolic.convert(symbol, "float16")


def nodes_of(graph):
    """Every node: its name, operator, the dtype of what it gives, and what it reads."""
    internals = graph.get_internals()
    fed = {"data": "float32", "softmax_label": "float32"}
    types = dict(zip(internals.list_outputs(), internals.infer_type(**fed)[1]))
    nodes = json.loads(graph.tojson(remove_amp_cast=False))["nodes"]
    found = []
    for node in nodes:
        name = node["name"]
        given = next(t for t in (name, f"{name}_output", f"{name}_output0") if t in types)
        reads = [nodes[source]["name"] for source, *_ in node["inputs"]]
        found.append((name, node["op"], np.dtype(types[given]).name, reads))
    return found


before, after = nodes_of(symbol), nodes_of(converted)

# %%
COLOURS = {"float32": "#c6dbef", "float16": "#d95f0e"}


def box(axes, x, y, text, dtype, width):
    axes.text(
        x,
        y,
        text,
        ha="center",
        va="center",
        fontsize=9,
        color="white" if dtype == "float16" else "black",
        bbox={"boxstyle": f"round,pad={width}", "facecolor": COLOURS[dtype], "edgecolor": "#333"},
    )


def chain_of(nodes):
    """The operators, without the label's cast, and the data before them."""
    return [
        node
        for node in nodes
        if node[0] == "data" or (node[1] != "null" and node[3] != ["softmax_label"])
    ]


def draw(axes, nodes, title):
    """The chain of operators from top to bottom, and beside each what it reads."""
    dtypes = {name: dtype for name, _, dtype, _ in nodes}
    chain = chain_of(nodes)
    step = (len(after_chain) - 1) / (len(chain) - 1)
    for number, (name, op, dtype, reads) in enumerate(chain):
        y = -number * step
        if number:
            axes.plot([1, 1], [y, y + step], color="#333333", zorder=0)
        parameters = [read for read in reads if read not in {n for n, *_ in chain}]
        if parameters and op != "SoftmaxOutput":  # which reads the label
            # weight and bias, or BatchNorm's four: one dtype each time
            (kind,) = {dtypes[parameter] for parameter in parameters}
            axes.plot([0.1, 1], [y, y], color="#333333", linewidth=0.8, zorder=0)
            label = ", ".join(parameter.partition("_")[2] for parameter in parameters)
            label = label.replace("moving_", "")
            box(axes, 0.1, y, label, kind, 0.25)
        box(axes, 1, y, "cast" if op == "amp_cast" else name, dtype, 0.35)
    axes.set(xlim=(-0.55, 1.4), ylim=(-len(after_chain) + 0.3, 0.7), title=title)
    axes.axis("off")


after_chain = chain_of(after)
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 6.3))
draw(left, before, "as it was written")
draw(right, after, "converted to float16")
handles = [plt.Rectangle((0, 0), 1, 1, facecolor=colour) for colour in COLOURS.values()]
figure.legend(handles, COLOURS, loc="lower center", ncol=2, frameon=False)
figure.suptitle("Products, with their weights, become float16; BatchNorm's numbers do not")
figure.tight_layout(rect=(0, 0.04, 1, 1))
plt.show()

# %%
was = {name: dtype for name, _, dtype, _ in before}
print(f"{'node':28} {'operator':15} {'before':9} {'after':9}")
for name, op, dtype, _ in after:
    if name == "softmax_label":
        continue
    changed = "" if was.get(name) == dtype else "  <-" if name in was else "  new"
    print(f"{name:28} {op.replace('null', '-'):15} {was.get(name, '-'):9} {dtype}{changed}")
dtypes = {name: dtype for name, _, dtype, _ in after}
assert dtypes["conv1"] == dtypes["conv1_weight"] == dtypes["fc_weight"] == "float16"
assert dtypes["bn1_gamma"] == dtypes["bn1_moving_var"] == dtypes["softmax"] == "float32"

# %% [markdown]
# ### Loss scaling with literal numbers
#
# A Symbol's loss head makes its gradient itself, so there is no loss to
# multiply. MXNet's float16 FAQ multiplies the head's gradient with
# `grad_scale` and divides it out again in the optimizer, with `rescale_grad`.
# Here is one weight that starts at 0, four inputs of 1, and a gradient of
# 2^-26 from each: too small for float16, which ends at 2^-24.

# %%
each, scale, count = 2.0**-26, 1024.0, 4
lost = np.float16(each)
kept = np.float16(each * scale)
print(f"gradient of one input            2^{np.log2(each):.0f} = {each:.2e}")
print(f"  in float16                     {lost:g}")
print(f"  times {scale:g}, in float16         2^{np.log2(kept):.0f} = {kept:.2e}")
total = float(kept) * count
print(f"summed over {count} inputs             2^{np.log2(total):.0f} = {total:.2e}")
rescaled = total / count / scale
print(f"times 1/{count} and 1/{scale:g}           2^{np.log2(rescaled):.0f} = {rescaled:.2e}")
assert lost == 0 and rescaled == each


# %%
def one_step(grad_scale, rescale_grad, loss_scale):
    """How far a step at learning rate 1 moves the weight."""
    out = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=1, no_bias=True, name="fc")
    head = mx.sym.MakeLoss(out, grad_scale=grad_scale, name="loss")
    toy = amp.symbolic.Module(head, label_names=None, policy="float16", loss_scale=loss_scale)
    toy.bind([("data", (count, 1))])
    toy.init_params(mx.init.Zero())
    toy.init_optimizer(optimizer_params={"learning_rate": 1.0, "rescale_grad": rescale_grad})
    toy.forward_backward(mx.io.DataBatch([nd.ones((count, 1))]))
    toy.update()
    return -toy.get_params()[0]["fc_weight"].asnumpy().item()


print("grad_scale   rescale_grad     loss_scale   the weight moves by")
moved = {}
for case, settings in {
    "none": (each, 1 / count, None),
    "the FAQ's": (each * scale, 1 / count / scale, None),
    "ours": (each, 1 / count, scale),
}.items():
    moved[case] = one_step(*settings)
    head, rescale, asked = settings
    shown = "0" if moved[case] == 0 else f"2^{np.log2(moved[case]):.0f}"
    print(f"2^{np.log2(head):<10.0f} 2^{np.log2(rescale):<13.0f} {asked!s:12} {shown:6} ({case})")
assert moved == {"none": 0, "the FAQ's": each, "ours": each}

# %% [markdown]
# Without a scale nothing is learned. With the FAQ's recipe all is right, as
# long as two numbers in two places fit each other, and the scale never
# changes. With `loss_scale=` both keep the meaning that they have in float32,
# the scale may be dynamic, and an overflow skips the step.

# %% [markdown]
# ### Checkpoint and export
#
# What is saved is the network as it was written, with the float32 masters.
# Stock MXNet loads it, and so does Gluon.

# %%
prefix = str(Path(FOLDER.name) / "digits")
module.save_checkpoint(prefix, EPOCHS, save_optimizer_states=True)
print(*sorted(path.name for path in Path(FOLDER.name).iterdir()), sep="\n")

stock = mx.mod.Module.load(prefix, EPOCHS)
val.reset()
stock.bind(val.provide_data, val.provide_label, for_training=False)
from_stock = stock.score(val, "acc")[0][1]
held = {np.dtype(value.dtype).name for value in stock.get_params()[0].values()}
print(f"{type(stock).__module__}.Module, weights in {held}: top-1 {from_stock:.1%}")
assert held == {"float32"}
assert abs(from_stock - from_module) < 0.01

# %% [markdown]
# The Gluon network goes the same way: `net.export` writes what a stock Module
# reads.

# %%
exported = str(Path(FOLDER.name) / "gluon")
net.export(exported)
deployed = mx.mod.Module.load(exported, 0, label_names=None)
deployed.bind([("data", (BATCH, 1, 8, 8))], for_training=False)
x = nd.array(images[TRAIN : TRAIN + BATCH])
deployed.forward(mx.io.DataBatch([x]), is_train=False)
in_float32 = deployed.get_outputs()[0].asnumpy()
distance, size = np.abs(in_float32 - net(x).asnumpy()).max(), np.abs(in_float32).max()
print(f"stock float32 against float16: {distance:.4f} at outputs of up to {size:.1f}")
assert distance < 0.02 * size

# %% [markdown]
# A Module goes on where it was saved: its optimizer's states, masters and loss
# scale are in the `.states` file.

# %%
again = amp.symbolic.Module.load(prefix, EPOCHS, load_optimizer_states=True, policy="float16")
again.bind(train.provide_data, train.provide_label)
again.init_optimizer(optimizer="sgd", optimizer_params={"learning_rate": RATE, "momentum": 0.9})
print("loss scale:", module.loss_scale.scale, "->", again.loss_scale.scale)
assert again.loss_scale.state_dict() == module.loss_scale.state_dict()

# %% [markdown]
# ## Part two: moving from `mxnet.contrib.amp`
#
# `contrib.amp` changes MXNet's functions for the whole process. So what it
# does is run in processes of its own here, and this one stays clean. First,
# that it does so: a layer that was built before, and never asked for
# float16, gets it, and on a CPU, which has no float16 products, runs no more.


# %%
def elsewhere(code):
    """Run code in a Python of its own, and show what it prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    print(done.stdout, end="")
    assert done.returncode == 0, done.stderr


elsewhere("""
import textwrap
import gluon_amp, mxnet as mx  # gluon_amp for MXNet's sake: numpy's names
from mxnet.contrib import amp

dense = mx.gluon.nn.Dense(1, in_units=2)
dense.initialize()
data, stock = mx.nd.ones((1, 2)), mx.nd.FullyConnected
print("before init: gives", dense(data).dtype.__name__)
amp.init()
print("after init:  FullyConnected is MXNet's:", mx.nd.FullyConnected is stock)
try:
    dense(data).wait_to_read()
except mx.MXNetError as error:
    last = str(error).strip().splitlines()[-1]
    print("            ", textwrap.fill(last, 66, subsequent_indent=" " * 13))
print("a way back: ", [name for name in dir(amp) if "off" in name or "undo" in name])
""")

# %% [markdown]
# Here a cast is one network's, and ends when you say so.

# %%
functions = dict(vars(mx.nd))
one, other = nn.Dense(1, in_units=2), nn.Dense(1, in_units=2)
one.initialize(), other.initialize()
data = nd.ones((1, 2))
reference = one(data).asscalar(), other(data).asscalar()


def computing_in(layer):
    return amp.describe(layer, data).rows[0].compute_dtype


amp.cast(one, "mixed_float16")
print("cast:   one computes in", computing_in(one), "and the other in", computing_in(other))
assert other(data).asscalar() == reference[1]
amp.cast(one, "float32")
print("undone: one computes in", computing_in(one))
assert one(data).asscalar() == reference[0]
assert dict(vars(mx.nd)) == functions
print("changed in mx.nd: nothing")

# %% [markdown]
# Second, the step. With two devices MXNet's Trainer updates on the kvstore by
# default, before `contrib.amp` looks for an overflow. The first one destroys
# the weights, and `contrib.amp` goes on.

# %%
TWO_DEVICES = """
import gluon_amp, mxnet as mx, numpy as np
from mxnet import autograd, gluon, nd
{start}

class Times(gluon.HybridBlock):
    def __init__(self):
        super().__init__()
        self.weight = self.params.get("weight", shape=(1,), init="ones")

    def hybrid_forward(self, F, x, weight):
        return x * weight

devices = [mx.cpu(0), mx.cpu(1)]
net = Times()
net.initialize(ctx=devices)
{cast}
trainer = gluon.Trainer(net.collect_params(), "sgd", {{"learning_rate": 0.5}})
amp.init_trainer(trainer)
for x in (1, np.inf, 1):
    with autograd.record():
        losses = [net(nd.array([x], ctx=device)) for device in devices]
        with amp.scale_loss(losses, trainer) as scaled:
            autograd.backward(scaled)
    trainer.step(2)
    print(f"data {{x:3}}: the weight is {{net.weight.data(devices[0]).asscalar():g}}")
"""
print("mxnet.contrib.amp")
elsewhere(TWO_DEVICES.format(start="from mxnet.contrib import amp\namp.init()", cast=""))
print("\ngluon_amp, the same lines after a cast")
elsewhere(
    TWO_DEVICES.format(start="import gluon_amp as amp", cast="amp.cast(net, 'mixed_float16')")
)

# %% [markdown]
# Third, the check for overflows. `net.cast('float16')` leaves BatchNorm in
# float32, and the check cannot read two dtypes. (`LossScaler` alone patches
# nothing, so it may run here.)

# %%
parameters = [gluon.Parameter(d, shape=(1,), dtype=d) for d in ("float16", "float32")]
for parameter in parameters:
    parameter.initialize()
try:
    LossScaler().has_overflow(parameters)
    raised = False
except mx.MXNetError as error:
    raised = True
    shown = str(error).strip().splitlines()[-1].partition("TBlob")[2]
    print(textwrap.fill(f"contrib.amp: MXNetError: TBlob{shown}", 78, subsequent_indent=" " * 13))
assert raised
step_of_two = amp.Trainer(parameters, "sgd", loss_scale=128)
with autograd.record():
    loss = parameters[0].data().astype("float32") + parameters[1].data()
step_of_two.backward(loss)
report = step_of_two.step(1)
print(f"gluon_amp:   applied={report.applied} with loss scale {report.loss_scale:g}")
assert report.applied

# %% [markdown]
# ### The scale
#
# Both scales halve after an overflow. But `contrib.amp` takes the new one into
# use a step late: the step after an overflow still has the old scale,
# overflows as well, and halves it again. So it ends half as large as need be.
# And nothing stops the scale on its way down: on data that are not finite it
# reaches 0.
#
# Left, gradients that grow in three stages, the same for both; a step
# overflows where gradient times scale is above 65504. Right, a network whose
# gradients are never finite.


# %%
class Theirs:
    """contrib.amp's LossScaler, which learns from a gradient whether a step overflowed."""

    def __init__(self):
        self.scaler, self.parameter = LossScaler(), gluon.Parameter("p", shape=(1,))
        self.parameter.initialize()

    @property
    def scale(self):
        return self.scaler.loss_scale

    def update(self, finite):
        self.parameter.grad()[:] = 1 if finite else np.inf
        self.scaler.has_overflow([self.parameter])


def run(scale, largest):
    """The scales, and the skipped steps, where the gradients' largest number is given."""
    scales, skipped = [], []
    for number, value in enumerate(largest):
        scales.append(scale.scale)
        finite = np.isfinite(value) and value * scale.scale <= 65504
        if not finite:
            skipped.append(number)
        scale.update(finite)
    return scales, skipped


largest = np.repeat([25.0, 100.0, 400.0], 12)
always = np.full(1200, np.inf)
SCALES = (
    ("mxnet.contrib.amp", Theirs, "#fd8d3c", "-"),
    ("gluon_amp", amp.DynamicLossScale, "#08306b", "--"),
)
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.2))
ends = {}
for name, kind, colour, line in SCALES:
    scales, skipped = run(kind(), largest)
    ends[name] = len(skipped), scales[-1]
    left.step(range(len(scales)), scales, line, where="mid", color=colour, label=name)
    left.plot(skipped, np.array(scales)[skipped], "x", color=colour, markersize=8)
    fallen = np.array(run(kind(), always)[0])
    right.plot(np.log2(np.maximum(fallen, 2.0**-1074)), line, color=colour, label=name)
    if fallen[-1] == 0:
        zero = int((fallen == 0).argmax())
        right.annotate(
            f"0 from step {zero} on",
            (zero, -1074),
            (350, -1000),
            color=colour,
            arrowprops={"arrowstyle": "->", "color": colour},
        )
for start in (12, 24):
    left.axvline(start - 0.5, color="#444444", linestyle=":", linewidth=1)
    left.text(start - 0.2, 2.0**15.7, "gradients\nfour times\nas large", va="top", fontsize=9)
left.set_yscale("log", base=2)
left.set(xlabel="step", ylabel="loss scale", title="The same gradients; × is a skipped step")
left.legend(loc="lower left")
right.set(xlabel="step", ylabel="log2 of the loss scale", title="Every step overflows")
right.text(600, 25, "gluon_amp stays at 2^-24", color="#08306b", ha="center")
right.set_ylim(-1130, 90)
figure.tight_layout()
plt.show()

print(f"{'':20} steps skipped   scale at the end")
for name, (skips, scale_now) in ends.items():
    print(f"{name:20} {skips:13} {scale_now:18g}")
assert ends["gluon_amp"][0] < ends["mxnet.contrib.amp"][0]
assert ends["gluon_amp"][1] > ends["mxnet.contrib.amp"][1]
assert run(Theirs(), always)[0][-1] == 0 and run(amp.DynamicLossScale(), always)[0][-1] == 2**-24

# %% [markdown]
# At its floor our scale can do no more, so the Trainer ends such a run after
# `max_consecutive_skips`, and says where it happened.

# %%
lone = nn.Dense(1, in_units=1)
lone.initialize()
amp.cast(lone, "float16")
hopeless = amp.Trainer(lone.collect_params(), "sgd", loss_scale=1, max_consecutive_skips=5)
steps = 0
try:
    while True:
        with autograd.record():
            loss = lone(nd.array([[np.inf]]))
        hopeless.backward(loss)
        hopeless.step(1)
        steps += 1
except FloatingPointError as error:
    print(textwrap.fill(f"FloatingPointError: {error}", 78, subsequent_indent="  "))
assert steps == 4 and np.isfinite(lone.weight.data().asscalar())

# %% [markdown]
# ### Line by line
#
# The [guide](../docs/guide/from_contrib_amp.md) has this table; here each right-hand side is run.


# %%
def small(policy=None, **settings):
    mlp = nn.HybridSequential()
    mlp.add(nn.Dense(8, in_units=4), nn.Activation("tanh"), nn.Dense(2, in_units=8))
    mlp.initialize()
    if policy is not None:
        amp.cast(mlp, policy)
    return mlp


def backward(mlp, owner):
    with autograd.record():
        loss = (mlp(nd.ones((3, 4))) ** 2).mean()
    owner.backward(loss)


def sgd(mlp, **settings):
    return amp.Trainer(mlp.collect_params(), "sgd", {"learning_rate": 0.1}, **settings)


def computes_in(mlp, op):
    rows = amp.describe(mlp, nd.ones((3, 4))).rows
    return {row.compute_dtype for row in rows if row.op == op}


def init():
    mlp = small()
    amp.cast(mlp, "mixed_float16")
    assert computes_in(mlp, "FullyConnected") == {"float16"}
    amp.cast(mlp, "float32")
    assert computes_in(mlp, "FullyConnected") == {"float32"}


def bfloat16():
    policies = {one["policy"]: one for one in amp.doctor().to_dict()["policies"]}
    if not policies["bfloat16"]["runs"]:
        return "not on this CPU"
    assert computes_in(small("bfloat16"), "FullyConnected") == {"bfloat16"}
    return "runs"


def pin():
    policy = amp.Policy.parse("mixed_float16").pin(ops=["Activation"])
    mlp = small(policy)
    assert computes_in(mlp, "Activation") == {"float32"}
    assert computes_in(mlp, "FullyConnected") == {"float16"}


def masters():
    mlp = small("float16")
    owner = sgd(mlp)
    backward(mlp, owner)
    owner.step(3)
    assert {np.dtype(v.dtype).name for v in owner.master_params().values()} == {"float32"}


def init_trainer():
    mlp = small("float16")
    owner = gluon.Trainer(mlp.collect_params(), "sgd", {"multi_precision": True})
    amp.init_trainer(owner)
    backward(mlp, owner)
    assert owner.step(3).applied


def scale_loss():
    mlp = small("float16")
    owner = sgd(mlp)
    with autograd.record():
        loss = (mlp(nd.ones((3, 4))) ** 2).mean()
        with amp.scale_loss(loss, owner) as scaled:
            autograd.backward(scaled)
    assert owner.step(3).applied


def step_report():
    mlp = small("float16")
    owner = sgd(mlp)
    backward(mlp, owner)
    report = owner.step(3)
    assert report.applied and report.loss_scale == 65536


def clip():
    mlp = small("mixed_float16")
    owner = sgd(mlp)
    backward(mlp, owner)
    assert owner.clip_global_norm(1e-3, batch_size=3) > 1e-3
    owner.step(3)
    backward(mlp, owner)
    amp.unscale(owner)
    owner.step(3)


def read_scale():
    for asked, expected in (("dynamic", 65536), (128, 128), (None, 1)):
        assert sgd(small("float16"), loss_scale=asked).loss_scale.scale == expected


def kept_scale():
    mlp = small("float16")
    owner = sgd(mlp, loss_scale=amp.DynamicLossScale(2.0**10))
    backward(mlp, owner)
    owner.step(3)
    owner.loss_scale.update(False)
    owner.save_states(f"{FOLDER.name}/states")
    fresh = sgd(mlp, loss_scale=amp.DynamicLossScale(2.0**10))
    fresh.load_states(f"{FOLDER.name}/states")
    assert fresh.loss_scale.scale == 512


def convert_symbol():
    assert dtypes["fc"] == dtypes["fc_weight"] == "float16" and dtypes["softmax"] == "float32"


def convert_block():
    mlp = small("float16")
    owner = sgd(mlp)
    losses = []
    for _ in range(20):
        with autograd.record():
            loss = ((mlp(nd.ones((3, 4))) - 1) ** 2).sum()
        owner.backward(loss)
        owner.step(3)
        losses.append(loss.asscalar())
    assert losses[-1] < losses[0] / 2


def bucketing():
    def generate(length):
        out = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2, flatten=False, name="fc")
        return mx.sym.SoftmaxOutput(out.sum(axis=1), name="softmax"), ("data",), ("softmax_label",)

    buckets = amp.symbolic.BucketingModule(
        generate, default_bucket_key=5, policy="float16", loss_scale=128
    )
    buckets.bind([("data", (2, 5, 3))], [("softmax_label", (2,))])
    buckets.init_params()
    buckets.init_optimizer()
    for length in (5, 3):
        batch = mx.io.DataBatch(
            [nd.ones((2, length, 3))],
            [nd.zeros((2,))],
            bucket_key=length,
            provide_data=[("data", (2, length, 3))],
            provide_label=[("softmax_label", (2,))],
        )
        buckets.forward(batch)
        buckets.backward()
        buckets.update()
    assert buckets.last_report.applied


TABLE = (
    ("amp.init()", "amp.cast(net, 'mixed_float16')", init),
    ("amp.init(target_dtype='bfloat16')", "amp.cast(net, 'bfloat16')", bfloat16),
    ("amp.init(fp32_ops=[...])", "Policy.parse(...).pin(ops=[...])", pin),
    ("net.cast, multi_precision=True", "amp.cast, amp.Trainer", masters),
    ("amp.init_trainer(trainer)", "the same, on any trainer", init_trainer),
    ("with amp.scale_loss(loss, trainer)", "the same, or trainer.backward", scale_loss),
    ("trainer.step(n)", "the same: a StepReport", step_report),
    ("amp.unscale(trainer), clip", "trainer.clip_global_norm", clip),
    ("no loss scale to read or set", "trainer.loss_scale, loss_scale=", read_scale),
    ("save_states forgets the scale", "it keeps it", kept_scale),
    ("amp.convert_model, convert_symbol", "amp.symbolic.convert", convert_symbol),
    ("amp.convert_hybrid_block", "amp.cast, and it trains", convert_block),
    ("amp.convert_bucketing_module", "amp.symbolic.BucketingModule", bucketing),
)
print(f"{'mxnet.contrib.amp':36} {'gluon_amp':34} here")
for theirs, ours, check in TABLE:
    print(f"{theirs:36} {ours:34} {check() or 'runs'}")

# %% [markdown]
# ## Summary
#
# - `amp.symbolic.Module` is `mx.mod.Module` with a policy and a loss scale;
#   `fit`, callbacks, checkpoints and `score` are MXNet's.
# - From the same weights, Gluon and Module give the same losses, but for the
#   order of a few sums, and the same loss scale at every step.
# - The cast is a graph pass: products and their weights become float16,
#   BatchNorm's parameters and the loss stay float32.
# - `grad_scale` and `rescale_grad` keep the meaning that they have in float32.
# - `contrib.amp` changes the process, halves its scale a step late, has no
#   floor, and loses the weights on two devices; the lines that call it may
#   stay, with another import.
#
# ## Exercises
#
# 1. Give the Module `loss_scale=2**20` and look at `module.last_report`: what
#    was skipped, and what became of the running statistics?
# 2. Pin the last layer with `amp.Policy.parse('float16').pin(blocks=['fc'])`
#    and draw the graph again. Where do casts appear?
# 3. Set `growth_interval=50` in an `amp.DynamicLossScale` for both trainings.
#    Do they still have the same scale at every step?
# 4. Take a script of yours that uses `contrib.amp`, change its import, and
#    delete `amp.init()`. Which rows of the table did it need?

# %% tags=["environment"]
FOLDER.cleanup()
cpu = amp.doctor().to_dict()["cpu"]
print(f"Python {platform.python_version()}, MXNet {mx.__version__}, numpy {np.__version__}")
print(f"CPU: {cpu['name']}, {cpu['cores']} cores; GPUs: {mx.context.num_gpus()}")
print("gluon_amp", amp.__version__)
