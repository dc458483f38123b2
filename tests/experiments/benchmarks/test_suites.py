"""The suites of scripts/benchmark.py: cases, ratios and bounds."""

import pytest

from experiments.benchmarks.suites import DTYPES, REFERENCE, SUITES, Case, build_suite

SIZE = {"network": "resnet18_v1", "batch": 8, "pixels": 64}


@pytest.mark.parametrize("name", SUITES)
def test_labels_are_unique_and_ratios_name_them(name):
    suite = build_suite(name, DTYPES, **SIZE)
    labels = [one.label for one in suite.cases]
    assert len(set(labels)) == len(labels) > 1
    for ratio in suite.ratios:
        assert {ratio.over, ratio.under} <= set(labels)


def test_only_the_reference_size_has_bounds():
    bounds = {
        ratio.label: (ratio.must, ratio.aim)
        for name in SUITES
        for ratio in build_suite(name, DTYPES, **REFERENCE).ratios
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
        assert all(ratio.must is None for ratio in build_suite(name, DTYPES, **SIZE).ratios)


def test_a_ratio_is_left_out_with_its_dtypes():
    suite = build_suite("step", ["float32", "bfloat16"], **REFERENCE)
    assert {one.dtype for one in suite.cases} == {"float32", "bfloat16"}
    assert "float16 emulated / float32" not in {ratio.label for ratio in suite.ratios}
    assert "float32 / bfloat16" in {ratio.label for ratio in suite.ratios}
    assert build_suite("overflow_check", ["bfloat16"], **REFERENCE).groups == []


def test_scaling_varies_one_thing_at_a_time():
    groups = build_suite("scaling", DTYPES, **REFERENCE).groups
    points = [(g[0].network, g[0].batch, g[0].pixels) for g in groups]
    assert len(set(points)) == len(points) == 10
    tiny = build_suite("scaling", ["float32"], network="resnet18_v1", batch=1, pixels=32)
    assert sorted({one.batch for one in tiny.cases}) == [1, 2]
    base = tuple(REFERENCE.values())
    for point in points:
        assert sum(a != b for a, b in zip(point, base)) <= 1
    assert all([one.dtype for one in group] == list(DTYPES) for group in groups)


def test_only_training_and_inference_have_images():
    assert Case("a", "train", "mxnet", "float32", batch=4).images == 4
    assert Case("b", "check", "mxnet", "float16", batch=4).images == 0
