"""Workers that listen to each other, over real connections."""

import socket
import threading
import time

import pytest

from gluon_amp.base.parameter_server import LostError
from gluon_amp.training.workers import liveness
from gluon_amp.training.workers.liveness import Liveness, Peer, connect_to_first

FAR = 60.0


class Ends(list):
    """The sentences with which a worker would have ended."""

    def __init__(self):
        self.called = threading.Event()

    def __call__(self, sentence, status=1):
        self.append(sentence)
        self.called.set()


def star(count, seconds=FAR, listening=None):
    """The first of `count` workers and the others; only those that are `listening` listen."""
    pairs = [socket.socketpair() for _ in range(count - 1)]
    ends = [Ends() for _ in range(count)]
    peers = [
        [Peer(f"worker {n}", mine) for n, (mine, _) in enumerate(pairs, 1)],
        *([Peer("worker 0", theirs)] for _, theirs in pairs),
    ]
    listening = range(count) if listening is None else listening
    members = {n: Liveness(peers[n], n == 0, seconds, ends[n]) for n in listening}
    return members, ends, [None, *(theirs for _, theirs in pairs)]


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(liveness, "GRACE", 0.2)
    monkeypatch.setattr(liveness, "BEAT", 0.1)


def test_all_leave_together():
    members, ends, _ = star(3)
    left = []
    threads = [
        threading.Thread(target=lambda n=n: (members[n].leave(0, FAR), left.append(n)))
        for n in (1, 0, 2)
    ]
    for thread in threads[:2]:
        thread.start()
    time.sleep(0.5)
    assert left == []
    threads[2].start()
    for thread in threads:
        thread.join(10)
    assert sorted(left) == [0, 1, 2] and ends == [[], [], []]


@pytest.mark.parametrize(
    ("silent", "what"), [(False, "has ended"), (True, "has not answered for 0.8 s")]
)
def test_the_end_or_the_silence_of_one_ends_all(silent, what):
    _, ends, connections = star(3, seconds=0.8 if silent else FAR, listening=[0, 1])
    if not silent:
        time.sleep(0.3)
        connections[2].close()
    for end in ends[:2]:
        assert end.called.wait(5)
        assert end[0].startswith(f"worker 2 {what}, and the others cannot go on: start the whole")


def test_a_server_is_missed_if_all_wait():
    members, ends, _ = star(2, seconds=0.5)
    for one in members.values():
        with one.step():  # it becomes the measure of the next
            pass
    with members[0].exchange():
        assert not ends[0].called.wait(1.2)  # the other one computes
        with members[1].step():
            for end in ends:
                assert end.called.wait(5)
                assert "a server or the scheduler has ended" in end[0]


def test_a_step_may_take_ten_times_as_long_as_another():
    members, ends, _ = star(2, seconds=0.1)
    with members[0].step(), members[1].step():  # how long the first takes is not known
        assert not ends[0].called.wait(0.6)
    for one in members.values():
        one._longest = 0.1
    with members[0].step(), members[1].step():
        assert not ends[0].called.wait(0.8)
        assert ends[0].called.wait(5)


def test_one_that_has_left_may_end_and_is_not_waited_for():
    members, ends, connections = star(2, listening=[0])
    connections[1].sendall(b"leaving\n")
    connections[1].close()
    assert not ends[0].called.wait(0.6)
    members[0].leave(3, 0.2)
    assert ends[0].called.wait(5)
    assert ends[0] == ["the run is over; MXNet's scheduler or a server did not end with it."]


def test_strangers_are_turned_away():
    shared, ready = [], threading.Event()

    def from_first(data):
        if data:
            shared.append(data)
            ready.set()
        ready.wait(5)
        return shared[0]

    opened = {}

    def work(rank):
        opened[rank] = connect_to_first(rank, 2, "127.0.0.1", from_first, FAR)

    first = threading.Thread(target=work, args=(0,))
    first.start()
    ready.wait(5)
    ip, port, word = shared[0].decode().split()
    assert (ip, len(word)) == ("127.0.0.1", 32)
    for said in (b"", b"GET / HTTP/1.1\n", b"0" * 32 + b" worker 1\n", b"x" * 5000, b"\xff\n"):
        with socket.create_connection((ip, int(port))) as stranger:
            stranger.sendall(said)
    work(1)
    first.join(10)
    for one in opened.values():
        one._end = Ends()  # else the timer of `leave` would end pytest
    both = [threading.Thread(target=one.leave, args=(0, FAR)) for one in opened.values()]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join(10)
        assert not thread.is_alive()


def test_workers_that_cannot_meet(monkeypatch):
    monkeypatch.setattr(liveness, "GREETING", 0.2)
    with pytest.raises(LostError, match="only 0 of 2 other workers have connected to the first"):
        connect_to_first(0, 3, "127.0.0.1", lambda data: data, FAR)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    sentence = f"worker 2 cannot connect to .* 127.0.0.1:{port} .*refused"
    with pytest.raises(LostError, match=sentence):
        connect_to_first(2, 3, "127.0.0.1", lambda _: f"127.0.0.1 {port} word".encode(), FAR)
