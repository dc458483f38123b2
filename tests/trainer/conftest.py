import pytest


@pytest.fixture
def path(tmp_path):
    """A path for a file of states."""
    return str(tmp_path / "states")
