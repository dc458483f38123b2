"""Optimizers with float32 masters: SGD, NAG, Adam, AdamW, LARS, LAMB.

A float16 weight near 1 cannot take a step below 5e-4, and near 1e-8 Adam's epsilon is zero, so the
update works in float32: on a master copy that the optimizer keeps, of which the weight is the
rounding. Float32 weights are their own masters.

All state has one layout, ``(master or None, state arrays...)``, a plain tuple that
`mxnet.optimizer.Updater` moves between devices and pickles. All arithmetic of one optimizer is in
its `_update_dense`, which gets everything one device has to update as a list of `Slot`.

The classes are also registered with MXNet as ``amp_sgd``, ``amp_adam`` and so on.
"""

import math
from typing import NamedTuple, Optional, Tuple

import numpy as np

from gluon_amp.finite import chunks, on_cpu
from gluon_amp.lowering import native_updates

import mxnet as mx
from mxnet import nd
from mxnet.ndarray import _internal

__all__ = ["LAMB", "LARS", "NAG", "SGD", "Adam", "AdamW", "MasterOptimizer", "create"]

# Most tensors one multi-tensor op takes; beyond it, MXNet reads or skips silently.
SGD_LIMIT = 60
ADAMW_LIMIT = 50
LAMB_LIMIT = 45


class ExactFloat(float):
    """A float whose text MXNet's parser reads back as the same float32.

    Op attributes travel as text, and dmlc's `stof` multiplies exponents out in float32: of
    `1/(3·2**k)` and `1/(7·2**k)` every third value arrives one unit off, and then a step with a
    loss scale is no longer bit for bit the step without. Without an exponent the text is read
    exactly, down to 1e-12.
    """

    def __str__(self):
        if 1e-12 < abs(self) < 1e12:
            # 19 digits after the point are what the parser looks at
            return np.format_float_positional(
                np.float64(np.float32(self)), precision=19, unique=False, trim="0"
            )
        return float.__repr__(self)

    __repr__ = __str__


class Slot(NamedTuple):
    """One tensor to update: arrays of one shape on one device, and its own constants.

    ``weight`` is float16 or float32, ``grad`` has its dtype; ``master`` (None for a float32 weight)
    and ``state`` are float32. ``count`` is the number of this update, from 1.
    """

    name: str
    weight: nd.NDArray
    grad: nd.NDArray
    master: Optional[nd.NDArray]
    state: Tuple[nd.NDArray, ...]
    lr: float
    wd: float
    count: int

    @property
    def target(self):
        """What the update works on: the master, or a float32 weight itself."""
        return self.weight if self.master is None else self.master

    @property
    def arrays(self):
        """The array inputs of MXNet's update ops, in their order."""
        own = () if self.master is None else (self.master,)
        return (self.weight, self.grad, *self.state, *own)

    @property
    def grad_like_target(self):
        """The gradient in the target's dtype."""
        return self.grad.astype(self.target.dtype, copy=False)

    def round_master(self):
        """Set the weight from its master, after an update that worked on the target."""
        if self.master is not None:
            nd.cast(self.master, dtype=self.weight.dtype, out=self.weight)


class MasterOptimizer(mx.optimizer.Optimizer):
    """Base of the optimizers here: keeps masters, and hands each device's tensors over as one list.

    Parameters
    ----------
    learning_rate : float or None
        None takes the scheduler's, or the class's default where there is no scheduler.
    multi_precision : bool
        Keep float32 masters of float16 weights. False is only for nets without such weights.
    lazy_update : bool
        With a row_sparse gradient, update only the rows in it, where MXNet has such an op.
    **kwargs
        What `mxnet.optimizer.Optimizer` takes: wd, lr_scheduler, clip_gradient, ...

    Examples
    --------
    >>> import gluon_amp as amp, mxnet as mx
    >>> weight = mx.nd.ones((1,), dtype='float16')
    >>> optimizer = amp.optimizer.create('sgd')
    >>> isinstance(optimizer, amp.optimizer.MasterOptimizer)
    True
    >>> [array.dtype.__name__ for array in optimizer.create_state_multi_precision(0, weight)]
    ['float32']
    """

    # Float32 arrays of the weight's shape that are kept beside the master.
    state_arrays = 0
    default_learning_rate = 0.01

    def __init__(self, learning_rate=None, multi_precision=True, lazy_update=True, **kwargs):
        if learning_rate is None and kwargs.get("lr_scheduler") is None:
            learning_rate = self.default_learning_rate
        super().__init__(learning_rate=learning_rate, multi_precision=multi_precision, **kwargs)
        self.lazy_update = lazy_update
        # The Updater cuts its list at this length. We chunk by the op's own limit instead.
        self.aggregate_num = 1 << 30

    def create_state(self, index, weight):
        """Zeros like the weight, `state_arrays` of them."""
        return tuple(nd.zeros_like(weight) for _ in range(self.state_arrays))

    def create_state_multi_precision(self, index, weight):
        """`(master or None, state arrays...)` for a weight.

        Raises
        ------
        ValueError
            For a float16 weight when multi_precision is off.
        """
        if weight.stype != "default":
            weight = weight.tostype("default")
        master = None
        if np.dtype(weight.dtype) == np.float16:
            if not self.multi_precision:
                raise ValueError(
                    f"{type(self).__name__} got a float16 weight with multi_precision=False, which "
                    "would lose every small update: leave multi_precision on."
                )
            master = weight.astype("float32")
        return (master, *self.create_state(index, weight if master is None else master))

    def update(self, index, weight, grad, state):
        """Update one weight, or a list of weights of one device and dtype."""
        self.update_multi_precision(index, weight, grad, state)

    def update_multi_precision(self, index, weight, grad, state):
        """Update one weight, or a list of weights of one device and dtype, from `(master, ...)`."""
        if not isinstance(index, (list, tuple)):
            index, weight, grad, state = [index], [weight], [grad], [state]
        self._update_count(index)
        slots = [
            Slot(self._name(i), w, g, s[0], tuple(s[1:]), lr, wd, self._index_update_count[i])
            for i, w, g, s, lr, wd in zip(
                index, weight, grad, state, self._get_lrs(index), self._get_wds(index)
            )
        ]
        dense = [slot for slot in slots if slot.grad.stype == "default"]
        if dense:
            self._update_dense(dense)
        for slot in slots:
            if slot.grad.stype != "default":
                self._update_sparse(slot)

    def follows(self, weight) -> bool:
        """Whether an update of this weight sees what somebody wrote to it since the last one.

        If not, its master has to follow it before the update: see `gluon_amp.masters`.
        """
        return False

    def _update_dense(self, slots):
        """Update all slots: one device, one weight dtype, dense gradients."""
        raise NotImplementedError

    def _update_sparse(self, slot):
        """Update a slot whose gradient is row_sparse."""
        self._update_dense([slot._replace(grad=slot.grad.tostype("default"))])

    def _name(self, index):
        if index in self.param_dict:
            return self.param_dict[index].name
        return self.idx2name.get(index, str(index))

    def _clip(self):
        # MXNet takes 0 for "off", like None
        return {"clip_gradient": self.clip_gradient} if self.clip_gradient else {}


class SGD(MasterOptimizer):
    """Stochastic gradient descent with momentum, plain or Nesterov's.

        g = clip(rescale_grad * grad) + wd * w
        m = momentum * m - lr * g
        w = w + m                              (nesterov: w + momentum * m - lr * g)

    Parameters
    ----------
    learning_rate, momentum, wd : float
        The default rate is 0.01.
    nesterov : bool
        Needs a momentum.

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

    def __init__(self, learning_rate=None, momentum=0.0, nesterov=False, **kwargs):
        super().__init__(learning_rate=learning_rate, **kwargs)
        if momentum < 0 or (nesterov and momentum == 0):
            raise ValueError(
                f"momentum must be {'above 0 for nesterov' if nesterov else 'at least 0'}, "
                f"received {momentum!r}."
            )
        self.momentum = momentum
        self.nesterov = nesterov

    @property
    def state_arrays(self):
        return 1 if self.momentum else 0

    def follows(self, weight) -> bool:
        return not self.nesterov and native_updates.takes([weight])

    def _update_dense(self, slots):
        if all(self.follows(slot.weight) for slot in slots):
            native_updates.sgd_update(
                _interleaved(slots),
                len(slots[0].arrays),
                lrs=[slot.lr for slot in slots],
                wds=[slot.wd for slot in slots],
                momentum=self.momentum,
                rescale_grad=self.rescale_grad,
                clip_gradient=self.clip_gradient,
            )
            return
        if self.nesterov or not _prefer_fused(slots):
            update = self._update_nesterov if self.nesterov else self._update_one
            for slot in slots:
                update(slot)
            return
        momentum = {"momentum": self.momentum} if self.momentum else {}
        for chunk in chunks(slots, SGD_LIMIT):
            op = {
                (True, True): nd.multi_mp_sgd_mom_update,
                (True, False): nd.multi_mp_sgd_update,
                (False, True): nd.multi_sgd_mom_update,
                (False, False): nd.multi_sgd_update,
            }[chunk[0].master is not None, bool(self.momentum)]
            op(
                *_interleaved(chunk),
                out=[slot.weight for slot in chunk],
                num_weights=len(chunk),
                lrs=[slot.lr for slot in chunk],
                wds=[slot.wd for slot in chunk],
                rescale_grad=self.rescale_grad,
                **momentum,
                **self._clip(),
            )

    def _update_one(self, slot, **kwargs):
        if self.momentum:
            kwargs["momentum"] = self.momentum
        op = {
            (True, True): nd.mp_sgd_mom_update,
            (True, False): nd.mp_sgd_update,
            (False, True): nd.sgd_mom_update,
            (False, False): nd.sgd_update,
        }[slot.master is not None, bool(self.momentum)]
        op(
            *slot.arrays,
            out=slot.weight,
            lr=slot.lr,
            wd=slot.wd,
            rescale_grad=self.rescale_grad,
            **kwargs,
            **self._clip(),
        )

    def _update_nesterov(self, slot):
        # In place, MXNet's op would take the weight decay for the momentum from the new weight.
        updated = nd.nag_mom_update(
            slot.target,
            slot.grad_like_target,
            *slot.state,
            lr=slot.lr,
            wd=slot.wd,
            momentum=self.momentum,
            rescale_grad=self.rescale_grad,
            **self._clip(),
        )
        updated.copyto(slot.target)
        slot.round_master()

    def _update_sparse(self, slot):
        if slot.master is not None or self.nesterov:
            super()._update_sparse(slot)
        else:
            self._update_one(slot, lazy_update=self.lazy_update)


class NAG(SGD):
    """SGD with Nesterov's momentum, under the name MXNet gives it.

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

    def __init__(self, learning_rate=None, momentum=0.9, **kwargs):
        super().__init__(learning_rate, momentum, nesterov=True, **kwargs)


class Adam(MasterOptimizer):
    """Adam (arXiv:1412.6980), with the bias correction folded into the rate, as MXNet has it.

        g = clip(rescale_grad * grad + wd * w)
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g**2
        w = w - lr * sqrt(1 - beta2**t) / (1 - beta1**t) * m / (sqrt(v) + epsilon)

    Parameters
    ----------
    learning_rate, beta1, beta2, epsilon, wd : float
        wd is the classic L2 term, added to the gradient; for the decoupled one use `AdamW`.

    Examples
    --------
    >>> import gluon_amp as amp, mxnet as mx
    >>> weight = mx.nd.ones((1,), dtype='float16')
    >>> gradient = mx.nd.full((1,), 0.25, dtype='float16')
    >>> optimizer = amp.optimizer.Adam(learning_rate=0.5)
    >>> master, *_ = state = optimizer.create_state_multi_precision(0, weight)
    >>> optimizer.update_multi_precision(0, weight, gradient, state)
    >>> weight.asscalar(), round(float(master.asscalar()), 6)
    (0.5, 0.499997)
    """

    state_arrays = 2
    default_learning_rate = 0.001
    decoupled = False

    def __init__(self, learning_rate=None, beta1=0.9, beta2=0.999, epsilon=1e-8, **kwargs):
        super().__init__(learning_rate=learning_rate, **kwargs)
        self.beta1, self.beta2, self.epsilon = beta1, beta2, epsilon

    def follows(self, weight) -> bool:
        return native_updates.takes([weight])

    def _update_dense(self, slots):
        if all(self.follows(slot.weight) for slot in slots):
            native_updates.adam_update(
                _interleaved(slots),
                len(slots[0].arrays),
                lrs=[self._corrected(slot) for slot in slots],
                wds=[0.0 if self.decoupled else slot.wd for slot in slots],
                decays=[1 - slot.lr * slot.wd if self.decoupled else 1.0 for slot in slots],
                beta1=self.beta1,
                beta2=self.beta2,
                epsilon=self.epsilon,
                rescale_grad=self.rescale_grad,
                clip_gradient=self.clip_gradient,
            )
            return
        fused, single = [], []
        for slot in slots:
            # MXNet's multi-tensor op is AdamW's, which without weight decay is Adam's too.
            fusible = _prefer_fused(slots) and (self.decoupled or slot.wd == 0)
            (fused if fusible else single).append(slot)
        for chunk in chunks(fused, ADAMW_LIMIT):
            self._update_chunk(chunk)
        for slot in single:
            self._update_one(slot)

    def _update_chunk(self, chunk):
        masters = chunk[0].master is not None
        op = _internal._multi_mp_adamw_update if masters else _internal._multi_adamw_update
        rescale_grad = nd.array([self.rescale_grad], ctx=chunk[0].weight.context, dtype="float32")
        op(
            *_interleaved(chunk),
            rescale_grad,
            out=[slot.weight for slot in chunk],
            num_weights=len(chunk),
            lrs=[self._corrected(slot) for slot in chunk],
            # The op multiplies wd by eta, not by the learning rate.
            wds=[slot.lr * slot.wd for slot in chunk],
            etas=[1.0] * len(chunk),
            beta1=self.beta1,
            beta2=self.beta2,
            epsilon=self.epsilon,
            **self._clip(),
        )

    def _update_one(self, slot):
        target = slot.target
        if self.decoupled and slot.wd:
            target *= 1 - slot.lr * slot.wd
        nd.adam_update(
            target,
            slot.grad_like_target,
            *slot.state,
            out=target,
            lr=self._corrected(slot),
            wd=0.0 if self.decoupled else slot.wd,
            beta1=self.beta1,
            beta2=self.beta2,
            epsilon=self.epsilon,
            rescale_grad=self.rescale_grad,
            lazy_update=self.lazy_update,
            **self._clip(),
        )
        slot.round_master()

    def _update_sparse(self, slot):
        if slot.master is not None:
            super()._update_sparse(slot)
        else:
            self._update_one(slot)

    def _corrected(self, slot):
        return slot.lr * math.sqrt(1 - self.beta2**slot.count) / (1 - self.beta1**slot.count)


class AdamW(Adam):
    """Adam with decoupled weight decay (arXiv:1711.05101).

    `w = w * (1 - lr * wd)`, then Adam's step without weight decay. The decay is multiplied by
    the learning rate, as in torch, so that schedules move both.

    Examples
    --------
    >>> import gluon_amp as amp, mxnet as mx
    >>> weight = mx.nd.ones((1,), dtype='float16')
    >>> gradient = mx.nd.full((1,), 0.25, dtype='float16')
    >>> optimizer = amp.optimizer.AdamW(learning_rate=0.5, wd=0.5)
    >>> master, *_ = state = optimizer.create_state_multi_precision(0, weight)
    >>> optimizer.update_multi_precision(0, weight, gradient, state)
    >>> weight.asscalar(), round(float(master.asscalar()), 6)
    (0.25, 0.249997)
    """

    decoupled = True

    def __init__(self, learning_rate=None, wd=0.01, **kwargs):
        super().__init__(learning_rate, wd=wd, **kwargs)


class LARS(MasterOptimizer):
    """SGD with a rate of its own for each layer, for large batches (arXiv:1708.03888).

        rate = lr * eta * |w| / (|g| + wd * |w| + eps)     with g = rescale_grad * grad
        m = momentum * m - rate * (clip(g) + wd * w)
        w = w + m

    Norms are taken in float32, |w| of the masters. Where either is 0, and for biases and the
    parameters of normalization layers (names ending in bias, gamma, beta), the rate is lr.

    Parameters
    ----------
    learning_rate, momentum, wd : float
    eta : float
        The trust coefficient.
    eps : float

    Examples
    --------
    >>> import gluon_amp as amp, mxnet as mx
    >>> weight = mx.nd.ones((1,), dtype='float16')
    >>> gradient = mx.nd.full((1,), 0.25, dtype='float16')
    >>> optimizer = amp.optimizer.LARS(learning_rate=0.5, momentum=0, eta=0.5)
    >>> master, *_ = state = optimizer.create_state_multi_precision(0, weight)
    >>> optimizer.update_multi_precision(0, weight, gradient, state)
    >>> weight.asscalar(), round(float(master.asscalar()), 6)
    (0.75, 0.75)
    """

    default_learning_rate = 0.1

    def __init__(self, learning_rate=None, momentum=0.9, eta=0.001, eps=0.0, **kwargs):
        super().__init__(learning_rate=learning_rate, **kwargs)
        self.momentum, self.eta, self.eps = momentum, eta, eps

    @property
    def state_arrays(self):
        return 1 if self.momentum else 0

    def _update_dense(self, slots):
        momentum = {"momentum": self.momentum} if self.momentum else {}
        for chunk in chunks(slots, SGD_LIMIT):
            op = {
                (True, True): nd.preloaded_multi_mp_sgd_mom_update,
                (True, False): nd.preloaded_multi_mp_sgd_update,
                (False, True): nd.preloaded_multi_sgd_mom_update,
                (False, False): nd.preloaded_multi_sgd_update,
            }[chunk[0].master is not None, bool(self.momentum)]
            # Layers with a rate of their own first, as the rates are computed on the device.
            chunk = sorted(chunk, key=self._plain)
            adaptive = [slot for slot in chunk if not self._plain(slot)]
            context = chunk[0].weight.context
            lrs = nd.array([slot.lr for slot in chunk], ctx=context, dtype="float32")
            wds = nd.array([slot.wd for slot in chunk], ctx=context, dtype="float32")
            if adaptive:
                self._adapt(adaptive, lrs[: len(adaptive)], wds[: len(adaptive)])
            op(
                *_interleaved(chunk),
                lrs,
                wds,
                out=[slot.weight for slot in chunk],
                num_weights=len(chunk),
                rescale_grad=self.rescale_grad,
                **momentum,
                **self._clip(),
            )

    def _adapt(self, slots, lrs, wds):
        """Turn the rates of these slots into the layers' own, in place."""
        targets = [slot.target for slot in slots]
        grads = [slot.grad for slot in slots]
        if on_cpu(grads[0]):
            # multi_sum_sq sums in the gradient's dtype there, and float16 overflows
            grads = [grad.astype("float32", copy=False) for grad in grads]
        nd.multi_lars(
            lrs,
            nd.multi_sum_sq(*targets, num_arrays=len(targets)),
            nd.multi_sum_sq(*grads, num_arrays=len(grads)),
            wds,
            eta=self.eta,
            eps=self.eps,
            rescale_grad=self.rescale_grad,
            out=lrs,
        )

    @staticmethod
    def _plain(slot):
        return slot.name.endswith(("bias", "gamma", "beta"))


class LAMB(MasterOptimizer):
    """Adam with a trust ratio for each layer, for large batches (arXiv:1904.00962).

        g = clip(rescale_grad * grad)
        m, v as in Adam; bias-corrected to m', v' if bias_correction
        d = m' / (sqrt(v') + epsilon) + wd * w
        r = clip(|w|, lower_bound, upper_bound) / |d|      (1 where either is 0)
        w = w - lr * r * d

    Parameters
    ----------
    learning_rate, beta1, beta2, epsilon, wd : float
    lower_bound, upper_bound : float or None
    bias_correction : bool

    Examples
    --------
    >>> import gluon_amp as amp, mxnet as mx
    >>> weight = mx.nd.ones((1,), dtype='float16')
    >>> gradient = mx.nd.full((1,), 0.25, dtype='float16')
    >>> optimizer = amp.optimizer.LAMB(learning_rate=0.5)
    >>> master, *_ = state = optimizer.create_state_multi_precision(0, weight)
    >>> optimizer.update_multi_precision(0, weight, gradient, state)
    >>> weight.asscalar(), round(float(master.asscalar()), 6)
    (0.5, 0.5)
    """

    state_arrays = 2
    default_learning_rate = 0.001

    def __init__(
        self,
        learning_rate=None,
        beta1=0.9,
        beta2=0.999,
        epsilon=1e-6,
        lower_bound=None,
        upper_bound=None,
        bias_correction=True,
        **kwargs,
    ):
        super().__init__(learning_rate=learning_rate, **kwargs)
        self.beta1, self.beta2, self.epsilon = beta1, beta2, epsilon
        self.lower_bound, self.upper_bound = lower_bound, upper_bound
        self.bias_correction = bias_correction

    def _update_dense(self, slots):
        bounds = {"lower_bound": self.lower_bound, "upper_bound": self.upper_bound}
        for chunk in chunks(slots, LAMB_LIMIT):
            # In float32 throughout: the op for float16 takes the norms of the rounded weights, and
            # on a CPU those are infinite from 256 on.
            _internal._multi_lamb_update(
                *(a for slot in chunk for a in (slot.target, slot.grad_like_target, *slot.state)),
                out=[slot.target for slot in chunk],
                num_tensors=len(chunk),
                step_count=[slot.count for slot in chunk],
                learning_rates=[slot.lr for slot in chunk],
                wds=[slot.wd for slot in chunk],
                beta1=self.beta1,
                beta2=self.beta2,
                epsilon=self.epsilon,
                bias_correction=self.bias_correction,
                rescale_grad=self.rescale_grad,
                **{name: bound for name, bound in bounds.items() if bound},
                **self._clip(),
            )
            for slot in chunk:
                slot.round_master()


OPTIMIZERS = {"sgd": SGD, "nag": NAG, "adam": Adam, "adamw": AdamW, "lars": LARS, "lamb": LAMB}

for _name, _class in OPTIMIZERS.items():
    # Under names of our own: registering "sgd" would replace MXNet's for the whole process.
    mx.optimizer.Optimizer.opt_registry[f"amp_{_name}"] = _class


def create(optimizer, **params):
    """Build an optimizer by name.

    Parameters
    ----------
    optimizer : str
        One of `OPTIMIZERS`, or any other name MXNet knows, which is then built with
        ``multi_precision=True`` and casts through float32 tensor by tensor.
    **params
        The constructor's arguments.

    Raises
    ------
    ValueError
        For an unknown name.

    Examples
    --------
    >>> import gluon_amp as amp
    >>> optimizer = amp.optimizer.create('adam', learning_rate=0.01)
    >>> type(optimizer).__name__, optimizer.multi_precision
    ('Adam', True)
    """
    name = optimizer.lower()
    if name in OPTIMIZERS:
        return OPTIMIZERS[name](**params)
    known = mx.optimizer.Optimizer.opt_registry
    if name not in known:
        raise ValueError(
            f"Unknown optimizer {optimizer!r}: use one of "
            f"{', '.join(sorted(set(known) | set(OPTIMIZERS)))}."
        )
    return known[name](**{"multi_precision": True, **params})


def _prefer_fused(slots):
    """Multi-tensor ops save launches on a GPU; on a CPU they are slower than one op per tensor."""
    return not on_cpu(slots[0].weight)


def _interleaved(slots):
    return [array for slot in slots for array in slot.arrays]
