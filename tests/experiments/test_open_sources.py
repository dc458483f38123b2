"""The check that each C++ source can be opened alone."""

import shutil

import pytest

from experiments import open_sources
from gluon_amp.kernels import build

has_clang = any(map(shutil.which, ("clang-tidy", "clang++")))


@pytest.mark.skipif(not has_clang, reason="neither clang-tidy nor clang++ is installed")
def test_a_source_that_includes_too_little_is_named(tmp_path):
    whole, alone = tmp_path / "whole.cc", tmp_path / "alone.cc"
    whole.write_text("#include <cmath>\ndouble root(double x) { return std::sqrt(x); }\n")
    alone.write_text("double root(double x) { return std::sqrt(x); }\n")
    assert open_sources.error_of(whole) is None
    assert "alone.cc" in open_sources.error_of(alone)


def test_without_clang_it_says_in_one_line_that_nothing_is_checked(monkeypatch, capsys):
    monkeypatch.setattr(build, "compiler", lambda: None)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert open_sources.main([]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert "neither clang-tidy nor clang++" in line
