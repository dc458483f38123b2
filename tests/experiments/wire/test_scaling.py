"""The formula with numbers that can be checked by hand."""

import pytest

from experiments.wire import scaling
from experiments.wire.scaling import Cluster, Exchange, half, step

# A float32 message of 4 MB takes 1 s on a link of 32 Mbit/s, a float16 one half of that.
CLUSTER = Cluster(parameters=1e6, step_seconds=2.0, bandwidth=32e6, latency=0.01)
RING, AS_MANY, ONE = Exchange("ring"), Exchange("server"), Exchange("server", 1)


@pytest.mark.parametrize(
    ("exchange", "dtype", "workers", "seconds"),
    [
        (RING, "float32", 1, 0),
        (RING, "float32", 2, 1 + 0.02),  # half a message twice
        (RING, "float32", 4, 1.5 + 0.06),
        (RING, "float16", 4, 0.75 + 0.06),
        (AS_MANY, "float32", 1, 0),
        (AS_MANY, "float32", 4, 2 + 0.02),
        (AS_MANY, "float16", 64, 1 + 0.02),
        (ONE, "float32", 4, 8 + 0.02),
        (Exchange("server", 2), "float16", 4, 2 + 0.02),
        (Exchange("server", 8), "float32", 4, 2 + 0.02),  # the workers' links are slower
    ],
)
def test_the_time_of_an_exchange(exchange, dtype, workers, seconds):
    one = step(CLUSTER, exchange, dtype, workers)
    assert one.exchange == pytest.approx(seconds)
    assert one.seconds == pytest.approx(2 + seconds)
    assert one.share == pytest.approx(seconds / (2 + seconds))
    assert one.efficiency == pytest.approx(2 / (2 + seconds))


@pytest.mark.parametrize(
    ("exchange", "workers", "per_worker", "per_server"),
    [(RING, 1, 0, 0), (RING, 4, 150, 0), (AS_MANY, 4, 100, 100), (ONE, 4, 100, 400)],
)
def test_bytes_that_a_machine_sends(exchange, workers, per_worker, per_server):
    assert exchange.bytes_per_worker(workers, 100) == per_worker
    assert exchange.bytes_per_server(workers, 100) == per_server


def test_the_backward_pass_hides_its_share():
    hidden = Cluster(1e6, 2.0, 32e6, 0.0, overlap=0.25)
    assert step(hidden, RING, "float32", 4).exchange == pytest.approx(1.5 - 0.5)
    assert step(hidden, RING, "float32", 1).exchange == 0


def test_half_is_the_fewest_workers_whose_exchange_takes_half_of_the_step():
    slow = Cluster(1e6, 2.0, 32e6, 0.0)
    assert half(slow, ONE, "float32") == 2  # 4 s against 2 s
    assert half(slow, ONE, "float16") == 2
    assert half(slow, RING, "float32") is None  # below 2 s for ever
    assert half(Cluster(1e6, 2.0, 32e6, 0.01), RING, "float32") == 11


def test_the_table_of_the_command_line(capsys):
    arguments = "--parameters 1e6 --step-seconds 2 --bandwidth 32e6 --latency 0.01 --servers 1"
    assert scaling.main(arguments.split()) == 0
    ring, server = capsys.readouterr().out.split("\n\n")
    assert "      4      3.5600       56.2%   43.8%      2.8100       71.2%   28.8%" in ring
    assert "float32: 11 workers" in ring
    assert server.startswith("parameter server, 1 server\n")
    assert "  1,024" in server


@pytest.mark.parametrize("option", ["--bandwidth=0", "--servers=0", "--latency=x", "--overlap=2"])
def test_a_wrong_option_is_one_sentence(option, capsys):
    with pytest.raises(SystemExit) as ended:
        scaling.main([option])
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert said.startswith("scaling: argument --") and said.count("\n") == 1
