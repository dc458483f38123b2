"""The recipe: what its options mean together, and the defaults of data sets."""

import pytest

from gluon_amp.base.messages import UsageError
from gluon_amp.training.runs.recipe import Recipe, for_data, learning_rate, read
from gluon_amp.training.runs.schedule import Schedule


def test_defaults_are_those_of_the_published_recipe():
    recipe, options = read([])
    assert options == {}
    assert (recipe.model, recipe.dtype, recipe.batch_size) == ("resnet50_v1", "float32", 128)
    assert (recipe.num_epochs, recipe.lr_mode, recipe.lr_decay) == (90, "step", 0.1)
    assert recipe.lr_decay_epoch == (30, 60, 80)
    assert (recipe.optimizer, recipe.momentum, recipe.wd) == ("sgd", 0.9, 1e-4)


@pytest.mark.parametrize(
    "line, sentence",
    [
        ("--dtype float16 --amp", "--amp and --dtype float16 are two ways to choose a dtype"),
        ("--num-gpus 1 --gpus 0,1", "--num-gpus 1 and --gpus 0,1 disagree"),
        ("--cpus 2 --gpus 0", "--cpus and GPUs were both asked for"),
        ("--resume auto", "--resume auto looks into --save-dir"),
        ("--resume a --resume-epoch 3", "--resume and --resume-epoch are two ways"),
        ("--resume-epoch 3", "--resume-epoch and --resume-params belong together"),
        ("--resume-params a", "--resume-epoch and --resume-params belong together"),
        ("--epochs 3 --warmup-epochs 3", "--warmup-epochs 3 leaves none of --num-epochs 3"),
        ("--use-pretrained --pretrained-file a", "are two ways to begin"),
        ("--mode module --mixup", "--mode module has no --mixup"),
        ("--mode module --accumulate 2", "--mode module has no --accumulate"),
        ("--mode module --clip-grad 1", "--mode module has no --clip-grad"),
        ("--mode module --load-epoch 2", "--load-epoch reads from --model-prefix"),
    ],
)
def test_options_that_contradict_each_other(line, sentence):
    with pytest.raises(UsageError, match=sentence):
        read(line.split())


def test_a_data_set_fills_in_only_what_was_not_given():
    recipe, options = read(["--epochs", "90"])
    recipe = for_data(recipe, options, "digits")
    assert recipe.num_epochs == 90 and recipe.model == "cifar_resnet8_v1"
    assert for_data(*read([]), "imagenet") == Recipe()


@pytest.mark.parametrize(
    "data, epochs, warmup",
    [
        ("digits", 24, 2),
        ("digits", 2, 1 / 6),
        ("fashion-mnist", 4, 1),
        ("imagenet", 90, 5),
        ("imagenet", 3, 1 / 6),
        ("imagenet", 180, 5),
    ],
)
def test_a_shorter_run_warms_up_for_the_same_share_of_it(data, epochs, warmup):
    options = {"num_epochs": epochs}
    recipe = for_data(Recipe(**options), options, data)
    assert recipe.warmup_epochs == pytest.approx(warmup)
    schedule = Schedule(1.0, epochs, 6, "constant", recipe.warmup_epochs)
    assert schedule(epochs - 1, 5) == 1.0
    explicit = {**options, "warmup_epochs": 1}
    assert for_data(Recipe(**explicit), explicit, data).warmup_epochs == 1


@pytest.mark.parametrize("total, rate", [(8 * 128, 0.4), (8 * 256, 0.8), (1 * 256, 0.1)])
def test_learning_rate_follows_the_total_batch(total, rate):
    assert learning_rate(Recipe(), total) == pytest.approx(rate, rel=1e-12)
    assert learning_rate(Recipe(lr=0.25), total) == 0.25
    assert learning_rate(for_data(Recipe(), {}, "digits"), 256) == pytest.approx(0.4)
