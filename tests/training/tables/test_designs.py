"""The designs of tables: their rows, and the command of every run."""

import csv
from pathlib import Path

import pytest

from gluon_amp.base.messages import UsageError
from gluon_amp.policy import Policy
from gluon_amp.training.console.results import plan
from gluon_amp.training.runs.language import recipe as language_recipe
from gluon_amp.training.runs.recipe import read, read_fine_tuning
from gluon_amp.training.tables.designs import DESIGNS
from gluon_amp.training.tables.runs import jobs
from gluon_amp.training.tables.statistics import seeds_needed, spread
from tests import ROOT

READERS = {"train": read, "fine-tune": read_fine_tuning, "train-text": language_recipe.read}
# Each row as the name of its configuration and its learning rate; and the seeds for 80 % power.
ROWS = {
    "digits": ("float32-64 .1 float16-64 .1 bfloat16-64 .1 float32-128 .2 float16-128 .2", 15),
    "fashion": ("float32-128 .1 float16-128 .1 bfloat16-128 .1", 4),
    "caltech101": (
        "float32-32 .01 float16-32 .01 bfloat16-32 .01 float32-64 .02 float16-64 .02",
        12,
    ),
    "lstm": (
        "float32-32 .004 float16-32 .004 bfloat16-32 .004 float16-first-scale-65536-32 .004 "
        "float32-64 .008 float16-64 .008",
        4,
    ),
    "transformer": (
        "float32-16 .008 float16-16 .008 mixed_float16-16 .008 bfloat16-16 .008 tfloat32-16 .008 "
        "float8-16 .008 float16-no-masters-16 .008 float16-no-loss-scale-16 .008 "
        "float16-norms-too-16 .008 float16-attention-too-16 .008",
        3,
    ),
    "teacher": ("float32-256 .1 float16-256 .1 mixed_float16-256 .1 bfloat16-256 .1", 6),
    "imagenet": ("float32-1024 .4 float16-1024 .4 float16-2048 .8", 3),
    "digits-formats": ("float32-64 .1 tfloat32-64 .1 float8-64 .1 float8_e5m2-64 .1", 15),
    "fashion-formats": ("float32-128 .05 tfloat32-128 .05 float8-128 .05 float8_e5m2-128 .05", 8),
}


@pytest.mark.parametrize("name", DESIGNS)
def test_rows_rates_and_seeds(name):
    design, (rows, seeds) = DESIGNS[name], ROWS[name]
    words = rows.split()
    rates = dict(zip(words[::2], map(float, words[1::2])))
    assert seeds_needed(design.sd, design.margin, design.paired) == seeds
    all_jobs = jobs(design, Path("out"), range(2), devices=2)
    assert len({job.folder for job in all_jobs}) == len(all_jobs) == 2 * len(rates)
    assert [job.seed for job in all_jobs] == sorted(job.seed for job in all_jobs)  # seed by seed
    for job in all_jobs:
        recipe = READERS[job.program[-1]](list(job.arguments))
        row = job.configuration
        assert job.program[:-1] == ("-m", "gluon_amp")
        assert Policy(recipe.policy).compute_dtype == row.dtype
        assert recipe.batch_size * 2 == row.batch
        assert recipe.learning_rate(row.batch) == pytest.approx(rates[row.name])
        assert (recipe.seed, recipe.resume) == (job.seed, "auto")
        assert recipe.save_dir == job.folder / "checkpoints"
    assert [job.configuration.name for job in all_jobs[: len(rates)]] == list(rates)


def test_the_imagenet_design_is_the_faqs():
    (first, *_) = jobs(DESIGNS["imagenet"], Path("out"), [0], devices=8)
    recipe = read(list(first.arguments))
    assert (recipe.dataset, recipe.model, recipe.num_epochs) == ("imagenet", "resnet50_v1", 90)
    assert (recipe.lr_mode, recipe.lr_decay_epoch) == ("step", (30, 60, 80))
    page = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    for configuration, options in DESIGNS["imagenet"].rows:
        command = f"{' '.join(options)} --batch-size {configuration.batch // 8} --num-gpus 8"
        assert command in page


@pytest.mark.parametrize("name", ["digits", "fashion", "teacher", "transformer"])
def test_the_deviations_are_those_of_the_committed_pilot(name):
    design, tops = DESIGNS[name], {}
    with open(ROOT / "docs" / "results" / name / "pilot.csv") as file:
        for line in csv.DictReader(file):
            tops.setdefault(line["configuration"], {})[line["seed"]] = float(line["top1"])
    names = [configuration.name for configuration, _ in design.rows]
    first, *others = (tops[name] for name in names if name in tops)
    paired = [spread([top[seed] - first[seed] for seed in first]).sd for top in others]
    assert (design.sd, design.paired) == (round(max(paired), 2), True)


def test_the_plan_has_the_margins_which_are_set_before_a_run():
    text = plan(DESIGNS["fashion"], 8, 0.3)
    assert text.startswith("Fashion-MNIST: 8 seeds for each of 3 rows. At a standard deviation of ")
    assert "±0.3 points with a power of 100 %" in text and "cross-entropy is ±0.01 nats" in text


def test_a_batch_that_devices_cannot_share():
    with pytest.raises(UsageError, match="a batch of 64 cannot be shared by 3 devices"):
        jobs(DESIGNS["digits"], Path("out"), [0], devices=3)
