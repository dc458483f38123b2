"""GluonTS's Transformer learns daily cycles and predicts half a day."""

import json
import os
import random
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
from gluonts.dataset.common import ListDataset
from gluonts.model.predictor import Predictor
from gluonts.mx import Trainer, TransformerEstimator
from gluonts.mx.trainer.callback import TrainingHistory

import mxnet as mx

SEED, STEPS = int(os.environ["SEED"]), int(os.environ["STEPS"])
random.seed(SEED)
np.random.seed(SEED)
mx.random.seed(SEED)

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
        times.append(time.time())
        return super().on_train_epoch_end(*args, **kwargs)


times = [time.time()]
history = History()
estimator = TransformerEstimator(
    freq="H",
    prediction_length=HORIZON,
    context_length=24,
    batch_size=16,
    model_dim=16,
    num_heads=4,
    trainer=Trainer(
        epochs=STEPS, num_batches_per_epoch=1, learning_rate=0.001, callbacks=[history]
    ),
)
dataset = make_dataset()
predictor = estimator.train(dataset)

with tempfile.TemporaryDirectory() as folder:
    predictor.serialize(Path(folder))
    predictor = Predictor.deserialize(Path(folder))
forecasts = [forecast.mean for forecast in predictor.predict(dataset)]
result = {"losses": history.loss_history, "step_seconds": np.median(np.diff(times)[3:])}
print(json.dumps({**result, "extra": {"mean forecast": float(np.mean(forecasts))}}))
