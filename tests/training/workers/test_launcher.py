"""scripts/launch.py: what it starts, passes on, refuses, and never leaves behind."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

import gluon_amp  # noqa: F401
from gluon_amp.base.messages import UsageError
from gluon_amp.training.workers import launcher
from gluon_amp.training.workers.launcher import launch
from tests import ROOT

SCRIPT = ROOT / "scripts" / "launch.py"

pytestmark = pytest.mark.usefixtures("default_signals")


def shell(text):
    """Return a command that does this in every role; $1 is 'worker 0', 'scheduler 0', and so on."""
    name = 'set -- "$DMLC_ROLE ${DMLC_WORKER_ID:-0}"; '
    return ["--", "sh", "-c", name + textwrap.dedent(text)]


def pids(folder):
    """Return the processes that wrote their numbers to the folder."""
    return [int(path.name) for path in folder.iterdir()]


def alive(pid):
    try:
        # a zombie, whose parent has not looked yet, has ended
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder of its own as the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    return tmp_path


def send_later(number, condition):
    """Send this process a signal as soon as a condition holds."""

    def send():
        wait_until(condition)
        os.kill(os.getpid(), number)

    threading.Thread(target=send, daemon=True).start()


# ------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    "line, sentence",
    [
        ("-n 1 -H hosts --launcher local -- true", "--launcher local runs everything here"),
        ("-n 1 --launcher ssh -- true", "--launcher ssh needs a hostfile"),
        ("-n 1 -H hosts -- true", "no-such-host.invalid has no address"),
        ("-n 1 -H hosts --host-ip 192.0.2.1 -- true", "192.0.2.1 is not an address of this"),
    ],
)
def test_bad_options_are_one_sentence(here, line, sentence):
    (here / "hosts").write_text("no-such-host.invalid\n")
    with pytest.raises(UsageError, match=sentence):
        launch(line.split())


@pytest.mark.parametrize(
    "line, sentence",
    [
        ("-n 0 -- true", "expected a whole number from 1 to 4096, got '0'"),
        ("-n 1", "the following arguments are required: COMMAND"),
        ("-- true", "required: -n/--num-workers"),
        ("-n 1 --env =x -- true", "expected NAME=VALUE or NAME, got '=x'"),
        ("-n 1 --sync-dst-dir /tmp -- true", "unrecognized arguments"),
        ("-n 1 --launcher mpi -- true", "invalid choice: 'mpi'"),
    ],
)
def test_wrong_options_are_status_2(line, sentence, capsys):
    with pytest.raises(SystemExit) as stop:
        launch(line.split())
    error = capsys.readouterr().err
    assert stop.value.code == 2 and sentence in error and error.count("\n") == 1


# ---------------------------------------------------------------------------------------- runs


def test_lines_carry_the_name_of_who_printed_them(here, capsys):
    options = shell('for i in 1 2 3; do echo "$1 line $i"; done; echo "$1 wrong" >&2')
    assert launch(["-n", "2", "-s", "1", *options]) == 0
    out, err = capsys.readouterr()
    labels = ["[worker 0] worker 0", "[worker 1] worker 1", "[server 0] server 0"]
    labels += ["[scheduler] scheduler 0"]
    expected = sorted(f"{label} line {i}" for label in labels for i in (1, 2, 3))
    assert sorted(out.splitlines()) == expected
    assert sorted(err.splitlines()) == sorted(f"{label} wrong" for label in labels)


def test_workers_share_the_cores(here, capsys, monkeypatch):
    cores = len(os.sched_getaffinity(0))
    options = shell('[ "$DMLC_ROLE" != worker ] || echo $OMP_NUM_THREADS')
    assert launch(["-n", "2", "-s", "1", *options]) == 0
    share = max(1, cores // 2)
    assert sorted(capsys.readouterr().out.splitlines()) == [f"[worker {n}] {share}" for n in (0, 1)]
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert launch(["-n", "1", "-s", "1", *options]) == 0
    assert capsys.readouterr().out == "[worker 0] 7\n"


def test_the_command_has_the_working_directory_and_nothing_to_read(here, capsys):
    assert launch(["-n", "1", "-s", "1", *shell('[ "$1" != "worker 0" ] || { pwd; cat; }')]) == 0
    assert capsys.readouterr().out == f"[worker 0] {here}\n"


WAITING = """
    sleep 60 & touch $! $$
    {}
    wait
"""


@pytest.mark.parametrize(
    "who, what, status, sentence",
    [
        ("worker 1", "exit 3", 3, "worker 1 ended with status 3; the others are ended."),
        ("worker 1", "kill -9 $$", 137, "worker 1 ended with status 137 (SIGKILL); the others"),
        ("server 0", "exit 1", 1, "server 0 ended with status 1; the others are ended."),
        ("scheduler 0", "exit 4", 4, "scheduler ended with status 4; the others are ended."),
    ],
)
def test_one_that_fails_ends_them_all(here, capsys, who, what, status, sentence, monkeypatch):
    monkeypatch.setattr(launcher, "LAST_WORDS", 0.5)
    count = 'while [ $(ls | wc -l) -lt 8 ]; do sleep 0.1; done; [ "$1" != "{}" ] || {}'
    command = shell(WAITING.format(count.format(who, what)))
    assert launch(["-n", "2", "-s", "1", *command]) == status
    assert f"gluon-amp launch: {sentence}" in capsys.readouterr().err
    assert len(pids(here)) == 8 and not any(map(alive, pids(here)))


def test_what_a_worker_started_ends_with_it(here):
    """Data loading processes would otherwise wait for ever."""
    assert launch(["-n", "1", "-s", "1", *shell("sleep 60 & touch $!")]) == 0
    assert len(pids(here)) == 3
    wait_until(lambda: not any(map(alive, pids(here))), 5)


def test_workers_ignore_no_signal_that_the_launcher_ignores(here):
    """Background jobs of a shell ignore SIGINT, and nohup SIGHUP; their shells cannot undo it."""
    launching = [sys.executable, str(SCRIPT), "-n", "1", "-s", "1"]
    print_ignored = shell('[ "$1" != "worker 0" ] || exec grep SigIgn /proc/self/status')
    numbers = signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM
    done = subprocess.run(
        ["sh", "-c", 'trap "" INT HUP QUIT TERM; exec "$@"', "sh", *launching, *print_ignored],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    mask = int(done.stdout.partition("[worker 0] SigIgn:\t")[2], 16)
    assert [number for number in numbers if mask >> number - 1 & 1] == [], done.stderr


def test_a_command_that_is_not_there(capsys, monkeypatch):
    monkeypatch.setattr(launcher, "LAST_WORDS", 0.5)
    assert launch(["-n", "1", "-s", "1", "--", "no-such-command"]) == 127
    assert "[worker 0] no-such-command: No such file or directory.\n" in capsys.readouterr().err


SAVING = """
    [ "$DMLC_ROLE" = worker ] || exec sleep 60
    trap 'echo saved; exit $((128 + {0}))' {0}
    touch $$
    while :; do sleep 0.1; done
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_the_workers_save(here, capsys, number, monkeypatch):
    monkeypatch.setattr(launcher, "GOODBYE", 0.5)
    send_later(number, lambda: len(pids(here)) == 2)
    assert launch(["-n", "2", "-s", "1", *shell(SAVING.format(int(number)))]) == 128 + number
    out, err = capsys.readouterr()
    assert sorted(out.splitlines()) == ["[worker 0] saved", "[worker 1] saved"]
    assert err == f"gluon-amp launch: {number.name}: the workers have 60 s to save and leave.\n"


def test_after_the_grace_all_is_ended(here, capsys):
    command = shell('trap "" TERM; touch $$; while :; do sleep 0.1; done')
    send_later(signal.SIGTERM, lambda: len(pids(here)) == 3)
    assert launch(["-n", "1", "-s", "1", "--grace", "0.5", *command]) == 143
    assert not any(map(alive, pids(here)))


def test_a_second_signal_ends_all_at_once(here, capsys):
    command = shell('trap "touch $1; " TERM; touch $$; while :; do sleep 0.1; done')
    send_later(signal.SIGTERM, lambda: len(pids(here)) == 3)
    send_later(signal.SIGTERM, lambda: (here / "worker").exists())
    assert launch(["-n", "1", "-s", "1", *command]) == 143


def test_nothing_outlives_a_killed_launcher(here):
    command = [sys.executable, str(SCRIPT), "-n", "2", "-s", "1", *shell(WAITING.format(""))]
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)})
    try:
        wait_until(lambda: len(pids(here)) == 8)
    finally:
        process.kill()
        process.wait()
    wait_until(lambda: not any(map(alive, pids(here))), 5)


def test_nothing_outlives_a_killed_supervisor(here, monkeypatch):
    monkeypatch.setattr(launcher, "LAST_WORDS", 0.5)
    command = shell('[ "$1" != "worker 0" ] || { touch $$; kill -9 $PPID; }; exec sleep 60')
    assert launch(["-n", "1", "-s", "1", *command]) == 137
    wait_until(lambda: not any(map(alive, pids(here))), 5)


def test_nobody_reads_on(here):
    command = [sys.executable, str(SCRIPT), "-n", "1", "-s", "1", *shell("touch $$; yes")]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(timeout=20) != 0
    assert b"Traceback" not in process.stderr.read()
    process.stderr.close()
    assert not any(map(alive, pids(here)))


# ----------------------------------------------------------------------------------------- ssh

# Does what ssh does with its arguments, on this machine.
STAND_IN = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift 2; done
[ "$1" != lost ] || exit 255
echo "$1" >> "$LOG"
shift
exec sh -c "$*"
"""


@pytest.fixture
def ssh(here, monkeypatch):
    (here / "bin").mkdir()
    program = here / "bin" / "ssh"
    program.write_text(STAND_IN)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("LOG", str(here / "log"))
    return here


def test_hosts_by_ssh(ssh, capsys):
    (ssh / "hosts").write_text("one:2200\nme@two\n")
    options = ["-n", "2", "-s", "1", "-H", "hosts", "--host-ip", "127.0.0.1", "--env", "A=it's"]
    assert launch([*options, *shell('echo "$1 $A $(pwd)"')]) == 0
    lines = sorted(capsys.readouterr().out.splitlines())
    names = ["[scheduler] scheduler 0", "[server 0] server 0"]
    names += [f"[worker {n}] worker {n}" for n in (0, 1)]
    assert lines == [f"{name} it's {ssh}" for name in names]
    assert sorted((ssh / "log").read_text().split()) == ["me@two", "one", "one"]


def test_a_host_that_cannot_be_reached(ssh, capsys, monkeypatch):
    monkeypatch.setattr(launcher, "LAST_WORDS", 0.5)
    (ssh / "hosts").write_text("one\nlost\n")
    options = ["-n", "2", "-s", "1", "-H", "hosts", "--host-ip", "127.0.0.1"]
    assert launch([*options, "--", "sleep", "60"]) == 255
    assert capsys.readouterr().err == (
        "gluon-amp launch: worker 1 on lost ended with status 255, as ssh ends when it cannot "
        "connect; the others are ended.\n"
    )


def test_without_ssh(ssh, monkeypatch):
    (ssh / "hosts").write_text("one\n")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UsageError, match="ssh cannot be run: No such file"):
        launch(["-n", "1", "-H", "hosts", "--host-ip", "127.0.0.1", "--", "true"])


# -------------------------------------------------------------------------- MXNet's own processes

WORKER = """
import json, os
from pathlib import Path
import gluon_amp
import mxnet as mx
from mxnet import nd

def listening():
    # addresses on which processes of this run listen
    port = os.environ["DMLC_PS_ROOT_PORT"]
    addresses = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"DMLC_PS_ROOT_PORT={port}" not in (process / "environ").read_text().split("\\0"):
                continue
            links = [os.readlink(link) for link in (process / "fd").iterdir()]
        except OSError:
            continue
        sockets = {link[8:-1] for link in links if link.startswith("socket:[")}
        for table in ("tcp", "tcp6"):
            for line in (process / "net" / table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and fields[9] in sockets:
                    addresses.add(fields[1].split(":")[0])
    return sorted(addresses)

kv = mx.kv.create("dist_sync")
big = nd.array([40000, 2], dtype="float16")
kv.broadcast(1, nd.zeros_like(big), nd.zeros_like(big))
kv.pushpull(1, big)
seen = listening()
kv._barrier()
print(json.dumps([kv.num_workers, big.asnumpy().tolist(), seen]))
"""


@pytest.mark.slow
def test_mxnets_parameter_server(here, capsys, monkeypatch):
    """Float16 values are added up in float16, and an overflow reaches all workers."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (here / "worker.py").write_text(WORKER)
    assert launch(["-n", "2", "-s", "1", "--", sys.executable, "worker.py"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sorted(line[:11] for line in lines) == ["[worker 0] ", "[worker 1] "]
    loopback = "0100007F"
    for line in lines:
        assert json.loads(line[11:]) == [2, [float("inf"), 4.0], [loopback]]
