"""Check that every pin of constraints.txt can be installed on every supported Python.

    python -m experiments.pins

All extras and all pins are resolved together, from the metadata of wheels alone. As every resolved
package must have a pin, some of the extras resolve to some of the same versions.
"""

import itertools
import re
import runpy
import subprocess
import sys
from typing import Any, Dict, List, Optional, Sequence, Set
from unittest import mock

from experiments import ROOT
from experiments.standalone import command_line

PYTHONS = [f"3.{minor}" for minor in range(8, 15)]
RESOLVE = [
    *(sys.executable, "-m", "uv", "pip", "compile", "-", "--quiet"),
    *("--no-header", "--no-annotate", "--no-python-downloads", "--only-binary", ":all:"),
    *("--python-platform", "x86_64-manylinux_2_31"),  # Ubuntu 20.04 and Debian 11
]


def metadata() -> Dict[str, Any]:
    """Return what setup.py gives to setuptools."""
    with mock.patch("setuptools.setup") as setup:
        runpy.run_path(str(ROOT / "setup.py"))
    return setup.call_args[1]


def requirements() -> List[str]:
    """Return what setup.py requires, with all its extras."""
    about = metadata()
    return [*about["install_requires"], *itertools.chain(*about["extras_require"].values())]


def versions(text: str) -> Set[str]:
    """Return the exact requirements of a text, as ``name==version`` with normalized names."""
    found = re.findall(r"(?m)^([\w.-]+)==([^\s;]+)", text)
    return {f"{re.sub('[-_.]+', '-', name).lower()}=={version}" for name, version in found}


def fault(python: str, required: str, pinned: str) -> Optional[str]:
    """Return what prevents an installation on one Python, as a sentence, or None."""
    done = subprocess.run(
        [*RESOLVE, "--python-version", python],
        input=f"{required}\n{pinned}",
        capture_output=True,
        encoding="utf-8",
    )
    if done.returncode:
        text = " ".join(done.stderr.split())
        reason = re.search(r"Because .*?(?= hint:|$)", text)
        if reason is None:
            return f"Python {python} was not checked, as uv failed: {text}"  # without a network
        return f"constraints.txt cannot be installed on Python {python}: {reason.group()}"
    unpinned = versions(done.stdout) - versions(pinned) - versions(required)
    if unpinned:
        names = ", ".join(sorted(unpinned))
        return f"constraints.txt lacks packages that Python {python} installs: add {names}."
    return None


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Print what prevents an installation on each Python; return 0 if nothing does."""
    command_line.Parser(description=__doc__.splitlines()[0]).parse_args(arguments)
    required, pinned = "\n".join(requirements()), (ROOT / "constraints.txt").read_text()
    faults = [fault(python, required, pinned) for python in PYTHONS]
    for sentence in filter(None, faults):
        print(sentence, file=sys.stderr)
    return int(any(faults))


if __name__ == "__main__":
    sys.exit(main())
