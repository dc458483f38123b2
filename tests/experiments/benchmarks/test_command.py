"""scripts/benchmark.py as a process: what it measures, writes and refuses."""

import json
import math
import os
import subprocess
import sys

import pytest

from tests import ROOT


def has_onednn():
    import mxnet as mx

    return mx.context.num_gpus() == 0 and mx.runtime.Features().is_enabled("MKLDNN")


def benchmark(*arguments):
    return subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "benchmark.py"), *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )


def test_a_run_measures_all_dtypes_and_writes_its_page(tmp_path):
    done = benchmark(
        *"--network mobilenet0.25 --batch-size 4 --pixels 32 --rounds 2".split(),
        *"--dtypes float32 float16 --threads 1 --output".split(),
        str(tmp_path),
    )
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "step_mobilenet0.25.json").read_text())
    cases = {one["label"]: one for one in result["cases"]}
    assert list(cases) == ["float32", "float16", "float16, no loss scale", "float32, 64 px"]
    for one in cases.values():
        assert len(one["seconds"]) == 2
        assert min(one["seconds"]) > 0
        assert one["peak_mebibytes"] > 100
    # Model Zoo's table: 0.47 million for mobilenet0.25
    assert {one["parameters"] for one in cases.values()} == {470072}
    assert cases["float32"]["images_per_second"] == pytest.approx(
        4 / cases["float32"]["median_seconds"]
    )
    assert [ratio["verdict"] for ratio in result["ratios"]] == ["", ""]
    for ratio in result["ratios"]:
        over, under = cases[ratio["over"]]["seconds"], cases[ratio["under"]]["seconds"]
        assert ratio["values"] == [a / b for a, b in zip(over, under)]
        assert all(map(math.isfinite, ratio["values"]))
    assert "speed, higher is better" in done.stdout


@pytest.mark.parametrize("suite", ["overflow_check", "optimizer", "inference"])
def test_other_suites_run(suite):
    done = benchmark(
        *f"--suite {suite} --network mobilenet0.25 --rounds 1".split(),
        *"--batch-size 2 --pixels 32 --dtypes float32".split(),
    )
    assert done.returncode == 0, done.stderr
    assert "| case" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            "--suite overflow_check --dtypes bfloat16",
            "--suite overflow_check has nothing in bfloat16.",
        ),
        ("--rounds 0", "argument --rounds: expected a whole number of at least 1, got '0'"),
        ("--network resnet51 --dtypes float32 --rounds 1", "resnet51"),
    ],
)
def test_bad_input_ends_with_one_sentence(arguments, sentence):
    done = benchmark(*arguments.split())
    assert done.returncode == 2
    assert sentence in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(not has_onednn(), reason="this MXNet has no oneDNN")
def test_profile_of_a_small_network():
    done = benchmark(
        *"--profile --network mobilenet0.25 --batch-size 2 --pixels 32".split(),
        *"--dtypes float32 float16".split(),
    )
    assert done.returncode == 0, done.stderr
    assert "mobilenet0.25, float32: oneDNN primitives, by DNNL_VERBOSE" in done.stdout
    assert "convolution forward_training, f32, " in done.stdout
    assert "bf16" not in done.stdout
