"""Reports of benchmarks: tables, JSON, pages and figures."""

import json
import os

import matplotlib.pyplot as plt
import pytest
from PIL import Image

from experiments.benchmarks import measure, report
from experiments.benchmarks.measure import Measured
from experiments.benchmarks.suites import REFERENCE, Case, Ratio, Suite, build_suite
from experiments.standalone import command_line


def case(label, dtype="float32", **options):
    return Case(label, "train", "mxnet", dtype, **options)


def literal_result():
    cases = [case("a", batch=4), case("b", "bfloat16", batch=4)]
    ratio = Ratio("a / b", "a", "b", 1.6, 1.9, larger_is_better=True)
    suite = Suite("Steps", [cases], (ratio,))
    measured = [
        Measured(suite.cases[0], [0.2, 0.4, 0.3], 1000.4, 10),
        Measured(suite.cases[1], [0.1, 0.1, 0.15], 600.0, 10),
    ]
    about = report.machine(2)
    ratios = measure.ratios(suite, measured)
    return suite, report.as_json(suite, measured, ratios, about, "python scripts/benchmark.py")


def test_tables_of_literal_seconds():
    _, result = literal_result()
    assert report.case_table(result).splitlines() == [
        "| case |    ms |         rounds | images/s |  MiB |",
        "| :--- | ----: | -------------: | -------: | ---: |",
        "| a    | 300.0 | 200.0 to 400.0 |     13.3 | 1000 |",
        "| b    | 100.0 | 100.0 to 150.0 |     40.0 |  600 |",
    ]
    assert report.ratio_table(result).splitlines() == [
        "| case | relative to | speed, higher is better |       rounds |",
        "| :--- | ----------: | ----------------------: | -----------: |",
        "| b    |           a |                    2.00 | 2.00 to 4.00 |",
    ]


def test_a_speed_is_higher_where_the_time_is_lower():
    ratio = {"over": "a", "under": "b", "values": [2.0, 4.0]}
    assert report.speed({**ratio, "larger_is_better": True}) == ("b", "a", [2.0, 4.0])
    assert report.speed({**ratio, "larger_is_better": False}) == ("a", "b", [0.5, 0.25])


def test_written_files_hold_the_same_figures(tmp_path):
    suite, result = literal_result()
    paths = report.write(suite, result, tmp_path / "new", "steps")
    assert [path.name for path in paths] == ["steps.json", "steps.png", "steps.md"]
    assert json.loads(paths[0].read_text()) == result
    assert paths[1].read_bytes().startswith(b"\x89PNG")
    page = paths[2].read_text()
    for part in (
        result["machine"]["date"],
        "# Steps",
        "2.00 to 4.00",
        "python scripts/benchmark.py",
        "2 threads",
        "3 rounds",
    ):
        assert part in page


def test_the_machine_is_described(monkeypatch):
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    about = report.machine(3)
    assert about["variables"]["OMP_WAIT_POLICY"] == "active"
    assert about["threads"] == 3
    assert about["processors"] == len(os.sched_getaffinity(0))
    assert about["mxnet"].startswith("1.9.1")
    assert set(about["instructions"]) <= set(report.FLAGS)


def test_growth_has_a_panel_for_each_axis(tmp_path):
    suite = build_suite("scaling", ["float32"], **REFERENCE)
    assert suite.axes == ("batch", "pixels", "parameters")
    millions = {"resnet18_v1": 11.7, "resnet34_v1": 21.8, "resnet50_v1": 25.6, "resnet101_v1": 44.5}
    measured = [
        Measured(one, [0.1, 0.2], 500.0, int(1e6 * millions[one.network])) for one in suite.cases
    ]
    result = report.as_json(suite, measured, [], report.machine(2), "command")
    picture = next(p for p in report.write(suite, result, tmp_path, "s") if p.suffix == ".png")
    width, height = Image.open(picture).size
    assert width > 2 * height > 1000


def test_points_of_different_networks_are_not_joined():
    suite = build_suite("scaling", ["float32"], **REFERENCE)
    millions = {"resnet18_v1": 11.7, "resnet34_v1": 21.8, "resnet50_v1": 25.6, "resnet101_v1": 44.5}
    measured = [
        Measured(one, [0.1, 0.2], 500.0, int(1e6 * millions[one.network])) for one in suite.cases
    ]
    cases = report.as_json(suite, measured, [], report.machine(2), "command")["cases"]
    styles = []
    for axis in suite.axes:
        _, panel = plt.subplots()
        report._draw_growth(panel, cases, axis)
        styles += [line.get_linestyle() for line in panel.lines]
        plt.close()
    assert styles == ["-", "-", "None"]


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path):
    (tmp_path / "file").touch()
    folder = tmp_path / "file" / "folder"
    with pytest.raises(command_line.UsageError) as caught, report.to_output(folder):
        folder.mkdir()
    assert str(caught.value) == f"--output {folder} cannot be written: Not a directory."
