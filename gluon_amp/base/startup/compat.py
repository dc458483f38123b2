"""What MXNet 1.9.1 and GluonCV read of numpy and Python, and what later versions changed.

`restore` comes before the import of MXNet and `mend` after it. numpy's own names are never replaced
and its settings stay as they are. docs/numpy_2.md is the list for users.
"""

import contextlib
import importlib
import multiprocessing
import sys
from operator import attrgetter
from types import SimpleNamespace
from typing import Any, Callable, Dict, Optional, Tuple

import numpy as np

NUMPY_2 = int(np.__version__.partition(".")[0]) >= 2

ALIASED = (bool, int, float, object, complex, str)


def _removed(name: str) -> Callable[..., None]:
    def removed(*arguments: Any, **options: Any) -> None:
        raise NotImplementedError(
            f"numpy has no {name} since 1.20, so that MXNet's np.{name} cannot compute: "
            f"run `pip install numpy-financial` and call numpy_financial.{name}."
        )

    return removed


def _calling(name: str) -> Callable[..., Any]:
    """Return what calls numpy's function of a name: a new function, as MXNet uses them as keys."""
    return lambda *arguments, **options: getattr(np, name)(*arguments, **options)


# Who reads names that numpy no longer has, and their values. numpy 1.24 dropped the first row, in
# favour of Python's own types, and numpy 2.0 to 2.5 dropped the others.
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
        "alltrue": _calling("all"),
        "in1d": lambda *arguments, **options: np.isin(*arguments, **options).reshape(-1),
        "msort": lambda a: np.sort(a, axis=0),
        "trapz": _calling("trapezoid"),
        **{name: _removed(name) for name in ("mirr", "npv", "pmt", "ppmt", "pv", "rate")},
    },
    "mxnet/numpy_dispatch_protocol.py": {
        "product": _calling("prod"),
        "round_": _calling("round"),
        "sometrue": _calling("any"),
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
        as_numpy_1: Any = "1.25"  # which numpy's own types know from 2.0 on
        with np.printoptions(legacy=as_numpy_1):
            return str(value)
    return text


# numpy 2 writes the type of a number in a tuple, as in (np.int64(2),), which operators and
# iterators cannot read. These modules of MXNet call `str` for nothing else than such texts.
WRITERS = ("mxnet._ctypes.ndarray", "mxnet._ctypes.symbol", "mxnet.io.io")

# Functions of MXNet that read what numpy 2 changed, and the names that they read from now on.
RENAMED: Dict[Tuple[str, str], Dict[str, str]] = {
    ("mxnet.symbol.symbol", "var"): {"str": "plain_text"},
    ("mxnet.metric", "Perplexity.update"): {"asscalar": "as_wide_scalar"},  # local sums
    ("mxnet.contrib.quantization", "_get_optimal_threshold"): {"asnumpy": "asscalar"},
    ("mxnet.recordio", "pack"): {"tostring": "tobytes"},
    ("mxnet.recordio", "pack_img"): {"tostring": "tobytes"},
    ("mxnet.ndarray.ndarray", "moveaxis"): {"core": "lib", "numeric": "array_utils"},
}


def mend() -> None:
    """Mend what MXNet does wrong with numpy 1.24, with numpy 2 and on Python 3.14."""
    from mxnet import lr_scheduler, metric, optimizer
    from mxnet.ndarray import NDArray

    NDArray.__array__ = _as_numpy
    if sys.version_info >= (3, 14):
        importlib.import_module("mxnet.gluon.data.dataloader").multiprocessing = forking()
    if not NUMPY_2:
        return
    for module in WRITERS:
        sys.modules[module].str = plain_text  # type: ignore[attr-defined]
    for (module, path), names in RENAMED.items():
        function = attrgetter(path)(sys.modules[module])
        # It stays the same object, wherever it was imported.
        read = tuple(names.get(name, name) for name in function.__code__.co_names)
        function.__code__ = function.__code__.replace(co_names=read)
        function.__globals__.setdefault("plain_text", plain_text)
    NDArray.asscalar = _asscalar
    NDArray.as_wide_scalar = lambda array: _wide(_asscalar(array))
    for holder in (metric.EvalMetric, optimizer.Optimizer, lr_scheduler.LRScheduler):
        holder.__setattr__ = _set_wide


def _wide(value: Any) -> Any:
    return np.float64(value) if isinstance(value, (np.float16, np.float32)) else value


def _set_wide(holder: Any, name: str, value: Any) -> None:
    """Keep sums of metrics and hyperparameters in float64.

    A number of Python takes the dtype of what is added or multiplied (NEP 50). The sum of a metric
    begins with one: in float16 it would overflow, and in float32 it would drift.
    """
    object.__setattr__(holder, name, _wide(value))


def _as_numpy(array: Any, dtype: Any = None, copy: Optional[bool] = None) -> "np.ndarray[Any, Any]":
    """Return an array for functions of numpy; from 1.24 on they refuse endless sequences."""
    if copy is False:
        raise ValueError("numpy cannot read an array of MXNet without a copy: leave copy=False out")
    values: np.ndarray[Any, Any] = array.asnumpy()
    return values if dtype is None else values.astype(dtype, copy=False)


def _asscalar(array: Any) -> Any:
    """Return the only element of an array.

    MXNet returns an array of several dimensions as it is, and ``float()`` of numpy 2.5 refuses it.
    """
    if array.size != 1:
        raise ValueError("The current array is not a scalar")
    return array.asnumpy().reshape(-1)[0]


def forking() -> SimpleNamespace:
    """Return the module multiprocessing, whose default is to fork, as before Python 3.14.

    So a program with workers needs no main guard, and its data sets need not be pickled.
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
