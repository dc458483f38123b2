"""Machines for a parameter server, each a network namespace of Linux with counters of its own.

Every process runs on a machine of its own: the scheduler, the servers and the workers. Their links
meet in one bridge. Nothing else sends there, so the counters of a link are those of its process. A
link can be limited to a bandwidth in each direction, by the token bucket of `tc`. No root is
needed where users may create namespaces.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Union

from experiments import ROOT
from gluon_amp.base.messages import UsageError

TOOLS = ("unshare", "nsenter", "ip", "tc")
NAMESPACES = ("unshare", "--map-root-user", "--net", "--mount")
BURST = "64kb"  # a packet of loopback and veth, after segmentation offload, is at most 64 KiB
PORT = "9091"
WORKER = "experiments.wire.worker"


class Traffic(NamedTuple):
    """Bytes on a machine's link, as its counters say: with headers, without Ethernet's framing."""

    sent: int
    received: int


class Outcome(NamedTuple):
    """What the workers have written as JSON, and the traffic of each machine from start to end."""

    results: List[Any]
    workers: List[Traffic]
    servers: List[Traffic]


def available() -> bool:
    """Return whether this user can create network namespaces here, and has the tools for it."""
    if not all(map(shutil.which, TOOLS)):
        return False
    probe = "mount -t tmpfs none /run && ip netns add probe && ip link add name to_probe type veth"
    trial = subprocess.run([*NAMESPACES, "sh", "-c", probe], capture_output=True, timeout=60)
    return trial.returncode == 0


def run(
    arguments: Sequence[str],
    workers: int,
    servers: int,
    megabits: Optional[float] = None,
    seconds: float = 600,
) -> Outcome:
    """Run `experiments.wire.worker` as the workers of a cluster.

    Parameters
    ----------
    arguments : sequence of str
        Those of the worker, without the path of its result.
    workers, servers : int
    megabits : float, optional
        Bandwidth of each link and direction in Mbit/s.
    seconds : float
        Time limit.

    Raises
    ------
    UsageError
        There are no namespaces here, or a process has failed.
    """
    if not available():
        raise UsageError(
            "network namespaces cannot be created here: install util-linux and iproute2, and run "
            "as root or where users may create namespaces."
        )
    with tempfile.TemporaryDirectory() as folder:
        task = {
            "arguments": list(arguments),
            "workers": workers,
            "servers": servers,
            "megabits": megabits,
            "folder": folder,
        }
        command = [*NAMESPACES, sys.executable, "-m", __name__, json.dumps(task)]
        process = subprocess.Popen(
            command, cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        try:
            _, said = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            raise UsageError(f"the cluster has not finished within {seconds:g} s.") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        if process.returncode:
            raise UsageError(f"the cluster has failed: {said.strip()[-2000:]}")
        counted = json.loads((Path(folder) / "traffic").read_text())
        results = [json.loads((Path(folder) / f"worker{n}").read_text()) for n in range(workers)]
    own, served = ([Traffic(*pair) for pair in counted[role]] for role in ("worker", "server"))
    return Outcome(results, own, served)


# -------------------------------------------------------- what runs inside the first namespace


def _shell(*words: Union[str, int]) -> str:
    done = subprocess.run(list(map(str, words)), check=True, capture_output=True, text=True)
    return done.stdout


def _connect(names: Sequence[str], megabits: Optional[float]) -> Dict[str, str]:
    """Create the machines and their links; return the address of each."""
    _shell("mount", "-t", "tmpfs", "none", "/run")  # where `ip netns` keeps names
    _shell("ip", "link", "add", "bridge", "type", "bridge")
    _shell("ip", "link", "set", "bridge", "up")
    addresses = {name: f"10.0.{n // 250}.{n % 250 + 1}" for n, name in enumerate(names)}
    for name, address in addresses.items():
        plug = f"to_{name}"
        _shell("ip", "netns", "add", name)
        _shell(*f"ip link add {plug} type veth peer name eth0 netns {name}".split())
        _shell(*f"ip link set {plug} master bridge up".split())
        _shell(*f"ip -n {name} link set lo up".split())
        _shell(*f"ip -n {name} link set eth0 up".split())
        _shell(*f"ip -n {name} addr add {address}/16 dev eth0".split())
        if megabits is not None:
            limit = f"root tbf rate {megabits}mbit burst {BURST} latency 1s".split()
            _shell("tc", "qdisc", "add", "dev", plug, *limit)  # what the machine receives
            _shell("tc", "-n", name, "qdisc", "add", "dev", "eth0", *limit)  # what it sends
    return addresses


def _traffic(name: str) -> Traffic:
    lines = _shell("nsenter", f"--net=/run/netns/{name}", "cat", "/proc/net/dev").splitlines()
    fields = next(line for line in lines if line.strip().startswith("eth0:")).split(":")[1].split()
    return Traffic(sent=int(fields[8]), received=int(fields[0]))


def _main(task: Dict[str, Any]) -> int:
    """Start the processes, wait for the workers, and write the counters of their machines."""
    roles = ["scheduler"]
    roles += ["server"] * task["servers"] + ["worker"] * task["workers"]
    names = [f"{role}{roles[:n].count(role)}" for n, role in enumerate(roles)]
    addresses = _connect(names, task["megabits"])
    shared = {
        **os.environ,
        "DMLC_PS_ROOT_URI": addresses["scheduler0"],
        "DMLC_PS_ROOT_PORT": PORT,
        "DMLC_NUM_SERVER": str(task["servers"]),
        "DMLC_NUM_WORKER": str(task["workers"]),
        "OMP_NUM_THREADS": "1",
    }
    # A server serves inside `import mxnet`, which needs gluon_amp's numpy aliases first.
    serving = ["-c", "import gluon_amp"]
    processes = []
    for name, role in zip(names, roles):
        own = ["-m", WORKER, *task["arguments"], f"{task['folder']}/{name}"]
        command = [sys.executable, *(own if role == "worker" else serving)]
        env = {**shared, "DMLC_ROLE": role, "DMLC_NODE_HOST": addresses[name]}
        env["DMLC_WORKER_ID"] = name[len(role) :]
        inside = ["nsenter", f"--net=/run/netns/{name}", *command]
        processes.append(subprocess.Popen(inside, env=env, stdout=subprocess.DEVNULL))
    status = _wait(processes, [role == "worker" for role in roles])
    if status == 0:
        counted = {
            role: [_traffic(name) for name, of in zip(names, roles) if of == role]
            for role in ("server", "worker")
        }
        (Path(task["folder"]) / "traffic").write_text(json.dumps(counted))
    for process in processes:
        process.kill()
        process.wait()
    return abs(status)


def _wait(processes: Sequence[subprocess.Popen], working: Sequence[bool]) -> int:
    """Wait for the workers, or for the first process that fails; return its status, or 0."""
    while True:
        statuses = [process.poll() for process in processes]
        failed = [status for status in statuses if status]
        if failed or None not in [status for status, works in zip(statuses, working) if works]:
            return failed[0] if failed else 0
        time.sleep(0.1)


if __name__ == "__main__":
    sys.exit(_main(json.loads(sys.argv[1])))
