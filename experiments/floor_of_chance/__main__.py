"""Compare float32 with itself, disturbed by one unit in the last place, and with other dtypes.

    python -m experiments.floor_of_chance --dataset digits --output docs/results/floor

Finished runs are not repeated, and killed runs resume. Options after -- go to every run.
"""

import argparse
import os
import sys
from pathlib import Path
from typing import Any, Dict, Optional, Sequence

from experiments import pages
from experiments.benchmarks.report import machine
from experiments.floor_of_chance import compare
from experiments.floor_of_chance.compare import QUANTITIES, Results, read_trace
from experiments.floor_of_chance.page import draw, table
from experiments.floor_of_chance.rows import COMPARED, REFERENCE, TRACE, jobs
from gluon_amp.base.messages import UsageError
from gluon_amp.training.command_line import Parser, path, positive_int, split_at_dashes, status_of
from gluon_amp.training.runs.image_options import DATASETS
from gluon_amp.training.runs.interruption import RunInterruptedError
from gluon_amp.training.tables.record import RunRecord, read
from gluon_amp.training.tables.runs import Job, Runner, alone_in, interruptible


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options."""
    parser = Parser(prog="floor_of_chance", description=__doc__.split("\n", 1)[0])
    add = parser.add_argument
    add("--dataset", choices=DATASETS, default="digits", help="default: %(default)s")
    count = {"type": positive_int, "metavar": "N"}
    add("--seeds", default=8, help="pairs of runs of each row (default: %(default)s)", **count)
    add("--batch-size", default=64, help="default: %(default)s", **count)
    add("--parallel", default=1, help="runs at a time (default: %(default)s)", **count)
    text = "for DATASET.json and .png, and the runs in DATASET/ (default: %(default)s)"
    add("--output", type=path, default=Path("results/floor"), metavar="DIR", help=text)
    return parser.parse_args(arguments)


def run(arguments: Sequence[str]) -> None:
    """Train all pairs and write the values and the figure."""
    own, extra = split_at_dashes(arguments)  # the options behind them are for the runs
    options = parse(own)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the runs: sums depend on the threads
    target = options.output / options.dataset  # the folder of the runs; files add a suffix
    by_seed = jobs(options.dataset, target, range(options.seeds), options.batch_size, extra)
    with interruptible(), alone_in(target) as lock:
        runner = Runner(options.parallel, lock)
        runner.train([job for of_seed in by_seed.values() for job in of_seed])
        results = collect(by_seed)
    results["dataset"] = options.dataset
    results["command"] = " ".join(["python -m experiments.floor_of_chance", *arguments])
    pages.write_values(target, results, draw)
    print(table(results))


def collect(by_seed: Dict[int, Sequence[Job]]) -> Results:
    """Return the distances of all finished runs.

    A run that failed, such as one that diverged, is a `UsageError`.
    """
    reference = {"label": REFERENCE.label, "seeds": {}}
    rows = {row.name: {"label": row.label, "seeds": {}} for row in COMPARED}
    same = True
    for seed, (first, *others) in by_seed.items():
        record, original = _finished(first), read_trace(first.folder / TRACE)
        reference["seeds"][str(seed)] = _scores(first, original)
        for job in others:
            trace = read_trace(job.folder / TRACE)
            if job.configuration.name in rows:
                found = {**compare.distances(trace, original), **_scores(job, trace)}
                rows[job.configuration.name]["seeds"][str(seed)] = found
            else:
                same = same and compare.identical(trace, original)
    return {
        "data": record.data,
        "model": record.model,
        "hardware": record.hardware,
        "batch": first.configuration.batch,
        "epochs": len(record.errors),
        "about": machine(int(os.environ["OMP_NUM_THREADS"])),
        "margins": {quantity.name: quantity.margin for quantity in QUANTITIES},
        "seeds": [str(seed) for seed in by_seed],
        "identical": same,
        "reference": reference,
        "rows": rows,
    }


def _finished(job: Job) -> RunRecord:
    record = read(job.folder)
    if record.failure is not None:
        raise UsageError(f"{job.folder} has no result: {record.failure}")
    return record


def _scores(job: Job, trace: Dict) -> Dict[str, Any]:
    return {
        "top1": compare.top1(trace).tolist(),
        "skipped_steps": _finished(job).skipped,
    }


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Read the command line and run it; return the status of the process."""
    arguments = sys.argv[1:] if arguments is None else arguments
    failures = (RuntimeError, RunInterruptedError)
    return status_of("floor_of_chance", lambda: run(arguments), failures)


if __name__ == "__main__":
    sys.exit(main())
