"""Starts a distributed run: scheduler, servers and workers of MXNet's parameter server.

MXNet's own ``tools/launch.py`` does not run on Python 3.9 and later, listens on all interfaces, and
leaves processes behind when a worker fails. Here every process ends with the launcher, however that
ends, and the launcher ends as soon as the run cannot go on.
"""

import argparse
import contextlib
import json
import math
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Dict, Iterator, List, Optional, Sequence, Set, TextIO, Tuple

from gluon_amp.command_line import Parser, UsageError, path, positive, whole

LOCALHOST = "127.0.0.1"
SUPERVISOR = Path(__file__).with_name("supervisor.py").read_text()

HOST = re.compile(r"(?!-)[\w.@-]*[\w.](:\d+)?")

# What a process on another machine gets of this one's environment.
PASSED = re.compile(r"(MXNET|DMLC|PS|OMP)_.+|PYTHONPATH|LD_LIBRARY_PATH")

# No questions, and a host that does not answer any more is noticed within a minute.
SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=15",
       "-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=4")  # fmt: skip

SSH_FAILED = 255
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

LAST_WORDS = 3.0  # seconds that the others get after one has failed
GOODBYE = 15.0  # seconds that servers get after the last worker has finished

DESCRIPTION = """Run COMMAND as the workers, servers and scheduler of a distributed run, on this
machine or, with a hostfile, by ssh on others, where it must be installed in the same folders."""


@dataclass(frozen=True)
class Task:
    """One process to start.

    Attributes
    ----------
    role : str
        'scheduler', 'server' or 'worker'.
    number : int
        Counted from 0 within its role.
    host : str or None
        As ssh takes it, with its port after a colon where that is not 22; None for this machine.
    env : dict
        Its environment variables.
    neighbours : int
        How many workers run on its machine.
    """

    role: str
    number: int
    host: Optional[str] = None
    env: Dict[str, str] = field(default_factory=dict)
    neighbours: int = 1

    def __str__(self) -> str:
        name = self.role if self.role == "scheduler" else f"{self.role} {self.number}"
        return f"{name} on {self.host}" if self.host else name

    @property
    def label(self) -> str:
        """What stands in front of every line that it prints."""
        return "[scheduler] " if self.role == "scheduler" else f"[{self.role} {self.number}] "

    def arguments(self, command: Sequence[str], folder: str) -> List[str]:
        """Return what to execute here so that the command runs there, under supervision."""
        told = {"command": list(command), "folder": folder, "env": self.env}
        supervised = ["-c", SUPERVISOR, json.dumps({**told, "neighbours": self.neighbours})]
        if self.host is None:
            return [sys.executable, *supervised]
        host, _, port = self.host.partition(":")
        there = " ".join(map(shlex.quote, ["exec", "python3", *supervised]))
        return [*SSH, "-p", port or "22", host, there]


# ------------------------------------------------------------------------------------ command line


def read(arguments: Optional[Sequence[str]] = None) -> argparse.Namespace:
    """Read the command line.

    Raises
    ------
    UsageError
        Options that contradict each other.
    """
    made = Parser(
        prog="launch.py",
        usage="launch.py -n WORKERS [-s SERVERS] [-H HOSTFILE] [options] -- COMMAND ...",
        description=DESCRIPTION,
    )
    add = made.add_argument
    # fmt: off
    add("-n", "--num-workers", type=whole(1, 4096), required=True, metavar="N",
        help="processes that train")
    add("-s", "--num-servers", type=whole(1, 4096), metavar="N",
        help="processes that add up gradients (default: as many as workers)")
    add("-H", "--hostfile", type=path, metavar="FILE",
        help="machines to use, one HOST or USER@HOST or HOST:SSHPORT on a line")
    add("--launcher", choices=("local", "ssh"),
        help="local runs all here, on 127.0.0.1 (default: ssh where there is a hostfile)")
    add("--host-ip", metavar="IP",
        help="address of this machine for the others (default: the one towards the first host)")
    add("--env", action="append", default=[], type=_variable, metavar="NAME[=VALUE]",
        help="set a variable for all processes, or pass on this machine's")
    add("--env-server", action="append", default=[], type=_variable, metavar="NAME[=VALUE]",
        help="only for servers")
    add("--env-worker", action="append", default=[], type=_variable, metavar="NAME[=VALUE]",
        help="only for workers")
    add("--gpus-per-worker", type=whole(1, 4096), metavar="N",
        help="give each worker N GPUs of its machine (default: each sees all)")
    add("--grace", type=positive, default=60.0, metavar="SECONDS",
        help="after Ctrl-C or SIGTERM: time to save, before all is ended (default: 60)")
    add("command", nargs="+", metavar="COMMAND", help="what to run")
    # fmt: on
    options = made.parse_args(arguments)
    if options.launcher is None:
        options.launcher = "local" if options.hostfile is None else "ssh"
    if (options.launcher == "ssh") != (options.hostfile is not None):
        raise UsageError(
            "--launcher ssh needs a hostfile: give one with -H."
            if options.launcher == "ssh"
            else "--launcher local runs everything here: leave out -H, or give --launcher ssh."
        )
    return options


def _variable(text: str) -> Tuple[str, str]:
    """Read NAME=VALUE, NAME:VALUE as in MXNet's launcher, or NAME, whose value is this machine's.

    A variable that is not set here is empty there.
    """
    match = re.fullmatch(r"(\w+)(?:[=:](.*))?", text, re.DOTALL)
    if not match:
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE or NAME, got {text!r}")
    name, value = match.groups()
    return name, os.environ.get(name, "") if value is None else value


def hosts(path: Path) -> List[str]:
    """Return the machines that a hostfile lists, without empty lines and comments.

    Raises
    ------
    UsageError
        The file cannot be read, lists no machine, or has something else on a line.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise UsageError(f"-H {path} cannot be read: {reason}.") from None
    found = []
    for number, line in enumerate(lines, 1):
        host = line.split("#")[0].strip()
        if host and not HOST.fullmatch(host):
            raise UsageError(
                f"{path} has {host!r} in line {number}: expected HOST, USER@HOST or HOST:SSHPORT."
            )
        found += [host] if host else []
    if not found:
        raise UsageError(f"{path} lists no hosts: write one on each line.")
    return found


def address(host: str) -> str:
    """Return this machine's address as seen from a host.

    Raises
    ------
    UsageError
        The host's name has no address.
    """
    name = host.split("@")[-1].split(":")[0]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect((name, 9))  # sends nothing
        except OSError as error:
            raise UsageError(
                f"{name} has no address ({error.strerror}): give this machine's own with --host-ip."
            ) from None
        return sock.getsockname()[0]


def free_port(ip: str) -> int:
    """Return a port of this machine that nobody listens on."""
    with socket.socket() as listener:
        try:
            listener.bind((ip, 0))
        except OSError as error:
            raise UsageError(f"{ip} is no address of this machine ({error.strerror}).") from None
        return listener.getsockname()[1]


def tasks(options: argparse.Namespace) -> List[Task]:
    """Return the processes to start: the scheduler here, workers and servers round the hosts."""
    machines: List[Optional[str]] = [None]
    ip = LOCALHOST
    if options.launcher == "ssh":
        machines = list(hosts(options.hostfile))
        ip = options.host_ip or address(machines[0])
    servers = options.num_servers or options.num_workers
    common = {
        "DMLC_PS_ROOT_URI": ip,
        "DMLC_PS_ROOT_PORT": str(free_port(ip)),
        "DMLC_NUM_WORKER": str(options.num_workers),
        "DMLC_NUM_SERVER": str(servers),
        "PYTHONUNBUFFERED": "1",  # their output is read line by line
    }
    if options.launcher == "local":
        common["DMLC_NODE_HOST"] = LOCALHOST  # listen there and nowhere else
    else:
        passed = {name: value for name, value in os.environ.items() if PASSED.fullmatch(name)}
        common = {**passed, **common}
    counts = {"scheduler": 1, "server": servers, "worker": options.num_workers}
    extra = {"server": options.env_server, "worker": options.env_worker}
    on = [machines[number % len(machines)] for number in range(options.num_workers)]
    planned = []
    for role, count in counts.items():
        for number in range(count):
            host = None if role == "scheduler" else machines[number % len(machines)]
            env = {**common, "DMLC_ROLE": role, **dict(options.env), **dict(extra.get(role, ()))}
            if role == "worker":
                env["DMLC_WORKER_ID"] = str(number)
                if options.gpus_per_worker:
                    first = on[:number].count(host) * options.gpus_per_worker
                    gpus = range(first, first + options.gpus_per_worker)
                    env["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, gpus))
            planned.append(Task(role, number, host, env, max(1, Counter(on)[host])))
    return planned


# --------------------------------------------------------------------------------------- processes


class Process:
    """A task that has been started; `events` gets ``(process, status)`` when it has ended."""

    def __init__(self, task: Task, command: Sequence[str], events: SimpleQueue):
        self.task = task
        self._events = events
        self._popen = subprocess.Popen(
            task.arguments(command, os.getcwd()),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,  # Ctrl-C reaches the launcher alone, which passes it on
        )
        self._readers = [
            self._thread(self._copy, self._popen.stdout, sys.stdout),
            self._thread(self._copy, self._popen.stderr, sys.stderr),
        ]
        self._thread(self._wait)

    @staticmethod
    def _thread(target, *arguments) -> threading.Thread:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        thread.start()
        return thread

    def _copy(self, stream: TextIO, out: TextIO) -> None:
        for line in stream:
            try:
                # one call, so that lines of several processes do not mix
                out.write(f"{self.task.label}{line.rstrip()}\n")
                out.flush()
            except (OSError, ValueError):  # nobody reads this any more, as after `| head`
                self._events.put(signal.SIGPIPE)
                return

    def _wait(self) -> None:
        status = self._popen.wait()
        for reader in self._readers:
            reader.join(timeout=2)  # a shared ssh connection may hold the pipes open
        self._events.put((self, 128 - status if status < 0 else status))

    def send(self, number: int) -> None:
        """Send a signal to the command."""
        self._write(f"{int(number)}\n")

    def end(self) -> None:
        """End the command, and all that it has started."""
        self._write("", close=True)

    def _write(self, text: str, close: bool = False) -> None:
        with contextlib.suppress(OSError, ValueError):  # it has ended already
            self._popen.stdin.write(text)
            self._popen.stdin.flush()
        if close:
            with contextlib.suppress(OSError):
                self._popen.stdin.close()

    def kill(self) -> None:
        """Kill what holds the leash, where letting go was not enough."""
        self._popen.kill()


def say(sentence: str) -> None:
    """Print a sentence on standard error, if anybody reads it."""
    with contextlib.suppress(OSError, ValueError):
        print(f"launch.py: {sentence}", file=sys.stderr, flush=True)


def _in_words(status: int) -> str:
    if status <= 128:
        return f"status {status}"
    with contextlib.suppress(ValueError):
        return f"status {status} ({signal.Signals(status - 128).name})"
    return f"status {status}"


class Run:
    """The processes of a run, until the last one has ended."""

    def __init__(self, grace: float):
        self._events: SimpleQueue = SimpleQueue()
        self._grace = grace
        self._signal: Optional[signal.Signals] = None  # that the launcher got
        self._status = 0  # of the first process that failed
        self._alive: Set[Process] = set()
        self._deadline = math.inf
        self._ending = False

    def interrupt(self, number: int, _frame: object = None) -> None:
        """Take a signal; usable as a signal handler."""
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
        say(f"{number.name}: the workers have {self._grace:g} s to save and leave.")
        for process in self._workers():
            process.send(signal.SIGINT if number == signal.SIGINT else signal.SIGTERM)
        self._within(self._grace)

    def _ended(self, process: Process, status: int) -> None:
        task = process.task
        needed = bool(self._workers())  # a server that falters when they have finished is no loss
        self._alive.discard(process)
        if status and needed and not self._status:
            self._status = status
            if self._signal is None and not self._ending:
                unreached = task.host and status == SSH_FAILED
                reason = ", as ssh ends when it cannot connect" if unreached else ""
                others = "; the others are ended" if self._alive else ""
                say(f"{task} ended with {_in_words(status)}{reason}{others}.")
                self._within(LAST_WORDS)
        if not self._workers():
            self._within(GOODBYE)

    def _workers(self) -> List[Process]:
        return [process for process in self._alive if process.task.role == "worker"]

    def _end(self) -> None:
        """Let go of every leash; the second time, kill those who hold them."""
        if self._workers():
            self._status = self._status or 128 + signal.SIGKILL
        for process in self._alive:
            process.kill() if self._ending else process.end()
        self._ending, self._deadline = True, time.monotonic() + LAST_WORDS


def launch(arguments: Optional[Sequence[str]] = None) -> int:
    """Run the launcher's command line; return its status.

    Returns
    -------
    int
        0 when all workers ended with 0; else the status of the first process that failed, which is
        128 + N where signal N ended it; 128 + N also when the launcher itself got signal N before
        the end.

    Raises
    ------
    UsageError
        What was asked for cannot be done; nothing was started.
    """
    options = read(arguments)
    planned = tasks(options)
    run = Run(options.grace)
    with _passing_signals_to(run):
        run.start(planned, options.command)
        return run.wait()


@contextlib.contextmanager
def _passing_signals_to(run: Run) -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    taken = [number for number in SIGNALS if before[number] != signal.SIG_IGN]  # as nohup has it
    for number in taken:
        signal.signal(number, run.interrupt)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, before[number])
