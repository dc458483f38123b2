"""The graph that a GPU would run, inspected on a CPU: nothing in it lacks a float16 kernel."""

import contextlib

import pytest

import gluon_amp as amp
from gluon_amp.casting.binding import running_blocks
from gluon_amp.graph import op_table
from gluon_amp.inspection.gpu_graph import gpu_findings, gpu_problems
from gluon_amp.lowering import lower
from gluon_amp.policy import Policy, cast_pass
from tests.inspection.nets import built
from tests.marks import needs_library
from tests.random_nets import RandomNet

import mxnet as mx
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn

FLOAT16 = Policy.parse("float16")


def findings_of(net, *inputs):
    with autograd.record():
        net(*inputs)
    return [finding for path, block in running_blocks(net) for finding in gpu_findings(path, block)]


def problems(symbol, policy=FLOAT16):
    cast = cast_pass.apply(symbol, policy, {})
    return [(op, problem) for _, op, problem in gpu_problems(cast, {})]


@pytest.mark.parametrize(
    "seeds", [range(3), pytest.param(range(3, 20), marks=pytest.mark.slow)], ids=["3", "20"]
)
def test_random_networks(seeds):
    for seed in seeds:
        net = RandomNet(seed)
        assert findings_of(amp.cast(net, "float16"), net.x) == [], seed


class Loop(gluon.HybridBlock):
    def hybrid_forward(self, F, x):
        def body(step, state):
            return step, F.FullyConnected(state, F.ones((3, 3)), no_bias=True, num_hidden=3)

        return F.contrib.foreach(body, x, F.ones((2, 3)))[1]


def test_the_body_of_a_loop_is_looked_at(monkeypatch):
    net, x = amp.cast(Loop(), "float16"), nd.ones((4, 2))
    assert findings_of(net, x) == []
    monkeypatch.setattr(op_table, "has", lambda word, op, *_: op == "FullyConnected")
    assert [f.problem.partition(":")[0] for f in findings_of(net, x)] == ["FullyConnected"]


def test_operators_that_a_gpu_cannot_run():
    x = mx.sym.var("x")
    symbol = mx.sym.linalg.gemm2(mx.sym.sort(mx.sym.tanh(x)), x)
    missing = "no float16 kernel for a GPU is known"
    assert problems(symbol) == []
    pinned = FLOAT16.pin(ops=["sort", "_linalg_gemm2"], dtype="float16")
    assert problems(symbol, pinned) == [("sort", missing), ("_linalg_gemm2", missing)]
    found = problems(mx.sym.FullyConnected(x, num_hidden=3), Policy.parse("bfloat16"))
    assert ("FullyConnected", "MXNet has no bfloat16 kernels for a GPU") in found


@needs_library
def test_operators_of_a_cpu_are_found():
    dense = mx.sym.FullyConnected(mx.sym.var("x"), num_hidden=3)
    emulated = lower(cast_pass.apply(dense, FLOAT16, {}), {}, "cpu")
    found = gpu_problems(emulated, {})
    assert found and {problem for _, _, problem in found} == {"exists on a CPU only"}


def test_check_reports_it_to_a_user():
    net = built(nn.Dense(8, in_units=8), nn.HybridLambda(lambda F, x: F.linalg.syrk(x)))
    amp.cast(net, FLOAT16.pin(ops=["_linalg_syrk"], dtype="float16"))
    with contextlib.suppress(mx.MXNetError):  # a CPU has no such kernel either
        net(nd.ones((8, 8))).wait_to_read()
    (finding,) = amp.check(net)
    assert (finding.kind, finding.block) == ("kernel", "1")
    missing = "_linalg_syrk: no float16 kernel for a GPU is known, so a GPU may fail there"
    assert finding.problem == missing
    assert finding.fix == "keep it in float32, as in policy.pin(ops=['_linalg_syrk'])"
