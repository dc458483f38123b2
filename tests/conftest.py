"""Import gluon_amp before any test module imports mxnet, and seed every test."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "2")

import numpy as np
import pytest

import gluon_amp  # noqa: F401  (restores the numpy aliases that mxnet needs)

import mxnet as mx


@pytest.fixture(autouse=True)
def seeded():
    np.random.seed(0)
    mx.random.seed(0)


def pytest_addoption(parser):
    parser.addoption(
        "--command-lines", type=int, default=75, metavar="N",
        help="how many random command lines test_command_lines.py tries (all: 600)",
    )  # fmt: skip
