"""What cannot work is one sentence, with packages of MXNet and libraries that are made up."""

import os
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest

from gluon_amp.base.startup import supported
from tests import ROOT
from tests.base.startup.test_cuda_libraries import build, needs_cc


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Return a function that installs a package `mxnet` of a version, which fails when imported."""

    def install(version):
        package = tmp_path / "mxnet"
        package.mkdir()
        (package / "__init__.py").write_text("raise KeyError('too late')")
        find = "def find_lib_path():\n    return [__file__.replace('info.py', 'mxnet.so')]\n"
        (package / "libinfo.py").write_text(f"__version__ = {version!r}\n{find}")
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "mxnet")
        return package

    return install


@pytest.mark.parametrize("imported", [False, True])
@pytest.mark.parametrize("version", ["1.8.0", "1.9.2", "1.10.0", "2.0.0b1", "1.9"])
def test_another_mxnet_is_refused(version, imported, install, monkeypatch):
    install("1.9.1" if imported else version)
    if imported:
        monkeypatch.setitem(sys.modules, "mxnet", SimpleNamespace(__version__=version))
    with pytest.raises(ImportError, match=f"needs MXNet 1.9.1 or 1.9.0, and this is .* {version}:"):
        supported.check()


@pytest.mark.parametrize("version", ["1.9.1", "1.9.0", "1.9.1.post1", "1.9.1+local"])
def test_these_are_not_refused(version, install):
    install(version)
    supported.check()


def test_the_sentence_comes_before_mxnet_is_imported(install, tmp_path):
    install("1.8.0")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    command = [sys.executable, "-c", "import gluon_amp"]
    done = subprocess.run(command, env=environment, capture_output=True, encoding="utf-8")
    assert done.stderr.splitlines()[-1].startswith("ImportError: gluon_amp needs MXNet"), done


def test_the_sentence_names_the_wheels_of_mxnet_and_no_other_packages(monkeypatch):
    names = "mxnet mxnet-cu102mkl mxnet-model-server mxnet-native".split()
    installed = [SimpleNamespace(metadata={"Name": name}) for name in names]
    monkeypatch.setattr(supported.importlib.metadata, "distributions", lambda: installed)
    monkeypatch.setitem(sys.modules, "mxnet", SimpleNamespace(__version__="1.6.0"))
    with pytest.raises(ImportError, match="`pip uninstall mxnet mxnet-cu102mkl mxnet-native`"):
        supported.check()


def test_a_system_without_a_wheel_is_refused(monkeypatch):
    monkeypatch.setattr(supported.ctypes, "CDLL", lambda name: object())  # musl has no such name
    with pytest.raises(ImportError, match="this Linux has musl"):
        supported.check()
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(ImportError, match=r"no wheel for Windows, .* WSL 2\.$"):
        supported.check()


@needs_cc
def test_all_missing_libraries_are_in_one_sentence_with_their_packages(install, monkeypatch):
    package = install("1.9.1")
    missing = [package / "libfirst.so.1", package / "libsecond.so.0", package / "libthird.so"]
    for library in missing:
        build(library)
    source = "extern int in_libfirst(), in_libsecond(), in_libthird(); "
    source += "int use() { return in_libfirst() + in_libsecond() + in_libthird(); }"
    command = f"cc -shared -fPIC -x c - -o {package / 'libmxnet.so'} -x none".split()
    subprocess.run([*command, *map(str, missing)], check=True, input=source, text=True)
    for library in missing:
        library.unlink()
    packages = {"libfirst.so.1": ("one1", "one"), "libsecond.so.0": ("two0", "two")}
    monkeypatch.setattr(supported, "PACKAGES", packages)
    assert supported.cannot_load(OSError("libfirst.so.1: cannot open")) == (
        "MXNet needs libfirst.so.1, libsecond.so.0 and libthird.so, which this system's loader "
        "does not find: on Debian or Ubuntu run `apt-get install one1 two0`, on Fedora or RHEL "
        "`dnf install one two`."
    )


@pytest.mark.parametrize(
    "error, missing, sentence",
    [
        ("", supported.ARM, r"libamath.so and libastring.so, .*: install Arm Compiler for Linux, "),
        (
            "libgomp.so.1: cannot open",
            (),
            "needs libgomp.so.1, .* `apt-get install libgomp1`, on F",
        ),
        ("libx.so.3: cannot open", (), r"needs libx.so.3, .*: install the package that has it\.$"),
        ("no ELF file", (), r"could not be loaded: no ELF file\.$"),
    ],
)
def test_what_is_known_of_the_missing_libraries(error, missing, sentence, monkeypatch):
    monkeypatch.setattr(supported, "_missing_libraries", lambda: list(missing))
    assert re.search(sentence, supported.cannot_load(OSError(error)))
