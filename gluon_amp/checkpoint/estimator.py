"""What `gluon.contrib.estimator.Estimator` needs to train with an `amp.Trainer`.

    estimator = Estimator(net, loss, trainer=trainer, batch_processor=amp.BatchProcessor())
    estimator.fit(data, epochs=10, event_handlers=[amp.CheckpointHandler("models")])

Each class replaces MXNet's class of the same name; all other handlers are MXNet's own.
"""

import os
import re
from typing import Any, Sequence, Tuple

from gluon_amp.base.messages import first_few
from gluon_amp.casting.arguments import map_arrays
from gluon_amp.checkpoint import load_checkpoint, read_extra, save_checkpoint
from gluon_amp.trainer.scaled_trainer import check_scaled

from mxnet import autograd
from mxnet.gluon.contrib import estimator as stock


class BatchProcessor(stock.BatchProcessor):
    """MXNet's BatchProcessor with scaled gradients, for an Estimator with an `amp.Trainer`.

    All methods are MXNet's. Under `npx.set_np()`, labels, predictions and losses are returned as
    legacy views, which MXNet's metrics need: `mx.metric.Accuracy` rejects `mx.np` arrays.

    Examples
    --------
    >>> import gluon_amp as amp, mxnet as mx
    >>> from mxnet.gluon.contrib.estimator import Estimator
    >>> net = amp.cast(mx.gluon.nn.Dense(1, in_units=2), 'float16')
    >>> net.initialize(mx.init.One())
    >>> trainer = amp.Trainer(net.collect_params(), 'sgd', loss_scale=128)
    >>> estimator = Estimator(
    ...     net, mx.gluon.loss.L2Loss(), trainer=trainer, batch_processor=amp.BatchProcessor())
    >>> batch = mx.nd.array([[1, 2]]), mx.nd.array([[1]])
    >>> _, _, _, loss = estimator.batch_processor.fit_batch(estimator, batch)
    >>> float(loss[0].asscalar()), net.weight.grad().asnumpy().tolist()
    (2.0, [[256.0, 512.0]])
    """

    def fit_batch(
        self, estimator: stock.Estimator, train_batch: Sequence[Any], batch_axis: int = 0
    ) -> Tuple[list, list, list, list]:
        """Run the forward and the scaled backward pass of one batch, on all devices.

        Parameters
        ----------
        estimator : Estimator
            The estimator whose net and loss compute the batch.
        train_batch : tuple
            Data and labels; split over the estimator's devices.
        batch_axis : int
            The axis along which a batch is split over devices.

        Returns
        -------
        data, label, pred, loss : list of NDArray
            One of each for each device.

        Raises
        ------
        TypeError
            When the estimator's trainer has no loss scale.
        """
        check_scaled(estimator.trainer, "BatchProcessor")
        data, label = self._get_data_and_label(train_batch, estimator.context, batch_axis)
        with autograd.record():
            pred = [estimator.net(x) for x in data]
            loss = [estimator.loss(y_hat, y) for y_hat, y in zip(pred, label)]
        estimator.trainer.backward(loss)
        return (data, *map(_legacy, (label, pred, loss)))

    def evaluate_batch(
        self, estimator: stock.Estimator, val_batch: Sequence[Any], batch_axis: int = 0
    ) -> Tuple[list, list, list, list]:
        """Run the forward pass of one batch; arguments and results are those of `fit_batch`."""
        data, *results = super().evaluate_batch(estimator, val_batch, batch_axis)
        return (data, *map(_legacy, results))


def _legacy(arrays):
    return map_arrays(arrays, lambda array: array.as_nd_ndarray())


class GradientUpdateHandler(stock.GradientUpdateHandler, stock.TrainBegin, stock.EpochEnd):
    """MXNet's GradientUpdateHandler, which also logs skipped steps and the loss scale.

    The estimator's logger gets one line for each skipped step, and one for each epoch.

    Examples
    --------
    >>> import gluon_amp as amp
    >>> import mxnet as mx
    >>> from mxnet.gluon.contrib.estimator import Estimator
    >>> net = amp.cast(mx.gluon.nn.Dense(1, in_units=1), 'float16')
    >>> net.initialize()
    >>> trainer = amp.Trainer(net.collect_params(), 'sgd', loss_scale=128)
    >>> ones = mx.gluon.data.ArrayDataset(mx.nd.ones((4, 1)), mx.nd.ones((4, 1)))
    >>> def fit(epochs):
    ...     loss, processor = mx.gluon.loss.L2Loss(), amp.BatchProcessor()
    ...     estimator = Estimator(net, loss, trainer=trainer, batch_processor=processor)
    ...     estimator.logger.handlers.clear()  # it would log to this screen
    ...     data = mx.gluon.data.DataLoader(ones, batch_size=2)
    ...     estimator.fit(data, epochs=epochs, event_handlers=[amp.GradientUpdateHandler()])
    ...     return trainer.optimizer.num_update
    >>> fit(epochs=3)
    6
    """

    current_epoch = 0

    def train_begin(self, estimator: stock.Estimator, *args: Any, **kwargs: Any) -> None:
        """Count the epochs from 0."""
        self.current_epoch = 0

    def batch_end(self, estimator: stock.Estimator, *args: Any, **kwargs: Any) -> None:
        """Make one step; the batch size is that of all losses together."""
        check_scaled(estimator.trainer, "GradientUpdateHandler")
        losses = kwargs["loss"]
        losses = losses if isinstance(losses, list) else [losses]
        report = estimator.trainer.step(sum(loss.shape[0] for loss in losses))
        if not report.applied:
            estimator.logger.info(
                "[Epoch %d] Step skipped: gradients of %s overflowed at loss scale %g; next scale "
                "%g",
                self.current_epoch,
                first_few(report.overflow),
                report.loss_scale,
                report.next_loss_scale,
            )

    def epoch_end(self, estimator: stock.Estimator, *args: Any, **kwargs: Any) -> None:
        """Log the scale, if there is one, and the number of skips since the trainer was built."""
        trainer = estimator.trainer
        if trainer.scaling:
            estimator.logger.info(
                "[Epoch %d] Loss scale %g, %d steps skipped so far",
                self.current_epoch,
                trainer.loss_scale.scale,
                trainer.skips.total,
            )
        self.current_epoch += 1


class CheckpointHandler(stock.CheckpointHandler):
    """MXNet's CheckpointHandler, which resumes a run exactly, with masters and loss scale.

    Beside each `.params` file, which stock MXNet loads, it writes a `.ckpt` file with
    `amp.save_checkpoint` in place of the `.states` file. With `resume_from_checkpoint=True`, the
    newest `.ckpt` file is loaded, and with `save_best=True` also the best value of the monitor.
    All arguments are MXNet's.

    Raises
    ------
    ValueError
        From `fit`, when the newest checkpoint has reached the last epoch or batch already, or does
        not fit: see `amp.load_checkpoint`.

    Examples
    --------
    >>> import os
    >>> import gluon_amp as amp, mxnet as mx
    >>> from mxnet.gluon.contrib.estimator import Estimator
    >>> def fit(epochs):
    ...     net = amp.cast(mx.gluon.nn.Dense(1, in_units=1), 'float16')
    ...     net.initialize()
    ...     trainer = amp.Trainer(net.collect_params(), 'sgd', loss_scale=128)
    ...     loss, processor = mx.gluon.loss.L2Loss(), amp.BatchProcessor()
    ...     estimator = Estimator(net, loss, trainer=trainer, batch_processor=processor)
    ...     estimator.logger.handlers.clear()  # it would log to this screen
    ...     ones = mx.gluon.data.ArrayDataset(mx.nd.ones((4, 1)), mx.nd.ones((4, 1)))
    ...     data = mx.gluon.data.DataLoader(ones, batch_size=2)
    ...     handler = amp.CheckpointHandler('models', resume_from_checkpoint=True)
    ...     estimator.fit(data, epochs=epochs, event_handlers=[handler])
    >>> fit(epochs=1)
    >>> fit(epochs=3)
    >>> sorted(os.listdir('models'))[-3:]
    ['model-epoch2batch6.ckpt', 'model-epoch2batch6.params', 'model-symbol.json']
    """

    def _path(self, name: str) -> str:
        return os.path.join(self.model_dir, f"{name}.ckpt")

    def _save_params_and_trainer(self, estimator, file_prefix):
        best = float(self.monitor.get()[1]) if self.save_best else None
        # A checkpoint is complete once its .ckpt file is there, so that is written last.
        params = os.path.join(self.model_dir, f"{file_prefix}.params")
        estimator.net.save_parameters(params)
        save_checkpoint(self._path(file_prefix), estimator.net, estimator.trainer, best=best)
        if file_prefix != self._best:
            self.saved_checkpoints.append(file_prefix)
        while len(self.saved_checkpoints) > self.max_checkpoints:
            old = os.path.join(self.model_dir, self.saved_checkpoints.pop(0))
            for path in (f"{old}.ckpt", f"{old}.params"):
                if os.path.exists(path):
                    os.remove(path)

    @property
    def _best(self) -> str:
        return f"{self.model_prefix}-best"

    def _resume_from_checkpoint(self, estimator):
        pattern = re.compile(re.escape(self.model_prefix) + r"-epoch(\d+)batch(\d+)\.ckpt")
        matches = filter(None, map(pattern.fullmatch, os.listdir(self.model_dir)))
        found = sorted(tuple(map(int, match.groups())) for match in matches)
        names = [f"{self.model_prefix}-epoch{epoch}batch{batch}" for epoch, batch in found]
        self.saved_checkpoints = names
        # In a fit by epochs MXNet counts the batches, in one by batches it numbers them from 0.
        none = (-1, 0 if estimator.max_epoch else -1)
        self.trained_epoch, self.trained_batch = found[-1] if found else none
        if not found:
            estimator.logger.info("CheckpointHandler: no checkpoint found, training from scratch.")
            return
        for unit, units in (("epoch", "epochs"), ("batch", "batches")):
            limit, trained = getattr(estimator, f"max_{unit}"), getattr(self, f"trained_{unit}") + 1
            if limit and trained >= limit:
                raise ValueError(
                    f"{self._path(names[-1])} has reached {trained} of {limit} {units} already: "
                    "train for more, or leave out resume_from_checkpoint=True."
                )
            if limit:
                setattr(estimator, f"max_{unit}", limit - trained)
        load_checkpoint(self._path(names[-1]), estimator.net, estimator.trainer)
        if self.save_best and os.path.exists(self._path(self._best)):
            self.best = read_extra(self._path(self._best))["best"]
        estimator.logger.info("CheckpointHandler: resumed from %s.", self._path(names[-1]))
