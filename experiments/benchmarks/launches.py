"""Runs the launches suite: counts operators and reads of training steps, and writes their page."""

import argparse
import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence

from experiments import ROOT
from experiments.benchmarks import report
from experiments.benchmarks.launch_count import (
    ENVIRONMENT,
    NETWORKS,
    OPTIONS,
    SYSTEMS,
    Counting,
)
from experiments.standalone import command_line

# The limits: operators of a step beyond those of gluon.Trainer, and reads of each device.
MOST_MORE, MOST_READS = 10, 1
BASE, OWN = "gluon.Trainer, float16", "gluon_amp, float16"
WITHOUT_A_PEER = {"adamw"}  # MXNet 1.9.1 has operators for it, and no optimizer

TITLE = "Operators and reads of a training step"
TEXT = """A GPU launches one kernel or more for each operator. It is idle while the host waits for a
result and prepares the next launches. Here a CPU runs the operators that a GPU would run in place
of gluon_amp's C++ kernels, and MXNet's profiler counts them.

- A cell is `operators / reads` of one training step. It counts the operators of loss scaling,
  reduction, check, clipping and update, but not those of the forward and the backward pass. A read
  is a call that waits for a device.
- The last column is gluon_amp's operators minus those of `gluon.Trainer(multi_precision=True)`, for
  the same network with float16 parameters. It marks a row with more than {more} more operators,
  more than {reads} read for each device, or other work than the update after the read.
- contrib.amp runs in bfloat16, because a CPU has no float16 convolutions. What its trainer does is
  the same."""
EARLIER = "gluon_amp, earlier"
BEFORE = f"""The column '{EARLIER}' was counted before three changes: masters follow the engine's
counters of writes, norms and names are read as one vector, and NAG, LAMB, LARS and AdamW run few
operators."""
KEYS = ("network", "devices", "clip", "optimizer")
WORDS = {True: "yes", False: "no"}
NO_GPU = """Nothing here was measured on a GPU: these are counts, not times."""


def cases(networks: List[str]) -> List[Counting]:
    """Return all cases: every network and system, and every optimizer on the first network."""
    every = [
        Counting(network, system, devices=devices, clip=clip)
        for network in networks
        for devices in (1, 2)
        for clip in (False, True)
        for system in SYSTEMS
    ]
    optimizers = [
        Counting(networks[0], system, optimizer)
        for optimizer in OPTIONS
        for system in (BASE, OWN)
        if optimizer != "sgd" and not (system == BASE and optimizer in WITHOUT_A_PEER)
    ]
    return every + optimizers


def run(options: argparse.Namespace, command: str, progress: Callable[[str], None]) -> None:
    """Count the networks of the command line, print the tables, write the files."""
    networks = options.networks or list(NETWORKS)
    unknown = [name for name in networks if name not in NETWORKS]
    if unknown:
        known = ", ".join(f"'{name}'" for name in NETWORKS)
        raise command_line.UsageError(
            f"--suite launches does not know the network {unknown[0]}: choose from {known}."
        )
    rows = []
    planned = cases(networks)
    for number, case in enumerate(planned, 1):
        progress(f"{number} of {len(planned)}: {case.network}, {case.system}")
        rows.append({**dataclasses.asdict(case), **count(case)})
    result = {"machine": report.machine(options.threads), "command": command, "rows": rows}
    before = read_before(options.output)
    print(f"\n{tables(rows)}")
    if options.output:
        with report.to_output(options.output):
            options.output.mkdir(parents=True, exist_ok=True)
            text = json.dumps(result, indent=1) + "\n"
            (options.output / "launches.json").write_text(text)
            (options.output / "launches.md").write_text(page(result, before))


def count(case: Counting) -> Dict[str, Any]:
    """Return the `Counts` of a case as a dict, or why it cannot run."""
    argument = json.dumps(dataclasses.asdict(case))
    done = subprocess.run(
        [sys.executable, "-m", "experiments.benchmarks.launch_count", argument],
        env={**os.environ, **ENVIRONMENT, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
        return {"failed": lines[-1]}
    return json.loads(done.stdout.splitlines()[-1])


def read_before(folder: Optional[Path]) -> Optional[Dict[str, Any]]:
    """Return an earlier result, ``launches_before.json``, if the folder has one."""
    path = folder / "launches_before.json" if folder else None
    return json.loads(path.read_text()) if path and path.exists() else None


def verdict(own: Dict[str, Any], base: Optional[Dict[str, Any]]) -> str:
    """Return by how many operators a row is above its base, and which limits it misses."""
    more = own["trainer"] - base["trainer"] if base and "failed" not in base else None
    missed = []
    if more is not None and more > MOST_MORE:
        missed.append("operators")
    if own["reads"] > MOST_READS * own["devices"]:
        missed.append("reads")
    if own["after"]:
        missed.append(f"{', '.join(own['after'])} after the read")
    text = "" if more is None else f"{more:+.0f}".replace("-", "−")
    return text + (f" (missed: {'; '.join(missed)})" if missed else "")


def tables(rows: List[Dict[str, Any]], before: Sequence[Dict[str, Any]] = ()) -> str:
    """Return the table of networks, and that of optimizers; with a column of earlier counts."""
    shown = [{**row, "column": row["system"]} for row in rows]
    shown += [{**row, "column": EARLIER} for row in before if row["system"] == OWN]
    first = rows[0]["network"]
    networks = [row for row in shown if row["optimizer"] == "sgd"]
    alone = [
        row for row in shown if (row["network"], row["devices"], row["clip"]) == (first, 1, False)
    ]
    earlier = [EARLIER] if before else []
    return (
        f"{_table(KEYS[:3], networks, [*SYSTEMS, *earlier])}\n\n"
        f"On {first} and one device, without clipping, each optimizer:\n\n"
        f"{_table(KEYS[3:], alone, [BASE, OWN, *earlier])}"
    )


def _table(keys: Sequence[str], rows: List[Dict[str, Any]], columns: Sequence[str]) -> str:
    grouped: Dict[tuple, Dict[str, Dict[str, Any]]] = {}
    for row in rows:
        key = tuple(WORDS[row[key]] if isinstance(row[key], bool) else row[key] for key in keys)
        grouped.setdefault(key, {})[row["column"]] = row
    lines = [
        f"| {' | '.join([*keys, *columns, 'more'])} |",
        f"| {' | '.join([':--'] * len(keys) + ['--:'] * (len(columns) + 1))} |",
    ]
    for key, found in grouped.items():
        cells = [*key, *(_cell(found.get(column)) for column in columns), _more(found)]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def _more(found: Dict[str, Dict[str, Any]]) -> str:
    own = found.get(OWN)
    return verdict(own, found.get(BASE)) if own and "failed" not in own else ""


def _cell(row: Optional[Dict[str, Any]]) -> str:
    if row is None:
        return "none"
    if "failed" in row:
        return "fails"
    return f"{row['trainer']:.0f} / {row['reads']:.0f}"


def page(result: Dict[str, Any], before: Optional[Dict[str, Any]]) -> str:
    """Return the page of a result, and of an earlier one."""
    text = TEXT.format(more=MOST_MORE, reads=MOST_READS)
    parts = [
        f"# {TITLE}",
        f"{NO_GPU}\n\n{text}",
        tables(result["rows"], (before or {}).get("rows", ())),
    ]
    if before:
        parts.append(BEFORE)
    about = result["machine"]
    parts.append(
        f"Counted on {about['date']} with `{result['command']}`, each case in a process of its "
        f"own, on {about['processor']}, MXNet {about['mxnet']}, Python {about['python']}, "
        f"gluon_amp {about['gluon_amp']}."
    )
    return "\n\n".join(parts) + "\n"
