"""The speed of training steps (`--benchmark`) and of loading images (`--test-io`), as JSON."""

import itertools
import statistics
import time
from typing import Any, Dict, Iterator, Optional, Sequence

from gluon_amp.base import hardware
from gluon_amp.trainer.loss_scale import NoLossScale
from gluon_amp.training.data import Source, TrainingBatches
from gluon_amp.training.runs.devices import contexts
from gluon_amp.training.runs.history import Counts
from gluon_amp.training.runs.images import prepare
from gluon_amp.training.runs.recipe import Recipe
from gluon_amp.training.runs.sources import open_data

import mxnet as mx
from mxnet.ndarray import NDArray

# The first steps allocate memory; on a GPU, cuDNN also tests its algorithms in them.
WARM_UP_STEPS = 3
DEFAULT_STEPS = 20
WARM_UP_BATCHES = 2  # before loading is measured: threads start, and the page cache fills

Batches = Iterator[Sequence[NDArray]]  # of [images, labels]


def training_speed(recipe: Recipe) -> Dict[str, Any]:
    """Train on random images and time every step (``--benchmark``); return results for JSON."""
    steps = WARM_UP_STEPS + (recipe.max_batches or DEFAULT_STEPS)
    training, about = prepare(recipe)
    batch, engine = next(iter(training.batches.epoch(0))), training.loop.engine
    counts = Counts()
    seconds = []
    for number in range(steps):
        mx.nd.waitall()
        start = time.perf_counter()
        engine.trainer.set_learning_rate(training.loop.schedule(0, 0))
        report = engine.step([batch] * recipe.accumulate, 0, number, counts)
        mx.nd.waitall()
        seconds.append(time.perf_counter() - start)
    measured = seconds[WARM_UP_STEPS:]
    median = statistics.median(measured)
    scale = engine.loss_scale
    return {
        "model": recipe.model,
        "mode": recipe.mode,
        "dtype": recipe.policy,
        "observed_dtypes": about.observed,
        "emulated": about.emulated,
        "image_shape": list(about.data.image_shape),
        "devices": ", ".join(map(str, about.devices)),
        "batch_size": recipe.batch_size,
        "total_batch": about.total,
        "optimizer": recipe.optimizer,
        "steps": len(measured),
        "median_ms": 1e3 * median,
        "fastest_ms": 1e3 * min(measured),
        "slowest_ms": 1e3 * max(measured),
        "images_per_second": about.total / median,
        "peak_mebibytes": hardware.peak_mebibytes(),
        "loss_scale": None if isinstance(scale, NoLossScale) else scale.scale,
        "skipped_steps": report.skipped_total,
    }


def loading_speed(recipe: Recipe) -> Dict[str, Any]:
    """Load training images without training on them (``--test-io``); return results for JSON."""
    devices = len(contexts(recipe.gpus, recipe.num_gpus, recipe.cpus))
    source, batch_size = open_data(recipe, devices), recipe.batch_size * devices
    batches = recipe.max_batches or max(1, source.train_images // batch_size)
    workers = recipe.num_workers
    loaded = training_batches(source, batch_size, workers)
    return {
        "data": source.name,
        "image_shape": list(source.image_shape),
        "batch_size": batch_size,
        "batches": batches,
        "num_workers": hardware.count_processors() if workers is None else workers,
        "images_per_second": images_per_second(loaded, batches),
    }


def images_per_second(batches: Batches, count: int) -> float:
    """Load `WARM_UP_BATCHES`, then `count` more; return the images per second of these."""
    for images, _ in itertools.islice(batches, WARM_UP_BATCHES):
        images.wait_to_read()
    start, total = time.perf_counter(), 0
    for images, _ in itertools.islice(batches, count):
        images.wait_to_read()
        total += len(images)
    return total / (time.perf_counter() - start)


def training_batches(source: Source, batch_size: int, num_workers: Optional[int] = None) -> Batches:
    """Return an endless iterator over the training batches of epoch 0, 1, 2 ..."""
    loader = TrainingBatches(source.train, batch_size, num_workers=num_workers)
    return itertools.chain.from_iterable(loader.epoch(number) for number in itertools.count())
