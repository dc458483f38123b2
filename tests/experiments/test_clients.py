"""The clients' programs and edits, and the runner on programs without MXNet."""

import dataclasses
import json
import math
import re
import subprocess
import sys
import textwrap

import pytest
from experiments.clients.comparison import compare, final_loss
from experiments.clients.records import Records

from experiments import environments
from experiments.clients import __main__ as command
from experiments.clients import cases, environment, run
from experiments.clients.cases import Case, Edit, Family
from experiments.clients.families import FAMILIES
from experiments.clients.run import Job
from experiments.clients.table import POLICIES, Row, render
from gluon_amp.base.messages import UsageError

EVERY = [
    pytest.param(family, case, id=f"{family.name}/{case.name}")
    for family in FAMILIES
    for case in family.cases
]

# ---------------------------------------------------------------------------- the families


@pytest.mark.parametrize("family, case", EVERY)
def test_the_edits_of_a_case_apply_to_its_program_and_are_at_most_four_lines(family, case):
    assert 1 <= case.lines <= 4
    text = family.source(case).read_text()
    assert "gluon_amp" not in text and "environ" in text
    for policy in POLICIES:
        edited = cases.apply(case.edits, text, policy)
        compile(edited, case.program, "exec")
        if case.edits:
            assert policy in edited


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_family_pins_the_versions_that_the_table_shows(family):
    assert "mxnet==1.9.1" in family.versions
    assert all(re.fullmatch(r"[\w-]+==[\d.]+(post\d+)?", version) for version in family.versions)
    assert len({case.name for case in family.cases}) == len(family.cases)


# ---------------------------------------------------------------------------- edits

PROGRAM = "import mxnet\nfor x in data:\n    loss.backward()\n    trainer.step(4)\n"


def test_an_edit_replaces_a_line_at_its_indentation():
    edit = Edit("loss.backward()", 'with amp.cast("{policy}"):\n    trainer.backward(loss)')
    assert edit.apply(PROGRAM, "float16") == (
        'import mxnet\nfor x in data:\n    with amp.cast("float16"):\n'
        "        trainer.backward(loss)\n    trainer.step(4)\n"
    )


def test_float32_has_no_edits():
    edits = [Edit("import mxnet", "import gluon_amp as amp")]
    assert cases.apply(edits, PROGRAM, "float32") == PROGRAM
    assert cases.apply(edits, PROGRAM, "bfloat16").startswith("import gluon_amp as amp\nfor")


@pytest.mark.parametrize("line, found", [("absent", 0), ("a = 1", 2)])
def test_a_line_that_does_not_occur_once_is_refused(line, found):
    with pytest.raises(UsageError, match=f"{line}' once, found it {found}"):
        Edit(line, "b = 1").apply("a = 1\nif a:\n    a = 1\n", "float16")


@pytest.mark.parametrize(
    "old, new, lines",
    [
        ("a = 1", "a = 2", 1),
        ("a = 1", "a = 1\nb = 2", 1),
        ("a = 1", "\n    b = 2\n\n    c = 3\n", 2),
        ("a = 1", "", 1),
    ],
    ids=["changed", "inserted", "two", "removed"],
)
def test_changed_added_and_removed_lines_are_counted(old, new, lines):
    assert Edit(old, new).lines == lines
    assert Case("x", "x.py", [], files={"a/b.py": [Edit(old, new)] * 2}).lines == 2 * lines


# ---------------------------------------------------------------------------- verdicts


def record(policy, seed, loss, seconds=0.5, **others):
    losses = [9.0, loss, loss, loss, loss, loss]
    return {
        "case": "f/c",
        "policy": policy,
        "seed": seed,
        "steps": 6,
        "machine": "M",
        "date": f"2026-01-0{seed + 1}",
        "losses": losses,
        "step_seconds": seconds,
        **others,
    }


FLOAT32 = [record("float32", seed, loss) for seed, loss in enumerate((1.0, 1.5, 1.25))]


def test_the_final_loss_is_the_mean_of_the_last_five():
    assert final_loss([100, 1, 2, 3, 4, 5]) == 3


@pytest.mark.parametrize("loss, within", [(1.5, True), (0.5, True), (1.51, False), (0.49, False)])
def test_a_loss_is_within_the_spread_of_three_seeds(loss, within):
    comparison = compare([record("float16", 0, loss, 0.25)], FLOAT32)
    assert comparison.spread == 0.5 and comparison.within is within
    assert (comparison.seconds, comparison.ratio) == (0.25, 2)


def test_each_seed_is_compared_with_the_same_seed_of_float32():
    runs = [record("float16", seed, loss) for seed, loss in enumerate((1.5, 0.75, 1.25))]
    comparison = compare(runs, FLOAT32)
    assert comparison.difference == -0.75 and not comparison.within


@pytest.mark.parametrize("order", [(math.nan, 1.5), (1.0, math.nan)])
def test_a_loss_that_is_not_a_number_is_outside(order):
    runs = [record("float16", seed, loss) for seed, loss in enumerate(order)]
    assert not compare(runs, FLOAT32).within


def test_a_failed_run_has_no_verdict_but_its_error():
    failed = {"policy": "float16", "seed": 0, "error": "ValueError: no"}
    comparison = compare([failed], FLOAT32)
    assert comparison.error == "ValueError: no" and not comparison.within
    assert compare([record("float16", 0, 1)], [failed, *FLOAT32]).error == "ValueError: no"


# ---------------------------------------------------------------------------- the table


def test_the_table_has_a_line_for_each_case(tmp_path, monkeypatch):
    monkeypatch.setattr(cases, "REQUIREMENTS", tmp_path)
    (tmp_path / "f.txt").write_text("mxnet==1.9.1\nnumpy==1.23.5\n\n-c constraints.txt\n")
    case = Case("c", "c.py", [Edit("a", "b")])
    runs = {
        "float32": [{**run, "extra": {"accuracy": 0.9}} for run in FLOAT32],
        "float16": [record("float16", 0, 1.125, 0.25, extra={"accuracy": 0.875})],
        "mixed_float16": [record("mixed_float16", 0, 2)],
        "bfloat16": [{**record("bfloat16", 0, 1), "error": "MXNetError: a|b"}],
    }
    page = render([Row(Family("f", "f.txt", "3.11", [case]), case, runs)])
    for line in (
        "1 of 3 comparisons are within the spread of float32.",
        "Measured on M, one thread a run, from 2026-01-01 to 2026-01-03.",
        "- f: Python 3.11, mxnet==1.9.1, numpy==1.23.5",
        "| f/c | 6 | 1 | 1 to 1.5 | 1.125 (+0.12) | 2 (+1) **outside** | MXNetError: a\\|b |",
        "| f/c | 500 (1.00) | 250 (2.00) | 500 (1.00) |  |",
        "| f/c | accuracy | 0.9 | 0.875 |  |  |",
    ):
        assert line in page.replace("\n", " ") if line.startswith("Measured") else line in page


# ---------------------------------------------------------------------------- runs

COUNTING = """
import json, os
seed, steps = int(os.environ["SEED"]), int(os.environ["STEPS"])
with open("{log}", "a") as log:
    print(os.environ["OMP_NUM_THREADS"], file=log)
loss = 1 + seed
print("an epoch")
print(json.dumps({{"losses": [loss] * steps, "step_seconds": 0.5}}))
"""


@pytest.fixture
def family(tmp_path, monkeypatch):
    """A family with one case whose program needs no packages and logs each of its runs."""
    monkeypatch.setattr(cases, "PROGRAMS", tmp_path)
    monkeypatch.setattr(cases, "REQUIREMENTS", tmp_path)
    monkeypatch.setattr(command, "prepare", lambda family: sys.executable)
    (tmp_path / "f.txt").write_text("mxnet==1.9.1\n")
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / "c.py").write_text(COUNTING.format(log=tmp_path / "log"))
    edits = [Edit("loss = 1 + seed", "loss = 3")]
    result = Family("f", "f.txt", "3.11", [Case("c", "c.py", edits, steps=6)])
    monkeypatch.setattr(command, "FAMILIES", [result])
    return result


def runs_logged(tmp_path):
    log = tmp_path / "log"
    return log.read_text().split() if log.exists() else []


def test_a_table_that_was_killed_continues_and_a_changed_program_runs_again(
    family, tmp_path, capsys
):
    output = tmp_path / "clients.md"
    arguments = ["--output", str(output)]
    assert command.main(arguments) == 0
    assert runs_logged(tmp_path) == ["1"] * 6
    assert "| f/c | 6 | 1 | 1 to 3 | 3 (+2) | 3 (+2) | 3 (+2) |" in output.read_text()
    assert "Further results" not in output.read_text()  # the program prints none
    assert "f/c                          bfloat16       seed 0: loss 3" in capsys.readouterr().out

    page = output.read_text()
    runs = json.loads((tmp_path / "clients.json").read_text())["runs"]
    (tmp_path / "clients.json").write_text(json.dumps({"runs": runs[1:]}))
    assert command.main(arguments) == 0
    assert len(runs_logged(tmp_path)) == 7 and output.read_text() == page

    assert command.main([*arguments, "--fresh", "f"]) == 0
    assert len(runs_logged(tmp_path)) == 13

    source = tmp_path / "f" / "c.py"
    source.write_text(source.read_text().replace("1 + seed", "1 + seed  # changed"))
    with pytest.raises(UsageError, match="found it 0"):
        command.main(arguments)
    assert len(runs_logged(tmp_path)) == 13

    source.write_text(source.read_text().replace("  # changed", "\nloss -= seed"))
    assert command.main([*arguments, "f/c"]) == 1
    assert len(runs_logged(tmp_path)) == 19


def test_the_list_runs_nothing(family, tmp_path, capsys):
    assert command.main(["--list", "--steps", "7", "--seeds", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:4] == ["f/c float32 0 7", "f/c float32 1 7", "f/c float32 2 7", "f/c float16 0 7"]
    assert len(lines) == 9 and not runs_logged(tmp_path)


def test_an_unknown_client_is_refused(family):
    with pytest.raises(UsageError, match=r"no client 'g': expected a family or one of f/c\."):
        command.choose(["f", "g"], [family])


@pytest.mark.parametrize(
    "program, error",
    [
        ("raise ValueError('a bad\\nmessage')", "ValueError: a bad"),
        ("import sys; sys.exit(3)", "exit status 3"),
        ("print('done')", "the last line is no JSON with losses and step_seconds"),
        ('print(\'{"losses": [1], "step_seconds": 1}\')', "has 1 losses, expected 6"),
        ("while True: pass", "took more than 0.5 s"),
        ("import subprocess; subprocess.run(['sleep', '99'])", "took more than 0.5 s"),
    ],
    ids=["raises", "exits", "no JSON", "too few", "endless", "endless child"],
)
def test_a_failed_run_is_its_error_in_one_line(program, error, family, tmp_path):
    (tmp_path / "f" / "c.py").write_text(program)
    timeout = 0.5 if "took" in error else 60
    job = Job(family, family.cases[0], "float32", 0, 6)
    assert run.run(job, sys.executable, timeout)["error"] == error


def test_edits_of_an_installed_file_are_made_in_a_copy_of_its_package(
    family, tmp_path, monkeypatch
):
    installed = tmp_path / "installed"
    (installed / "client").mkdir(parents=True)
    (installed / "client" / "__init__.py").write_text("")
    (installed / "client" / "training.py").write_text("if True:\n    LOSS = 1\n")
    monkeypatch.setattr(run, "site_packages", lambda python: installed)
    program = f"""
        import json, sys
        sys.path.append("{installed}")
        from client.training import LOSS
        print(json.dumps({{"losses": [LOSS] * 6, "step_seconds": 1}}))
        """
    (tmp_path / "f" / "c.py").write_text(textwrap.dedent(program))
    case = Case("c", "c.py", [], files={"client/training.py": [Edit("LOSS = 1", "LOSS = 2")]})
    losses = [
        run.run(Job(family, case, policy, 0, 6), sys.executable, 60)["losses"][0]
        for policy in ("float32", "float16")
    ]
    assert losses == [1, 2]


def test_a_python_that_is_not_installed_is_named(family, monkeypatch, tmp_path):
    monkeypatch.setattr(environment, "FOLDER", tmp_path)
    monkeypatch.setattr(environment, "REQUIREMENTS", tmp_path)
    monkeypatch.setattr(environments, "find_python", lambda version: None)
    with pytest.raises(UsageError, match=r"f needs python3\.11: install it\."):
        environment.prepare(family)
    (tmp_path / "f" / environments.STAMP).write_text("python 3.11\nmxnet==1.9.1\n")
    assert environment.prepare(family) == tmp_path / "f" / "bin" / "python"


@pytest.mark.parametrize("complete", [False, True])
def test_complete_requirements_are_all_that_is_installed(complete, family, monkeypatch, tmp_path):
    commands = []

    def succeed(command, **_):
        commands.append(command)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(environment, "FOLDER", tmp_path)
    monkeypatch.setattr(environment, "REQUIREMENTS", tmp_path)
    monkeypatch.setattr(environments.subprocess, "run", succeed)
    monkeypatch.setattr(environments, "find_python", lambda version: sys.executable)
    environment.prepare(dataclasses.replace(family, complete=complete))
    assert "install" in commands[-1]
    assert ("--no-deps" in commands[-1]) == complete


def test_a_damaged_file_of_results_is_named(tmp_path):
    path = tmp_path / "clients.json"
    path.write_text('{"runs": [{}]}')
    with pytest.raises(UsageError, match=r"clients\.json is not a file of results"):
        Records(path)


@pytest.mark.parametrize("name", ["gluoncv/cifar_resnet20", "module/mlp"])
def test_two_steps_of_a_client_in_float16(name):
    ((family, case),) = command.choose([name], FAMILIES)
    result = run.run(Job(family, case, "float16", 0, 2), sys.executable, 120)
    assert all(math.isfinite(loss) for loss in result["losses"]), result
