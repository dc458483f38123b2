"""Print how heavy each part of the repository is: files, lines, and what an import loads.

python -m experiments.weights
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Iterable, List, Optional, Sequence

from experiments import ROOT
from experiments.pages import table
from experiments.standalone import command_line

SUFFIXES = {".py", ".cc", ".h"}
PARTS = {  # folders, and folders in them that are other parts
    "library": (["gluon_amp"], ["gluon_amp/kernels", "gluon_amp/training"]),
    "kernels (C++ and Python)": (["gluon_amp/kernels"], []),
    "training": (["gluon_amp/training"], []),
    "experiments": (["experiments"], ["experiments/clients/programs"]),
    "programs of MXNet's clients": (["experiments/clients/programs"], []),
    "tests": (["tests"], []),
}
# The rooms and the modules of gluon_amp that a line of Python loads
LOADED = """
import json, sys
import gluon_amp
modules = [name for name in sys.modules if name.split(".")[0] == "gluon_amp"]
rooms = {name.split(".")[1] for name in modules if name.count(".")}
print(json.dumps([len(rooms), len(modules)]))
"""


def sources(folders: Iterable[str], others: Iterable[str] = ()) -> List[Path]:
    """Return the files of some folders that git knows, without those in other folders."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", *folders]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    without = tuple(f"{folder}/" for folder in others)
    files = [ROOT / name for name in listed.split("\0") if name and not name.startswith(without)]
    return [file for file in files if file.suffix in SUFFIXES and file.is_file()]


def lines(file: Path) -> int:
    """Return the number of lines of a file."""
    return file.read_bytes().count(b"\n")


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Print the table; return the status of the process."""
    command_line.Parser(description=__doc__.splitlines()[0]).parse_args(arguments)
    rows = []
    for name, (folders, others) in PARTS.items():
        files = sources(folders, others)
        rows.append([name, f"{len(files)}", f"{sum(map(lines, files)):,}"])
    print(table(["part", "files", "lines"], rows))
    command = [sys.executable, "-c", LOADED]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    rooms, modules = json.loads(done.stdout)
    print(f"\n`import gluon_amp` loads {modules} modules of {rooms} rooms.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
