"""Counts what one training step makes a device do: the operators it runs, and the host's reads.

It runs on a CPU, with the operators that a GPU would run: a GPU launches a kernel or more for each,
and is idle while the host reads and has not launched more. The C++ kernels of gluon_amp are off,
and what it computes apart from a network takes the ways of a GPU
(`gluon_amp.base.host.as_on_a_gpu`). A network's own operators are those of the emulation here, so
they are counted apart.

The cases run in processes of their own: `python -m experiments.benchmarks.launches CASE`.
"""

import contextlib
import dataclasses
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

from experiments import ROOT
from experiments.pages import Parts, Values, table
from experiments.standalone import command_line

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

# The limits: operators of a step beyond those of gluon.Trainer, and reads of each device.
MOST_MORE, MOST_READS = 10, 1
MAX_NORM = 1e-3
FLOAT32, BASE, CONTRIB, OWN = SYSTEMS = (
    "gluon.Trainer, float32",
    "gluon.Trainer, float16",
    "contrib.amp",  # in bfloat16, as a CPU has no float16 convolutions
    "gluon_amp, float16",
)
OPTIMIZERS = {
    "sgd": {"learning_rate": 1e-6, "momentum": 0.9, "wd": 1e-4},
    "nag": {"learning_rate": 1e-6, "momentum": 0.9, "wd": 1e-4},
    "adam": {"learning_rate": 1e-6},
    "adamw": {"learning_rate": 1e-6, "wd": 1e-4},
    "lars": {"learning_rate": 1e-6, "momentum": 0.9, "wd": 1e-4},
    "lamb": {"learning_rate": 1e-6, "wd": 1e-4},
}
WITHOUT_A_PEER = {"adamw"}  # MXNet 1.9.1 has operators for it, and no optimizer


@dataclasses.dataclass(frozen=True)
class Case:
    """What to count: one of `NETWORKS`, of `SYSTEMS` and of `OPTIMIZERS`."""

    network: str
    system: str
    optimizer: str = "sgd"
    devices: int = 1
    clip: bool = False  # whether the global norm of the gradients is clipped


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


# ----------------------------------------------------------------------------- in the process


def counts(case: Case) -> Counts:
    """Return the counts of a case; MXNet has to be new to this process, for contrib.amp."""
    import gluon_amp
    from gluon_amp.base.host import as_on_a_gpu

    import mxnet as mx
    from mxnet.contrib import amp

    contexts = [mx.cpu(number) for number in range(case.devices)]
    mx.random.seed(0)
    with as_on_a_gpu():
        net, inputs = NETWORKS[case.network](contexts)
        if case.system in (BASE, OWN):
            gluon_amp.cast(net, "float16")
            net(*inputs[0][0])
        elif case.system == CONTRIB:
            amp.init(target_dtype="bfloat16")
        net.hybridize(static_alloc=True)
        passes = _Passes(net, inputs)
        # A generator: the trainer comes after the passes without one.
        makers = (lambda: lambda: passes.run(mx.autograd.backward), lambda: _step(passes, case))
        alone, whole = _traces(make() for make in makers)
    trainer = len(whole.operators) - len(alone.operators)
    numbers = (len(alone.operators), trainer, len(whole.reads), whole.uploads)
    return Counts(*(number / STEPS for number in numbers), after=sorted(set(whole.after_last_read)))


class _Passes(NamedTuple):
    """The forward and backward passes of one step on all devices."""

    net: Any
    inputs: Sequence[Tuple]

    def run(self, backward: Callable, scaled: Callable = contextlib.nullcontext) -> None:
        import mxnet as mx

        loss_fn = mx.gluon.loss.SoftmaxCrossEntropyLoss()
        with mx.autograd.record():
            losses = [
                loss_fn(self.net(*data).astype("float32"), labels) for data, labels in self.inputs
            ]
            with scaled(losses) as scaled_losses:
                backward(scaled_losses)


def _step(passes: _Passes, case: Case) -> Callable[[], None]:
    """Return the training step of a system, which clips as Gluon's guide does."""
    import gluon_amp

    import mxnet as mx
    from mxnet.contrib import amp

    options, params = OPTIMIZERS[case.optimizer], passes.net.collect_params()
    size = sum(len(labels) for _, labels in passes.inputs)
    if case.system == OWN:
        # A low scale, as float16 sums of squares overflow on a CPU.
        scale = gluon_amp.DynamicLossScale(init_scale=2**-10)
        own = gluon_amp.Trainer(params, case.optimizer, options, loss_scale=scale)

        def own_step() -> None:
            passes.run(own.backward)
            if case.clip:
                own.clip_global_norm(MAX_NORM, size)
            assert own.step(size).applied

        return own_step
    masters = {} if case.system == CONTRIB else {"multi_precision": True}
    optimizer = mx.optimizer.create(case.optimizer, **options, **masters)
    # Otherwise the store updates, and there is nothing to clip.
    trainer = mx.gluon.Trainer(params, optimizer, update_on_kvstore=False)
    scaled: Callable = contextlib.nullcontext
    if case.system == CONTRIB:
        amp.init_trainer(trainer)

        def scaled(losses):
            return amp.scale_loss(losses, trainer)

    def step() -> None:
        passes.run(mx.autograd.backward, scaled)
        if not case.clip:
            trainer.step(size)
            return
        if case.system == CONTRIB:
            amp.unscale(trainer)
        trainer.allreduce_grads()
        trained = [p for p in params.values() if p.grad_req != "null"]
        for number in range(case.devices):
            gradients = [parameter.list_grad()[number].astype("float32") for parameter in trained]
            mx.gluon.utils.clip_global_norm(gradients, MAX_NORM)
        trainer.update(size)

    return step


def _images(name: str) -> Callable:
    def build(contexts) -> Tuple:
        import mxnet as mx

        net = mx.gluon.model_zoo.vision.get_model(name, classes=10)
        shape = (BATCH, 3, PIXELS, PIXELS)
        return _filled(net, contexts, lambda c: mx.nd.random.normal(shape=shape, ctx=c))

    return build


def _filled(net, contexts, data: Callable) -> Tuple:
    """Return an initialized network, and data and labels for each device."""
    import mxnet as mx

    net.initialize(mx.init.Xavier(), ctx=contexts)
    return net, [((data(c),), mx.nd.zeros((BATCH,), ctx=c)) for c in contexts]


def _words(context):
    import mxnet as mx

    return mx.nd.random.randint(0, 100, shape=(WORDS, BATCH), ctx=context).astype("float32")


def _bert(contexts) -> Tuple:
    """Return an encoder with BERT's operators and 12 layers, which are narrow."""
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
                self.first = nn.LayerNorm(in_channels=units)
                self.second = nn.LayerNorm(in_channels=units)

        def hybrid_forward(self, F, x):
            qkv = self.qkv(x)  # (words, batch, 3 * units)
            scores = F.contrib.interleaved_matmul_selfatt_qk(qkv, heads=heads)
            weights = F.softmax(scores, axis=-1)
            mixed = F.contrib.interleaved_matmul_selfatt_valatt(qkv, weights, heads=heads)
            x = self.first(x + self.project(mixed))
            return self.second(x + self.narrow(self.gelu(self.wide(x))))

    net = nn.HybridSequential()
    net.add(nn.Embedding(100, units), *(Layer() for _ in range(12)))
    net.add(nn.HybridLambda(lambda F, x: F.mean(x, axis=0)), nn.Dense(10, in_units=units))
    return _filled(net, contexts, _words)


def _lstm(contexts) -> Tuple:
    from mxnet.gluon import nn, rnn

    net = nn.HybridSequential()
    net.add(nn.Embedding(100, 16), rnn.LSTM(32, 2, input_size=16), nn.Dense(10, flatten=False))
    net.add(nn.HybridLambda(lambda F, x: F.SequenceLast(x)))
    return _filled(net, contexts, _words)


NETWORKS = {
    "resnet50_v1": _images("resnet50_v1"),
    "mobilenetv2_1.0": _images("mobilenetv2_1.0"),
    "BERT-like, 12 layers": _bert,
    "LSTM, 2 layers": _lstm,
}


class _Event(NamedTuple):
    """An operator or a call, and when it began or ended: microseconds since 1970."""

    time: float
    name: str


class _Trace(NamedTuple):
    """What MXNet's profiler wrote down: operators as they begin, reads as they end, in order."""

    operators: List[_Event]
    reads: List[_Event]
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

    def chosen(category: str, phase: str) -> List[_Event]:
        found = (one for one in events if one.get("cat") == category and one["ph"] == phase)
        return sorted(_Event(one["ts"], one["name"]) for one in found)

    operators, calls = chosen("operator", "B"), chosen("MXNET_C_API", "e")
    return [
        _Trace(
            [one for one in operators if one.name not in HOUSEKEEPING and start < one.time < end],
            [one for one in calls if one.name in READS and start < one.time < called],
            sum(one.name == UPLOAD and start < one.time < called for one in calls),
        )
        for start, called, end in intervals
    ]


# --------------------------------------------------------------------------------- the suite


def measure(networks: Sequence[str], progress: Callable[[str], None]) -> Values:
    """Count every network and system, and every optimizer on the first network."""
    for name in networks:
        if name not in NETWORKS:
            known = ", ".join(map(repr, NETWORKS))
            raise command_line.UsageError(
                f"--suite launches does not know the network {name}: choose from {known}."
            )
    networks = networks or list(NETWORKS)
    cases = [
        Case(network, system, devices=devices, clip=clip)
        for network in networks
        for devices in (1, 2)
        for clip in (False, True)
        for system in SYSTEMS
    ]
    cases += [
        Case(networks[0], system, optimizer)
        for optimizer in OPTIMIZERS
        for system in (BASE, OWN)
        if optimizer != "sgd" and not (system == BASE and optimizer in WITHOUT_A_PEER)
    ]
    rows = []
    for number, case in enumerate(cases, 1):
        progress(f"{number} of {len(cases)}: {case.network}, {case.system}")
        rows.append({**dataclasses.asdict(case), **count(case)})
    return {"rows": rows}


def count(case: Case) -> Dict[str, Any]:
    """Return the `Counts` of a case as a dict, or why it cannot run."""
    done = subprocess.run(
        [sys.executable, "-m", __name__, json.dumps(dataclasses.asdict(case))],
        env={**os.environ, **ENVIRONMENT, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        return {"failed": (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]}
    return json.loads(done.stdout.splitlines()[-1])


def verdict(own: Values, base: Optional[Values]) -> str:
    """Return by how many operators a row is above its base, and which limits it misses."""
    more = own["trainer"] - base["trainer"] if base and "failed" not in base else None
    missed = ["operators"] if more is not None and more > MOST_MORE else []
    if own["reads"] > MOST_READS * own["devices"]:
        missed.append("reads")
    if own["after"]:
        missed.append(f"{', '.join(own['after'])} after the read")
    text = "" if more is None else f"{more:+.0f}".replace("-", "−")
    return text + (f" (missed: {'; '.join(missed)})" if missed else "")


def tables(rows: Sequence[Values]) -> str:
    """Return the table of networks, and that of optimizers on the first network."""
    first = rows[0]["network"]
    networks = [row for row in rows if row["optimizer"] == "sgd"]
    alone = [r for r in rows if (r["network"], r["devices"], r["clip"]) == (first, 1, False)]
    return (
        f"{_table(('network', 'devices', 'clip'), networks, SYSTEMS)}\n\n"
        f"On {first} and one device, without clipping, each optimizer:\n\n"
        f"{_table(('optimizer',), alone, (BASE, OWN))}"
    )


def _table(keys: Sequence[str], rows: Sequence[Values], columns: Sequence[str]) -> str:
    words = {True: "yes", False: "no"}
    grouped: Dict[Tuple, Dict[str, Values]] = {}
    for row in rows:
        key = tuple(words[row[k]] if isinstance(row[k], bool) else str(row[k]) for k in keys)
        grouped.setdefault(key, {})[row["system"]] = row
    lines = []
    for key, found in grouped.items():
        own = found.get(OWN, {"failed": ""})
        more = "" if "failed" in own else verdict(own, found.get(BASE))
        lines.append([*key, *(_cell(found.get(column)) for column in columns), more])
    return table([*keys, *columns, "more"], lines, words=len(keys))


def _cell(row: Optional[Values]) -> str:
    if row is None:
        return "none"
    return "fails" if "failed" in row else f"{row['trainer']:.0f} / {row['reads']:.0f}"


def parts(result: Values) -> Parts:
    """Return the parts of docs/benchmarks/launches.md."""
    about = result["machine"]
    return {
        "tables": tables(result["rows"]),
        "measured": f"{about['date']} with `{result['command']}`, each case in a process of its "
        f"own, on {about['processor']}, MXNet {about['mxnet']}, Python {about['python']}, "
        f"gluon_amp {about['gluon_amp']}",
    }


if __name__ == "__main__":
    os.environ.update(ENVIRONMENT)
    print(json.dumps(dataclasses.asdict(counts(Case(**json.loads(sys.argv[1]))))))
