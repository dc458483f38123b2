"""Ratios, means, worst families and limits, from literal times."""

import pytest
from experiments.benchmarks.summary import Results

from experiments.benchmarks import families, families_report
from experiments.benchmarks.families import (
    BFLOAT16,
    COPY_RATE,
    FLOAT16,
    PEER_BFLOAT16,
    PEER_FLOAT32,
    PRODUCT_RATE,
    QUOTIENTS,
    STOCK,
)
from experiments.benchmarks.measure import Measured
from experiments.benchmarks.suites import Case

NETWORKS = ["resnet50_v1", "vgg11", "mobilenetv3_large"]
# seconds of two rounds
SECONDS = {
    ("resnet50_v1", STOCK): [4.0, 4.4],
    ("resnet50_v1", BFLOAT16): [2.0, 2.0],
    ("resnet50_v1", FLOAT16): [3.0, 3.3],
    ("resnet50_v1", PEER_FLOAT32): [3.0, 3.0],
    ("resnet50_v1", PEER_BFLOAT16): [2.5, 2.5],
    ("vgg11", STOCK): [8.0, 8.0],
    ("vgg11", BFLOAT16): [1.0, 1.0],
    ("vgg11", FLOAT16): [8.8, 8.8],
    ("mobilenetv3_large", STOCK): [1.0, 1.0],
    ("mobilenetv3_large", BFLOAT16): [1.0, 1.0],
}


def case(label, library="mxnet"):
    return Case(label, "train", library, "float32", batch=2, pixels=8)


def results(networks=NETWORKS, usual_sizes=True):
    measured = [
        Measured(case(families.label(network, "training", name)), seconds, 100.0, 7, 10**9, 10**6)
        for (network, name), seconds in SECONDS.items()
    ]
    measured.append(Measured(case(PRODUCT_RATE), [0.5, 0.5], 10.0, 0, 10**9, 0))
    measured.append(Measured(case(COPY_RATE), [0.1, 0.1], 10.0, 0, 0, 10**6))
    return Results(measured, networks, usual_sizes)


def summary(**options):
    rows = results(**options).summary()
    return {one.ratio.label: (pytest.approx(one.values), one.verdict) for one in rows}


def test_means_are_of_the_bounded_families_and_the_worst_of_all():
    rows = summary()
    stock = "training: stock float32 / bfloat16, "
    assert rows[stock + "resnet50_v1"] == ([2.0, 2.2], "must")
    assert rows[stock + "geometric mean of 2 families"] == ([4.0, 17.6**0.5], "aim")
    assert rows[stock + "geometric mean of 3 families"][0] == [16 ** (1 / 3), 17.6 ** (1 / 3)]
    assert rows[stock + "worst family (mobilenetv3_large)"] == ([1.0, 1.0], "missed")
    # smaller is better
    assert rows["training: float16 / stock float32, worst family (vgg11)"] == ([1.1, 1.1], "must")


def test_the_best_of_the_peer_is_its_faster_dtype():
    two = results(["resnet50_v1"])
    (peer,) = [q for q in QUOTIENTS["training"] if q.label.startswith("PyTorch")]
    assert two.ratio("resnet50_v1", "training", peer) == [1.25, 1.25]
    assert two.ratio("vgg11", "training", peer) is None


def test_other_sizes_have_no_bounds():
    assert {verdict for _, verdict in summary(usual_sizes=False).values()} == {""}


def test_limits_are_times_at_the_measured_rates():
    found = results()
    assert found.rates() == {"flop": 2e9, "moved": 1e7}
    row = found.limits()[0]
    assert (row["network"], row["kind"], row["seconds"]) == ("resnet50_v1", "training", 2.0)
    assert (row["product_seconds"], row["copy_seconds"]) == (0.5, 0.1)


def test_tables_have_a_row_for_each_network():
    found = results()
    result = {
        "ratios": [
            {**one.ratio._asdict(), "values": one.values, "median": one.median, "verdict": ""}
            for one in found.summary()
        ],
        "reorders": [{"network": "vgg11", "kind": "training", "onednn": 41, "own": 2}],
        "rates": found.rates(),
        "limits": found.limits(),
        "left_out": {"x": "vgg11, training, contrib.amp: no kernel"},
    }
    text = families_report.tables(found, result)
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]
    assert [row[1:] for row in rows if row and row[0] == "vgg11"] == [
        ["8.00", "0.91", "", ""],
        ["2", "8", "8000.0", "1000.0", "8800.0", "", ""],
        ["2", "8", "100", "100", "100", "", ""],
        ["training", "41", "2"],
        ["training", "1.0", "500.0", "100.0", "1000.0", "50 %"],
    ]
    assert "2 GFLOP/s" in text
    assert "- vgg11, training, contrib.amp: no kernel" in text
    assert "Inference" not in text
