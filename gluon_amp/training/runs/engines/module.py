"""Training by the Symbol and Module API: the twin of MXNet's float16 FAQ."""

from pathlib import Path
from typing import Any, Dict, Iterator, List, Sequence, Tuple

import numpy as np

from gluon_amp.base.messages import UsageError, reason_of
from gluon_amp.casting.statistics import is_statistic
from gluon_amp.symbolic import Module
from gluon_amp.trainer import StepReport
from gluon_amp.training.runs.engines.base import Batch, Engine
from gluon_amp.training.runs.history import Counts
from gluon_amp.training.runs.objective import Objective
from gluon_amp.training.runs.observe import join_dtypes

import mxnet as mx
from mxnet import nd
from mxnet.gluon import Block, HybridBlock, Parameter
from mxnet.ndarray import NDArray

TINY = 1e-30  # keeps the logarithm of a probability of 0 finite


class _ModuleBlock(Block):
    """A Module's parameters as those of a Block, from which a checkpoint is written."""

    def __init__(self, module: Module):
        super().__init__()
        self._module = module

    def _collect_params_with_prefix(self, prefix: str = "") -> Dict[str, Parameter]:
        return self._module.collect_params()


class ModuleEngine(Engine):
    """A `gluon_amp.symbolic.Module` of a zoo's network with a SoftmaxOutput on top.

    It begins with the values of `net`, which is in float32. The objective has no mixup.
    `batch_size` is that of all devices, and `settings` are the optimizer's.
    """

    def __init__(
        self,
        net: HybridBlock,
        objective: Objective,
        devices: Sequence[mx.Context],
        batch_size: int,
        image_shape: Tuple[int, int, int],
        optimizer: str,
        settings: Dict[str, Any],
        kvstore: Any = "device",
        workers: int = 1,
        **options: Any,
    ):
        self.objective = objective
        self.workers = workers
        logits = net(mx.sym.var("data"))
        # smooth_alpha is divided among the other classes, the share of label smoothing among all
        alpha = objective.smoothing * (1 - 1 / objective.classes)
        symbol = mx.sym.SoftmaxOutput(logits, name="softmax", smooth_alpha=alpha)
        self.module: Any = Module(symbol, context=list(devices), **options)
        self.module.bind([("data", (batch_size, *image_shape))], [("softmax_label", (batch_size,))])
        params = net.collect_params()
        values = {name: param.data(param.list_ctx()[0]) for name, param in params.items()}
        arguments, states = symbol.list_arguments(), symbol.list_auxiliary_states()
        self.module.init_params(
            arg_params={name: values[name] for name in arguments if name in values},
            aux_params={name: values[name] for name in states},
        )
        self.module.init_optimizer(kvstore, optimizer, settings)
        super().__init__(_ModuleBlock(self.module), self.module.trainer, devices)

    def weight_dtypes(self) -> str:
        """Return the dtypes of the weights, as `observe` writes them."""
        arrays = self.module.executors[0].arg_dict
        weights = {name: array for name, array in arrays.items() if name.endswith("weight")}
        return join_dtypes(np.dtype(array.dtype).name for array in weights.values())

    @property
    def statistics(self) -> List[Parameter]:
        return [p for p in self.trainer.parameters if is_statistic(p)]

    def step(self, batches: List[Batch], epoch: int, number: int, counts: Counts) -> StepReport:
        ((images, labels),) = batches
        self.module.optimizer.rescale_grad = 1 / (len(images) * self.workers)
        self.module.forward(mx.io.DataBatch([images], [labels]), is_train=True)
        self.module.backward()
        self.module.update()
        report = self.module.last_report
        probabilities = self.module.get_outputs()[0]
        labels = labels.as_in_context(probabilities.context)
        counts.accuracy.update(labels, probabilities)
        if report.applied:
            counts.loss.update(self._losses(probabilities, labels))
        return report

    def _losses(self, probabilities: NDArray, labels: NDArray) -> NDArray:
        """Return the cross entropy, whose gradient SoftmaxOutput has, but not its value."""
        logs = nd.log(probabilities.astype("float32") + TINY)
        return -(self.objective.shares(labels) * logs).sum(axis=1)

    def predict(self, batch: Batch) -> Iterator[Tuple[NDArray, NDArray]]:
        images, labels = batch
        self.module.forward(mx.io.DataBatch([images], [labels]), is_train=False)
        probabilities = self.module.get_outputs()[0]
        yield labels.as_in_context(probabilities.context), probabilities

    def cross_entropy(self, labels: NDArray, outputs: NDArray) -> NDArray:
        return -nd.log(nd.pick(outputs.astype("float32"), labels) + TINY)

    def wait(self) -> None:
        for param in self.trainer.parameters:
            for array in param.list_data():
                array.wait_to_read()

    def save_epoch(self, folder: Path, name: str, epoch: int) -> None:
        """Write ``NAME-symbol.json``, ``NAME-0001.params`` and ``NAME-0001.states``."""
        self.module.save_checkpoint(str(folder / name), epoch, save_optimizer_states=True)

    def load(self, folder: Path, name: str, epoch: int) -> None:
        """Load what `save_epoch` wrote after `epoch` epochs."""
        prefix = f"{folder / name}"
        try:
            _, arguments, states = mx.model.load_checkpoint(prefix, epoch)
            self.module.set_params(arguments, states)
            self.module.load_optimizer_states(f"{prefix}-{epoch:04d}.states")
        except (mx.MXNetError, OSError, ValueError) as error:
            reason = reason_of(error)
            raise UsageError(f"{prefix}-{epoch:04d} cannot be loaded: {reason[:200]}.") from None
