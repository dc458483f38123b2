"""A net's parameters: their dtypes, and the class of a parameter of a cast net.

A parameter of a cast net saves and loads float32 values. All functions of MXNet that save or load
parameters (`save_parameters`, `export`, `ParameterDict.save`, ...) call its `_reduce` or
`_load_init`.

A net that is not cast may share it, as a predictor does. Its blocks declare float32 when they are
built, and read a float16 parameter in float32.
"""

import contextlib
from typing import Any, FrozenSet, Iterable, List, Optional, Tuple, Union

import numpy as np

from gluon_amp.base.array_kinds import of_kind, of_kind_for, of_user_kind, set_to_zero
from gluon_amp.base.dtypes import dtype_name
from gluon_amp.base.host import host_copy, wait_until_unused
from gluon_amp.casting import callers
from gluon_amp.casting.classes import Mixin, change_class, restore_class, stock_class
from gluon_amp.casting.stale_trainer import guard
from gluon_amp.casting.statistics import Watched
from gluon_amp.optimizer.base import cast
from gluon_amp.optimizer.masters import hold, master_of, release, set_master

import mxnet as mx
from mxnet import autograd
from mxnet.gluon import HybridBlock, Parameter, ParameterDict

# Where a new block compares the dtypes of the parameters that it shares with its own
SHARES = callers.codes(ParameterDict.get)
# Where a block reads its parameters in order to run
READS = callers.codes(HybridBlock.forward, HybridBlock._call_cached_op)


class CastParameter(Watched):
    """Mixed into the class of a parameter of a cast net.

    Its attribute `_amp_gradient_dtype` is the policy's `gradient_dtype`.
    """

    @property
    def dtype(self) -> Any:
        sharing = callers.running(SHARES, within=1)
        return (sharing and sharing["kwargs"].get("dtype")) or self._dtype

    @dtype.setter
    def dtype(self, dtype: Any) -> None:
        self.cast(dtype)

    def data(self, ctx: Optional[mx.Context] = None) -> mx.nd.NDArray:
        """Return the array on a device; in float32 for a block that is not cast."""
        data = super().data(ctx)
        # Gluon reads all parameters in each pass; to ask for a dtype costs more than to look here.
        # Before Python 3.12, a comprehension has a frame of its own, so the reader may be second.
        reading = callers.running(READS, within=2)
        is_stock = reading is not None and not isinstance(reading["self"], Mixin)
        return data.astype("float32") if is_stock and data.dtype == np.float16 else data

    def _reduce(self):
        """Return the float32 values to save, in host memory: the master, or the cast values."""
        with autograd.pause():
            master = master_of(self) if dtype_of(self) == "float16" else None
            saved = super()._reduce() if master is None else master.copyto(mx.cpu())
            return of_user_kind(cast(saved, "float32") if dtype_of(self) == "float16" else saved)

    def _load_init(self, data, ctx, cast_dtype=True, dtype_source="current"):
        """Set the parameter and its masters to loaded values of any dtype.

        The policy decides the dtype of the parameter, so the options `cast_dtype` and
        `dtype_source` of `load_parameters` have no effect.
        """
        super()._load_init(data, ctx, True, "current")
        self._set_master(data)

    def set_data(self, data: Union[mx.nd.NDArray, np.ndarray]) -> None:
        """Set the parameter and its masters to an array of NumPy or of MXNet."""
        if not isinstance(data, mx.nd.NDArray):
            data = mx.nd.array(data, dtype=data.dtype)
        super().set_data(of_kind_for(self, data))
        self._set_master(data)

    def _set_master(self, values):
        if dtype_of(self) == "float16" and dtype_name(values.dtype) in ("float32", "float64"):
            with autograd.pause():
                set_master(self, values)

    def _finish_deferred_init(self):
        """Initialize a float16 parameter with the float32 values of its initializer, rounded.

        In float16, an initializer would draw other random numbers, or none at all: `mx.np.random`
        draws float32 and float64 only.
        """
        if not self._deferred_init or dtype_of(self) != "float16":
            super()._finish_deferred_init()
            return
        init, contexts, default_init, data = self._deferred_init
        if data is None:
            wide = Parameter(self.name, "null", self.shape, stype=self._stype)
            wide.initialize(init, mx.cpu(), default_init)
            self._deferred_init = init, contexts, default_init, wide._data[0]
        super()._finish_deferred_init()
        if data is not None:  # of `set_data`
            self._set_master(data)

    def var(self) -> mx.sym.Symbol:
        """As `Parameter.var`, of the kind that MXNet is set to now: `mx.util.use_np` changes it."""
        self._var = of_user_kind(variable_of(self))
        return self._var

    def _set_trainer(self, trainer):
        super()._set_trainer(trainer)
        if trainer is not None:
            guard(trainer)

    def zero_grad(self) -> None:
        """As `Parameter.zero_grad`, which fails on gradients of `mx.np`."""
        set_to_zero(self._grad or ())

    def _init_impl(self, data, ctx_list):
        release(self)
        # `reset_ctx` and a deferred `set_data` pass float32 data, of either kind
        super()._init_impl(of_user_kind(data.astype(self.dtype, copy=False)), ctx_list)

    def reset_ctx(self, ctx: Union[mx.Context, List[mx.Context]]) -> None:
        """As `Parameter.reset_ctx`; the masters move too."""
        master = master_of(self)
        super().reset_ctx(ctx)
        if master is not None:
            for weight in self._data:
                hold(self, weight, master.as_nd_ndarray().copyto(weight.context))

    def _to_copy(self) -> Tuple[dict, Any]:
        for array in self._data or ():
            wait_until_unused(array)
        return {**vars(self), "_trainer": None, "_var": None}, None

    def _copied(self, state: Any) -> None:
        if self._grad is not None:  # a copied array has no gradient attached
            autograd.mark_variables(self._data, self._grad, self.grad_req)


def variable_of(param: Parameter) -> mx.sym.Symbol:
    """Return a parameter's variable, without an initializer that holds arrays.

    MXNet writes initializers into variables as text. It cannot write most that hold arrays, and
    `Constant` with an array only once. Gluon initializes without this text.
    """
    init, param.init = param.init, _text_of(param.init)
    try:
        return stock_class(param).var(param)
    finally:
        param.init = init


def _text_of(init: Union[mx.init.Initializer, str, None]) -> Optional[str]:
    if init is None or isinstance(init, str):
        return init
    dumps = type(init).dumps if type(init) is not mx.init.Constant else mx.init.Initializer.dumps
    with contextlib.suppress(TypeError):
        return dumps(init)
    return None


def bind_parameter(param: Parameter, gradient_dtype: str) -> None:
    """Change the class of a parameter to its cast class."""
    change_class(param, CastParameter)
    vars(param)["_amp_gradient_dtype"] = gradient_dtype


def unbind_parameter(param: Parameter) -> None:
    """Restore the class of a parameter; its values do not change."""
    if isinstance(param, CastParameter):
        restore_class(param)
        del param.__dict__["_amp_gradient_dtype"]


def dtype_of(param: Parameter) -> str:
    """Return the name of a Parameter's dtype, which Gluon stores as a name or as a class."""
    return dtype_name(param.dtype)


def has_sparse_gradient(param: Parameter) -> bool:
    """Return whether a parameter's gradient is stored as row_sparse."""
    return param._grad_stype == "row_sparse"


def contexts_of(param: Parameter) -> List[mx.Context]:
    """Return the contexts of a Parameter; none before `initialize`."""
    try:
        return list(param.list_ctx())
    except RuntimeError:
        return []


def frozen_names(params: Iterable[Parameter]) -> FrozenSet[str]:
    """Return the names of the parameters without a gradient; none unless autograd is recording."""
    if not autograd.is_recording():
        return frozenset()
    return frozenset(p.name for p in params if p.grad_req == "null")


def cast_parameter(param: Parameter, dtype: str) -> None:
    """Cast a Parameter. If it becomes float32 and has a master, set it to the master."""
    master = master_of(param) if dtype == "float32" else None
    if dtype_of(param) != dtype:
        release(param)
    param.cast(dtype)
    param._var = None  # the variable that a Parameter keeps has the old dtype
    if master is not None:
        param.set_data(of_kind_for(param, master))


def to_plain_layout(param: Parameter) -> None:
    """Copy a parameter to arrays in the plain memory layout.

    Inference in float32 leaves weights in layouts of oneDNN's own, of which it cannot convert some
    (those of depthwise convolutions) to bfloat16.
    """
    if param._data is None or param._data[0].stype != "default":
        return
    with autograd.pause():
        param._data = [
            of_kind(mx.nd.array(host_copy(old), old.context, old.dtype), old) for old in param._data
        ]
        if param._grad is not None:  # it is None inside `EMA.applied`
            autograd.mark_variables(param._data, param._grad, param.grad_req)
