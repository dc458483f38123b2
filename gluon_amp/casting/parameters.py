"""A net's parameters: their dtypes, and the class of a parameter of a cast net.

A parameter of a cast net saves and loads float32 values. All functions of MXNet that save or load
parameters (`save_parameters`, `export`, `ParameterDict.save`, ...) call its `_reduce` or
`_load_init`.
"""

import contextlib
from typing import FrozenSet, Iterable, List

from gluon_amp.array_kinds import set_to_zero
from gluon_amp.casting.classes import Mixin, cast_class, stock_class
from gluon_amp.dtypes import dtype_name
from gluon_amp.host import host_copy, wait_until_unused
from gluon_amp.optimizer.masters import master_of, set_master

import mxnet as mx
from mxnet import autograd
from mxnet.gluon import Parameter


class CastParameter(Mixin):
    """Mixed into the class of a parameter of a cast net.

    Its attribute `_amp_compute_dtype` is the policy's compute dtype.
    """

    def _reduce(self):
        """Return the float32 values to save, in host memory: the master, or the cast values."""
        with autograd.pause():
            master = master_of(self) if dtype_of(self) == "float16" else None
            if master is not None:
                saved = master.copyto(mx.cpu())
                return saved.as_np_ndarray() if mx.util.is_np_array() else saved
            saved = super()._reduce()
            return saved.astype("float32") if dtype_of(self) == "float16" else saved

    def _load_init(self, data, ctx, cast_dtype=True, dtype_source="current"):
        """Set the parameter and its masters to loaded values of any dtype.

        The policy decides the dtype of the parameter, so the options `cast_dtype` and
        `dtype_source` of `load_parameters` have no effect.
        """
        super()._load_init(data, ctx, True, "current")
        if dtype_of(self) == "float16" and dtype_name(data.dtype) in ("float32", "float64"):
            with autograd.pause():
                set_master(self, data)

    def zero_grad(self):
        """As `Parameter.zero_grad`, which fails on gradients of `mx.np`."""
        set_to_zero(self._grad or ())

    def _init_impl(self, data, ctx_list):
        # `reset_ctx` and a deferred `set_data` pass float32 data
        super()._init_impl(data.astype(self.dtype, copy=False), ctx_list)

    def __reduce_ex__(self, protocol):
        for array in self._data or ():
            wait_until_unused(array)
        return _new_parameter, (stock_class(self),), {**vars(self), "_trainer": None, "_var": None}

    def __setstate__(self, state):
        vars(self).update(state)
        if self._grad is not None:  # a copied array has no gradient attached
            autograd.mark_variables(self._data, self._grad, self.grad_req)


def _new_parameter(base: type) -> Parameter:
    """Create a parameter as `pickle` and `copy` do, with the cast class."""
    cls = cast_class(CastParameter, base)
    return cls.__new__(cls)


def bind_parameter(param: Parameter, compute_dtype: str) -> None:
    """Change the class of a parameter to its cast class."""
    if not isinstance(param, CastParameter):
        param.__class__ = cast_class(CastParameter, type(param))
    vars(param)["_amp_compute_dtype"] = compute_dtype


def unbind_parameter(param: Parameter) -> None:
    """Restore the class of a parameter; its values do not change."""
    if isinstance(param, CastParameter):
        param.__class__ = stock_class(param)
        del vars(param)["_amp_compute_dtype"]


@contextlib.contextmanager
def saved_as_stored(params: Iterable[Parameter]):
    """Within this context, parameters of a cast net are saved in their own dtypes."""
    bound = [(param, type(param)) for param in params if isinstance(param, CastParameter)]
    try:
        for param, _ in bound:
            param.__class__ = stock_class(param)
        yield
    finally:
        for param, cls in bound:
            param.__class__ = cls


def compute_dtype_of(param: Parameter) -> str:
    """Return the dtype in which a parameter's net computes matrix products."""
    return getattr(param, "_amp_compute_dtype", "float32")


def dtype_of(param: Parameter) -> str:
    """Return the name of a Parameter's dtype, which Gluon stores as a name or as a class."""
    return dtype_name(param.dtype)


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
    param.cast(dtype)
    param._var = None  # the variable that a Parameter keeps has the old dtype
    if master is not None:
        param.set_data(master)


def to_plain_layout(param: Parameter) -> None:
    """Copy a parameter to arrays in the plain memory layout.

    Inference in float32 leaves weights in layouts of oneDNN's own, of which it cannot convert some
    (those of depthwise convolutions) to bfloat16.
    """
    if param._data is None or param._data[0].stype != "default":
        return
    with autograd.pause():
        plain = [mx.nd.array(host_copy(d), d.context, d.dtype) for d in param._data]
        param._data = [
            new.as_np_ndarray() if isinstance(old, mx.np.ndarray) else new
            for old, new in zip(param._data, plain)
        ]
        if param.grad_req != "null":
            autograd.mark_variables(param._data, param.list_grad(), param.grad_req)
