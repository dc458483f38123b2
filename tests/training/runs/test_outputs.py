"""The files that a run writes: checked before it trains, and written whole."""

import sys

import numpy as np
import pytest

from gluon_amp.base.messages import UsageError
from gluon_amp.training.runs import outputs
from gluon_amp.training.runs.recipe import read

import mxnet as mx
from mxnet import gluon, nd


def test_parameters_are_written_in_one_piece(tmp_path, small_disk):
    net = gluon.nn.Dense(10, in_units=10)  # less than a buffer, which MXNet does not check
    net.initialize()
    path = tmp_path / "net.params"
    path.write_bytes(b"the one before")
    with small_disk(300), pytest.raises(outputs.SavingError, match="net.params cannot be written"):
        outputs.save_parameters(net, path)
    assert [each.name for each in tmp_path.iterdir()] == ["net.params"]
    assert path.read_bytes() == b"the one before"
    outputs.save_parameters(net, path)
    assert set(nd.load(str(path))) == {"weight", "bias"}


def test_an_export_has_the_bits_of_the_masters_and_the_dtypes_of_the_policy(trained):
    (params,) = trained.save_dir.glob("*.params")
    saved = nd.load(str(params))
    prefix = trained.export / "cifar_resnet8_v1"
    stock = gluon.SymbolBlock.imports(
        f"{prefix}-float32-symbol.json", ["data"], f"{prefix}-float32-0000.params"
    )
    values = sorted(p.data().asnumpy().tobytes() for p in stock.collect_params().values())
    assert values == sorted(array.asnumpy().tobytes() for array in saved.values())
    assert {array.dtype for array in saved.values()} == {np.float32}
    assert stock(nd.zeros((1, 3, 32, 32))).shape == (1, 10)
    graph = mx.sym.load(f"{prefix}-float16-symbol.json")
    types, _, _ = graph.infer_type(data="float32", **{graph.list_arguments()[1]: "float16"})
    assert np.float16 in types
    for name, array in nd.load(f"{prefix}-float16-0000.params").items():
        assert array.dtype == (np.float16 if name.endswith(("weight", "bias")) else np.float32)


def test_what_cannot_be_written_is_known_before_the_run(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    for option, path, reason in (
        ("summary-json", tmp_path, "--summary-json .* is a directory, expected a file"),
        ("plot", tmp_path / "none" / "a.png", "--plot .* there is no directory"),
        ("save-dir", tmp_path / "file", "--save-dir .* cannot be created: .*/file is a file"),
        ("export", tmp_path / "file" / "x", "--export .* cannot be created: .*/file is a file"),
    ):
        with pytest.raises(UsageError, match=reason):
            outputs.check_outputs(read([f"--{option}", str(path)]))
    folder = str(tmp_path / "new" / "folder")
    recipe = read(["--save-dir", folder, "--tensorboard", folder, "--export", folder])
    outputs.check_outputs(recipe)
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(UsageError, match="--tensorboard needs tensorboardX: run `pip install"):
        outputs.check_outputs(recipe)
    assert not (tmp_path / "new").exists()  # a run that cannot begin leaves nothing


def test_an_output_that_cannot_be_written_does_not_keep_the_others_from_it():
    written = []

    def fails():
        raise outputs.SavingError("it cannot be written.")

    last = outputs.Output(lambda: written.append(True))
    outputs.write_outputs([outputs.Output(fails, required=False), last])
    with pytest.raises(outputs.SavingError, match="it cannot be written"):
        outputs.write_outputs([outputs.Output(fails), last])
    assert len(written) == 2
