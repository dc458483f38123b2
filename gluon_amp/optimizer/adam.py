"""Adam with L2 regularization, and AdamW with decoupled weight decay."""

import functools
import math
from typing import Any, Callable, Dict, List, Optional

import numpy as np

from gluon_amp.kernels import updates
from gluon_amp.optimizer.base import (
    ExactFloat,
    MasterOptimizer,
    Slot,
    chunks,
    interleaved,
    sync_master,
)

from mxnet import nd

# The most tensors of one multi-tensor operator.
ADAMW_LIMIT = 50


class Adam(MasterOptimizer):
    """Adam (arXiv:1412.6980), with the bias correction as a factor of the learning rate.

        g = clip(rescale_grad * grad + wd * w)
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g**2
        w = w - lr * sqrt(1 - beta2**t) / (1 - beta1**t) * m / (sqrt(v) + epsilon)

    Signature, defaults and order of operations are those of `mxnet.optimizer.Adam`. The bias
    correction is more exact. The kernels round the betas to float32, and 1 - float32(0.999) is
    0.001 * (1 - 1.3e-5), so the correction is computed from float32(0.999), in float64. MXNet
    computes it from 0.999, so its first updates are 6e-6 too long. Here the first update is exact
    to 3 ulp. On a GPU it is exact to 6e-8 / (1 - beta2), because MXNet's multi-tensor operator
    computes the variance as a difference of nearly equal numbers.

    Parameters
    ----------
    learning_rate : float or None
        0.001 by default. As in MXNet, a number (the default too) replaces the base rate of an
        `lr_scheduler`; None keeps it.
    beta1, beta2, epsilon : float
        The decay rates of both moments, and the constant in the denominator.
    lazy_update : bool
        With a row_sparse gradient, update only its rows of the weight, the mean and the variance.
    **kwargs
        See `MasterOptimizer`. `wd` is L2 regularization, which is added to the gradient. For
        decoupled weight decay use `AdamW`.

    Examples
    --------
    >>> import gluon_amp as amp, mxnet as mx
    >>> weight = mx.nd.ones((1,), dtype='float16')
    >>> gradient = mx.nd.full((1,), 0.25, dtype='float16')
    >>> optimizer = amp.optimizer.Adam(learning_rate=0.5)
    >>> master, *_ = state = optimizer.create_state_multi_precision(0, weight)
    >>> optimizer.update_multi_precision(0, weight, gradient, state)
    >>> float(weight.asscalar()), round(float(master.asscalar()), 6)
    (0.5, 0.500001)
    """

    state_arrays = 2
    decoupled = False

    def __init__(
        self,
        learning_rate: Optional[float] = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        lazy_update: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate=learning_rate, **kwargs)
        self.beta1, self.beta2, self.epsilon = beta1, beta2, epsilon
        self.lazy_update = lazy_update

    def syncs_master(self, weight: nd.NDArray) -> bool:
        return updates.supported([weight])

    def _update_dense(self, slots: List[Slot]) -> None:
        if all(self.syncs_master(slot.weight) for slot in slots):
            updates.adam_update(
                interleaved(slots),
                len(slots[0].arrays),
                lrs=[self._corrected(slot) for slot in slots],
                wds=[0.0 if self.decoupled else slot.wd for slot in slots],
                decays=[slot.lr * slot.wd if self.decoupled else 0.0 for slot in slots],
                beta1=self.beta1,
                beta2=self.beta2,
                epsilon=self.epsilon,
                rescale_grad=self.rescale_grad,
                clip_gradient=self.clip_gradient,
            )
            return
        fused: List[Slot] = []
        single: List[Slot] = []
        for slot in slots:
            # MXNet has a multi-tensor operator for AdamW alone, with float32 state. Without weight
            # decay it computes Adam.
            fusible = self._prefer_fused(slots) and slot.target.dtype == np.float32
            fusible = fusible and (self.decoupled or not slot.wd)
            (fused if fusible else single).append(slot)
        if fused:
            self._update_fused(fused)
        for slot in single:
            if self.decoupled:
                self._update_by(nd.contrib.adamw_update, slot, wd=slot.lr * slot.wd, eta=1.0)
            else:
                self._update_one(slot, slot.wd)

    def _update_fused(self, slots: List[Slot]) -> None:
        update = nd.contrib.multi_adamw_update
        if slots[0].master is not None:
            update = nd.contrib.multi_mp_adamw_update
        attributes = self._attributes()
        # The operator reads the factor from an array; of a number it would make one in each call.
        rescale_grad = nd.full((1,), attributes.pop("rescale_grad"), ctx=slots[0].weight.context)
        for chunk in chunks(slots, ADAMW_LIMIT):
            update(
                *(list(column) for column in zip(*(slot.arrays for slot in chunk))),
                rescale_grad=rescale_grad,
                lrs=[self._corrected(slot) for slot in chunk],
                # The operator multiplies wd by eta, not by the learning rate.
                wds=[ExactFloat(slot.lr * slot.wd) for slot in chunk],
                etas=[1.0] * len(chunk),
                out=[slot.weight for slot in chunk],
                **attributes,
            )

    def _update_one(self, slot: Slot, wd: float) -> None:
        update = functools.partial(nd.adam_update, lazy_update=self.lazy_update)
        self._update_by(update, slot, wd=wd)

    def _update_by(self, update: Callable[..., Any], slot: Slot, **numbers: float) -> None:
        attributes = self._attributes(lr=self._corrected(slot), **numbers)
        update(slot.target, slot.grad_like_target, *slot.state, out=slot.target, **attributes)
        slot.set_weight()

    def _update_sparse(self, slot: Slot) -> None:
        if slot.master is not None and self.syncs_master(slot.weight):
            sync_master(slot.weight, slot.master)  # MXNet's operator does not
        if self.decoupled:
            target = slot.target
            target -= ExactFloat(slot.lr * slot.wd) * target
        self._update_one(slot, 0.0 if self.decoupled else slot.wd)

    def _attributes(self, **numbers: Any) -> Dict[str, ExactFloat]:
        constants = {"beta1": self.beta1, "beta2": self.beta2, "epsilon": self.epsilon}
        return super()._attributes(**constants, **numbers)

    def _corrected(self, slot: Slot) -> ExactFloat:
        """Return the learning rate times the bias correction, of betas rounded as in kernels."""
        beta1, beta2 = float(np.float32(self.beta1)), float(np.float32(self.beta2))
        correction = math.sqrt(1 - beta2**slot.step) / (1 - beta1**slot.step)
        return ExactFloat(slot.lr * correction)


class AdamW(Adam):
    """Adam with decoupled weight decay (arXiv:1711.05101).

        m, v as in Adam, without the weight decay
        w = w - (lr * sqrt(1 - beta2**t) / (1 - beta1**t) * m / (sqrt(v) + epsilon) + lr * wd * w)

    MXNet 1.9.1 has operators for it, but no optimizer. As in PyTorch, whose defaults these are, the
    decay is multiplied by the learning rate, so that a schedule changes both.

    Parameters
    ----------
    learning_rate, beta1, beta2, epsilon, lazy_update
        As in `Adam`. Lazy updates decay all rows.
    wd : float
        0.01 by default.
    **kwargs
        See `MasterOptimizer`.

    Examples
    --------
    >>> import gluon_amp as amp, mxnet as mx
    >>> weight = mx.nd.ones((1,), dtype='float16')
    >>> gradient = mx.nd.full((1,), 0.25, dtype='float16')
    >>> optimizer = amp.optimizer.AdamW(learning_rate=0.5, wd=0.5)
    >>> master, *_ = state = optimizer.create_state_multi_precision(0, weight)
    >>> optimizer.update_multi_precision(0, weight, gradient, state)
    >>> float(weight.asscalar()), round(float(master.asscalar()), 6)
    (0.25, 0.250001)
    """

    decoupled = True

    def __init__(
        self,
        learning_rate: Optional[float] = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        lazy_update: bool = True,
        wd: float = 0.01,
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate, beta1, beta2, epsilon, lazy_update, wd=wd, **kwargs)
