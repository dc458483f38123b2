"""scripts/fine_tune.py and what it stands on: heads, exports, confusions."""

import json

import cv2
import numpy as np
import pytest

import gluon_amp as amp
from gluon_amp.training.data import open_digits, write_classes
from gluon_amp.training.networks.efficientnet_lite import EfficientNetLite0, published_names
from gluon_amp.training.networks.models import build
from gluon_amp.training.runs import network as network_build
from gluon_amp.training.runs.confusions import worst
from gluon_amp.training.runs.outputs import export
from gluon_amp.training.runs.recipe import FINE_TUNING, Recipe, read_fine_tuning
from tests.images import picture, write_folders, write_records
from tests.torch_files import as_zip
from tests.training.networks.efficientnet_lite_reference import seeded_weights
from tests.training.runs.scripts import load

import mxnet as mx
from mxnet import gluon, nd
from mxnet.gluon.model_zoo import vision


@pytest.fixture(scope="module")
def script():
    return load("fine_tune")


@pytest.fixture(autouse=True)
def no_data(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MXNET_GLUON_REPO", "http://127.0.0.1:9/")


@pytest.fixture(scope="module")
def trained():
    return {}


@pytest.fixture(autouse=True)
def one_source(monkeypatch, trained):
    """Train the network that knows the digits 0 to 4 once for this file, not once for each test."""
    train = network_build.digits_network

    def remembered(*arguments):
        if arguments not in trained:
            trained[arguments] = train(*arguments)
        return trained[arguments]

    monkeypatch.setattr(network_build, "digits_network", remembered)


def tune(script, tmp_path, *arguments):
    path = tmp_path / "summary.json"
    options = [*map(str, arguments), "--log-interval", "0", "--summary-json", str(path)]
    assert script.main(options) == 0
    return json.loads(path.read_text())


# ------------------------------------------------------------------------------------ options


def test_fine_tuning_has_the_same_options_with_other_defaults():
    recipe, options = read_fine_tuning([])
    assert options == {}
    for name, value in FINE_TUNING.items():
        assert getattr(recipe, name) == value != getattr(Recipe(), name)
    assert vars(recipe).keys() == vars(Recipe()).keys()


def test_the_faqs_command_is_understood():
    line = "--model resnet50_v1 --dataset caltech101 --gpus 0 --num-worker 30 --dtype float16"
    recipe, _ = read_fine_tuning(line.split())
    assert (recipe.model, recipe.dataset, recipe.num_workers) == ("resnet50_v1", "caltech101", 30)


# ------------------------------------------------------------------------------- the default data


def test_half_of_the_digits():
    source = open_digits(keep=range(5, 10))
    assert (source.train_images, source.val_images, source.classes) == (717, 179, 5)
    assert source.class_names == ("5", "6", "7", "8", "9")
    assert {int(source.val[n][1]) for n in range(179)} == set(range(5))


@pytest.mark.slow
def test_the_default_learns_in_every_dtype(script, tmp_path, capsys):
    summaries = {
        dtype: tune(script, tmp_path, "--dtype", dtype) for dtype in ("float32", "float16")
    }
    assert {summary["steps"] for summary in summaries.values()} == {8 * 45}
    assert min(summary["top1"] for summary in summaries.values()) > 95
    assert abs(summaries["float16"]["top1"] - summaries["float32"]["top1"]) <= 1.0


def test_features_are_copied_and_the_head_is_new(monkeypatch):
    """Both networks have five classes, so the shapes do not show which layers are the head."""
    source = build("cifar_resnet8_v1", 5)
    source.initialize(mx.init.Xavier())
    source(nd.zeros((1, 3, 32, 32)))
    monkeypatch.setattr(network_build, "digits_network", lambda *_: source)

    def copied(*arguments):
        recipe, _ = read_fine_tuning(["--model", "cifar_resnet8_v1", *arguments])
        net = network_build.build_network(recipe, 5, 32, [mx.cpu()])
        net(nd.zeros((1, 3, 32, 32)))
        return {
            own.name[len(net.prefix) :]: np.array_equal(own.data().asnumpy(), its.data().asnumpy())
            for own, its in zip(net.collect_params().values(), source.collect_params().values())
            if own.name.endswith("weight")
        }

    equal = copied()
    assert equal.pop("dense0_weight") is False
    assert all(equal.values()) and len(equal) > 5
    assert not any(copied("--from-scratch").values())


@pytest.mark.slow
def test_everything_that_is_written(script, tmp_path, capsys):
    summary = tune(
        script,
        tmp_path,
        *"--dtype float16 --epochs 2 --confusions 3".split(),
        *("--export", tmp_path / "out", "--save-dir", tmp_path / "saved"),
    )
    assert "Confused: " in capsys.readouterr().out
    assert len(summary["confusions"]) == 3
    counts = [confusion["count"] for confusion in summary["confusions"]]
    assert counts == sorted(counts, reverse=True)

    images = nd.array(np.random.RandomState(0).normal(size=(3, 3, 32, 32)))
    saved = build("cifar_resnet8_v1", 5)
    saved.load_parameters(str(tmp_path / "saved" / "digits-cifar_resnet8_v1-1.params"))
    prefix = tmp_path / "out" / "cifar_resnet8_v1-float32"
    stock = gluon.SymbolBlock.imports(f"{prefix}-symbol.json", ["data"], f"{prefix}-0000.params")
    # the exported values are the masters, bit for bit
    values = {p.name.split("_", 1)[1]: p.data().asnumpy() for p in stock.collect_params().values()}
    for param in saved.collect_params().values():
        name = param.name.split("_", 1)[1]
        assert values[name].dtype == np.float32
        assert values[name].tobytes() == param.data().asnumpy().tobytes()
    np.testing.assert_allclose(
        stock(images).asnumpy(), saved(images).asnumpy(), rtol=1e-5, atol=1e-5
    )

    prefix = tmp_path / "out" / "cifar_resnet8_v1-float16"
    graph = mx.sym.load(f"{prefix}-symbol.json")
    types, _, _ = graph.infer_type(data="float32", **{graph.list_arguments()[1]: "float16"})
    assert (
        np.float16 in types
    )  # stock MXNet accepts the file's dtypes, and cannot compute them here
    half = mx.nd.load(str(tmp_path / "out" / "cifar_resnet8_v1-float16-0000.params"))
    assert {array.dtype for name, array in half.items() if name.endswith("weight")} == {np.float16}
    assert {array.dtype for name, array in half.items() if name.endswith("gamma")} == {np.float32}


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ["--freeze-features", "--dtype", "float16"],
        ["--mode", "module", "--dtype", "float16"],
        ["--amp"],
    ],
)
def test_other_ways(script, tmp_path, capsys, arguments):
    summary = tune(script, tmp_path, "--epochs", "2", *arguments)
    assert summary["validated"] == 179
    assert summary["top1"] > 60  # of five classes; 70 and 78 were seen


def test_packed_data_with_names(script, tmp_path, capsys):
    folder = tmp_path / "caltech101" / "rec"
    folder.mkdir(parents=True)
    for part in ("train", "val"):
        write_records(folder, part, [0, 1, 0, 1])
    write_classes(folder, ["ant", "bee"])
    arguments = [
        "--dataset",
        "caltech101",
        "--data-dir",
        folder.parent,
        *(
            "--model mobilenet0.25 --from-scratch --input-size 32 --epochs 1 "
            "--warmup-epochs 0 --batch-size 2 --lr 0"
        ).split(),
    ]
    summary = tune(script, tmp_path, *arguments)
    assert summary["validated"] == 4
    for confusion in summary["confusions"]:
        assert {confusion["true"], confusion["taken_for"]} == {"ant", "bee"}


def image_folder(tmp_path):
    """Return a folder of classes with a damaged image, a text and a transparent image."""
    folder = write_folders(tmp_path / "pets", "", ["cat", "dog", "emu"], images=5)
    (folder / "emu" / "damaged.jpg").write_bytes(b"\xff\xd8 no image")
    (folder / "emu" / "notes.txt").write_text("not an image")
    transparent = np.dstack([picture(9), np.zeros((40, 40), "u1")])
    cv2.imwrite(str(folder / "dog" / "transparent.png"), transparent)
    return folder


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_anybodys_folder_with_pytorchs_weights(script, tmp_path, capsys, dtype):
    params = EfficientNetLite0()._collect_params_with_prefix().values()
    shapes = {name: param.shape for name, param in zip(published_names(), params)}
    (tmp_path / "weights.pth").write_bytes(as_zip(seeded_weights(shapes)))
    options = "--model efficientnet_lite0 --input-size 32 --epochs 1 --batch-size 4 --confusions 0"
    arguments = ["--image-folder", image_folder(tmp_path), "--dtype", dtype, *options.split()]
    summary = tune(script, tmp_path, *arguments, "--pretrained-file", tmp_path / "weights.pth")
    assert (summary["data"], summary["train_images"]) == ("folder-pets", 14)
    assert summary["val_images"] == 3 and summary["steps"] == 4
    assert "damaged.jpg" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("--image-folder .", "holds no folders: expected one for each class"),
        ("--image-folder none", "none is not a folder"),
        ("--image-folder . --dataset digits", "both name the data"),
        ("--dataset caltech256", "run `gluon-amp prepare-caltech --dataset caltech256`"),
        ("--dataset folder", "holds no classes to train on"),
        ("--from-scratch --freeze-features", "--freeze-features keeps features"),
        ("--from-scratch --freeze-statistics", "--freeze-statistics keeps statistics"),
        ("--from-scratch --pretrained-file a", "two ways to begin"),
        ("--pretrained-file none.params", "none.params cannot be read as parameters"),
        ("--num-classes 6", "--num-classes 6 was given, but digits has 5"),
        ("--mode module --export out", "--mode module has no --export"),
    ],
)
def test_bad_input_is_one_sentence(script, tmp_path, capsys, line, sentence, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert script.main(line.split()) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1


# ------------------------------------------------------------------------------------- the rest


def test_worst_confusions_of_a_literal_matrix():
    matrix = np.array([[5, 2, 0], [0, 9, 1], [3, 0, 0]])
    confusions = worst(matrix, ["a", "b", "c"], 2)
    assert [str(confusion) for confusion in confusions] == [
        "3 of 3 images of c taken for a",
        "2 of 7 images of a taken for b",
    ]
    assert worst(np.eye(3, dtype=int), (), 5) == []
    assert str(worst(matrix, (), 1)[0]) == "3 of 3 images of class 2 taken for class 0"


def test_an_export_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    net = build("mobilenet0.25", 3)
    net.initialize()
    net(nd.zeros((1, 3, 32, 32)))
    with pytest.raises(amp.recipes.checkpoints.SavingError, match="--export .* cannot be written"):
        export(net, "float32", tmp_path / "file", "net", (3, 32, 32))


def test_the_faqs_gluon_snippet_runs():
    """Pretrained, cast, features transplanted, cast, summary with float16 data; MXNet's FAQ."""
    pretrained_net = vision.get_model(name="resnet18_v2", classes=10)
    pretrained_net.initialize()
    pretrained_net(nd.zeros((1, 3, 32, 32)))
    amp.cast(pretrained_net, "float16")
    net = vision.get_model(name="resnet18_v2", classes=7)
    net.initialize()
    net.features = pretrained_net.features
    amp.cast(net, "float16")
    data = nd.zeros((1, 3, 32, 32), dtype="float16")
    net.summary(data)
    assert net(data).shape == (1, 7)
