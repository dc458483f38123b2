"""The coverage program, with two small networks; `make zoo` runs all."""

import json
import subprocess
import sys

from experiments import zoo_coverage
from tests import ROOT


def run(*args):
    command = [sys.executable, "-m", "experiments.zoo_coverage", *args]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200)


def test_two_networks_under_all_policies(tmp_path):
    done = run(
        "--networks", "^mx/resnet18_v1|^cv/cifar_resnet20", "--json", str(tmp_path / "z.json")
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "6 of 6 casts of 2 networks are good" in done.stdout
    assert all(len(line) <= 80 for line in done.stdout.splitlines())
    rows = json.loads((tmp_path / "z.json").read_text())
    by_policy = {r["policy"]: r for r in rows if r["network"] == "mx/resnet18_v1"}
    assert set(by_policy) == set(zoo_coverage.POLICIES)
    for row in by_policy.values():
        assert row["low"] == row["products"] == 21  # 20 convolutions and the head
        assert row["float32_outputs"] is True
        assert 0 < row["distance"] <= zoo_coverage.FACTOR * row["yardstick"]


def test_an_unknown_network_is_one_sentence():
    done = run("--networks", "nothing_like_it")
    assert done.returncode == 2
    assert done.stderr == (
        "zoo_coverage.py: no network matches 'nothing_like_it': --list prints all.\n"
    )


def test_a_network_that_crashes_has_a_row_for_each_policy():
    (row,) = zoo_coverage.run_in_process("mx/no_such_network", ["float16"], 60)
    assert row["ok"] is False and row["error"]
    assert zoo_coverage.line(row).startswith("mx/no_such_network")


def test_the_list_has_the_model_zoo_and_more_than_forty_networks_of_gluoncv():
    names = zoo_coverage.all_networks()
    assert sum(name.startswith("mx/") for name in names) == 34
    assert sum(name.startswith("cv/") for name in names) >= 40
    assert len(set(names)) == len(names)
