"""Build the wheel that contains the C++ kernels, compiled in Debian 11.

    make wheel

The kernels need glibc 2.27 and the libstdc++ of GCC 8. auditwheel finds that in their symbols, and
it is the wheel's tag. No library that they use is copied into the wheel: MXNet loads libgomp as
well, and two of them in a process disturb each other. The same sources give the same bytes.
"""

import os
import runpy
import shutil
import sys
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Optional, Sequence, Tuple
from unittest import mock

import setuptools
from auditwheel.policy import WheelPolicies
from auditwheel.wheel_abi import analyze_wheel_abi
from setuptools.command.bdist_wheel import bdist_wheel

from experiments import ROOT, debian
from gluon_amp.base.messages import UsageError
from gluon_amp.kernels import build, cache, obtain
from gluon_amp.training.command_line import Parser, status_of

import mxnet as mx

FILES = ("gluon_amp_console.py", "setup.py", "pyproject.toml", "README.md", "LICENSE")

# What is there wherever MXNet is. auditwheel would count the symbols of this machine's copies, too.
OF_MXNET = frozenset({"libmxnet.so", "libgomp.so.1"})

# These members came with GCC 9. Compiled here, they are not looked for in libstdc++.
OLDER_LIBSTDCXX = """\
#include <sstream>
template std::stringbuf::basic_stringbuf();
template std::ostringstream::basic_ostringstream();
"""


def compile_in_debian(folder: Path) -> Path:
    """Return a library in a folder, without symbols and without paths of this machine."""
    if os.geteuid() != 0:
        raise UsageError("Compiling in Debian 11 takes root: run as root, or use --library.")
    root = debian.system("bullseye", packages=("g++",))
    header, library = folder / "older_libstdcxx.h", folder / "native.so"
    header.write_text(OLDER_LIBSTDCXX)
    sources, mxnet = str(build.SOURCES), str(Path(mx.__file__).parent)
    flags = ["-s", f"-ffile-prefix-map={sources}=", f"-ffile-prefix-map={mxnet}=", "-include"]
    macros = [f"-D{name}={value}" for name, value in build.MXNET_MACROS.items()]
    with debian.bound(root, sources, mxnet, str(folder)):
        build.build(["chroot", str(root), "g++", *macros, *flags, str(header)], library)
    obtain.try_in_subprocess(library)
    return library


def copy_sources(library: Path, folder: Path) -> None:
    """Copy what a wheel is made of to a folder, and a library to its place there."""
    ignore = shutil.ignore_patterns("__pycache__", cache.PREBUILT.name)
    shutil.copytree(ROOT / "gluon_amp", folder / "gluon_amp", ignore=ignore)
    for name in FILES:
        shutil.copy(ROOT / name, folder)
    prebuilt = folder / cache.PREBUILT.relative_to(ROOT)
    prebuilt.mkdir()
    shutil.copy(library, prebuilt / cache.file_name(library.read_bytes()))


def build_wheel(source: Path, platform: str, output: Path) -> Path:
    """Return the wheel of the sources in a folder, for any Python 3 on one platform."""

    class Tagged(bdist_wheel):
        def get_tag(self) -> Tuple[str, str, str]:
            return "py3", "none", platform

    class Binary(setuptools.Distribution):
        def has_ext_modules(self) -> bool:
            return True

    def setup(**about: object) -> None:
        folders = ["--bdist-dir", platform, "--dist-dir", str(output.absolute())]
        options = {"distclass": Binary, "cmdclass": {"bdist_wheel": Tagged}}
        original(**about, **options, script_args=["--quiet", "bdist_wheel", *folders])

    original, before = setuptools.setup, os.getcwd()
    os.chdir(source)
    try:
        with mock.patch("setuptools.setup", setup), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of setup.py as a command, which pip calls, too
            runpy.run_path("setup.py")
    finally:
        os.chdir(before)
    (wheel,) = output.glob(f"*-{platform}.whl")
    return wheel


def platform_of(wheel: Path) -> str:
    """Return the tag of the oldest systems that have the symbols which a wheel needs."""
    return analyze_wheel_abi(WheelPolicies(), str(wheel), OF_MXNET).overall_tag


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Build the wheel and print its path; return the exit status."""
    parser = Parser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", type=Path, help="one that `gluon-amp build` has compiled")
    parser.add_argument("--output", type=Path, default=ROOT / "dist", help="default: dist")
    options = parser.parse_args(arguments)
    os.environ.setdefault("SOURCE_DATE_EPOCH", "315532800")  # 1980, where the times of a zip begin

    def work() -> None:
        with TemporaryDirectory() as temporary:
            folder = Path(temporary)
            source = folder / "source"
            copy_sources(options.library or compile_in_debian(folder), source)
            platform = platform_of(build_wheel(source, "linux_x86_64", folder))
            print(build_wheel(source, platform, options.output))

    return status_of(parser.prog, work, (build.BuildError,))


if __name__ == "__main__":
    sys.exit(main())
