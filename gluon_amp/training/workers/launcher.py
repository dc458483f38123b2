"""Starts a distributed run: scheduler, servers and workers of MXNet's parameter server.

MXNet's own ``tools/launch.py`` does not run on Python 3.9 and later, listens on all interfaces, and
leaves processes behind when a worker fails. Here every process ends when the launcher ends, however
that happens, and the launcher ends as soon as the run cannot continue.
"""

import contextlib
import math
import os
import signal
import subprocess
import sys
import threading
import time
from queue import Empty, SimpleQueue
from typing import Any, List, Optional, Sequence, Set, TextIO

from gluon_amp.base.messages import FINISHED, UsageError, first_few
from gluon_amp.training.command_line import SIGNALS, handling_signals
from gluon_amp.training.workers.tasks import Task, read, tasks

SSH_FAILED = 255

LAST_WORDS = 3.0  # seconds that the other processes have to end after one has failed
PATIENCE = 60.0  # seconds for which others may wait for a worker in silence
GOODBYE = 15.0  # seconds that servers have to end after the last worker has finished


class Process:
    """A task that has been started; ``(process, status)`` is put into `events` when it ends.

    ``(process, None)`` is put there when it finished some time ago.
    """

    def __init__(self, task: Task, command: Sequence[str], events: SimpleQueue):
        self.task = task
        self._events = events
        self._popen: Any = subprocess.Popen(  # all its streams are pipes
            task.arguments(command, os.getcwd()),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,  # Ctrl-C reaches the launcher alone, which passes it on
        )
        streams = ((self._popen.stdout, sys.stdout), (self._popen.stderr, sys.stderr))
        self._readers = [threading.Thread(target=self._copy, args=s, daemon=True) for s in streams]
        for thread in (*self._readers, threading.Thread(target=self._wait, daemon=True)):
            thread.start()

    def _copy(self, stream: TextIO, out: TextIO) -> None:
        for line in stream:
            if line.rstrip() == FINISHED:
                self.finished()
                continue
            try:
                # One call, so that the lines of several processes do not mix.
                out.write(f"{self.task.label}{line.rstrip()}\n")
                out.flush()
            except (OSError, ValueError):  # nobody reads this any longer, as after `| head`
                self._events.put(signal.SIGPIPE)
                return

    def _wait(self) -> None:
        status = self._popen.wait()
        for reader in self._readers:
            reader.join(timeout=2)  # a shared ssh connection may hold the pipes open
        self._events.put((self, 128 - status if status < 0 else status))

    def finished(self) -> None:
        """Put an event when the others have had their time to finish, too."""
        timer = threading.Timer(PATIENCE, self._events.put, [(self, None)])
        timer.daemon = True
        timer.start()

    def send(self, number: int) -> None:
        """Send a signal to the command."""
        with contextlib.suppress(OSError, ValueError):  # it has ended already
            self._popen.stdin.write(f"{int(number)}\n")
            self._popen.stdin.flush()

    def end(self) -> None:
        """End the command and everything that it has started."""
        with contextlib.suppress(OSError):
            self._popen.stdin.close()

    def kill(self) -> None:
        """Kill the supervisor, if `end` was not enough."""
        self._popen.kill()


def _in_words(status: int) -> str:
    with contextlib.suppress(ValueError):  # most numbers are no signal
        return f"status {status} ({signal.Signals(status - 128).name})"
    return f"status {status}"


class Processes:
    """The processes of a run, until the last one has ended; `prog` begins its messages."""

    def __init__(self, grace: float, prog: str):
        self._prog = prog
        self._events: SimpleQueue = SimpleQueue()
        self._grace = grace
        self._signal: Optional[signal.Signals] = None  # that the launcher received
        self._status = 0  # of the first process that failed
        self._alive: Set[Process] = set()
        self._finished: Set[Process] = set()
        self._deadline = math.inf
        self._ending = False

    def _say(self, sentence: str) -> None:
        """Print a sentence on standard error, if anyone reads it."""
        with contextlib.suppress(OSError, ValueError):
            print(f"{self._prog}: {sentence}", file=sys.stderr, flush=True)

    def interrupt(self, number: int, _frame: object = None) -> None:
        """Receive a signal; usable as a signal handler."""
        self._events.put(signal.Signals(number))

    def start(self, planned: Sequence[Task], command: Sequence[str]) -> None:
        """Start the processes."""
        try:
            for task in planned:
                self._alive.add(Process(task, command, self._events))
        except OSError as error:
            for process in self._alive:
                process.end()
            raise UsageError(f"{error.filename} cannot be run: {error.strerror}.") from None

    def wait(self) -> int:
        """Wait for the end and return the launcher's status."""
        while self._alive:
            left = max(0.0, self._deadline - time.monotonic())
            try:
                event = self._events.get(timeout=None if left == math.inf else left)
            except Empty:
                self._end()
                continue
            if isinstance(event, signal.Signals):
                self._signalled(event)
            elif event[1] is None:
                self._waited(event[0])
            else:
                self._ended(*event)
        return 128 + self._signal if self._signal and self._status else self._status

    def _within(self, seconds: float) -> None:
        self._deadline = min(self._deadline, time.monotonic() + seconds)

    def _signalled(self, number: signal.Signals) -> None:
        if self._signal is not None or number == signal.SIGPIPE:
            self._signal = self._signal or number
            self._within(0)
            return
        self._signal = number
        self._say(f"{number.name}: the workers have {self._grace:g} s to save and leave.")
        for process in self._workers():
            process.send(signal.SIGINT if number == signal.SIGINT else signal.SIGTERM)
        self._within(self._grace)

    def _ended(self, process: Process, status: int) -> None:
        task = process.task
        needed = bool(self._workers())  # a server may fail once they have finished
        self._alive.discard(process)
        if status and needed and not self._status:
            self._status = status
            if self._signal is None and not self._ending:
                unreached = task.host and status == SSH_FAILED
                reason = ", as ssh ends when it cannot connect" if unreached else ""
                others = "; the others are ended" if self._alive else ""
                self._say(f"{task} ended with {_in_words(status)}{reason}{others}.")
                self._within(LAST_WORDS)
        if not self._workers():
            self._within(GOODBYE)
        elif not status:
            process.finished()

    def _waited(self, process: Process) -> None:
        """Say for which workers the run waits, some time after a process has finished."""
        self._finished.add(process)
        workers = self._workers()
        awaited = first_few(sorted(str(o.task) for o in workers if o not in self._finished))
        if awaited and not self._ending:
            self._say(f"{process.task} finished {PATIENCE:g} s ago; the run waits for {awaited}.")
        elif workers and self._deadline == math.inf:  # they may go on if all of them were stopped
            self._say(
                f"all workers have finished, and are ended after {GOODBYE:g} s: if they wait for "
                "each other, they have not made as many steps."
            )
            self._within(GOODBYE)

    def _workers(self) -> List[Process]:
        return [process for process in self._alive if process.task.role == "worker"]

    def _end(self) -> None:
        """End every process; the second time, kill their supervisors."""
        if self._workers():
            self._status = self._status or 128 + signal.SIGKILL
        for process in self._alive:
            process.kill() if self._ending else process.end()
        self._ending, self._deadline = True, time.monotonic() + LAST_WORDS


def launch(arguments: Optional[Sequence[str]] = None, prog: str = "gluon-amp launch") -> int:
    """Run the launcher's command line; return 0, or the status of the first process that failed."""
    options = read(arguments, prog)
    planned = tasks(options)
    processes = Processes(options.grace, prog)
    with handling_signals(SIGNALS, processes.interrupt):
        processes.start(planned, options.command)
        return processes.wait()
