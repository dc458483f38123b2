"""results_table.py: which runs it trains, how it resumes, and which options it refuses."""

import dataclasses
import json

import pytest

from gluon_amp.base.messages import UsageError
from gluon_amp.training.console import results as command
from gluon_amp.training.tables.recipes import EXPERIMENTS
from gluon_amp.training.tables.record import RUN
from gluon_amp.training.tables.runs import Runner, alone_in, jobs
from tests.training.tables.example_runs import write_run

SHORT = ("--num-epochs", "1", "--warmup-epochs", "0", "--max-batches", "1")


def test_two_at_once_in_a_folder_are_refused(tmp_path):
    refused = pytest.raises(UsageError, match="another process is training in")
    with alone_in(tmp_path), refused, alone_in(tmp_path):
        pass


@pytest.mark.slow
def test_a_table_from_nothing_and_again(tmp_path, capsys):
    output = tmp_path / "table"
    arguments = ["--seeds", "2", "--output", str(output), "--margin", "60", "--", *SHORT]
    assert command.main(arguments) == 0
    assert "[10/10] float16, batch 128, seed 1" in capsys.readouterr().out
    for name in ("results.md", "results.json", "results.csv", "results.png"):
        assert (output / name).stat().st_size > 0
    rows = json.loads((output / "results.json").read_text())["rows"]
    assert [row["configuration"]["name"] for row in rows] == [
        "float32-64",
        "float16-64",
        "bfloat16-64",
        "float32-128",
        "float16-128",
    ]
    assert "emulated" in (output / "results.md").read_text()

    before = {path: path.stat().st_mtime_ns for path in output.rglob(RUN)}
    assert command.main(arguments) == 0
    assert "10 of 10 runs are finished already" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in output.rglob(RUN)} == before

    assert command.main([*arguments, "--lr", "1"]) == 2
    assert "was trained with other options" in capsys.readouterr().err

    first = output / "float32-64" / "seed-0"
    (first / RUN).unlink()  # as if it had been killed at its end
    assert command.main(arguments) == 0
    assert "Going on from" in (first / "log.txt").read_text()

    assert command.main(["--from-logs", str(output), "--margin", "60"]) == 0
    assert "| float32, batch 64" in capsys.readouterr().out


def test_a_refused_option_ends_the_table(tmp_path, capsys):
    arguments = ["--seeds", "1", "--output", str(tmp_path / "t"), "--", "--epochs", "0"]
    assert command.main(arguments) == 2
    assert "expected a whole number from 1 to 1000000" in capsys.readouterr().err


def test_a_killed_run_is_an_error(tmp_path):
    job = jobs(EXPERIMENTS["digits"], tmp_path, [0], devices=1)[0]
    killed = tmp_path / "killed.py"
    killed.write_text("import os; os.kill(os.getpid(), 9)")
    job = dataclasses.replace(job, program=(str(killed),), arguments=())
    expected = pytest.raises(RuntimeError, match="killed by signal SIGKILL: run the same command")
    with alone_in(tmp_path) as lock, expected:
        Runner(1, lock).train([job])
    assert not job.finished


def test_the_published_table(capsys):
    assert command.main(["--published"]) == 0
    printed = capsys.readouterr().out
    for cell in ("76.18 %", "11.8 h", "76.34 %", "7.3 h", "1.62x", "76.29 %", "6.5 h", "1.82x"):
        assert cell in printed
    title, _, heading, *_ = printed.splitlines()
    assert title == "# ResNet-50 on ImageNet, published"
    assert heading.startswith("resnet50_v1 on imagenet. *Published* on 8 NVIDIA V100 (")


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


@pytest.mark.parametrize("text", ["{", "[]", '{"rows": []}', '{"runs": [], "rows": 3}'])
def test_a_json_that_is_no_table_is_one_sentence(text, tmp_path, capsys):
    (tmp_path / "results.json").write_text(text)
    assert command.main(["--from-json", str(tmp_path / "results.json")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_an_empty_folder_is_refused(tmp_path, capsys):
    assert command.main(["--from-logs", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
