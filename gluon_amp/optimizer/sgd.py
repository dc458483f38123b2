"""Stochastic gradient descent: SGD, with and without momentum, and NAG."""

from typing import Any, Callable, Dict, List

from gluon_amp.base.host import on_cpu
from gluon_amp.kernels import updates
from gluon_amp.optimizer.base import (
    SGD_LIMIT,
    MasterOptimizer,
    Slot,
    add_multiples,
    chunks,
    interleaved,
    set_weights,
)

from mxnet import nd


class SGD(MasterOptimizer):
    """Stochastic gradient descent with momentum, plain or Nesterov's.

        g = clip(rescale_grad * grad) + wd * w
        m = momentum * m - lr * g
        w = w + m                              (nesterov: w + momentum * m - lr * g)

    Signature, defaults and order of operations are those of `mxnet.optimizer.SGD`, with one
    exception: without momentum, a CPU subtracts a weight decay in the order of `sgd_update`, and
    MXNet in that of `multi_sgd_update`. They differ in the last bit.

    Parameters
    ----------
    momentum : float
        0.0 by default, which is no momentum.
    lazy_update : bool
        With a row_sparse gradient, update only its rows of the weight and the momentum. Float16
        weights ignore it and update all rows, as in MXNet.
    nesterov : bool
        Use Nesterov's momentum, as `NAG` does. Requires `momentum`.
    **kwargs
        See `MasterOptimizer`; the default learning rate is 0.01.

    Examples
    --------
    >>> import gluon_amp as amp, mxnet as mx
    >>> weight = mx.nd.ones((1,), dtype='float16')
    >>> gradient = mx.nd.full((1,), 0.25, dtype='float16')
    >>> optimizer = amp.optimizer.SGD(learning_rate=2**-11)
    >>> master, *_ = state = optimizer.create_state_multi_precision(0, weight)
    >>> optimizer.update_multi_precision(0, weight, gradient, state)
    >>> float(weight.asscalar()), round(float(master.asscalar()), 6)
    (1.0, 0.999878)
    """

    def __init__(
        self,
        momentum: float = 0.0,
        lazy_update: bool = True,
        *,
        nesterov: bool = False,
        **kwargs: Any,
    ) -> None:
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
    def state_arrays(self) -> int:
        return 1 if self.momentum else 0

    def syncs_master(self, weight: nd.NDArray) -> bool:
        return not self.nesterov and updates.supported([weight])

    def weight_writes(self, weight: nd.NDArray) -> int:
        return 1 if not self.nesterov or on_cpu(weight) else 2  # see `_update_all_nesterov`

    def _update_dense(self, slots: List[Slot]) -> None:
        if all(self.syncs_master(slot.weight) for slot in slots):
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
        if not self._prefer_fused(slots):
            update = self._update_nesterov if self.nesterov else self._update_one
            for slot in slots:
                update(slot)
            return
        for chunk in chunks(slots, SGD_LIMIT):
            (self._update_all_nesterov if self.nesterov else self._update_all)(chunk)

    def _update_all(self, slots: List[Slot]) -> None:
        self._operator("multi_", slots[0])(
            *interleaved(slots),
            out=[slot.weight for slot in slots],
            num_weights=len(slots),
            lrs=[slot.lr for slot in slots],
            wds=[slot.wd for slot in slots],
            **self._attributes(**self._momentum_attribute()),
        )

    def _update_all_nesterov(self, slots: List[Slot]) -> None:
        # MXNet has no multi-tensor operator for it: w + momentum * m - lr * g, where the update of
        # plain momentum ends at w + m, is w + m + momentum * (m - previous m).
        momenta = [slot.state[0] for slot in slots]
        changes = [nd.empty(m.shape, ctx=m.context, dtype=m.dtype) for m in momenta]
        add_multiples(momenta, momenta, 0.0, out=changes)
        self._update_all(slots)
        add_multiples(momenta, changes, -1.0, out=changes)
        targets = [slot.target for slot in slots]
        add_multiples(targets, changes, self.momentum, out=targets)
        set_weights(slots)

    def _operator(self, prefix: str, slot: Slot) -> Callable[..., Any]:
        """Return an operator such as `nd.sgd_update` or `nd.multi_mp_sgd_mom_update`."""
        mixed = "mp_" if slot.master is not None else ""
        momentum = "mom_" if self.momentum else ""
        found: Callable[..., Any] = getattr(nd, f"{prefix}{mixed}sgd_{momentum}update")
        return found

    def _momentum_attribute(self) -> Dict[str, float]:
        """Return the momentum of this step, for operators that have one."""
        return {"momentum": self.momentum} if self.momentum else {}

    def _update_one(self, slot: Slot, **kwargs: Any) -> None:
        self._operator("", slot)(
            *slot.arrays,
            out=slot.weight,
            **self._attributes(lr=slot.lr, wd=slot.wd, **self._momentum_attribute()),
            **kwargs,
        )

    def _update_nesterov(self, slot: Slot) -> None:
        # In place, MXNet's operator would compute the momentum's weight decay from the new weight.
        updated = nd.nag_mom_update(
            slot.target,
            slot.grad_like_target,
            *slot.state,
            **self._attributes(lr=slot.lr, wd=slot.wd, momentum=self.momentum),
        )
        updated.copyto(slot.target)
        slot.set_weight()

    def _update_sparse(self, slot: Slot) -> None:
        if slot.master is not None or self.nesterov:
            super()._update_sparse(slot)
        else:
            self._update_one(slot, lazy_update=self.lazy_update)


class NAG(SGD):
    """SGD with Nesterov's momentum.

        g = clip(rescale_grad * grad) + wd * w
        m = momentum * m - lr * g
        w = w + momentum * m - lr * g

    `mxnet.optimizer.NAG` computes the weight decay of its momentum from the weight that it has just
    written, so that with a decay its weights differ.

    Parameters
    ----------
    momentum : float
        0.0 by default, which is plain SGD.
    **kwargs
        See `MasterOptimizer`; the default learning rate is 0.01.

    Examples
    --------
    >>> import gluon_amp as amp, mxnet as mx
    >>> weight = mx.nd.ones((1,), dtype='float16')
    >>> gradient = mx.nd.full((1,), 0.25, dtype='float16')
    >>> optimizer = amp.optimizer.NAG(learning_rate=0.5, momentum=0.5)
    >>> master, *_ = state = optimizer.create_state_multi_precision(0, weight)
    >>> optimizer.update_multi_precision(0, weight, gradient, state)
    >>> float(weight.asscalar()), round(float(master.asscalar()), 6)
    (0.8125, 0.8125)
    """

    def __init__(self, momentum: float = 0.0, **kwargs: Any) -> None:
        super().__init__(momentum, nesterov=momentum != 0, **kwargs)
