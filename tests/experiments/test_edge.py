"""The edge of divergence: which runs diverge, the table, the figure, and what is not repeated."""

import json

import pytest

from experiments import edge


def run(dtype, rate, seed, *losses, network="mlp"):
    keys = {"network": network, "dtype": dtype, "rate": rate, "seed": seed}
    return {**keys, "losses": list(losses), "skipped": 0, "steps": 1}


def three_seeds(dtype, rate, *last):
    return [run(dtype, rate, seed, 2.0, loss) for seed, loss in enumerate(last)]


ROWS = [
    *three_seeds("float32", 0.1, 1.0, 1.1, 1.2),
    *three_seeds("float32", 0.2, 1.0, 9.0, None),
    *three_seeds("float16", 0.1, 1.5, 1.61, 1.7),
    *three_seeds("float16", 0.2, 1.0, 1.0, 1.0),
    *(r for name in edge.DTYPES[2:] for r in three_seeds(name, 0.1, 1.0, 1.1, 1.2)),
    *(r for name in edge.DTYPES[2:] for r in three_seeds(name, 0.2, 9.0, 9.0, None)),
]


def test_a_run_diverges_whose_loss_ends_above_that_of_a_guess_or_is_not_finite():
    for classes, highest in (("mlp", 2.302), ("transformer", 4.584)):  # ln 10 and ln 98
        ends = [[2.0, 9.0, highest], [2.0, highest + 0.002], [2.0, None], [2.0, 1.0, None]]
        found = [edge.diverged({"losses": losses, "network": classes}) for losses in ends]
        assert found == [False, True, True, True]


def test_the_table_counts_compares_edges_and_says_where_losses_part():
    lines = edge.table(edge.Runs(ROWS, "mlp")).splitlines()
    float32, float16, mixed = ([cell.strip() for cell in line.split("|")] for line in lines[2:5])
    assert float32[1:4] == ["float32", "0 of 3", "2 of 3"]
    # edges of float32 are the steps 2 (none), 1, 1, those of float16 2, 2, 2
    assert float16[2:6] == ["0 of 3", "0 of 3", "+0.67 (-0.77 to +2.10)", "undecided"]
    assert float16[6] == "0.1 (+0.503 nats)"
    assert mixed[2:7] == ["0 of 3", "3 of 3", "-0.33 (-1.77 to +1.10)", "undecided", "none"]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_high_rate_diverges_and_a_low_one_does_not(dtype):
    for rate, expected in ((0.01, False), (1000.0, True)):
        found = edge.train("mlp", dtype, rate, 0)
        assert edge.diverged(found) == expected
        assert (found["dtype"], found["rate"], found["seed"]) == (dtype, rate, 0)


def test_finished_runs_are_not_repeated_and_the_page_is_theirs(tmp_path, monkeypatch, capsys):
    small = {name: network._replace(rates=(0.1, 0.2)) for name, network in edge.NETWORKS.items()}
    monkeypatch.setattr(edge, "NETWORKS", small)
    monkeypatch.setattr(edge, "train", lambda *key: pytest.fail(f"{key} was trained"))
    runs = tmp_path / "runs.jsonl"
    runs.write_text(
        "".join(json.dumps({**one, "network": name}) + "\n" for name in small for one in ROWS)
    )
    words = ["--seeds", "3", "--runs", str(runs), "--output", str(tmp_path)]
    assert edge.main(words) == 0
    page = (tmp_path / "edge.md").read_text()
    assert page.count("| float16 | 0 of 3 | 0 of 3 | +0.67 (-0.77 to +2.10) | undecided |") == 3
    assert "<!-- seeds -->3 seeds<!--" in page
    assert (tmp_path / "edge.png").read_bytes().startswith(b"\x89PNG")
    values = json.loads((tmp_path / "edge.json").read_text())
    assert len(values["runs"]) == len(small) * len(ROWS)
    runs.write_text(runs.read_text().split("\n", 1)[1])  # one is missing
    monkeypatch.setattr(edge, "train", lambda *key: run(*key[1:], 2.0, 1.0, network=key[0]))
    assert edge.main(words) == 0
    assert capsys.readouterr().out.count("[2.0, 1.0]") == 1
