"""Bytes, sums and the formula with literal numbers, and a real cluster of two workers."""

import itertools

import numpy as np
import pytest

from experiments.wire import __main__ as command
from experiments.wire import cluster, measure, scaling
from experiments.wire.cluster import Outcome, Traffic
from experiments.wire.measure import Case, counted, probed
from experiments.wire.scaling import Cluster, Exchange, half, step
from experiments.wire.sums import ORDERS, errors, exchanged, overflows_seen, tree
from gluon_amp.base.messages import UsageError

needs_namespaces = pytest.mark.skipif(
    not cluster.available(), reason="this user cannot create network namespaces here"
)

# ------------------------------------------------------------------------------ bytes of a step


def outcomes(arguments, workers, servers, megabits):
    """A start of 1000 bytes, and steps in which each worker sends 110 and receives 120."""
    assert arguments[:3] == ["train", "digits", "float16"]
    steps = int(arguments[3])
    result = {"arrays": 3, "elements": {"float16": 50}, "bytes": 100, "seconds": [9, 1, 3][:steps]}
    own = Traffic(1000 + 110 * steps, 1000 + 120 * steps)
    served = Traffic(1000 + 240 * steps, 1000 + 220 * steps)
    return Outcome([result] * workers, [own] * workers, [served] * servers)


def test_the_start_of_a_run_does_not_count():
    row = counted(Case("digits", "float16", 2, 1, megabits=0.0008), run=outcomes)
    assert (row["sent"], row["received"]) == (110, 120)
    assert (row["server_received"], row["server_bytes"]) == ([220], 200)
    assert row["seconds"] == 2  # the median of 1 and 3; the first step prepares
    assert row["predicted_seconds"] == 2 * 2.0  # 200 bytes are 1600 bits, at 800 a second


def test_the_last_words_of_a_server_are_the_result_of_its_probe():
    def run(*_):
        raise UsageError("the cluster has failed: terminate\n  what():  [1:2:3] a.h:7: Unknown")

    assert probed("bfloat16", run) == {"dtype": "bfloat16", "result": "Unknown"}


# Of a packet of 1,500 bytes, 1,448 are content. With the link's header, 66 bytes are added to them.
# As a rule, an empty packet of 66 bytes acknowledges two of content.
OVERHEAD = 66 / 1448 + 66 / (2 * 1448)


@pytest.mark.slow
@needs_namespaces
def test_two_workers_send_the_bytes_of_their_gradients():
    row = counted(Case("digits", "float16", 2, 1))
    assert row["bytes"] == 2 * 29242 + 4 * 224
    for counted_bytes in (row["sent"], row["received"], row["server_received"][0] / 2):
        assert 1 <= counted_bytes / row["bytes"] < 1 + OVERHEAD


@pytest.mark.slow
@needs_namespaces
def test_the_server_adds_float16_in_float32():
    assert probed("float16")["result"] == [2050, 2050, 2050, float("inf")]


def test_without_namespaces_the_command_says_what_is_needed(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(cluster, "available", lambda: False)
    assert command.main(["--output", str(tmp_path)]) == 2
    assert "network namespaces cannot be created here: install" in capsys.readouterr().err


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


@pytest.mark.parametrize("worker", [0, 2])
def test_a_sum_that_hides_the_overflow_of_one_worker_is_noticed(worker, monkeypatch):
    def hides(parts, dtype):
        parts[worker] = np.nan_to_num(parts[worker])
        return tree(parts, dtype)

    monkeypatch.setitem(ORDERS, "tree", hides)
    assert not overflows_seen(vectors([1] * 9, [3] * 9, [5] * 9), "float16", "tree", False)


def test_errors_with_literal_numbers():
    found = errors(np.array([3, 0, 8], np.float32), vectors([1, 1, 4], [3, 0, 4]))
    assert found == (pytest.approx(np.sqrt(2 / 81)), *map(pytest.approx, (1 / 8, 1 / 4, 1 / 3)), 0)
    assert errors(np.array([np.inf, 1, np.nan]), vectors([1, 1, 1])).overflowed == 2


# ----------------------------------------------------------------------------------- the formula

# A float32 message of 4 MB takes 1 s on a link of 32 Mbit/s, a float16 one half of that.
CLUSTER = Cluster(parameters=1e6, step_seconds=2.0, bandwidth=32e6, latency=0.01)
RING, AS_MANY, ONE = Exchange("ring"), Exchange("server"), Exchange("server", 1)


@pytest.mark.parametrize(
    ("exchange", "dtype", "workers", "seconds"),
    [
        (RING, "float32", 1, 0),
        (RING, "float16", 4, 0.75 + 0.06),
        (AS_MANY, "float32", 4, 2 + 0.02),
        (ONE, "float32", 4, 8 + 0.02),
        (Exchange("server", 8), "float32", 4, 2 + 0.02),  # the workers' links are slower
    ],
)
def test_the_time_of_an_exchange(exchange, dtype, workers, seconds):
    one = step(CLUSTER, exchange, dtype, workers)
    assert one.exchange == pytest.approx(seconds)
    assert one.efficiency == pytest.approx(2 / (2 + seconds))


def test_the_backward_pass_hides_its_share_and_half_is_the_fewest_workers():
    assert step(Cluster(1e6, 2.0, 32e6, 0.0, 0.25), RING, "float32", 4).exchange == 1.5 - 0.5
    assert half(CLUSTER, ONE, "float32") == 2  # 4 s against 2 s
    assert half(CLUSTER, RING, "float32") == 11
    assert half(Cluster(1e6, 2.0, 32e6, 0.0), RING, "float32") is None  # below 2 s for ever


def test_the_table_of_the_command_line(capsys):
    arguments = "--parameters 1e6 --step-seconds 2 --bandwidth 32e6 --latency 0.01 --servers 1"
    assert scaling.main(arguments.split()) == 0
    ring, server = capsys.readouterr().out.split("\n\n")
    assert "      4      3.5600       56.2%   43.8%      2.8100       71.2%   28.8%" in ring
    assert "float32: 11 workers" in ring
    assert server.startswith("parameter server, 1 server\n")


def test_simulated_workers_with_one_network():
    rows = list(measure.added("digits", "float16", sizes=(2,)))
    assert {(row["order"], row["predivided"]) for row in rows} == {
        *itertools.product(ORDERS, (False, True))
    }
    assert all(row["seen"] and 0 < row["norm"] < 1e-3 and row["wire"] == "float16" for row in rows)
