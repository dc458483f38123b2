"""Adam, with the classic and with the decoupled weight decay."""

import math

import numpy as np

from gluon_amp.lowering.native import updates
from gluon_amp.optimizer.base import ExactFloat, MasterOptimizer, chunks, follow, interleaved

from mxnet import nd

# Most tensors one multi-tensor op takes.
ADAMW_LIMIT = 50


class Adam(MasterOptimizer):
    """Adam (arXiv:1412.6980), with the bias correction folded into the rate, as MXNet has it.

        g = clip(rescale_grad * grad + wd * w)
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g**2
        w = w - lr * sqrt(1 - beta2**t) / (1 - beta1**t) * m / (sqrt(v) + epsilon)

    Signature, defaults and order of operations are those of `mxnet.optimizer.Adam`. The bias
    correction is more exact. The kernels have the betas in float32, and 1 - float32(0.999) is
    0.001 * (1 - 1.3e-5), so the correction is computed from float32(0.999), in float64. MXNet
    computes it from 0.999, which makes its first updates 6e-6 too long. Here the first update is
    exact to 3 ulp. On a GPU, where MXNet's multi-tensor operator computes the variance as a
    difference of nearly equal numbers, it is exact to 6e-8 / (1 - beta2).

    Parameters
    ----------
    learning_rate : float or None
        0.001 by default. As in MXNet, a number replaces the base rate of an `lr_scheduler`, and so
        does the default; None keeps the scheduler's.
    beta1, beta2, epsilon : float
    lazy_update : bool
        Update only the rows that a row_sparse gradient has, and their mean and variance.
    **kwargs
        See `MasterOptimizer`. `wd` is the classic L2 term, added to the gradient; for the decoupled
        one use `AdamW`.

    Examples
    --------
    >>> import gluon_amp as amp, mxnet as mx
    >>> weight = mx.nd.ones((1,), dtype='float16')
    >>> gradient = mx.nd.full((1,), 0.25, dtype='float16')
    >>> optimizer = amp.optimizer.Adam(learning_rate=0.5)
    >>> master, *_ = state = optimizer.create_state_multi_precision(0, weight)
    >>> optimizer.update_multi_precision(0, weight, gradient, state)
    >>> weight.asscalar(), round(float(master.asscalar()), 6)
    (0.5, 0.500001)
    """

    state_arrays = 2
    decoupled = False

    def __init__(
        self,
        learning_rate=0.001,
        beta1=0.9,
        beta2=0.999,
        epsilon=1e-8,
        lazy_update=True,
        **kwargs,
    ):
        super().__init__(learning_rate=learning_rate, **kwargs)
        self.beta1, self.beta2, self.epsilon = beta1, beta2, epsilon
        self.lazy_update = lazy_update

    def follows(self, weight) -> bool:
        return updates.supported([weight])

    def _update_dense(self, slots):
        if all(self.follows(slot.weight) for slot in slots):
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
        fused, single = [], []
        for slot in slots:
            # MXNet's multi-tensor op, with float32 state, is AdamW's, which without weight decay is
            # Adam's too.
            fusible = self._prefer_fused(slots) and slot.target.dtype == np.float32
            fusible = fusible and (self.decoupled or slot.wd == 0)
            (fused if fusible else single).append(slot)
        for chunk in chunks(fused, ADAMW_LIMIT):
            self._update_fused(chunk)
        for slot in single:
            if self.decoupled:
                self._update_decoupled(slot)
            else:
                self._update_one(slot, slot.wd)

    def _update_fused(self, chunk):
        update = nd.contrib.multi_adamw_update
        columns = [list(column) for column in zip(*(slot.arrays for slot in chunk))]
        if chunk[0].master is not None:
            update = nd.contrib.multi_mp_adamw_update
        update(
            *columns,
            lrs=[self._corrected(slot) for slot in chunk],
            # The op multiplies wd by eta, not by the learning rate.
            wds=[ExactFloat(slot.lr * slot.wd) for slot in chunk],
            etas=[1.0] * len(chunk),
            out=[slot.weight for slot in chunk],
            **self._attributes(**self._constants()),
        )

    def _update_decoupled(self, slot):
        nd.contrib.adamw_update(
            slot.target,
            slot.grad_like_target,
            *slot.state,
            lr=self._corrected(slot),
            wd=ExactFloat(slot.lr * slot.wd),
            eta=1.0,
            out=slot.target,
            **self._attributes(**self._constants()),
        )
        slot.round_master()

    def _update_one(self, slot, wd):
        nd.adam_update(
            slot.target,
            slot.grad_like_target,
            *slot.state,
            out=slot.target,
            lazy_update=self.lazy_update,
            **self._attributes(lr=self._corrected(slot), wd=wd, **self._constants()),
        )
        slot.round_master()

    def _update_sparse(self, slot):
        if slot.master is not None and self.follows(slot.weight):
            follow(slot.weight, slot.master)  # MXNet's op does not
        if self.decoupled:
            target = slot.target
            target -= ExactFloat(slot.lr * slot.wd) * target
        self._update_one(slot, 0.0 if self.decoupled else slot.wd)

    def _constants(self):
        return {"beta1": self.beta1, "beta2": self.beta2, "epsilon": self.epsilon}

    def _corrected(self, slot):
        """The rate with the bias correction in it, of the betas that the kernels have."""
        beta1, beta2 = float(np.float32(self.beta1)), float(np.float32(self.beta2))
        correction = math.sqrt(1 - beta2**slot.count) / (1 - beta1**slot.count)
        return ExactFloat(slot.lr * correction)


class AdamW(Adam):
    """Adam with decoupled weight decay (arXiv:1711.05101).

        m, v as in Adam, without the weight decay
        w = w - (lr * sqrt(1 - beta2**t) / (1 - beta1**t) * m / (sqrt(v) + epsilon) + lr * wd * w)

    MXNet 1.9.1 has operators for it, but no optimizer. The defaults are torch's, and so is the
    decay, which is multiplied by the learning rate, so that schedules move both.

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
    >>> weight.asscalar(), round(float(master.asscalar()), 6)
    (0.25, 0.250001)
    """

    decoupled = True

    def __init__(
        self,
        learning_rate=0.001,
        beta1=0.9,
        beta2=0.999,
        epsilon=1e-8,
        lazy_update=True,
        wd=0.01,
        **kwargs,
    ):
        super().__init__(learning_rate, beta1, beta2, epsilon, lazy_update, wd=wd, **kwargs)
