"""Random command lines for every script: each is read, or refused in one sentence with status 2.

The slow tests try all scripts; `--command-lines 6000` tries 6000 lines.
"""

import argparse
import os
import random
import sys

import pytest

from gluon_amp.base.messages import UsageError
from gluon_amp.training.runs import recipe
from gluon_amp.training.runs.language import recipe as language_recipe
from gluon_amp.training.workers import tasks
from tests import ROOT
from tests.training.runs import scripts

EXPERIMENTS = [
    path for path in (ROOT / "experiments").glob("*.py") if "__main__" in path.read_text()
]
# The command that runs each script, and each experiment that has one of its own.
COMMANDS = {
    **{path.stem: [str(path)] for path in (ROOT / "scripts").glob("*.py")},
    **{path.stem: ["-m", f"experiments.{path.stem}"] for path in EXPERIMENTS},
}
# How a script reads and checks a line before it works, where its parser is not all.
READERS = {
    "train_imagenet": recipe.read,
    "fine_tune": recipe.read_fine_tuning,
    "train_lstm": language_recipe.read,
    "launch": tasks.read,
}
# FOLDER, FILE, FIFO and DEEP stand for paths.
SOUND = (
    "1 2 8 32 0.5 0.9 1024 1,2,3 58,57,57 dynamic none auto resnet18_v1 cifar_resnet8_v1 float16 "
    "mx/resnet FOLDER FOLDER/new FILE"
).split()
HOSTILE = [
    *"0 -1 -0 1.0 1e30 1e31 1e-31 1e-320 nan inf 2147483648 0,0,0 0, , 1_0 ٣ 1e3".split(),
    *"é× - -- --- -x --no-such = @FILE ~ ~no_such_user/x /dev/null /dev/full".split(),
    *"/proc/self/mem /nowhere/x FILE/x FIFO DEEP ../.. [ * 3,224 NAME= =VALUE a;b".split(),
    *("", " ", "\n", "a\nb", "\x1b[31m", "\udcff", "%s %d {} $HOME", "'\"", "(" * 500, " 7 "),
    *("x" * 300, "x/" * 3000, "9" * 5000),
]


class Parsers(BaseException):
    """Carries a parser out of the script that created it; no script catches it."""


def load(name):
    return scripts.load(name, "experiments" if "-m" in COMMANDS[name] else "scripts")


def parser_of(script, monkeypatch):
    def capture(parser, arguments=None, namespace=None):
        raise Parsers(parser)

    with monkeypatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "parse_known_args", capture)
        patch.setattr(sys, "argv", [f"{script.__name__}.py"])
        with pytest.raises(Parsers) as caught:
            script.main()
    return caught.value.args[0]


def accepts(parser, action, text):
    try:
        return parser._get_value(action, text) is not None
    except argparse.ArgumentError:
        return False


def line(parser, chance):
    """Draw a line of the parser's own options and arguments; it accepts half of the lines."""
    sound = chance.random() < 0.5
    actions = [action for action in parser._actions if action.dest != "help"]
    flags = [action for action in actions if action.option_strings]
    chosen = [action for action in flags if action.required]
    chosen += chance.choices(flags, k=chance.randrange(5)) if flags else []

    def value(action):
        known = sorted(action.choices) if action.choices else SOUND
        texts = [text for text in known if accepts(parser, action, text)] or SOUND
        return chance.choice(texts if sound else SOUND + HOSTILE)

    words = []
    for action in chosen:
        words.append(chance.choice(action.option_strings))
        if action.nargs != 0:
            count = 1 if sound else chance.choice((1, 1, 1, 0, 2))
            words += [value(action) for _ in range(count)]
    for action in actions:
        if action.dest == "command":
            words += ["--", "true"]
        elif not action.option_strings:
            words.append(value(action))
    return words


@pytest.fixture
def places(tmp_path, monkeypatch):
    """The paths of the names in capitals, in a home and a current folder of their own."""
    folder = tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "file").write_text("1\n")
    (folder / "deep.json").write_text("[" * 100_000)
    os.mkfifo(tmp_path / "fifo")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # nothing is downloaded
    file, fifo, deep = tmp_path / "file", tmp_path / "fifo", folder / "deep.json"
    return {"FOLDER": folder, "FILE": file, "FIFO": fifo, "DEEP": deep}


def filled(words, places):
    for name, path in places.items():
        words = [word.replace(name, str(path)) for word in words]
    return words


@pytest.fixture
def draw(places, monkeypatch, capsys):
    """A function that draws lines of a script and reads them; it yields each, and if it is read."""

    def read(reader, words):
        try:
            reader(words)
            return True
        except SystemExit as stop:
            status, message = stop.code, capsys.readouterr().err
        except UsageError as error:
            status, message = 2, f"{error}\n"
        assert status == 2 and message.count("\n") == 1 and message.endswith("\n"), message
        return False

    def lines(name, number):
        script = load(name)
        parser = parser_of(script, monkeypatch)
        reader, chance = READERS.get(name, parser.parse_args), random.Random(name)
        for _ in range(number):
            words = filled(line(parser, chance), places)
            try:
                yield words, read(reader, words)
            except Exception as error:
                raise AssertionError(f"{words}: {type(error).__name__}: {error}"[:2500]) from error

    return lines


def test_ten_random_command_lines(draw):
    names = ("train_imagenet", "fine_tune", "train_lstm", "results_table", "launch")
    assert len([read for name in names for _, read in draw(name, 2)]) == 10


@pytest.mark.slow
def test_random_command_lines_of_every_script(draw, pytestconfig):
    number = max(30, pytestconfig.getoption("command_lines") // len(COMMANDS))
    for name in sorted(COMMANDS):
        read = [read for _, read in draw(name, number)]
        assert len(read) == number and any(read), name
