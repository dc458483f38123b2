"""`gluon-amp results`: which runs it trains, how it ends and resumes, and what it refuses."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading

import pytest

from gluon_amp.base.messages import UsageError
from gluon_amp.training.console import results as command
from gluon_amp.training.runs.interruption import RunInterruptedError
from gluon_amp.training.tables.designs import DESIGNS
from gluon_amp.training.tables.record import LOG, RUN, read
from gluon_amp.training.tables.runs import Runner, alone_in, interruptible, jobs
from tests.training.runs.scripts import environment, wait_until
from tests.training.tables.example_runs import write_run

pytestmark = pytest.mark.usefixtures("default_signals")

# A program that trains nothing, and writes what a run writes.
FINISHES = r"""
import json, os, sys
assert os.getsid(0) == os.getpid()  # so Ctrl-C on the table's terminal does not reach it
print("a line of the log")
summary = dict(data="digits", model="net", emulated=False, epochs=1, devices="cpu(0)", steps=3)
summary.update(images_per_second=9.0, skipped_steps=0, cross_entropy_by_epoch=[1.0])
summary.update(top1_by_epoch=[75.0], train_seconds=2.0)
path = sys.argv[sys.argv.index("--summary-json") + 1]
json.dump(summary, open(path, "w"))
"""


def job_of(folder, script):
    """Return a run of the digits with another program."""
    job = jobs(DESIGNS["digits"], folder, [0], devices=1)[0]
    path = folder / "script.py"
    path.write_text(script)
    return dataclasses.replace(job, program=(str(path),))


def train(folder, *wanted, parallel=1):
    """Train runs; return what was logged."""
    lines = []
    with alone_in(folder) as lock:
        Runner(parallel, lock, lines.append).train(wanted)
    return lines


def test_a_finished_run_is_not_repeated(tmp_path):
    job = job_of(tmp_path, FINISHES)
    other = dataclasses.replace(job, seed=1, folder=tmp_path / "other")
    (line,) = train(tmp_path, job, parallel=2)
    assert line == "[1/1] float32, batch 64, seed 0: 75.00 %, about 0 min left"
    record, before = read(job.folder), (job.folder / RUN).stat()
    assert (record.top1, record.seconds, record.parallel) == (75.0, 2.0, 2)
    assert record.peak_memory > 2**20 and record.data == "digits"
    arguments = tuple(text.replace(str(job.folder), str(other.folder)) for text in job.arguments)
    other = dataclasses.replace(other, arguments=arguments)
    lines = train(tmp_path, job, other)
    assert lines[0] == "1 of 2 runs are finished already" and len(lines) == 2
    assert (job.folder / RUN).stat() == before


@pytest.mark.parametrize(
    "ends, name",
    [
        ("import os; os.kill(os.getpid(), 9)", "SIGKILL"),
        ("import sys; sys.exit(130)", "SIGINT"),
        ("import sys; sys.exit(143)", "SIGTERM"),
    ],
)
def test_an_interrupted_run_has_not_failed_and_shared_the_machine_if_a_part_has(
    ends, name, tmp_path
):
    job = job_of(tmp_path, ends)
    with pytest.raises(RuntimeError, match=f"killed by signal {name}: run the same command"):
        train(tmp_path, job, parallel=2)
    assert not job.finished and not (job.folder / RUN).exists()
    job_of(tmp_path, FINISHES)
    train(tmp_path, job)
    assert read(job.folder).parallel == 2 and job.finished


def test_a_failed_run_is_reported_and_repeated(tmp_path):
    job = job_of(tmp_path, "import sys; print('a.ckpt was not written.', file=sys.stderr); exit(1)")
    for _ in range(2):
        (line,) = train(tmp_path, job)
        assert "seed 0: a.ckpt was not written., about" in line
    assert read(job.folder).failure == "a.ckpt was not written." and not job.finished


def test_a_run_does_not_resume_with_other_options(tmp_path):
    job = job_of(tmp_path, FINISHES)
    train(tmp_path, job)
    other = dataclasses.replace(job, arguments=(*job.arguments, "--lr", "1"))
    with pytest.raises(UsageError, match="was trained with other options"):
        train(tmp_path, other)


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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_terminates_the_runs_once(tmp_path, number):
    job = job_of(tmp_path, PRINTS_ITS_SIGNALS)
    log = job.folder / LOG

    def when_ready():
        wait_until(lambda: log.exists() and "ready" in log.read_text())
        os.kill(os.getpid(), number)

    before = [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]
    sender = threading.Thread(target=when_ready)
    raised = pytest.raises(RunInterruptedError, match="interrupted by .*: run the same command")
    with raised as caught, interruptible():
        sender.start()
        train(tmp_path, job)
    sender.join()
    assert caught.value.status == 128 + number
    assert log.read_text() == "ready\n[15]\n"
    assert not (job.folder / RUN).exists()
    after = [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]
    assert after == before


def test_the_second_signal_kills():
    with interruptible():
        with pytest.raises(RunInterruptedError):
            signal.raise_signal(signal.SIGTERM)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL


def test_what_is_ignored_stays_ignored():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    with interruptible():
        os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


LOCKS = """
import sys
from pathlib import Path
from gluon_amp.training.tables.runs import Job, Runner, alone_in
folder = Path(sys.argv[1])
job = Job(None, 0, folder / "run", ("-c", sys.argv[2]), ())
with alone_in(folder) as lock:
    Runner(1, lock).train([job])
"""
WAITS = """
import os, time
print("ready", flush=True)
while not os.path.exists({!r}): time.sleep(0.02)
"""


def test_a_run_that_outlives_a_killed_table_keeps_others_from_its_folder(tmp_path):
    end, log = tmp_path / "end", tmp_path / "run" / LOG
    process = subprocess.Popen(
        [sys.executable, "-c", LOCKS, str(tmp_path), WAITS.format(str(end))], env=environment()
    )
    wait_until(lambda: log.exists() and log.read_text())
    process.kill()
    process.wait()
    refused = pytest.raises(UsageError, match="another process is training in .*: wait for it")
    with refused, alone_in(tmp_path):
        pass
    end.touch()

    def free():
        try:
            with alone_in(tmp_path):
                return True
        except UsageError:
            return False

    wait_until(free)


def test_the_files_are_made_again_from_the_json(tmp_path, capsys):
    write_run(tmp_path / "a", "float32-1024", 76.18, 11.8, epochs=3)
    write_run(tmp_path / "b", "float16-1024", 76.34, 7.3, epochs=3)
    logs = ["--recipe", "imagenet", "--from-logs", str(tmp_path)]
    assert command.main(logs) == 0
    names = ("results.md", "results.json", "results.csv")
    before = {name: (tmp_path / name).read_text() for name in names}
    assert f"Command: `gluon-amp results {' '.join(logs)}`." in before["results.md"]
    alone = tmp_path / "alone"  # without the runs' own files
    alone.mkdir()
    (alone / "results.json").write_text(before["results.json"])
    assert command.main(["--from-json", str(alone / "results.json")]) == 0
    assert {name: (alone / name).read_text() for name in names} == before
    assert (alone / "results.png").stat().st_size > 0
    (tmp_path / "results.md").unlink()
    (tmp_path / "results.md").symlink_to("/dev/full")
    assert command.main(logs) == 2
    assert capsys.readouterr().err == "gluon-amp results: No space left on device.\n"


@pytest.mark.parametrize(
    "line, sentence",
    [
        ("--from-json {}/list.json", "is damaged: it is not a JSON object"),
        ("--from-json {}/rows.json", "is not a results.json with the values of each run"),
        ("--from-logs {}", "holds no finished run"),
        ("--seeds 1 --output {}/list.json/table", "list.json/table: Not a directory."),
        ("--recipe imagenet --margin 1e-9", "more than 1000 seeds"),
    ],
)
def test_bad_input_is_one_sentence(line, sentence, tmp_path, capsys):
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "rows.json").write_text('{"runs": [], "rows": 3}')
    assert command.main(line.format(tmp_path).split()) == 2
    error = capsys.readouterr().err
    assert sentence in error and error.count("\n") == 1


def test_an_option_that_a_run_refuses_ends_the_table(tmp_path, capsys, monkeypatch):
    refuses = "import sys; print('expected a number.', file=sys.stderr); sys.exit(2)"
    job, asked = job_of(tmp_path, refuses), []
    monkeypatch.setattr(command, "jobs", lambda *about: asked.append(about[-1]) or [job])
    arguments = ["--seeds", "1", "--output", str(tmp_path / "t"), "--", "--epochs", "0"]
    assert (command.main(arguments), asked) == (2, [("--epochs", "0")])
    sentence = "expected a number; options for the runs go after --.\n"
    assert capsys.readouterr().err == f"gluon-amp results: {sentence}"


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, short",
    [
        ("digits", "--num-epochs 1 --warmup-epochs 0 --max-batches 1"),
        ("lstm", "--characters 4000 --max-batches 2 --num-epochs 1 --hidden 8 --embedding 4"),
    ],
)
def test_a_table_from_nothing_and_again(name, short, tmp_path, capsys):
    output = tmp_path / "table"
    arguments = ["--recipe", name, "--seeds", "2", "--output", str(output), "--margin", "60"]
    arguments += ["--", *short.split()]
    assert command.main(arguments) == 0
    for file in ("results.md", "results.json", "results.csv", "results.png"):
        assert (output / file).stat().st_size > 0
    rows = json.loads((output / "results.json").read_text())["rows"]
    names = [configuration.name for configuration, _ in DESIGNS[name].rows]
    assert [row["configuration"]["name"] for row in rows] == names
    assert DESIGNS[name].note in (output / "results.md").read_text()
    first = output / names[0] / "seed-0"
    (first / RUN).unlink()  # as if it had been killed at its end
    capsys.readouterr()
    assert command.main(arguments) == 0
    total = 2 * len(names)
    assert f"{total - 1} of {total} runs are finished already" in capsys.readouterr().out
    assert "Resuming from" in (first / LOG).read_text()
