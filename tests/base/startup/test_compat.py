"""What MXNet and GluonCV need of numpy and Python: the same with numpy 1 and with numpy 2."""

import subprocess
import sys

import numpy as np
import pytest

from gluon_amp.base.startup import compat
from tests.lowering import printed

import mxnet as mx
from mxnet import nd

FIVE = np.int64(5)


def test_numpys_own_names_and_settings_stay():
    code = (
        "import numpy as np; before, shown = dict(vars(np)), np.get_printoptions()\n"
        "import gluon_amp, gluoncv\n"
        "assert all(vars(np)[name] is value for name, value in before.items())\n"
        "assert np.get_printoptions() == shown\n"
    )
    printed(code, PYTHONWARNINGS="ignore")


def test_the_aliases_are_the_types_themselves():
    assert (np.int, np.float, np.object, np.str) == (int, float, object, str)
    assert np.dtype(np.bool) == bool


@pytest.mark.skipif(sys.version_info < (3, 12), reason="this Python has distutils")
def test_distutils_comes_without_the_hook_of_a_site_directory():
    code = "import sys; sys.path = %r; %s; import distutils"
    # Importing the package would import MXNet, so the file is run alone.
    restore = f"exec(open({compat.__file__!r}).read()); restore()"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code % (sys.path, restore)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "shape",
    [
        lambda: nd.zeros((4, FIVE)).shape,
        lambda: nd.broadcast_to(nd.ones((1, 5)), shape=[np.int32(4), FIVE]).shape,
        lambda: mx.np.zeros((4, FIVE)).shape,
        lambda: mx.np.pad(mx.np.ones((2, 3)), ((FIVE - 4, 1), (1, 1))).shape,
        lambda: mx.sym.zeros((4, FIVE)).infer_shape()[1][0],
        lambda: mx.sym.var("x", shape=(4, FIVE)).infer_shape()[0][0],
        lambda: nd.moveaxis(nd.zeros((5, 4)), np.int64(0), 1).shape,
    ],
)
def test_numbers_of_numpy_in_the_tuple_of_an_operator(shape):
    assert shape() == (4, 5)


def test_a_number_of_numpy_in_the_tuple_of_an_iterator(tmp_path):
    table = tmp_path / "table.csv"
    table.write_text("1,2\n3,4\n")
    batch = next(mx.io.CSVIter(data_csv=str(table), data_shape=(np.int64(2),), batch_size=2))
    assert batch.data[0].asnumpy().tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize("name", ["loss", "ce", "nll_loss", "perplexity", "mae"])
def test_a_metric_sums_in_float64(name):
    """A sum of 3,000 batches would overflow in float16."""
    metric = mx.metric.create(name, **({"ignore_label": None} if name == "perplexity" else {}))
    prediction = nd.full((40, 1), 2.25 if name in ("loss", "mae") else 0.125, dtype="float16")
    label, batches = nd.zeros((40, 1) if name == "mae" else 40), {"float16": [], "float32": []}
    for dtype, values in batches.items():
        metric.reset()
        for _ in range(3000):
            metric.update([label], [prediction.astype(dtype)])
        values.extend([metric.get()[1], metric.get_global()[1]])
    np.testing.assert_allclose(batches["float16"], batches["float32"], rtol=2e-3)


def test_a_float32_metric_does_not_drift():
    metric = mx.metric.Loss()
    for _ in range(3000):
        metric.update(None, [nd.array([2.3])])
    assert metric.get()[1] == pytest.approx(float(np.float32(2.3)), abs=1e-12)


def test_records_with_several_labels():
    packed = mx.recordio.pack(mx.recordio.IRHeader(0, [1, 2.5], 7, 0), b"image")
    header, image = mx.recordio.unpack(packed)
    assert (header.label.tolist(), header.id, image) == ([1, 2.5], 7, b"image")
    picture = np.full((2, 3, 3), 7, np.uint8)
    packed = mx.recordio.pack_img((0, 1.0, 0, 0), picture, quality=9, img_fmt=".png")
    assert np.array_equal(mx.recordio.unpack_img(packed)[1], picture)


@pytest.mark.parametrize("shape", [(1,), (1, 1), (1, 1, 1)])
def test_an_array_of_one_element_is_a_number(shape):
    assert float(nd.full(shape, 2.5).asscalar()) == 2.5
    assert float(mx.np.full(shape, 2.5)) == 2.5


def test_what_numpy_no_longer_has_keeps_its_meaning_in_mxnet():
    x = mx.np.array([[3, 1], [2, 2]])
    assert mx.np.msort(x).asnumpy().tolist() == [[2, 1], [3, 2]]
    assert mx.np.in1d(x, mx.np.array([2])).tolist() == [False, False, True, True]
    assert float(mx.np.trapz(mx.np.array([1, 2, 4]))) == 4.5
    assert np.product(x, axis=1).asnumpy().tolist() == [3, 4]
    assert np.sometrue(x > 2, axis=1).tolist() == [True, False]


def test_workers_of_a_data_loader_are_forked_unless_the_user_says_otherwise(monkeypatch):
    module = compat.forking()
    assert module.get_context()._name == module.Pool(1)._ctx._name == "fork"
    monkeypatch.setattr(compat.multiprocessing, "get_start_method", lambda **_: "spawn")
    assert module.get_context()._name == "spawn"
