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
# # Symbol and Module
#
# This notebook trains one network twice in float16, once with Gluon and once
# with `amp.symbolic.Module`, from the same weights and on the same batches. It
# then shows what the cast changes in the graph, node by node.

# %% tags=["parameters"] short={"EPOCHS": 1}
SEED = 0
EPOCHS = 6
BATCH = 32
RATE = 0.05

# %%
import json
import os
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
from mxnet.gluon import nn

# %matplotlib inline
os.environ["MXNET_SUBGRAPH_VERBOSE"] = "0"  # MXNet reports every graph that it binds
plt.style.use(figures.STYLE)
FOLDER = tempfile.TemporaryDirectory()

# %% [markdown]
# ## The same network, twice
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
# The network as Gluon blocks and as a symbol. Three defaults differ, so they
# are set here: Symbol's BatchNorm has `fix_gamma=True` and `eps=1e-3`, and
# calls its statistics `moving_mean` and `moving_var`.


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
# Gluon needs a cast, a trainer and a training loop.


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
# The Module has MXNet's own `fit`. Only the policy and the loss scale are new.
# A callback records what the Gluon loop records.


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
# Both train in float16 with a dynamic scale, and in float32 for comparison.

# %%
net, gluon_losses, gluon_scales = train_gluon("float16", "dynamic")
module, module_losses, module_scales = train_module("float16", "dynamic")
apart = np.abs(gluon_losses - module_losses)
apart_in_float32 = np.abs(train_gluon("float32", None)[1] - train_module("float32", None)[1])

figure, (above, below) = plt.subplots(
    2, 1, figsize=(8, 6), sharex=True, gridspec_kw={"height_ratios": (3, 2)}
)
above.plot(
    gluon_losses,
    color=figures.COLOURS["float16"],
    linewidth=5,
    alpha=0.4,
    label="Gluon: amp.cast, amp.Trainer",
)
above.plot(module_losses, color="black", linewidth=1, label="Module: amp.symbolic.Module")
above.set_ylabel("training loss of a batch")
above.set_title(f"One network in float16, in Gluon and as a Module, seed {SEED}")
above.legend()
FLOOR = 1e-9
for values, colour, label in (
    (apart, figures.COLOURS["float16"], "float16"),
    (apart_in_float32, figures.COLOURS["float32"], "float32"),
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
assert apart[:5].max() < 1e-2 and apart_in_float32[:6].max() < 1e-4  # after 4 updates and 5

# %% [markdown]
# The losses are not equal: the output above has their median difference.
# They start one rounding of float32 apart, because Gluon differentiates the
# logarithm of its softmax, and `SoftmaxOutput` computes its gradient itself.
# Training amplifies the difference, in float32 too. In float16 it grows sooner,
# because a weight that is rounded in the other direction differs by 2^-11 of
# its value. This is one seed, so it does not show which network is better. On
# the validation images:


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
# ## The graph, node by node
#
# The Module first calls `amp.symbolic.convert`, which returns a symbol. MXNet's
# own type inference shows the dtype of the output of every node.

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
COLOURS = {dtype: figures.COLOURS[dtype] for dtype in ("float32", "float16")}


def box(axes, x, y, text, dtype, width):
    axes.text(
        x,
        y,
        text,
        ha="center",
        va="center",
        fontsize=9,
        color="white",
        bbox={"boxstyle": f"round,pad={width}", "facecolor": COLOURS[dtype], "edgecolor": "black"},
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
            axes.plot([1, 1], [y, y + step], color="black", zorder=0)
        parameters = [read for read in reads if read not in {n for n, *_ in chain}]
        if parameters and op != "SoftmaxOutput":  # which reads the label
            # weight and bias, or BatchNorm's four: one dtype each time
            (kind,) = {dtypes[parameter] for parameter in parameters}
            axes.plot([0.1, 1], [y, y], color="black", linewidth=0.8, zorder=0)
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
figure.suptitle("The colour of an operator is the dtype of its output")
figure.tight_layout(rect=(0, 0.04, 1, 1))
plt.show()

# %% [markdown]
# BatchNorm keeps parameters and statistics in float32, but reads and writes
# float16.

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
# ## Loss scaling with literal numbers
#
# A Symbol's loss head computes its gradient itself, so there is no loss to
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
# Without a scale the weight does not move. The FAQ's recipe works if the two
# numbers match and the scale never changes. With `loss_scale=`, `grad_scale`
# and `rescale_grad` mean the same as in float32, the scale may be dynamic, and
# an overflow skips the step.

# %% [markdown]
# ## Checkpoint and export
#
# A checkpoint has the original network with the float32 masters. Stock MXNet
# loads it, and so does Gluon.

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
# The Gluon network can be exported as well: a stock Module reads what
# `net.export` writes.

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
# A Module resumes from its checkpoint: the optimizer's states, the masters and
# the loss scale are in the `.states` file.

# %%
again = amp.symbolic.Module.load(prefix, EPOCHS, load_optimizer_states=True, policy="float16")
again.bind(train.provide_data, train.provide_label)
again.init_optimizer(optimizer="sgd", optimizer_params={"learning_rate": RATE, "momentum": 0.9})
print("loss scale:", module.loss_scale.scale, "->", again.loss_scale.scale)
assert again.loss_scale.state_dict() == module.loss_scale.state_dict()

# %% [markdown]
# ## Summary
#
# - `amp.symbolic.Module` is `mx.mod.Module` with a policy and a loss scale;
#   `fit`, callbacks, checkpoints and `score` are MXNet's.
# - From the same weights, Gluon and Module had the same loss scale at every
#   step of this run. Their losses start one rounding apart, and the difference
#   grows.
# - The cast is a graph pass: matrix products, convolutions and their weights
#   become float16, and the loss stays float32.
# - `grad_scale` and `rescale_grad` mean the same as in float32.
#
# Next: [moving from `mxnet.contrib.amp`](6_moving_from_contrib_amp.ipynb).
#
# ## Exercises
#
# 1. Give the Module `loss_scale=2**20` and look at `module.last_report`: what
#    was skipped, and how did the running statistics change?
# 2. Pin the last layer with `amp.Policy.parse('float16').pin(blocks=['fc'])`
#    and draw the graph again. Where do casts appear?
# 3. Set `growth_interval=50` in an `amp.DynamicLossScale` for both trainings.
#    Do they still have the same scale at every step?

# %% tags=["environment"]
FOLDER.cleanup()
cpu = amp.doctor().to_dict()["cpu"]
print(f"Python {platform.python_version()}, MXNet {mx.__version__}, numpy {np.__version__}")
print(f"CPU: {cpu['name']}, {cpu['cores']} cores; GPUs: {mx.context.num_gpus()}")
print("gluon_amp", amp.__version__)
