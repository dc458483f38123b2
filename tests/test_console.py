"""`gluon-amp` before and until a command runs: help, version, wrong names, a missing MXNet."""

import importlib
import subprocess
import sys

import pytest

import gluon_amp as amp
import gluon_amp_console as console
from tests import ROOT
from tests.training.runs.scripts import environment

HIDDEN = """
import sys, importlib.abc
class Hide(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name in {hidden!r}: raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Hide())
from gluon_amp_console import main
sys.exit(main({arguments!r}))
"""


def run_without(*hidden, arguments):
    """Run the console in a process that cannot import some modules."""
    code = HIDDEN.format(hidden=hidden, arguments=list(arguments))
    return subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, encoding="utf-8"
    )


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["-h"], ["no-such"], []])
def test_neither_mxnet_nor_numpy_is_imported_without_a_command(arguments):
    done = run_without("mxnet", "numpy", arguments=arguments)
    assert "Traceback" not in done.stderr
    assert done.returncode == (0 if arguments and arguments[0].startswith("-") else 2)


def test_the_version_is_the_packages(capsys):
    assert console.main(["--version"]) == 0
    assert capsys.readouterr().out == f"gluon-amp {amp.__version__}\n"


def test_the_help_lists_every_command_in_80_columns(capsys):
    assert console.main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0] == "usage: gluon-amp [--help] [--version] COMMAND ..."
    names = [line.split()[0] for line in lines if line.startswith("  ") and line[2] != " "]
    files = {path.stem for path in (ROOT / "gluon_amp" / "commands").glob("[!_]*.py")}
    assert names == list(console.COMMANDS)
    assert {name.replace("-", "_") for name in names} == files


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["trian"], "there is no command 'trian' (did you mean train?)."),
        (["prep"], "there is no command 'prep' (did you mean prepare-caltech?)."),
        (["TRAIN"], "there is no command 'TRAIN' (did you mean train or train-lstm?)."),
        (["a\nb"], "there is no command 'a\\nb': gluon-amp --help lists them."),
        (["--dtype"], "there is no command '--dtype': gluon-amp --help lists them."),
        (
            [],
            "expected a command: build, doctor, train, fine-tune, train-lstm, prepare-caltech, "
            "pack, results, launch.",
        ),
    ],
)
def test_a_wrong_command_is_one_sentence(arguments, sentence, capsys):
    assert console.main(arguments) == 2
    assert capsys.readouterr() == ("", f"gluon-amp: {sentence}\n")


def test_without_mxnet_a_command_says_what_to_install():
    done = run_without("mxnet", arguments=["doctor"])
    assert done.returncode == 2
    assert done.stderr.startswith("gluon-amp: MXNet is not installed: run `pip install")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("name", console.COMMANDS)
def test_a_commands_errors_have_its_name(name, capsys):
    with pytest.raises(SystemExit) as stop:
        console.main([name, "--no-such-option"])
    assert stop.value.code == 2
    message = capsys.readouterr().err
    assert message.startswith(f"gluon-amp {name}: ") and message.count("\n") == 1


def test_the_package_and_the_scripts_are_the_same_commands(capsys):
    prog = [sys.executable, "-m", "gluon_amp", "train", "--dtype", "x"]
    done = subprocess.run(prog, env=environment(), capture_output=True, encoding="utf-8")
    assert done.returncode == 2
    assert done.stderr.startswith("python -m gluon_amp train: argument --dtype: expected float32")
    for path in (ROOT / "scripts").glob("*.py"):  # thin: no logic of their own
        assert len(path.read_text().splitlines()) < 25


@pytest.mark.parametrize("columns", ["80", "200"])
def test_the_help_of_every_command_has_80_columns(columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    for name in console.COMMANDS:
        command = importlib.import_module(f"gluon_amp.training.console.{name.replace('-', '_')}")
        with pytest.raises(SystemExit) as stop:
            command.main(["--help"])
        assert stop.value.code == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].startswith(f"usage: gluon-amp {name} ")
        assert max(map(len, lines)) <= 80, max(lines, key=len)
