"""Tables of results: from the files of runs to Markdown, CSV, JSON and a picture."""

import csv
import dataclasses
import io
import json

import pytest

from experiments.results.figure import draw
from experiments.results.record import Configuration, Run, read, read_all, read_log
from experiments.results.render import as_csv, duration, faq_table, markdown
from experiments.results.table import published, tabulate
from gluon_amp.command_line import UsageError
from gluon_amp.recipes import log

PUBLISHED = """\
| Batch size | Data type | Top-1 accuracy | Time to train | Speed-up |
|------------|-----------|----------------|---------------|----------|
| 1024       | float32   | 76.18 %        | 11.8 h        | 1        |
| 1024       | float16   | 76.34 %        | 7.3 h         | 1.62x    |
| 2048       | float16   | 76.29 %        | 6.5 h         | 1.82x    |"""

CONFIGURATIONS = {
    name: Configuration(name, label, dtype, batch)
    for name, label, dtype, batch in [
        ("float32-1024", "float32", "float32", 1024),
        ("float16-1024", "float16", "float16", 1024),
        ("float16-2048", "float16, double batch", "float16", 2048),
    ]
}
ORDER = list(CONFIGURATIONS)
V100 = "8 × Tesla V100-SXM2-16GB"


def write_run(folder, name, top1, hours, epochs=90, parallel=1, **changes):
    """Write the three files of a run, as `results_table.py` and the training script do."""
    folder.mkdir(parents=True)
    error = 1 - top1 / 100
    lines = []
    for epoch in range(epochs):
        lines += [
            log.TRAINING % (epoch, "accuracy", 1 - error),
            log.SPEED % (epoch, 1281167 * epochs / hours / 3600, hours * 3600 / epochs),
            log.VALIDATION % (epoch, error + 0.01 * (epochs - 1 - epoch), 0.07),
            log.VALIDATED % (epoch, 50000, 50000),
        ]
    (folder / "log.txt").write_text("\n".join(lines))
    summary = {"data": "imagenet", "model": "resnet50_v1", "emulated": False, "epochs": epochs}
    summary.update(skipped_steps=3, steps=90 * 1252, images_per_second=2714.0)
    (folder / "summary.json").write_text(json.dumps({**summary, **changes}))
    about = {"configuration": dataclasses.asdict(CONFIGURATIONS[name]), "seed": 0}
    about.update(hardware=V100, parallel=parallel, peak_memory=None, failure=None)
    about.update({key: value for key, value in changes.items() if key in about})
    (folder / "run.json").write_text(json.dumps(about))
    return folder


def run(name="float32-1024", seed=0, top1=98.0, **changes):
    """Return a finished run on a CPU."""
    made = Run(
        CONFIGURATIONS[name],
        seed,
        "Xeon, 2 cores",
        data="digits",
        model="cifar_resnet8_v1",
        errors=(50.0, 100 - top1),
        seconds=30.0,
        samples_per_second=1000.0,
        peak_memory=300 * 2**20,
        steps=100,
    )
    return dataclasses.replace(made, **changes)


def three_seeds(name, tops=(97.5, 98.0, 98.5), **changes):
    return [run(name, seed, top1, **changes) for seed, top1 in enumerate(tops)]


def test_published_figures_in_logs_give_exactly_the_published_table(tmp_path):
    write_run(tmp_path / "a", "float32-1024", 76.18, 11.8)
    write_run(tmp_path / "b", "float16-1024", 76.34, 7.3)
    write_run(tmp_path / "c", "float16-2048", 76.29, 6.5)
    table = tabulate(read_all(tmp_path), ORDER, 0.3)
    assert faq_table(table) == PUBLISHED
    assert faq_table(published(0.3)) == PUBLISHED
    assert "*Measured* on 8 × Tesla V100" in markdown(table)
    assert "*Published* on 8 NVIDIA V100" in markdown(published(0.3))


def test_a_run_is_read_from_its_files(tmp_path):
    found = read(write_run(tmp_path / "a", "float16-1024", 76.34, 7.3))
    assert found.configuration == CONFIGURATIONS["float16-1024"]
    assert found.top1 == pytest.approx(76.34)
    assert len(found.errors) == 90
    assert found.errors[0] == pytest.approx(23.66 + 89)
    assert found.seconds == pytest.approx(7.3 * 3600)
    assert (found.skipped, found.steps, found.samples_per_second) == (3, 112680, 2714.0)


def test_an_epoch_that_was_trained_again_counts_once():
    lines = [
        log.SPEED % (0, 100, 10.0), log.VALIDATION % (0, 0.5, 0.1),
        log.SPEED % (1, 100, 11.0),  # killed here, and resumed from epoch 0's checkpoint
        log.SPEED % (1, 100, 12.0), log.VALIDATION % (1, 0.25, 0.1),
    ]  # fmt: skip
    found = read_log("\n".join(lines))
    assert found == {"error": {0: 50.0, 1: 25.0}, "seconds": {0: 10.0, 1: 12.0}}


def test_a_log_without_the_last_epoch_is_refused(tmp_path):
    folder = write_run(tmp_path / "a", "float32-1024", 76.18, 11.8, epochs=2)
    text = (folder / "log.txt").read_text()
    (folder / "log.txt").write_text(text[: text.rindex("[Epoch 1] validation")])
    with pytest.raises(UsageError, match="no validation of epoch 1: remove"):
        read(folder)


def test_data_sets_of_one_name_are_told_apart_by_their_sizes(tmp_path):
    sizes = {"train_images": 3030, "val_images": 5647}
    first = read(write_run(tmp_path / "a", "float32-1024", 76.0, 11.8, **sizes))
    assert first.data == "imagenet (3,030 + 5,647 samples)"
    sizes["val_images"] = 5646
    second = read(write_run(tmp_path / "b", "float16-1024", 76.0, 11.8, **sizes))
    with pytest.raises(UsageError, match="cannot mix data sets"):
        tabulate([first, second], ORDER, 0.3)


@pytest.mark.parametrize("name", ["summary.json", "run.json", "log.txt"])
def test_a_missing_or_damaged_file_is_named(tmp_path, name):
    folder = write_run(tmp_path / "a", "float32-1024", 76.18, 11.8, epochs=2)
    (folder / name).write_text("{")
    with pytest.raises(UsageError, match="damaged|no validation"):
        read(folder)
    (folder / name).unlink()
    with pytest.raises(UsageError, match=f"{name} cannot be read: No such file"):
        read(folder)


def test_a_file_of_another_kind_is_refused(tmp_path):
    folder = write_run(tmp_path / "a", "float32-1024", 76.18, 11.8, epochs=2)
    (folder / "run.json").write_text('{"seed": 0}')
    with pytest.raises(UsageError, match="is not a run of results_table.py: 'configuration'"):
        read(folder)


def test_an_empty_folder_has_no_runs(tmp_path):
    with pytest.raises(UsageError, match="holds no finished run"):
        read_all(tmp_path)


def test_means_over_seeds():
    runs = [*three_seeds("float32-1024"), *three_seeds("float16-1024", (97.0, 97.5, 98.0))]
    table = tabulate(runs, ORDER, 0.5)
    first, second = table.rows
    assert (first.top1.mean, first.top1.sd) == (98.0, 0.5)
    assert first.comparison is None
    assert second.comparison.difference == -0.5
    assert second.comparison.t == pytest.approx(-0.5 / (0.5 * (2 / 3) ** 0.5))
    assert first.seeds == (0, 1, 2)
    assert [point.mean for point in first.curve] == [50.0, 2.0]
    assert "98.00 ± 0.50 %" in markdown(table)
    assert "-0.50 (-1.63 to +0.63)" in markdown(table)


def test_rows_are_in_the_order_asked_for_and_no_others():
    runs = [run(name) for name in reversed(ORDER)]
    table = tabulate(runs, ORDER[:2], 0.5)
    assert [row.configuration.name for row in table.rows] == ORDER[:2]


@pytest.mark.parametrize(
    "field, value, what", [
        ("data", "imagenet", "data sets"),
        ("model", "resnet50_v1", "networks"),
        ("hardware", V100, "hardware"),
    ],
)  # fmt: skip
def test_one_table_mixes_nothing(field, value, what):
    runs = [run(), run("float16-1024", **{field: value})]
    with pytest.raises(UsageError, match=f"cannot mix {what}, but there are runs of .* and of "):
        tabulate(runs, ORDER, 0.5)


def test_emulated_time_is_no_speed_up():
    runs = [run(), run("float16-1024", emulated=True, seconds=10.0)]
    table = tabulate(runs, ORDER, 0.5)
    assert table.rows[1].speed_up is None
    assert "10.0 s" in faq_table(table).splitlines()[3]
    assert faq_table(table).splitlines()[3].endswith("| emulated |")
    assert "float16 is *emulated* here" in markdown(table)
    assert "x |" not in markdown(table)


def test_an_emulated_reference_gives_no_speed_up_either():
    runs = [run(emulated=True), run("float16-1024", seconds=10.0)]
    assert tabulate(runs, ORDER, 0.5).rows[1].speed_up is None


def test_runs_beside_others_have_no_times(tmp_path):
    write_run(tmp_path / "a", "float32-1024", 76.18, 11.8, epochs=2, parallel=2)
    write_run(tmp_path / "b", "float16-1024", 76.34, 7.3, epochs=2, parallel=2)
    table = tabulate(read_all(tmp_path), ORDER, 0.3)
    assert [row.seconds for row in table.rows] == [None, None]
    assert [row.samples_per_second for row in table.rows] == [None, None]
    assert [row.speed_up for row in table.rows] == [None, None]
    assert "no times are given" in markdown(table)


def test_one_shared_run_takes_the_time_of_its_row():
    runs = [run(seed=0), run(seed=1, seconds=None, samples_per_second=None)]
    assert tabulate(runs, ORDER, 0.5).rows[0].seconds is None


def test_failures_are_told_and_not_averaged():
    failed = Run(CONFIGURATIONS["float16-1024"], 2, "Xeon, 2 cores", failure="the loss became nan")
    runs = [*three_seeds("float32-1024"), *three_seeds("float16-1024")[:2], failed]
    row = tabulate(runs, ORDER, 0.5).rows[1]
    assert row.seeds == (0, 1) and row.top1.mean == 97.75
    assert "1 failed: the loss became nan" in markdown(tabulate(runs, ORDER, 0.5))


def test_a_row_of_failures_alone():
    failed = [
        Run(CONFIGURATIONS["float16-1024"], seed, "Xeon, 2 cores", failure="the loss became nan")
        for seed in range(3)
    ]
    table = tabulate([*three_seeds("float32-1024"), *failed], ORDER, 0.5)
    assert table.rows[1].comparison is None
    assert "| 1024       | float16   | –" in faq_table(table)
    assert "3 failed: the loss became nan" in markdown(table)


def test_no_results_at_all_are_refused():
    failed = Run(CONFIGURATIONS["float32-1024"], 0, "Xeon, 2 cores", failure="out of memory")
    with pytest.raises(UsageError, match="no run has a result: out of memory"):
        tabulate([failed], ORDER, 0.5)


def test_one_seed_is_not_tested():
    table = tabulate([run(), run("float16-1024")], ORDER, 0.5)
    assert str(table.rows[1].comparison) == "not tested"
    assert "TOST" not in markdown(table)


def test_csv_has_the_numbers_unrounded():
    runs = [*three_seeds("float32-1024"), *three_seeds("float16-1024", (97.0, 97.4, 98.0))]
    first, second = csv.DictReader(io.StringIO(as_csv(tabulate(runs, ORDER, 0.5))))
    assert float(second["top1"]) == pytest.approx((97.0 + 97.4 + 98.0) / 3)
    assert first["difference"] == "" and float(second["difference"]) < 0
    assert (first["source"], first["hardware"]) == ("measured", "Xeon, 2 cores")
    assert float(first["peak_memory"]) == 300 * 2**20


def test_json_has_the_verdict():
    runs = [*three_seeds("float32-1024"), *three_seeds("float16-1024")]
    written = json.loads(json.dumps(tabulate(runs, ORDER, 2.0).as_dict()))
    assert [row["verdict"] for row in written["rows"]] == [None, "equivalent"]
    assert written["rows"][1]["configuration"]["dtype"] == "float16"


@pytest.mark.parametrize(
    "seconds, text", [(42480, "11.8 h"), (99.94, "99.9 s"), (150, "2.5 min"), (None, "–")]
)
def test_duration(seconds, text):
    assert duration(seconds) == text


def test_the_figure_has_a_line_and_a_band_for_each_configuration(tmp_path):
    from matplotlib.image import imread

    one = tabulate(three_seeds("float32-1024"), ORDER, 0.5)
    both = [*three_seeds("float32-1024"), *three_seeds("float16-1024", (90.0, 91.0, 92.0))]
    draw(one, tmp_path / "one.png")
    draw(tabulate(both, ORDER, 0.5), tmp_path / "two.png")
    small, large = (imread(tmp_path / f"{name}.png")[..., :3] for name in ("one", "two"))
    assert small.shape == large.shape == (600, 960, 3)
    orange = [213 / 255, 94 / 255, 0]  # the second line
    assert not (abs(small - orange).max(axis=2) < 0.02).any()
    assert (abs(large - orange).max(axis=2) < 0.02).sum() > 100


def test_a_long_title_is_not_cut_off(tmp_path):
    from matplotlib.image import imread

    draw(tabulate([run(model="a network of a long name " * 5)], ORDER, 0.5), tmp_path / "one.png")
    picture = imread(tmp_path / "one.png")[..., :3]
    above = (picture[:20] < 0.5).any(axis=(0, 2))  # columns with ink
    assert above.sum() > 100
    assert not above[:4].any() and not above[-4:].any()


def test_rows_of_equal_batch_and_dtype_are_named():
    again = dataclasses.replace(CONFIGURATIONS["float16-1024"], name="static", label="static scale")
    runs = [run("float16-1024"), run("float16-1024", configuration=again)]
    lines = faq_table(tabulate(runs, ["float16-1024", "static"], 0.5)).splitlines()
    assert lines[0].startswith("| Configuration | Batch size |")
    assert lines[3].startswith("| static scale  | 1024 ")
