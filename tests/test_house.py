"""The house rules that a program can check: public names, layers, circles, private names."""

import ast
import inspect
import re
import shutil
import subprocess
import sys
from pathlib import Path

import grimp
import pytest

import gluon_amp as amp
from tests import ROOT

import mxnet as mx

BIN = Path(sys.executable).parent
OURS = ("gluon_amp", "experiments", "scripts")

PUBLIC = {
    amp: """
        BatchProcessor CheckpointHandler Diagnosis DynamicLossScale EMA GradientUpdateHandler
        LossScale NoLossScale Policy StaticLossScale StepReport Trainer
        accumulation_dtype bits cast check describe diagnose doctor export_onnx float_table
        gradient_report init_trainer input_gradient load_checkpoint optimizer policy_of
        save_checkpoint scale_loss suggest_policy symbolic torch_state_dict torch_training_state
        unscale watch
    """,
    amp.optimizer: "Adam AdamW ExactFloat LAMB LARS MasterOptimizer NAG SGD create",
    amp.symbolic: "BucketingModule Module convert",
}


@pytest.mark.parametrize("room", PUBLIC, ids=lambda room: room.__name__)
def test_the_public_names_are_these(room):
    assert sorted(room.__all__) == PUBLIC[room].split()
    assert all(hasattr(room, name) for name in room.__all__)


def test_no_public_function_hides_a_module_of_its_name():
    for name in amp.__all__:
        files = [ROOT / "gluon_amp" / f"{name}.py", ROOT / "gluon_amp" / name / "__init__.py"]
        assert inspect.ismodule(getattr(amp, name)) or not any(file.exists() for file in files)


# ---------------------------------------------------------------------------- imports


@pytest.fixture(scope="module")
def imports():
    return grimp.build_graph("gluon_amp", "experiments", cache_dir=None)


def test_no_module_imports_itself_by_way_of_others(imports):
    circles = [
        module
        for module in imports.modules
        for imported in imports.find_modules_directly_imported_by(module)
        if module in imports.find_upstream_modules(imported)
    ]
    assert circles == []


@pytest.fixture
def checkout(tmp_path):
    """A copy of the sources that a test may spoil."""
    for folder in ("gluon_amp", "experiments"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("*.pyc"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def lint(checkout, *command):
    """Return the status of a linter, and what it prints."""
    command = [BIN / command[0], *command[1:]]
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True)
    return done.returncode, done.stdout


def test_an_import_upwards_and_a_room_without_a_floor_fail_the_lint(checkout):
    assert lint(checkout, "lint-imports", "--no-cache")[0] == 0
    for path, line in (
        ("gluon_amp/policy/cast_pass.py", "from gluon_amp.trainer import Trainer"),
        ("gluon_amp/training/data/loader.py", "from gluon_amp.policy import Policy"),
        ("gluon_amp/trainer/state.py", "from gluon_amp.inspection import describe"),
        ("gluon_amp/training/runs/loop.py", "import gluon_amp.training.tables"),
        ("gluon_amp/new_room.py", ""),
    ):
        file = checkout / path
        before = file.read_text() if file.exists() else ""
        file.write_text(f"{before}\n{line}\n")
        status, printed = lint(checkout, "lint-imports", "--no-cache")
        assert status == 1 and "BROKEN" in printed, path
        file.write_text(before)


# ---------------------------------------------------------------------------- private names


def test_a_private_name_of_another_module_fails_the_lint(checkout):
    path = checkout / "gluon_amp" / "inspection" / "check.py"
    ruff = ("ruff", "check", "--no-cache", "--output-format", "concise", path)
    assert lint(checkout, *ruff)[0] == 0
    source = path.read_text()
    for line in ("print(trainer._window)", "net._amp = None", "from mxnet.base import _Null"):
        path.write_text(f"{source}\n\ndef spoiled(net, trainer):\n    {line}\n")
        status, printed = lint(checkout, *ruff)
        assert status == 1 and "private-" in printed, line


def private_imports(source):
    """Return the private names of our own that a source imports, which ruff allows in a package."""
    return [
        alias.name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(OURS)
        for alias in node.names
        if alias.name.startswith("_")
    ]


@pytest.mark.parametrize("folder", OURS)
def test_no_file_imports_a_private_name(folder):
    assert private_imports(
        "from gluon_amp.trainer.state import (\n    Pass,\n    _private,\n)"
    ) == ["_private"]
    for path in (ROOT / folder).rglob("*.py"):
        assert private_imports(path.read_text()) == [], path


def listed():
    """Return MXNet's private names of pyproject.toml, with their reasons."""
    table = (ROOT / "pyproject.toml").read_text().partition("[tool.ruff.lint.flake8-self]")[2]
    return re.findall(r'^    "(\w+)",(?:  # (.+))?$', table.partition("\n]")[0], re.MULTILINE)


def test_each_private_name_that_may_be_used_has_a_reason_a_use_and_an_owner():
    sources = "".join(path.read_text() for folder in OURS for path in (ROOT / folder).rglob("*.py"))
    theirs = "".join(path.read_text() for path in Path(mx.__file__).parent.rglob("*.py"))
    python = {"_current_frames", "_exit", "_getframe", "_replace", "_asdict"}
    assert len(listed()) > 10
    for name, reason in listed():
        assert reason, f"{name} has no reason"
        assert re.search(rf"\b(?!self\b|cls\b)\w+\)?\]?\.{name}\b", sources), f"{name} has no use"
        assert name in python or re.search(rf"\b{name}\b", theirs), f"{name} is not of MXNet"
