"""`gluon-amp export`: the network of a checkpoint, with what is known of its inputs."""

import json

import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp.training.console import export, train, train_text
from gluon_amp.training.runs import checkpoints
from gluon_amp.training.runs.exporting import of_checkpoint

import mxnet as mx
from mxnet import nd

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


def outputs(path, data):
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(None, {"data": data})[0]


def test_a_run_becomes_a_file_that_says_how_to_use_it(trained, tmp_path, capsys):
    path = tmp_path / "net.onnx"
    assert export.main([str(trained.save_dir), "--output", str(path)]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{path}: ONNX opset 13, float32, ")
    metadata = {one.key: one.value for one in onnx.load(path).metadata_props}
    assert json.loads(metadata["classes"]) == [str(digit) for digit in range(10)]
    assert json.loads(metadata["mean"]) == [0.305] * 3
    assert metadata["interpolation"] == "bilinear, without antialiasing"
    assert (metadata["model"], metadata["data"]) == ("cifar_resnet8_v1", "digits")
    best = of_checkpoint(trained.save_dir / "best.ckpt", None, False, 3)
    expected = best.net(best.inputs[0]).asnumpy()
    np.testing.assert_allclose(outputs(path, best.inputs[0].asnumpy()), expected, atol=1e-5)


def test_averaged_weights_are_another_file(fashion, tmp_path, capsys):
    assert train.main([*fashion, "--ema-decay", "0.5", "--save-dir", str(tmp_path)]) == 0
    found = []
    for more in ([], ["--average"]):
        path = tmp_path / f"{len(more)}.onnx"
        assert export.main([str(tmp_path), "--output", str(path), *more]) == 0
        found.append(outputs(path, np.ones((2, 3, 28, 28), np.float32)))
    assert abs(found[0] - found[1]).max() > 1e-3
    assert capsys.readouterr().err == ""


def test_a_language_model_keeps_its_states_as_inputs(tmp_path, capsys):
    words = "--characters 3000 --epochs 1 --bptt 8 --batch-size 4 --hidden 8 --embedding 4 "
    words = [*words.split(), "--max-batches", "2", "--save-dir", str(tmp_path / "run")]
    assert train_text.main(words) == 0
    capsys.readouterr()
    path = tmp_path / "text.onnx"
    assert export.main([str(tmp_path / "run"), "--output", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split()[1:] == "data0 batch x 16 float32".split()
    assert lines[2].split()[1:4] == "data1 2 x".split() or "batch x 8" in lines[2]


def test_files_of_mxnet_are_exported_by_shape(tmp_path, capsys, refused):
    net = mx.gluon.nn.Dense(2, in_units=3)
    net.initialize()
    net.hybridize()
    net(nd.ones((1, 3)))
    net.export(str(tmp_path / "net"))
    symbol, params = (str(tmp_path / f"net-{end}") for end in ("symbol.json", "0000.params"))
    output = ["--output", str(tmp_path / "net.onnx")]
    assert export.main([symbol, "--params", params, "--shape", "4,3", *output]) == 0
    assert "batch x 2 float32" in capsys.readouterr().out
    for words, sentence in (
        (["--params", params], "give --params and --shape"),
        (["--params", params, "--shape", "4,3", "--shape", "1"], "has 1 inputs (data): give"),
        (["--params", symbol, "--shape", "4,3"], "are not a network"),
    ):
        assert sentence in refused(export.main, [symbol, *words, *output])


def test_files_of_a_module_that_casts_to_float16_itself(tmp_path, capsys):
    """Its label is no input."""
    symbol = mx.sym.FullyConnected(mx.sym.var("data").astype("float16"), num_hidden=2, name="fc")
    symbol = mx.sym.SoftmaxOutput(symbol, mx.sym.var("truth"))
    files = [str(tmp_path / name) for name in ("net-symbol.json", "net-0000.params")]
    symbol.save(files[0])
    values = {"arg:fc_weight": nd.ones((2, 3)), "arg:fc_bias": nd.zeros(2)}
    nd.save(files[1], {name: value.astype("float16") for name, value in values.items()})
    words = [files[0], "--params", files[1], "--shape", "4,3", "--output", str(tmp_path / "n.onnx")]
    assert export.main(words) == 0
    out = capsys.readouterr().out
    assert "input   data     batch x 3 float32" in out and "output   batch x 2 float32" in out


def test_what_cannot_be_exported_is_one_sentence(trained, tmp_path, refused):
    checkpoint = str(trained.save_dir / "best.ckpt")
    output = ["--output", str(tmp_path / "net.onnx")]
    (tmp_path / "empty").mkdir()
    (tmp_path / "wrong.ckpt").write_bytes(b"no archive")
    for words, sentence in (
        ([str(tmp_path / "none.ckpt")], "does not exist: give a checkpoint or its folder."),
        ([str(tmp_path / "empty")], "has no checkpoint"),
        ([str(tmp_path / "wrong.ckpt")], "was not written by amp.save_checkpoint"),
        ([checkpoint, "--average"], "has no averaged weights: leave out --average."),
        ([checkpoint, "--input-size", "64"], "is of images of 32 pixels."),
        ([checkpoint, "--policy", "float15"], "float15"),
    ):
        assert sentence in refused(export.main, [*words, *output])


def test_a_checkpoint_of_an_earlier_version_needs_the_size(trained, tmp_path, monkeypatch):
    """It does not say how images become inputs."""
    path = trained.save_dir / "best.ckpt"
    extra = checkpoints.read_extra(path)
    del extra["progress"]["about"]
    monkeypatch.setattr(checkpoints, "read_extra", lambda file: extra)
    with pytest.raises(ValueError, match="did not save the size of the images: give --input-size"):
        of_checkpoint(path, None, False, 2)
    assert of_checkpoint(path, 32, False, 2).inputs[0].shape == (2, 3, 32, 32)
    assert set(of_checkpoint(path, 32, False, 2).metadata) == {"model", "data"}
    assert amp.policy_of(of_checkpoint(path, 32, False, 2).net).compute_dtype == "float32"
