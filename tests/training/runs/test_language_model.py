"""The character language model: its text, its training, and scripts/train_lstm.py from outside."""

import json
import math
import re
import signal
import subprocess
import sys

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp.lowering.emulation import is_emulated
from gluon_amp.training.data import DataError
from gluon_amp.training.data.text import (
    CLASSES,
    SHARE,
    UNKNOWN,
    VOCABULARY,
    Chunks,
    encode,
    open_text,
    read_sources,
    split,
)
from gluon_amp.training.networks.language_model import LanguageModel
from gluon_amp.training.runs.engines.language import LanguageEngine
from gluon_amp.training.runs.history import Counts
from gluon_amp.training.runs.meters import Mean
from tests import ROOT
from tests.training.runs.scripts import OF_THE_CLOCK, environment, load

import mxnet as mx
from mxnet import nd

SCRIPT = ROOT / "scripts" / "train_lstm.py"
# 3 epochs of 6 batches
SHORT = (
    "--characters 4000 --batch-size 8 --bptt 16 --max-batches 6 --num-epochs 3 --hidden 16 "
    "--embedding 8 --log-interval 1 --seed 3"
).split()


def run(*arguments, **changes):
    """Run the script as a user does."""
    return subprocess.run(
        command(*arguments),
        cwd=ROOT,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=200,
        env=environment(**changes),
    )


def command(*arguments):
    return [sys.executable, "-u", str(SCRIPT), *map(str, arguments)]


# --------------------------------------------------------------------------------------- text


def test_every_character_of_the_vocabulary_has_a_class_of_its_own():
    assert CLASSES == 98
    assert encode(VOCABULARY).tolist() == list(range(97))
    assert encode(" !~\n\t").tolist() == [0, 1, 94, 95, 96]


def test_whatever_else_there_is_has_the_last_class():
    assert encode("aé\r\x00\x7f€𝄞\ud800b").tolist() == [65, *[UNKNOWN] * 7, 66]
    assert encode("").tolist() == []


@pytest.fixture
def sources(tmp_path):
    """Forty files of 100 characters, each of a letter of its own."""
    folder = tmp_path / "python3"
    folder.mkdir()
    for number in range(40):
        (folder / f"m{number:02d}.py").write_text(chr(65 + number) * 100)
    return folder


def test_files_that_are_no_sources_are_left_out(sources):
    (sources / "latin.py").write_bytes("# -*- coding: latin-1 -*-\n# é".encode("latin-1"))
    (sources / "_sysconfigdata__linux_.py").write_text("build_time_vars = {}")
    (sources / "notes.txt").write_text("no source")
    (sources / "test").mkdir()
    (sources / "test" / "test_it.py").write_text("no source of the library")
    assert list(read_sources(sources)) == [f"m{number:02d}.py" for number in range(40)]


def test_no_file_trains_and_validates(sources):
    training, validating = split([f"m{number:02d}.py" for number in range(40)])
    assert (len(training), len(validating)) == (36, 4)
    assert len({*training, *validating}) == 40
    text = open_text(3600, sources)
    assert (text.train.shape, text.val.shape) == ((3600,), (360,))
    assert not set(text.train) & set(text.val)
    assert len(set(text.train)) == 36


def test_the_split_does_not_depend_on_the_order_or_on_what_is_cut_off(sources):
    names = [f"m{number:02d}.py" for number in range(40)]
    assert split(names[::-1]) == split(names)
    whole, part = open_text(3600, sources), open_text(1000, sources)
    assert part.train.tolist() == whole.train[:1000].tolist()
    assert part.val.tolist() == whole.val[:100].tolist()


def test_too_few_characters(sources):
    with pytest.raises(DataError, match="has 3600 characters for training, but 3601 were req"):
        open_text(3601, sources)


def test_no_sources(tmp_path):
    for folder in (tmp_path, tmp_path / "absent"):
        with pytest.raises(DataError, match="has no sources of Python's standard library"):
            open_text(100, folder)


def test_the_standard_library_of_this_python():
    text = open_text(100_000)
    version = ".".join(map(str, sys.version_info[:3]))
    assert text.name == f"standard library of Python {version}"
    assert text.val.shape == (100_000 // SHARE,)
    for codes in (text.train, text.val):
        assert codes.dtype == np.int32 and codes.min() >= 0 and codes.max() < CLASSES
        assert (codes == UNKNOWN).mean() < 0.01
        assert "return" in "".join((*VOCABULARY, "?")[code] for code in codes)


# ------------------------------------------------------------------------------------- chunks


def test_chunks_of_two_streams():
    chunks = Chunks(np.arange(12), streams=2, length=2, whole=False)
    assert [chunk.inputs.asnumpy().tolist() for chunk in chunks] == [
        [[0, 1], [5, 6]],
        [[2, 3], [7, 8]],
        [[4], [9]],
    ]
    assert [chunk.labels.asnumpy().tolist() for chunk in chunks] == [
        [[1, 2], [6, 7]],
        [[3, 4], [8, 9]],
        [[5], [10]],
    ]
    assert [chunk.first for chunk in chunks] == [True, False, False]
    assert (len(chunks), chunks.images, chunks.batch_size) == (3, 10, 4)
    whole = Chunks(np.arange(12), streams=2, length=2, whole=True)
    assert (len(whole), whole.images) == (2, 8)


@pytest.mark.parametrize("streams, length, whole", [(1, 1, True), (3, 7, True), (8, 5, False)])
def test_streams_are_contiguous_and_labels_are_what_follows(streams, length, whole):
    text = np.random.default_rng(0).integers(0, CLASSES, 1000).astype(np.int32)
    chunks = Chunks(text, streams, length, whole)
    inputs, labels = (
        np.concatenate([chunk[part].asnumpy() for chunk in chunks], axis=1).ravel()
        for part in (0, 1)
    )
    assert inputs.dtype == labels.dtype == np.int32
    assert len(inputs) == chunks.images > 1000 - streams * (length + 1)
    np.testing.assert_array_equal(inputs, text[: len(inputs)])
    np.testing.assert_array_equal(labels, text[1 : len(inputs) + 1])


def test_an_epoch_begins_anywhere():
    chunks = Chunks(np.arange(100), 4, 5, whole=True)
    later = [chunk.inputs.asnumpy().tolist() for chunk in chunks.epoch(start=2)]
    assert later == [chunk.inputs.asnumpy().tolist() for chunk in chunks][2:]
    assert not next(chunks.epoch(start=2)).first


def test_a_text_that_is_too_short_has_no_chunks():
    assert len(Chunks(np.arange(8), 4, 2, whole=True)) == 0


# ------------------------------------------------------------------------------------- engine


def engine(dtype="float32", devices=1, clip=None, rate=0.01, **trainer):
    mx.random.seed(0)
    contexts = [mx.cpu(number) for number in range(devices)]
    net = LanguageModel(CLASSES, embedding=8, hidden=16, layers=2)
    net.initialize(mx.init.Xavier(), ctx=contexts)
    amp.cast(net, dtype)
    net.hybridize(static_alloc=True)
    sgd = amp.Trainer(net.collect_params(), "sgd", {"learning_rate": rate}, **trainer)
    return LanguageEngine(net, sgd, contexts, clip)


def chunks_of_noise(streams=4, length=5, number=3):
    codes = np.random.default_rng(0).integers(0, CLASSES, streams * length * number + 1)
    return list(Chunks(codes, streams, length, whole=True))


def test_states_are_carried_on_and_begin_with_zeros():
    """Predicting in chunks is predicting at once."""
    one = engine()
    codes = np.random.default_rng(0).integers(0, CLASSES, 61)
    several, whole = (Chunks(codes, 4, length, whole=True) for length in (5, 15))

    def predicted(chunks):
        losses = Mean()
        for chunk in chunks:
            for labels, outputs in one.predict(chunk):
                losses.update(one.cross_entropy(labels, outputs))
        return losses.value

    def logits(chunks):
        parts = [out.asnumpy() for chunk in chunks for _, out in one.predict(chunk)]
        return np.concatenate([p.reshape(4, -1, CLASSES) for p in parts], axis=1)

    assert len(several) == 3 and len(whole) == 1
    np.testing.assert_allclose(logits(several), logits(whole), rtol=1e-4, atol=1e-6)
    nats = predicted(several)
    np.testing.assert_array_equal(logits(several), logits(several))  # the second from zeros again
    assert predicted(whole) == pytest.approx(nats, rel=1e-5)
    assert nats == pytest.approx(math.log(CLASSES), rel=0.01)  # it has learned nothing yet


def test_two_devices_do_what_one_does():
    results = []
    for devices in (1, 2):
        one = engine(devices=devices, rate=1.0)
        for number, chunk in enumerate(chunks_of_noise()):
            one.step([chunk], 0, number, Counts())
        params = [p.data(mx.cpu(0)).asnumpy() for p in one.net.collect_params().values()]
        results.append([*map(np.array, one.state()), *params])
    for alone, together in zip(*results):
        np.testing.assert_allclose(alone, together, rtol=1e-4, atol=1e-6)


def test_a_state_goes_on_on_other_devices():
    first, second, _ = chunks_of_noise(streams=5)
    states = []
    for devices in (1, 2, 3):
        one = engine(rate=0.0, devices=1)
        one.step([first], 0, 0, Counts())
        state = one.state()
        assert np.shape(state) == (2, 2, 5, 16)  # of two kinds, in two layers
        other = engine(rate=0.0, devices=devices)
        other.restore(state)
        assert other.state() == state
        other.step([second], 0, 1, Counts())
        states.append(other.state())
    for state in states[1:]:
        np.testing.assert_allclose(state, states[0], rtol=1e-5, atol=1e-7)


def test_the_emulated_lstm_rounds_what_goes_in_and_comes_out():
    outputs = []
    for dtype in ("float32", "float16"):
        mx.random.seed(0)
        lstm = mx.gluon.rnn.LSTM(16, input_size=8)
        lstm.initialize(mx.init.Uniform(1.0))
        for param in lstm.collect_params().values():
            param.set_data(param.data().astype("float16").astype("float32"))
        amp.cast(lstm, dtype)
        inputs = nd.random.normal(shape=(40, 2, 8)).astype("float16").astype("float32")
        outputs.append(lstm(inputs).asnumpy())
    single, half = outputs
    assert (single != half).any()
    np.testing.assert_array_equal(single.astype("float16").astype("float32"), half)


def test_clipping_is_of_the_gradient_of_the_mean_loss_without_its_scale():
    norms = []
    for dtype, trainer in (("float32", {}), ("float16", {"loss_scale": 64.0})):
        one = engine(dtype, clip=1e-3, rate=1.0, **trainer)
        before = [p.data().asnumpy().astype("f8") for p in one.net.collect_params().values()]
        report = one.step([chunks_of_noise()[0]], 0, 0, Counts())
        after = [p.data().asnumpy().astype("f8") for p in one.net.collect_params().values()]
        assert report.applied and report.grad_norm > 0.01
        norms.append(report.grad_norm)
        if dtype == "float32":
            moved = math.sqrt(sum(((a - b) ** 2).sum() for a, b in zip(after, before)))
            assert moved == pytest.approx(1e-3, rel=0.01)
    assert norms[1] == pytest.approx(norms[0], rel=0.01)


def test_a_skipped_step_leaves_the_states_as_they_were():
    one = engine("float16", loss_scale=amp.DynamicLossScale(2.0**15))
    first, second, _ = chunks_of_noise()
    one.trainer.loss_scale.scale = 1.0
    counts = Counts()
    assert one.step([first], 0, 0, counts).applied
    before = one.state()
    assert np.abs(before).min() > 0
    losses = counts.loss.images
    one.trainer.loss_scale.scale = 2.0**24  # too much for float16's gradients
    assert not one.step([second], 0, 1, counts).applied
    assert one.state() == before
    assert (counts.loss.images, counts.accuracy.images) == (losses, 2 * second.labels.size)


# ----------------------------------------------------------------------------------- the script


@pytest.mark.parametrize(
    "dtype, rnn", [("float32", "float32"), ("float16", "float16"), ("bfloat16", "float32")]
)
def test_a_run_learns_in_every_dtype(dtype, rnn, script, tmp_path, capsys):
    path = tmp_path / "summary.json"
    arguments = (
        "--characters 40000 --batch-size 8 --bptt 16 --num-epochs 2 --hidden 32 --embedding 16 "
        f"--lr 0.02 --log-interval 0 --dtype {dtype} --summary-json {path}"
    )
    assert script.main(arguments.split()) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    plan, *_, results = captured.out.split("\n\n")
    assert max(map(len, [*plan.splitlines(), *results.splitlines()])) <= 80
    assert "images" not in captured.out
    summary = json.loads(path.read_text())
    assert summary["observed_dtypes"] == {
        "Embedding": "float32",
        "RNN": rnn,
        "FullyConnected": dtype,
    }
    assert summary["emulated"] == is_emulated(dtype)
    # 4000 characters in 64 streams: 62 of each have a next one, and every one of them counts
    assert summary["validated"] == summary["val_images"] == 64 * 62
    assert "[Epoch 1] validated 3968/3968" in captured.out
    most_frequent = 100 * np.bincount(open_text(40000).val).max() / 4000
    assert 10 < most_frequent < 25
    assert summary["top1"] > most_frequent + 5
    assert summary["bits_per_character"] < 0.8 * math.log2(CLASSES)
    nats = summary["bits_per_character"] * math.log(2)
    assert summary["cross_entropy"] == pytest.approx(nats, rel=1e-12)
    first, second = summary["cross_entropy_by_epoch"]
    assert first > second == summary["cross_entropy"]
    assert f"bits per character={summary['bits_per_character']:f}" in captured.out


def outcome(folder):
    """Parameters in all their bits, and the summary but for its times."""
    arrays = mx.nd.load(str(folder / "saved" / "lstm-2.params"))
    summary = json.loads((folder / "summary.json").read_text())
    kept = {name: value for name, value in summary.items() if name not in OF_THE_CLOCK}
    return {name: value.asnumpy().tobytes() for name, value in arrays.items()}, kept


def kept_in(folder, *more):
    saved = ("--save-dir", folder / "saved", "--summary-json", folder / "summary.json")
    return [*SHORT, "--dtype", "float16", "--save-batches", 4, *saved, *more]


@pytest.mark.parametrize("name, status", [("SIGKILL", -9), ("SIGTERM", 143)])
def test_an_ended_run_goes_on_as_if_nothing_had_happened(name, status, tmp_path, uninterrupted):
    arguments = kept_in(tmp_path, "--resume", "auto")
    process = subprocess.Popen(
        command(*arguments),
        env=environment(),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    for line in process.stdout:
        if "Epoch[1] Batch [4]" in line:
            break
    process.send_signal(getattr(signal, name))
    output, error = process.communicate(timeout=100)
    assert process.returncode == status, (output, error)
    if name == "SIGTERM":
        assert "interrupted by signal 15: saved; go on with --resume auto." in error
    done = run(*arguments)
    assert done.returncode == 0, done.stderr
    assert "Going on from" in done.stdout and "Epoch[0]" not in done.stdout
    assert re.search(r": epoch 1, [1-9]\d* samples done", done.stdout)  # in mid-epoch, with states
    assert outcome(tmp_path) == uninterrupted


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("uninterrupted")
    done = run(*kept_in(folder))
    assert done.returncode == 0, done.stderr
    return outcome(folder)


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["--dtype", "float17"], "argument --dtype: expected float32, float16"),
        (["--bptt", "0"], "argument --bptt: expected a whole number of at least 1, got '0'"),
        (["--resume", "auto"], "--resume auto looks into --save-dir, which was not given."),
        (["--cpus", "2", "--gpus", "0"], "--cpus and GPUs were both asked for"),
        (["--characters", "1000", "--batch-size", "64"], "--characters 1000 are not enough for 64"),
        (["--characters", "999999999"], "but 999999999 were requested"),
        (["--gpus", "99"], "GPU 99 was asked for, but MXNet sees"),
        (["--summary-json", "absent/file"], "--summary-json absent/file cannot be written"),
    ],
)
def test_bad_input_is_one_sentence(arguments, sentence, script, capsys):
    try:
        status = script.main(arguments)
    except SystemExit as refused:  # by the parser
        status = refused.code
    captured = capsys.readouterr()
    assert status == 2
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert sentence in captured.err


@pytest.mark.parametrize(
    "changed, words",
    [
        (["--hidden", "8"], "with the model 1-layer LSTM of 16"),
        (["--characters", "5000"], "with 4000 training samples, and this one has 5000"),
        (["--dtype", "bfloat16"], "with --dtype float16"),
    ],
)
def test_another_run_is_not_gone_on_with(changed, words, script, tmp_path, capsys):
    arguments = [*kept_in(tmp_path), "--num-epochs", "1", "--max-batches", "1"]
    arguments = [str(text) for text in arguments]
    assert script.main(arguments) == 0
    capsys.readouterr()
    assert script.main(arguments) == 2
    assert "holds checkpoints of an earlier run" in capsys.readouterr().err
    assert script.main([*arguments, *changed, "--resume", "auto"]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("chosen", "policies"), [({}, "pa"), ({"OMP_WAIT_POLICY": "passive"}, "p")]
)
def test_the_wait_policy_reaches_openmp_unless_the_user_has_set_one(chosen, policies):
    # libgomp prints its settings whenever it loads; one thread has nobody to wait for
    changes = {"OMP_DISPLAY_ENV": "true", "OMP_NUM_THREADS": "1", **chosen}
    short = [*SHORT, "--num-epochs", "1", "--max-batches", "1", "--wait-policy", "active"]
    done = run(*short, **changes)
    assert done.returncode == 0, done.stderr
    shown = re.findall(r"OMP_WAIT_POLICY = '(\w)", done.stderr)
    assert "".join(dict.fromkeys(shown)).lower() == policies


@pytest.fixture(scope="module")
def script():
    return load("train_lstm")


def test_the_recipe_gives_a_table(tmp_path, capsys):
    output = tmp_path / "table"
    short = (
        "--characters 4000 --max-batches 2 --num-epochs 1 --bptt 8 --hidden 8 --embedding 4"
    ).split()
    arguments = ["--recipe", "lstm", "--seeds", "1", "--output", str(output), "--", *short]
    assert load("results_table").main(arguments) == 0, capsys.readouterr().err
    printed = capsys.readouterr().out
    rows = json.loads((output / "results.json").read_text())["rows"]
    emulated = {row["configuration"]["name"]: row["emulated"] for row in rows}
    assert emulated == {
        "float32-32": False,
        "float16-32": True,
        "bfloat16-32": is_emulated("bfloat16"),
        "float16-first-scale-65536-32": True,
        "float16-scale-16-32": True,
        "float32-64": False,
        "float16-64": True,
    }
    page = (output / "results.md").read_text()
    for text in (printed, page):
        assert "1-layer LSTM of 8, embedding of 4 on standard library of Python 3." in text
        assert "(4,000 + 384 samples)" in text
        assert "only the dense layer computes in bfloat16, and the LSTM in float32." in text
