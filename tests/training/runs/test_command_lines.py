"""Random command lines for every script: each is read, or refused in one sentence with status 2.

`--command-lines 600` tries 600 of them; every tenth then runs as a process of its own, too.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gluon_amp.base.messages import UsageError
from gluon_amp.training.runs import recipe
from gluon_amp.training.runs.language import recipe as language_recipe
from gluon_amp.training.workers import tasks
from tests import ROOT
from tests.training.runs import scripts

# The command that runs each script, and each experiment that has one of its own.
COMMANDS = {
    **{path.stem: [str(path)] for path in (ROOT / "scripts").glob("*.py")},
    **{
        path.stem: ["-m", f"experiments.{path.stem}"]
        for path in (ROOT / "experiments").glob("*.py")
        if "__main__" in path.read_text()  # the others are no programs
    },
}
NAMES = sorted(COMMANDS)

CACHE = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")

# FOLDER, FILE, FIFO and DEEP stand for paths; values are separated by spaces.
GOOD = (
    "1 2 8 32 0.5 0.9 1024 1,2,3 58,57,57 dynamic none auto resnet18_v1 cifar_resnet8_v1 float16 "
    "mx/resnet FOLDER FOLDER/new FILE"
).split()
BORDER = [
    *"0 -1 -0 1.0 1.2 1e30 1e31 1e-30 1e-31 1e-320 1e400 nan inf -inf 2147483647".split(),
    *"2147483648 9223372036854775808 0,0,0 0, , 1_0 ٣ 0x10 1e3".split(),
    "9" * 5000,
    " 7 ",
]
HOSTILE = [
    *"é× - -- --- -x --no-such = @FILE ~ ~no_such_user/x /dev/null /dev/full".split(),
    *"/proc/self/mem /nowhere/x FILE/x FIFO DEEP ../.. [ * 3,224 NAME= =VALUE a;b".split(),
    *("", " ", "\n", "a\nb", "\x1b[31m", "\udcff", "%s %d {} $HOME", "'\"", "(" * 500),
    *("x" * 300, "x/" * 3000),
]

# Options after the random ones that make a process end soon. A script that is not listed
# would run for minutes, so only lines that it refuses are run.
QUICK = {
    "train_imagenet": "--dataset digits --model cifar_resnet8_v1 --num-epochs 1 --max-batches 1 "
    "--input-size 32 --batch-size 8 --warmup-epochs 0",
    "fine_tune": "--dataset digits --model cifar_resnet8_v1 --num-epochs 1 --max-batches 1 "
    "--input-size 32 --from-scratch --warmup-epochs 0",
    "train_lstm": "--characters 20000 --hidden 8 --embedding 8 --layers 1 --num-epochs 1 "
    "--max-batches 1 --bptt 8 --batch-size 4",
    "input_benchmark": "--images 8 --side 32 --pixels 16 --batch-size 4 --batches 2 --rounds 1 "
    "--num-workers 1",
    "launch": "-n 1 -s 1 --launcher local -- true",
    "pack_images": "--num-workers 1",
    "results_table": "--from-logs FOLDER",
    "zoo_coverage": "--list",
}


class Parsers(BaseException):
    """Carries a parser out of the script that created it; no script catches it."""


def load(name):
    return scripts.load(name, "experiments" if "-m" in COMMANDS[name] else "scripts")


def parser_of(script, monkeypatch):
    def capture(parser, arguments=None, namespace=None):
        raise Parsers(parser)

    with monkeypatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "parse_args", capture)
        patch.setattr(sys, "argv", [f"{script.__name__}.py"])
        with pytest.raises(Parsers) as caught:
            script.main()
    return caught.value.args[0]


def reader_of(script, parser):
    """Return the function that reads and checks a line as the script does, before it works."""
    return {
        "train_imagenet": recipe.read,
        "fine_tune": recipe.read_fine_tuning,
        "train_lstm": language_recipe.read,
        "launch": tasks.read,
    }.get(script.__name__, parser.parse_args)


def value(parser, action, chance, sound):
    """Draw a value: one that the parser accepts if the line is to be sound, any value otherwise."""
    for _ in range(100):
        kind = chance.choice((GOOD, GOOD, BORDER, HOSTILE))
        text = chance.choice(sorted(action.choices) if sound and action.choices else kind)
        try:
            if not sound or parser._get_value(action, text) is not None:
                break
        except argparse.ArgumentError:
            pass
    return text


def line(parser, chance):
    """Draw a line of the parser's own options and arguments; it accepts half of the lines."""
    sound = chance.random() < 0.5
    actions = [action for action in parser._actions if action.dest != "help"]
    flags = [action for action in actions if action.option_strings]
    chosen = [action for action in flags if action.required and (sound or chance.random() < 0.9)]
    chosen += chance.choices(flags, k=chance.randrange(5)) if flags else []
    words = []
    for action in chosen:
        flag = chance.choice(action.option_strings)
        count = 1 if sound else chance.choice((1, 1, 1, 0, 2))
        values = [value(parser, action, chance, sound) for _ in range(count)]
        if action.nargs == 0:
            words.append(flag if sound or chance.random() < 0.9 else f"{flag}=1")
        elif count == 1 and flag.startswith("--") and chance.random() < 0.3:
            words.append(f"{flag}={values[0]}")
        else:
            words += [flag, *values]
    for action in actions:
        if action.dest == "command":
            words += ["--", "true"]
        elif not action.option_strings and (sound or chance.random() < 0.8):
            words.append(value(parser, action, chance, sound))
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
    return [word for word in words if "\0" not in word]


def read(reader, words, capsys):
    """Return whether a line is accepted; fail if it is refused in any way but one sentence."""
    try:
        reader(words)
        return True
    except SystemExit as stop:
        status, message = stop.code, capsys.readouterr().err
    except UsageError as error:
        status, message = 2, f"{error}\n"
    assert status == 2 and message.count("\n") == 1 and message.endswith("\n"), message
    return False


def run(name, words):
    """Run a line as a process; it must succeed, or fail with one sentence."""
    process = subprocess.Popen(
        [sys.executable, *COMMANDS[name], *words],
        env=scripts.environment(XDG_CACHE_HOME=CACHE),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
        encoding="utf-8",
        errors="replace",
    )
    try:
        message = process.communicate(timeout=280)[1]
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert "Traceback" not in message, message[-2000:]
    assert process.returncode in (0, 1, 2), (process.returncode, message)
    if process.returncode == 2:
        assert message.count("\n") == 1, message


def test_every_script_is_tried():
    assert len(NAMES) == 18 and set(QUICK) < set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_random_command_line_is_read_or_refused(name, places, monkeypatch, capsys, pytestconfig):
    lines = pytestconfig.getoption("command_lines") // len(NAMES)
    script = load(name)
    parser = parser_of(script, monkeypatch)
    reader, chance, wrong = reader_of(script, parser), random.Random(name), []
    for number in range(lines):
        words = filled(line(parser, chance), places)
        try:
            accepted = read(reader, words, capsys)
            # opening a FIFO to write to it waits for its reader
            tried = number % 10 == 0 and str(places["FIFO"]) not in " ".join(words)
            if lines > 10 and tried and (name in QUICK or not accepted):
                run(name, [*words, *filled(QUICK.get(name, "").split(), places)])
        except (Exception, subprocess.TimeoutExpired) as error:
            wrong.append((words, f"{type(error).__name__}: {error}"[:2500]))
    assert not wrong, "\n".join(f"{words}\n    {what}" for words, what in wrong)


@pytest.mark.parametrize(
    ("name", "words", "sentence"),
    [
        ("results_table", "--seeds x", "argument --seeds: expected a whole number of at least 1"),
        ("results_table", "--sed 1", "unrecognized arguments: --sed 1"),
        ("matrix", "--only 9", "argument --only: invalid choice: '9'"),
        ("zoo_coverage", "--networks [", "argument --networks: expected a regular expression"),
        ("zoo_coverage", "--json FOLDER", "is a directory, expected a file"),
        ("input_benchmark", "--output FOLDER", "is a directory, expected a file"),
        ("tensor_cores", "--export /dev/null", "/dev/null: File exists."),
        ("tensor_cores", "--compare FOLDER --export FOLDER", "not allowed with argument"),
        ("benchmark", "--threads 9223372036854775808", "expected a whole number from 1 to 1024"),
        ("train_imagenet", "--data-dir FOLDER/typo", "typo was not found: give the folder that"),
        ("fine_tune", "--data-dir FOLDER/typo", "typo was not found: give the folder that"),
        ("train_imagenet", "--data-dir FOLDER/typo --dataset digits", "typo was not found"),
        ("train_imagenet", "--data-dir FOLDER/typo --test-io", "typo was not found"),
        ("train_imagenet", "--crop-ratio 0.001", "give at least 0.014 for --input-size 224"),
    ],
)
def test_a_bad_option_is_one_sentence(name, words, sentence, places, capsys):
    script = load(name)
    with pytest.raises(SystemExit) as stop:
        sys.exit(script.main(filled(words.split(), places)))
    message = capsys.readouterr().err
    assert stop.value.code == 2
    assert sentence in message and message.count("\n") == 1
