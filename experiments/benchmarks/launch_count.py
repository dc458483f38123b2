"""Counts what one training step makes a device do: the operators it runs, and the host's reads.

It runs on a CPU, with the operators that a GPU would run: a GPU launches a kernel or more for each,
and is idle while the host reads and has not launched more. The C++ kernels of gluon_amp are off,
and what it computes apart from a network takes the ways of a GPU
(`gluon_amp.base.host.as_on_a_gpu`). A network's own operators are those of the emulation here, so
they are counted apart.

The process gets a `Counting` as JSON and prints its `Counts`.
"""

import contextlib
import dataclasses
import json
import math
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Callable, Iterable, List, NamedTuple, Tuple

ENVIRONMENT = {
    "GLUON_AMP_NATIVE": "0",
    # A bulk of operators would count as one.
    "MXNET_EXEC_BULK_EXEC_TRAIN": "0",
    "MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN": "1",
    "MXNET_EXEC_BULK_EXEC_INFERENCE": "0",
}
BATCH, PIXELS, WORDS = 4, 48, 16
STEPS = 2  # that are counted, after WARM_UP steps
WARM_UP = 3  # the first creates the optimizer's states, the second syncs the masters
HOUSEKEEPING = {"DeleteVariable", "WaitForVar"}  # which run on the host
# Parts of updates whose names do not end in "_update": LARS's rates, and a factor of AdamW's
OF_UPDATES = {"multi_lars", "multi_sum_sq", "_full", "_zeros"}
READS = {"MXNDArraySyncCopyToCPU", "MXNDArrayWaitToRead", "MXNDArrayWaitToWrite"}
UPLOAD = "MXNDArraySyncCopyFromCPU"


@dataclasses.dataclass(frozen=True)
class Counting:
    """What to count.

    Attributes
    ----------
    network : str
        One of `NETWORKS`.
    system : str
        One of `SYSTEMS`.
    optimizer : str
    devices : int
    clip : bool
        Whether the global norm of the gradients is clipped.
    """

    network: str
    system: str
    optimizer: str = "sgd"
    devices: int = 1
    clip: bool = False


@dataclasses.dataclass(frozen=True)
class Counts:
    """Means over steps.

    Attributes
    ----------
    passes : float
        Operators of the forward and the backward pass without a trainer.
    trainer : float
        All others.
    reads : float
        Calls that wait for a device.
    uploads : float
        Copies of host memory to a device.
    after : list of str
        Operators that began after the last read, without updates; none without a read.
    """

    passes: float
    trainer: float
    reads: float
    uploads: float
    after: List[str]


def main(argument: str) -> None:
    """Count, and print the result as JSON."""
    print(json.dumps(dataclasses.asdict(count(Counting(**json.loads(argument))))))


def count(case: Counting) -> Counts:
    """Return the counts of a case; MXNet has to be new to this process, for contrib.amp."""
    import gluon_amp
    from gluon_amp.base.host import as_on_a_gpu

    import mxnet as mx

    contexts = [mx.cpu(number) for number in range(case.devices)]
    mx.random.seed(0)
    with as_on_a_gpu():
        net, inputs = SYSTEMS[case.system].prepare(gluon_amp, *NETWORKS[case.network](contexts))
        passes = _Passes(net, inputs)
        alone, whole = _traces(
            # A generator: the trainer comes after the passes without one.
            make()
            for make in (
                lambda: lambda: passes.run(mx.autograd.backward),
                lambda: SYSTEMS[case.system].step(gluon_amp, passes, case),
            )
        )
    trainer = len(whole.operators) - len(alone.operators)
    numbers = (len(alone.operators), trainer, len(whole.reads), whole.uploads)
    return Counts(*(number / STEPS for number in numbers), after=sorted(set(whole.after_last_read)))


class _Passes:
    """The forward and backward passes of one step on all devices."""

    def __init__(self, net, inputs):
        self.net, self.inputs = net, inputs
        self.size = sum(len(labels) for _, labels in inputs)
        net.hybridize(static_alloc=True)

    def run(
        self, backward: Callable, scaled: Callable = lambda losses: contextlib.nullcontext(losses)
    ) -> None:
        import mxnet as mx

        loss_fn = mx.gluon.loss.SoftmaxCrossEntropyLoss()
        with mx.autograd.record():
            losses = [
                loss_fn(self.net(*data).astype("float32"), labels) for data, labels in self.inputs
            ]
            with scaled(losses) as scaled_losses:
                backward(scaled_losses)


# ---------------------------------------------------------------------------------------- networks


def _image_network(name: str) -> Callable:
    def build(contexts) -> Tuple:
        import mxnet as mx

        net = mx.gluon.model_zoo.vision.get_model(name, classes=10)
        net.initialize(mx.init.Xavier(), ctx=contexts)
        inputs = [
            ((mx.nd.random.normal(shape=(BATCH, 3, PIXELS, PIXELS), ctx=c),), _labels(c))
            for c in contexts
        ]
        return net, inputs

    return build


def _bert(contexts) -> Tuple:
    """Return an encoder with BERT's operators and 12 layers, which are narrow."""
    import mxnet as mx
    from mxnet.gluon import nn

    units, heads = 32, 4

    class Layer(nn.HybridBlock):
        def __init__(self):
            super().__init__()
            with self.name_scope():
                self.qkv = nn.Dense(3 * units, flatten=False, in_units=units)
                self.project = nn.Dense(units, flatten=False, in_units=units)
                self.wide = nn.Dense(4 * units, flatten=False, in_units=units)
                self.narrow = nn.Dense(units, flatten=False, in_units=4 * units)
                self.gelu = nn.GELU()
                self.norms = [nn.LayerNorm(in_channels=units) for _ in range(2)]
                self.register_child(self.norms[0])
                self.register_child(self.norms[1])

        def hybrid_forward(self, F, x):
            qkv = self.qkv(x)  # (words, batch, 3 * units)
            scores = F.contrib.interleaved_matmul_selfatt_qk(qkv, heads=heads)
            weights = F.softmax(scores, axis=-1)
            mixed = F.contrib.interleaved_matmul_selfatt_valatt(qkv, weights, heads=heads)
            x = self.norms[0](x + self.project(mixed))
            return self.norms[1](x + self.narrow(self.gelu(self.wide(x))))

    class Encoder(nn.HybridBlock):
        def __init__(self):
            super().__init__()
            with self.name_scope():
                self.embedding = nn.Embedding(100, units)
                self.layers = nn.HybridSequential()
                for _ in range(12):
                    self.layers.add(Layer())
                self.head = nn.Dense(10, in_units=units)

        def hybrid_forward(self, F, words):
            x = self.layers(self.embedding(words))
            return self.head(F.mean(x, axis=0))

    net = Encoder()
    net.initialize(mx.init.Xavier(), ctx=contexts)
    return net, [((_words(c),), _labels(c)) for c in contexts]


def _lstm(contexts) -> Tuple:
    import mxnet as mx
    from mxnet.gluon import nn, rnn

    net = nn.HybridSequential()
    net.add(nn.Embedding(100, 16), rnn.LSTM(32, 2, input_size=16), nn.Dense(10, flatten=False))
    last = nn.HybridLambda(lambda F, x: F.SequenceLast(x))
    net.add(last)
    net.initialize(mx.init.Xavier(), ctx=contexts)
    return net, [((_words(c),), _labels(c)) for c in contexts]


def _words(context):
    import mxnet as mx

    return mx.nd.random.randint(0, 100, shape=(WORDS, BATCH), ctx=context).astype("float32")


def _labels(context):
    import mxnet as mx

    return mx.nd.zeros((BATCH,), ctx=context)


NETWORKS = {
    "resnet50_v1": _image_network("resnet50_v1"),
    "mobilenetv2_1.0": _image_network("mobilenetv2_1.0"),
    "BERT-like, 12 layers": _bert,
    "LSTM, 2 layers": _lstm,
}

# ----------------------------------------------------------------------------------------- systems

OPTIONS = {
    "sgd": {"learning_rate": 1e-6, "momentum": 0.9, "wd": 1e-4},
    "nag": {"learning_rate": 1e-6, "momentum": 0.9, "wd": 1e-4},
    "adam": {"learning_rate": 1e-6},
    "adamw": {"learning_rate": 1e-6, "wd": 1e-4},
    "lars": {"learning_rate": 1e-6, "momentum": 0.9, "wd": 1e-4},
    "lamb": {"learning_rate": 1e-6, "wd": 1e-4},
}
MAX_NORM = 1e-3


@dataclasses.dataclass(frozen=True)
class System:
    """Another way to train.

    Attributes
    ----------
    prepare : callable
        Called with gluon_amp, a net and its inputs; returns net and inputs.
    step : callable
        Called with gluon_amp, the passes and the case; returns the training step.
    """

    prepare: Callable
    step: Callable


def _as_it_is(gluon_amp, net, inputs):
    return net, inputs


def _cast(gluon_amp, net, inputs):
    net = gluon_amp.cast(net, "float16")
    net(*inputs[0][0])
    return net, inputs


def _contrib(gluon_amp, net, inputs):
    # A CPU has no float16 convolutions. What the trainer does is the same in bfloat16.
    from mxnet.contrib import amp

    amp.init(target_dtype="bfloat16")
    return net, inputs


def _stock_trainer(passes, case, **options):
    import mxnet as mx

    optimizer = mx.optimizer.create(case.optimizer, **OPTIONS[case.optimizer], **options)
    # Otherwise the store updates, and there is nothing to clip.
    parameters = passes.net.collect_params()
    return mx.gluon.Trainer(parameters, optimizer, update_on_kvstore=False)


def _stock_step(gluon_amp, passes, case) -> Callable[[], None]:
    import mxnet as mx

    trainer = _stock_trainer(passes, case, multi_precision=True)

    def step() -> None:
        passes.run(mx.autograd.backward)
        _finish(trainer, passes, case)

    return step


def _contrib_step(gluon_amp, passes, case) -> Callable[[], None]:
    import mxnet as mx
    from mxnet.contrib import amp

    trainer = _stock_trainer(passes, case)
    amp.init_trainer(trainer)

    def step() -> None:
        passes.run(mx.autograd.backward, lambda losses: amp.scale_loss(losses, trainer))
        if case.clip:
            amp.unscale(trainer)
        _finish(trainer, passes, case)

    return step


def _finish(trainer, passes, case) -> None:
    """Clip as Gluon's guide does, and update."""
    import mxnet as mx

    if not case.clip:
        trainer.step(passes.size)
        return
    trainer.allreduce_grads()
    trained = [p for p in passes.net.collect_params().values() if p.grad_req != "null"]
    for number in range(case.devices):
        gradients = [parameter.list_grad()[number].astype("float32") for parameter in trained]
        mx.gluon.utils.clip_global_norm(gradients, MAX_NORM)
    trainer.update(passes.size)


def _own_step(gluon_amp, passes, case) -> Callable[[], None]:
    # A low scale, as float16 sums of squares overflow on a CPU.
    trainer = gluon_amp.Trainer(
        passes.net.collect_params(),
        case.optimizer,
        OPTIONS[case.optimizer],
        loss_scale=gluon_amp.DynamicLossScale(init_scale=2**-10),
    )

    def step() -> None:
        passes.run(trainer.backward)
        if case.clip:
            trainer.clip_global_norm(MAX_NORM, passes.size)
        assert trainer.step(passes.size).applied

    return step


SYSTEMS = {
    "gluon.Trainer, float32": System(_as_it_is, _stock_step),
    "gluon.Trainer, float16": System(_cast, _stock_step),
    "contrib.amp": System(_contrib, _contrib_step),
    "gluon_amp, float16": System(_cast, _own_step),
}

# ------------------------------------------------------------------------------------------ tracing


class Event(NamedTuple):
    """An operator or a call, and when it began or ended: microseconds since 1970."""

    time: float
    name: str


@dataclasses.dataclass(frozen=True)
class _Trace:
    """What MXNet's profiler wrote down, in the order of time.

    Operators are listed as they begin, and reads as they end.
    """

    operators: List[Event]
    reads: List[Event]
    uploads: int

    @property
    def after_last_read(self) -> List[str]:
        last = max((read.time for read in self.reads), default=math.inf)
        names = [name for began, name in self.operators if began > last]
        return [n for n in names if not n.endswith("_update") and n not in OF_UPDATES]


def _traces(steps: Iterable[Callable[[], object]]) -> List[_Trace]:
    """Run some steps of each kind, one kind after the other, and return what each ran.

    MXNet can write the trace of a process once, so the kinds are told apart by their times.
    """
    import mxnet as mx

    intervals = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        mx.profiler.set_config(profile_all=True, aggregate_stats=False, filename=str(path))
        mx.profiler.set_state("run")
        for step in steps:
            for _ in range(WARM_UP):
                step()
            mx.nd.waitall()
            began = time.time()
            for _ in range(STEPS):
                step()
            called = time.time()
            mx.nd.waitall()
            intervals.append((1e6 * began, 1e6 * called, 1e6 * time.time()))
        mx.profiler.set_state("stop")
        mx.profiler.dump(finished=True)
        events = json.loads(path.read_text())["traceEvents"]
    operators = _chosen(events, "operator", "B")
    calls = _chosen(events, "MXNET_C_API", "e")
    return [
        _Trace(
            [one for one in operators if one.name not in HOUSEKEEPING and start < one.time < end],
            [one for one in calls if one.name in READS and start < one.time < called],
            sum(one.name == UPLOAD and start < one.time < called for one in calls),
        )
        for start, called, end in intervals
    ]


def _chosen(events: List[dict], category: str, phase: str) -> List[Event]:
    """Return what began ('B' for operators) or ended ('e' for calls), in the order of time."""
    chosen = [one for one in events if one.get("cat") == category and one["ph"] == phase]
    return sorted(Event(one["ts"], one["name"]) for one in chosen)


if __name__ == "__main__":
    os.environ.update(ENVIRONMENT)
    main(sys.argv[1])
