"""A Module's parameters: executors' arrays as Gluon Parameters, and checks of loaded values."""

from typing import Dict, List, Optional, Sequence, Tuple

from gluon_amp.base.dtypes import dtype_name

import mxnet as mx
from mxnet import autograd
from mxnet.ndarray import NDArray

Params = Dict[str, NDArray]


class ExecutorParameter(mx.gluon.Parameter):
    """A Gluon Parameter whose arrays are those of executors, one on each device.

    So a `Trainer` updates, checks, saves and restores what the executors read. The name is that of
    an argument of the executors, or of an auxiliary state; `contexts` are their devices.
    """

    def __init__(
        self,
        name: str,
        executors: Sequence[mx.executor.Executor],
        contexts: Sequence[mx.Context],
        grad_req: str,
    ):
        data, grads = arrays_of(name, executors)
        super().__init__(
            name,
            grad_req="null" if grads is None else grad_req,
            shape=data[0].shape,
            dtype=data[0].dtype,
            differentiable=name in executors[0].arg_dict,
            grad_stype="default" if grads is None else grads[0].stype,
        )
        self._ctx_list = list(contexts)
        self.use_executors(executors)

    def use_executors(self, executors: Sequence[mx.executor.Executor]) -> None:
        """Hold the arrays and gradients of these executors from now on."""
        self._data, self._grad = arrays_of(self.name, executors)
        if self._grad is not None:
            # MXNet records which gradients are fresh only for marked arrays.
            autograd.mark_variables(self._data, self._grad, self.grad_req)

    def data(self, ctx: Optional[mx.Context] = None) -> NDArray:
        """Return the array on a device, by default the first one."""
        return self._data[0 if ctx is None else self._ctx_list.index(ctx)]


def arrays_of(
    name: str, executors: Sequence[mx.executor.Executor]
) -> Tuple[List[NDArray], Optional[List[NDArray]]]:
    """Return an argument's or auxiliary state's array on each device, and its gradients or None."""
    if name in executors[0].aux_dict:
        return [executor.aux_dict[name] for executor in executors], None
    grads = [executor.grad_dict.get(name) for executor in executors]
    data = [executor.arg_dict[name] for executor in executors]
    return data, None if grads[0] is None else grads


def in_float32(params: Params) -> Params:
    """Return parameters with those of float16 and float64 converted to float32."""
    return {
        name: array.astype("float32", copy=False)
        if dtype_name(array.dtype) in ("float16", "float64")
        else array
        for name, array in params.items()
    }


def checked_values(values: Optional[Params], own: Params) -> Optional[Params]:
    """Return values for a module's own parameters in float32; other names pass unchecked.

    Raise `TypeError` for another dtype than float16, float32 and float64, and `ValueError` for
    another shape.
    """
    if values is None:
        return None
    for name, array in values.items():
        if name not in own:
            continue
        dtype = dtype_name(array.dtype)
        if dtype not in ("float16", "float32", "float64"):
            raise TypeError(
                f"The values for {name} are {dtype}, expected float32: convert them with "
                "array.astype('float32')."
            )
        if array.shape != own[name].shape:
            raise ValueError(
                f"The values for {name} have shape {array.shape}, the symbol expects "
                f"{own[name].shape}: leave {name} out and pass allow_missing=True if this is "
                "a new layer."
            )
    return {**values, **in_float32({name: values[name] for name in values if name in own})}
