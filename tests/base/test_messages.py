"""Parts of error messages."""

import pytest

from gluon_amp.base.messages import close_matches, did_you_mean, first_few, reason_of


def test_near_names_are_offered_in_their_own_spelling():
    known = ["softmax", "Convolution"]
    assert did_you_mean("softmx", known) == " (did you mean 'softmax'?)"
    assert did_you_mean("CONVOLUTON", known) == " (did you mean 'Convolution'?)"
    assert did_you_mean("xyz", known) == did_you_mean("xyz", []) == ""
    assert close_matches("conv1", ["conv2", "conv3", "dense"]) == ["conv3", "conv2"]
    # only two thousand names are compared
    assert close_matches("softmax", (f"op{i}" for i in iter(int, 1))) == []


def test_lists_are_cut():
    names = list("abcde")
    cut = [first_few(names[:n]) for n in (0, 1, 3, 5)]
    assert cut == ["", "a", "a, b, c", "a, b, c and 2 more"]
    assert first_few(names[:3], limit=2) == "a, b and 1 more"


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
