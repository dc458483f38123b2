"""`gluon-amp train-text`: its runs, its checkpoints and its refusals."""

import contextlib
import io
import json
import math
import platform
import re
import shutil
from types import SimpleNamespace

import numpy as np
import pytest

from gluon_amp.inspection.describe import describe
from gluon_amp.lowering.emulation import is_emulated
from gluon_amp.training.console import train_text
from gluon_amp.training.data.text import CLASSES, open_text
from gluon_amp.training.runs.language.recipe import read
from gluon_amp.training.runs.language.run import build_network
from tests.training.runs.scripts import OF_THE_CLOCK

import mxnet as mx

# 2 epochs of 6 batches
SHORT = (
    "--characters 4000 --batch-size 8 --bptt 16 --max-batches 6 --num-epochs 2 --hidden 16 "
    "--embedding 8 --log-interval 1 --seed 3 --dtype float16 --save-batches 4 --keep 99"
).split()


def run(folder, *options):
    """Train in a folder; return the output, the parameters' bits, and the summary but for times."""
    kept = ["--save-dir", str(folder), "--summary-json", str(folder / "summary.json")]
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert train_text.main([*SHORT, *kept, *map(str, options)]) == 0
    (saved,) = folder.glob("*-1.params")
    arrays = mx.nd.load(str(saved))
    summary = json.loads((folder / "summary.json").read_text())
    return SimpleNamespace(
        out=out.getvalue(),
        parameters={name: array.asnumpy().tobytes() for name, array in arrays.items()},
        summary={name: value for name, value in summary.items() if name not in OF_THE_CLOCK},
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("saved")


@pytest.fixture(scope="module")
def whole(folder):
    return run(folder)


@pytest.mark.parametrize(
    "kind, dtype",
    [("lstm", "bfloat16"), ("transformer", "float16")],
)
def test_a_run_learns(kind, dtype, tmp_path, capsys):
    path = tmp_path / "summary.json"
    arguments = (
        "--characters 20000 --batch-size 8 --bptt 16 --num-epochs 2 --hidden 32 --embedding 32 "
        f"--lr 0.02 --log-interval 0 --dtype {dtype} --model {kind} --summary-json {path}"
    )
    assert train_text.main(arguments.split()) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    plan, *_, results = captured.out.split("\n\n")
    assert max(map(len, [*plan.splitlines(), *results.splitlines()])) <= 80
    assert "images" not in captured.out and f"Python {platform.python_version()}" in captured.out
    summary = json.loads(path.read_text())
    of_kind = {"LayerNorm": "float32", "batch_dot": "float32"}
    body = of_kind if kind == "transformer" else {"RNN": dtype}
    expected = {"Embedding": "float32", **body, "FullyConnected": dtype}
    assert summary["observed_dtypes"] == expected
    assert summary["emulated"] == is_emulated(dtype)
    # 2000 characters in 64 streams: 31 of each have a next one, and every one of them counts
    assert summary["validated"] == summary["val_images"] == 64 * 31
    assert "validated   1984/1984 characters" in captured.out
    text = open_text(20000)
    share = (np.bincount(text.train, minlength=CLASSES) + 1) / (len(text.train) + CLASSES)
    guess = -np.log2(share[text.val]).mean()  # of who knows how frequent each character is
    assert 4 < guess < math.log2(CLASSES)  # 4.9 with the text of Python 3.8
    assert summary["bits_per_character"] < guess - 0.4
    nats = summary["bits_per_character"] * math.log(2)
    assert summary["cross_entropy"] == pytest.approx(nats, rel=1e-12)
    first, second = summary["cross_entropy_by_epoch"]
    assert first > second == summary["cross_entropy"]
    assert f"  bits {summary['bits_per_character']:.4g}\n" in captured.out


def test_a_transformer_goes_on_in_mid_epoch_without_states(tmp_path):
    options = ["--model", "transformer", "--dropout", "0.1", "--tied"]
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir(), second.mkdir()
    whole = run(first, *options)
    (middle,) = first.glob("epoch001-sample000005*.ckpt")
    shutil.copy(middle, second)
    resumed = run(second, *options, "--resume", "auto")
    assert (resumed.parameters, resumed.summary) == (whole.parameters, whole.summary)


def test_a_run_goes_on_in_mid_epoch_with_its_states(whole, folder, tmp_path):
    (middle,) = folder.glob("epoch001-sample000005*.ckpt")  # after 4 batches of 8 × 16
    shutil.copy(middle, tmp_path)
    resumed = run(tmp_path, "--resume", "auto")
    assert re.search(r"Resuming from .*: epoch 2/2, 512 samples done", resumed.out)
    assert "Epoch 1/" not in resumed.out
    assert (resumed.parameters, resumed.summary) == (whole.parameters, whole.summary)


@pytest.mark.parametrize(
    "changed, words",
    [
        (["--hidden", "8", "--resume"], "with the model 1-layer LSTM of 16"),
        (["--without", "masters", "--resume"], "with --dtype float16, and this one has --dtype"),
        (["--bptt", "8", "--resume", "MIDDLE"], "with 8 × 16 samples in an update, in the middle"),
    ],
)
def test_another_run_is_not_gone_on_with(changed, words, whole, folder, tmp_path, refused):
    shutil.copytree(folder, tmp_path / "saved")
    (middle,) = (tmp_path / "saved").glob("epoch001-sample000005*.ckpt")
    (tmp_path / "saved" / "epoch002-sample00000000.ckpt").unlink()
    options = [str(middle) if word == "MIDDLE" else word for word in changed]
    line = [*SHORT, "--save-dir", tmp_path / "saved", *options]
    assert words in refused(train_text.main, line)


@pytest.mark.parametrize(
    "line, sentence",
    [
        ("--model transformer --embedding 30", "--embedding 30 cannot be shared by --heads 4"),
        ("--characters 1000 --batch-size 64", "1000 are not enough for 64 streams of 32 char"),
        ("--tied", "give --hidden 64 as well"),
        ("--without masters", "is for --dtype float16"),
        ("--without wide-norms --dtype float16", "is for --model transformer"),
    ],
)
def test_what_does_not_fit_the_network_or_the_text_is_one_sentence(line, sentence, refused):
    assert sentence in refused(train_text.main, line.split())


def test_a_control_pins_what_it_names():
    words = "--model transformer --dtype float16 --embedding 8 --hidden 8 --without".split()
    inputs, observed = mx.nd.zeros((2, 4), dtype="int32"), {}
    for control in ("wide-norms", "wide-attention"):
        net = build_network(read([*words, control]), [mx.cpu()])
        rows = describe(net, inputs).rows
        observed[control] = {row.op: row.compute_dtype for row in rows}
    for op in ("mean", "square", "rsqrt"):
        assert observed["wide-norms"][op] == "float16"
    assert observed["wide-norms"]["batch_dot"] == observed["wide-attention"]["LayerNorm"]
    for op in ("batch_dot", "softmax"):
        found = (observed["wide-attention"][op], observed["wide-norms"][op])
        assert found == ("float16", "float32")


def test_the_learning_rate_follows_the_streams():
    assert [read([]).learning_rate(streams) for streams in (32, 64)] == [0.004, 0.008]
    assert read(["--lr", "0.5"]).learning_rate(64) == 0.5
