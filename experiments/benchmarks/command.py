"""Compare gluon_amp, mxnet.contrib.amp and plain float32: time and memory, in turns."""

import argparse
import os
import re
import sys
from pathlib import Path
from typing import Dict, Optional, Sequence

from experiments import ROOT, pages
from experiments.benchmarks import families, measure, profile, report
from experiments.benchmarks.suites import DTYPES, REFERENCE, SUITES, build_suite
from experiments.standalone import command_line, hardware, waiting

EPILOG = """Every case runs in a process of its own. The cases take turns, so that a disturbance
affects all of them. The float32 and contrib.amp cases do not import gluon_amp.
Close other programs first: the figures are those of the whole machine."""
PEER_VERSIONS = (
    "import torch, torchvision; "
    "print(f'PyTorch {torch.__version__}, torchvision {torchvision.__version__}')"
)
PEAK = [sys.executable, "-m", "experiments.benchmarks.limit"]


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = command_line.Parser(description=__doc__, epilog=EPILOG)
    positive, add = command_line.positive_int, parser.add_argument
    suites = "default: %(default)s; 'all' is all but families, which takes 25 minutes"
    add("--suite", choices=(*SUITES, "families", "all"), default="step", help=suites)
    names = "of MXNet's Model Zoo or GluonCV (default: resnet50_v1; with families, all of its own)"
    add("--networks", nargs="+", default=[], metavar="NAME", help=names)
    batch = f"default: {REFERENCE['batch']}; with families, that of each"
    add("--batch-size", type=positive, metavar="N", help=batch)
    pixels = (
        f"of an image's side, or tokens (default: {REFERENCE['pixels']}; with families, as each)"
    )
    add("--pixels", type=command_line.whole(1, 8192), metavar="N", help=pixels)
    dtypes = "what to compare (default: all three)"
    add("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES), help=dtypes)
    rounds = "turns of each case (default: 7; with families, 5)"
    add("--rounds", type=positive, metavar="N", help=rounds)
    peer = "a Python interpreter with torch and torchvision, to measure PyTorch with families"
    add("--peer-python", type=command_line.path, metavar="FILE", help=peer)
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
    profiles = "only print which kernels take the time of a training step in each dtype"
    add("--profile", action="store_true", help=profiles)
    output = "write NAME.json and NAME.png to this directory"
    add("--output", type=command_line.path, metavar="DIR", help=output)
    return parser.parse_args(arguments)


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Measure, print the tables, write the files; return the status of the process."""
    arguments = sys.argv[1:] if arguments is None else arguments
    options = parse(arguments)
    command = " ".join(["python", "scripts/benchmark.py", *arguments])
    # without the path of another interpreter
    command = re.sub(r"(--peer-python)[ =]\S+", r"\1 PYTHON", command)
    return command_line.status_of("benchmark.py", lambda: run(options, command))


def run(options: argparse.Namespace, command: str) -> None:
    """Measure, print the tables, write the files."""
    # MXNet's default depends on what is imported, and on x86 it is half of the cores
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    if options.wait_policy:
        os.environ.setdefault(waiting.VARIABLE, options.wait_policy)
    if options.suite == "families" and not options.profile:
        run_families(options, command)
    else:
        names = SUITES if options.suite == "all" else [options.suite]
        for name in ["step"] if options.profile else names:
            for network in options.networks or [REFERENCE["network"]]:
                run_suite(name, network, options, command)


def run_suite(name: str, network: str, options: argparse.Namespace, command: str) -> None:
    """Measure or profile one suite with one network, print its tables, write its files."""
    size = {"batch": options.batch_size, "pixels": options.pixels}
    size = {key: value or REFERENCE[key] for key, value in size.items()}
    suite = build_suite(name, options.dtypes, network=network, **size)
    if options.profile:
        for case in suite.cases:
            if case.label in DTYPES:
                entries, source = profile.profile(case)
                print(f"\n{network}, {case.label}: {source}\n\n{profile.as_table(entries)}")
        return
    if not suite.groups:
        dtypes = " or ".join(options.dtypes)
        raise command_line.UsageError(f"--suite {name} has nothing in {dtypes}.")
    measured = measure.measure(suite, options.rounds or 7, print_progress)
    result = report.as_json(suite, measured, report.machine(options.threads), command)
    tables = report.tables(result)
    print(f"\n{suite.title}\n\n{tables}")
    stem = name if network == REFERENCE["network"] else f"{name}_{network}"
    if options.output:
        pages.write_values(options.output / stem, result, report.draw)


def run_families(options: argparse.Namespace, command: str) -> None:
    """Measure the networks of the command line, count reorders, print and write the tables."""
    about = report.machine(options.threads)
    if options.peer_python:
        about["peer"] = peer_versions(options.peer_python)
    about["peak"] = float(measure.output_of(PEAK, "the fastest product", PYTHONPATH=str(ROOT)))
    kind = report.cpu_kind(about)
    suite = families.families(
        options.networks or families.NETWORKS,
        options.dtypes,
        bool(options.peer_python),
        options.batch_size,
        options.pixels,
        native=kind in ("AVX512_BF16", "AMX"),
    )
    left_out: Dict[str, str] = {}
    rounds = options.rounds or 5
    measured = measure.measure(suite, rounds, print_progress, options.peer_python, left_out)
    if not measured:
        raise command_line.UsageError("; ".join(left_out.values()))
    result = report.as_json(suite, measured, about, command)
    result["reorders"] = []
    for one in (one.case for one in measured):
        network, work, variant = one.label.split(", ", 2)
        if variant == families.BFLOAT16 and work in ("training", "image"):
            print_progress(f"counting the reorders of {network}, {work}")
            counts = profile.count_reorders(one)._asdict()
            result["reorders"].append({"network": network, "kind": work, **counts})
    result["left_out"] = left_out
    tables = families.tables(result)
    print(f"\n{tables}")
    if options.output:
        stem = f"families-{kind.lower()}"
        pages.write_values(options.output / stem, result, families.draw)


def peer_versions(python: Path) -> str:
    """Return the versions of PyTorch that an interpreter has; none is a `UsageError`."""
    what = f"--peer-python {python} cannot import torch and torchvision"
    return measure.output_of([str(python), "-c", PEER_VERSIONS], what).strip()


def print_progress(line: str) -> None:
    """Overwrite the last line of the terminal, if there is one."""
    if sys.stderr.isatty():
        print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)
