"""Runs the families suite: measures, counts reorders, prints the tables, writes the files."""

import argparse
import subprocess
from pathlib import Path
from typing import Any, Callable, Dict, List

from experiments.benchmarks import families, families_report, measure, reorders, report
from experiments.benchmarks.families import BFLOAT16, FAMILIES
from experiments.benchmarks.summary import Results
from experiments.standalone import command_line

ROUNDS = 5
VERSIONS = (
    "import torch, torchvision; "
    "print(f'PyTorch {torch.__version__}, torchvision {torchvision.__version__}')"
)


def run(options: argparse.Namespace, command: str, progress: Callable[[str], None]) -> None:
    """Measure the networks of the command line, print the tables, write the files."""
    about = report.machine(options.threads)
    if options.peer_python:
        about["peer"] = peer_versions(options.peer_python)
    all_networks = [family.network for family in FAMILIES]
    networks = options.networks or all_networks
    size = {"batch": options.batch_size, "pixels": options.pixels}
    suite = families.families(networks, options.dtypes, bool(options.peer_python), **size)
    left_out: Dict[str, str] = {}
    measured = measure.measure(
        suite, options.rounds or ROUNDS, progress, options.peer_python, left_out
    )
    if not measured:
        raise command_line.UsageError("; ".join(left_out.values()))
    usual = set(networks) >= {family.network for family in FAMILIES if family.bounded}
    results = Results(measured, networks, usual and not any(size.values()))
    ratios = [*results.summary(), *measure.ratios(suite, measured)]
    result = {
        **report.as_json(suite, measured, ratios, about, command),
        "reorders": count_reorders(results, progress),
        "rates": results.rates(),
        "limits": results.limits(),
        "left_out": left_out,
    }
    tables = families_report.tables(results, result)
    print(f"\n{tables}")
    if options.output:
        page = "\n\n".join([f"# {suite.title}", tables, report.method(result)]) + "\n"
        with report.to_output(options.output):
            for path in families_report.write(page, result, options.output):
                print(path)


def peer_versions(python: Path) -> str:
    """Return the versions of PyTorch that an interpreter has; none is a `UsageError`."""
    try:
        done = subprocess.run([str(python), "-c", VERSIONS], capture_output=True, text=True)
    except OSError as error:
        raise command_line.UsageError(
            f"--peer-python {python} cannot be run: {error.strerror}."
        ) from None
    if done.returncode:
        raise command_line.UsageError(
            f"--peer-python {python} cannot import torch and torchvision: "
            f"{(done.stderr.strip().splitlines() or ['it failed'])[-1]}"
        )
    return done.stdout.strip()


def count_reorders(results: Results, progress: Callable[[str], None]) -> List[Dict[str, Any]]:
    """Return the reorders of the bfloat16 cases: training steps, and one image of inference."""
    rows = []
    for network in results.networks:
        for kind in ("training", "image"):
            one = results.find(network, kind, BFLOAT16)
            if one is not None:
                progress(f"counting the reorders of {network}, {kind}")
                counts = reorders.count(one.case)
                rows.append({"network": network, "kind": kind, **counts._asdict()})
    return rows
