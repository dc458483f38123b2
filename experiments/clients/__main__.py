"""Run clients of MXNet in float32 and with every policy, and write a table of their losses.

    make clients
    python -m experiments.clients gluoncv/ssd module --output /tmp/clients.md

The results of all runs are kept in a JSON file beside the table. A run is repeated only if its
program, its edits or its versions have changed.
"""

import argparse
import sys
from typing import Optional, Sequence

from experiments import ROOT, environments, pages
from experiments.clients.families import FAMILIES
from experiments.clients.run import Job, Records, run
from experiments.clients.table import SEEDS, choose, final_loss, parts, plan, rows
from gluon_amp.training.command_line import Parser, output_file, positive_int, status_of, whole


def train(jobs: Sequence[Job], records: Records, fresh: bool, timeout: float) -> None:
    """Run the jobs that have no result, and print a line about each."""
    found = [None if fresh else records.find(job) for job in jobs]
    for number, (job, record) in enumerate(zip(jobs, found), 1):
        if record is None or "error" in record:
            record = run(job, environments.of_client(job.family), timeout)
            records.add(record)
        result = record.get("error") or f"loss {final_loss(record['losses']):.4g}"
        start = f"{job.name:<28} {job.policy:<14} seed {job.seed}"
        print(f"[{number}/{len(jobs)}] {start}: {result}", flush=True)


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Run the chosen cases; return 0 if all of the table are within the spread of float32.

    The table has the cases that ran before too.
    """
    parser = Parser(
        prog="clients",
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("cases", nargs="*", metavar="FAMILY[/CASE]", help="default: all")
    add("--steps", type=positive_int, help="steps of each run (default: the case's)")
    add("--seeds", type=whole(1, SEEDS), default=1, help="seeds of each policy; float32 has three")
    output = ROOT / "docs" / "results" / "clients.md"
    add("--output", type=output_file, default=output, metavar="FILE", help="the table")
    add("--timeout", type=positive_int, default=300, metavar="SECONDS", help="of a run")
    add("--fresh", action="store_true", help="repeat the runs that have a result")
    add("--list", action="store_true", help="only print the runs")
    options = parser.parse_args(arguments)
    jobs = plan(choose(options.cases, FAMILIES), options.seeds, options.steps)
    if options.list:
        print("\n".join(f"{job.name} {job.policy} {job.seed} {job.steps}" for job in jobs))
        return 0
    records = Records(options.output.with_suffix(".json"))
    train(jobs, records, options.fresh, options.timeout)
    table = rows(choose([], FAMILIES), options.seeds, options.steps, records)
    pages.write(options.output.with_suffix(""), "results/clients.md", parts(table))
    return 0 if all(policy.within for row in table for policy in row.comparisons[1:]) else 1


if __name__ == "__main__":
    sys.exit(status_of("clients", main))
