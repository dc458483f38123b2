"""python -m experiments.floor_of_chance: from nothing, killed, and again."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from experiments.floor_of_chance import __main__ as command
from experiments.floor_of_chance import rows
from gluon_amp.training.tables.record import LOG, RUN
from tests import ROOT

pytestmark = pytest.mark.usefixtures("default_signals")

RUNS = ("--num-epochs", "2", "--max-batches", "2", "--warmup-epochs", "0")
# The program without the dtypes: a floor takes the same path in half of the time.
PROGRAM = """
import sys
from experiments.floor_of_chance import __main__ as command, rows
rows.COMPARED = command.COMPARED = rows.COMPARED[:1]
sys.exit(command.main())
"""


class Program:
    """The program with its output in a folder."""

    def __init__(self, folder):
        self.folder = folder
        self.arguments = ["--seeds", "1", "--first-seed", "5", "--output", str(folder)]
        self.command = [sys.executable, "-c", PROGRAM, *self.arguments, "--", *RUNS]

    def start(self):
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(
            self.command,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def finish(self):
        process = self.start()
        output, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
        return output

    @property
    def results(self):
        return json.loads((self.folder / "digits.json").read_text())


OF_THE_CLOCK = {"seconds", "date"}


def repeated(value):
    """Return results without what depends on the clock."""
    if isinstance(value, dict):
        return {name: repeated(each) for name, each in value.items() if name not in OF_THE_CLOCK}
    return value


@pytest.mark.slow
def test_killed_and_again_it_ends_with_the_same_numbers(tmp_path):
    program = Program(tmp_path)
    assert "[3/3] float32, disturbed by 1 ulp, seed 5" in program.finish()
    before = program.results
    assert before["identical"] is True
    floor = before["rows"]["floor"]["seeds"]["5"]
    assert len(floor["weights"]) == len(floor["disagreement"]) == 3
    assert 0 < floor["weights"][0] < 2**-23 < floor["weights"][1]
    assert (tmp_path / "digits.png").stat().st_size > 0

    folder = tmp_path / "digits" / "floor" / "seed-5"
    shutil.rmtree(folder)
    process, log = program.start(), folder / LOG
    deadline = time.monotonic() + 120
    while not (log.exists() and "No checkpoint" in log.read_text()):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert "run the same command again to resume" in errors
    assert not (folder / RUN).exists()

    output = program.finish()
    assert "2 of 3 runs are finished already" in output
    assert (tmp_path / "digits.md").read_text() in output
    assert repeated(program.results) == repeated(before)


def test_an_option_that_the_script_refuses_is_one_sentence(tmp_path, capsys):
    arguments = ["--seeds", "1", "--output", str(tmp_path), "--", "--num-epochs", "0"]
    assert command.main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("floor_of_chance: ") and error.count("\n") == 1
    assert "expected a whole number from 1 to 1000000" in error


def test_a_run_that_failed_is_named(tmp_path):
    job = rows.jobs("digits", tmp_path, [0], 64)[0][0]
    job.folder.mkdir(parents=True)
    about = {
        "configuration": {"name": "float32", "label": "float32", "dtype": "float32", "batch": 64},
        "seed": 0,
        "hardware": "Xeon",
        "failure": "the loss became nan",
    }
    (job.folder / RUN).write_text(json.dumps(about))
    with pytest.raises(command.UsageError, match="has no result: the loss became nan"):
        command.collect({0: [job]}, 1)


@pytest.mark.parametrize("words", [["--dataset", "letters"], ["--seeds", "0"]])
def test_unknown_data_and_no_seeds_are_refused(words, capsys):
    with pytest.raises(SystemExit) as stop:
        command.main(words)
    assert stop.value.code == 2
    assert words[0] in capsys.readouterr().err
