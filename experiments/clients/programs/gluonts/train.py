"""An estimator of GluonTS learns daily cycles and predicts half a day; the case is which one."""

import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
from gluonts.dataset.common import ListDataset
from gluonts.model.predictor import Predictor
from gluonts.mx import DeepAREstimator, SimpleFeedForwardEstimator, Trainer, TransformerEstimator
from gluonts.mx.trainer.callback import TrainingHistory

from experiments.clients.shared import CASE, STEPS, losses, report, seed_all, step_ended

seed_all()

SERIES, DAYS, HORIZON = 8, 14, 12


def make_dataset():
    """Hourly series with a cycle of a day, each with its own level, phase and noise."""
    hours = np.arange(24 * DAYS)
    series = []
    for _ in range(SERIES):
        level, phase = np.random.uniform(20, 100), np.random.uniform(0, 2 * np.pi)
        cycle = 1 + 0.5 * np.sin(2 * np.pi * hours / 24 + phase)
        target = level * (cycle + 0.1 * np.random.randn(len(hours)))
        series.append({"start": pd.Period("2020-01-01", freq="H"), "target": target})
    return ListDataset(series, freq="H")


class History(TrainingHistory):
    """The losses, and when each epoch ended."""

    def on_train_epoch_end(self, *args, **kwargs):
        step_ended()
        return super().on_train_epoch_end(*args, **kwargs)


ESTIMATORS = {
    "simple_feedforward": (SimpleFeedForwardEstimator, 0.01, {}),
    "deepar": (DeepAREstimator, 0.01, {"freq": "H", "num_cells": 20}),
    "transformer": (TransformerEstimator, 0.001, {"freq": "H", "model_dim": 16, "num_heads": 4}),
}
history = History()
make_estimator, learning_rate, options = ESTIMATORS[CASE]
trainer = Trainer(
    epochs=STEPS, num_batches_per_epoch=1, learning_rate=learning_rate, callbacks=[history]
)
estimator = make_estimator(
    prediction_length=HORIZON, context_length=24, batch_size=16, trainer=trainer, **options
)
dataset = make_dataset()
predictor = estimator.train(dataset)
losses += history.loss_history

with tempfile.TemporaryDirectory() as folder:
    predictor.serialize(Path(folder))
    predictor = Predictor.deserialize(Path(folder))
forecasts = [forecast.mean for forecast in predictor.predict(dataset)]
report({"mean forecast": float(np.mean(forecasts))})
