"""The parser of training runs: its help, and which options a command line sets."""

import argparse

import pytest

from gluon_amp.training.runs.language import recipe as language_recipe
from gluon_amp.training.runs.options import GROUPS, TrainingParser
from gluon_amp.training.runs.recipe import fine_tuning_parser, train_parser


@pytest.fixture
def parser():
    parser = TrainingParser(prog="train", description="Train.")
    add = parser.add_argument
    add("--rate", "-r", type=float, default=0.5, metavar="RATE", help="step size (default: any)")
    add("--sizes", default=(1, 2), metavar="N,N", help="sizes, as in --sizes 1,2")
    add("--gpus", type=int, metavar="N", help="how many GPUs (default: all)")
    add("--quiet", action="store_true", help="print nothing")
    add("--seed", type=int, default=0, metavar="N", help="seed")
    return parser


def test_the_help_shows_each_default_and_each_metavar_once(parser, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    usage, description, options = parser.format_help().split("\n\n", 2)
    assert (usage, description) == ("usage: train [OPTION ...]", "Train.")
    assert options.split(":\n", 1)[1] == (
        "  -h, --help       show this help message and exit\n"
        "  --rate, -r RATE  step size (default: 0.5)\n"
        "  --sizes N,N      sizes, as in --sizes 1,2 (default: 1,2)\n"
        "  --gpus N         how many GPUs (default: all)\n"
        "  --quiet          print nothing\n"
        "  --seed N         seed (default: 0)\n"
    )


def test_the_help_of_every_command_explains_every_option():
    for make in (train_parser, fine_tuning_parser, language_recipe.parser):
        parser = make()
        text = parser.format_help()
        for action in parser._actions:
            if action.help != argparse.SUPPRESS:
                assert action.help and ", ".join(action.option_strings[:2]) in text


def test_each_group_of_the_help_has_an_example_that_can_be_read():
    text = train_parser("gluon-amp train").format_help()
    for title in GROUPS:
        example = text.partition(f"\n{title}:\n  gluon-amp train ")[2].partition("\n")[0]
        assert train_parser().parse_explicit(example.split())[1]


def test_only_what_is_on_the_command_line_is_explicit(parser):
    defaults = {"rate": 0.5, "sizes": (1, 2), "gpus": None, "quiet": False, "seed": 0}
    assert parser.parse_explicit([]) == (defaults, {})
    line = ["--seed", "0", "-r", "0.5", "--quiet"]
    assert parser.parse_explicit(line) == (defaults, {"seed": 0, "rate": 0.5, "quiet": True})
