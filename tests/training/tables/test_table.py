"""Tables of runs: their rows, comparisons, and what one table cannot hold."""

import dataclasses
import json

import pytest

from gluon_amp.base.messages import UsageError
from gluon_amp.training.tables.record import Configuration, RunRecord, read_all
from gluon_amp.training.tables.render import faq_table, markdown
from gluon_amp.training.tables.table import restored, tabulate
from tests.training.tables.example_runs import (
    CONFIGURATIONS,
    ORDER,
    run,
    three_seeds,
    write_run,
)


def failed_run(name, seed, failure):
    return RunRecord(CONFIGURATIONS[name], seed, "Xeon, 2 cores", failure=failure)


def test_means_over_seeds():
    runs = [*three_seeds("float32-1024"), *three_seeds("float16-1024", (97.0, 97.5, 98.0))]
    table = tabulate(runs, ORDER, 0.5)
    first, second = table.rows
    assert (first.top1.mean, first.top1.sd) == (98.0, 0.5)
    assert first.contrasts == ()
    (contrast,) = second.contrasts
    assert (contrast.reference, contrast.same_batch) == ("float32-1024", True)
    assert contrast.top1.difference == -0.5
    assert contrast.top1.paired
    # three differences of -0.5, which have no deviation
    assert str(contrast.top1) == "not tested"
    assert first.seeds == (0, 1, 2)
    assert [point.mean for point in first.curve] == [50.0, 2.0]
    assert "98.00 ± 0.50 %" in markdown(table)


def test_runs_of_equal_seeds_are_pairs():
    runs = [*three_seeds("float32-1024"), *three_seeds("float16-1024", (97.4, 98.0, 98.3))]
    comparison = tabulate(runs, ORDER, 0.5).rows[1].contrasts[0].top1
    # differences of -0.1, 0 and -0.2: mean -0.1, and 4.303 * 0.1 / sqrt(3) either way
    assert comparison.low == pytest.approx(-0.1 - 4.3027 * 0.1 / 3**0.5, abs=1e-4)
    assert str(comparison) == "equivalent"
    table = tabulate(runs, ORDER, 0.5)
    assert "| -0.10 (-0.35 to +0.15)    | paired | -1.73 |" in markdown(table)


def test_runs_of_other_seeds_are_no_pairs():
    runs = [*three_seeds("float32-1024"), *three_seeds("float16-1024", (97.0, 97.5, 98.0))]
    runs[-1] = dataclasses.replace(runs[-1], seed=7)
    comparison = tabulate(runs, ORDER, 0.5).rows[1].contrasts[0].top1
    assert not comparison.paired
    assert comparison.t == pytest.approx(-0.5 / (0.5 * (2 / 3) ** 0.5))
    assert "| -0.50 (-1.63 to +0.63)    | Welch |" in markdown(tabulate(runs, ORDER, 0.5))


def test_cross_entropies_are_compared_by_the_same_pairs():
    low, high = three_seeds("float32-1024"), three_seeds("float16-1024")
    for run_, nats in zip([*low, *high], (0.20, 0.21, 0.22, 0.202, 0.211, 0.225)):
        object.__setattr__(run_, "cross_entropies", (2.0, nats))
    comparison = tabulate([*low, *high], ORDER, 0.5, 0.01).rows[1].contrasts[0].cross_entropy
    # differences of 0.002, 0.001 and 0.005
    assert comparison.difference == pytest.approx(0.008 / 3)
    assert (comparison.margin, comparison.paired) == (0.01, True)
    assert str(comparison) == "equivalent"
    narrow = tabulate([*low, *high], ORDER, 0.5, 0.005).rows[1].contrasts[0].cross_entropy
    assert str(narrow) == "undecided"


def test_runs_from_before_the_cross_entropy_was_recorded_still_make_a_table():
    old = {"cross_entropies": (), "versions": "", "date": ""}
    runs = [*three_seeds("float32-1024", **old), *three_seeds("float16-1024", **old)]
    table = tabulate(runs, ORDER, 0.5)
    assert [row.cross_entropy for row in table.rows] == [None, None]
    assert table.rows[1].contrasts[0].cross_entropy is None
    page = markdown(table)
    assert "Cross-entropy" not in page and "on Xeon, 2 cores." in page
    assert "no finite validation cross-entropy in the log of: float32; float16." in page


@pytest.mark.parametrize("missing", [(), (2.0, None)])
def test_a_row_of_which_a_run_has_no_cross_entropy_has_none(missing):
    runs = [*three_seeds("float32-1024"), *three_seeds("float16-1024")]
    runs[4] = dataclasses.replace(runs[4], cross_entropies=missing)
    first, second = tabulate(runs, ORDER, 0.5).rows
    assert first.cross_entropy.mean == pytest.approx(0.2)
    assert second.cross_entropy is None and second.contrasts[0].cross_entropy is None
    assert "log of: float16." in markdown(tabulate(runs, ORDER, 0.5))


CONTROLLED = [*ORDER, "float32-2048"]  # the control comes last


def with_control():
    control = Configuration("float32-2048", "float32, double batch", "float32", 2048)
    tops = {"float32-1024": 98.0, "float16-1024": 97.9, "float16-2048": 97.0, "float32-2048": 97.0}
    return [
        run(
            name if name in CONFIGURATIONS else "float32-1024",
            seed,
            top1 + 0.1 * seed + 0.01 * (seed == 1) * number,
            **({} if name in CONFIGURATIONS else {"configuration": control}),
        )
        for number, (name, top1) in enumerate(tops.items())
        for seed in range(3)
    ]


def test_a_row_is_compared_with_the_reference_of_its_batch_and_with_the_first_row():
    table = tabulate(with_control(), CONTROLLED, 0.5)
    compared = {
        row.configuration.name: [(c.reference, c.same_batch) for c in row.contrasts]
        for row in table.rows
    }
    assert compared == {
        "float32-1024": [],
        "float16-1024": [("float32-1024", True)],
        "float16-2048": [("float32-2048", True), ("float32-1024", False)],
        "float32-2048": [("float32-1024", False)],
    }
    same, first = table.rows[2].contrasts
    assert (str(same.top1), str(first.top1)) == ("equivalent", "different")
    lines = [line for line in markdown(table).splitlines() if "| float16, double batch" in line]
    assert len([line for line in lines if "| float32, double batch |" in line]) == 3


def test_epochs_to_the_lowest_final_accuracy_of_the_reference():
    errors = {"float32-1024": [(9, 3, 2), (9, 2, 1.5)], "float16-1024": [(9, 9, 2.5), (9, 9, 2)]}
    runs = [
        run(name, seed, errors=curve, cross_entropies=())
        for name, curves in errors.items()
        for seed, curve in enumerate(curves)
    ]
    table = tabulate(runs, ORDER, 0.5)
    assert table.target == 98.0
    assert [row.epochs for row in table.rows] == [(3, 2), (None, 3)]
    # 4, for the run that does not reach it, and 3, against 3 and 2: t = 1 / sqrt(0.5), df = 2
    test = table.rows[1].contrasts[0].epochs
    assert test.difference == 1.0
    assert test.p_more == pytest.approx(0.1464, abs=1e-4)
    assert test.accepted
    assert "until the top-1 accuracy first is 98.00 %" in markdown(table)
    assert "| 1 of 2 " in markdown(table)


def test_the_json_of_a_table_gives_the_same_table():
    runs = [*with_control(), failed_run("float16-1024", 3, "the loss became nan")]
    table = tabulate(runs, CONTROLLED, 0.5, 0.02)
    written = json.loads(json.dumps(table.as_dict()))
    again = restored(written)
    assert again == table
    contrast = written["rows"][2]["contrasts"][0]
    assert (contrast["top1"]["verdict"], contrast["epochs"]["accepted"]) == ("equivalent", True)
    assert [run.top1 for run in again.runs[:3]] == pytest.approx([98.0, 98.1, 98.2])


def test_a_table_does_not_mix_what_cannot_be_compared():
    for field, plural in {"data": "data sets", "model": "networks", "hardware": "hardware"}.items():
        runs = [run(), run("float16-1024", **{field: "another"})]
        with pytest.raises(UsageError, match=f"cannot mix {plural}, but there are runs of .* and "):
            tabulate(runs, ORDER, 0.5)


def test_times_that_cannot_be_compared():
    for reference, row in (
        ({"emulated": True}, {}),
        ({"parallel": 2}, {}),
        ({}, {"parallel": 2}),
        ({"seconds": None}, {}),
    ):
        runs = [run(seed=0), run(seed=1, **reference), run("float16-1024", seconds=15.0, **row)]
        first, second = tabulate(runs, ORDER, 0.5).rows
        assert (first.speed_up, second.speed_up) == (None if reference else 1, None)
        assert (first.seconds is None) == ("seconds" in reference)
    runs = [run(seed=0), run("float16-1024", seconds=15.0)]
    assert tabulate(runs, ORDER, 0.5).rows[1].speed_up == 2.0


def test_emulated_time_is_no_speed_up():
    runs = [run(), run("float16-1024", emulated=True, seconds=10.0)]
    table = tabulate(runs, ORDER, 0.5)
    assert table.rows[1].speed_up is None
    assert "10.0 s" in faq_table(table).splitlines()[3]
    assert faq_table(table).splitlines()[3].endswith("| emulated |")
    assert "float16 is *emulated* here" in markdown(table)
    assert "x |" not in markdown(table)


def test_times_of_runs_that_shared_the_machine_are_not_compared(tmp_path):
    write_run(tmp_path / "a", "float32-1024", 76.18, 11.8, epochs=2, parallel=2)
    write_run(tmp_path / "b", "float16-1024", 76.34, 7.3, epochs=2, parallel=2)
    table = tabulate(read_all(tmp_path), ORDER, 0.3)
    assert [row.seconds / 3600 for row in table.rows] == pytest.approx([11.8, 7.3])
    assert [row.speed_up for row in table.rows] == [None, None]
    assert "The 2 runs trained for 19.1 h in all." in markdown(table)
    assert "2 runs at a time shared the machine" in markdown(table)
    assert (
        faq_table(table).splitlines()[2].endswith("| 76.18 %        | –             | –        |")
    )


def test_failures_are_reported_and_not_averaged():
    failed = failed_run("float16-1024", 2, "the loss became nan")
    runs = [*three_seeds("float32-1024"), *three_seeds("float16-1024")[:2], failed]
    row = tabulate(runs, ORDER, 0.5).rows[1]
    assert row.seeds == (0, 1) and row.top1.mean == 97.75
    assert "1 failed: the loss became nan" in markdown(tabulate(runs, ORDER, 0.5))


def test_a_row_of_failures_alone():
    failed = [failed_run("float16-1024", seed, "the loss became nan") for seed in range(3)]
    table = tabulate([*three_seeds("float32-1024"), run("float16-2048"), *failed], ORDER, 0.5)
    assert [row.configuration.name for row in table.rows] == ORDER
    assert table.rows[1].contrasts == ()
    assert str(table.rows[2].contrasts[0].top1) == "not tested"  # one seed
    assert "| 1024       | float16   | –" in faq_table(table)
    assert "3 failed: the loss became nan" in markdown(table)


def test_no_results_at_all_are_refused():
    failed = failed_run("float32-1024", 0, "out of memory")
    with pytest.raises(UsageError, match="no run has a result: out of memory"):
        tabulate([failed], ORDER, 0.5)
