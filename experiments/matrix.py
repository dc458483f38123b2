"""Install gluon_amp and train with it on several pairs of Python and numpy.

    make matrix

Each pair gets a fresh virtual environment outside the source tree. A Python that is not on this
machine is reported as skipped.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import List, Optional, Sequence

from experiments import ROOT
from experiments.standalone import command_line

PAIRS = [("3.8", "1.23.5"), ("3.11", "1.23.5"), ("3.11", "1.26.4"), ("3.12", "1.26.4")]
EXTRAS = "cpu,gluoncv,data,results,test"
TESTS = ["tests/recipes/test_train_script.py", "-k", "short_run"]
VERSIONS = (
    "import gluon_amp, mxnet, numpy, platform; "
    "print(platform.python_version(), numpy.__version__, mxnet.__version__)"
)


def find_python(version: str) -> Optional[str]:
    """Return an interpreter of that version: by name, or one that pyenv has installed."""
    pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser() / "versions"
    installed = sorted(pyenv.glob(f"{version}.*/bin/python"))
    for candidate in [shutil.which(f"python{version}"), *map(str, installed)]:
        if candidate and _answers(candidate, version):
            return candidate
    return None


def _answers(python: str, version: str) -> bool:
    """A pyenv shim exists for versions that are switched off, so asking is the only proof."""
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run([python, "-c", code], capture_output=True, encoding="utf-8")
    return done.returncode == 0 and done.stdout.strip() == version


def copy_sources(folder: Path) -> Path:
    """Copy what is installed and tested, so that the installation leaves nothing in this tree."""
    ignored = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__")
    return Path(shutil.copytree(ROOT, folder / "source", ignore=ignored))


def constraints(source: Path, numpy: str) -> Path:
    """Write the constraints with another numpy."""
    pinned = (source / "constraints.txt").read_text()
    path = source / f"constraints-numpy-{numpy}.txt"
    path.write_text(re.sub(r"(?m)^numpy==.*$", "", pinned) + f"\nnumpy=={numpy}\n")
    return path


def check(python: str, numpy: str, folder: Path) -> bool:
    """Install into a fresh environment, import from elsewhere, and run the training tests."""
    source = copy_sources(folder)
    venv_python = str(folder / "venv" / "bin" / "python")
    commands: List[Sequence[str]] = [
        [python, "-m", "venv", str(folder / "venv")],
        [venv_python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
         "-c", str(constraints(source, numpy)), f"{source}[{EXTRAS}]"],
        [venv_python, "-m", "pip", "check"],
        [venv_python, "-c", VERSIONS],
    ]  # fmt: skip
    for command in commands:  # in an empty folder, so that only the installed package is found
        if subprocess.run(command, cwd=folder).returncode:
            return False
    shutil.rmtree(source / "gluon_amp")  # the tests, too, use the installed package
    return subprocess.run([venv_python, "-m", "pytest", *TESTS], cwd=source).returncode == 0


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Check every pair; return 0 if all that could run passed, and at least one could."""
    parser = command_line.Parser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=sorted({python for python, _ in PAIRS}),
        help="only this Python")  # fmt: skip
    only = parser.parse_args(arguments).only
    results = []
    for version, numpy in PAIRS:
        if only not in (None, version):
            continue
        print(f"== Python {version}, numpy {numpy}", flush=True)
        python, started = find_python(version), time.perf_counter()
        if python is None:
            results.append((version, numpy, f"skipped: no python{version} here", 0.0))
            continue
        with tempfile.TemporaryDirectory(prefix="gluon_amp_matrix_") as folder:
            passed = check(python, numpy, Path(folder))
        took = time.perf_counter() - started
        results.append((version, numpy, "passed" if passed else "FAILED", took))
    print("\nPython  numpy   seconds  result")
    for version, numpy, result, seconds in results:
        print(f"{version:<6}  {numpy:<6}  {seconds:7.0f}  {result}")
    outcomes = {result for _, _, result, _ in results}
    return 0 if "passed" in outcomes and "FAILED" not in outcomes else 1


if __name__ == "__main__":
    sys.exit(main())
