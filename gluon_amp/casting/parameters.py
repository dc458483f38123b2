"""A net's parameters: their dtypes, and what a parameter of a cast net does differently.

Its class is a subclass of its own class, made for it, as with blocks (`binding.py`). What it saves
and loads is float32, whichever function does it: `save_parameters`, `export`,
`ParameterDict.save` and their counterparts all go through `_reduce` and `_load_init`.
"""

import contextlib

from gluon_amp.dtypes import dtype_name
from gluon_amp.host import host_copy, wait_until_unused
from gluon_amp.optimizer.masters import master_of, set_master

import mxnet as mx
from mxnet import autograd
from mxnet.gluon import Parameter


class CastParameter:
    """Mixed into the class of a parameter of a cast net."""

    def __init_subclass__(cls):
        """Hide the class made of a user's class from whatever that registers its subclasses in."""

    def _reduce(self):
        """Return the values to save, in host memory: the float32 master, or the values widened."""
        with autograd.pause():
            master = master_of(self) if dtype_of(self) == "float16" else None
            if master is not None:
                saved = master.copyto(mx.cpu())
                return saved.as_np_ndarray() if mx.util.is_np_array() else saved
            saved = super()._reduce()
            return saved.astype("float32") if dtype_of(self) == "float16" else saved

    def _load_init(self, data, ctx, cast_dtype=True, dtype_source="current"):
        """Set loaded values, of any dtype, and the masters to the same values.

        The policy decides the dtype of a cast net's parameters, so the two options of
        `load_parameters` that would decide it do nothing.
        """
        super()._load_init(data, ctx, True, "current")
        if dtype_of(self) == "float16" and dtype_name(data.dtype) in ("float32", "float64"):
            with autograd.pause():
                set_master(self, data)

    def _init_impl(self, data, ctx_list):
        # what `reset_ctx` and a deferred `set_data` pass is float32
        super()._init_impl(data.astype(self.dtype, copy=False), ctx_list)

    def __reduce_ex__(self, protocol):
        for array in self._data or ():
            wait_until_unused(array)
        return _new_parameter, (stock_class(self),), {**vars(self), "_trainer": None, "_var": None}

    def __setstate__(self, state):
        vars(self).update(state)
        if self._grad is not None:  # a copied array has forgotten its gradient
            autograd.mark_variables(self._data, self._grad, self.grad_req)


_cast_classes = {}  # by mixin and by the class it was mixed into


def cast_class(mixin: type, base: type) -> type:
    """Return the subclass of a class that a mixin makes of it; always the same one."""
    if (mixin, base) not in _cast_classes:
        members = {"__module__": base.__module__, "__doc__": base.__doc__}
        _cast_classes[mixin, base] = type(base.__name__, (mixin, base), members)
    return _cast_classes[mixin, base]


def stock_class(cast) -> type:
    """Return the class that a cast block or parameter had before the cast."""
    return type(cast).__mro__[2]


def _new_parameter(base: type) -> Parameter:
    cls = cast_class(CastParameter, base)
    return cls.__new__(cls)


def bind_parameter(param: Parameter, compute_dtype: str) -> None:
    """Make a parameter one of a cast net."""
    if not isinstance(param, CastParameter):
        param.__class__ = cast_class(CastParameter, type(param))
    param._amp_compute_dtype = compute_dtype


def unbind_parameter(param: Parameter) -> None:
    """Give a parameter its own class back; its values stay as they are."""
    if isinstance(param, CastParameter):
        param.__class__ = stock_class(param)
        del param._amp_compute_dtype


@contextlib.contextmanager
def saved_as_stored(params):
    """Save parameters of a cast net in their own dtypes within this context."""
    bound = [(param, type(param)) for param in params if isinstance(param, CastParameter)]
    try:
        for param, _ in bound:
            param.__class__ = stock_class(param)
        yield
    finally:
        for param, cls in bound:
            param.__class__ = cls


def dtype_of(param: Parameter) -> str:
    """Return the name of a Parameter's dtype, which Gluon keeps as a name or as a class."""
    return dtype_name(param.dtype)


def contexts_of(param: Parameter) -> list:
    """Return the contexts that a Parameter lives on, or will when its shape is known."""
    if param._deferred_init:
        return list(param._deferred_init[1])
    return list(param._ctx_list or [])


def cast_parameter(param: Parameter, dtype: str) -> None:
    """Cast a Parameter; one that becomes float32 and has a master takes the master's value."""
    master = master_of(param) if dtype == "float32" else None
    param.cast(dtype)
    param._var = None  # a Parameter keeps its variable, with the old dtype
    if master is not None:
        param.set_data(master)


def to_plain_layout(param: Parameter) -> None:
    """Take a parameter out of oneDNN's own layout, in which float32 inference leaves weights.

    oneDNN cannot convert some of these layouts (depthwise convolutions') to bfloat16.
    """
    if param._data is None or param._stype != "default":
        return
    with autograd.pause():
        plain = [mx.nd.array(host_copy(d), d.context, d.dtype) for d in param._data]
        param._data = [
            new.as_np_ndarray() if isinstance(old, mx.np.ndarray) else new
            for old, new in zip(param._data, plain)
        ]
        if param._grad is not None:
            autograd.mark_variables(param._data, param._grad, param.grad_req)
