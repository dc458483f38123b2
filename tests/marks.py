"""Marks of tests that need parts which not every machine has."""

import pytest

from gluon_amp import kernels
from gluon_amp.base import bfloat16
from gluon_amp.lowering import blocked

needs_library = pytest.mark.skipif(
    not kernels.available(), reason="the C++ operators cannot be built here"
)
needs_layout = pytest.mark.skipif(not blocked.available(), reason="no C++ library or no oneDNN")
needs_bfloat16 = pytest.mark.skipif(not bfloat16.is_native(), reason="no fast bfloat16")
