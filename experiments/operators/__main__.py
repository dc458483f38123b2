"""Measure every operator of MXNet 1.9.1, twice backward on one kept graph, and write a page.

python -m experiments.operators --output docs/results
"""

import contextlib
import datetime
import json
import subprocess
import sys
from collections import defaultdict
from typing import Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

from experiments import pages
from experiments.operators import calls, faults, programs
from experiments.operators.measure import Call, all_calls
from gluon_amp.base import registry
from gluon_amp.graph import op_table
from gluon_amp.training.command_line import Parser, path, status_of
from gluon_amp.training.tables.machine import describe_cpu, versions

from mxnet import MXNetError

Row = Dict[str, object]

# Words of the table, and whether a call was seen to have one; None if that was not measured
MEASURES: Dict[str, Callable[[Row], Optional[bool]]] = {
    "once": lambda row: not row["equal"] if "equal" in row else None,
    "random": lambda row: any(row["random"]) if "random" in row else None,
    "writes": lambda row: bool(row["writes"]) if "writes" in row else None,
    "inplace": lambda row: not row["in_place"] if "in_place" in row else None,
}


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Read the command line and run it; return the status of the process."""
    parser = Parser(prog="operators", description=__doc__.split("\n", 1)[0])
    text = "write operators.md there (default: %(default)s)"
    parser.add_argument("--output", type=path, default=path("results"), metavar="DIR", help=text)
    options = parser.parse_args(arguments)
    return status_of("operators", lambda: run(options.output))


def run(folder) -> None:
    """Measure all calls and the known faults, and write the page."""
    faults.check()
    rows = list(measured(list(all_calls())))
    pages.write(folder / "operators", "results/operators.md", parts(rows))
    print(*disagreements(rows), sep="\n")


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


def disagreements(rows: List[Tuple[Call, Row]]) -> Iterator[str]:
    """Yield a sentence for each operator and word of which the table says something else."""
    for word, measure in MEASURES.items():
        seen: Dict[str, List[bool]] = defaultdict(list)
        for (op, _, attrs, _), row in rows:
            found = measure(row) if op in calls.REGISTERED else None
            if found is not None:
                seen[op].append(found)
                if found and not op_table.has(word, op, attrs):
                    yield f"{op} with {attrs} is not `{word}` in the table, but was seen to be."
        for op, each in seen.items():
            if op_table.has(word, op) and not any(each):
                yield f"{op} is `{word}` in the table, and was not seen to be in any call."
    for (op, _, attrs, _), row in rows:
        if row.get("adds") is False and op_table.has("adds", op, attrs):
            yield f"{op} with {attrs} is `adds` in the table, and did not add a gradient."


def parts(rows: List[Tuple[Call, Row]]) -> Dict[str, str]:
    """Return the parts of the page."""
    own, found = set(), defaultdict(list)
    for (op, _, attrs, _), row in rows:
        own.update(row.get("own", ()))
        found[op].append((attrs, row))
    nets = [row["equal"] for kind in programs.NETS for _, row in found.pop(kind)]
    called = [op for op in found if _having(found[op], "writes")]
    learned = [op for op in called if _having(found[op], "equal")]
    failed = [(op, row) for op, rows in found.items() for _, row in rows if not row.get("adds", 1)]
    unadded = {op for op, row in failed if "static" not in row["way"]}
    unadded_static = {op for op, row in failed if "static" in row["way"]}
    refused = defaultdict(list)
    for op in sorted(found.keys() - called):
        refused[op_table.rule(op).reason].append(op)
    library = [name for name in registry.names() if name.startswith("_gluon_amp_")]
    return {
        "measured": f"{datetime.date.today()}, {describe_cpu()}, {versions()}",
        "counts": f"{len(called)} of {len(found)} operators were called, in {len(rows)} ways; "
        f"{len(learned)} of these have a gradient",
        "once": _table(found, "equal", False),
        "scaled": _listed(
            op
            for op in learned
            if any(row["equal"] and not row["scaled"] for _, row in _having(found[op], "equal"))
        ),
        "in_place": _table(found, "in_place", False),
        "unadded": _listed(op for op in found if op in unadded),
        "static": _listed(op for op in found if op in unadded_static - unadded),
        "crashed": _table(found, "crash", True),
        "writes": pages.table(("operator", "input", "when"), list(_writes(found, learned)), 3),
        "updates": _listed(op for op in found if op not in learned and _declared(op)),
        "random": _listed(
            op
            for op in called
            if any(any(row["random"]) for _, row in _having(found[op], "random"))
        ),
        "refused": pages.table(
            ("in the words of the operator table", "operators"),
            [(reason, _listed(operators)) for reason, operators in refused.items()],
            2,
        ),
        "nets": f"{sum(nets)} of {len(nets)}",
        "own": f"{len(own)} of {len(library)}",
    }


def _having(rows: list, field: str) -> list:
    return [(attrs, row) for attrs, row in rows if field in row]


def _listed(operators: Iterable[str]) -> str:
    return " ".join(f"`{op}`" for op in operators)


def _table(found: Dict[str, list], field: str, value: bool) -> str:
    """Return a table of operators whose field has a value in some of their calls."""
    lines = []
    for op, rows in found.items():
        chosen = [attrs for attrs, row in rows if row.get(field) is value]
        if chosen:
            same = set.intersection(*(set(attrs.items()) for attrs in chosen))
            words = ", ".join("=".join(item) for item in same - set(calls.call(op)[1].items()))
            total = len(rows) if field == "crash" else len(_having(rows, field))
            lines.append((f"`{op}`", words, f"{len(chosen)} of {total}"))
    return pages.table(("operator", "if", "calls"), lines, 2)


def _declared(op: str) -> List[int]:
    """Return the inputs that MXNet lists as auxiliary states."""
    with contextlib.suppress(MXNetError):  # an operator that cannot be called by its name
        return [int(name[1:]) for name in calls.node(op).list_auxiliary_states()]
    return []


def _writes(found: Dict[str, list], learned: List[str]) -> Iterator[Tuple[str, str, str]]:
    """Yield rows of the operators of a network that write their inputs."""
    for op in learned:
        written = {tuple(pair) for _, row in _having(found[op], "writes") for pair in row["writes"]}
        for i in sorted({i for i, _ in written}):
            names = dict(enumerate(calls.REGISTERED[op].inputs))
            whens = sorted({when for position, when in written if position == i})
            declared = "" if i in _declared(op) else " (not declared)"
            yield f"`{op}`", names.get(i, f"number {i}") + declared, ", ".join(whens)


if __name__ == "__main__":
    sys.exit(main())
