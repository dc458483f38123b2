"""Each pass of the lowering returns the dtypes that MXNet infers of the graph it wrote."""

import pytest

from gluon_amp import kernels
from gluon_amp.graph import edge_dtypes, to_json
from gluon_amp.graph import own_operators as own
from gluon_amp.lowering import PASSES, Target
from gluon_amp.lowering.emulation import is_emulated
from gluon_amp.lowering.typed_graph import TypedGraph
from gluon_amp.policy import Policy, cast_pass

import mxnet as mx
from mxnet.gluon import nn


def images():
    """A graph whose lowering meets every pass: blocked images, PReLU, frozen and sparse weights."""
    net = nn.HybridSequential(prefix="n_")
    with net.name_scope():
        net.add(nn.Conv2D(8, 3, strides=2), nn.BatchNorm(), nn.PReLU(), nn.Conv2D(8, 1))
        net.add(nn.Conv2DTranspose(4, 2), nn.Conv3DTranspose(4, 2), nn.Conv1D(4, 1, strides=2))
    x = mx.sym.var("data")
    h = net[3](net[2](net[1](net[0](x))))
    pooled = mx.sym.Pooling(h * 3 + 1, global_pool=True, pool_type="avg", kernel=(1, 1))
    up = net[4](mx.sym.broadcast_add(net[3](pooled) + h, h))
    deep, line = net[5](mx.sym.expand_dims(up, 2)), net[6](mx.sym.reshape(up, (0, 4, -1)))
    dense = mx.sym.FullyConnected(mx.sym.Flatten(deep), name="head", num_hidden=2)
    parts = mx.sym.split(mx.sym.softmax(dense), num_outputs=2)
    ids = mx.sym.take(mx.sym.var("table"), mx.sym.argmax(line, axis=1))
    regions = mx.sym.contrib.ROIAlign(h, mx.sym.var("r"), pooled_size=(1, 1), spatial_scale=1)
    return mx.sym.Group([parts[1], mx.sym.clip(x, 0, 1), ids, regions])


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("policy", ["float16", "compute=float16,output=float16", "bfloat16"])
def test_dtypes_are_those_that_mxnet_infers(policy, native, monkeypatch):
    symbol, policy = images(), Policy.parse(policy)
    dtypes = cast_pass.parameter_dtypes(symbol, policy, ["data"])
    if not native:
        monkeypatch.setattr(kernels, "available", lambda: False)
    graph = TypedGraph.of(to_json(cast_pass.apply(symbol, policy, dtypes)), dtypes)
    target, changed = Target("cpu", frozenset(["head_weight"]), frozenset(["data"])), 0
    if policy.compute_dtype == "bfloat16" and not native:
        monkeypatch.setattr("gluon_amp.lowering.emulation.is_emulated", lambda dtype: False)
    for each in PASSES:
        before, graph = graph, each.rewrite(graph, target)
        changed += graph is not before
        inferred = edge_dtypes(graph.json, dtypes)
        if is_emulated("bfloat16"):
            # What our operators store in bfloat16 counts as float32: the emulation leaves it alone.
            for i, k in inferred:
                node = graph.json["nodes"][i]
                if node["op"] == own.NARROW_BFLOAT16 or "in_float32" in node.get("attrs", {}):
                    inferred[i, k] = "float32"
        assert {edge: graph.edges.get(edge) for edge in inferred} == inferred, each.reason
    assert changed >= 5
