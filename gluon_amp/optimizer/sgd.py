"""Stochastic gradient descent: plain, with momentum, with Nesterov's momentum."""

from gluon_amp.lowering.native import updates
from gluon_amp.optimizer.base import MasterOptimizer, chunks, interleaved

from mxnet import nd

# Most tensors one multi-tensor op takes; beyond it, MXNet reads or skips silently.
SGD_LIMIT = 60


class SGD(MasterOptimizer):
    """Stochastic gradient descent with momentum, plain or Nesterov's.

        g = clip(rescale_grad * grad) + wd * w
        m = momentum * m - lr * g
        w = w + m                              (nesterov: w + momentum * m - lr * g)

    Signature, defaults and order of operations are those of `mxnet.optimizer.SGD`.

    Parameters
    ----------
    momentum : float
        0.0 by default: none.
    lazy_update : bool
        Update only the rows that a row_sparse gradient has, and their momentum, where the weight is
        float32 or float64. A float16 weight gets the update of all rows, as in MXNet.
    nesterov : bool
        Requires a momentum. MXNet calls it `NAG`.
    **kwargs
        See `MasterOptimizer`; the default rate is 0.01.

    Examples
    --------
    >>> import gluon_amp as amp, mxnet as mx
    >>> weight = mx.nd.ones((1,), dtype='float16')
    >>> gradient = mx.nd.full((1,), 0.25, dtype='float16')
    >>> optimizer = amp.optimizer.SGD(learning_rate=2**-11)
    >>> master, *_ = state = optimizer.create_state_multi_precision(0, weight)
    >>> optimizer.update_multi_precision(0, weight, gradient, state)
    >>> weight.asscalar(), round(float(master.asscalar()), 6)
    (1.0, 0.999878)
    """

    def __init__(self, momentum=0.0, lazy_update=True, *, nesterov=False, **kwargs):
        super().__init__(**kwargs)
        if momentum < 0 or (nesterov and momentum == 0):
            raise ValueError(
                f"momentum must be {'above 0 for nesterov' if nesterov else 'at least 0'}, "
                f"received {momentum!r}."
            )
        self.momentum = momentum
        self.lazy_update = lazy_update
        self.nesterov = nesterov

    @property
    def state_arrays(self):
        return 1 if self.momentum else 0

    def follows(self, weight) -> bool:
        return not self.nesterov and updates.supported([weight])

    def _update_dense(self, slots):
        if all(self.follows(slot.weight) for slot in slots):
            updates.sgd_update(
                interleaved(slots),
                len(slots[0].arrays),
                lrs=[slot.lr for slot in slots],
                wds=[slot.wd for slot in slots],
                momentum=self.momentum,
                rescale_grad=self.rescale_grad,
                clip_gradient=self.clip_gradient,
            )
            return
        if self.nesterov or not self._prefer_fused(slots):
            update = self._update_nesterov if self.nesterov else self._update_one
            for slot in slots:
                update(slot)
            return
        for chunk in chunks(slots, SGD_LIMIT):
            op = {
                (True, True): nd.multi_mp_sgd_mom_update,
                (True, False): nd.multi_mp_sgd_update,
                (False, True): nd.multi_sgd_mom_update,
                (False, False): nd.multi_sgd_update,
            }[chunk[0].master is not None, bool(self.momentum)]
            op(
                *interleaved(chunk),
                out=[slot.weight for slot in chunk],
                num_weights=len(chunk),
                lrs=[slot.lr for slot in chunk],
                wds=[slot.wd for slot in chunk],
                **self._attributes(**self._momentum_attribute()),
            )

    def _momentum_attribute(self):
        """The momentum of this step, for ops that take one."""
        return {"momentum": self.momentum} if self.momentum else {}

    def _update_one(self, slot, **kwargs):
        op = {
            (True, True): nd.mp_sgd_mom_update,
            (True, False): nd.mp_sgd_update,
            (False, True): nd.sgd_mom_update,
            (False, False): nd.sgd_update,
        }[slot.master is not None, bool(self.momentum)]
        op(
            *slot.arrays,
            out=slot.weight,
            **self._attributes(lr=slot.lr, wd=slot.wd, **self._momentum_attribute()),
            **kwargs,
        )

    def _update_nesterov(self, slot):
        # In place, MXNet's op would compute the momentum's weight decay from the new weight.
        updated = nd.nag_mom_update(
            slot.target,
            slot.grad_like_target,
            *slot.state,
            **self._attributes(lr=slot.lr, wd=slot.wd, momentum=self.momentum),
        )
        updated.copyto(slot.target)
        slot.round_master()

    def _update_sparse(self, slot):
        if slot.master is not None or self.nesterov:
            super()._update_sparse(slot)
        else:
            self._update_one(slot, lazy_update=self.lazy_update)


class NAG(SGD):
    """SGD with Nesterov's momentum, with MXNet's name and defaults.

        g = clip(rescale_grad * grad) + wd * w
        m = momentum * m - lr * g
        w = w + momentum * m - lr * g

    Parameters
    ----------
    momentum : float
        0.0 by default, which is plain SGD.
    **kwargs
        See `MasterOptimizer`; the default rate is 0.01.

    Examples
    --------
    >>> import gluon_amp as amp, mxnet as mx
    >>> weight = mx.nd.ones((1,), dtype='float16')
    >>> gradient = mx.nd.full((1,), 0.25, dtype='float16')
    >>> optimizer = amp.optimizer.NAG(learning_rate=0.5, momentum=0.5)
    >>> master, *_ = state = optimizer.create_state_multi_precision(0, weight)
    >>> optimizer.update_multi_precision(0, weight, gradient, state)
    >>> weight.asscalar(), round(float(master.asscalar()), 6)
    (0.8125, 0.8125)
    """

    def __init__(self, momentum=0.0, **kwargs):
        super().__init__(momentum, nesterov=momentum != 0, **kwargs)
