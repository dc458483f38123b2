"""The launcher: what it starts, passes on, and never leaves behind."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from gluon_amp.base.messages import FINISHED
from gluon_amp.training.workers import launcher
from gluon_amp.training.workers.launcher import launch
from tests.training.runs.scripts import environment, wait_until

PROGRAM = """
import sys, gluon_amp_console as console
console.enter_without_mxnet()
from gluon_amp.training.workers import launcher
launcher.LAST_WORDS = 0.5
sys.exit(console.main())
"""
LAUNCH = [sys.executable, "-c", PROGRAM, "launch"]

pytestmark = pytest.mark.usefixtures("default_signals")


def shell(text):
    """Return a command that does this in every role; $1 is 'worker 0', 'scheduler 0', and so on."""
    name = 'set -- "$DMLC_ROLE ${DMLC_WORKER_ID:-0}"; '
    return ["--", "sh", "-c", name + textwrap.dedent(text)]


def pids(folder):
    """Return the processes that wrote their numbers to the folder."""
    return [int(path.name) for path in folder.iterdir() if path.name.isdigit()]


def alive(pid):
    try:
        # a zombie, whose parent has not looked yet, has ended
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


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


def test_lines_carry_the_name_of_who_printed_them(here, capsys):
    options = shell('for i in 1 2 3; do echo "$1 line $i"; done; echo "$1 wrong" >&2')
    assert launch(["-n", "2", "-s", "1", *options]) == 0
    out, err = capsys.readouterr()
    labels = ["[worker 0] worker 0", "[worker 1] worker 1", "[server 0] server 0"]
    labels += ["[scheduler] scheduler 0"]
    expected = sorted(f"{label} line {i}" for label in labels for i in (1, 2, 3))
    assert sorted(out.splitlines()) == expected
    assert sorted(err.splitlines()) == sorted(f"{label} wrong" for label in labels)


def test_a_worker_has_its_share_of_the_cores_the_folder_and_nothing_to_read(
    here, capsys, monkeypatch
):
    options = shell('[ "$DMLC_ROLE" != worker ] || { echo $OMP_NUM_THREADS; pwd; cat; }')
    assert launch(["-n", "2", "-s", "1", *options]) == 0
    share = max(1, len(os.sched_getaffinity(0)) // 2)
    lines = [f"[worker {n}] {line}" for n in (0, 1) for line in (here, share)]
    assert sorted(capsys.readouterr().out.splitlines()) == lines
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert launch(["-n", "1", "-s", "1", *options]) == 0
    assert capsys.readouterr().out == f"[worker 0] 7\n[worker 0] {here}\n"


def test_a_terminals_signals_reach_the_launcher_alone(here, capsys):
    options = shell('[ "$1" != "worker 0" ] || cut -d" " -f6 /proc/$PPID/stat')
    assert launch(["-n", "1", "-s", "1", *options]) == 0
    session_of_the_supervisor = int(capsys.readouterr().out.split()[-1])
    assert session_of_the_supervisor != os.getsid(0)


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


@pytest.mark.parametrize("what", [f'echo "{FINISHED}"', "exit 0"])
def test_a_run_that_waits_says_for_whom(here, capsys, what, monkeypatch):
    monkeypatch.setattr(launcher, "PATIENCE", 0.5)
    command = shell(f'[ "$1" != "worker 1" ] || {what}; sleep 2')
    assert launch(["-n", "2", "-s", "1", *command]) == 0
    sentence = "gluon-amp launch: worker 1 finished 0.5 s ago; the run waits for worker 0.\n"
    assert capsys.readouterr().err == sentence


def test_what_a_worker_started_ends_with_it(here):
    """Data loading processes would otherwise wait for ever."""
    assert launch(["-n", "1", "-s", "1", *shell("sleep 60 & touch $!")]) == 0
    assert len(pids(here)) == 3
    wait_until(lambda: not any(map(alive, pids(here))), 5)


def test_workers_ignore_no_signal_that_the_launcher_ignores(here):
    """Background jobs of a shell ignore SIGINT, and nohup SIGHUP; their shells cannot undo it."""
    launching = [*LAUNCH, "-n", "1", "-s", "1"]
    print_ignored = shell('[ "$1" != "worker 0" ] || exec grep SigIgn /proc/self/status')
    numbers = signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM
    done = subprocess.run(
        ["sh", "-c", 'trap "" INT HUP QUIT TERM; exec "$@"', "sh", *launching, *print_ignored],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    mask = int(done.stdout.partition("[worker 0] SigIgn:\t")[2], 16)
    assert [number for number in numbers if mask >> number - 1 & 1] == [], done.stderr


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


@pytest.mark.parametrize("grace", [0.5, 60])
def test_after_the_grace_or_a_second_signal_all_is_ended(here, grace):
    command = shell('trap "touch $1; " TERM; touch $$; while :; do sleep 0.1; done')
    send_later(signal.SIGTERM, lambda: len(pids(here)) == 3)
    if grace == 60:
        send_later(signal.SIGTERM, lambda: (here / "worker").exists())
    assert launch(["-n", "1", "-s", "1", "--grace", str(grace), *command]) == 143
    assert not any(map(alive, pids(here)))


def test_nothing_outlives_a_killed_launcher(here):
    command = [*LAUNCH, "-n", "2", "-s", "1", *shell(WAITING.format(""))]
    process = subprocess.Popen(command, env=environment())
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
    command = [*LAUNCH, "-n", "1", "-s", "1", *shell("touch $$; yes")]
    process = subprocess.Popen(
        command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(timeout=20) != 0
    assert b"Traceback" not in process.stderr.read()
    process.stderr.close()
    assert not any(map(alive, pids(here)))


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
