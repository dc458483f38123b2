"""Workers that notice that another one or a server has died, and end.

Otherwise they would wait for its gradients forever: the heartbeats of MXNet's parameter server
reach only the scheduler, which does nothing about them. Here a thread of every worker holds a
connection to the first worker, so a slow first batch or a long validation raises no alarm.

Servers have no such thread. If one is dead, all workers are alive and all wait for an exchange.
"""

import contextlib
import hmac
import math
import os
import secrets
import select
import socket
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable, Iterator, List, Optional

from gluon_amp.base.parameter_server import LostError

BEAT = 2.0  # seconds between two signs of life
# Seconds from the end of a worker to that of the others. A launcher ends them sooner, so that its
# sentence about the first failure is the only one.
GRACE = 5.0
GREETING = 60.0  # seconds in which all workers connect to the first one
LONGEST = 1000  # bytes in a line
SLOWER = 10  # times the longest step so far: if another takes so long, it waits for a server

ALIVE, STUCK, LEAVING = "alive", "stuck", "leaving"
GO_ON = "start the whole run again, with --resume auto if it saves checkpoints."


def end(sentence: str, status: int = 1) -> None:
    """End the process with a sentence, whatever its other threads wait for."""
    with contextlib.suppress(OSError):
        os.write(2, f"{Path(sys.argv[0]).name}: {sentence}\n".encode())
    os._exit(status)


@dataclass
class Peer:
    """A worker at the other end of a connection; times are those of `time.monotonic`."""

    name: str  # as a sentence names it
    connection: socket.socket
    heard: float = field(default_factory=time.monotonic)  # its last sign of life
    closed: float = math.inf
    # 'stuck' if it waits for an exchange, 'leaving' if it has nothing left to exchange
    state: str = ALIVE
    sentence: str = ""  # why it ends, if it said so
    _part: bytes = b""  # of a line

    def receive(self) -> None:
        """Read what has arrived; wait for something if nothing has."""
        try:
            data = self.connection.recv(LONGEST)
        except OSError:
            data = b""
        if not data:
            self.closed = time.monotonic()
            return
        self.heard = time.monotonic()
        *lines, self._part = (self._part + data).split(b"\n")
        for line in lines:
            self.state, _, sentence = line.decode(errors="replace").partition(" ")
            self.sentence = self.sentence or sentence

    def send(self, state: str, sentence: str) -> None:
        """Send a sign of life, and the reason why this worker ends, if it does."""
        with contextlib.suppress(OSError):  # `receive` finds out
            self.connection.sendall(f"{state} {sentence}".rstrip().encode() + b"\n")


class Liveness:
    """The connections of one worker, and the thread that listens to them.

    The first worker has all others as peers and passes on what it learns. A worker without a sign
    of life for `seconds` counts as dead, and so does a server if all workers wait for so long.
    """

    def __init__(
        self, peers: List[Peer], first: bool, seconds: float, end: Callable[..., None] = end
    ):
        self._peers, self._first, self._seconds, self._end = peers, first, seconds, end
        self._beat = min(BEAT, seconds / 4)
        self._longest = 0.0  # seconds of a step
        # Until when the present exchange may take, by `_clock`. Each is written by one thread only.
        self._patience = math.inf
        self._stopped = 0.0  # seconds in which this process was stopped
        self._woke = self._moved = time.monotonic()
        self._leaving, self._left = threading.Event(), threading.Event()
        threading.Thread(target=self._run, daemon=True, name="gluon_amp_liveness").start()

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Bound the time of a step by the longest so far; that of the first one is not known."""
        usual = SLOWER * self._longest or math.inf
        began = time.monotonic()
        with self.exchange(max(self._seconds, usual)):
            yield
        self._longest = max(self._longest, time.monotonic() - began)

    @contextlib.contextmanager
    def exchange(self, seconds: Optional[float] = None) -> Iterator[None]:
        """Bound the time of an exchange with the other workers."""
        self._patience = self._clock() + (self._seconds if seconds is None else seconds)
        try:
            yield
        finally:
            self._patience = math.inf

    def leave(self, status: int, seconds: float) -> None:
        """Return once all workers have called this; then the process has `seconds` to end."""
        self._leaving.set()
        self._left.wait()
        sentence = "the run is over; MXNet's scheduler or a server did not end with it."
        last = threading.Timer(seconds, self._end, (sentence, status))
        last.daemon = True
        last.start()

    def _run(self) -> None:
        sent, sentence, over = -math.inf, "", False
        while not (sentence or over):
            self._listen()
            sentence = self._verdict()
            over = self._leaving.is_set() and all(p.state == LEAVING for p in self._peers)
            if sentence or over or time.monotonic() - sent > self._beat:
                sent = time.monotonic()
                # The first worker leaves last, so that all leave together.
                state = self._state() if over or not self._first else ALIVE
                for peer in self._peers:
                    peer.send(state, sentence)
        if sentence:
            self._end(sentence)
        self._left.set()

    def _state(self) -> str:
        if self._leaving.is_set():
            return LEAVING
        return STUCK if self._clock() > self._patience else ALIVE

    def _clock(self) -> float:
        """Return the seconds in which this process was not stopped."""
        return time.monotonic() - self._stopped

    def _listen(self) -> None:
        """Receive what arrives, for a fraction of a beat."""
        peers = {peer.connection: peer for peer in self._peers if peer.closed == math.inf}
        ready, _, _ = select.select(list(peers), [], [], self._beat / 4)
        before, self._woke = self._woke, time.monotonic()
        stopped = self._woke - before - self._beat
        if stopped > 0:  # this process was, and perhaps all of them; nobody has to answer for it
            self._stopped += stopped
            for peer in peers.values():
                peer.heard += stopped
        for connection in ready:
            peers[connection].receive()

    def _verdict(self) -> str:
        """Return why the run cannot go on, or '' if it can."""
        now = time.monotonic()
        for peer in self._peers:
            if peer.sentence:
                return peer.sentence
            if now - peer.closed > GRACE and peer.state != LEAVING:
                return f"{peer.name} has ended, and the others cannot go on: {GO_ON}"
            if now - peer.heard > self._seconds and peer.closed == math.inf:
                silence = f"has not answered for {self._seconds:g} s"
                return f"{peer.name} {silence}, and the others cannot go on: {GO_ON}"
        states = {self._state(), *(peer.state for peer in self._peers)}
        if STUCK not in states or ALIVE in states:
            self._moved = now
        # What the others have said may be a beat old.
        if self._first and now - self._moved > 2 * self._beat:
            return (
                "all workers are alive and wait for each other's numbers, so a server or the "
                f"scheduler has ended: {GO_ON}"
            )
        return ""


def connect_to_first(
    rank: int, count: int, host: str, from_first: Callable[[bytes], bytes], seconds: float
) -> Liveness:
    """Connect all workers to the first one; `host` is this machine's address for the others."""
    if rank == 0:
        with socket.create_server((host, 0), backlog=count) as listener:
            # Whoever does not know this word is not of this run.
            word = secrets.token_hex(16)
            address = f"{host} {listener.getsockname()[1]} {word}"
            from_first(address.encode())
            return Liveness(_accept(listener, word, count - 1), True, seconds)
    ip, port, word = from_first(b"").decode().split()
    try:
        connection = socket.create_connection((ip, int(port)), timeout=GREETING)
        connection.settimeout(GRACE)
        name = f"worker {rank} (process {os.getpid()} on {socket.gethostname()})"
        connection.sendall(f"{word} {name}\n".encode())
    except OSError as error:
        raise LostError(
            f"worker {rank} cannot connect to the first worker at {ip}:{port} "
            f"({error.strerror or error}): open the ports between these machines, or "
            "pass --worker-timeout 0."
        ) from None
    return Liveness([Peer("worker 0, the first one,", connection)], False, seconds)


def _accept(listener: socket.socket, word: str, count: int) -> List[Peer]:
    """Return the other workers, once all have connected and said the word."""
    peers: List[Peer] = []
    deadline = time.monotonic() + GREETING
    while len(peers) < count:
        listener.settimeout(max(0.01, deadline - time.monotonic()))
        try:
            connection, _ = listener.accept()
        except OSError:
            raise LostError(
                f"only {len(peers)} of {count} other workers have connected to the first one "
                f"within {GREETING:g} s: see what they say, or pass "
                "--worker-timeout 0."
            ) from None
        connection.settimeout(GRACE)
        said, _, name = _first_line(connection).partition(" ")
        if hmac.compare_digest(said.encode(), word.encode()):
            peers.append(Peer(name, connection))
        else:
            connection.close()
    return peers


def _first_line(connection: socket.socket) -> str:
    try:
        with connection.makefile("rb", buffering=0) as lines:
            return lines.readline(LONGEST).decode(errors="replace").strip()
    except OSError:
        return ""
