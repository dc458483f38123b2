"""The rows of the table, and the training and validation of one fold."""

import functools
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Optional, Sequence, Tuple

import numpy as np

from experiments.photographs.stamps import CATEGORIES, Fold, Photographs
from gluon_amp.casting.cast import cast
from gluon_amp.training.data import Preprocessing, TrainingBatches, ValidationBatches
from gluon_amp.training.data.datasets import DecodedImages, imagenet_source
from gluon_amp.training.data.folders import FileImages
from gluon_amp.training.data.imagenet_transforms import ValidationTransform
from gluon_amp.training.data.source import Images
from gluon_amp.training.networks import efficientnet_lite, weights
from gluon_amp.training.runs import log
from gluon_amp.training.runs.building import build_network, build_trainer
from gluon_amp.training.runs.engines.gluon import GluonEngine
from gluon_amp.training.runs.loop import Loop
from gluon_amp.training.runs.objective import Objective
from gluon_amp.training.runs.recipe import Recipe, read
from gluon_amp.training.runs.schedule import Schedule
from gluon_amp.training.runs.seeds import set_seed

import mxnet as mx
from mxnet.gluon import HybridBlock

SIZE = 128  # pixels; half of the stamps are smaller than 150
MIN_AREA = 0.35  # of random crops; less of a cut-out shows only white, or a part of the thing
CLASSES = len(CATEGORIES)
COLOURS = {
    "mean": tuple(value / 255 for value in efficientnet_lite.RGB_MEAN),
    "std": tuple(value / 255 for value in efficientnet_lite.RGB_STD),
}
# The whole image: a stamp is cut out, so that its border matters.
PREPROCESSING = Preprocessing(SIZE, crop_ratio=1.0, min_area=MIN_AREA, **COLOURS)


@dataclass(frozen=True)
class Training:
    """What is trained, and how: options of fine_tune.py."""

    label: str
    num_epochs: int
    lr: float
    from_scratch: bool = False
    on_features: bool = False  # the head alone, on features that are computed once
    batch_size: int = 32
    # BatchNorm keeps ImageNet's statistics. Those of cut-out photographs on white are far from
    # them, so that the head, which was trained first, would no longer fit.
    freeze_statistics: bool = False
    optimizer: str = "sgd"
    head: Optional["Training"] = None  # of the head alone, before all layers


HEAD = Training("head alone", 40, 0.003, on_features=True)
ALL = Training(
    "all layers", 4, 1e-4, optimizer="adamw", batch_size=16, freeze_statistics=True, head=HEAD
)
SCRATCH = Training("from scratch", 10, 0.05, from_scratch=True)


@dataclass(frozen=True)
class Row:
    """A row of the table."""

    training: Training
    dtype: str

    @property
    def name(self) -> str:
        """Its name in the results."""
        return f"{self.training.label.replace(' ', '-')}-{self.dtype}"


DTYPES = ("float32", "float16", "bfloat16")
ROWS = (
    *(Row(HEAD, dtype) for dtype in DTYPES),
    *(Row(ALL, dtype) for dtype in DTYPES),
    Row(SCRATCH, "float32"),
)
REPEATS = {HEAD: 4, ALL: 2, SCRATCH: 1}  # of the cross-validation in each row


def fit(row: Row, photographs: Photographs, fold: Fold) -> Dict[str, Any]:
    """Train on a fold; return its accuracy in percent and its cross-entropy, for JSON."""
    started = time.process_time()
    training = row.training
    set_seed(fold.seed)
    if training.on_features:
        result = _fit(_new_head(row.dtype), row, *_features(row.dtype, photographs, fold), fold)
    else:
        net = build_network(_recipe(row), CLASSES, SIZE, [mx.cpu()])
        if training.head is not None:
            head = _new_head(row.dtype)
            first = Row(training.head, row.dtype)
            _fit(head, first, *_features(row.dtype, photographs, fold), fold)
            net.output.weight.set_data(head.weight.data())
            net.output.bias.set_data(head.bias.data())
        result = _fit(net, row, *_images(photographs, fold), fold)
    return {**result, "seconds": time.process_time() - started}


def _fit(net: HybridBlock, row: Row, train: Images, val: Images, fold: Fold) -> Dict[str, Any]:
    """Train a network that is initialized and cast, and validate it."""
    training = row.training
    batches = TrainingBatches(train, training.batch_size, fold.seed, num_workers=0)
    engine = GluonEngine(
        net, build_trainer(_recipe(row), net, training.lr), [mx.cpu()], Objective(CLASSES)
    )
    shape = (training.num_epochs, len(batches), "cosine")
    schedule = Schedule(training.lr, *shape, warmup_epochs=0.5)
    loop = Loop(engine, schedule, log_interval=0, seed=fold.seed)
    with log.silence():
        for epoch in range(training.num_epochs):
            loop.train(batches, epoch)
        validation = ValidationBatches(val, 64, num_workers=0)
        result = loop.validate(validation, len(val), training.num_epochs - 1)
    return {
        "accuracy": 100 * result.top1,
        "cross_entropy": result.cross_entropy,
        "skipped_steps": loop.skipped,
        "steps": loop.steps,
    }


def _recipe(row: Row) -> Recipe:
    training = row.training
    # of ImageNet: without the defaults of another data set
    words = ["--dataset", "imagenet", "--model", efficientnet_lite.NAME, "--dtype", row.dtype]
    words += ["--num-epochs", str(training.num_epochs), "--optimizer", training.optimizer]
    words += [] if training.from_scratch else ["--use-pretrained"]
    return read(words + ["--freeze-statistics"] * training.freeze_statistics)


def _images(photographs: Photographs, fold: Fold) -> Tuple[Images, Images]:
    parts = (FileImages([photographs.items[n] for n in part]) for part in (fold.train, fold.val))
    source = imagenet_source(*parts, CLASSES, CATEGORIES, fold.seed, PREPROCESSING)
    return source.train, source.val


def _features(dtype: str, photographs: Photographs, fold: Fold) -> Tuple[Images, Images]:
    features = all_features(dtype, photographs)
    return tuple(Features(features, photographs, part) for part in (fold.train, fold.val))


def _new_head(dtype: str) -> HybridBlock:
    net = efficientnet_lite.new_head(CLASSES)
    net.initialize()
    cast(net, dtype)
    net.hybridize(static_alloc=True)
    return net


class Features(Images):
    """The features of some photographs, with their labels."""

    def __init__(self, features: np.ndarray, photographs: Photographs, part: Sequence[int]):
        self.shape = features.shape[1:]
        self._items = [(features[n], photographs.items[n][1]) for n in part]

    def __len__(self) -> int:
        return len(self._items)

    def write(self, position: int, out: np.ndarray) -> int:
        values, label = self._items[position % len(self)]
        out[...] = values
        return label


@functools.lru_cache(maxsize=None)
def all_features(dtype: str, photographs: Photographs) -> np.ndarray:
    """Return what the pretrained network computes before its head, float32 (images, channels)."""
    net = efficientnet_lite.EfficientNetLite0()
    net.initialize()
    weights.load_matching(net, weights.pretrained_file(efficientnet_lite.NAME, Path()))
    features = net.features
    cast(features, dtype)
    features.hybridize(static_alloc=True)
    images = DecodedImages(
        FileImages(photographs.items), ValidationTransform(PREPROCESSING), CLASSES
    )
    batches = ValidationBatches(images, 32, num_workers=0)
    return np.concatenate([features(batch[0]).astype("float32").asnumpy() for batch in batches])
