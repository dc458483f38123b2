"""What the programs share: readers of options, and sentences for what cannot be done."""

import argparse
import os
import subprocess
import sys

import pytest

from gluon_amp.base.messages import UsageError
from gluon_amp.training import command_line
from gluon_amp.training.command_line import real, several, split_at_dashes, status_of, whole
from tests.training.runs.scripts import environment


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        (whole(0, 9), "9", 9),
        (real(0), "1e-30", 1e-30),
        (real(0, 1), "1", 1.0),
        (several(whole(0), "numbers"), "3,1", (3, 1)),
        (several(whole(0), "numbers"), "", ()),
        (command_line.path, "~/x", command_line.Path.home() / "x"),
    ],
)
def test_values_are_read(read, text, value):
    assert read(text) == value


@pytest.mark.parametrize(
    ("read", "text", "sentence"),
    [
        (whole(0, 9), "10", "expected a whole number from 0 to 9, got '10'"),
        (whole(1), "0", "expected a whole number of at least 1, got '0'"),
        (whole(1), str(2**31), "expected a whole number from 1 to 2147483647, got '2147483648'"),
        (real(0, above=True), "0", "expected a number above 0, got '0'"),
        (real(0, 1, below=True), "1", "expected a number from 0 up to below 1, got '1'"),
        (real(0), "inf", "expected a number of at least 0, got 'inf'"),
        (real(0), "1e31", "expected a number from 0 to 1e+30, got '1e31'"),
        (real(0), "1e-31", "expected a number of at least 0, and no closer to 0 than 1e-30"),
        (several(whole(0), "two numbers", 2), "1", "expected two numbers, got '1'"),
        (command_line.path, "", "expected a path, got ''"),
        (command_line.path, "a\0b", "'a\\x00b': "),
        (command_line.input_file, "/dev", "/dev is not a regular file"),
        (command_line.output_file, "/dev", "/dev is a directory, expected a file"),
        (command_line.output_file, "/no/such", "there is no directory /no"),
    ],
)
def test_other_values_are_one_sentence(read, text, sentence):
    with pytest.raises(argparse.ArgumentTypeError) as caught:
        read(text)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("line", "own", "others"),
    [("a b", "a b", ""), ("a -- b -- c", "a", "b -- c"), ("-- b", "", "b")],
)
def test_arguments_after_dashes(line, own, others):
    assert split_at_dashes(line.split()) == (own.split(), tuple(others.split()))


def raising(error):
    def work():
        raise error

    return work


@pytest.mark.parametrize(
    ("work", "status", "error"),
    [
        (lambda: None, 0, ""),
        (raising(UsageError("that cannot be.")), 2, "prog: that cannot be.\n"),
        (lambda: os.stat("/none"), 2, "prog: /none: No such file or directory.\n"),
        (raising(ZeroDivisionError("0 / 0.")), 1, "prog: 0 / 0.\n"),
        (raising(KeyboardInterrupt()), 130, "prog: interrupted.\n"),
    ],
)
def test_errors_are_one_sentence(work, status, error, capsys):
    assert status_of("prog", work, (ZeroDivisionError,)) == status
    assert capsys.readouterr() == ("", error)


PRINTS = """
import sys
from gluon_amp_console import enter_without_mxnet
enter_without_mxnet()
from gluon_amp.training.command_line import status_of

def work():
    for _ in range(10**5):
        print("a line of a log")

sys.exit(status_of("prog", work))
"""


@pytest.mark.parametrize(
    ("to", "status", "error"),
    [
        (">&-", 0, ""),
        ("> /dev/full", 2, "prog: No space left on device.\n"),
        ("| head -1; exit ${PIPESTATUS[0]}", 141, ""),
    ],
)
def test_an_output_that_is_closed_or_full_or_whose_reader_leaves(to, status, error):
    command = ["bash", "-c", f'"$0" -c "$1" {to}', sys.executable, PRINTS]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (status, error)


@pytest.mark.parametrize(
    ("line", "near"),
    [
        ("--dtpe=float16", " (did you mean '--dtype'?)"),
        ("float16", ""),
    ],
)
def test_an_option_that_does_not_exist_gets_a_near_match(line, near, capsys):
    parser = command_line.Parser(prog="prog")
    parser.add_argument("--dtype")
    with pytest.raises(SystemExit):
        parser.parse_args(line.split())
    assert capsys.readouterr().err == f"prog: unrecognized arguments: {line}{near}\n"
