"""The recipes of results_table.py: their rows, and the command of every run."""

import csv
from pathlib import Path

import pytest

from gluon_amp.base.messages import UsageError
from gluon_amp.policy import Policy
from gluon_amp.training.console.results import plan
from gluon_amp.training.runs.language import recipe as language_recipe
from gluon_amp.training.runs.recipe import for_data, learning_rate, read, read_fine_tuning
from gluon_amp.training.tables.recipes import EXPERIMENTS
from gluon_amp.training.tables.runs import jobs
from gluon_amp.training.tables.statistics import seeds_needed, spread
from tests import ROOT


def rows_of(experiment):
    return [(configuration.dtype, configuration.batch) for configuration, _ in experiment.rows]


def test_the_imagenet_recipe_is_the_faqs():
    experiment = EXPERIMENTS["imagenet"]
    assert rows_of(experiment) == [("float32", 1024), ("float16", 1024), ("float16", 2048)]
    assert experiment.margin == 0.3
    for job in jobs(experiment, Path("out"), [0], devices=8):
        recipe, _ = read([str(text) for text in job.arguments])
        assert (recipe.dataset, recipe.model) == ("imagenet", "resnet50_v1")
        assert recipe.num_epochs == 90
        assert (recipe.lr_mode, recipe.lr_decay_epoch) == ("step", (30, 60, 80))
        assert recipe.batch_size * 8 == job.configuration.batch
        rate = learning_rate(recipe, job.configuration.batch)
        assert rate == pytest.approx({1024: 0.4, 2048: 0.8}[job.configuration.batch])


def test_the_digits_recipe_has_enough_seeds_for_its_margin():
    experiment = EXPERIMENTS["digits"]
    assert rows_of(experiment) == [
        ("float32", 64),
        ("float16", 64),
        ("bfloat16", 64),
        ("float32", 128),
        ("float16", 128),
    ]
    assert experiment.margin == 0.5
    assert seeds_needed(experiment.paired_sd, experiment.margin, paired=True) == 15


def test_the_fashion_recipe_trains_every_policy_and_a_static_scale():
    experiment = EXPERIMENTS["fashion"]
    seen = {}
    for job in jobs(experiment, Path("out"), [0], devices=1):
        recipe, options = read([str(text) for text in job.arguments])
        recipe = for_data(recipe, options, recipe.dataset)
        assert (recipe.dataset, recipe.model) == ("fashion-mnist", "convnet")
        assert Policy(recipe.policy).compute_dtype == job.configuration.dtype
        assert recipe.batch_size == job.configuration.batch
        rate = learning_rate(recipe, job.configuration.batch)
        assert rate == pytest.approx(0.1 * recipe.batch_size / 256)
        seen[job.configuration.name] = (recipe.policy, recipe.batch_size, recipe.loss_scale)
    assert seen == {
        "float32-128": ("float32", 128, None),
        "float16-128": ("float16", 128, None),
        "bfloat16-128": ("bfloat16", 128, None),
        "mixed_float16-128": ("mixed_float16", 128, None),
        "float16-static-scale-128": ("float16", 128, 128.0),
        "float32-256": ("float32", 256, None),
        "float16-256": ("float16", 256, None),
    }
    assert experiment.margin == 0.3
    assert seeds_needed(experiment.paired_sd, experiment.margin, paired=True) == 8


@pytest.mark.parametrize("name", ["digits", "caltech101", "lstm", "fashion"])
def test_float16_at_twice_the_batch_has_its_control(name):
    rows = rows_of(EXPERIMENTS[name])
    assert {("float32", batch) for dtype, batch in rows if dtype == "float16"} < set(rows)


@pytest.mark.parametrize("name", ["digits", "fashion"])
def test_the_deviations_are_those_of_the_committed_pilot(name):
    experiment = EXPERIMENTS[name]
    tops = {}
    with open(ROOT / "docs" / "results" / name / "pilot.csv") as file:
        for line in csv.DictReader(file):
            tops.setdefault(line["configuration"], {})[line["seed"]] = float(line["top1"])
    names = [configuration.name for configuration, _ in experiment.rows]
    assert tops.keys() <= set(names)
    first, *others = (tops[name] for name in names if name in tops)
    paired = [spread([top[seed] - first[seed] for seed in first]).sd for top in others]
    assert experiment.sd == round(max(spread(top.values()).sd for top in tops.values()), 2)
    assert experiment.paired_sd == round(max(paired), 2)


def test_margins_are_set_before_a_run():
    for experiment in EXPERIMENTS.values():
        assert (experiment.margin, experiment.cross_entropy_margin) > (0, 0)
        text = plan(experiment, 8, experiment.margin)
        assert f"±{experiment.margin:g} points" in text
        assert f"±{experiment.cross_entropy_margin:g} nats" in text


def test_the_lstm_recipe_is_the_digits_rows_at_its_batch():
    experiment = EXPERIMENTS["lstm"]
    assert rows_of(experiment) == [
        ("float32", 32),
        ("float16", 32),
        ("bfloat16", 32),
        ("float16", 32),  # begins at a loss scale of 65536
        ("float16", 32),  # has a loss scale of 16
        ("float32", 64),
        ("float16", 64),
    ]
    assert seeds_needed(experiment.sd, experiment.margin) == 4
    for job in jobs(experiment, Path("out"), [0], devices=1):
        recipe = language_recipe.read([str(text) for text in job.arguments])
        rate = language_recipe.learning_rate(recipe, job.configuration.batch)
        assert rate == pytest.approx({32: 0.004, 64: 0.008}[job.configuration.batch])
        assert recipe.characters // 10 >= 50_000  # for validation


READERS = {
    "train": lambda arguments: read(arguments)[0],
    "fine-tune": lambda arguments: read_fine_tuning(arguments)[0],
    "train-lstm": language_recipe.read,
}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_run_is_a_command_of_gluon_amp(name):
    runs = jobs(EXPERIMENTS[name], Path("out"), range(2), devices=1, extra=("--lr", "0.5"))
    assert len({job.folder for job in runs}) == len(runs)
    assert [job.seed for job in runs] == sorted(job.seed for job in runs)  # seed by seed
    for job in runs:
        recipe = READERS[job.program[-1]]([str(text) for text in job.arguments])
        assert (recipe.seed, recipe.lr, recipe.resume) == (job.seed, 0.5, "auto")
        assert str(recipe.save_dir).startswith(str(job.folder))
        assert job.program[:-1] == ("-m", "gluon_amp")


def test_a_batch_that_devices_cannot_share():
    with pytest.raises(UsageError, match="a batch of 64 cannot be shared by 3 devices"):
        jobs(EXPERIMENTS["digits"], Path("out"), [0], devices=3)
