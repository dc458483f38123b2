"""Run the tests of the C++ operators with a library that AddressSanitizer checks.

    make asan

MXNet and oneDNN are not checked, but their arrays are: each has its own memory, and our kernels are
stopped at the first byte beyond it. Reads and writes of oneDNN are checked by guard pages instead
(`tests/kernels/test_guard_pages.py`). The library is built with its own compiler flags, in its own
folder, so that nobody takes it for the normal one.
"""

import os
import subprocess
import sys
from typing import List, Optional

from experiments import ROOT
from gluon_amp.kernels import build
from gluon_amp.training.command_line import Parser

FLAGS = ["-fsanitize=address", "-fno-omit-frame-pointer", "-g"]
# Python's own allocations are not freed at exit. The quarantine of freed memory is small, because a
# test measures that memory is freed.
OPTIONS = "detect_leaks=0:quarantine_size_mb=16"
# A compiler that stands in for one crashes on purpose in the file that is left out.
TESTS = ["tests/kernels", "tests/lowering", "--ignore", "tests/kernels/test_build.py"]


def main(argv: Optional[List[str]] = None) -> int:
    """Run the tests, and return pytest's exit status."""
    parser = Parser(description=__doc__.splitlines()[0])
    parser.add_argument("-k", metavar="EXPRESSION", default="", help="of pytest: which tests")
    options = parser.parse_args(argv)
    compiler = build.compiler()
    if compiler is None:
        sys.exit("error: no C++ compiler was found")
    # Python does not link the sanitizer, which must be loaded first, and with it the C++ library
    # whose exceptions it intercepts.
    libraries = ("libasan.so", "libstdc++.so.6")
    loaded = [build.run([*compiler, f"-print-file-name={name}"]).strip() for name in libraries]
    environment = {
        **os.environ,
        "CXX": " ".join([*compiler, *FLAGS]),
        "XDG_CACHE_HOME": str(ROOT / "build" / "asan"),
        "LD_PRELOAD": " ".join(loaded),
        "ASAN_OPTIONS": OPTIONS,
    }
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-m", "not slow"]
    command += [*TESTS, "-k", options.k]
    return subprocess.run(command, env=environment, cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main())
