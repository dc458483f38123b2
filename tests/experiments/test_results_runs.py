"""scripts/results_table.py: which runs it makes, how it goes on, and what it refuses."""

import json
import platform
from pathlib import Path

import pytest

import gluon_amp
from experiments.results import command
from experiments.results.machine import describe, describe_cpu, describe_gpus
from experiments.results.recipes import EXPERIMENTS
from experiments.results.record import RUN
from experiments.results.runs import Runner, alone_in, jobs
from experiments.results.statistics import seeds_needed
from gluon_amp.command_line import UsageError
from gluon_amp.recipes.language import recipe as language_recipe
from gluon_amp.recipes.recipe import learning_rate, read, read_fine_tuning

SHORT = ("--num-epochs", "1", "--warmup-epochs", "0", "--max-batches", "1")


@pytest.fixture(scope="module")
def script():
    return command


# ------------------------------------------------------------------------------------ recipes


def test_the_imagenet_recipe_is_the_faqs():
    experiment = EXPERIMENTS["imagenet"]
    rows = [(made.dtype, made.batch) for made, _ in experiment.rows]
    assert rows == [("float32", 1024), ("float16", 1024), ("float16", 2048)]
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
    assert [(made.dtype, made.batch) for made, _ in experiment.rows] == [
        ("float32", 64), ("float16", 64), ("float16", 128), ("bfloat16", 64),
    ]  # fmt: skip
    assert experiment.margin == 0.5
    assert seeds_needed(experiment.sd, experiment.margin) == 16


def test_the_lstm_recipe_is_the_digits_rows_at_its_batch():
    experiment = EXPERIMENTS["lstm"]
    assert [(made.dtype, made.batch) for made, _ in experiment.rows] == [
        ("float32", 32), ("float16", 32), ("float16", 64), ("bfloat16", 32),
    ]  # fmt: skip
    assert seeds_needed(experiment.sd, experiment.margin) == 4
    for job in jobs(experiment, Path("out"), [0], devices=1):
        recipe = language_recipe.read([str(text) for text in job.arguments])
        rate = language_recipe.learning_rate(recipe, job.configuration.batch)
        assert rate == pytest.approx({32: 0.004, 64: 0.008}[job.configuration.batch])
        assert recipe.characters // 10 >= 50_000  # validate


READERS = {
    "train_imagenet.py": lambda arguments: read(arguments)[0],
    "fine_tune.py": lambda arguments: read_fine_tuning(arguments)[0],
    "train_lstm.py": language_recipe.read,
}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_run_is_a_command_of_its_script(name):
    made = jobs(EXPERIMENTS[name], Path("out"), range(2), devices=1, extra=("--lr", "0.5"))
    assert len({job.folder for job in made}) == len(made)
    assert [job.seed for job in made] == sorted(job.seed for job in made)  # seed by seed
    for job in made:
        recipe = READERS[job.script.name]([str(text) for text in job.arguments])
        assert (recipe.seed, recipe.lr, recipe.resume) == (job.seed, 0.5, "auto")
        assert str(recipe.save_dir).startswith(str(job.folder))
        assert job.script.exists()


def test_a_batch_that_devices_cannot_share():
    with pytest.raises(UsageError, match="a batch of 64 cannot be shared by 3 devices"):
        jobs(EXPERIMENTS["digits"], Path("out"), [0], devices=3)


# ------------------------------------------------------------------------------------ running


def test_two_at_once_in_a_folder_are_refused(tmp_path):
    refused = pytest.raises(UsageError, match="another run is at work")
    with alone_in(tmp_path), refused, alone_in(tmp_path):
        pass


@pytest.mark.slow
def test_a_table_from_nothing_and_again(script, tmp_path, capsys):
    output = tmp_path / "table"
    arguments = ["--seeds", "2", "--output", str(output), "--margin", "60", "--", *SHORT]
    assert script.main(arguments) == 0
    told = capsys.readouterr().out
    assert "[8/8] bfloat16, batch 64, seed 1" in told
    for name in ("results.md", "results.json", "results.csv", "results.png"):
        assert (output / name).stat().st_size > 0
    rows = json.loads((output / "results.json").read_text())["rows"]
    assert [row["configuration"]["name"] for row in rows] == [
        "float32-64", "float16-64", "float16-128", "bfloat16-64",
    ]  # fmt: skip
    assert "emulated" in (output / "results.md").read_text()

    before = {path: path.stat().st_mtime_ns for path in output.rglob(RUN)}
    assert script.main(arguments) == 0
    assert "8 of 8 runs are finished already" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in output.rglob(RUN)} == before

    assert script.main([*arguments, "--lr", "1"]) == 2
    assert "was trained with other options" in capsys.readouterr().err

    first = output / "float32-64" / "seed-0"
    (first / RUN).unlink()  # as if it had been killed at its end: it goes on from its checkpoint
    assert script.main(arguments) == 0
    assert "Going on from" in (first / "log.txt").read_text()

    assert script.main(["--from-logs", str(output), "--margin", "60"]) == 0
    assert "| float32, batch 64" in capsys.readouterr().out


def test_a_refused_option_ends_the_table(script, tmp_path, capsys):
    arguments = ["--seeds", "1", "--output", str(tmp_path / "t"), "--", "--epochs", "0"]
    assert script.main(arguments) == 2
    assert "expected a whole number from 1 to 1000000" in capsys.readouterr().err


def test_a_killed_run_is_told(tmp_path):
    job = jobs(EXPERIMENTS["digits"], tmp_path, [0], devices=1)[0]
    killed = tmp_path / "killed.py"
    killed.write_text("import os; os.kill(os.getpid(), 9)")
    job = type(job)(job.configuration, 0, job.folder, killed, ())
    told = pytest.raises(RuntimeError, match="killed by signal SIGKILL: run the same command")
    with alone_in(tmp_path) as lock, told:
        Runner(1, lock).make([job])
    assert not job.finished


def test_the_published_table(script, capsys):
    assert script.main(["--published"]) == 0
    told = capsys.readouterr().out
    for cell in ("76.18 %", "11.8 h", "76.34 %", "7.3 h", "1.62x", "76.29 %", "6.5 h", "1.82x"):
        assert cell in told
    assert told.startswith("resnet50_v1 on imagenet. *Published* on 8 NVIDIA V100 (")


def test_an_empty_folder_is_refused(script, tmp_path, capsys):
    assert script.main(["--from-logs", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_the_hardware_is_named(tmp_path, monkeypatch):
    cpuinfo, cores = tmp_path / "cpuinfo", []
    monkeypatch.setattr(gluon_amp.hardware, "CPUINFO", cpuinfo)
    monkeypatch.setattr("experiments.results.machine.count_cores", lambda: cores[-1])

    def described(text, count):
        cpuinfo.write_text(text)
        cores.append(count)
        return describe_cpu()

    everything = "processor : 0\nmodel name\t: AMD EPYC \nflags\t\t: fpu avx512_bf16 amx_bf16\n"
    assert described(everything, 2) == "AMD EPYC, 2 cores, AVX512_BF16, AMX"
    assert described("model name : Xeon\nflags : fpu\n", 1) == "Xeon, 1 core"
    assert described("", 0) == (platform.processor() or platform.machine())
    assert describe_gpus("V100\nV100\n\n") == "2 × V100"
    assert describe("cpu(0)") == describe_cpu()
