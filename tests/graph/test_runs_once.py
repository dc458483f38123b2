"""Which graphs must not run backward twice."""

from gluon_amp.graph import to_json
from gluon_amp.graph.runs_once import find_runs_once
from gluon_amp.lowering import lower

import mxnet as mx

X = mx.sym.var("x")
DROPOUT = mx.sym.Dropout(X)
MASK = mx.sym.BlockGrad(DROPOUT)
LOOP = mx.sym.contrib.foreach(lambda x, s: (x * 2, s), X, [])[0]
LOWERED = lower(DROPOUT, {"x": "float32"}, "cpu", scaled=True)


def test_operators_that_a_gradient_reaches_decide():
    graphs = (X * 2, DROPOUT, MASK, MASK + DROPOUT, LOWERED, LOOP)
    once = [find_runs_once(to_json(graph), "cpu") for graph in graphs]
    assert once == [None, "Dropout", None, "Dropout", None, "_foreach"]
