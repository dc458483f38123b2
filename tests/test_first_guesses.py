"""Calls as other frameworks have them: one sentence says how it is written here."""

import re

import pytest

import gluon_amp as amp

import mxnet as mx

NET = mx.gluon.nn.Dense(1, in_units=2)
NET.initialize()
PARAMS = NET.collect_params()
TRAINER = amp.Trainer(PARAMS, "sgd", loss_scale=8)

GUESSES = {
    "the net for its parameters": (lambda: amp.Trainer(NET, "sgd"), "amp.Trainer(net.collect_"),
    "an argument of the optimizer": (
        lambda: amp.Trainer(PARAMS, "sgd", learning_rate=0.1),
        "has no argument 'learning_rate': those of the optimizer stand in a dict, as in "
        "amp.Trainer(net.collect_params(), 'sgd', {'learning_rate': 0.1}).",
    ),
    "dtype=": (
        lambda: amp.cast(NET, dtype="float16"),
        "cast() has no argument 'dtype': the policy stands second, amp.cast(net, 'float16').",
    ),
    "no batch size": (lambda: TRAINER.step(), "as in trainer.step(batch_size)"),
    "no batch size in a clip": (lambda: TRAINER.clip_global_norm(1.0), "or to clip the sum."),
    "the net first": (
        lambda: amp.save_checkpoint(NET, "file", TRAINER),
        "amp.save_checkpoint('file', net, trainer).",
    ),
    "the net first, to load": (
        lambda: amp.load_checkpoint(NET, "file", TRAINER),
        "amp.load_checkpoint('file', net, trainer).",
    ),
    "the file first": (
        lambda: amp.export_onnx("net.onnx", NET, mx.nd.ones((1, 2))),
        "amp.export_onnx(net, path, data).",
    ),
}


@pytest.mark.parametrize("guess", GUESSES)
def test_a_first_guess_is_answered_by_the_right_line(guess):
    call, sentence = GUESSES[guess]
    with pytest.raises(TypeError, match=re.escape(sentence)) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_an_unknown_optimizer_gets_near_matches_and_no_names_of_tests():
    with pytest.raises(
        ValueError, match=r"'sgdd' \(did you mean 'sgd' or .*\): use one of "
    ) as got:
        amp.Trainer(PARAMS, "sgdd")
    names = str(got.value).partition("use one of ")[2]
    assert "adamw" in names and "amp_" not in names and "test" not in names
