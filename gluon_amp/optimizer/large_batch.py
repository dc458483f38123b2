"""Optimizers for large batches, with a learning rate per layer: LARS and LAMB."""

from typing import Any, Dict, List, Optional, Set, Tuple

from gluon_amp.base.host import on_cpu
from gluon_amp.base.mxnet_internals import internal_operators
from gluon_amp.optimizer.base import (
    SGD_LIMIT,
    ExactFloat,
    MasterOptimizer,
    Slot,
    cast,
    chunks,
    dense,
    gradients_like_targets,
    interleaved,
    set_weights,
    sum_squares,
)
from gluon_amp.optimizer.sgd import SGD

from mxnet import nd

# The most tensors of one multi-tensor operator.
LAMB_LIMIT = 45


class LARS(SGD):
    """SGD with a learning rate per layer, for large batches (arXiv:1708.03888).

        rate = lr * eta * |w| / (|g| + wd * |w| + eps)     with g = rescale_grad * grad
        m = momentum * m - rate * (clip(g) + wd * w)
        w = w + m

    Signature, defaults and order of operations are those of `mxnet.optimizer.LARS`. Norms are
    computed in float32, |w| from the masters. The rate is lr where a norm is 0, and for biases and
    the parameters of normalization layers (names ending in bias, gamma, beta). MXNet documents the
    same, but in a Gluon Trainer it does not know the names.

    Parameters
    ----------
    momentum : float
        0.0 by default.
    lazy_update : bool
        As in `SGD`.
    eta : float
        The trust coefficient.
    eps : float
        Added to the denominator of the ratio of norms.
    momentum_correction : bool
        When the learning rate changes from one step to the next, multiply the momentum of this step
        by new / old (arXiv:1706.02677, section 2.1). It is the default in MXNet too, which corrects
        only the first parameters of the first device.
    **kwargs
        See `MasterOptimizer`; the default learning rate is 0.01.

    Examples
    --------
    >>> import gluon_amp as amp, mxnet as mx
    >>> weight = mx.nd.ones((1,), dtype='float16')
    >>> gradient = mx.nd.full((1,), 0.25, dtype='float16')
    >>> optimizer = amp.optimizer.LARS(learning_rate=0.5, momentum=0, eta=0.5)
    >>> master, *_ = state = optimizer.create_state_multi_precision(0, weight)
    >>> optimizer.update_multi_precision(0, weight, gradient, state)
    >>> float(weight.asscalar()), round(float(master.asscalar()), 6)
    (0.75, 0.75)
    """

    def __init__(
        self,
        momentum: float = 0.0,
        lazy_update: bool = True,
        eta: float = 0.001,
        eps: float = 0,
        momentum_correction: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(momentum, lazy_update, nesterov=False, **kwargs)
        self.eta, self.eps = eta, eps
        self.momentum_correction = momentum_correction
        # Learning rates of the last and of this step, and (device, index) of what this one updated
        self.last_lr: Optional[float] = None
        self.cur_lr: Optional[float] = None
        self._updated: Set[Tuple[Any, int]] = set()

    def set_wd_mult(self, args_wd_mult: Dict[Any, float]) -> None:
        """As in `mxnet.optimizer.LARS`, only names in `_weight` have a weight decay by default."""
        super().set_wd_mult({})
        for name in self.idx2name.values():
            if name.endswith("_gamma"):
                self.wd_mult.setdefault(name, 0.0)
        self.wd_mult.update(args_wd_mult)

    def syncs_master(self, weight: nd.NDArray) -> bool:
        return False

    def _get_lrs(self, indices: List[int]) -> List[float]:
        # One step makes one call per device and dtype. The next step begins when a parameter is
        # updated again.
        counts = self._all_index_update_counts
        device = next(d for d, count in counts.items() if count is self._index_update_count)
        called = {(device, index) for index in indices}
        if called & self._updated or not self._updated:
            self.last_lr, self._updated = self.cur_lr, set()
        self._updated |= called
        self.cur_lr = self.learning_rate
        rates: List[float] = super()._get_lrs(indices)
        return rates

    def _momentum_attribute(self) -> Dict[str, float]:
        momentum = super()._momentum_attribute()
        if momentum and self.momentum_correction and self.last_lr and self.cur_lr is not None:
            momentum["momentum"] *= self.cur_lr / self.last_lr
        return momentum

    def _update_dense(self, slots: List[Slot]) -> None:
        # `_layer_rates` sets the first rates, so the layers that have one come first
        slots = sorted(slots, key=self._plain)
        rates, decays = self._rates(slots)
        vectors = (slots, rates, decays)
        for chunk, lrs, wds in zip(*(chunks(vector, SGD_LIMIT) for vector in vectors)):
            self._operator("preloaded_multi_", chunk[0])(
                *interleaved(chunk),
                lrs,
                wds,
                out=[slot.weight for slot in chunk],
                num_weights=len(chunk),
                **self._attributes(**self._momentum_attribute()),
            )

    def _update_sparse(self, slot: Slot) -> None:
        if slot.master is None:
            rates, _ = self._rates([slot])
            slot = slot._replace(lr=ExactFloat(rates.asscalar()))
        super()._update_sparse(slot)

    def _rates(self, slots: List[Slot]) -> Tuple[nd.NDArray, nd.NDArray]:
        """Return learning rates and weight decays as arrays; slots are sorted by `_plain`."""
        context = slots[0].weight.context
        lrs = nd.array([slot.lr for slot in slots], ctx=context, dtype="float32")
        wds = nd.array([slot.wd for slot in slots], ctx=context, dtype="float32")
        adaptive = [slot for slot in slots if not self._plain(slot)]
        if adaptive:
            self._layer_rates(adaptive, lrs[: len(adaptive)], wds[: len(adaptive)])
        return lrs, wds

    def _layer_rates(self, slots: List[Slot], lrs: nd.NDArray, wds: nd.NDArray) -> None:
        """Set the learning rates of these slots to those of their layers, in place."""
        targets = [dense(slot.target) for slot in slots]
        grads = [dense(slot.grad) for slot in slots]
        if on_cpu(grads[0]):
            # on a CPU `multi_sum_sq` accumulates in the gradient's dtype, and float16 overflows
            grads = [cast(grad, "float32") for grad in grads]
        nd.multi_lars(
            lrs,
            _square_sums(targets),
            _square_sums(grads),
            wds,
            eta=ExactFloat(self.eta),
            eps=ExactFloat(self.eps),
            rescale_grad=ExactFloat(self.rescale_grad),
            out=lrs,
        )

    @staticmethod
    def _plain(slot: Slot) -> bool:
        """Return whether a slot has the learning rate of the optimizer."""
        return slot.name.endswith(("bias", "gamma", "beta"))


def _square_sums(arrays: List[nd.NDArray]) -> nd.NDArray:
    """Return the sums of squares of arrays in one vector."""
    sums = nd.empty((len(arrays),), ctx=arrays[0].context)
    sum_squares(arrays, out=sums)
    return sums


class LAMB(MasterOptimizer):
    """Adam with a trust ratio per layer, for large batches (arXiv:1904.00962).

        g = clip(rescale_grad * grad)
        m, v as in Adam; bias-corrected to m', v' if bias_correction
        d = m' / (sqrt(v') + epsilon) + wd * w
        r = clip(|w|, lower_bound, upper_bound) / |d|      (1 where either is 0)
        w = w - lr * r * d

    Signature, defaults and order of operations are those of `mxnet.optimizer.LAMB`. Norms are
    computed in float32, |w| from the masters. A row_sparse gradient updates all rows.

    Parameters
    ----------
    learning_rate : float or None
        As in `Adam`.
    beta1, beta2, epsilon : float
        The decay rates of both moments, and the constant in the denominator.
    lower_bound, upper_bound : float or None
        Limits of the norm of a weight, before the ratio is computed.
    bias_correction : bool
        Divide the moments by 1 - beta**t.
    **kwargs
        See `MasterOptimizer`.

    Examples
    --------
    >>> import gluon_amp as amp, mxnet as mx
    >>> weight = mx.nd.ones((1,), dtype='float16')
    >>> gradient = mx.nd.full((1,), 0.25, dtype='float16')
    >>> optimizer = amp.optimizer.LAMB(learning_rate=0.5)
    >>> master, *_ = state = optimizer.create_state_multi_precision(0, weight)
    >>> optimizer.update_multi_precision(0, weight, gradient, state)
    >>> float(weight.asscalar()), round(float(master.asscalar()), 6)
    (0.5, 0.5)
    """

    state_arrays = 2

    def __init__(
        self,
        learning_rate: Optional[float] = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-6,
        lower_bound: Optional[float] = None,
        upper_bound: Optional[float] = None,
        bias_correction: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate=learning_rate, **kwargs)
        self.beta1, self.beta2, self.epsilon = beta1, beta2, epsilon
        self.lower_bound, self.upper_bound = lower_bound, upper_bound
        self.bias_correction = bias_correction

    def _update_dense(self, slots: List[Slot]) -> None:
        numbers = {"beta1": self.beta1, "beta2": self.beta2, "epsilon": self.epsilon}
        bounds = {"lower_bound": self.lower_bound, "upper_bound": self.upper_bound}
        numbers.update((name, bound) for name, bound in bounds.items() if bound)
        for chunk in chunks(slots, LAMB_LIMIT):
            # All float32: the operator for float16 computes the norms of the rounded weights, which
            # on a CPU are infinite from 256 on.
            internal_operators._multi_lamb_update(
                *(
                    array
                    for slot, grad in zip(chunk, gradients_like_targets(chunk))
                    for array in (slot.target, grad, *slot.state)
                ),
                out=[slot.target for slot in chunk],
                num_tensors=len(chunk),
                step_count=[slot.step for slot in chunk],
                learning_rates=[slot.lr for slot in chunk],
                wds=[slot.wd for slot in chunk],
                bias_correction=self.bias_correction,
                **self._attributes(**numbers),
            )
        set_weights(slots)
