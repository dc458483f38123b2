"""check: ids, indices and lengths that are float16 and may be larger than it holds exactly."""

import pytest

import gluon_amp as amp
from gluon_amp.graph import op_table
from gluon_amp.inspection.findings import Finding
from gluon_amp.inspection.indices import READ, RETURNED
from tests.inspection.nets import built

from mxnet import nd
from mxnet.gluon import nn

pytestmark = pytest.mark.filterwarnings("ignore:.* is not used by any computation")

FIX = "keep them in int32 or float32: do not cast them, and give the net data in float32"


def found(function, dtype="float16"):
    """Return what check says of a function of a (4096, 8) array and of eight ids."""
    net = amp.cast(nn.HybridLambda(function))
    findings = amp.check(net, None, nd.ones((4096, 8)), nd.ones((8,), dtype=dtype))
    assert all(finding.kind == "index" and finding.fix == FIX for finding in findings)
    return [finding.problem.partition(",")[0] for finding in findings]


def test_ids_of_an_embedding(arrays):
    def embedding(rows):
        return built(nn.Embedding(rows, 8), nn.Dense(8, in_units=32))

    net, ids = embedding(30000), arrays.ones((8, 4), dtype="float16")
    expected = Finding(
        "index",
        "0",
        "Embedding reads ids up to 29999 in float16, which is exact only up to 2048 and "
        "infinite above 65504",
        FIX,
    )
    assert amp.check(net, None, ids) == [expected]
    assert amp.check(net) == [expected]  # with the dtype of the last pass
    for dtype in ("float32", "int32"):
        assert amp.check(net, None, ids.astype(dtype)) == []
    # the last of 2049 ids is exact
    assert amp.check(embedding(2049), None, ids) == []
    assert len(amp.check(embedding(2050), None, ids)) == 1


@pytest.mark.parametrize("function, problem", [
    (lambda F, y, ids: F.take(y, ids), "take reads indices up to 4095"),
    (lambda F, y, ids: F.take(y, ids, axis=1), None),  # 8 columns
    (lambda F, y, ids: F.pick(F.transpose(y), ids), "pick reads indices up to 4095"),
    (lambda F, y, ids: F.one_hot(ids, 5000), "one_hot reads indices up to 4999"),
    (lambda F, y, ids: F.one_hot(ids, 2049), None),
    (lambda F, y, ids: F.gather_nd(y, F.reshape(ids, (1, 8))), "gather_nd reads indices up to"),
    (
        lambda F, y, ids: F.scatter_nd(ids, F.reshape(ids, (1, 8)), shape=(9000,)),
        "scatter_nd reads indices in",
    ),
])  # fmt: skip
def test_operators_that_read_indices(function, problem):
    texts = found(function)
    assert (problem is None) == (texts == [])
    assert all(text.startswith(problem) and text.endswith(" in float16") for text in texts)
    assert found(function, "float32") == []


def test_a_cast_in_the_net_is_found_behind_reshapes_and_further_casts():
    def cast(F, y, ids):
        ids = F.cast(F.reshape(F.cast(ids, "float16"), (8, 1)), "float32")
        return F.take(y, F.squeeze(ids))

    assert found(cast, "float32") == ["take reads indices up to 4095 in float16"]


@pytest.mark.parametrize("dtype, expected", [("float16", 1), ("float32", 0)])
def test_counting_in_float16(dtype, expected):
    def positions(F, y, ids):
        counted = F.reshape(F.arange(4096, dtype=dtype), (-1, 1))
        return F.broadcast_add(F.slice_axis(y, axis=1, begin=0, end=1), counted)

    problem = "_arange returns indices up to 4095 in float16"
    assert found(positions, "float32") == [problem] * expected


def test_the_index_of_a_maximum_in_a_net_that_mxnet_cast_itself():
    largest = nn.HybridLambda(lambda F, x: F.argmax(x, axis=1))
    net = built(nn.Dense(5000, in_units=8), largest, policy=None)
    net.cast("float16")
    problems = [finding.problem for finding in amp.check(net)]
    assert any(problem.startswith("argmax returns indices in float16") for problem in problems)
    assert amp.check(amp.cast(net), None, nd.ones((8, 8))) == []


def test_the_operators_are_those_whose_indices_a_cast_does_not_round():
    for op, index in READ.items():
        rule = op_table.rule(op)
        assert rule.kind in ("float32", "uncast") or index.position in rule.uncast, op
    assert {op_table.rule(op).kind for op in RETURNED} <= {"float32", "uncast"}
