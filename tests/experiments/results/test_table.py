"""Tables of runs: their rows, comparisons, and what one table cannot hold."""

import json

import pytest

from experiments.results.record import RunRecord, read, read_all
from experiments.results.render import faq_table, markdown
from experiments.results.table import tabulate
from gluon_amp.command_line import UsageError
from tests.experiments.results.example_runs import (
    CONFIGURATIONS,
    ORDER,
    V100,
    run,
    three_seeds,
    write_run,
)


def test_data_sets_of_one_name_are_distinguished_by_their_sizes(tmp_path):
    sizes = {"train_images": 3030, "val_images": 5647}
    first = read(write_run(tmp_path / "a", "float32-1024", 76.0, 11.8, **sizes))
    assert first.data == "imagenet (3,030 + 5,647 samples)"
    sizes["val_images"] = 5646
    second = read(write_run(tmp_path / "b", "float16-1024", 76.0, 11.8, **sizes))
    with pytest.raises(UsageError, match="cannot mix data sets"):
        tabulate([first, second], ORDER, 0.3)


def failed_run(name, seed, failure):
    return RunRecord(CONFIGURATIONS[name], seed, "Xeon, 2 cores", failure=failure)


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


def test_rows_are_in_the_given_order_and_no_others():
    runs = [run(name) for name in reversed(ORDER)]
    table = tabulate(runs, ORDER[:2], 0.5)
    assert [row.configuration.name for row in table.rows] == ORDER[:2]


@pytest.mark.parametrize(
    "field, value, plural",
    [
        ("data", "imagenet", "data sets"),
        ("model", "resnet50_v1", "networks"),
        ("hardware", V100, "hardware"),
    ],
)
def test_a_table_does_not_mix_what_cannot_be_compared(field, value, plural):
    runs = [run(), run("float16-1024", **{field: value})]
    with pytest.raises(UsageError, match=f"cannot mix {plural}, but there are runs of .* and of "):
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


def test_runs_that_shared_the_machine_have_no_times(tmp_path):
    write_run(tmp_path / "a", "float32-1024", 76.18, 11.8, epochs=2, parallel=2)
    write_run(tmp_path / "b", "float16-1024", 76.34, 7.3, epochs=2, parallel=2)
    table = tabulate(read_all(tmp_path), ORDER, 0.3)
    assert [row.seconds for row in table.rows] == [None, None]
    assert [row.samples_per_second for row in table.rows] == [None, None]
    assert [row.speed_up for row in table.rows] == [None, None]
    assert "no times are reported" in markdown(table)


def test_a_row_with_one_shared_run_has_no_time():
    runs = [run(seed=0), run(seed=1, seconds=None, samples_per_second=None)]
    assert tabulate(runs, ORDER, 0.5).rows[0].seconds is None


def test_failures_are_reported_and_not_averaged():
    failed = failed_run("float16-1024", 2, "the loss became nan")
    runs = [*three_seeds("float32-1024"), *three_seeds("float16-1024")[:2], failed]
    row = tabulate(runs, ORDER, 0.5).rows[1]
    assert row.seeds == (0, 1) and row.top1.mean == 97.75
    assert "1 failed: the loss became nan" in markdown(tabulate(runs, ORDER, 0.5))


def test_a_row_of_failures_alone():
    failed = [failed_run("float16-1024", seed, "the loss became nan") for seed in range(3)]
    table = tabulate([*three_seeds("float32-1024"), *failed], ORDER, 0.5)
    assert table.rows[1].comparison is None
    assert "| 1024       | float16   | –" in faq_table(table)
    assert "3 failed: the loss became nan" in markdown(table)


def test_no_results_at_all_are_refused():
    failed = failed_run("float32-1024", 0, "out of memory")
    with pytest.raises(UsageError, match="no run has a result: out of memory"):
        tabulate([failed], ORDER, 0.5)


def test_one_seed_is_not_tested():
    table = tabulate([run(), run("float16-1024")], ORDER, 0.5)
    assert str(table.rows[1].comparison) == "not tested"
    assert "TOST" not in markdown(table)


def test_json_has_the_verdict():
    runs = [*three_seeds("float32-1024"), *three_seeds("float16-1024")]
    written = json.loads(json.dumps(tabulate(runs, ORDER, 2.0).as_dict()))
    assert [row["verdict"] for row in written["rows"]] == [None, "equivalent"]
    assert written["rows"][1]["configuration"]["dtype"] == "float16"
