"""What all optimizers here share: float32 masters, and one list for all tensors of a device.

All state has one layout, ``(master or None, state arrays...)``, a plain tuple that
`mxnet.optimizer.Updater` moves between devices and pickles. All arithmetic of one optimizer is in
its `_update_dense`, which gets everything one device has to update as a list of `Slot`.
"""

import functools
from typing import List, NamedTuple, Optional, Tuple

import numpy as np

from gluon_amp.host import on_cpu

import mxnet as mx
from mxnet import nd


class ExactFloat(float):
    """A float whose text MXNet's parser reads back as the same float32.

    Operators get their attributes as text, and dmlc's `stof` computes exponents in float32: every
    third value of `1/(3·2**k)` and `1/(7·2**k)` is wrong by one ulp, and then a step with a loss
    scale differs from the step without. Without an exponent the text is read
    exactly, down to 1e-12.
    """

    def __str__(self):
        return _text(float(self))

    __repr__ = __str__


@functools.lru_cache(maxsize=256)
def _text(value):
    if 1e-12 < abs(value) < 1e12:
        # the parser reads 19 digits after the point
        return np.format_float_positional(
            np.float64(np.float32(value)), precision=19, unique=False, trim="0"
        )
    return repr(value)


class Slot(NamedTuple):
    """One tensor to update: arrays of one shape on one device, and its own constants.

    ``weight`` is float16 or float32, ``grad`` has its dtype; ``master`` (None for a float32 weight)
    and ``state`` are float32. ``count`` is the number of this update, from 1. A float64 weight is
    its own master, with float64 state.
    """

    name: str
    weight: nd.NDArray
    grad: nd.NDArray
    master: Optional[nd.NDArray]
    state: Tuple[nd.NDArray, ...]
    lr: ExactFloat
    wd: ExactFloat
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


def follow(weight, master) -> None:
    """Set those elements of the master, in place, whose rounding is not the weight's element."""
    same = nd.cast(master, dtype="float16") == weight
    nd.where(same.astype("float32"), master, weight.astype("float32"), out=master)


class MasterOptimizer(mx.optimizer.Optimizer):
    """Base of the optimizers here.

    Parameters
    ----------
    multi_precision : bool
        Keep float32 masters of float16 weights. The default is True, and not False as in MXNet: a
        float16 weight without a master loses every small update, so it is refused.
    **kwargs
        What `mxnet.optimizer.Optimizer` takes, with its defaults: learning_rate (0.01, or the
        scheduler's), lr_scheduler, wd, rescale_grad, clip_gradient, ...

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

    # How many arrays of the weight's shape are kept beside the master.
    state_arrays = 0
    # Whether a row_sparse gradient updates only its own rows, of the weight and of the state.
    lazy_update = False

    def __init__(self, *, multi_precision=True, **kwargs):
        super().__init__(multi_precision=multi_precision, **kwargs)
        # The Updater cuts its list at this length. We chunk by the op's own limit instead.
        self.aggregate_num = 1 << 30

    def create_state(self, index, weight):
        """Zeros like the weight, `state_arrays` of them.

        They are stored as the weight is if updates are lazy, and dense otherwise: by this MXNet's
        operators choose the kind of update of a row_sparse weight.
        """
        stype = weight.stype if self.lazy_update else "default"
        zeros = {"ctx": weight.context, "dtype": weight.dtype, "stype": stype}
        return tuple(nd.zeros(weight.shape, **zeros) for _ in range(self.state_arrays))

    def create_state_multi_precision(self, index, weight):
        """`(master or None, state arrays...)` for a weight.

        Raises
        ------
        ValueError
            For a float16 weight when multi_precision is off.
        """
        if np.dtype(weight.dtype) != np.float16:
            return (None, *self.create_state(index, weight))
        if not self.multi_precision:
            raise ValueError(
                f"{type(self).__name__} got a float16 weight with multi_precision=False, which "
                "would lose every small update: leave multi_precision on."
            )
        master = dense(weight).astype("float32")
        return (master, *self.create_state(index, master))

    def update(self, index, weight, grad, state):
        """Update one weight, or a list of weights of one device and dtype."""
        self.update_multi_precision(index, weight, grad, state)

    def update_multi_precision(self, index, weight, grad, state):
        """Update one weight, or a list of weights of one device and dtype, from `(master, ...)`."""
        if not isinstance(index, (list, tuple)):
            index, weight, grad, state = [index], [weight], [grad], [state]
        self._update_count(index)
        lrs = map(ExactFloat, self._get_lrs(index))
        wds = map(ExactFloat, self._get_wds(index))
        slots = [
            Slot(self._name(i), w, g, s[0], tuple(s[1:]), lr, wd, self._index_update_count[i])
            for i, w, g, s, lr, wd in zip(index, weight, grad, state, lrs, wds)
        ]
        in_rows = [slot for slot in slots if slot.grad.stype != "default"]
        together = [slot for slot in slots if slot.grad.stype == "default"]
        if together:
            self._update_dense(together)
        for slot in in_rows:
            self._update_sparse(slot)

    def follows(self, weight) -> bool:
        """Whether an update of this weight sees what somebody wrote to it since the last one.

        If not, its master has to follow it before the update: see `gluon_amp.optimizer.masters`.
        """
        return False

    def _update_dense(self, slots):
        """Update all slots: one device, one weight dtype, dense gradients."""
        raise NotImplementedError

    def _update_sparse(self, slot):
        """Update a slot whose gradient is row_sparse (or csr)."""
        self._update_dense([slot._replace(grad=dense(slot.grad))])

    @staticmethod
    def _prefer_fused(slots):
        """Multi-tensor ops save launches on a GPU; on a CPU one op per tensor is faster."""
        return not on_cpu(slots[0].weight)

    def _name(self, index):
        if index in self.param_dict:
            return self.param_dict[index].name
        return self.idx2name.get(index, str(index))

    def _attributes(self, **numbers):
        """Attributes of MXNet's update ops: these, `rescale_grad` and, if on, `clip_gradient`."""
        numbers["rescale_grad"] = self.rescale_grad
        if self.clip_gradient:  # MXNet takes 0 for "off", like None
            numbers["clip_gradient"] = self.clip_gradient
        return {name: ExactFloat(number) for name, number in numbers.items()}


def dense(array):
    """The array itself, or a copy that stores all rows of a sparse one."""
    return array if array.stype == "default" else array.tostype("default")


def interleaved(slots):
    """The array inputs of a multi-tensor op: all of the first slot, all of the second, ..."""
    return [array for slot in slots for array in slot.arrays]


def chunks(items: List, size: int):
    """Successive slices of at most `size` items."""
    return (items[start : start + size] for start in range(0, len(items), size))
