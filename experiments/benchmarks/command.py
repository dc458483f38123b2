"""Compare gluon_amp, mxnet.contrib.amp and plain float32: time and memory, in turns."""

import argparse
import itertools
import os
import re
import sys
from typing import Optional, Sequence

from experiments.benchmarks import family_run, launches, measure, profile, report
from experiments.benchmarks.suites import DTYPES, REFERENCE, SUITES, build_suite
from experiments.standalone import command_line, hardware, waiting

ROUNDS = 7
EPILOG = """Every case runs in a process of its own. The cases take turns, so that a disturbance
affects all of them. The float32 and contrib.amp cases do not import gluon_amp.
Close other programs first: the figures are those of the whole machine."""


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = command_line.Parser(description=__doc__, epilog=EPILOG)
    positive = command_line.positive_int
    add = parser.add_argument
    add(
        "--suite",
        choices=(*SUITES, "families", "launches", "all"),
        default="step",
        help="default: %(default)s; launches counts and times nothing; 'all' is all but these two, "
        "of which families takes 25 minutes",
    )
    add(
        "--networks",
        "--network",
        dest="networks",
        nargs="+",
        type=command_line.several(str, "names"),
        metavar="NAME",
        help="networks of MXNet's Model Zoo or GluonCV (default: resnet50_v1; with families and "
        "launches, all of theirs)",
    )
    add(
        "--batch-size",
        type=positive,
        metavar="N",
        help=f"default: {REFERENCE['batch']}; with families, that of each",
    )
    add(
        "--pixels",
        type=command_line.whole(1, 8192),
        metavar="N",
        help="height and width of the images "
        f"(default: {REFERENCE['pixels']}; with families, those of each)",
    )
    add(
        "--dtypes",
        nargs="+",
        choices=DTYPES,
        default=list(DTYPES),
        help="what to compare (default: all three)",
    )
    add(
        "--rounds",
        type=positive,
        metavar="N",
        help=f"turns of each case (default: {ROUNDS}; with families, {family_run.ROUNDS})",
    )
    add(
        "--peer-python",
        type=command_line.path,
        metavar="FILE",
        help="a Python interpreter with torch and torchvision, to measure PyTorch with families",
    )
    add(
        "--threads",
        type=command_line.whole(1, 1024),
        metavar="N",
        default=hardware.count_cores() or hardware.count_processors(),
        help="default: one for each core",
    )
    add(
        "--wait-policy",
        choices=waiting.POLICIES,
        help="how OpenMP's threads wait for work, unless OMP_WAIT_POLICY is set; active is faster "
        "on an idle machine, and very slow on a busy one (default: that of MXNet)",
    )
    add(
        "--profile",
        action="store_true",
        help="only print which kernels take the time of a training step in each dtype",
    )
    add(
        "--output",
        type=command_line.path,
        metavar="DIR",
        help="write NAME.json, NAME.png and NAME.md to this directory",
    )
    options = parser.parse_args(arguments)
    options.networks = list(itertools.chain(*options.networks or ()))
    return options


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Measure, print the tables, write the files; return the status of the process."""
    arguments = sys.argv[1:] if arguments is None else arguments
    options = parse(arguments)
    command = shown_command(arguments)
    try:
        return command_line.status_of("benchmark.py", lambda: run(options, command))
    except KeyboardInterrupt:
        print("benchmark.py: interrupted.", file=sys.stderr)
        return 130


def shown_command(arguments: Sequence[str]) -> str:
    """Return the command for the report, without the path of another interpreter."""
    command = " ".join(["python", "scripts/benchmark.py", *arguments])
    return re.sub(r"(--peer-python)[ =]\S+", r"\1 PYTHON", command)


def run(options: argparse.Namespace, command: str) -> None:
    """Measure, print the tables, write the files."""
    # MXNet's default depends on what is imported, and on x86 it is half of the cores
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    if options.wait_policy:
        os.environ.setdefault(waiting.VARIABLE, options.wait_policy)
    if options.suite == "families" and not options.profile:
        family_run.run(options, command, print_progress)
        return
    if options.suite == "launches" and not options.profile:
        launches.run(options, command, print_progress)
        return
    options.networks = options.networks or [REFERENCE["network"]]
    options.batch_size = options.batch_size or REFERENCE["batch"]
    options.pixels = options.pixels or REFERENCE["pixels"]
    if options.profile:
        print_profiles(options)
        return
    for name in SUITES if options.suite == "all" else [options.suite]:
        for network in options.networks:
            run_suite(name, network, options, command)


def run_suite(name: str, network: str, options: argparse.Namespace, command: str) -> None:
    """Measure one suite with one network, print its tables, write its files."""
    size = {"network": network, "batch": options.batch_size, "pixels": options.pixels}
    suite = build_suite(name, options.dtypes, **size)
    if not suite.groups:
        raise command_line.UsageError(
            f"--suite {name} has nothing in {' or '.join(options.dtypes)}."
        )
    measured = measure.measure(suite, options.rounds or ROUNDS, print_progress)
    ratios = measure.ratios(suite, measured)
    result = report.as_json(suite, measured, ratios, report.machine(options.threads), command)
    print(f"\n{suite.title}\n")
    print(report.case_table(result))
    if ratios:
        print("\n" + report.ratio_table(result))
    if options.output:
        stem = name if network == REFERENCE["network"] else f"{name}_{network}"
        with report.to_output(options.output):
            for path in report.write(suite, result, options.output, stem):
                print(path)


def print_profiles(options: argparse.Namespace) -> None:
    """Print a table of kernels for each network and dtype."""
    for network in options.networks:
        size = {"network": network, "batch": options.batch_size, "pixels": options.pixels}
        for case in build_suite("step", options.dtypes, **size).cases:
            if case.label in DTYPES:
                entries, source = profile.profile(case)
                print(f"\n{network}, {case.label}: {source}\n\n{profile.as_table(entries)}")


def print_progress(line: str) -> None:
    """Overwrite the last line of the terminal, if there is one."""
    if sys.stderr.isatty():
        print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)
