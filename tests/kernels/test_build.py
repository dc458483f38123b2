"""Compiling the C++ library: commands side by side, errors in one line."""

import contextlib
import os
import shutil
import sys

import pytest

from gluon_amp.base import hardware
from gluon_amp.kernels import build
from gluon_amp.kernels.build import BuildError
from gluon_amp.kernels.obtain import try_in_subprocess


@pytest.mark.parametrize("status", [0, 1])
def test_as_many_compilers_run_at_once_as_there_are_cores(status, tmp_path, monkeypatch):
    monkeypatch.setattr(hardware, "count_cores", lambda: 2)
    log = tmp_path / "log"
    command = ["sh", "-c", f"echo 1 >> {log}; sleep 0.1; echo -1 >> {log}; exit {status}"]
    with pytest.raises(BuildError) if status else contextlib.nullcontext():
        build.build(command, tmp_path / "native.so")
    changes = [int(line) for line in log.read_text().split()]
    running = [sum(changes[: i + 1]) for i in range(len(changes))]
    assert (max(running), running[-1]) == (2, 0)
    assert (len(changes) < 10) == bool(status)  # the first failure ends the others


# GCC 5 is the first with C++14's generic lambdas and AVX512.
VERSIONS = [f"g++-{version}" for version in range(5, 20)]
VERSIONS += [f"clang++-{version}" for version in range(6, 25)]


@pytest.mark.slow
@pytest.mark.parametrize("compiler", filter(shutil.which, VERSIONS))
def test_every_compiler_that_is_installed_builds_a_library_that_works(compiler, tmp_path):
    used = build.compiler()
    if len(used) == 1 and os.path.samefile(shutil.which(compiler), shutil.which(used[0])):
        pytest.skip("it has built the library that all other tests use")
    build.build([compiler], tmp_path / "native.so")
    try_in_subprocess(tmp_path / "native.so")


def test_the_sources_ask_no_compiler_for_what_old_ones_do_not_know():
    # __builtin_cpu_supports("f16c"): GCC 11 and clang 14
    for source in build.SOURCES.glob("*.*"):
        code = [line.partition("//")[0] for line in source.read_text().splitlines()]
        assert not any("__builtin_cpu" in line for line in code), source.name


def fails(code):
    with pytest.raises(BuildError) as caught:
        build.run([sys.executable, "-S", "-c", code], what="g++")
    return str(caught.value)


@pytest.mark.parametrize(
    "output, reason",
    [
        ("In file included from a.h:\nb.cc:1:2: error: no name\nc.cc: error: late", "b.cc:1:2: er"),
        ("/usr/bin/ld: cannot find -lomp\nclang: error: linker command failed", "/usr/bin/ld: can"),
        ("a.o: undefined reference to `f'\ncollect2: error: ld returned 1", "a.o: undefined ref"),
        ("ld: warning: old\nld: failed to set\ncollect2: error", "ld: f"),
        ("nothing to see", "exit status 3"),
        ("", "exit status 3"),
    ],
)
def test_a_failure_names_the_first_error(output, reason):
    assert fails(f"print({output!r}); raise SystemExit(3)").startswith(f"g++ failed ({reason}")


def test_a_failure_of_python_names_the_error_below_the_traceback():
    assert fails("import none_such") == (
        "g++ failed (ModuleNotFoundError: No module named 'none_such')"
    )


def test_a_crash_and_a_hang_are_named():
    assert fails("import os; os.kill(os.getpid(), 11)") == "g++ failed (killed by SIGSEGV)"
    with pytest.raises(BuildError, match="^sleep took more than 0.1 seconds$"):
        build.run(["sleep", "60"], timeout=0.1)


@pytest.mark.parametrize("command", ["'", "/none/such", "\\", "\n"])
def test_any_text_for_a_compiler(command, monkeypatch):
    monkeypatch.setenv("CXX", command)
    compiler = build.compiler()
    if command.strip() and compiler is not None:
        with pytest.raises(BuildError, match="cannot be run"):
            build.run([*compiler, "--version"])
