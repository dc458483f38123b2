"""Record what gluon_amp does, and compare two records: a redesign changes nothing."""

import argparse
import difflib
import gzip
import importlib
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Dict, Optional, Sequence

from experiments import ROOT
from gluon_amp.training.command_line import Parser, path, positive_int

# The module of each group, and how many processes record it: always the same cases in each
GROUPS = {
    "graphs": ("networks", 4),
    "describes": ("networks", 4),
    "steps": ("steps", 2),
    "runs": ("runs", 2),
    "lines": ("lines", 4),
}
SHOWN = 3  # differences of a group
WIDTH = 160


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Record or compare; return 0 if all was recorded, or is equal."""
    parser = Parser(prog="unchanged", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    add = commands.add_parser("record").add_argument
    add("--output", type=path, required=True, metavar="DIR", help="outside of the repository")
    add("--only", default=",".join(GROUPS), metavar="GROUPS", help="default: %(default)s")
    add("--parallel", type=positive_int, default=1, metavar="N", help="processes at a time")
    add("--limit", type=positive_int, metavar="N", help="cases of each process")
    add("--shard", type=int, help=argparse.SUPPRESS)
    add = commands.add_parser("compare").add_argument
    add("before", type=path)
    add("after", type=path)
    options = parser.parse_args(arguments)
    if options.command == "compare":
        return compare(options.before, options.after)
    groups = options.only.split(",")
    unknown = set(groups) - set(GROUPS)
    if unknown:
        parser.error(f"there is no group {min(unknown)!r}: choose of {', '.join(GROUPS)}.")
    if options.shard is not None:
        record(groups[0], options.shard, options.limit, options.output)
        return 0
    print(f"recording {ROOT}", flush=True)
    options.output.mkdir(parents=True, exist_ok=True)
    jobs = [(group, shard) for group in groups for shard in range(GROUPS[group][1])]
    with ThreadPoolExecutor(options.parallel) as pool:
        statuses = list(pool.map(lambda job: in_process(*job, options), jobs))
    return max(statuses)


def in_process(group: str, shard: int, options: argparse.Namespace) -> int:
    """Record a shard in a process with one thread, in a home and a current folder of its own."""
    cache = os.path.join(os.path.expanduser("~"), ".cache")  # of the compiled library
    here = {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "COLUMNS": "99"}
    command = [sys.executable, "-m", "experiments.unchanged", "record", "--only", group]
    command += ["--shard", str(shard), "--output", str(options.output.absolute())]
    command += ["--limit", str(options.limit)] if options.limit else []
    with tempfile.TemporaryDirectory() as home:
        environment = {"XDG_CACHE_HOME": cache, **os.environ, "HOME": home, **here}
        done = subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True)
    print(f"{group} {shard}: {done.stdout.strip() or done.stderr[-2000:]}", flush=True)
    return int(done.returncode != 0)


def record(group: str, shard: int, limit: Optional[int], output: Path) -> None:
    """Write the texts of a shard's cases as compressed JSON, by the names of the cases."""
    from experiments.unchanged.outcome import outcome

    module, shards = GROUPS[group]
    cases = getattr(importlib.import_module(f"experiments.unchanged.{module}"), group)
    chosen = islice(cases(), shard, None, shards)
    texts = {name: outcome(case) for name, case in islice(chosen, limit)}
    with gzip.GzipFile(output / f"{group}-{shard}.json.gz", "wb", mtime=0) as file:
        file.write(json.dumps(texts, indent=0).encode())
    raised = sum("\nRAISED " in text for text in texts.values())
    print(f"{len(texts)} cases, of which {raised} raise an error")


def read(folder: Path, group: str) -> Dict[str, str]:
    """Return the texts of a group."""
    texts = {}
    for file in sorted(folder.glob(f"{group}-*.json.gz")):
        texts.update(json.loads(gzip.decompress(file.read_bytes())))
    return texts


def compare(before: Path, after: Path) -> int:
    """Print how many cases of each group are equal, and the first differences."""
    differences = compared = 0
    for group in GROUPS:
        old, new = read(before, group), read(after, group)
        names = list(dict.fromkeys([*old, *new]))
        different = [name for name in names if old.get(name) != new.get(name)]
        if names:
            print(f"{group}: equal {len(names) - len(different)}, different {len(different)}")
        for name in different[:SHOWN]:
            texts = (old.get(name, "(no case)"), new.get(name, "(no case)"))
            lines = difflib.unified_diff(*(text.splitlines() for text in texts), lineterm="", n=0)
            print(f"  {name}", *(f"    {line[:WIDTH]}" for line in islice(lines, 2, 14)), sep="\n")
        differences += len(different)
        compared += len(names)
    return int(differences > 0 or compared == 0)


if __name__ == "__main__":
    sys.exit(main())
