"""How far two runs are from each other after each epoch, and whether a dtype exceeds the floor."""

import zipfile
from pathlib import Path
from typing import Any, Dict, List, NamedTuple

import numpy as np

from gluon_amp.base.messages import UsageError
from gluon_amp.training.tables.statistics import Comparison, compare_pairs

Trace = Dict[str, np.ndarray]  # as `traced_run.traced` returns it
Results = Dict[str, Any]  # what the JSON file holds


class Quantity(NamedTuple):
    """A distance between two runs. Its sign, if it has one, does not count in comparisons.

    Distances from float32 within `margin` of the floor's count as equal to it.
    """

    name: str
    title: str
    unit: str
    margin: float


QUANTITIES = (
    Quantity("disagreement", "Disagreement of predictions", "% of the validation images", 0.5),
    Quantity("cross_entropy", "Difference of validation cross-entropy", "nats", 0.01),
    Quantity("weights", "Distance of weights", "‖a−b‖ / ‖a‖", 0.02),
)


def read_trace(path: Path) -> Trace:
    """Read a trace; if the file is missing or damaged, that is a `UsageError`."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in ("outputs", "weights", "labels")}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise UsageError(
            f"{path} is not a trace of a run ({error}): remove its folder to train it again."
        ) from None


def cross_entropies(trace: Trace) -> np.ndarray:
    """Return the mean cross-entropy of the validation images in nats, (1 + epochs,), float64."""
    outputs = trace["outputs"].astype(np.float64)
    highest = outputs.max(axis=2, keepdims=True)
    log_sums = np.log(np.exp(outputs - highest).sum(axis=2)) + highest[..., 0]
    correct = outputs[:, np.arange(outputs.shape[1]), trace["labels"]]
    return (log_sums - correct).mean(axis=1)


def top1(trace: Trace) -> np.ndarray:
    """Return the accuracies in percent, (1 + epochs,)."""
    return 100 * (trace["outputs"].argmax(axis=2) == trace["labels"]).mean(axis=1)


def distances(trace: Trace, reference: Trace) -> Dict[str, List[float]]:
    """Return each quantity at the start and after each epoch.

    Traces of different networks or data are a `UsageError`.
    """
    if any(trace[name].shape != reference[name].shape for name in reference):
        raise UsageError("two runs have different networks, data or epochs: train them again.")
    predictions, expected = (each["outputs"].argmax(axis=2) for each in (trace, reference))
    a, b = (each["weights"].astype(np.float64) for each in (reference, trace))
    values = {
        "disagreement": 100 * (predictions != expected).mean(axis=1),
        "cross_entropy": cross_entropies(trace) - cross_entropies(reference),
        "weights": np.linalg.norm(a - b, axis=1) / np.linalg.norm(a, axis=1),
    }
    return {name: series.tolist() for name, series in values.items()}


def identical(trace: Trace, reference: Trace) -> bool:
    """Return whether all outputs and weights have the same bits."""
    return all(trace[name].tobytes() == reference[name].tobytes() for name in reference)


def magnitudes(results: Results, row: str, quantity: Quantity) -> np.ndarray:
    """Return the magnitude of a quantity of a row, (seeds, 1 + epochs)."""
    seeds = results["rows"][row]["seeds"]
    return np.abs([seeds[seed][quantity.name] for seed in results["seeds"]])


def against_floor(results: Results, row: str, quantity: Quantity) -> Comparison:
    """Compare the magnitudes of a row after the last epoch with the floor's, paired by seed."""
    values, floor = (magnitudes(results, name, quantity)[:, -1] for name in (row, "floor"))
    return compare_pairs(values.tolist(), floor.tolist(), results["margins"][quantity.name])
