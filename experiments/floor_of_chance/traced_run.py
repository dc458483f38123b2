"""Train as train_imagenet.py does, and write what the network was after every epoch.

    python traced_run.py own|copied|disturbed TRACE.npz [OPTIONS OF train_imagenet.py]

The initial weights are the seed's own, the same ones read from a file, or ones of which each is
disturbed by one unit in the last place. ``--save-dir`` is required. Its checkpoints are removed
when the trace is written.
"""

import io
import shutil
import sys
from pathlib import Path
from typing import Dict, List, Optional, Sequence, Tuple

import numpy as np

from gluon_amp.base.messages import UsageError
from gluon_amp.files import atomic
from gluon_amp.training.runs.checkpoints import Saved
from gluon_amp.training.runs.images import prepare, train
from gluon_amp.training.runs.recipe import read
from gluon_amp.training.runs.script import guarded
from gluon_amp.training.runs.training import Training
from gluon_amp.training.workers.group import leave

import mxnet as mx

STARTS = ("own", "copied", "disturbed")


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Train and write the trace; return the exit status."""
    return guarded(lambda: run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: Sequence[str]) -> None:
    """Train as the command line says, and write the trace unless there is one."""
    if len(arguments) < 2 or arguments[0] not in STARTS:
        raise UsageError(f"expected {', '.join(STARTS[:-1])} or {STARTS[-1]}, and then a file.")
    start, path, options = arguments[0], Path(arguments[1]), arguments[2:]
    recipe = read(options)
    if recipe.save_dir is None:
        raise UsageError("--save-dir is missing: the trace is made of checkpoints.")
    if path.exists():
        return
    if start != "own":
        initial = path.with_name("initial.params")
        write_initial_weights(prepare(recipe)[0], initial, start == "disturbed")
        recipe = read([*options, "--pretrained-file", str(initial)])
    train(recipe)
    trace = traced(prepare(recipe)[0])
    stream = io.BytesIO()
    np.savez(stream, **trace)
    atomic.write(path, stream.getvalue())
    shutil.rmtree(recipe.save_dir)


def write_initial_weights(training: Training, path: Path, disturb: bool) -> None:
    """Write the initial weights of a run in float32; a disturbance moves each to a neighbour.

    BatchNorm's running statistics are not disturbed, since training replaces them.
    """
    generator = np.random.default_rng((training.recipe.seed, 3))
    for param in training.loop.engine.trained if disturb else ():
        values = param.data().asnumpy()
        direction = np.where(generator.random(values.shape) < 0.5, -np.inf, np.inf)
        values = np.nextafter(values, direction.astype(np.float32))
        param.set_data(mx.nd.array(values, dtype=np.float32))
    training.loop.engine.net.save_parameters(str(path))


def traced(training: Training) -> Dict[str, np.ndarray]:
    """Return what a finished run was at the start and after each epoch: labels and outputs.

    ``outputs`` are float32 (1 + epochs, validation images, classes), and ``weights`` float32
    (1 + epochs, weights): all trained parameters, the masters where there are masters.
    """
    states = [_state(training)]
    for position, path in training.keeper.checkpoints.existing():
        if position.samples:  # written by an interruption in the middle of an epoch
            continue
        Saved.read(path).load(training.loop.engine.net, training.loop.engine.trainer)
        states.append(_state(training))
    outputs, weights, labels = zip(*states)
    return {"outputs": np.stack(outputs), "weights": np.stack(weights), "labels": labels[0]}


def _state(training: Training) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return outputs, weights and labels of a network as it is."""
    engine = training.loop.engine
    pairs: List[Tuple[np.ndarray, np.ndarray]] = []
    for batch in training.val_batches:
        pairs += [(each.asnumpy(), outputs.asnumpy()) for each, outputs in engine.predict(batch)]
    labels, outputs = map(np.concatenate, zip(*pairs))
    masters = engine.trainer.master_params()
    weights = np.concatenate([masters[param.name].asnumpy().ravel() for param in engine.trained])
    return outputs.astype(np.float32), weights, labels.astype(np.int64)


if __name__ == "__main__":
    leave(main)
