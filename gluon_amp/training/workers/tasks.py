"""The processes of a distributed run, planned from the command line of the launcher."""

import argparse
import errno
import json
import os
import random
import re
import shlex
import socket
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Dict, List, Optional, Sequence, Tuple

from gluon_amp.base.messages import LAUNCHER, UsageError
from gluon_amp.training.command_line import OUTPUT, Parser, positive, whole

LOCALHOST = "127.0.0.1"
SUPERVISOR = Path(__file__).with_name("supervisor.py").read_text()

HOST = re.compile(r"(?!-)[\w.@-]*[\w.](:\d+)?")

# The variables of this environment that processes on other machines receive, too.
PASSED = re.compile(r"(MXNET|DMLC|PS|OMP)_.+|PYTHONPATH|LD_LIBRARY_PATH")

# Without questions; a host that no longer answers is noticed within a minute.
SSH = (
    "ssh -o BatchMode=yes -o ConnectTimeout=15 -o ServerAliveInterval=15 -o ServerAliveCountMax=4"
).split()

DESCRIPTION = """Run COMMAND as the workers, servers and scheduler of a distributed run, on this
machine or, with a hostfile, by ssh on others, where it must be installed in the same folders."""


@dataclass(frozen=True)
class Task:
    """One process to start."""

    role: str  # 'scheduler', 'server' or 'worker'
    number: int  # counted from 0 within its role
    # in ssh's notation, with its port after a colon if that is not 22; None for this machine
    host: Optional[str] = None
    env: Dict[str, str] = field(default_factory=dict)
    neighbours: int = 1  # number of workers on its machine

    def __str__(self) -> str:
        name = self.role if self.role == "scheduler" else f"{self.role} {self.number}"
        return f"{name} on {self.host}" if self.host else name

    @property
    def label(self) -> str:
        """The prefix of every line that the process prints."""
        return "[scheduler] " if self.role == "scheduler" else f"[{self.role} {self.number}] "

    def arguments(self, command: Sequence[str], folder: str) -> List[str]:
        """Return what to execute here so that the command runs there, under supervision."""
        task = {"env": self.env, "neighbours": self.neighbours}
        task.update(command=list(command), folder=folder)
        supervised = ["-c", SUPERVISOR, json.dumps(task)]
        if self.host is None:
            return [sys.executable, *supervised]
        host, _, port = self.host.partition(":")
        remote = " ".join(map(shlex.quote, ["exec", "python3", *supervised]))
        return [*SSH, "-p", port or "22", host, remote]


def read(
    arguments: Optional[Sequence[str]] = None, prog: str = "gluon-amp launch"
) -> argparse.Namespace:
    """Read the launcher's command line; options that contradict each other are a `UsageError`."""
    options = _parser(prog).parse_args(arguments)
    if options.launcher is None:
        options.launcher = "local" if options.hostfile is None else "ssh"
    if (options.launcher == "ssh") != (options.hostfile is not None):
        raise UsageError(
            "--launcher ssh needs a hostfile: give one with -H."
            if options.launcher == "ssh"
            else "--launcher local runs everything here: leave out -H, or give --launcher ssh."
        )
    return options


def _parser(prog: str) -> Parser:
    parser = Parser(
        prog=prog, usage=f"{prog} -n WORKERS [OPTION ...] -- COMMAND ...", description=DESCRIPTION
    )
    count = {"type": whole(1, 4096), "metavar": "N"}
    variable = {"type": _variable, "metavar": "NAME[=VALUE]", "action": "append", "default": []}
    add = parser.add
    add("-n --num-workers", "processes that train", count, required=True)
    add("-s --num-servers", "processes that add up gradients (default: as many as workers)", count)
    machines = "machines to use, one HOST or USER@HOST or HOST:SSHPORT on a line"
    add("-H --hostfile", machines, OUTPUT)
    where = "local runs everything here, on 127.0.0.1 (default: ssh if there is a hostfile)"
    add("--launcher", where, choices=("local", "ssh"))
    own = "address of this machine for the others (default: the one towards the first host)"
    add("--host-ip", own, metavar="IP")
    add("--env", "set a variable for all processes, or pass on this machine's", variable)
    add("--env-server", "the same for servers only", variable)
    add("--env-worker", "the same for workers only", variable)
    add(
        "--gpus-per-worker",
        "give each worker N GPUs of its machine (default: each sees all)",
        count,
    )
    time = "time to save after Ctrl-C or SIGTERM, before all processes are ended (default: 60)"
    add("--grace", time, type=positive, default=60.0, metavar="SECONDS")
    add("command", "what to run", nargs="+", metavar="COMMAND")
    return parser


def _variable(text: str) -> Tuple[str, str]:
    """Read NAME=VALUE, NAME:VALUE as in MXNet's launcher, or NAME with this machine's value."""
    match = re.fullmatch(r"(\w+)(?:[=:](.*))?", text, re.DOTALL)
    if not match:
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE or NAME, got {text!r}")
    name, value = match.groups()
    return name, os.environ.get(name, "") if value is None else value


def hosts(path: Path) -> List[str]:
    """Return the machines that a hostfile lists, without empty lines and comments."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not a text file"
        raise UsageError(f"-H {path} cannot be read: {reason}.") from None
    listed = []
    for number, line in enumerate(lines, 1):
        host = line.split("#")[0].strip()
        if host and not HOST.fullmatch(host):
            raise UsageError(
                f"{path} has {host!r} in line {number}: expected HOST, USER@HOST or HOST:SSHPORT."
            )
        listed += [host] if host else []
    if not listed:
        raise UsageError(f"{path} lists no hosts: write one on each line.")
    return listed


def address(host: str) -> str:
    """Return this machine's address as seen from a host; a name without one is a `UsageError`."""
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
    """Return a port of this machine that nobody listens on.

    Systems give the ports from 32768 on to connections, perhaps before the scheduler has started.
    """
    with socket.socket() as listener:
        for port in random.SystemRandom().sample(range(10000, 32768), 100):
            try:
                listener.bind((ip, port))
                break
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    reason = error.strerror
                    raise UsageError(
                        f"{ip} is not an address of this machine ({reason})."
                    ) from None
        return listener.getsockname()[1]


def tasks(options: argparse.Namespace) -> List[Task]:
    """Return the processes to start: the scheduler here, workers and servers round the hosts."""
    if options.launcher == "ssh":
        listed = hosts(options.hostfile)
        ip = options.host_ip or address(listed[0])
        machines: List[Optional[str]] = [*listed]
        common = {name: value for name, value in os.environ.items() if PASSED.fullmatch(name)}
    else:
        machines, ip = [None], LOCALHOST
        common = {"DMLC_NODE_HOST": LOCALHOST}  # listen on this address only
    servers = options.num_servers or options.num_workers
    common.update(
        DMLC_PS_ROOT_URI=ip,
        DMLC_PS_ROOT_PORT=str(free_port(ip)),
        DMLC_NUM_WORKER=str(options.num_workers),
        DMLC_NUM_SERVER=str(servers),
        PYTHONUNBUFFERED="1",  # their output is read line by line
        **{LAUNCHER: "1"},
    )
    counts = {"scheduler": 1, "server": servers, "worker": options.num_workers}
    extra = {"server": options.env_server, "worker": options.env_worker}
    worker_hosts = [machines[number % len(machines)] for number in range(options.num_workers)]
    workers_on = Counter(worker_hosts)
    planned = []
    for role, count in counts.items():
        for number in range(count):
            host = None if role == "scheduler" else machines[number % len(machines)]
            env = {**common, "DMLC_ROLE": role, **dict(options.env), **dict(extra.get(role, ()))}
            if role == "worker":
                env["DMLC_WORKER_ID"] = str(number)
                if options.gpus_per_worker:
                    first = worker_hosts[:number].count(host) * options.gpus_per_worker
                    gpus = range(first, first + options.gpus_per_worker)
                    env["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, gpus))
            planned.append(Task(role, number, host, env, max(1, workers_on[host])))
    return planned
