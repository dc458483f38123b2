"""results_table.py killed, interrupted, or out of space: nothing is lost, repeated or mixed."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import gluon_amp  # noqa: F401
from gluon_amp.base.messages import UsageError
from gluon_amp.training.console import results as command
from gluon_amp.training.runs.interruption import RunInterruptedError
from gluon_amp.training.tables.recipes import EXPERIMENTS
from gluon_amp.training.tables.record import LOG, RUN, SUMMARY, read
from gluon_amp.training.tables.runs import Runner, alone_in, interruptible, jobs
from tests import ROOT
from tests.training.tables.example_runs import write_run

pytestmark = pytest.mark.usefixtures("default_signals")

EPOCHS = 6
SMALL = ("--num-epochs", str(EPOCHS), "--warmup-epochs", "0", "--max-batches", "2")
# The table without its last two rows: as many cases in half of the time.
TABLE = f"""
import dataclasses, runpy, sys
from gluon_amp.training.tables.recipes import EXPERIMENTS
digits = EXPERIMENTS["digits"]
EXPERIMENTS["digits"] = dataclasses.replace(digits, rows=digits.rows[:2])
sys.argv[0] = {str(ROOT / "scripts" / "results_table.py")!r}
runpy.run_path(sys.argv[0], run_name="__main__")
"""
FIRST, SECOND = (f"{dtype}-64/seed-0" for dtype in ("float32", "float16"))
THIRD, FOURTH = (f"{dtype}-64/seed-1" for dtype in ("float32", "float16"))


class Started:
    """A process that makes the table `folder/table`."""

    def __init__(self, folder, *options):
        folder.mkdir(exist_ok=True)
        self.table = folder / "table"
        arguments = ["--recipe", "digits", "--seeds", "2", "--output", "table", *options]
        self.process = subprocess.Popen(
            [sys.executable, "-c", TABLE, *arguments, "--", *SMALL],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def send(self, number):
        self.process.send_signal(number)
        return self

    def end(self):
        """Return the status, and what was printed on standard output and on standard error."""
        out, err = self.process.communicate(timeout=300)
        return self.process.returncode, out, err

    def when(self, run, epoch):
        """Wait until a run has saved its network after an epoch."""
        wait_for(lambda: saved(self.table / run, epoch) or self.process.poll() is not None)
        assert self.process.poll() is None, self.end()
        return self


def saved(folder, epoch):
    return f"epoch{epoch + 1:03}-sample00000000.ckpt" in text(folder)


def text(folder):
    return (folder / LOG).read_text() if (folder / LOG).exists() else ""


def wait_for(condition):
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def free(table):
    try:
        with alone_in(table):
            return True
    except UsageError:
        return False


def state(table):
    """Return values of the finished runs that change when a file is written again."""
    stats = {path: path.stat() for path in table.rglob(RUN)}
    return {path: (stat.st_mtime_ns, stat.st_ino) for path, stat in stats.items()}


def values(table):
    """Return a table without times and memory, and the results of each run."""
    whole = json.loads((table / "results.json").read_text())
    for row in whole["rows"]:
        for name in ("seconds", "samples_per_second", "peak_memory", "parallel", "speed_up"):
            del row[name]
    for run in whole["runs"]:
        for name in ("seconds", "samples_per_second", "peak_memory", "parallel", "date"):
            del run[name]
    del whole["command"]  # which has the name of the directory
    names = (
        "top1",
        "cross_entropy_by_epoch",
        "top1_by_epoch",
        "skipped_steps",
        "steps",
        "train_loss",
        "loss_scale",
    )
    runs = {}
    for path in table.rglob(SUMMARY):
        summary = json.loads(path.read_text())
        runs[path.parent.relative_to(table)] = [summary[name] for name in names]
    return whole, runs


def epochs(folder):
    """Return the epochs in a run's log, in order."""
    lines = text(folder).splitlines()
    return [int(line[7]) for line in lines if line.startswith("[Epoch ") and "] training:" in line]


def children(parent):
    """Return the process ids of a process's children."""
    lists = Path(f"/proc/{parent}/task").glob("*/children")
    return [int(number) for path in lists for number in path.read_text().split()]


# ---------------------------------------------------------------------------------- a whole table


@pytest.mark.slow
def test_a_table_that_is_killed_again_and_again_is_the_same(tmp_path):
    folder, table, reference = tmp_path, tmp_path / "table", tmp_path / "uninterrupted"

    # kill -9 of everything, with two runs at a time
    started = Started(folder, "--parallel", "2").when(FIRST, 0).when(SECOND, 0)
    runs = children(started.process.pid)
    assert len(runs) == 2
    for number in [started.process.pid, *runs]:
        os.kill(number, signal.SIGKILL)
    assert started.end()[0] == -signal.SIGKILL
    wait_for(lambda: free(table))
    assert state(table) == {}

    # kill -9 of the table alone: its run continues, and no other process may write there
    started = Started(folder).when(THIRD, 0)
    finished = state(table)
    started.send(signal.SIGKILL).end()
    status, out, err = Started(folder).end()
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "another process is training in table: wait for it" in err
    wait_for(lambda: free(table))
    assert state(table) == finished
    assert {path.parent for path in finished} == {table / FIRST, table / SECOND}
    for run in (FIRST, SECOND):
        assert "Going on from" in text(table / run)
        assert epochs(table / run).count(0) == 1  # it resumed and did not start again
        assert sorted(set(epochs(table / run))) == list(range(EPOCHS))
    assert epochs(table / THIRD) == list(range(EPOCHS))

    # Ctrl-C: the run saves and exits, then the table does
    started = Started(folder).when(FOURTH, 0)
    os.killpg(started.process.pid, signal.SIGINT)
    status, out, err = started.end()
    assert (status, err.count("\n")) == (130, 1)
    assert "interrupted by signal 2: run the same command again to resume." in err
    assert "2 of 4 runs are finished already" in out
    assert free(table)
    assert state(table).items() >= finished.items()
    assert epochs(table / THIRD) == list(range(EPOCHS))  # nothing remained to train
    finished = state(table)
    assert len(finished) == 3

    status, out, err = Started(folder).end()
    assert (status, err) == (0, "")
    assert state(table).items() >= finished.items()
    assert "Going on from" in text(table / FOURTH)
    assert epochs(table / FOURTH) == list(range(EPOCHS))

    # some of it was trained while the machine was shared
    rows = json.loads((table / "results.json").read_text())["rows"]
    assert [row["parallel"] for row in rows] == [2, 2]

    assert Started(reference, "--parallel", "2").end()[0] == 0
    assert values(table) == values(reference / "table")


# ----------------------------------------------------------------------- a run, signal by signal


def job_of(folder, script):
    """Return a run of the digits with another program."""
    job = jobs(EXPERIMENTS["digits"], folder, [0], devices=1)[0]
    path = folder / "script.py"
    path.write_text(script)
    return dataclasses.replace(job, program=(str(path),))


PRINTS_ITS_SIGNALS = """
import signal, sys, time
received = []
signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
print("ready", flush=True)
while not received: time.sleep(0.01)
time.sleep(0.2)
print(received, flush=True)
sys.exit(143)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_terminates_the_runs_once(tmp_path, number):
    job = job_of(tmp_path, PRINTS_ITS_SIGNALS)

    def when_ready():
        wait_for(lambda: "ready" in text(job.folder))
        os.kill(os.getpid(), number)

    before = [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]
    sender = threading.Thread(target=when_ready)
    raised = pytest.raises(RunInterruptedError, match=f"signal {int(number)}: run the same command")
    with raised as caught, alone_in(tmp_path) as lock, interruptible():
        sender.start()
        Runner(1, lock).train([job])
    sender.join()
    assert caught.value.status == 128 + number
    assert text(job.folder) == "ready\n[15]\n"
    assert not job.finished
    assert not (job.folder / RUN).exists()
    after = [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]
    assert after == before


def test_what_is_ignored_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with interruptible():
            os.kill(os.getpid(), signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("status", [130, 143])
def test_an_interrupted_run_has_not_failed(tmp_path, status):
    job = job_of(tmp_path, f"import sys; sys.exit({status})")
    message = "killed by signal SIG(INT|TERM): run the same command"
    with alone_in(tmp_path) as lock, pytest.raises(RuntimeError, match=message):
        Runner(1, lock).train([job])
    assert not (job.folder / RUN).exists()


def test_a_failed_run_is_reported_and_repeated(tmp_path):
    job = job_of(tmp_path, "import sys; print('a.ckpt was not written.', file=sys.stderr); exit(1)")
    lines = []
    with alone_in(tmp_path) as lock:
        for _ in range(2):
            Runner(1, lock, lines.append).train([job])
    assert [line.split(",")[2] for line in lines] == [" seed 0: a.ckpt was not written."] * 2
    assert read(job.folder).failure == "a.ckpt was not written."
    assert not job.finished


def test_a_run_does_not_resume_with_other_options(tmp_path):
    job = job_of(tmp_path, "import os; os.kill(os.getpid(), 9)")
    other = dataclasses.replace(job, arguments=(*job.arguments, "--lr", "1"))
    with alone_in(tmp_path) as lock:
        with pytest.raises(RuntimeError, match="killed by signal SIGKILL"):
            Runner(1, lock).train([job])
        with pytest.raises(UsageError, match="was trained with other options"):
            Runner(1, lock).train([other])


# ------------------------------------------------------------------------- no space, no access


def test_a_full_disk_is_one_sentence(tmp_path, capsys):
    write_run(tmp_path / "a", "float32-1024", 76.18, 11.8, epochs=2)
    (tmp_path / "results.md").symlink_to("/dev/full")
    assert command.main(["--recipe", "imagenet", "--from-logs", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"gluon-amp results: {tmp_path}: No space left on device.\n"


def test_an_output_that_cannot_be_created_is_one_sentence(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert command.main(["--seeds", "1", "--output", str(tmp_path / "file" / "table")]) == 2
    message = f"gluon-amp results: {tmp_path / 'file' / 'table'}: Not a directory.\n"
    assert capsys.readouterr() == ("", message)
