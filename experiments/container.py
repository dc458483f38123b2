"""Run the lines of the Dockerfile in a copy of a bare Debian system, and train the digits there.

    make container

It does what `docker build` and `docker run` would do on a machine with Docker: the wheel in `dist`
is installed, its kernels are tried, and `gluon-amp train` makes an epoch. Needs root.
"""

import shutil
import string
from pathlib import Path
from typing import Dict, List, Optional, Sequence, Tuple

from experiments import ROOT, debian
from gluon_amp.base.messages import UsageError
from gluon_amp.training.command_line import Parser, status_of

SUITES = {"debian:13-slim": "trixie"}
TRAIN = "cd /tmp && gluon-amp train --dtype float16 --num-epochs 1 --max-batches 4"


def instructions(text: str) -> List[Tuple[str, str]]:
    """Return the instructions of a Dockerfile and their arguments, as in `("FROM", "debian")`."""
    lines = (line for line in text.splitlines() if not line.startswith("#"))
    joined = "\n".join(lines).replace("\\\n", " ").splitlines()
    return [
        (word, rest.strip()) for word, _, rest in (line.partition(" ") for line in joined) if word
    ]


def copy(root: Path, arguments: str) -> None:
    """Copy files of this checkout as COPY does; a pattern without a file is a `UsageError`."""
    *patterns, target = arguments.split()
    for pattern in patterns:
        files = sorted(ROOT.glob(pattern))
        if not files:
            raise UsageError(f"the Dockerfile copies {pattern}, which is not there: `make wheel`.")
        for file in files:
            shutil.copy(file, root / target.strip("/"))


def build() -> None:
    """Build and train; a line that fails is a `UsageError`."""
    (_, image), *lines = instructions((ROOT / "Dockerfile").read_text(encoding="utf-8"))
    variables: Dict[str, str] = {"PATH": "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
    system = debian.system(SUITES[image])
    with debian.copied(system) as root, debian.bound(root):
        for word, rest in [*lines, ("RUN", TRAIN)]:
            if word == "COPY":
                copy(root, rest)
            elif word == "ENV":
                name, _, value = rest.partition("=")
                variables[name] = string.Template(value).substitute(variables)
            else:  # RUN, CMD
                debian.run(root, rest, rest, **variables)


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Run it; return the exit status."""
    parser = Parser(description=__doc__.splitlines()[0])
    parser.parse_args(arguments)
    return status_of(parser.prog, build)


if __name__ == "__main__":
    raise SystemExit(main())
