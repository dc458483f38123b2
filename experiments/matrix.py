"""Train, and run every test, on each supported Python and numpy: hours.

    make matrix
    make matrix ARGS='--only 3.8 --tests tests/startup'

Each pair gets a copy of the sources, where the Makefile makes the virtual environment. A Python
that is not installed is reported as skipped.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Optional, Sequence, Tuple

from experiments import ROOT
from experiments.standalone import command_line

PAIRS = [
    *((version, "1.23.5") for version in ("3.8", "3.9", "3.10", "3.11")),
    *((version, "1.26.4") for version in ("3.11", "3.12")),
]
IGNORED = ".git .venv* .clients .horovod .*_cache .hypothesis __pycache__ build dist *.egg-info"
# What a make that runs this program, or a checkout in use, would hand down
INHERITED = ("MAKEFLAGS", "MAKEOVERRIDES", "MFLAGS", "PYTHONPATH")
# What pytest says in its last line; `make test` runs it once for each kind of CPU
COUNTS = re.compile(r"\b\d+ (passed|failed|errors?)\b")


def find_python(version: str) -> Optional[str]:
    """Return an interpreter of this version, from the search path or from pyenv."""
    pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser() / "versions"
    installed = sorted(pyenv.glob(f"{version}.*/bin/python"))
    for candidate in [shutil.which(f"python{version}"), *map(str, installed)]:
        if candidate and _has_version(candidate, version):
            return candidate
    return None


def _has_version(python: str, version: str) -> bool:
    """Run the interpreter: pyenv also has shims of versions that are not enabled."""
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run([python, "-c", code], capture_output=True, encoding="utf-8")
    return done.returncode == 0 and done.stdout.strip() == version


def copy_sources(folder: Path) -> Path:
    """Copy the sources, so that the installation does not write to this tree."""
    ignored = shutil.ignore_patterns(*IGNORED.split())
    return Path(shutil.copytree(ROOT, folder / "source", ignore=ignored))


def pin_numpy(constraints: Path, numpy: str) -> None:
    """Change the version of numpy in a file of constraints."""
    others = re.sub(r"(?m)^numpy==.*\n", "", constraints.read_text())
    constraints.write_text(f"{others}numpy=={numpy}\n")


def make(source: Path, *arguments: str) -> Tuple[int, str]:
    """Run make and print what it prints; return its exit status and the counts of each pytest."""
    environment = {name: value for name, value in os.environ.items() if name not in INHERITED}
    counts = []
    command = ["make", "--no-print-directory", *arguments]
    with subprocess.Popen(
        command, cwd=source, env=environment, stdout=subprocess.PIPE, encoding="utf-8"
    ) as process:
        for line in process.stdout:
            print(line, end="", flush=True)
            if COUNTS.search(line):
                counts.append(line.strip("=\n "))
    return process.returncode, "; ".join(counts)


def check(python: str, numpy: str, tests: str) -> str:
    """Train for an epoch and run the tests; return pytest's counts, or what failed."""
    with tempfile.TemporaryDirectory(prefix="gluon_amp_matrix_") as folder:
        source = copy_sources(Path(folder))
        pin_numpy(source / "constraints.txt", numpy)
        status, _ = make(source, "train", f"PYTHON={python}", "ARGS=--num-epochs 1")
        if status:
            return "FAILED: make train"
        status, counts = make(source, "test", f"PYTHON={python}", f"ARGS={tests}")
    return f"FAILED: {counts}" if status else counts


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Check every pair; return 0 if at least one ran and none failed."""
    parser = command_line.Parser(description=__doc__.splitlines()[0])
    versions = list(dict.fromkeys(version for version, _ in PAIRS))
    parser.add_argument("--only", choices=versions, help="only this Python")
    parser.add_argument("--tests", default="", help="arguments of pytest; all tests without them")
    options = parser.parse_args(arguments)
    rows = []
    for version, numpy in PAIRS:
        if options.only not in (None, version):
            continue
        print(f"== Python {version}, numpy {numpy}", flush=True)
        python, start = find_python(version), time.perf_counter()
        if python is None:
            result = f"skipped: python{version} is not installed"
        else:
            result = check(python, numpy, options.tests)
        rows.append((version, numpy, time.perf_counter() - start, result))
    print("\nPython  numpy   seconds  tests")
    for version, numpy, seconds, result in rows:
        print(f"{version:<6}  {numpy:<6}  {seconds:7.0f}  {result}")
    outcomes = {result.partition(":")[0] for *_, result in rows}
    return int("FAILED" in outcomes or outcomes == {"skipped"})


if __name__ == "__main__":
    sys.exit(main())
