"""Bytes of a step: literal counters, and a real cluster of two workers."""

import pytest

from experiments.wire import cluster, measure
from experiments.wire.cluster import Outcome, Traffic
from experiments.wire.measure import Case, counted, probed
from gluon_amp.base.messages import UsageError

needs_namespaces = pytest.mark.skipif(
    not cluster.available(), reason="this user cannot create network namespaces here"
)


def outcomes(module, arguments, workers, servers, megabits):
    """A start of 1000 bytes, and steps in which each worker sends 110 and receives 120."""
    assert (module, arguments[:2]) == ("experiments.wire.worker", ["digits", "float16"])
    steps = int(arguments[2])
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


def test_loopback_without_a_limit_has_no_times():
    row = counted(Case("digits", "float16", 2, 1), run=outcomes)
    assert row["seconds"] is row["predicted_seconds"] is None


def test_the_last_words_of_a_server_are_the_result_of_its_probe():
    def run(*_):
        raise UsageError("the cluster has failed: terminate\n  what():  [1:2:3] a.h:7: Unknown")

    assert probed("bfloat16", run) == {"dtype": "bfloat16", "result": "Unknown"}


# Of a packet of 1,500 bytes, 1,448 are content. With the link's header, 66 bytes are added to them.
# As a rule, an empty packet of 66 bytes acknowledges two of content.
OVERHEAD = 66 / 1448 + 66 / (2 * 1448)


@needs_namespaces
def test_two_workers_send_the_bytes_of_their_gradients():
    row = counted(Case("digits", "float16", 2, 1))
    assert row["elements"] == {"float16": 29242, "float32": 224}
    assert row["bytes"] == 2 * 29242 + 4 * 224
    for counted_bytes in (row["sent"], row["received"], row["server_received"][0] / 2):
        assert 1 <= counted_bytes / row["bytes"] < 1 + OVERHEAD


@needs_namespaces
def test_the_server_adds_float16_in_float32():
    assert probed("float16")["result"] == [2050, 2050, 2050, float("inf")]


@needs_namespaces
def test_a_worker_that_fails_ends_the_cluster_at_once():
    with pytest.raises(UsageError, match="the cluster has failed: .*nonsense"):
        cluster.run("experiments.wire.nonsense", [], 1, 1, seconds=60)


def test_without_namespaces_the_error_says_what_is_needed(monkeypatch):
    monkeypatch.setattr(cluster, "available", lambda: False)
    with pytest.raises(UsageError, match="network namespaces cannot be created here: install"):
        measure.counted(Case("digits", "float16", 2, 1))
