"""`gluon-amp` before and until a command runs: help, version, wrong names, a missing MXNet."""

import contextlib
import os
import re
import runpy
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
    code = HIDDEN.format(hidden=hidden, arguments=arguments.split())
    return subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, encoding="utf-8"
    )


@pytest.mark.parametrize(
    ("arguments", "status", "printed"),
    [
        ("--help", 0, "usage: gluon-amp [--help]"),
        ("no-such", 2, ""),
        ("launch --help", 0, "usage: gluon-amp launch -n WORKERS"),
        ("launch -n 1 -s 1 -- echo here", 0, "[worker 0] here"),
    ],
)
def test_neither_mxnet_nor_numpy_is_imported_for_it(arguments, status, printed):
    done = run_without("mxnet", "numpy", arguments=arguments)
    assert (done.returncode, "Traceback" in done.stderr) == (status, False), done.stderr
    assert printed in done.stdout


def test_without_mxnet_a_command_says_what_to_install():
    done = run_without("mxnet", arguments="doctor")
    assert done.returncode == 2
    assert done.stderr.startswith("gluon-amp: MXNet is not installed: run `pip install")
    assert done.stderr.count("\n") == 1


def test_the_version_is_the_packages(capsys):
    assert console.main(["--version"]) == 0
    assert capsys.readouterr().out == f"gluon-amp {amp.__version__}\n"


def test_the_help_lists_every_command_in_80_columns(capsys):
    assert console.main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    names = [line.split()[0] for line in lines if line.startswith("  ") and line[2] != " "]
    files = {path.stem for path in (ROOT / "gluon_amp/training/console").glob("[!_]*.py")}
    assert names == list(console.COMMANDS)
    assert {name.replace("-", "_") for name in names} == files


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["trian"], "there is no command 'trian' (did you mean train?)."),
        (["prep"], "there is no command 'prep' (did you mean prepare-caltech?)."),
        (["a\nb"], "there is no command 'a\\nb': gluon-amp --help lists them."),
        (
            [],
            "expected a command: build, doctor, train, fine-tune, train-text, prepare-caltech, "
            "pack, export, results, launch.",
        ),
    ],
)
def test_a_wrong_command_is_one_sentence(arguments, sentence, capsys):
    assert console.main(arguments) == 2
    assert capsys.readouterr() == ("", f"gluon-amp: {sentence}\n")


@pytest.mark.parametrize("name", console.COMMANDS)
def test_a_command_has_its_name_in_its_help_and_errors(name, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as stop:
        console.main([name, "--help"])
    help_, nothing = capsys.readouterr()
    assert (stop.value.code, nothing) == (0, "")
    assert help_.startswith(f"usage: gluon-amp {name} ")
    assert max(map(len, help_.splitlines())) <= 80
    with contextlib.suppress(SystemExit):
        assert console.main([name, "--no-such-option"]) == 2
    nothing, error = capsys.readouterr()
    assert nothing == "" and error.startswith(f"gluon-amp {name}: ") and error.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("train --bf16", "gluon-amp train: unrecognized arguments: --bf16: use --dtype bfloat16."),
        ("train --output=x", "unrecognized arguments: --output=x: use --save-dir DIR."),
        ("fine-tune --device gpu", "--device: use --gpus 0, or --num-gpus 0 for the CPU."),
        ("doctor --polcy x", "unrecognized arguments: --polcy (did you mean --policy?)."),
    ],
)
def test_an_option_that_does_not_exist_is_refused_before_mxnet_is_imported(arguments, sentence):
    done = run_without("mxnet", "numpy", arguments=arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith(sentence + "\n") and done.stderr.count("\n") == 1


def test_every_option_of_every_command_is_known_before_mxnet_is_imported(capsys):
    for name in console.COMMANDS:
        with pytest.raises(SystemExit):
            console.main([name, "--help"])
        shown = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", capsys.readouterr().out))
        assert shown <= console._options(f"gluon_amp.training.console.{name.replace('-', '_')}")


def test_a_reader_of_the_help_may_leave():
    reading, writing = os.pipe()
    os.close(reading)
    code = [
        sys.executable,
        "-c",
        "import sys, gluon_amp_console as c; sys.exit(c.main(['--help']))",
    ]
    done = subprocess.run(
        code, env=environment(), stdout=writing, stderr=subprocess.PIPE, encoding="utf-8"
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


def test_the_earlier_name_of_a_command_still_works(capsys):
    with pytest.raises(SystemExit) as stop:
        console.main(["train-lstm", "--help"])
    assert (stop.value.code, capsys.readouterr().out.split()[:3]) == (
        0,
        ["usage:", "gluon-amp", "train-text"],
    )


def test_the_package_and_the_scripts_are_the_same_commands(capsys, monkeypatch):
    for program, prog in (
        ("gluon_amp/__main__.py train", "python -m gluon_amp train"),
        ("scripts/train_imagenet.py", "train_imagenet.py"),
    ):
        path, *arguments = program.split()
        monkeypatch.setattr(sys, "argv", [path, *arguments, "--dtype", "x"])
        with pytest.raises(SystemExit) as stop:
            runpy.run_path(str(ROOT / path), run_name="__main__")
        assert stop.value.code == 2
        assert capsys.readouterr().err.startswith(f"{prog}: argument --dtype: expected float32")
    for path in (ROOT / "scripts").glob("*.py"):  # thin: no logic of their own
        assert len(path.read_text().splitlines()) < 25
