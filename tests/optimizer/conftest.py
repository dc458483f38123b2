"""The ways through an optimizer."""

import pytest

from tests.optimizer.reference import WAYS, go


@pytest.fixture(params=WAYS)
def way(request, monkeypatch):
    """All ways through an optimizer: CPU with and without the kernels, and GPU."""
    go(request.param, monkeypatch)
    return request.param
