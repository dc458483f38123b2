"""Make the environment with PyTorch and torchvision, and run the tests that need them.

    make handover

The first call downloads PyTorch. Later calls use the same environment.
"""

import subprocess
import sys
from typing import Optional, Sequence

from experiments import ROOT, environments
from gluon_amp.training.command_line import Parser, status_of

TESTS = (
    "tests/handover",
    "tests/laws/test_both_kinds_of_arrays.py",
    "tests/documents/test_docs.py::test_every_public_name_has_an_example_that_holds",
    "tests/documents/test_how_to.py::test_the_snippets_of_a_page_run[leave_mxnet]",
)


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Run the tests, those marked slow too; return the status of pytest."""
    Parser(prog="handover", description=__doc__.splitlines()[0]).parse_args(arguments)
    command = [str(environments.of_handover()), "-m", "pytest", *TESTS]
    return subprocess.run(command, cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(status_of("handover", main))
