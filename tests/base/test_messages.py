"""Parts of error messages."""

import pytest

from gluon_amp.base.messages import close_matches, did_you_mean, first_few, reason_of


def test_near_names_are_offered_in_their_own_spelling():
    assert did_you_mean("softmx", ["softmax", "Convolution"]) == " (did you mean 'softmax'?)"
    assert did_you_mean("CONVOLUTON", ["softmax", "Convolution"]) == (
        " (did you mean 'Convolution'?)"
    )
    assert close_matches("conv1", ["conv2", "conv3", "dense"]) == ["conv3", "conv2"]


def test_nothing_is_offered_for_a_name_unlike_all_others():
    assert did_you_mean("xyz", ["softmax"]) == ""
    assert did_you_mean("xyz", []) == ""


def test_only_two_thousand_names_are_compared():
    assert close_matches("softmax", (f"op{i}" for i in iter(int, 1))) == []


@pytest.mark.parametrize(
    "names, expected",
    [([], ""), (["a"], "a"), (["a", "b", "c"], "a, b, c"), (list("abcde"), "a, b, c and 2 more")],
)
def test_lists_are_cut(names, expected):
    assert first_few(names) == expected


def test_the_limit_of_a_list():
    assert first_few(["a", "b", "c"], limit=2) == "a, b and 1 more"


@pytest.mark.parametrize(
    "text, reason",
    [
        ("It is wrong: do that.", "It is wrong: do that"),
        ("\n  first \nsecond", "first"),
        ("[22:00:00] a.cc:12: Check failed: a: no image\nStack trace:\n  (0)", "a: no image"),
        ("Wrong. Traceback (most recent call last):\n  File a\nMXNetError: It is 3.", "It is 3"),
        ("", "ValueError"),
    ],
)
def test_the_reason_is_one_line(text, reason):
    assert reason_of(ValueError(text)) == reason
