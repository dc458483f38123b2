"""The tensor_cores experiment without a GPU: files, arithmetic, messages."""

import json
import subprocess
import sys

import numpy as np
import pytest

from experiments import tensor_cores
from experiments.tensor_cores import Comparison, Shape, compare
from gluon_amp.base import hardware
from tests import ROOT

SMALL = {
    "matmul": Shape("matmul", (16, 24), (8, 24)),
    "conv": Shape("conv2d", (2, 3, 9, 9), (4, 3, 3, 3), stride=2, pad=1),
}
FACTS = {"gpu": "Tesla T4", "capability": "7.5", "torch": "2.1", "cuda": "11.8", "cudnn": 8906}


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported")
    assert tensor_cores.export(folder, SMALL) == 4 * (16 * 8) + 4 * (2 * 4 * 5 * 5)
    return folder


@pytest.fixture
def with_gpu_outputs(exported, tmp_path):
    """The exported files and the outputs of a simulated GPU: exact, except for two numbers."""
    for path in exported.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    for path in exported.glob("*.exact.npy"):
        np.save(tmp_path / path.name.replace(".exact.", ".gpu."), np.load(path))
    path = tmp_path / "matmul-normal.gpu.npy"
    out = np.load(tmp_path / "matmul-normal.ours.npy")
    out.ravel()[3] = np.nextafter(out.ravel()[3], np.float16(np.inf))
    out.ravel()[7] = np.nan
    np.save(path, out)
    (tmp_path / "gpu.json").write_text(json.dumps(FACTS))
    return tmp_path


def half(*values):
    return np.array(values, np.float16)


def run(*options):
    return subprocess.run(
        [sys.executable, "-m", "experiments.tensor_cores", *map(str, options)],
        cwd=ROOT,
        env={"PATH": "", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )


# ------------------------------------------------------------------------------- comparison


@pytest.mark.parametrize(
    "a, b, identical, ulps, one_nan",
    [
        (1.0, 1.0, 1, 0, 0),
        (1.0, 1.0009765625, 0, 1, 0),
        (1.0, 0.99951171875, 0, 1, 0),  # units below 1 are half of those above
        (2048.0, 2052.0, 0, 2, 0),
        (65504.0, np.inf, 0, 1, 0),
        (-65504.0, -np.inf, 0, 1, 0),
        (0.0, -0.0, 0, 0, 0),
        (2.0**-24, -(2.0**-24), 0, 2, 0),
        (-np.inf, np.inf, 0, 63488, 0),
        (np.nan, np.nan, 1, 0, 0),
        (np.nan, 1.0, 0, 0, 1),
        (np.inf, np.nan, 0, 0, 1),
    ],
)
def test_compare_in_units_in_the_last_place(a, b, identical, ulps, one_nan):
    assert compare(half(a), half(b)) == Comparison(1, identical, ulps, one_nan)
    assert compare(half(b), half(a)) == Comparison(1, identical, ulps, one_nan)


def test_all_neighbours_differ_by_one_unit():
    bits = np.arange(0x7C00, dtype=np.uint16)  # all finite numbers from 0 on
    up = (bits + 1).astype(np.uint16)
    assert compare(bits.view(np.float16), up.view(np.float16)) == Comparison(31744, 0, 1, 0)
    negative = (bits | 0x8000).view(np.float16), (up | 0x8000).view(np.float16)
    assert compare(*negative) == Comparison(31744, 0, 1, 0)


def test_all_nans_are_the_same():
    other = np.array([0x7E01, 0xFE00], np.uint16).view(np.float16)
    assert compare(other, half(np.nan, np.nan)) == Comparison(2, 2, 0, 0)


def test_only_float16_of_one_shape_is_compared():
    with pytest.raises(ValueError) as error:
        compare(half(1.0, 2.0), half(1.0))
    assert str(error.value) == (
        "compare() got float16 (2,) and float16 (1,), expected float16 arrays of one shape."
    )
    with pytest.raises(ValueError, match="float32"):
        compare(half(1.0), np.ones(1, np.float32))


def test_parts_are_joined():
    joined = tensor_cores.join([Comparison(10, 9, 1, 0), Comparison(30, 21, 5, 2)])
    assert joined == Comparison(40, 30, 5, 2) and joined.share == 0.75


# ----------------------------------------------------------------------------------- cases


def test_there_are_ten_million_outputs():
    outputs = 0
    for shape in tensor_cores.SHAPES.values():
        if shape.op == "matmul":
            outputs += shape.data[0] * shape.weight[0]
        else:
            size = (shape.data[2] + 2 * shape.pad - shape.weight[2]) // shape.stride + 1
            outputs += shape.data[0] * shape.weight[0] * size * size
    assert outputs * len(tensor_cores.DISTRIBUTIONS) == 13_565_952 >= 10**7


def test_numbers_are_always_the_same():
    first, again = (list(tensor_cores.cases(SMALL)) for _ in range(2))
    assert [case.name for case in first] == [
        f"{shape}-{kind}"
        for shape in ("matmul", "conv")
        for kind in ("normal", "gradients", "wide", "large")
    ]
    for one, two in zip(first, again):
        assert one.data.dtype == one.weight.dtype == np.float16
        assert np.array_equal(one.data, two.data) and np.array_equal(one.weight, two.weight)
        assert np.isfinite(one.data).all() and np.isfinite(one.weight).all()
    assert not np.array_equal(first[0].data, first[3].data)


def test_distributions_have_subnormal_and_infinite_outputs(exported):
    outputs = {
        kind: np.abs(np.load(exported / f"matmul-{kind}.ours.npy").astype("f4"))
        for kind in tensor_cores.DISTRIBUTIONS
    }
    subnormal = (outputs["gradients"] < 2.0**-14) & (outputs["gradients"] > 0)
    assert subnormal.mean() > 0.9
    assert 0.02 < np.isinf(outputs["large"]).mean() < 0.5
    assert np.isfinite(outputs["normal"]).all() and np.isfinite(outputs["wide"]).all()


# ---------------------------------------------------------------------------- file exchange


def test_the_files_have_all_inputs_of_the_gpu(exported):
    with np.load(exported / "conv-wide.inputs.npz") as file:
        assert str(file["op"]) == "conv2d" and int(file["stride"]) == 2 and int(file["pad"]) == 1
        data, weight = file["data"], file["weight"]
    assert data.shape == (2, 3, 9, 9) and weight.shape == (4, 3, 3, 3)
    ours = np.load(exported / "conv-wide.ours.npy")
    assert ours.dtype == np.float16 and ours.shape == (2, 4, 5, 5)


@pytest.mark.parametrize("kind", tensor_cores.DISTRIBUTIONS)
def test_exact_outputs_are_numpys_float64_product(exported, kind):
    with np.load(exported / f"matmul-{kind}.inputs.npz") as file:
        wide = file["data"].astype("f8") @ file["weight"].astype("f8").T
    with np.errstate(over="ignore"):
        expected = wide.astype("f2")
    assert compare(np.load(exported / f"matmul-{kind}.exact.npy"), expected).share == 1
    assert compare(np.load(exported / f"matmul-{kind}.ours.npy"), expected).share > 0.95


def test_exact_convolutions_are_sums_of_products(exported):
    with np.load(exported / "conv-normal.inputs.npz") as file:
        data, weight = file["data"].astype("f8"), file["weight"].astype("f8")
    padded = np.pad(data, [(0, 0), (0, 0), (1, 1), (1, 1)])
    exact = np.load(exported / "conv-normal.exact.npy")
    for at in ((0, 0, 0, 0), (1, 3, 4, 4), (0, 2, 1, 3)):
        n, o, y, x = at
        window = padded[n, :, 2 * y : 2 * y + 3, 2 * x : 2 * x + 3]
        assert exact[at] == np.float16((window * weight[o]).sum())


def test_the_comparison_finds_the_differences_of_the_gpu(with_gpu_outputs):
    rows = {name: parts for name, *parts in tensor_cores.compare_folder(with_gpu_outputs)}
    assert sorted(rows) == sorted(case.name for case in tensor_cores.cases(SMALL))
    assert rows["matmul-normal"][0] == Comparison(128, 126, 1, 1)
    assert rows["conv-large"][2] == Comparison(200, 200, 0, 0)  # the simulated GPU is exact
    assert rows["conv-large"][0] == rows["conv-large"][1]


def test_the_report(with_gpu_outputs, tmp_path):
    target = tmp_path / "results" / "report.md"
    done = run("--compare", with_gpu_outputs, "--output", target)
    assert done.returncode == 0, done.stderr
    text = target.read_text()
    assert done.stdout == text + "\n"
    assert "GPU: Tesla T4 (capability 7.5),\nPyTorch 2.1, CUDA 11.8, cuDNN 8906." in text
    assert f"CPU: {hardware.cpu_name()}." in text
    assert "Of 1,312 outputs, " in text
    row = next(line.split() for line in text.splitlines() if line.startswith("matmul-normal"))
    assert row[:5] == ["matmul-normal", "128", "98.4375%", "1", "1"]
    table = text.split("```")[1].strip().splitlines()
    assert table[0].split() == ["case", "outputs", "identical", "ulps", "NaN", "ours", "GPU"]
    assert table[-1].split()[:2] == ["all", "1312"] and len(table) == 10
    assert max(map(len, text.splitlines())) <= 100


# -------------------------------------------------------------------------------- messages


def message(*options):
    done = run(*options)
    assert done.returncode == 2 and done.stdout == "", done
    return done.stderr


def test_an_empty_folder(tmp_path):
    assert message("--compare", tmp_path) == (
        f"tensor_cores.py: {tmp_path} has no *.ours.npy: run --export and copy its files to this "
        "folder.\n"
    )


def test_outputs_that_were_not_copied(exported):
    assert message("--compare", exported) == (
        f"tensor_cores.py: {exported} has no conv-gradients.gpu.npy: run --gpu and copy its files "
        "to this folder.\n"
    )


def test_facts_that_were_not_copied(with_gpu_outputs):
    (with_gpu_outputs / "gpu.json").unlink()
    assert message("--compare", with_gpu_outputs) == (
        f"tensor_cores.py: {with_gpu_outputs} has no gpu.json, which --gpu writes: copy it to this "
        "folder.\n"
    )


def test_a_machine_without_pytorch_or_gpu(exported):
    try:
        import torch
    except ImportError:
        expected = "--gpu needs PyTorch: install it on the machine with the GPU."
    else:
        if torch.cuda.is_available():
            pytest.skip("this machine has a GPU")
        expected = "--gpu needs an NVIDIA GPU, but PyTorch finds none on this machine."
    assert message("--gpu", exported) == f"tensor_cores.py: {expected}\n"


def test_a_step_has_to_be_chosen():
    assert "one of the arguments --export --gpu --compare is required" in message()
