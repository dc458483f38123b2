"""Train float16, bfloat16 and float32 over several seeds, and say whether they are the same.

    python scripts/results_table.py                  # the digits, on any machine
    python scripts/results_table.py --recipe lstm    # so is this text: Python's own sources
    python scripts/results_table.py --recipe imagenet -- --rec-train t.rec --rec-val v.rec

Finished runs are not repeated, killed and failed ones go on. Options after -- go to every run.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Optional, Sequence, Tuple

from experiments.results import figure, render
from experiments.results.recipes import EXPERIMENTS, Experiment
from experiments.results.record import read_all
from experiments.results.runs import Runner, alone_in, interruptible, jobs
from experiments.results.statistics import power, seeds_needed
from experiments.results.table import Table, published, tabulate
from gluon_amp.command_line import Parser, UsageError, path, positive, positive_int, whole
from gluon_amp.recipes.interruption import RunInterruptedError

FILES = "results"
MARGINS = ", ".join(f"{made.margin:g} {name}" for name, made in EXPERIMENTS.items())


def arguments(given: Optional[Sequence[str]]) -> Tuple[argparse.Namespace, Tuple[str, ...]]:
    """Read the command line; what stands after -- is for the runs."""
    given = list(sys.argv[1:] if given is None else given)
    cut = given.index("--") if "--" in given else len(given)
    made = Parser(description=__doc__.split("\n", 1)[0])
    add = made.add_argument
    titles = ", ".join(f"{name}: {one.title}" for name, one in EXPERIMENTS.items())
    add("--recipe", choices=tuple(EXPERIMENTS), default="digits",
        help=f"{titles} (default: %(default)s)")  # fmt: skip
    add("--seeds", type=positive_int, metavar="N",
        help="runs of each row (default: what 80 %% power at the margin needs)")  # fmt: skip
    add("--margin", type=positive, metavar="POINTS",
        help=f"smaller differences count as none (default: {MARGINS})")  # fmt: skip
    add("--devices", type=whole(1, 1024), default=1, metavar="N",
        help="devices that share a batch (default: %(default)s)")  # fmt: skip
    add("--parallel", type=whole(1, 1024), default=1, metavar="N",
        help="runs at a time; with more than one, no times are given")  # fmt: skip
    add("--output", type=path, metavar="DIR", help="default: results/RECIPE")
    add("--from-logs", type=path, metavar="DIR",
        help="train nothing, make the table of the runs in a directory")  # fmt: skip
    add("--published", action="store_true", help="print the table of MXNet's float16 FAQ")
    return made.parse_args(given[:cut]), tuple(given[cut + 1 :])


def main(given: Optional[Sequence[str]] = None) -> int:
    """Train and write the table; return the status of the process."""
    options, extra = arguments(given)
    experiment = EXPERIMENTS[options.recipe]
    margin = options.margin or experiment.margin
    if options.published:
        print(render.markdown(published(margin)))
        return 0
    output = options.from_logs or options.output or Path("results") / options.recipe
    try:
        with interruptible():
            if not options.from_logs:
                seeds = options.seeds or seeds_needed(experiment.sd, margin)
                with alone_in(output) as lock:
                    print(plan(experiment, seeds, margin), flush=True)
                    wanted = jobs(experiment, output, range(seeds), options.devices, extra)
                    Runner(options.parallel, lock).make(wanted)
            table = make_table(experiment, output, margin)
            for path in write(table, output, shown_command(given), experiment.note):
                print(path)
            print("\n".join(["", render.markdown(table), experiment.note]).rstrip())
    except UsageError as error:
        return tell(error, 2)
    except OSError as error:  # a full disk has no file name
        return tell(f"{error.filename or output}: {error.strerror}.", 2)
    except RuntimeError as error:
        return tell(error, 1)
    except RunInterruptedError as error:
        return tell(error, error.status)
    return 0


def plan(experiment: Experiment, seeds: int, margin: float) -> str:
    """Return what will be trained and what it can show."""
    return (
        f"{experiment.title}: {seeds} seeds for each of {len(experiment.rows)} rows; with "
        f"{experiment.sd:g} points from seed to seed, a margin of ±{margin:g} is shown with a "
        f"power of {100 * power(experiment.sd, margin, seeds):.0f} %."
    )


def make_table(experiment: Experiment, output: Path, margin: float) -> Table:
    """Return the table of all runs in a directory."""
    order = [configuration.name for configuration, _ in experiment.rows]
    return tabulate(read_all(output), order, margin)


def write(table: Table, output: Path, command: str, note: str = "") -> Tuple[Path, ...]:
    """Write the table as Markdown, JSON and CSV, and its curves as a PNG; return the paths."""
    paths = tuple(output / f"{FILES}.{ending}" for ending in ("md", "json", "csv", "png"))
    notes = [note] if note else []
    page = [render.markdown(table), *notes, f"![Top-1 error]({FILES}.png)", f"Made by `{command}`."]
    paths[0].write_text("\n\n".join(page) + "\n", encoding="utf-8")
    paths[1].write_text(json.dumps(table.as_dict(), indent=2, ensure_ascii=False) + "\n")
    paths[2].write_text(render.as_csv(table))
    figure.draw(table, paths[3])
    return paths


def shown_command(given: Optional[Sequence[str]]) -> str:
    """Return the command as one types it."""
    return " ".join(
        ["python scripts/results_table.py", *(sys.argv[1:] if given is None else given)]
    )


def tell(sentence: object, status: int) -> int:
    """Print what happened on standard error, and return the status."""
    print(f"results_table.py: {sentence}", file=sys.stderr)
    return status
