"""Which nodes and graphs must not run backward twice."""

import pytest

from gluon_amp.graph import to_json
from gluon_amp.graph.runs_once import find_runs_once, runs_once
from gluon_amp.lowering import lower

import mxnet as mx

X = mx.sym.var("x")
DROPOUT = mx.sym.Dropout(X)
MASK = mx.sym.BlockGrad(DROPOUT)
LOOP = mx.sym.contrib.foreach(lambda x, s: (x * 2, s), X, [])[0]
LOWERED = lower(DROPOUT, {"x": "float32"}, "cpu", scaled=True)


@pytest.mark.parametrize("op", ["linalg_det", "_npi_slogdet", "Dropout", "Custom", "my_gemm"])
def test_what_differs_or_is_unknown_runs_once_whatever_its_name(op):
    assert runs_once(op, {}, "cpu")


def test_attributes_and_devices_decide_too():
    found = [runs_once("RNN", {"mode": "gru"}, device) for device in ("cpu", "gpu")]
    assert found == [False, True]
    kinds = [runs_once("LeakyReLU", {"act_type": kind}, "cpu") for kind in ("elu", "rrelu")]
    assert kinds == [False, True]
    assert not runs_once("null", {}, "cpu") and not runs_once("_gluon_amp_dense", {}, "cpu")


def test_operators_that_a_gradient_reaches_decide():
    graphs = (X * 2, DROPOUT, MASK, MASK + DROPOUT, LOWERED, LOOP)
    once = [find_runs_once(to_json(graph), "cpu") for graph in graphs]
    assert once == [None, "Dropout", None, "Dropout", None, "_foreach"]
