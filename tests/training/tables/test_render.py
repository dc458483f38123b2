"""Tables as Markdown and CSV."""

import csv
import dataclasses
import io

import pytest

from gluon_amp.training.tables.record import read_all
from gluon_amp.training.tables.render import as_csv, difference, duration, faq_table, markdown
from gluon_amp.training.tables.statistics import Comparison
from gluon_amp.training.tables.table import published, tabulate
from tests import ROOT
from tests.training.tables.example_runs import (
    CONFIGURATIONS,
    ORDER,
    run,
    three_seeds,
    write_run,
)

PUBLISHED = """\
| Batch size | Data type | Top-1 accuracy | Time to train | Speed-up |
|------------|-----------|----------------|---------------|----------|
| 1024       | float32   | 76.18 %        | 11.8 h        | 1        |
| 1024       | float16   | 76.34 %        | 7.3 h         | 1.62x    |
| 2048       | float16   | 76.29 %        | 6.5 h         | 1.82x    |"""


def test_published_figures_in_logs_give_exactly_the_published_table(tmp_path):
    write_run(tmp_path / "a", "float32-1024", 76.18, 11.8)
    write_run(tmp_path / "b", "float16-1024", 76.34, 7.3)
    write_run(tmp_path / "c", "float16-2048", 76.29, 6.5)
    table = tabulate(read_all(tmp_path), ORDER, 0.3)
    assert faq_table(table) == PUBLISHED
    assert faq_table(published(0.3)) == PUBLISHED
    assert PUBLISHED in (ROOT / "docs" / "results" / "imagenet.md").read_text(encoding="utf-8")
    assert "*Measured* on 8 × Tesla V100" in markdown(table)
    assert "*Published* on 8 NVIDIA V100" in markdown(published(0.3))


def test_csv_has_a_line_for_each_run_unrounded():
    failed = run("float16-1024", 3, failure="out of memory", errors=(), cross_entropies=())
    runs = [*three_seeds("float32-1024"), *three_seeds("float16-1024", (97.0, 97.4, 98.0)), failed]
    lines = list(csv.DictReader(io.StringIO(as_csv(tabulate(runs, ORDER, 0.5)))))
    assert [line["seed"] for line in lines] == ["0", "1", "2", "0", "1", "2", "3"]
    assert [float(line["top1"]) for line in lines[3:6]] == pytest.approx([97.0, 97.4, 98.0])
    assert float(lines[4]["cross_entropy"]) == pytest.approx(0.26)
    assert (lines[2]["epochs_to_target"], lines[3]["epochs_to_target"]) == ("2", "")
    assert (lines[0]["source"], lines[0]["hardware"]) == ("measured", "Xeon, 2 cores")
    assert (lines[0]["versions"], lines[0]["date"]) == ("MXNet 1.9.1", "2026-01-31")
    assert float(lines[0]["peak_memory"]) == 300 * 2**20
    assert (lines[6]["top1"], lines[6]["failure"]) == ("", "out of memory")


def test_the_heading_has_dates_and_versions():
    runs = [run(), run("float16-1024", date="2026-02-03"), run("float16-2048")]
    heading = markdown(tabulate(runs, ORDER, 0.5)).splitlines()[0]
    assert heading.endswith(
        "*Measured* on Xeon, 2 cores on 2026-01-31 to 2026-02-03, with MXNet 1.9.1."
    )
    assert "The 3 runs trained for 90.0 s in all." in markdown(tabulate(runs, ORDER, 0.5))


def test_duration_and_difference():
    assert difference(Comparison(-0.001, 0.5)) == "+0.00"  # and never -0.00
    texts = [duration(seconds) for seconds in (42480, 99.94, 100, 150, None)]
    assert texts == ["11.8 h", "99.9 s", "1.7 min", "2.5 min", "–"]


def test_rows_of_equal_batch_and_dtype_are_named():
    again = dataclasses.replace(CONFIGURATIONS["float16-1024"], name="static", label="static scale")
    runs = [run("float16-1024"), run("float16-1024", configuration=again)]
    lines = faq_table(tabulate(runs, ["float16-1024", "static"], 0.5)).splitlines()
    assert lines[0].startswith("| Configuration | Batch size |")
    assert lines[3].startswith("| static scale  | 1024 ")
