"""Random command lines of every command: each is followed, or refused in one sentence.

The slow test tries all commands; `--command-lines 6000` tries 6000 lines.
"""

import os
import random
from pathlib import Path

import pytest

from experiments.unchanged import lines

# Beside the words that `experiments/unchanged` draws; DEEP is a file of many brackets.
HOSTILE = [
    *"1e-320 ٣ @FILE /dev/full /proc/self/mem folder/deep.json fifo ../.. a;b =VALUE".split(),
    *("0,", "\udcff", "(" * 500, "x/" * 3000),
]
FOLLOWED = ("0\n", *(name for _, name in lines.DECISIONS))


@pytest.fixture
def followed(tmp_path, monkeypatch):
    """A function that draws lines of a command, and returns whether each is followed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # nothing is downloaded
    monkeypatch.setattr(lines, "HOSTILE", lines.HOSTILE + HOSTILE)
    lines.prepare()
    os.mkfifo("fifo")
    Path("folder/deep.json").write_text("[" * 100_000)

    def follow(command, number):
        actions, draw = lines.actions_of(command), random.Random(command)
        for _ in range(number):
            words = lines.line(actions, draw)
            done = lines.decided(command, words, [])
            if not done.startswith(FOLLOWED):
                status, sentence, *rest = done.split("\n")
                assert (status, rest) == ("2", [""]), f"{words}: {done}"[:2500]
                assert sentence.startswith(f"{command}: "), done
            yield done.startswith(FOLLOWED)

    return follow


def test_ten_random_command_lines(followed):
    commands = ("train", "fine-tune", "train-text", "results", "launch")
    assert sum(len([*followed(command, 2)]) for command in commands) == 10


@pytest.mark.slow
def test_random_command_lines_of_every_command(followed, pytestconfig):
    number = max(30, pytestconfig.getoption("command_lines") // len(lines.LINES))
    for command in lines.LINES:
        done = [*followed(command, number)]
        assert any(done) or command == "export", command  # which needs a network
