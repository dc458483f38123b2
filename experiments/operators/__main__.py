"""Measure every operator of MXNet 1.9.1, twice backward on one kept graph, and write a page.

python -m experiments.operators --output docs/results
"""

import datetime
import json
import subprocess
import sys
from collections import defaultdict
from typing import Dict, Iterator, List, Optional, Sequence, Tuple

from experiments import pages
from experiments.operators import calls, programs
from experiments.operators.measure import Call, all_calls
from gluon_amp.base import registry
from gluon_amp.policy import op_table
from gluon_amp.training.command_line import Parser, path, status_of
from gluon_amp.training.tables.machine import describe_cpu, versions

Row = Dict[str, object]


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Read the command line and run it; return the status of the process."""
    parser = Parser(prog="operators", description=__doc__.split("\n", 1)[0])
    text = "write operators.md there (default: %(default)s)"
    parser.add_argument("--output", type=path, default=path("results"), metavar="DIR", help=text)
    options = parser.parse_args(arguments)
    return status_of("operators", lambda: run(options.output))


def run(folder) -> None:
    """Measure all calls and write the page."""
    rows = list(measured(list(all_calls())))
    pages.write(folder / "operators", "results/operators.md", parts(rows))


def measured(tasks: List[Call]) -> Iterator[Tuple[Call, Row]]:
    """Yield each call with what was measured in each way to run it, or with the error."""
    first = 0
    while first < len(tasks):
        command = [sys.executable, "-m", "experiments.operators.measure", str(first)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        for line in done.stdout.splitlines():
            number, _, text = line.partition(" ")
            first = int(number) + 1
            for row in json.loads(text or '[{"crash": true}]'):
                yield tasks[int(number)], row
        print(f"{first} of {len(tasks)} calls", flush=True)


def parts(rows: List[Tuple[Call, Row]]) -> Dict[str, str]:
    """Return the parts of the page."""
    own, found = set(), defaultdict(list)
    for (op, _, attrs, dtype), row in rows:
        own.update(row.get("own", ()))
        found[op].append(({**attrs, "": dtype}, row))
    nets = {op: found.pop(op) for op in programs.NETS}
    called = [op for op in found if any(len(row) > 2 for _, row in found[op])]
    differentiable = [op for op in called if any("equal" in row for _, row in found[op])]
    refused = defaultdict(list)
    for op in sorted(set(found) - set(called)):
        refused[op_table.rule(op).reason].append(op)
    library = [name for name in registry.names() if name.startswith("_gluon_amp_")]
    return {
        "measured": f"on {datetime.date.today()}, {describe_cpu()}, {versions()}",
        "counts": f"{len(called)} of {len(found)} operators were called, in "
        f"{len(rows)} ways; {len(differentiable)} of them have a gradient",
        "once": _table(found, "equal", "second pass differs"),
        "scaled": _list(
            op for op in found if _ever(found[op], "scaled") and not _ever(found[op], "equal")
        ),
        "crashed": _table(found, "crash", "crashes", good=False),
        "writes": pages.table(("operator", "input", "when"), list(_writes(found)), 3),
        "random": _list(
            op for op in found if any(any(row.get("random", ())) for _, row in found[op])
        ),
        "refused": pages.table(
            ("why", "operators"), [(why, _list(ops)) for why, ops in refused.items()], 2
        ),
        "nets": f"{sum(row['equal'] for rows in nets.values() for _, row in rows)} of "
        f"{sum(map(len, nets.values()))}",
        "own": f"{len(own)} of {len(library)} operators",
    }


def _ever(rows: list, field: str, good: bool = True) -> bool:
    return any(row.get(field, good) is not good for _, row in rows)


def _list(operators) -> str:
    return " ".join(f"`{op}`" for op in operators)


def _table(found: dict, field: str, title: str, good: bool = True) -> str:
    """Return a table of operators, and how many of their calls differ from what is `good`."""
    rows = []
    for op, measured_rows in found.items():
        bad = [attrs for attrs, row in measured_rows if row.get(field, good) is not good]
        if bad:
            common = set.intersection(*(set(attrs.items()) for attrs in bad))
            first = set(calls.call(op)[1].items())
            words = ", ".join(f"{key}={value}" for key, value in sorted(common - first) if key)
            rows.append((f"`{op}`", words, f"{len(bad)} of {len(measured_rows)}"))
    return pages.table(("operator", "attributes", title), rows, 2)


def _writes(found: dict) -> Iterator[Tuple[str, str, str]]:
    for op, measured_rows in found.items():
        whens = defaultdict(set)
        for _, row in measured_rows:
            for position, when in row.get("writes", ()):
                whens[position].add(when)
        declared = calls.node(op, *calls.call(op)).list_auxiliary_states()
        for name in declared:
            whens[int(name[1:])].add("declared")
        for position, when in sorted(whens.items()):
            names = calls.REGISTERED[op].inputs
            name = names[position] if position < len(names) else str(position)
            yield f"`{op}`", name, ", ".join(sorted(when))


if __name__ == "__main__":
    sys.exit(main())
