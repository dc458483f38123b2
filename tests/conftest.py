"""Import gluon_amp before any test module imports mxnet, and seed every test."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "2")

import numpy as np
import pytest

import gluon_amp  # noqa: F401  (restores the numpy aliases that mxnet needs)

import mxnet as mx


def pytest_addoption(parser):
    parser.addoption("--random-nets", type=int, default=40, help="how many (test_random_nets.py)")
    parser.addoption("--random-nets-seed", type=int, default=0, help="which ones")


@pytest.fixture(autouse=True)
def seeded():
    np.random.seed(0)
    mx.random.seed(0)
