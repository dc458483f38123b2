"""Compare kernels.txt with MXNet's CUDA build, and run networks on it."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Dict, Iterator, List, Optional, Sequence

from experiments import ROOT
from experiments.cuda_kernels.build import prepare
from experiments.zoo_coverage import all_networks, regular_expression
from gluon_amp.kernels.build import BuildError
from gluon_amp.training.command_line import Parser, status_of

TABLE = Path(__file__).with_name("kernels.txt")

# What stands in the table though the probe does not call it: it writes into its input, reads a
# sparse array or copies between devices
NOT_PROBED = """
    _CrossDeviceCopy _copyto _npi_boolean_mask_assign_scalar _npi_boolean_mask_assign_tensor
    _scatter_set_nd _sparse_retain
""".split()


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Return 0 if the table is right and all networks run, else 1."""
    parser = Parser(prog="cuda_kernels", description=__doc__)
    add = parser.add_argument
    folder = "for the CUDA build, 500 MB to download (default: %(default)s)"
    add("--folder", type=Path, default=Path("results/cuda_kernels"), help=folder)
    networks = "run these networks instead, as in zoo_coverage"
    add("--networks", type=regular_expression, metavar="PATTERN", help=networks)
    options = parser.parse_args(arguments)
    work_in = options.folder.resolve()
    return status_of(parser.prog, lambda: work(work_in, options.networks), (BuildError,))


def work(folder: Path, networks: "Optional[re.Pattern[str]]") -> int:
    """Prepare the folder, run the probes and print what they found."""
    prepare(folder)
    if networks is None:
        return compare(dict(probe(folder)))
    failed = 0
    for name in filter(networks.search, all_networks()):
        for row in run(folder, "networks", name):
            result = row["error"] or f"{row['launches']:>6} launches {row['float16_sums']}"
            print(f"{row['network']:<35} {row['policy']:<13} {result}", flush=True)
            failed += bool(row["error"])
    return 1 if failed else 0


def probe(folder: Path) -> Iterator[tuple]:
    """Yield the name of each operator and where its float16 kernel comes from, or None."""
    crashed: List[str] = []
    seen: Dict[str, Optional[str]] = {}
    while True:
        rows = run(folder, "operators", *crashed, *seen)
        seen.update({row["op"]: row["source"] for row in rows if "source" in row})
        last = rows[-1] if rows else {"source": None}
        if "source" in last:
            yield from seen.items()
            return
        crashed.append(last["op"])
        print(f"{last['op']} crashes the process")


def run(folder: Path, module: str, *arguments: str) -> List[dict]:
    """Run a module of this package on the stand-ins; return the rows that it printed."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(folder / "site"), str(ROOT)]),
        "LD_LIBRARY_PATH": str(folder / "libraries"),
        "MXNET_ENGINE_TYPE": "NaiveEngine",  # an error is raised where it happens
        "MXNET_USE_FUSION": "0",
        "MXNET_CUDNN_AUTOTUNE_DEFAULT": "0",
        "MXNET_CUDA_LIB_CHECKING": "0",
        "MXNET_CUDNN_LIB_CHECKING": "0",
    }
    command = [sys.executable, "-m", f"experiments.cuda_kernels.{module}", *arguments]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if not rows:
        print(done.stderr.strip().splitlines()[-1:])
    return rows


def table() -> Dict[str, str]:
    """Return where each operator's float16 kernel comes from: a file and line, or a kernel."""
    found = {}
    for word in re.sub(r"^#.*", "", TABLE.read_text(), flags=re.MULTILINE).split():
        if word.endswith(":"):
            source = place = word[:-1]
        elif word.isdigit():
            source = f"src/operator/{place}:{word}"
        else:
            found[word] = source
    return found


def compare(found: Dict[str, Optional[str]]) -> int:
    """Print the operators for which the table says something else; return 0 without any."""
    differences = 0
    listed = {op: source for op, source in table().items() if op not in NOT_PROBED}
    for op, expected in listed.items():
        if found.get(op) != expected:
            differences += 1
            print(f"{op}: the table says {expected}, MXNet {found.get(op)}")
    print(f"{len(listed) - differences} of {len(listed)} operators are as in the table")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
