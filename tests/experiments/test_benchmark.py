"""scripts/benchmark.py: what is measured, how it becomes ratios, and what a person sees of it."""

import json
import math
import os
import subprocess
import sys

import pytest
from PIL import Image

from experiments.benchmarks import measure, profile, report, suites
from experiments.benchmarks.measure import Measured
from experiments.benchmarks.suites import DTYPES, REFERENCE, SUITES, Case, Ratio, Suite, chosen
from tests import ROOT

SIZE = {"network": "resnet18_v1", "batch": 8, "pixels": 64}


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


def case(label, dtype="float32", **options):
    return Case(label, "train", "mxnet", dtype, **options)


# ----------------------------------------------------------------------------------------- suites


@pytest.mark.parametrize("name", SUITES)
def test_labels_are_unique_and_ratios_name_them(name):
    suite = chosen(name, DTYPES, **SIZE)
    labels = [one.label for one in suite.cases]
    assert len(set(labels)) == len(labels) > 1
    for ratio in suite.ratios:
        assert {ratio.over, ratio.under} <= set(labels)


def test_bounds_are_those_of_the_reference_size_only():
    bounds = {
        ratio.label: (ratio.must, ratio.aim)
        for name in SUITES
        for ratio in chosen(name, DTYPES, **REFERENCE).ratios
        if ratio.must is not None
    }
    assert bounds == {
        "float16 emulated / float32": (1.6, 1.25),
        "float32 / bfloat16": (1.6, 1.9),
        "contrib.amp bfloat16 / bfloat16": (1.65, 2.0),
        "dynamic loss scaling on / off": (1.03, 1.01),
        "bfloat16 / float32, 224 px, peak memory": (0.65, 0.6),
        "gluon_amp / multi_all_finite, float16": (0.06, 0.03),
        "gluon_amp / multi_all_finite, float32": (0.06, 0.03),
        "gluon_amp sgd float16 / sgd_mom_update float32": (1.5, 1.1),
        "gluon_amp adam float16 / adam_update float32": (1.5, 1.1),
    }
    for name in SUITES:
        assert all(ratio.must is None for ratio in chosen(name, DTYPES, **SIZE).ratios)


def test_dtypes_left_out_take_their_ratios_along():
    suite = chosen("step", ["float32", "bfloat16"], **REFERENCE)
    assert {one.dtype for one in suite.cases} == {"float32", "bfloat16"}
    assert "float16 emulated / float32" not in {ratio.label for ratio in suite.ratios}
    assert "float32 / bfloat16" in {ratio.label for ratio in suite.ratios}
    assert chosen("overflow_check", ["bfloat16"], **REFERENCE).groups == []


def test_scaling_varies_one_thing_at_a_time():
    groups = chosen("scaling", DTYPES, **REFERENCE).groups
    points = [(g[0].network, g[0].batch, g[0].pixels) for g in groups]
    assert len(set(points)) == len(points) == 10
    tiny = chosen("scaling", ["float32"], network="resnet18_v1", batch=1, pixels=32)
    assert sorted({one.batch for one in tiny.cases}) == [1, 2]
    base = tuple(REFERENCE.values())
    for point in points:
        assert sum(a != b for a, b in zip(point, base)) <= 1
    assert all([one.dtype for one in group] == list(DTYPES) for group in groups)


def test_only_training_and_inference_have_images():
    assert case("a", batch=4).images == 4
    assert Case("b", "check", "mxnet", "float16", batch=4).images == 0


# ----------------------------------------------------------------------------------------- ratios


def test_ratios_are_taken_round_by_round():
    suite = Suite(
        "t",
        [[case("a"), case("b")]],
        (
            Ratio("a / b", "a", "b", must=1.5, aim=0.5),
            Ratio("memory", "a", "b", must=2.0, aim=1.0, figure="mebibytes"),
        ),
    )
    measured = [
        Measured(case("a"), [2.0, 8.0, 3.0], 300.0, 7),
        Measured(case("b"), [2.0, 4.0, 4.0], 100.0, 7),
    ]
    time, memory = measure.ratios(suite, measured)
    assert (time.values, time.median, time.verdict) == ([1.0, 2.0, 0.75], 1.0, "must")
    assert (memory.values, memory.verdict) == ([3.0], "missed")


@pytest.mark.parametrize(
    ("value", "larger", "verdict"),
    [
        (0.5, False, "aim"), (1.0, False, "aim"), (1.5, False, "must"), (2.01, False, "missed"),
        (0.5, True, "missed"), (2.0, True, "must"), (3.0, True, "aim"),
    ],
)  # fmt: skip
def test_verdicts(value, larger, verdict):
    must, aim = (2.0, 3.0) if larger else (2.0, 1.0)
    ratio = Ratio("r", "a", "b", must, aim, larger_is_better=larger)
    assert measure.MeasuredRatio(ratio, [value]).verdict == verdict
    assert measure.MeasuredRatio(ratio._replace(must=None, aim=None), [value]).verdict == ""


def test_a_sample_takes_about_its_time():
    assert measure._runs_for([5.0, 0.1, 0.2]) == 3
    assert measure._runs_for([5.0, 4.0, 4.0]) == 1


# ----------------------------------------------------------------------------------------- report


def literal_result():
    suite = Suite("Steps", [[case("a", batch=4), case("b", "bfloat16", batch=4)]], (
        Ratio("a / b", "a", "b", 1.6, 1.9, larger_is_better=True),
    ))  # fmt: skip
    measured = [
        Measured(suite.cases[0], [0.2, 0.4, 0.3], 1000.4, 10),
        Measured(suite.cases[1], [0.1, 0.1, 0.15], 600.0, 10),
    ]
    about = report.machine(2)
    found = measure.ratios(suite, measured)
    return suite, report.as_json(suite, measured, found, about, "python scripts/benchmark.py")


def test_tables_of_literal_seconds():
    _, result = literal_result()
    assert report.case_table(result).splitlines() == [
        "| case |    ms |         rounds | images/s |  MiB |",
        "| :--- | ----: | -------------: | -------: | ---: |",
        "| a    | 300.0 | 200.0 to 400.0 |     13.3 | 1000 |",
        "| b    | 100.0 | 100.0 to 150.0 |     40.0 |  600 |",
    ]
    assert report.ratio_table(result).splitlines() == [
        "| ratio | median |         rounds |  must |   aim | reached |",
        "| :---- | -----: | -------------: | ----: | ----: | ------: |",
        "| a / b |  2.000 | 2.000 to 4.000 | ≥ 1.6 | ≥ 1.9 |     aim |",
    ]


def test_written_files_hold_the_same_figures(tmp_path):
    suite, result = literal_result()
    paths = report.write(suite, result, tmp_path / "new", "steps")
    assert [path.name for path in paths] == ["steps.json", "steps.png", "steps.md"]
    assert json.loads(paths[0].read_text()) == result
    assert paths[1].read_bytes().startswith(b"\x89PNG")
    page = paths[2].read_text()
    for part in ("# Steps", "2.000", "python scripts/benchmark.py", "2 threads", "3 rounds"):
        assert part in page


def test_the_machine_is_described():
    about = report.machine(3)
    assert about["threads"] == 3
    assert about["processors"] == len(os.sched_getaffinity(0))
    assert about["mxnet"].startswith("1.9.1")
    assert set(about["instructions"]) <= set(report.FLAGS)


# ----------------------------------------------------------------------------------- real processes


def test_a_run_measures_all_dtypes_and_writes_its_page(tmp_path):
    done = benchmark(
        "--network", "mobilenet0.25", "--batch-size", "4", "--pixels", "32", "--rounds", "2",
        "--dtypes", "float32", "float16", "--threads", "1", "--output", str(tmp_path),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "step_mobilenet0.25.json").read_text())
    cases = {one["label"]: one for one in result["cases"]}
    assert list(cases) == [
        "float32", "float16", "float16, no loss scale", "float32, 64 px",
    ]  # fmt: skip
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
    assert "float16 emulated / float32" in done.stdout


@pytest.mark.parametrize("suite", ["overflow_check", "optimizer", "inference"])
def test_other_suites_run(suite):
    done = benchmark(
        "--suite", suite, "--network", "mobilenet0.25", "--rounds", "1", "--batch-size", "2",
        "--pixels", "32", "--dtypes", "float32",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "| case" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--suite", "overflow_check", "--dtypes", "bfloat16"],
         "--suite overflow_check has nothing in bfloat16."),
        (["--rounds", "0"], "argument --rounds: expected a whole number of at least 1, got '0'"),
        (["--network", "resnet51", "--dtypes", "float32", "--rounds", "1"], "resnet51"),
    ],
)  # fmt: skip
def test_bad_input_ends_with_one_sentence(arguments, sentence):
    done = benchmark(*arguments)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert "Traceback" not in done.stderr


def test_a_dying_case_is_told():
    with pytest.raises(measure.BenchmarkError, match=r"bad: 'nothing'"):
        measure.measure(
            Suite("t", [[Case("bad", "nothing", "mxnet", "float32")]]), 1, tell=lambda line: None
        )


def test_growth_has_a_panel_for_each_axis(tmp_path):
    suite = chosen("scaling", ["float32"], **REFERENCE)
    assert suite.axes == ("batch", "pixels", "parameters")
    millions = {"resnet18_v1": 11.7, "resnet34_v1": 21.8, "resnet50_v1": 25.6, "resnet101_v1": 44.5}
    measured = [
        Measured(one, [0.1, 0.2], 500.0, int(1e6 * millions[one.network])) for one in suite.cases
    ]
    result = report.as_json(suite, measured, [], report.machine(2), "command")
    picture = next(p for p in report.write(suite, result, tmp_path, "s") if p.suffix == ".png")
    assert Image.open(picture).size == (3 * 4 * 120, 3.6 * 120)
    assert suites.SUITES["scaling"] is suites.scaling


# ---------------------------------------------------------------------------------------- profiles

VERBOSE = """dnnl_verbose,info,oneDNN v2.4.0
dnnl_verbose,exec,cpu,reorder,jit:uni,undef,src_f32::blocked:a:f0 dst_bf16::blocked:a:f0,,,64,9.0
begin
dnnl_verbose,exec,cpu,reorder,jit:uni,undef,src_f32::blocked:a:f0 dst_bf16::blocked:a:f0,,,64,0.5
dnnl_verbose,exec,cpu,convolution,brgconv:avx512_core_amx_bf16,forward_training,src_bf16::blocked:acdb:f0 wei_bf16::blocked:x dst_bf16::blocked:y,,alg:direct,mb1,4.0
dnnl_verbose,exec,cpu,convolution,brgconv:avx512_core_amx_bf16,forward_training,src_bf16::blocked:acdb:f0 wei_bf16::blocked:x dst_bf16::blocked:y,,alg:direct,mb2,6.0
end
"""  # noqa: E501

KERNELS = """Processing [report]...
Time (%),Total Time (ns),Instances,Avg (ns),Name
60.0,30000000,5,6000000,volta_fp16_s884cudnn_fp16_128x128_ldg8_relu_f2f_exp_small_nhwc2nchw_tn_v1
40.0,20000000,10,2000000,void mxnet::op::mxnet_op::mxnet_generic_kernel<...>
"""


def test_primitives_are_summed_by_name_and_dtype():
    entries = profile.onednn_primitives(VERBOSE)
    assert entries == [
        ("convolution forward_training, bf16, brgconv:avx512_core_amx_bf16", 0.4, 2.0, False),
        ("reorder, bf16+f32, jit:uni", 0.2, 0.1, False),
    ]
    assert "| 2.00 | 95.2 % | 0.4 | convolution forward_training, bf16" in profile.as_table(entries)


def test_tensor_core_kernels_are_told_by_their_names():
    first, second = profile.gpu_kernels(KERNELS)
    assert (first.calls, first.milliseconds, first.tensor_cores) == (1.0, 6.0, True)
    assert (second.calls, second.milliseconds, second.tensor_cores) == (2.0, 4.0, False)
    assert profile.as_table([first, second]).endswith(
        "Tensor Core kernels take 60.0 % of 10.00 ms."
    )
    for name in ("ampere_fp16_s16816gemm_fp16_128x64", "turing_h1688gemm_128x128", "xmma_fprop"):
        assert profile.TENSOR_CORE.search(name)
    assert not profile.TENSOR_CORE.search("volta_sgemm_128x64_nn")


@pytest.mark.skipif(not has_onednn(), reason="this MXNet has no oneDNN")
def test_profile_of_a_small_network():
    done = benchmark(
        "--profile", "--network", "mobilenet0.25", "--batch-size", "2", "--pixels", "32",
        "--dtypes", "float32", "float16",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "mobilenet0.25, float32: oneDNN primitives, by DNNL_VERBOSE" in done.stdout
    assert "convolution forward_training, f32, " in done.stdout
    assert "bf16" not in done.stdout
