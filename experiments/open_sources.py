"""Open each C++ source and header alone, as clangd does, and report errors and unused includes.

    python -m experiments.open_sources

It takes clang-tidy, which reads .clang-tidy, or if that is not there clang++, which finds errors
only. Without both, it says so and checks nothing.
"""

import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import List, Optional, Sequence

from experiments.standalone import command_line
from gluon_amp.base import hardware
from gluon_amp.kernels import build
from gluon_amp.kernels.build import BuildError


def command(source: Path) -> List[str]:
    """Return the command that opens a source; an empty list if there is no clang."""
    flags = ["-x", "c++", *build.FLAGS, "-fopenmp", *build.flags_of_mxnet()]
    compiler = build.compiler()
    if compiler is not None:  # clang-tidy's wheel has no omp.h
        flags += ["-idirafter", build.run([*compiler, "-print-file-name=include"]).strip()]
    if shutil.which("clang-tidy"):
        return ["clang-tidy", "--quiet", str(source), "--", *flags]
    return ["clang++", "-fsyntax-only", *flags, str(source)] if shutil.which("clang++") else []


def error_of(source: Path) -> Optional[str]:
    """Return the first error in a source that is opened alone."""
    try:
        build.run(command(source), what=source.name)
    except BuildError as error:
        return str(error)
    return None


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Open all sources; return the status of the process."""
    command_line.Parser(description=__doc__.splitlines()[0]).parse_args(arguments)
    sources = sorted(build.SOURCES.glob("*.*"))
    if not command(sources[0]):
        print("The C++ sources are not opened: there is neither clang-tidy nor clang++.")
        return 0
    with ThreadPoolExecutor(max(1, hardware.count_cores())) as pool:
        errors = [error for error in pool.map(error_of, sources) if error]
    print(*errors, f"{len(sources)} C++ sources were opened, {len(errors)} with errors.", sep="\n")
    return min(len(errors), 1)


if __name__ == "__main__":
    sys.exit(main())
