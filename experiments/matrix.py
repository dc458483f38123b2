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
from typing import Optional, Sequence

from experiments import ROOT
from experiments.standalone import command_line

PAIRS = [
    *((version, "1.23.5") for version in ("3.8", "3.9", "3.10", "3.11")),
    *((version, "1.26.4") for version in ("3.11", "3.12")),
    *((version, "2.5.5") for version in ("3.13", "3.14")),
]
IGNORED = ".git .venv* .clients .h* .*_cache __pycache__ build dist *.egg-info"
# What a make that runs this program, or a checkout in use, would hand down
INHERITED = ("MAKEFLAGS", "MAKEOVERRIDES", "MFLAGS", "PYTHONPATH")


def find_python(version: str) -> Optional[str]:
    """Return an interpreter of this version, from the search path or from pyenv."""
    pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser() / "versions"
    installed = map(str, sorted(pyenv.glob(f"{version}.*/bin/python")))
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    for candidate in filter(None, [shutil.which(f"python{version}"), *installed]):
        # It is run, as pyenv also has shims of versions that are not enabled.
        done = subprocess.run([candidate, "-c", code], capture_output=True, encoding="utf-8")
        if done.returncode == 0 and done.stdout.strip() == version:
            return candidate
    return None


def pin_numpy(constraints: Path, numpy: str) -> None:
    """Change the version of numpy in a file of constraints."""
    others = re.sub(r"(?m)^numpy==.*\n", "", constraints.read_text())
    constraints.write_text(f"{others}numpy=={numpy}\n")


def check(python: str, numpy: str, tests: str) -> str:
    """Train for an epoch and run the tests in a copy of the sources; return the result in words."""
    environment = {name: value for name, value in os.environ.items() if name not in INHERITED}
    with tempfile.TemporaryDirectory(prefix="gluon_amp_matrix_") as folder:
        ignored = shutil.ignore_patterns(*IGNORED.split())
        source = Path(shutil.copytree(ROOT, Path(folder) / "source", ignore=ignored))
        pin_numpy(source / "constraints.txt", numpy)
        for target, arguments in (("train", "--num-epochs 1"), ("test", tests)):
            command = ["make", "--no-print-directory", target]
            command += [f"PYTHON={python}", f"ARGS={arguments}"]
            if subprocess.run(command, cwd=source, env=environment).returncode:
                return f"FAILED: make {target}"
    return "passed"


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
        missing = f"skipped: python{version} is not installed"
        result = check(python, numpy, options.tests) if python else missing
        rows.append((version, numpy, time.perf_counter() - start, result))
    print("\nPython  numpy   seconds  result")
    for version, numpy, seconds, result in rows:
        print(f"{version:<6}  {numpy:<6}  {seconds:7.0f}  {result}")
    outcomes = {result.partition(":")[0] for *_, result in rows}
    return int("FAILED" in outcomes or outcomes == {"skipped"})


if __name__ == "__main__":
    sys.exit(main())
