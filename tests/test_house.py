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
        BatchProcessor CheckpointHandler Diagnosis DynamicLossScale GradientUpdateHandler LossScale
        NoLossScale Policy StaticLossScale StepReport Trainer
        accumulation_dtype bits cast check describe diagnose doctor float_table gradient_report
        init_trainer input_gradient load_checkpoint optimizer policy_of save_checkpoint scale_loss
        symbolic unscale watch
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
        public = getattr(amp, name)
        assert inspect.ismodule(public) or not (ROOT / "gluon_amp" / f"{name}.py").exists()
        assert inspect.ismodule(public) or not (ROOT / "gluon_amp" / name / "__init__.py").exists()


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
    return subprocess.run(
        [BIN / command[0], *command[1:]], cwd=checkout, capture_output=True, text=True
    )


@pytest.mark.parametrize(
    "path, line",
    [
        ("gluon_amp/policy/cast_pass.py", "from gluon_amp.trainer import Trainer"),
        ("gluon_amp/training/data/loader.py", "from gluon_amp.policy import Policy"),
        ("gluon_amp/trainer/passes.py", "from gluon_amp.inspection import describe"),
        ("gluon_amp/training/runs/loop.py", "import gluon_amp.training.tables"),
        ("gluon_amp/new_room.py", ""),
    ],
)
def test_an_import_upwards_and_a_room_without_a_floor_fail_the_lint(path, line, checkout):
    assert lint(checkout, "lint-imports", "--no-cache").returncode == 0
    with (checkout / path).open("a") as file:
        file.write(f"\n{line}\n")
    result = lint(checkout, "lint-imports", "--no-cache")
    assert result.returncode == 1 and "BROKEN" in result.stdout


# ---------------------------------------------------------------------------- private names


@pytest.mark.parametrize(
    "line",
    ["print(trainer._window)", "net._amp = None", "from mxnet.base import _Null"],
)
def test_a_private_name_of_another_module_fails_the_lint(line, checkout):
    path = checkout / "gluon_amp" / "inspection" / "check.py"
    assert lint(checkout, "ruff", "check", "--no-cache", path).returncode == 0
    path.write_text(path.read_text() + f"\n\ndef spoiled(net, trainer):\n    {line}\n")
    result = lint(checkout, "ruff", "check", "--no-cache", "--output-format", "concise", path)
    assert result.returncode == 1 and "private-" in result.stdout


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
        "from gluon_amp.trainer.passes import (\n    Pass,\n    _private,\n)"
    ) == ["_private"]
    for path in (ROOT / folder).rglob("*.py"):
        assert private_imports(path.read_text()) == [], path


def listed():
    """Return MXNet's private names of pyproject.toml, with their reasons."""
    table = (ROOT / "pyproject.toml").read_text().partition("[tool.ruff.lint.flake8-self]")[2]
    return re.findall(r'^    "(\w+)",(?:  # (.+))?$', table.partition("\n]")[0], re.MULTILINE)


def test_each_private_name_that_may_be_used_has_a_reason_and_a_use():
    sources = "".join(path.read_text() for folder in OURS for path in (ROOT / folder).rglob("*.py"))
    assert len(listed()) > 10
    for name, reason in listed():
        assert reason, f"{name} has no reason"
        assert re.search(rf"\b(?!self\b|cls\b)\w+\)?\]?\.{name}\b", sources), f"{name} has no use"


def test_each_private_name_that_may_be_used_is_of_mxnet_or_python():
    theirs = "".join(path.read_text() for path in Path(mx.__file__).parent.rglob("*.py"))
    python = {"_current_frames", "_exit", "_getframe", "_replace", "_asdict"}
    for name, _ in listed():
        assert name in python or re.search(rf"\b{name}\b", theirs), f"{name} is not of MXNet"
