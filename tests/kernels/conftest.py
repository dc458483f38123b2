"""Fixtures of the tests of gluon_amp/kernels."""

import pytest

from gluon_amp import kernels

INSTRUCTION_SETS = ["plain", "avx2", "avx512"]


@pytest.fixture(params=INSTRUCTION_SETS)
def instruction_set(request):
    """Select an instruction set of the C++ library, and yield its name."""
    if not kernels.select(request.param):
        pytest.skip(f"this processor has no {request.param}")
    yield request.param
    kernels.select(None)


@pytest.fixture
def home(tmp_path, monkeypatch):
    """Make an empty folder the home of the user, where the cache is."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    return tmp_path
