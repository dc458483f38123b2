"""Run clients of MXNet in float32 and with every policy, and write a table of their losses.

    make clients
    python -m experiments.clients gluoncv/ssd module --output /tmp/clients.md

The results of all runs are kept in a JSON file beside the table. A run is repeated only if its
program, its edits or its versions have changed.
"""

import sys
from typing import Optional, Sequence

from experiments import environments, pages
from experiments.clients.families import FAMILIES
from experiments.clients.run import Job, Records, run
from experiments.clients.table import choose, final_loss, parts, plan, rows
from gluon_amp.training.command_line import Parser, output_file, status_of


def train(jobs: Sequence[Job], records: Records) -> None:
    """Run the jobs that have no result, and print a line about each."""
    for number, job in enumerate(jobs, 1):
        record = records.find(job)
        if record is None or "error" in record:
            record = run(job, environments.of_client(job.family))
            records.add(record)
        result = record.get("error") or f"loss {final_loss(record['losses']):.4g}"
        start = f"{job.name:<28} {job.policy:<14} seed {job.seed}"
        print(f"[{number}/{len(jobs)}] {start}: {result}", flush=True)


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Run the chosen cases; return 0 if all of the table are within the spread of float32.

    The table has the cases that ran before too.
    """
    parser = Parser(prog="clients", description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", metavar="FAMILY[/CASE]", help="default: all")
    output, table = pages.DOCS / "results" / "clients.json", "the values (default: %(default)s)"
    parser.add_argument("--output", type=output_file, default=output, metavar="FILE", help=table)
    options = parser.parse_args(arguments)
    chosen = choose(options.cases, FAMILIES)
    records = Records(options.output)
    train([job for case in chosen for job in plan(*case)], records)
    found = rows(choose([], FAMILIES), records)
    print(parts(found)["losses"])
    if options.output == output:
        pages.write(pages.DOCS / "how_to" / "index", "how_to/index.md", parts(found))
    return 0 if all(policy.within for row in found for policy in row.comparisons[1:]) else 1


if __name__ == "__main__":
    sys.exit(status_of("clients", main))
