"""What tests of several files ask for by name."""

import pytest


@pytest.fixture
def no_imagenet(monkeypatch, tmp_path):
    """Hide an ImageNet, and the workers, that this machine may have."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("DMLC_ROLE", "DMLC_NUM_WORKER", "DMLC_WORKER_ID", "HOROVOD_SIZE"):
        monkeypatch.delenv(name, raising=False)
