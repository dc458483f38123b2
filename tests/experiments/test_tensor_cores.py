"""The comparison with Tensor Cores without a GPU: its files and its arithmetic."""

import shutil

import numpy as np

from experiments import tensor_cores
from experiments.tensor_cores import compare

SMALL = {
    "matmul": ((16, 24), (8, 24), 1, 0),
    "conv": ((2, 3, 9, 9), (4, 3, 3, 3), 2, 1),
}


def test_arrays_are_compared_bit_by_bit():
    a = np.array([1, 1, -0.0, np.inf, np.nan, np.nan, 3 * 2.0**-24, 65504], np.float16)
    b = np.array([1, 1 + 2**-9, 0, 65504, np.nan, 1, -2 * 2.0**-24, 65504], np.float16)
    assert compare(a, b) == (3, 5, 1)  # 1, a NaN and 65504 are the same; 5 steps across zero


def test_the_emulation_is_the_exact_result_of_small_shapes(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tensor_cores, "SHAPES", SMALL)
    assert tensor_cores.main(["--export", str(tmp_path)]) == 0
    assert tensor_cores.main(["--compare", str(tmp_path)]) == 2
    assert "has no conv-gradients.gpu.npy: run --gpu." in capsys.readouterr().err
    for file in tmp_path.glob("*.ours.npy"):
        shutil.copy(file, str(file).replace("ours", "gpu"))
    assert tensor_cores.main(["--compare", str(tmp_path)]) == 0
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines()[2:]]
    assert len(rows) == 8 and {row[2] for row in rows} == {"100.0000%"}
    assert {row[1] for row in rows} == {"128", "200"}
    assert min(float(row[5].rstrip("%")) for row in rows) > 95  # a float32 sum may round otherwise
