"""The coverage program, with one small network; `make zoo` runs all."""

from experiments import zoo_coverage


def test_a_network_under_all_policies():
    rows = zoo_coverage.run("cv/cifar_resnet20_v1")
    assert [row["policy"] for row in rows] == list(zoo_coverage.POLICIES)
    for row in rows:
        assert row["ok"] and row["float32_outputs"] and not row["error"]
        assert row["low"] == row["products"] == 22  # 21 convolutions and the head
        assert 0 < row["distance"] <= zoo_coverage.FACTOR * row["yardstick"]
        assert zoo_coverage.line(row).endswith(" ok")


def test_a_network_that_crashes_has_a_row_for_each_policy(capsys):
    rows = zoo_coverage.run_in_process("mx/no_such_network")
    assert len(rows) == 3 and not any(row["ok"] or not row["error"] for row in rows)
    assert zoo_coverage.main(["--networks", "nothing_like_it"]) == 2
    expected = "zoo_coverage.py: no network matches 'nothing_like_it': --list prints all.\n"
    assert capsys.readouterr().err == expected
    assert zoo_coverage.main(["--list"]) == 0
    names = capsys.readouterr().out.split()
    assert sum(name.startswith("mx/") for name in names) == 34
    assert sum(name.startswith("cv/") for name in names) == 56 == len({*names}) - 34
