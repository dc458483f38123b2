"""The clients' programs and edits, and the runner on programs without MXNet."""

import json
import math
import re
import sys
from dataclasses import replace

import pytest

from experiments import environments
from experiments.clients import __main__ as command
from experiments.clients import cases, run
from experiments.clients.cases import Case, Edit, Family
from experiments.clients.families import FAMILIES
from experiments.clients.run import Job, Records
from experiments.clients.table import compare
from gluon_amp.base.messages import UsageError
from tests import ROOT


def test_the_committed_results_are_those_of_these_programs_and_edits():
    for family in FAMILIES:
        for case in family.cases:
            text = family.source(case).read_text()
            assert 1 <= case.lines <= 4 and "gluon_amp" not in text and "seed_all()" in text
    records = Records(ROOT / "docs" / "results" / "clients.json")
    jobs = [job for case in command.choose([], FAMILIES) for job in command.plan(*case)]
    assert len(jobs) == 300 and all(map(records.find, jobs))
    with pytest.raises(UsageError, match="absent' once, found it 0"):
        cases.apply([Edit("absent", "b = 1")], "a = 1\n", "float16")


def record(policy, seed, loss, seconds=0.5, **others):
    about = {"case": "f/c", "policy": policy, "seed": seed, "steps": 6, "machine": "M"}
    losses = [9.0, loss, loss, loss, loss, loss]
    return {**about, "date": "today", "losses": losses, "step_seconds": seconds, **others}


FLOAT32 = [record("float32", seed, loss) for seed, loss in enumerate((1.0, 1.5, 1.25))]


@pytest.mark.parametrize(
    "losses, difference, within",
    [
        ([1.5], 0.5, True),
        ([1.5, 0.75, 1.25], -0.75, False),  # each seed with the same seed of float32
        ([1.0, math.nan], math.nan, False),
    ],
)
def test_a_loss_is_within_the_spread_of_three_seeds(losses, difference, within):
    runs = [record("float16", seed, loss, 0.25) for seed, loss in enumerate(losses)]
    found = compare(runs, FLOAT32)
    assert found.difference == pytest.approx(difference, nan_ok=True) and found.within is within
    assert (found.spread, found.seconds, found.ratio) == (0.5, 0.25, 2)


PROGRAM = """
import json, os
loss = 1 + int(os.environ["SEED"])
losses = [loss] * int(os.environ["STEPS"])
print(json.dumps({"losses": losses, "step_seconds": 0.5, "extra": {}}))
"""


@pytest.fixture
def family(tmp_path, monkeypatch):
    """A family with one case whose program needs no packages."""
    monkeypatch.setattr(cases, "PROGRAMS", tmp_path)
    monkeypatch.setattr(cases, "REQUIREMENTS", tmp_path)
    monkeypatch.setattr(environments, "of_client", lambda family: sys.executable)
    (tmp_path / "f.txt").write_text("mxnet==1.9.1\n")
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / "c.py").write_text(PROGRAM)
    edits = [Edit('loss = 1 + int(os.environ["SEED"])', "loss = 3")]
    result = Family("f", [Case("c", "c.py", edits, steps=6)])
    monkeypatch.setattr(command, "FAMILIES", [result])
    return result


def test_a_table_that_was_killed_continues_and_a_changed_program_runs_again(
    family, tmp_path, monkeypatch, capsys
):
    jobs = []
    monkeypatch.setattr(command, "run", lambda job, *rest: jobs.append(job) or run.run(job, *rest))
    arguments = ["--output", str(tmp_path / "clients.json")]
    assert command.main(arguments) == 0 and len(jobs) == 12
    assert re.search(r"\| f/c \| 1 \| 1 to 3 \| \+2, \S+× \| ", capsys.readouterr().out)
    runs = json.loads((tmp_path / "clients.json").read_text())["runs"]
    (tmp_path / "clients.json").write_text(json.dumps({"runs": runs[1:]}))
    assert command.main(arguments) == 0 and len(jobs) == 13
    (tmp_path / "f" / "c.py").write_text(f"{PROGRAM}  # changed")
    assert command.main([*arguments, "f/c"]) == 0 and len(jobs) == 25
    with pytest.raises(UsageError, match=r"no client 'g': expected a family or one of f/c\."):
        command.main(["g"])


@pytest.mark.parametrize(
    "program, error",
    [
        ("raise ValueError('a bad\\nmessage')", "ValueError: a bad"),
        ('print(\'{"losses": [1], "step_seconds": 1}\')', "has 1 losses, expected 6"),
        ("import subprocess; subprocess.run(['sleep', '99'])", "took more than 0.5 s"),
    ],
)
def test_a_failed_run_is_its_error_in_one_line(program, error, family, tmp_path):
    (tmp_path / "f" / "c.py").write_text(program)
    job = Job(family, family.cases[0], "float32", 0)
    assert run.run(job, sys.executable, 0.5 if "took" in error else 60)["error"] == error


def test_edits_of_an_installed_file_are_made_in_a_copy_of_its_package(
    family, tmp_path, monkeypatch
):
    (tmp_path / "installed" / "client").mkdir(parents=True)
    (tmp_path / "installed" / "client" / "training.py").write_text("if True:\n    LOSS = 1\n")
    monkeypatch.setattr(run, "site_packages", lambda python: tmp_path / "installed")
    found = f"import sys\nsys.path.append('{tmp_path}/installed')\nfrom client.training import LOSS"
    program = PROGRAM.replace("loss = 1 + ", f"{found}\nloss = LOSS + 0 * ")
    (tmp_path / "f" / "c.py").write_text(program)
    case = Case("c", "c.py", [], 6, files={"client/training.py": [Edit("LOSS = 1", "LOSS = 2")]})
    jobs = [Job(family, case, policy, 0) for policy in ("float32", "float16")]
    assert [run.run(job, sys.executable, 60)["losses"][0] for job in jobs] == [1, 2]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gluoncv/cifar_resnet20", "module/mlp"])
def test_two_steps_of_a_client_in_float16(name):
    ((family, case),) = command.choose([name], FAMILIES)
    result = run.run(Job(family, replace(case, steps=2), "float16", 0), sys.executable, 120)
    assert all(math.isfinite(loss) for loss in result["losses"]), result
