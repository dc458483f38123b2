"""Install gluon_amp and train with it on several pairs of Python and numpy.

    make matrix

Each pair gets a new virtual environment outside the source tree. A Python that is not installed is
reported as skipped.
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
TESTS = ["tests/startup/test_compat.py", "tests/recipes/test_train_script.py"]
SELECTED = "distutils or aliases or short_run"
VERSIONS = (
    "import gluon_amp, mxnet, numpy, platform; "
    "print(platform.python_version(), numpy.__version__, mxnet.__version__)"
)


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
    ignored = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__")
    return Path(shutil.copytree(ROOT, folder / "source", ignore=ignored))


def constraints(source: Path, numpy: str) -> Path:
    """Write the constraints with another version of numpy."""
    pinned = (source / "constraints.txt").read_text()
    path = source / f"constraints-numpy-{numpy}.txt"
    path.write_text(re.sub(r"(?m)^numpy==.*$", "", pinned) + f"\nnumpy=={numpy}\n")
    return path


def check(python: str, numpy: str, folder: Path) -> bool:
    """Install into a new environment, import from another folder, and run the training tests."""
    source = copy_sources(folder)
    venv_python = str(folder / "venv" / "bin" / "python")
    pip = [venv_python, "-m", "pip", "--disable-pip-version-check"]
    pinned = str(constraints(source, numpy))
    commands: List[Sequence[str]] = [
        [python, "-m", "venv", str(folder / "venv")],
        [*pip, "install", "--quiet", "-c", pinned, f"{source}[{EXTRAS}]"],
        [*pip, "check"],
        [venv_python, "-c", VERSIONS],
    ]
    for command in commands:  # in a folder from which only the installed package can be imported
        if subprocess.run(command, cwd=folder).returncode:
            return False
    shutil.rmtree(source / "gluon_amp")  # the tests also use the installed package
    return (
        subprocess.run([venv_python, "-m", "pytest", *TESTS, "-k", SELECTED], cwd=source).returncode
        == 0
    )


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Check every pair; return 0 if at least one passed and none failed."""
    parser = command_line.Parser(description=__doc__.splitlines()[0])
    versions = sorted({version for version, _ in PAIRS})
    parser.add_argument("--only", choices=versions, help="only this Python")
    only = parser.parse_args(arguments).only
    results = []
    for version, numpy in PAIRS:
        if only not in (None, version):
            continue
        print(f"== Python {version}, numpy {numpy}", flush=True)
        python, start = find_python(version), time.perf_counter()
        if python is None:
            results.append((version, numpy, f"skipped: python{version} is not installed", 0.0))
            continue
        with tempfile.TemporaryDirectory(prefix="gluon_amp_matrix_") as folder:
            passed = check(python, numpy, Path(folder))
        seconds = time.perf_counter() - start
        results.append((version, numpy, "passed" if passed else "FAILED", seconds))
    print("\nPython  numpy   seconds  result")
    for version, numpy, result, seconds in results:
        print(f"{version:<6}  {numpy:<6}  {seconds:7.0f}  {result}")
    outcomes = {result for _, _, result, _ in results}
    return 0 if "passed" in outcomes and "FAILED" not in outcomes else 1


if __name__ == "__main__":
    sys.exit(main())
