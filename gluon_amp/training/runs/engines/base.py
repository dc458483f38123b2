"""What the training loop needs of a network and its trainer: the base of all engines."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Iterator, List, Optional, Sequence, Tuple

from gluon_amp.casting.statistics import is_statistic
from gluon_amp.trainer import StepReport, Trainer
from gluon_amp.trainer.loss_scale import LossScale
from gluon_amp.training.runs.history import Counts

import mxnet as mx
from mxnet.gluon import Block, Parameter
from mxnet.gluon.loss import SoftmaxCrossEntropyLoss
from mxnet.gluon.utils import split_and_load
from mxnet.ndarray import NDArray

Batch = Any  # images and labels, or a `Chunk` of a text


@dataclass
class Engine:
    """A network that can be trained on its `devices`, and its trainer."""

    net: Block
    trainer: Trainer
    devices: Sequence[mx.Context]

    def __post_init__(self) -> None:
        self.trained = [p for p in self.net.collect_params().values() if p.grad_req != "null"]

    @property
    def statistics(self) -> List[Parameter]:
        """BatchNorm's running statistics."""
        return [p for p in self.net.collect_params().values() if is_statistic(p)]

    @property
    def loss_scale(self) -> LossScale:
        """The trainer's loss scale."""
        return self.trainer.loss_scale

    def step(self, batches: List[Batch], epoch: int, number: int, counts: Counts) -> StepReport:
        """Update once on batches from `number` on, or skip the step; add answers to `counts`."""
        raise NotImplementedError

    def predict(self, batch: Batch) -> Iterator[Tuple[NDArray, NDArray]]:
        """Yield labels (N,) and outputs (N, classes) for each device."""
        raise NotImplementedError

    def cross_entropy(self, labels: NDArray, outputs: NDArray) -> NDArray:
        """Return the cross entropy with the labels themselves, neither smoothed nor mixed, (N,)."""
        return SoftmaxCrossEntropyLoss()(outputs.astype("float32"), labels)

    def state(self) -> Optional[List]:
        """Return what steps hand on beside network and trainer, for `restore`; None for nothing."""
        return None

    def restore(self, state: List) -> None:
        """Restore what `state` returned."""

    def save_epoch(self, folder: Path, name: str, epoch: int) -> None:
        """Write what ``NAME`` leaves after `epoch` epochs besides its checkpoint."""

    def wait(self) -> None:
        """Return when the last step is done."""
        for array in self.trained[-1].list_data():  # the trainer updates it last
            array.wait_to_read()


def split(arrays: Sequence[NDArray], devices: Sequence[mx.Context]) -> List[List[NDArray]]:
    """Copy a batch to the devices, in nearly equal parts; a small batch has fewer of them."""
    used = devices[: len(arrays[0])]
    return [split_and_load(array, used, even_split=False) for array in arrays]
