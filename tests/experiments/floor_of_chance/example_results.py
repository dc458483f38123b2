"""Results of the floor of chance, for tests."""

from experiments.floor_of_chance.compare import QUANTITIES
from experiments.floor_of_chance.rows import COMPARED

LABELS = {row.name: row.label for row in COMPARED}


def results(ends, identical=True, epochs=1):
    """Return results in which every quantity of a row ends with `ends[row]`, one for each seed."""
    seeds = [str(seed) for seed in range(len(ends["floor"]))]

    def scores(top1):
        return {"top1": [10.0, *[top1] * epochs], "seconds": 20.0, "skipped_steps": 1}

    def row(name, values):
        series = [[0.0] * epochs + [value] for value in values]
        by_seed = {
            seed: {**{quantity.name: each for quantity in QUANTITIES}, **scores(98.0)}
            for seed, each in zip(seeds, series)
        }
        return {"label": LABELS[name], "seeds": by_seed}

    return {
        "dataset": "digits",
        "command": "python -m experiments.floor_of_chance",
        "data": "digits (1,437 + 360 samples)",
        "model": "cifar_resnet8_v1",
        "hardware": "Xeon, 2 cores",
        "batch": 64,
        "epochs": epochs,
        "parallel": 2,
        "about": {
            "date": "2026-11-22",
            "threads": 1,
            "system": "Linux",
            "python": "3.11",
            "mxnet": "1.9.1",
            "gluon_amp": "0.1.0",
            "numpy": "1.23.5",
        },
        "margins": dict.fromkeys((quantity.name for quantity in QUANTITIES), 0.5),
        "seeds": seeds,
        "identical": identical,
        "reference": {"label": "float32", "seeds": {seed: scores(99.0) for seed in seeds}},
        "rows": {name: row(name, values) for name, values in ends.items()},
    }
