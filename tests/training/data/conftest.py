"""What tests of several files ask for by name: folders of classes."""

import pytest

from tests.training.data.jpegs import write_classes_abc


@pytest.fixture
def root(tmp_path):
    """Three classes of 3, 4 and 5 images."""
    return write_classes_abc(tmp_path / "data")
