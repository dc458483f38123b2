"""Which rows are compared, in what, and which differences count as none."""

from typing import Any, Dict, NamedTuple

from experiments.photographs.fits import ALL, HEAD, SCRATCH, Row
from gluon_amp.training.tables.statistics import CROSS_ENTROPY_MARGIN, Comparison, compare_pairs

Results = Dict[Row, Dict[int, Dict[str, Any]]]  # by row and by the seed of the fold


class Metric(NamedTuple):
    """What is measured on the validation images of a fold."""

    name: str
    unit: str
    digits: int  # after the point, in a table


METRICS = {
    "accuracy": Metric("Accuracy", "%", 2),
    "cross_entropy": Metric("Cross-entropy", "nats", 4),
}

# Smaller differences count as none. They were set before the run: those of the other tables, or the
# smallest multiples of them that the folds of a row show with a power of 80 %, by the standard
# deviations of the differences in docs/results/photographs/pilot.csv.
SMALLEST = {"accuracy": 0.5, "cross_entropy": CROSS_ENTROPY_MARGIN}
MARGINS = {
    HEAD.label: {"accuracy": 0.5, "cross_entropy": 0.01},
    ALL.label: {"accuracy": 1.5, "cross_entropy": 0.02},
}


def reference(row: Row) -> Row:
    """Return the row that a row is compared with: float32, and the pretrained weights."""
    return Row(ALL if row.training is SCRATCH else row.training, "float32")


def comparison(results: Results, row: Row, metric: str) -> Comparison:
    """Compare a row with its reference, fold by fold, over the folds that both have."""
    other = results[reference(row)]
    common = sorted(results[row].keys() & other.keys())
    pairs = ([part[seed][metric] for seed in common] for part in (results[row], other))
    return compare_pairs(*pairs, MARGINS[reference(row).training.label][metric])


def verdict(compared: Comparison) -> str:
    """Return the verdict of a comparison; there is no test if the pairs are equal."""
    equal = compared.p is None and compared.difference == 0
    return "equal in every fold" if equal else str(compared)
