"""A fixture of the tests of gluon_amp/kernels."""

import pytest


@pytest.fixture
def home(tmp_path, monkeypatch):
    """Make an empty folder the home of the user, where the cache is."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    return tmp_path
