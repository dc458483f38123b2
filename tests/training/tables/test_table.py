"""Tables of runs: their rows, comparisons, and what one table cannot hold."""

import dataclasses
import json

import pytest

from gluon_amp.base.messages import UsageError
from gluon_amp.training.tables.record import RunRecord
from gluon_amp.training.tables.render import as_csv, faq_table, markdown
from gluon_amp.training.tables.table import restored, tabulate
from tests.training.tables.example_runs import CONFIGURATIONS, ORDER, run, three_seeds


def failed_run(name, seed, failure):
    return RunRecord(CONFIGURATIONS[name], seed, "Xeon, 2 cores", failure=failure)


def test_runs_of_other_seeds_are_no_pairs():
    runs = [*three_seeds("float32-1024"), *three_seeds("float16-1024", (97.0, 97.5, 98.0))]
    runs[-1] = dataclasses.replace(runs[-1], seed=7)
    comparison = tabulate(runs, ORDER, 0.5).rows[1].contrasts[0].top1
    assert not comparison.paired
    assert comparison.t == pytest.approx(-0.5 / (0.5 * (2 / 3) ** 0.5))
    assert "| -0.50 (-1.63 to +0.63)    | Welch |" in markdown(tabulate(runs, ORDER, 0.5))


def test_runs_without_a_cross_entropy_still_make_a_table():
    old = {"cross_entropies": (), "versions": "", "date": ""}  # of earlier versions
    runs = [*three_seeds("float32-1024", **old), *three_seeds("float16-1024", **old)]
    page = markdown(tabulate(runs, ORDER, 0.5))
    assert "Cross-entropy" not in page and "on Xeon, 2 cores." in page
    assert "no finite validation cross-entropy in the log of: float32; float16." in page
    runs = [*three_seeds("float32-1024"), *three_seeds("float16-1024")]
    runs[4] = dataclasses.replace(runs[4], cross_entropies=(2.0, None))
    table = tabulate(runs, ORDER, 0.5)
    assert table.rows[0].cross_entropy.mean == pytest.approx(0.2)
    assert table.rows[1].cross_entropy is table.rows[1].contrasts[0].cross_entropy is None
    assert "log of: float16." in markdown(table)


def test_the_dates_of_a_table_are_its_first_and_its_last():
    runs = [run(), run("float16-1024", date="2026-02-03"), run("float16-2048", date="")]
    assert tabulate(runs, ORDER, 0.5).dates == "2026-01-31 to 2026-02-03"
    assert tabulate(runs[:1], ORDER, 0.5).dates == "2026-01-31"


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
        if "parallel" in reference:
            line = faq_table(tabulate(runs, ORDER, 0.5)).splitlines()[2]
            assert line.endswith("| 98.00 ± 0.00 % | –             | –        |")
    runs = [run(seed=0), run("float16-1024", seconds=15.0)]
    assert tabulate(runs, ORDER, 0.5).rows[1].speed_up == 2.0


def test_failures_are_reported_and_not_averaged():
    failed = [failed_run("float16-2048", seed, "killed") for seed in range(3)]
    failed.append(failed_run("float16-1024", 2, "the loss became nan"))
    table = tabulate(
        [*three_seeds("float32-1024"), *three_seeds("float16-1024")[:2], *failed], ORDER, 0.5, 0.02
    )
    assert restored(json.loads(json.dumps(table.as_dict()))) == table
    _, some, none = table.rows
    assert (some.seeds, some.top1.mean, none.contrasts) == ((0, 1), 97.75, ())
    page = markdown(table)
    assert "1 failed: the loss became nan" in page and "3 failed: killed" in page
    assert "| 2048       | float16   | –" in page
    assert (
        as_csv(table)
        .splitlines()[-1]
        .startswith("measured,float16-2048,2048,float16,False,2,,,,,,,,,killed,")
    )


def test_no_results_at_all_are_refused():
    failed = failed_run("float32-1024", 0, "out of memory")
    with pytest.raises(UsageError, match="no run has a result: out of memory"):
        tabulate([failed], ORDER, 0.5)
