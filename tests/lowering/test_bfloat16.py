"""Which CPUs run bfloat16."""

import os
import subprocess
import sys

import pytest

from gluon_amp.lowering import bfloat16
from tests import ROOT

import mxnet as mx


@pytest.mark.parametrize("lacking", sorted(bfloat16.AVX512))
def test_a_cpu_without_avx512_has_no_bfloat16_and_is_not_tried(lacking, monkeypatch):
    monkeypatch.setattr(bfloat16, "cpu_flags", lambda: frozenset(bfloat16.AVX512 - {lacking}))
    monkeypatch.setattr(mx.nd, "FullyConnected", None)
    assert not bfloat16.runs_on_cpu.__wrapped__()


def test_a_cpu_without_known_flags_is_tried(monkeypatch):
    monkeypatch.setattr(bfloat16, "cpu_flags", frozenset)
    assert bfloat16.runs_on_cpu.__wrapped__() == bfloat16.runs_on_cpu()


def test_a_cpu_without_bfloat16_prints_no_error():
    code = (
        "import gluon_amp.lowering.bfloat16 as b, os\n"
        "os.dup2(1, 2)\n"  # also return what MXNet prints on standard error
        "print(b.runs_on_cpu())"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "DNNL_MAX_CPU_ISA": "AVX2"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == b"False\n"
