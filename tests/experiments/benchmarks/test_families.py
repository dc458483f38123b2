"""The families suite: its cases, and a small one beside a program in the role of PyTorch."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from experiments.benchmarks import families, measure
from experiments.benchmarks.families import FAMILIES
from experiments.benchmarks.suites import DTYPES, Case, Suite
from tests.experiments.benchmarks.test_command import benchmark

# It answers as `peer_torch` does.
PEER = f"""#!{sys.executable}
import json, sys
from multiprocessing.connection import Connection
if sys.argv[1] == "-c":
    print("PyTorch 0.0, torchvision 0.0")
    sys.exit()
case, connection = json.loads(sys.argv[3]), Connection(int(sys.argv[4]))
if case["work"] == "infer":
    connection.send(case["label"] + ": no such network")
    sys.exit()
connection.send(None)
for number in iter(connection.recv, None):
    connection.send(number * [0.25])
connection.send({{"mebibytes": 50.0, "parameters": 3}})
"""


@pytest.fixture
def peer(tmp_path):
    path = tmp_path / "python"
    path.write_text(PEER)
    path.chmod(0o755)
    return path


def test_every_family_has_all_cases_and_one_network_is_in_memory_at_a_time():
    names = [family.network for family in FAMILIES]
    suite = families.families(names, DTYPES, peer=True)
    labels = [one.label for one in suite.cases]
    assert len(set(labels)) == len(labels) == 2 + 11 * (7 + 6 + 6) + 2
    assert all(len({one.network for one in group}) == 1 for group in suite.groups)
    assert sum(family.bounded for family in FAMILIES) == 8
    (memory,) = suite.ratios
    assert (memory.figure, memory.must, memory.aim) == ("mebibytes", 0.62, 0.55)
    assert {memory.over, memory.under} <= set(labels)


def test_dtypes_the_peer_and_sizes_are_a_choice():
    suite = families.families(["vgg11", "resnet18_v2"], ["float32"], False, batch=2, pixels=64)
    assert {one.dtype for one in suite.cases} == {"float32"}
    assert {one.library for one in suite.cases} == {"mxnet", "gluon_amp"}
    assert {(one.batch, one.pixels) for one in suite.cases} == {(2, 64), (1, 64)}
    assert suite.ratios == ()


def test_a_small_suite_writes_its_page_and_names_what_failed(tmp_path, peer):
    done = benchmark(
        *"--suite families --networks mobilenet0.25 --dtypes float32 --rounds 2".split(),
        *f"--batch-size 2 --pixels 32 --threads 1 --peer-python {peer} --output".split(),
        str(tmp_path),
    )
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "families.json").read_text())
    cases = {one["label"]: one for one in result["cases"]}
    assert list(cases) == [
        "mobilenet0.25, training, float32",
        "mobilenet0.25, training, float32, amp.Trainer",
        "mobilenet0.25, training, PyTorch float32",
        "mobilenet0.25, inference, float32",
        "mobilenet0.25, image, float32",
    ]
    assert cases["mobilenet0.25, training, PyTorch float32"]["seconds"] == [0.25, 0.25]
    # 0.47 million parameters, of which a step uses each of the dense layer's for 2 images in 3
    # products of 2 operations
    assert {one["parameters"] for one in cases.values()} == {470072, 3}
    assert cases["mobilenet0.25, training, float32"]["flop"] > 2 * 3 * 2 * 256 * 1000
    failed = "mobilenet0.25, image, PyTorch float32"
    assert result["left_out"][failed] == f"{failed}: no such network"
    assert result["machine"]["peer"] == "PyTorch 0.0, torchvision 0.0"
    assert str(peer) not in result["command"]
    assert "--peer-python PYTHON" in result["command"]
    page = (tmp_path / "families.md").read_text()
    for part in ("# Network families", "## Training step", "250.0", "no such network", "PyTorch 0"):
        assert part in page


@pytest.mark.parametrize(
    ("program", "sentence"),
    [
        ("/no/such/python", "--peer-python /no/such/python cannot be run: No such file"),
        ("/bin/false", "--peer-python /bin/false cannot import torch and torchvision: it failed"),
    ],
)
def test_an_interpreter_without_torch_is_refused_before_measuring(program, sentence):
    done = benchmark("--suite", "families", "--peer-python", program)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_processes_whose_threads_wait_actively_stop_between_turns(peer, monkeypatch):
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    processes, stopped = [], []

    class Popen(subprocess.Popen):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            processes.append(self)

    monkeypatch.setattr(measure.subprocess, "Popen", Popen)

    def progress(line):
        if "round" in line:
            stopped.append([stops(process.pid) for process in processes])

    group = [Case(name, "train", "pytorch", "float32") for name in "ab"]
    measured = measure.measure(Suite("s", [group]), 2, progress, peer)
    assert [one.seconds for one in measured] == [[0.25, 0.25]] * 2
    assert stopped == [[True, True]] * 2
    assert [process.returncode for process in processes] == [0, 0]


def stops(pid):
    """Return whether a process is stopped within two seconds."""
    for _ in range(200):
        if "State:\tT" in Path(f"/proc/{pid}/status").read_text():
            return True
        time.sleep(0.01)
    return False
