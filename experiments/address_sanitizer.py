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
from typing import Dict, List, Optional, Sequence

from experiments import ROOT
from gluon_amp.kernels import build
from gluon_amp.training.command_line import Parser

FLAGS = ["-fsanitize=address", "-fno-omit-frame-pointer", "-g"]

# Python's own allocations are not freed at exit. The quarantine of freed memory is small, because a
# test measures that memory is freed.
OPTIONS = "detect_leaks=0:quarantine_size_mb=16"

TESTS = [
    "test_arguments",
    "test_blocked_convolution",
    "test_blocked_deconvolution",
    "test_blocking",
    "test_dense",
    "test_depthwise",
    "test_guard_pages",
    "test_norm",
    "test_packed_weights",
    "test_pointwise",
    "test_pooling",
    "test_rounding",
    "test_updates",
]


def environment(compiler: Sequence[str]) -> Dict[str, str]:
    """Return the environment in which gluon_amp builds and loads a checked library.

    Python does not link the sanitizer, which must be loaded first, and with it the C++ library
    whose exceptions it intercepts.
    """
    libraries = ("libasan.so", "libstdc++.so.6")
    loaded = [build.run([*compiler, f"-print-file-name={name}"]).strip() for name in libraries]
    return {
        **os.environ,
        "CXX": " ".join([*compiler, *FLAGS]),
        "XDG_CACHE_HOME": str(ROOT / "build" / "asan"),
        "LD_PRELOAD": " ".join(loaded),
        "ASAN_OPTIONS": OPTIONS,
    }


def main(argv: Optional[List[str]] = None) -> int:
    """Run the tests, and return pytest's exit status."""
    parser = Parser(description=__doc__.splitlines()[0])
    parser.add_argument("-k", metavar="EXPRESSION", help="run the tests whose names match")
    parser.add_argument("-x", action="store_true", help="stop at the first failure")
    options = parser.parse_args(argv)
    compiler = build.compiler()
    if compiler is None:
        sys.exit("error: no C++ compiler was found")
    tests = [str(ROOT / "tests" / "kernels" / f"{name}.py") for name in TESTS]
    arguments = [*(["-k", options.k] if options.k else []), *(["-x"] if options.x else [])]
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *tests, *arguments]
    return subprocess.run(command, env=environment(compiler), cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main())
