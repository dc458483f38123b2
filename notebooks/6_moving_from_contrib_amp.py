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
# # Moving from mxnet.contrib.amp
#
# MXNet has mixed precision of its own in `mxnet.contrib.amp`. This notebook
# shows four of its faults, and runs the same lines with gluon_amp. The
# [migration table](../docs/guide/from_contrib_amp.md) lists what to write
# in place of each function; `tests/test_migration_lines.py` runs each row.

# %% tags=["parameters"] short={"STEPS": 1200}
SEED = 0
STEPS = 1200  # of gradients that are never finite

# %%
import platform
import subprocess
import sys
import textwrap

import matplotlib.pyplot as plt
import numpy as np

import gluon_amp as amp
from gluon_amp.inspection import figures

import mxnet as mx
from mxnet import autograd, gluon, nd
from mxnet.contrib.amp.loss_scaler import LossScaler
from mxnet.gluon import nn

# %matplotlib inline
plt.style.use(figures.STYLE)
mx.random.seed(SEED)

# %% [markdown]
# ## It changes the whole process
#
# `contrib.amp` replaces MXNet's functions for the whole process, so it runs in
# processes of its own here. In the first one, a layer that was built before
# `amp.init()` gets float16 inputs too. A CPU has no float16 products, so the
# layer fails.


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
# With gluon_amp a cast belongs to one network and can be undone.

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
# ## An overflow on two devices destroys the weights
#
# With two devices MXNet's Trainer updates on the kvstore by default, before
# `contrib.amp` checks for an overflow. The first overflow destroys the weights,
# and training continues.

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
# ## The overflow check reads one dtype
#
# `net.cast('float16')` leaves BatchNorm's parameters in float32, and the check
# cannot read two dtypes. (`LossScaler` alone changes nothing in MXNet, so it
# can run in this process.)

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
# ## The loss scale
#
# Both scales halve after an overflow. `contrib.amp` uses the new scale one step
# late: the next step still has the old scale, overflows as well, and halves it
# again. Its scale is then half of the one that fits. It also has no lower bound:
# if gradients are never finite, it reaches 0.
#
# In the first figure, both get the same gradients, which grow in three stages.
# A step overflows if gradient times scale exceeds 65504. In the second figure,
# the gradients are never finite.


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
always = np.full(STEPS, np.inf)
SCALES = (
    ("mxnet.contrib.amp", Theirs, figures.BROKEN, "-"),
    ("gluon_amp", amp.DynamicLossScale, figures.COLOURS["float16"], "--"),
)
(growing, left), (endless, right) = (plt.subplots(figsize=(8, 3.8)) for _ in range(2))
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
    left.axvline(start - 0.5, color=figures.SUPPORT, linestyle=":", linewidth=1)
    left.text(start - 0.2, 2.0**15.7, "gradients\nfour times\nas large", va="top", fontsize=9)
left.set_yscale("log", base=2)
left.set(xlabel="step", ylabel="loss scale", title="The same gradients; × is a skipped step")
left.legend(loc="lower left")
right.set(xlabel="step", ylabel="log2 of the loss scale", title="Every step overflows")
right.text(600, 25, "gluon_amp stays at 2^-24", color=figures.COLOURS["float16"], ha="center")
right.set_ylim(-1130, 90)
for figure in (growing, endless):
    figure.tight_layout()
plt.show()

print(f"{'':20} steps skipped   scale at the end")
for name, (skips, scale_now) in ends.items():
    print(f"{name:20} {skips:13} {scale_now:18g}")
assert ends["gluon_amp"][0] < ends["mxnet.contrib.amp"][0]
assert ends["gluon_amp"][1] > ends["mxnet.contrib.amp"][1]
assert run(Theirs(), always)[0][-1] == 0 and run(amp.DynamicLossScale(), always)[0][-1] == 2**-24

# %% [markdown]
# A dynamic scale of gluon_amp stops at its lower bound. The Trainer ends such a
# run after `max_consecutive_skips` and names the block that overflows.

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
# ## Summary
#
# - `contrib.amp` changes the process; `amp.cast` changes one network.
# - `contrib.amp` halves its scale a step late and has no lower bound.
# - `contrib.amp` loses the weights on two devices.
# - The lines that call `init_trainer`, `scale_loss` and `unscale` may stay,
#   with another import.
#
# ## Exercise
#
# Take a script of yours that uses `contrib.amp`, change its import, and delete
# `amp.init()`. Which rows of the table did it need?

# %% tags=["environment"]
cpu = amp.doctor().to_dict()["cpu"]
print(f"Python {platform.python_version()}, MXNet {mx.__version__}, numpy {np.__version__}")
print(f"CPU: {cpu['name']}, {cpu['cores']} cores; GPUs: {mx.context.num_gpus()}")
print("gluon_amp", amp.__version__)
