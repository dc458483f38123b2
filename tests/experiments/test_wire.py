"""Sums of gradients and the formula, with literal numbers."""

import itertools

import numpy as np
import pytest

from experiments.wire import scaling
from experiments.wire.__main__ import added
from experiments.wire.scaling import Cluster, Exchange, half, step
from experiments.wire.sums import ORDERS, errors, exchanged, overflows_seen, tree

# ----------------------------------------------------------------------------------------- sums


def vectors(*rows):
    return [np.array(row, np.float32) for row in rows]


@pytest.mark.parametrize(
    ("dtype", "parts", "sums"),
    [
        # 2048 + 1 is 2048 in float16, and 256 + 1 is 256 in bfloat16. In a ring of three, element k
        # starts at worker k.
        ("float16", ([2048] * 3, [1] * 3, [1] * 3), ([2050] * 3, [2048] * 3, [2048, 2050, 2048])),
        ("bfloat16", ([256] * 3, [1] * 3, [1] * 3), ([258] * 3, [256] * 3, [256, 258, 256])),
        # The whole sum would fit; the partial one does not, and nothing makes it finite again.
        ("float16", ([6e4], [6e4], [-6e4]), ([60000], [np.inf], [np.inf])),
    ],
)
def test_the_orders_differ_as_their_roundings_do(dtype, parts, sums):
    for order, total in zip(("server, float32 sums", "one after another", "ring"), sums):
        assert exchanged(vectors(*parts), dtype, order, False).tolist() == total
    assert tree(vectors([2048], [1], [1], [1]), "float16").tolist() == [2050]


@pytest.mark.parametrize("order", ORDERS)
def test_predivided_sums_of_float16_do_not_overflow(order):
    parts = vectors([40000, -65504], [40000, -65504], [40000, -65504])
    assert exchanged(parts, "float16", order, False).tolist() == [np.inf, -np.inf]
    # 3 · 65504 / 4 is 49128, which is 49120 in float16
    assert exchanged(parts, "float16", order, True).tolist() == [120000, -196480]


@pytest.mark.parametrize("dtype, order", itertools.product(("float16", "bfloat16"), ORDERS))
def test_an_overflow_of_any_worker_is_seen(dtype, order):
    # Large finite values of either sign beside it cannot hide it.
    parts = vectors(*([60000.0, -60000.0] * 3 for _ in range(5)))
    assert all(overflows_seen(parts, dtype, order, predivided) for predivided in (False, True))


def test_a_sum_that_hides_the_overflow_of_one_worker_is_noticed(monkeypatch):
    def hides(parts, dtype):
        return tree([*parts[:2], np.nan_to_num(parts[2])], dtype)

    monkeypatch.setitem(ORDERS, "tree", hides)
    assert not overflows_seen(vectors([1] * 9, [3] * 9, [5] * 9), "float16", "tree", False)


# ----------------------------------------------------------------------------------- the formula

# A float32 message of 4 MB takes 1 s on a link of 32 Mbit/s, a float16 one half of that.
CLUSTER = Cluster(parameters=1e6, step_seconds=2.0, bandwidth=32e6, latency=0.01)
RING, ONE = Exchange("ring"), Exchange("server", 1)


def test_the_backward_pass_hides_its_share_and_half_is_the_fewest_workers():
    assert step(Cluster(1e6, 2.0, 32e6, 0.0, 0.25), RING, "float32", 4).exchange == 1.5 - 0.5
    assert half(CLUSTER, ONE, "float32") == 2  # 4 s against 2 s
    assert half(CLUSTER, RING, "float32") == 11
    assert half(Cluster(1e6, 2.0, 32e6, 0.0), RING, "float32") is None  # below 2 s for ever


def test_the_table_of_the_command_line(capsys):
    assert scaling.main("--parameters 1e6 --step-seconds 2 --bandwidth 32e6".split()) == 0
    line = "      4      3.5003       57.1%   42.9%      2.7503       72.7%   27.3%"
    assert line in capsys.readouterr().out


def test_simulated_workers_with_one_network():
    rows = list(added("digits", "float16", sizes=(2,)))
    assert {(row["order"], row["predivided"]) for row in rows} == {
        *itertools.product(ORDERS, (False, True))
    }
    assert all(row["seen"] and 0 < row["norm"] < 1e-3 and row["wire"] == "float16" for row in rows)
    found = errors(np.array([3, 0, 8], np.float32), vectors([1, 1, 4], [3, 0, 4]))
    assert found == (pytest.approx(np.sqrt(2 / 81)), *map(pytest.approx, (1 / 8, 1 / 4, 1 / 3)), 0)
