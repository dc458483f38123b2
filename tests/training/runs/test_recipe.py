"""The recipe: what its options mean together, and the defaults of data, networks and commands."""

import contextlib
import io

import pytest

from gluon_amp.base.messages import UsageError
from gluon_amp.training.networks.models import MXNET_MODELS, OWN_MODELS, build
from gluon_amp.training.runs.defaults import FINE_TUNING, input_side
from gluon_amp.training.runs.recipe import read, read_fine_tuning
from gluon_amp.training.runs.schedule import Schedule

import mxnet as mx


def test_fine_tuning_has_the_same_options_with_other_defaults(tmp_path):
    (tmp_path / "pets").mkdir()
    recipe = read_fine_tuning(["--image-folder", str(tmp_path / "pets")])
    usual = read(["--dataset", "imagenet"])
    for name, value in {**FINE_TUNING, "dataset": "folder"}.items():
        assert getattr(recipe, name) == value != getattr(usual, name)
    assert recipe.mapping.keys() == usual.mapping.keys()
    line = "--model resnet50_v1 --dataset caltech101 --gpus 0 --num-worker 30 --dtype float16"
    recipe = read_fine_tuning(line.split())  # of MXNet's FAQ
    assert (recipe.model, recipe.data, recipe.num_workers) == ("resnet50_v1", "caltech101", 30)


def test_a_recipe_cannot_be_changed():
    recipe = read(["--batch-size", "3"])
    with pytest.raises(AttributeError, match="seed cannot be set"):
        recipe.seed = 7
    with pytest.raises(AttributeError, match="a recipe has no option 'batchsize'"):
        recipe.batchsize  # noqa: B018
    assert recipe.batch_size == 3


@pytest.mark.parametrize(
    "line, sentence",
    [
        ("--dtype float16 --amp", "--amp and --dtype both choose the dtype: give one"),
        ("--cpus 2 --gpus 0", "--cpus and GPUs were both asked for"),
        ("--resume auto", "--resume auto looks into --save-dir"),
        ("--resume a --resume-epoch 3", "--resume and --resume-epoch both choose where to resume"),
        ("--resume-epoch 3", "--resume-epoch and --resume-params belong together"),
        ("--epochs 3 --warmup-epochs 3", "--warmup-epochs 3 leaves none of --num-epochs 3"),
        ("--warmup-epochs 24", "--warmup-epochs 24 leaves none of --num-epochs 24"),  # the digits'
        ("--from-scratch --pretrained-file a", "both choose the first weights"),
        ("--from-scratch --freeze-features", "--freeze-features keeps features"),
        ("--crop-ratio 0.001 --input-size 224", "give at least 0.014 for --input-size 224"),
        ("--data-dir absent", "--data-dir absent was not found: give the folder that"),
        ("--image-folder . --data-dir .", "--image-folder and --data-dir both choose the data"),
        ("--mode module --mixup", "--mode module has no --mixup"),
        ("--mode module --ema-decay 0.9", "--mode module has no --ema-decay"),
        ("--mode module --load-epoch 2", "--load-epoch reads from --model-prefix"),
    ],
)
def test_options_that_contradict_each_other(line, sentence):
    with pytest.raises(UsageError, match=sentence):
        read(line.split())


def test_the_data_are_named_where_no_option_names_them(tmp_path):
    digits = "data: digits (8x8 images from scikit-learn), as no option names others"
    assert read_fine_tuning(["--amp"]).notice == digits
    assert read([]).notice == f"{digits}\n(there is no ImageNet at ~/.mxnet/datasets/imagenet)"
    folder = tmp_path / "home" / ".mxnet" / "datasets" / "imagenet"
    folder.mkdir(parents=True)
    found = read([])
    assert (found.data, found.input_size) == ("folder", 224)
    assert found.notice == "data: ~/.mxnet/datasets/imagenet, as no option names others"
    assert max(map(len, (digits, found.notice))) <= 80


@pytest.mark.parametrize(
    "line, data",
    [
        ("--rec-train a --rec-val b", "rec"),
        ("--use-rec", "rec"),
        ("--data-dir .", "folder"),
        ("--data-dir . --dataset digits", "digits"),
    ],
)
def test_fine_tuning_reads_the_data_that_its_options_name(line, data):
    recipe = read_fine_tuning(line.split())
    assert (recipe.data, recipe.notice) == (data, None)


@pytest.mark.parametrize(
    "line, data, side",
    [
        ("", "digits", 32),
        ("--benchmark", "synthetic", 224),
        ("--dataset fashion-mnist --model alexnet", "fashion-mnist", 64),
        ("--dataset digits --network vgg --num-layers 11", "digits", 32),
        ("--data-dir . --model inceptionv3", "folder", 224),
    ],
)
def test_the_kind_of_data_and_the_size_of_its_images(line, data, side):
    recipe = read(line.split())
    assert (recipe.data, recipe.input_size) == (data, side)
    assert (recipe.notice is None) == (line != "")


def test_data_sets_and_networks_fill_in_only_what_was_not_given():
    recipe = read(["--epochs", "90"])
    assert (recipe.num_epochs, recipe.model) == (90, "cifar_resnet8_v1")
    assert read(["--dataset", "fashion-mnist"]).data_dir.is_absolute()  # where Debian has it
    line = ["--dataset", "imagenet", "--model", "efficientnet_lite0"]
    assert read(line).rgb_std == (128.0,) * 3
    assert read([*line, "--rgb-std", "1,1,1"]).rgb_std == (1, 1, 1)


@pytest.mark.parametrize(
    "line, warmup, batch",
    [
        ("--dataset digits --epochs 2", 1 / 6, 32),
        ("--dataset digits --epochs 12 --batch-size 64", 1, 64),
        ("--dataset digits", 2, 128),
        ("--dataset imagenet --epochs 3", 1 / 6, 128),
        ("--dataset imagenet --epochs 3 --warmup-epochs 1", 1, 128),
        ("--dataset imagenet --epochs 900", 5, 128),  # and a longer one no longer
    ],
)
def test_a_shorter_run_warms_up_for_the_same_share_of_it(line, warmup, batch):
    recipe = read(line.split())
    assert (recipe.warmup_epochs, recipe.batch_size) == (pytest.approx(warmup), batch)
    schedule = Schedule(1.0, recipe.num_epochs, 6, "constant", recipe.warmup_epochs)
    assert schedule(recipe.num_epochs - 1, 5) == 1.0


def test_the_learning_rate_follows_the_total_batch():
    recipe = read(["--dataset", "imagenet"])
    rates = [recipe.learning_rate(total) for total in (8 * 128, 8 * 256, 256)]
    assert rates == pytest.approx([0.4, 0.8, 0.1], rel=1e-12)
    assert read(["--lr", "0.25"]).learning_rate(1024) == 0.25
    assert read(["--dataset", "digits"]).learning_rate(256) == pytest.approx(0.4)


def accepts(model):
    """Return the function that infers whether a network fits images of a side."""
    outputs = build(model, 10)(mx.sym.var("data"))

    def fits(side):
        try:
            with contextlib.redirect_stdout(io.StringIO()):  # infer_shape prints its arguments
                return outputs.infer_shape(data=(1, 3, side, side))[1] == [(1, 10)]
        except mx.MXNetError:
            return False

    return fits


@pytest.mark.parametrize(
    "models", [("convnet", "alexnet", "vgg11"), pytest.param((), marks=pytest.mark.slow)]
)
def test_the_sides_of_small_images_are_the_smallest_that_networks_accept(models):
    for model in models or (*OWN_MODELS, *MXNET_MODELS):
        for data, own in (("fashion-mnist", 28), ("digits", 32)):
            sizes = sorted({own, *range(32, 320, 32), 299})
            assert input_side(data, model) == next(filter(accepts(model), sizes)), model
