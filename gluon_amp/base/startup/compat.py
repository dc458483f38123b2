"""What MXNet 1.9.1 and GluonCV read of numpy and Python, and what later versions changed.

`restore` comes before the import of MXNet and `mend` after it. numpy's own names are never replaced
and its settings stay as they are. docs/numpy_2.md is the list for users.
"""

import contextlib
import importlib
import multiprocessing
import sys
from types import SimpleNamespace
from typing import Any, Callable, Dict, Optional, Tuple

import numpy as np

NUMPY_2 = int(np.__version__.partition(".")[0]) >= 2

ALIASED = (bool, int, float, object, complex, str)


def _removed(name: str) -> Callable:
    def removed(*arguments: Any, **options: Any) -> None:
        raise NotImplementedError(
            f"numpy has no {name} since 1.20, so that MXNet's np.{name} cannot compute: "
            f"run `pip install numpy-financial` and call numpy_financial.{name}."
        )

    return removed


def _renamed(name: str) -> Callable:
    """Return a function of its own, as MXNet has a table from numpy's functions to its own."""
    return lambda *arguments, **options: getattr(np, name)(*arguments, **options)


# The names that numpy no longer has, their values, and who reads them. numpy 1.24 dropped the first
# row, in favour of Python's own types, and numpy 2.0 to 2.5 dropped the others.
NAMES: Dict[str, Dict[str, Any]] = {
    "MXNet, GluonCV and programs of their time": {one.__name__: one for one in ALIASED},
    "mxnet/numpy/utils.py": {
        "PZERO": 0.0,
        "NZERO": -0.0,
        "PINF": np.inf,
        "NINF": -np.inf,
        "NAN": np.nan,
        "NaN": np.nan,
    },
    "mxnet/numpy/fallback.py": {
        "alltrue": _renamed("all"),
        "in1d": lambda ar1, ar2, **options: np.isin(ar1, ar2, **options).reshape(-1),
        "msort": lambda a: np.sort(a, axis=0),
        "trapz": _renamed("trapezoid"),
        **{name: _removed(name) for name in ("mirr", "npv", "pmt", "ppmt", "pv", "rate")},
    },
    "mxnet/numpy_dispatch_protocol.py": {
        "product": _renamed("prod"),
        "round_": _renamed("round"),
        "sometrue": _renamed("any"),
    },
    "mxnet/ndarray/numpy/_op.py, mxnet/symbol/numpy/_symbol.py": {
        "compat": SimpleNamespace(basestring=str)
    },
    "gluoncv/auto/estimators": {"Inf": np.inf},
}


def restore() -> None:
    """Add the names of `NAMES` that this numpy lacks, and distutils on Python 3.12 and later.

    MXNet and GluonCV read some of the names when their functions are called, so they stay. A
    ``.pth`` file of setuptools restores distutils when Python starts, but not with ``python -S``.
    """
    for names in NAMES.values():
        for name, value in names.items():
            if name not in vars(np):  # hasattr would warn or raise
                setattr(np, name, value)
    if sys.version_info >= (3, 12):
        with contextlib.suppress(ImportError):
            import setuptools  # noqa: F401


def plain_text(value: Any) -> str:
    """Return ``str(value)`` as numpy 1 writes it: without the types of the numbers in a tuple."""
    text = str(value)
    if "np." in text and not isinstance(value, str):
        with np.printoptions(legacy="1.25"):
            return str(value)
    return text


# numpy 2 writes the type of a number in a tuple, as in (np.int64(2),), which operators and
# iterators cannot read. These modules of MXNet call `str` for nothing else than such texts.
WRITERS = ("mxnet._ctypes.ndarray", "mxnet._ctypes.symbol", "mxnet.io.io")

# Functions of MXNet that read what numpy 2 changed, and the names that they read from now on.
RENAMED: Dict[Tuple[str, str], Dict[str, str]] = {
    ("mxnet.symbol.symbol", "var"): {"str": "plain_text"},
    ("mxnet.recordio", "pack"): {"tostring": "tobytes"},
    ("mxnet.recordio", "pack_img"): {"tostring": "tobytes"},
    ("mxnet.ndarray.ndarray", "moveaxis"): {"core": "lib", "numeric": "array_utils"},
}


def mend() -> None:
    """Mend MXNet's functions that are wrong with numpy 2, and its workers from Python 3.14 on."""
    if sys.version_info >= (3, 14):
        importlib.import_module("mxnet.gluon.data.dataloader").multiprocessing = forking()
    if not NUMPY_2:
        return
    for module in WRITERS:
        sys.modules[module].str = plain_text  # type: ignore[attr-defined]
    for (module, name), names in RENAMED.items():
        function = getattr(sys.modules[module], name)
        # It stays the same object, wherever it was imported.
        read = tuple(names.get(name, name) for name in function.__code__.co_names)
        function.__code__ = function.__code__.replace(co_names=read)
        function.__globals__.setdefault("plain_text", plain_text)
    from mxnet import metric
    from mxnet.ndarray import NDArray

    metric.EvalMetric.__setattr__ = _set_wide
    NDArray.asscalar = _asscalar


def _set_wide(metric: Any, name: str, value: Any) -> None:
    """Keep the sums of a metric in float64.

    They begin with a number of Python, which takes the dtype of what is added (NEP 50). A sum in
    float16 overflows, and one in float32 drifts.
    """
    narrow = isinstance(value, (np.float16, np.float32))
    object.__setattr__(metric, name, np.float64(value) if narrow else value)


def _asscalar(array: Any) -> Any:
    """Return the one element of an array of any shape; ``float()`` of it reads this.

    numpy 2.5 makes numbers of arrays without dimensions only, and MXNet's own function returns
    other arrays as they are.
    """
    if array.size != 1:
        raise ValueError("The current array is not a scalar")
    return array.asnumpy().reshape(-1)[0]


def forking() -> SimpleNamespace:
    """Return the module multiprocessing, whose default is to fork, as before Python 3.14.

    MXNet's arrays reach a forked worker without a copy, and its program needs no guard.
    """

    def context(method: Optional[str] = None) -> Any:
        chosen = method or multiprocessing.get_start_method(allow_none=True) or "fork"
        return multiprocessing.get_context(chosen)

    own = {
        "get_context": context,
        "Process": lambda *arguments, **options: context().Process(*arguments, **options),
        "Pool": lambda *arguments, **options: context().Pool(*arguments, **options),
    }
    return SimpleNamespace(**{**vars(multiprocessing), **own})
