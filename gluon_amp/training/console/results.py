"""`gluon-amp results`: train in several dtypes over seeds, and compare their accuracies.

Finished runs are not repeated; killed and failed runs resume.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Optional, Sequence, Tuple

from gluon_amp.training import command_line as read
from gluon_amp.training.command_line import Parser, split_at_dashes, status_of
from gluon_amp.training.runs.interruption import RunInterruptedError
from gluon_amp.training.tables import figure, render
from gluon_amp.training.tables.designs import DESIGNS, Design
from gluon_amp.training.tables.record import read_all, read_json
from gluon_amp.training.tables.runs import Runner, alone_in, interruptible, jobs
from gluon_amp.training.tables.statistics import CROSS_ENTROPY_MARGIN, power, seeds_needed
from gluon_amp.training.tables.table import Table, published, restored, tabulate

TITLES = ", ".join(f"{each.name}: {each.title}" for each in DESIGNS.values())
MARGINS = ", ".join(f"{each.margin:g} {each.name}" for each in DESIGNS.values())


DESCRIPTION = """Train in float16, bfloat16 and float32 over several seeds, and compare their
accuracies."""
# docs/training.md has the commands of single runs, and estimates of times and memory.
PUBLISHED = """# ResNet-50 on ImageNet, published

{}

Source: MXNet's float16 FAQ, one run of 90 epochs each. All rows over several seeds, on 8 GPUs:

gluon-amp results --recipe imagenet --devices 8 -- --num-gpus 8 --rec-train T.rec --rec-val V.rec"""


def parse(arguments: Sequence[str], prog: str) -> Tuple[argparse.Namespace, Tuple[str, ...]]:
    """Return the options, and the arguments after ``--``, which are for the runs."""
    own, for_runs = split_at_dashes(arguments)
    parser = Parser(
        prog=prog,
        usage="%(prog)s [OPTION ...] [-- OPTIONS]",
        description=DESCRIPTION,
        epilog="OPTIONS go to every run; gluon-amp train --help, or that of the recipe's command, "
        "lists them:\n\n%(prog)s --seeds 3 -- --num-epochs 6",
    )
    add = parser.add
    name = {"choices": tuple(DESIGNS), "metavar": "NAME"}
    add("--recipe", f"{TITLES} (default: digits)", name, default="digits")
    add("--seeds", "runs of each row (default: enough for 80 %% power at the margin)", read.COUNT)
    smaller = f"smaller differences count as none (default: {MARGINS})"
    add("--margin", smaller, type=read.positive, metavar="POINTS")
    count = {"type": read.whole(1, 1024), "default": 1, "metavar": "N"}
    add("--devices", "devices that share a batch (default: %(default)s)", count)
    add("--parallel", "runs at a time; with more than one, no times are reported", count)
    add("--output", "default: results/RECIPE", read.FOLDER)
    add("--from-logs", "do not train; make the table of the runs in a directory", read.FOLDER)
    again = "do not train; write the files beside a results.json again, from its runs"
    add("--from-json", again, read.OUTPUT)
    add("--published", "print the table of MXNet's float16 FAQ, and how to repeat it", read.SWITCH)
    return parser.parse_args(own), for_runs


def main(arguments: Optional[Sequence[str]] = None, prog: str = "gluon-amp results") -> int:
    """Train and write the table; return the status of the process."""
    arguments = sys.argv[1:] if arguments is None else arguments
    options, extra = parse(arguments, prog)
    design = DESIGNS[options.recipe]
    margin = options.margin or design.margin
    output = options.from_logs or options.output or Path("results") / options.recipe

    def work() -> None:
        if options.published:
            print(PUBLISHED.format(render.markdown(published(margin)).rstrip()))
            return
        if options.from_json:
            written = read_json(options.from_json)
            about = (str(written.get(name, "")) for name in ("note", "command"))
            show(restored(written), options.from_json.parent, *about)
            return
        if not options.from_logs:
            seeds = options.seeds or seeds_needed(design.sd, margin, design.paired)
            with alone_in(output) as lock:
                print(plan(design, seeds, margin), flush=True)
                wanted = jobs(design, output, range(seeds), options.devices, extra)
                Runner(options.parallel, lock).train(wanted)
        order = [configuration.name for configuration, _ in design.rows]
        table = tabulate(read_all(output), order, margin)
        show(table, output, design.note, " ".join(["gluon-amp results", *arguments]))

    with interruptible():
        return status_of(prog, work, (RuntimeError, RunInterruptedError))


def plan(design: Design, seeds: int, margin: float) -> str:
    """Return what will be trained and which difference it can detect."""
    of = "differences of one seed" if design.paired else "seeds"
    shown = 100 * power(design.sd, margin, seeds, design.paired)
    return (
        f"{design.title}: {seeds} seeds for each of {len(design.rows)} rows. At a standard "
        f"deviation of {design.sd:g} points between {of}, they show equivalence within "
        f"±{margin:g} points with a power of {shown:.0f} %. The "
        f"margin of the cross-entropy is ±{CROSS_ENTROPY_MARGIN:g} nats."
    )


def show(table: Table, output: Path, note: str, command: str) -> None:
    """Write the table's files, print their paths and the table."""
    for written in write(table, output, note, command):
        print(written)
    print("\n".join(["", render.markdown(table), note]).rstrip())


def write(table: Table, output: Path, note: str, command: str) -> Tuple[Path, ...]:
    """Write the table as Markdown, JSON and CSV, and draw it as a PNG; return the paths."""
    paths = tuple(output / f"results.{suffix}" for suffix in ("md", "json", "csv", "png"))
    paths[0].write_text(render.page(table, note, command), encoding="utf-8")
    values = {**table.as_dict(), "note": note, "command": command}
    text = json.dumps(values, indent=2, ensure_ascii=False) + "\n"
    paths[1].write_text(text, encoding="utf-8")
    paths[2].write_text(render.as_csv(table), encoding="utf-8")
    figure.draw(table, paths[3])
    return paths
