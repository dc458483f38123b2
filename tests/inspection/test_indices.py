"""check: ids, indices and lengths that are float16 and may be larger than it holds exactly."""

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp.inspection.findings import Finding
from gluon_amp.inspection.indices import READ, RETURNED
from gluon_amp.policy import op_table

import mxnet as mx
from mxnet import gluon, nd
from mxnet.gluon import nn

pytestmark = pytest.mark.filterwarnings("ignore:.* is not used by any computation")

FIX = "keep them in int32 or float32: do not cast them, and give the net data in float32"


class Net(gluon.HybridBlock):
    """A product in float16, and a function of its result and of ids."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        with self.name_scope():
            self.weight = self.params.get("weight", shape=(8, 8), init=mx.init.One())

    def hybrid_forward(self, F, x, ids, weight):
        return self.function(F, F.FullyConnected(x, weight, num_hidden=8, no_bias=True), ids)


def found(function, dtype="float16", rows=4096):
    """What check says of a function of a (rows, 8) product and of eight ids."""
    net = Net(function)
    net.initialize()
    amp.cast(net)
    findings = amp.check(net, None, nd.ones((rows, 8)), nd.ones((8,), dtype=dtype))
    assert all(finding.kind == "index" and finding.fix == FIX for finding in findings)
    return [finding.problem.partition(",")[0] for finding in findings]


def embedding(rows):
    net = nn.HybridSequential()
    net.add(nn.Embedding(rows, 8), nn.Dense(8, in_units=32))
    net.initialize()
    return amp.cast(net)


def test_ids_of_an_embedding():
    net = embedding(30000)
    assert amp.check(net, None, nd.ones((8, 4), dtype="float16")) == [
        Finding(
            "index",
            "0",
            "Embedding reads ids up to 29999 in float16, which is exact only up to 2048 and "
            "infinite above 65504",
            FIX,
        )
    ]
    for dtype in ("float32", "int32"):
        assert amp.check(net, None, nd.ones((8, 4), dtype=dtype)) == []
    # the last of 2049 ids is exact
    assert amp.check(embedding(2049), None, nd.ones((8, 4), dtype="float16")) == []
    assert len(amp.check(embedding(2050), None, nd.ones((8, 4), dtype="float16"))) == 1


def test_a_net_that_has_run_needs_no_inputs():
    net = embedding(30000)
    net(nd.ones((8, 4), dtype="float16"))
    assert [finding.kind for finding in amp.check(net)] == ["index"]
    net(nd.ones((8, 4)))
    assert amp.check(net) == []


@pytest.mark.parametrize(
    "function, problem",
    [
        (lambda F, y, ids: F.take(y, ids), "take reads indices up to 4095 in float16"),
        (lambda F, y, ids: F.pick(F.transpose(y), ids), "pick reads indices up to 4095 in float16"),
        (lambda F, y, ids: F.one_hot(ids, 5000), "one_hot reads indices up to 4999 in float16"),
        (lambda F, y, ids: F.gather_nd(y, F.reshape(ids, (1, 8))), "gather_nd reads indices up to"),
        (
            lambda F, y, ids: F.scatter_nd(ids, F.reshape(ids, (1, 8)), shape=(9000,)),
            "scatter_nd reads indices in float16",
        ),
        (
            lambda F, y, ids: F.contrib.index_copy(y, ids, F.slice_axis(y, axis=0, begin=0, end=8)),
            "_contrib_index_copy reads indices up to 4095 in float16",
        ),
        (
            lambda F, y, ids: F.SequenceMask(y, ids, use_sequence_length=True),
            "SequenceMask reads lengths up to 4095 in float16",
        ),
        (
            lambda F, y, ids: F.SequenceLast(y, ids, use_sequence_length=True),
            "SequenceLast reads lengths up to 4095 in float16",
        ),
        (
            lambda F, y, ids: F.softmax_cross_entropy(F.transpose(y), ids),
            "softmax_cross_entropy reads labels up to 4095 in float16",
        ),
        (
            lambda F, y, ids: F.SoftmaxOutput(F.transpose(y), ids),
            "SoftmaxOutput reads labels up to 4095 in float16",
        ),
    ],
)
def test_each_operator_that_reads_indices(function, problem):
    (text,) = found(function)
    assert text.startswith(problem)
    assert found(function, "float32") == []


def test_the_size_of_the_axis_counts():
    def pick(F, y, ids):
        return F.pick(F.transpose(y), ids)

    assert found(pick, rows=2048) == []
    assert found(lambda F, y, ids: F.take(y, ids, axis=1)) == []  # 8 columns
    assert found(lambda F, y, ids: F.one_hot(ids, 2049)) == []


def test_a_cast_in_the_net_is_found_behind_reshapes_and_further_casts():
    def cast(F, y, ids):
        ids = F.cast(F.reshape(F.cast(ids, "float16"), (8, 1)), "float32")
        return F.take(y, F.squeeze(ids))

    assert found(cast, "float32") == ["take reads indices up to 4095 in float16"]

    def arithmetic(F, y, ids):
        return F.take(y, F.cast(F.cast(ids, "float16") + 1, "float32"))

    assert found(arithmetic, "float32") == ["take reads indices up to 4095 in float16"]


def test_counting_in_float16():
    def positions(F, y, ids):
        return F.broadcast_add(F.slice_axis(y, axis=1, begin=0, end=1), positions.of(F))

    positions.of = lambda F: F.reshape(F.arange(4096, dtype="float16"), (-1, 1))
    assert found(positions, "float32") == ["_arange returns indices up to 4095 in float16"]
    positions.of = lambda F: F.reshape(F.arange(4096), (-1, 1))
    assert found(positions, "float32") == []


def test_the_index_of_a_maximum_in_a_net_that_mxnet_cast_itself():
    class Largest(gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            with self.name_scope():
                self.weight = self.params.get("weight", shape=(5000, 8))

        def hybrid_forward(self, F, x, weight):
            return F.argmax(F.FullyConnected(x, weight, num_hidden=5000, no_bias=True), axis=1)

    net = Largest()
    net.initialize()
    net.cast("float16")
    problems = [finding.problem for finding in amp.check(net)]
    assert any(problem.startswith("argmax returns indices in float16") for problem in problems)
    amp.cast(net)
    assert amp.check(net, None, nd.ones((8, 8))) == []


def test_both_kinds_of_arrays(arrays):
    net = embedding(30000)
    ids = arrays.ones((8, 4), dtype="float16")
    assert [finding.kind for finding in amp.check(net, None, ids)] == ["index"]
    assert amp.check(net, None, arrays.ones((8, 4), dtype="int32")) == []


def test_the_operators_are_those_whose_indices_a_cast_does_not_round():
    for op, index in READ.items():
        rule = op_table.rule(op)
        exact = rule.kind in ("float32", "uncast") or index.position in rule.uncast
        assert exact, op
    for op in RETURNED:
        assert op_table.rule(op).kind in ("float32", "uncast"), op
    assert np.float16(2049) == 2048 and np.float16(65520) == np.inf
