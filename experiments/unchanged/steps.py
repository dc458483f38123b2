"""The steps of random trainings: reports, scales and each bit of weights, gradients and masters."""

import random
from functools import partial, reduce
from pathlib import Path
from typing import Any, Callable, Iterator, List, Tuple

import numpy as np

from experiments.unchanged.networks import STUDY
from experiments.unchanged.outcome import amp, array_text, mx

from mxnet import autograd, gluon, nd
from mxnet.gluon import nn, rnn

CASES, STEPS, BATCH, CLASSES, WORDS = 600, 7, 4, 3, 11
SAVED = 3  # the step after which a training is saved and loaded into new objects
# How a training is driven
STORIES = """plain accumulated added devices resumed stock shared arrays averaged stale misused
module buckets""".split()
POLICIES = ("float16", "float16", "mixed_float16", "bfloat16", "float32", STUDY)
OPTIMIZERS = ("sgd", "nag", "adam", "adamw", "lars", "lamb", "rmsprop")
# What a misused trainer is asked for, at any time
CALLS = ("step", "step", "update", "clip_global_norm", "allreduce_grads", "master_params")
EVENTS = ("", "", "overflow", "not a number", "veto", "clip")


def steps() -> Iterator[Tuple[str, Callable[[], str]]]:
    """Yield a training for each seed."""
    for seed in range(CASES):
        story = STORIES[seed % len(STORIES)]
        make = module_steps if story in ("module", "buckets") else gluon_steps
        yield f"{seed} {story}", partial(make, story, seed)


def scale_of(draw: random.Random) -> Any:
    """Draw a loss scale: 'dynamic' searches for the first scale."""
    dynamic = partial(amp.DynamicLossScale, growth_interval=2)
    first = 2.0 ** draw.choice((4, 15, 24))
    slow = dynamic(first, growth_interval=3, hysteresis=2, min_scale=2.0**-4)
    return draw.choice(("dynamic", "dynamic", dynamic(first), slow, 1024.0, None))


def net_of(kind: str) -> gluon.Block:
    """Return a small network for images, or for words."""
    net = nn.Sequential() if kind == "python" else nn.HybridSequential()
    if kind == "words":
        net.add(nn.Embedding(WORDS, 6), rnn.LSTM(5, layout="NTC"), nn.LayerNorm(), nn.Dropout(0.3))
    else:
        net.add(nn.Conv2D(8, 3, padding=1), nn.BatchNorm(), nn.PReLU(), nn.Conv2D(6, 3, strides=2))
        net.add(nn.BatchNorm(scale=False), nn.Activation("relu"), nn.Dropout(0.2), nn.Flatten())
    net.add(nn.Dense(7, activation="tanh"), nn.Dense(CLASSES))
    return net


def told(function: Callable[..., Any], *arguments: Any, **options: Any) -> str:
    """Return the result of a call, with its attributes, or the sentence in which it refuses."""
    try:
        result = function(*arguments, **options)
    except (RuntimeError, TypeError, ValueError, UserWarning) as error:
        return f"{type(error).__name__}: {error}"
    return f"{result!r} {vars(result) if isinstance(result, amp.StepReport) else ''}"


class Training:
    """A net and its trainers, as a story and a seed draw them; built twice, it is the same."""

    def __init__(self, story: str, seed: int) -> None:
        self.draw = draw = random.Random(seed)
        self.story, self.event = story, ""
        self.arrays = mx.np if story == "arrays" else nd
        self.devices = [mx.cpu(0), mx.cpu(1)] if story == "devices" else [mx.cpu()]
        self.kind = draw.choice(("images", "images", "words", "python"))
        self.net = net_of(self.kind)
        self.layers, self.spare = list(self.net), nn.Dense(2, in_units=2)
        if story == "stale":
            self.net.register_child(self.spare, "spare")
        self.net.initialize(mx.init.Xavier(), ctx=self.devices)
        self.net.hybridize(static_alloc=draw.random() < 0.5)
        amp.cast(self.net, draw.choice(POLICIES))
        params = self.net.collect_params()
        if draw.random() < 0.3:
            params[sorted(params)[0]].grad_req = "null"
        optimizer, rate = draw.choice(OPTIMIZERS), draw.choice((0.01, 0.1))
        options = {"learning_rate": rate, "wd": draw.choice((0.0, 1e-3))}
        if draw.random() < 0.4:
            options["lr_scheduler"] = mx.lr_scheduler.FactorScheduler(2, 0.5, base_lr=rate)
        how = {"loss_scale": scale_of(draw)}
        how["on_step"] = (lambda *_: self.event != "veto") if draw.random() < 0.4 else None
        if story == "stock":
            self.trainers = [gluon.Trainer(params, optimizer, options, update_on_kvstore=False)]
            amp.init_trainer(self.trainers[0], **how)
        else:
            parts = [params]
            if story == "shared":  # two trainers with one scale
                parts = [{name: params[name] for name in sorted(params)[i::2]} for i in range(2)]
                if how["loss_scale"] in ("dynamic", None):
                    how["loss_scale"] = amp.DynamicLossScale()
            self.trainers = [amp.Trainer(part, optimizer, options, **how) for part in parts]
        if story == "added":
            params.setattr("grad_req", "add")
        self.average = amp.EMA(self.net, self.trainers[0], 0.75) if story == "averaged" else None

    def step(self, number: int) -> List[str]:
        """Train once; return what happened."""
        self.event = self.draw.choice(EVENTS)
        parts = [f"step {number} {self.event}", self.misuse()]
        for each in range({"accumulated": 3, "added": 2}.get(self.story, 1)):
            parts += self.backward(10 * number + each, number)
        if self.event == "not a number":
            trained = [p for p in self.net.collect_params().values() if p.grad_req != "null"]
            trained[2].grad(self.devices[-1])[:] = np.nan
        for trainer in self.trainers:
            if self.event == "clip":
                parts.append(told(trainer.clip_global_norm, 0.5))
            parts.append(self.misuse())
            report = told(trainer.step, BATCH, ignore_stale_grad=self.story == "stale")
            parts += [report, f"next scale {trainer.loss_scale.scale}", self.misuse()]
        if self.story == "added":
            self.net.collect_params().zero_grad()
        return [*parts, *self.state()]

    def misuse(self) -> str:
        """Call a method of a misused trainer, in time or not; return what it says."""
        if self.story != "misused" or self.draw.random() < 0.4:
            return ""
        name, trainer = self.draw.choice(CALLS), self.trainers[0]
        needs = {"step": (BATCH,), "update": (BATCH,), "clip_global_norm": (1.0,)}
        return f"{name}: {told(getattr(trainer, name), *needs.get(name, ()))}"

    def backward(self, seed: int, number: int) -> List[str]:
        """Run one pass; return its losses."""
        loss_fn = gluon.loss.SoftmaxCrossEntropyLoss()
        trainer, factor = self.trainers[0], 1e36 if self.event == "overflow" else 1.0
        with autograd.record():
            losses = [loss_fn(self.output(x), y) * factor for x, y in self.data(seed)]
            if self.story == "stale" and number % 2:
                losses[0] = losses[0] + self.spare(self.arrays.ones((BATCH, 2))).mean()
            if self.story == "stock":
                with amp.scale_loss(losses, trainer) as scaled:
                    autograd.backward(scaled)
        if self.story == "accumulated":
            trainer.backward(losses, accumulate=True)
        elif self.story != "stock":
            trainer.backward(losses)
        return [array_text("loss", loss) for loss in losses]

    def data(self, seed: int) -> List[Tuple[Any, Any]]:
        """Return the data and labels of a pass, for each device."""
        values = np.random.RandomState(seed)
        words = values.randint(0, WORDS, (BATCH, 5))
        x = words if self.kind == "words" else values.normal(size=(BATCH, 2, 6, 6))
        y = values.randint(0, CLASSES, BATCH)
        make = partial(self.arrays.array, dtype="float32")
        parts = [(slice(i, None, len(self.devices)), d) for i, d in enumerate(self.devices)]
        return [(make(x[part], ctx=device), make(y[part], ctx=device)) for part, device in parts]

    def output(self, x: Any) -> Any:
        """Return the output of the net without its spare layer."""
        if self.story == "stale":
            return reduce(lambda made, layer: layer(made), self.layers, x)
        return self.net(x)

    def state(self) -> List[str]:
        """Return weights, statistics, gradients, masters and averages."""
        parts = []
        for param in self.net.collect_params().values():
            parts += [array_text(param.name, array) for array in param.list_data()]
            if param.grad_req != "null":
                parts += [array_text("  gradient", array) for array in param.list_grad()]
        for trainer in self.trainers:
            masters = trainer.master_params().items()
            parts += [array_text(f"master {name}", array) for name, array in masters]
        averages = self.average.averages.items() if self.average else ()
        return parts + [array_text(f"average {name}", array) for name, array in averages]


def gluon_steps(story: str, seed: int) -> str:
    """Return the steps of a training with Gluon."""
    if story == "arrays":
        mx.npx.set_np()
    try:
        training = Training(story, seed)
        parts: List[str] = []
        for number in range(STEPS):
            parts += training.step(number)
            if number == SAVED and story in ("resumed", "averaged", "devices"):
                amp.save_checkpoint("saved", training.net, training.trainers[0], step=number)
                parts.append(array_text("file", np.fromfile("saved", "uint8")))
                draw, training = training.draw, Training(story, seed)
                loaded = amp.load_checkpoint("saved", training.net, training.trainers[0])
                training.draw = draw
                parts += [repr(loaded), *training.state()]
        return "\n".join(parts)
    finally:
        mx.npx.reset_np()


def symbol_of(length: int) -> Tuple[mx.sym.Symbol, Tuple[str], Tuple[str]]:
    """Return a network for rows of a length, whose parameters all lengths share, and its names."""
    x = mx.sym.Embedding(mx.sym.var("data"), input_dim=WORDS, output_dim=6, name="embed")
    x = mx.sym.reshape(mx.sym.transpose(x, axes=(0, 2, 1)), shape=(0, 0, 1, -1))
    x = mx.sym.Convolution(x, kernel=(1, 3), num_filter=8, name="conv")
    x = mx.sym.BatchNorm(x, fix_gamma=False, name="norm")
    x = mx.sym.mean(mx.sym.Activation(x, act_type="relu"), axis=(2, 3))
    x = mx.sym.FullyConnected(x, num_hidden=1, name="dense")
    head = mx.sym.LinearRegressionOutput(x, mx.sym.var("softmax_label"), name="head")
    return head, ("data",), ("softmax_label",)


def module_steps(story: str, seed: int) -> str:
    """Return the steps of a training with a Module or with buckets, saved and loaded once."""
    draw = random.Random(seed)
    devices = [mx.cpu(0), mx.cpu(1)] if draw.random() < 0.4 else mx.cpu()
    how = {"policy": draw.choice(POLICIES), "loss_scale": scale_of(draw), "context": devices}
    optimizer, kvstore = draw.choice(OPTIMIZERS), draw.choice(("local", None))
    adds = "add" if draw.random() < 0.3 else "write"

    def started(module: Any) -> Any:
        module.bind([("data", (BATCH, 6))], [("softmax_label", (BATCH,))], grad_req=adds)
        module.init_params(mx.init.Xavier())
        module.init_optimizer(kvstore, optimizer, {"learning_rate": 0.05})
        return module

    if story == "buckets":
        module = started(amp.symbolic.BucketingModule(symbol_of, 6, **how))
        how.update(sym_gen=symbol_of, default_bucket_key=6)
    else:
        module = started(amp.symbolic.Module(symbol_of(6)[0], **how))
    parts = [repr(how["policy"])]
    for number in range(STEPS):
        length = draw.choice((6, 5, 3)) if story == "buckets" else 6
        event, values = draw.choice(EVENTS), np.random.RandomState(number)
        x, y = values.randint(0, WORDS, (BATCH, length)), values.normal(size=BATCH)
        y *= 1e37 if event == "overflow" else 1.0
        shapes = [("data", x.shape)], [("softmax_label", y.shape)]
        batch = mx.io.DataBatch([nd.array(x)], [nd.array(y)], None, None, length, *shapes)
        module.forward(batch, is_train=True)
        parts += [f"step {number} {event} {length}", array_text("output", module.get_outputs()[0])]
        module.backward()
        module.update()
        parts += [repr(module.last_report), str(module.loss_scale.scale)]
        for values in module.get_params():
            parts += [array_text(name, values[name]) for name in sorted(values)]
        if number == SAVED:
            module.save_checkpoint("saved", number, save_optimizer_states=True)
            files = sorted(Path().glob("saved*"))
            parts += [array_text(str(file), np.fromfile(file, "uint8")) for file in files]
            loaded = type(module).load("saved", number, load_optimizer_states=True, **how)
            module = started(loaded)
    return "\n".join(parts)
