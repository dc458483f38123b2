"""Runs for the tests of tables: as files, and as records."""

import dataclasses
import json

from gluon_amp.training.tables.record import Configuration, RunRecord

CONFIGURATIONS = {
    name: Configuration(name, label, dtype, batch)
    for name, label, dtype, batch in [
        ("float32-1024", "float32", "float32", 1024),
        ("float16-1024", "float16", "float16", 1024),
        ("float16-2048", "float16, double batch", "float16", 2048),
    ]
}
ORDER = list(CONFIGURATIONS)
V100 = "8 × Tesla V100-SXM2-16GB"


def write_run(folder, name, top1, hours, epochs=90, parallel=1, **changes):
    """Write the two files of a run, as `results_table.py` and the training script do."""
    folder.mkdir(parents=True)
    summary = {"data": "imagenet", "model": "resnet50_v1", "emulated": False, "epochs": epochs}
    summary["top1_by_epoch"] = [top1 - (epochs - 1 - epoch) for epoch in range(epochs)]
    summary["train_seconds"] = 3600 * hours
    summary["cross_entropy_by_epoch"] = [1.5 - epoch / epochs for epoch in range(epochs)]
    summary.update(skipped_steps=3, steps=90 * 1252, images_per_second=2714.0)
    (folder / "summary.json").write_text(json.dumps({**summary, **changes}))
    about = {"configuration": dataclasses.asdict(CONFIGURATIONS[name]), "seed": 0}
    about.update(versions="MXNet 1.9.1", date="2026-01-31")
    about.update(hardware=V100, parallel=parallel, peak_memory=None, failure=None)
    about.update({key: value for key, value in changes.items() if key in about})
    (folder / "run.json").write_text(json.dumps(about))
    return folder


def run(name="float32-1024", seed=0, top1=98.0, **changes):
    """Return the record of a finished run on a CPU."""
    record = RunRecord(
        CONFIGURATIONS[name],
        seed,
        "Xeon, 2 cores",
        data="digits",
        model="cifar_resnet8_v1",
        versions="MXNet 1.9.1",
        date="2026-01-31",
        errors=(50.0, 100 - top1),
        cross_entropies=(2.0, (100 - top1) / 10),
        seconds=30.0,
        samples_per_second=1000.0,
        peak_memory=300 * 2**20,
        skipped=0,
        steps=100,
    )
    return dataclasses.replace(record, **changes)


def three_seeds(name, tops=(97.5, 98.0, 98.5), **changes):
    return [run(name, seed, top1, **changes) for seed, top1 in enumerate(tops)]
