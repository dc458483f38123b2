"""Compare gluon_amp, mxnet.contrib.amp and plain float32: time and memory, taking turns."""

import argparse
import os
import sys
from typing import NoReturn, Optional, Sequence

from experiments.benchmarks import measure, profile, report
from experiments.benchmarks.suites import DTYPES, REFERENCE, SUITES, chosen
from experiments.standalone import command_line, hardware

EPILOG = """Every case runs in a process of its own; they take turns, so that a disturbance
meets all of them. In the float32 and contrib.amp cases gluon_amp is not even
imported. Close other programs first: these figures are those of the whole machine."""


def fail(sentence: str) -> NoReturn:
    """End the program with status 2."""
    print(f"benchmark.py: {sentence}", file=sys.stderr)
    raise SystemExit(2)


def read(arguments: Optional[Sequence[str]] = None) -> argparse.Namespace:
    """Read the command line."""
    parser = command_line.Parser(description=__doc__, epilog=EPILOG)
    positive = command_line.positive_int
    add = parser.add_argument
    add("--suite", choices=(*SUITES, "all"), default="step", help="default: %(default)s")
    add("--network", nargs="+", default=[REFERENCE["network"]],
        help="networks of MXNet's Model Zoo (default: resnet50_v1)")  # fmt: skip
    add("--batch-size", type=positive, default=REFERENCE["batch"], help="default: %(default)s")
    add("--pixels", type=command_line.whole(1, 8192), default=REFERENCE["pixels"],
        help="height and width of the images (default: %(default)s)")  # fmt: skip
    add("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES),
        help="what to compare (default: all three)")  # fmt: skip
    add("--rounds", type=positive, default=7, help="turns of each case (default: %(default)s)")
    add("--threads", type=command_line.whole(1, 1024), metavar="N",
        default=hardware.count_cores() or hardware.count_processors(),
        help="default: one for each core")  # fmt: skip
    add("--profile", action="store_true",
        help="tell what a training step of each dtype spends its time in, and leave")  # fmt: skip
    add("--output", type=command_line.path, metavar="DIR",
        help="write NAME.json, NAME.png and NAME.md there")  # fmt: skip
    return parser.parse_args(arguments)


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Measure, print the tables, write the files; return the status of the process."""
    try:
        run(arguments)
    except KeyboardInterrupt:
        print("benchmark.py: interrupted.", file=sys.stderr)
        return 130
    return 0


def run(arguments: Optional[Sequence[str]] = None) -> None:
    """Measure, print the tables, write the files."""
    options = read(arguments)
    # what MXNet would otherwise choose depends on its import, and half of the cores on x86
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    command = " ".join(
        ["python", "scripts/benchmark.py", *(sys.argv[1:] if arguments is None else arguments)]
    )
    if options.profile:
        show_profiles(options)
        return
    about = report.machine(options.threads)
    for name in SUITES if options.suite == "all" else [options.suite]:
        for network in options.network:
            suite = chosen(
                name, options.dtypes, network=network, batch=options.batch_size,
                pixels=options.pixels,
            )  # fmt: skip
            if not suite.groups:
                fail(f"--suite {name} has nothing in {' or '.join(options.dtypes)}.")
            try:
                measured = measure.measure(suite, options.rounds, tell=progress)
            except measure.BenchmarkError as error:
                fail(f"{error}")
            found = measure.ratios(suite, measured)
            result = report.as_json(suite, measured, found, about, command)
            print(f"\n{suite.title}\n")
            print(report.case_table(result))
            if found:
                print("\n" + report.ratio_table(result))
            if options.output:
                reference = network == REFERENCE["network"]
                stem = name if reference else f"{name}_{network}"
                try:
                    for path in report.write(suite, result, options.output, stem):
                        print(path)
                except OSError as error:
                    fail(f"--output {options.output} cannot be written: {error.strerror}.")


def show_profiles(options: argparse.Namespace) -> None:
    """Print a table of kernels for each network and dtype."""
    for network in options.network:
        size = {"network": network, "batch": options.batch_size, "pixels": options.pixels}
        for case in chosen("step", options.dtypes, **size).cases:
            if case.label in DTYPES:
                try:
                    entries, source = profile.profile(case)
                except measure.BenchmarkError as error:
                    fail(f"{error}")
                print(f"\n{network}, {case.label}: {source}\n\n{profile.as_table(entries)}")


def progress(line: str) -> None:
    """Say what is being done, where a person watches."""
    if sys.stderr.isatty():
        print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)
