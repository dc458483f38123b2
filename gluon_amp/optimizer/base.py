"""The base class of the optimizers: float32 masters, and one update for all tensors of a device.

The state of a weight is a plain tuple, ``(master or None, state arrays...)``, which
`mxnet.optimizer.Updater` can move between devices and pickle. The arithmetic of an optimizer is in
its `_update_dense`, which receives all tensors of one device as a list of `Slot`.
"""

import functools
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple, TypeVar

import numpy as np

from gluon_amp import kernels
from gluon_amp.base.array_kinds import of_kind
from gluon_amp.base.host import on_cpu
from gluon_amp.kernels import updates

import mxnet as mx
from mxnet import nd

Items = TypeVar("Items", List[Any], nd.NDArray, "np.ndarray[Any, Any]")


class ExactFloat(float):
    """A float whose text MXNet's parser reads back as the same float32.

    Operators receive their attributes as text, and dmlc's `stof` computes exponents in float32.
    Every third value of `1/(3·2**k)` and `1/(7·2**k)` is wrong by one ulp then, and a step with a
    loss scale differs from the step without. A text without an exponent is read exactly, down to
    1e-12.

    Examples
    --------
    >>> import gluon_amp as amp
    >>> amp.optimizer.ExactFloat(2**-20)
    0.0000009536743164062
    """

    def __str__(self) -> str:
        return _text(float(self))

    __repr__ = __str__


@functools.lru_cache(maxsize=256)
def _text(value: float) -> str:
    if 1e-12 < abs(value) < 1e12:
        # the parser reads 19 digits after the point
        exact = np.float64(np.float32(value))
        text: str = np.format_float_positional(exact, precision=19, unique=False, trim="0")
        return text
    return repr(value)


class Slot(NamedTuple):
    """One tensor to update: arrays of one shape on one device, and the constants of its update."""

    name: str
    weight: nd.NDArray  # float16, float32 or float64
    grad: nd.NDArray  # in the weight's dtype
    master: Optional[nd.NDArray]  # float32; None unless the weight is float16
    state: Tuple[nd.NDArray, ...]  # in the dtype of `target`
    lr: ExactFloat
    wd: ExactFloat
    step: int  # the number of this update of the weight, from 1

    @property
    def target(self) -> nd.NDArray:
        """The array that the update computes on: the master, or the weight if it has none."""
        return self.weight if self.master is None else self.master

    @property
    def arrays(self) -> Tuple[nd.NDArray, ...]:
        """The array inputs of MXNet's update operators, in their order."""
        master = () if self.master is None else (self.master,)
        return (self.weight, self.grad, *self.state, *master)

    @property
    def grad_like_target(self) -> nd.NDArray:
        """The gradient in the target's dtype."""
        return cast(self.grad, self.target.dtype)

    def set_weight(self) -> None:
        """Set the weight to its rounded master, after an update of `target`."""
        if self.master is not None:
            round_master(self.master, self.weight)


def cast(array: nd.NDArray, dtype: Any, out: Optional[nd.NDArray] = None) -> nd.NDArray:
    """Return an array in a dtype, of its kind: itself if it has it, or else `out`, if given."""
    plain, dtypes = array.as_nd_ndarray(), (np.dtype(array.dtype), np.dtype(dtype))
    if dtypes[0] == dtypes[1] and out is None:
        return array
    if {*dtypes} == {_HALF, _SINGLE} and updates.supported([plain]):
        result = updates.cast(plain, dtypes[1], out)
    else:
        result = plain.astype(dtype) if out is None else nd.cast(plain, dtype=dtype, out=out)
    return of_kind(result, array)


_HALF, _SINGLE = np.dtype("float16"), np.dtype("float32")


def rounded(array: nd.NDArray) -> nd.NDArray:
    """Return a float32 array rounded to float16, in float32."""
    return cast(cast(array, "float16"), "float32")


def round_master(master: nd.NDArray, weight: nd.NDArray) -> None:
    """Set a float16 weight, in place, to its rounded master."""
    cast(master, "float16", out=weight.as_nd_ndarray())


def sync_master(weight: nd.NDArray, master: nd.NDArray) -> None:
    """Set the elements of a master, in place, that do not round to the weight to the weight's."""
    weight, master = weight.as_nd_ndarray(), master.as_nd_ndarray()
    if updates.supported([weight, master]):
        updates.sync_master(weight, master)
        return
    wide = cast(weight, "float32")  # MXNet compares float32 much faster than float16
    nd.where(rounded(master) == wide, master, wide, out=master)


class MasterOptimizer(mx.optimizer.Optimizer):  # type: ignore[misc]  # MXNet has no types
    """Base of the optimizers here.

    Parameters
    ----------
    multi_precision : bool
        Keep float32 masters of float16 weights. The default is True, unlike in MXNet: a float16
        weight without a master loses every small update, so it raises an error.
    **kwargs
        The arguments of `mxnet.optimizer.Optimizer`, with its defaults: learning_rate (0.01, or the
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

    # Whether a row_sparse gradient updates only its own rows, of the weight and of the state.
    lazy_update = False

    def __init__(self, *, multi_precision: bool = True, **kwargs: Any) -> None:
        super().__init__(multi_precision=multi_precision, **kwargs)
        kernels.prepare()
        # MXNet's Updater splits its list at this length. We split by each operator's own limit.
        self.aggregate_num = 1 << 30
        # MXNet's Updater refuses weights of `mx.np` if `npx.set_np()` does not hold here.
        self.allow_np_array = True

    @property
    def state_arrays(self) -> int:
        """The number of state arrays per weight, without the master."""
        return 0

    def create_state(self, index: int, weight: nd.NDArray) -> Tuple[nd.NDArray, ...]:
        """Return `state_arrays` arrays of zeros, of the weight's shape, dtype, context and kind.

        Their storage type is the weight's if updates are lazy, and dense otherwise: MXNet's
        operators choose the kind of update of a row_sparse weight by it.
        """
        stype = weight.stype if self.lazy_update else "default"
        zeros = {"ctx": weight.context, "dtype": weight.dtype, "stype": stype}
        return tuple(
            of_kind(nd.zeros(weight.shape, **zeros), weight) for _ in range(self.state_arrays)
        )

    def create_state_multi_precision(
        self, index: int, weight: nd.NDArray
    ) -> Tuple[Optional[nd.NDArray], ...]:
        """Return `(master or None, state arrays...)` for a weight.

        Raise `ValueError` if the weight is float16 and `multi_precision` is False.
        """
        if np.dtype(weight.dtype) != np.float16:
            return (None, *self.create_state(index, weight))
        if not self.multi_precision:
            raise ValueError(
                f"{type(self).__name__} got a float16 weight with multi_precision=False, which "
                "would lose every small update: leave multi_precision on."
            )
        master = cast(dense(weight), "float32")
        return (master, *self.create_state(index, master))

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Update one weight, or a list of weights of one device and dtype."""
        self.update_multi_precision(index, weight, grad, state)

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """As `update`; a state is what `create_state_multi_precision` returns."""
        if not isinstance(index, (list, tuple)):
            index, weight, grad, state = [index], [weight], [grad], [state]
        self._update_count(index)
        arrays = weight, grad, state
        lrs = map(ExactFloat, self._get_lrs(index))
        wds = map(ExactFloat, self._get_wds(index))
        slots = [
            Slot(self._name(i), w, g, s[0], tuple(s[1:]), lr, wd, self._index_update_count[i])
            for i, w, g, s, lr, wd in zip(index, *map_leaves(_legacy, arrays), lrs, wds)
        ]
        slots_dense = [slot for slot in slots if slot.grad.stype == "default"]
        slots_sparse = [slot for slot in slots if slot.grad.stype != "default"]
        if slots_dense:
            self._update_dense(slots_dense)
        for slot in slots_sparse:
            self._update_sparse(slot)

    def syncs_master(self, weight: nd.NDArray) -> bool:
        """Return whether an update of this weight calls or contains `sync_master`.

        If not, the caller has to: see `gluon_amp.optimizer.masters`.
        """
        return False

    def weight_writes(self, weight: nd.NDArray) -> int:
        """Return how many operators of an update write this weight; others are a user's."""
        return 1

    def _update_dense(self, slots: List[Slot]) -> None:
        """Update all slots: one device, one weight dtype, dense gradients."""
        raise NotImplementedError

    def _update_sparse(self, slot: Slot) -> None:
        """Update a slot whose gradient is row_sparse (or csr)."""
        self._update_dense([slot._replace(grad=dense(slot.grad))])

    @staticmethod
    def _prefer_fused(slots: List[Slot]) -> bool:
        """Return whether to use multi-tensor operators, which save kernel launches on a GPU.

        On a CPU one operator per tensor is faster.
        """
        return not on_cpu(slots[0].weight)

    def _name(self, index: Any) -> str:
        known = self.param_dict[index].name if index in self.param_dict else None
        return str(known or self.idx2name.get(index, index))

    def _attributes(self, **numbers: Any) -> Dict[str, ExactFloat]:
        """Return attributes of an update operator: these, `rescale_grad` and `clip_gradient`."""
        numbers["rescale_grad"] = self.rescale_grad
        if self.clip_gradient:  # None and 0 both mean "off"
            numbers["clip_gradient"] = self.clip_gradient
        return {name: ExactFloat(number) for name, number in numbers.items()}


def map_leaves(function: Callable[[Any], Any], value: Any) -> Any:
    """Return nested tuples and lists with a function applied to each leaf."""
    if isinstance(value, (list, tuple)):
        return type(value)(map_leaves(function, item) for item in value)
    return function(value)


def _legacy(array: Optional[nd.NDArray]) -> Optional[nd.NDArray]:
    return None if array is None else array.as_nd_ndarray()


def dense(array: nd.NDArray) -> nd.NDArray:
    """Return a dense array itself, and a sparse one converted."""
    return array if array.stype == "default" else array.tostype("default")


def interleaved(slots: List[Slot]) -> List[nd.NDArray]:
    """Return the array inputs of a multi-tensor operator: the first slot's, the second's, ..."""
    return [array for slot in slots for array in slot.arrays]


# The most tensors of one multi-tensor operator for SGD, and for sums of squares. MXNet does not
# check the number.
SGD_LIMIT = 60


def add_multiples(
    arrays: List[nd.NDArray],
    others: List[nd.NDArray],
    factor: float,
    out: List[nd.NDArray],
    wd: float = 0.0,
) -> None:
    """Set `out` to ``(1 + factor * wd) * arrays + factor * others``.

    One operator is for 60 arrays of one dtype.
    """
    for chunk in chunks(list(zip(arrays, others, out)), SGD_LIMIT):
        nd.multi_sgd_update(
            *(array for one in chunk for array in one[:2]),
            out=[result for _, _, result in chunk],
            num_weights=len(chunk),
            lrs=[ExactFloat(-factor)] * len(chunk),
            wds=[wd] * len(chunk),
        )


def sum_squares(arrays: List[nd.NDArray], out: nd.NDArray) -> None:
    """Set a vector to the sums of squares of arrays of one dtype, with one operator for 60."""
    for chunk, sums in zip(chunks(arrays, SGD_LIMIT), chunks(out, SGD_LIMIT)):
        nd.multi_sum_sq(*chunk, num_arrays=len(chunk), out=sums)


def gradients_like_targets(slots: List[Slot]) -> List[nd.NDArray]:
    """Return the gradients in their targets' dtypes; on a GPU with one operator for 60 of them."""
    mixed = [slot for slot in slots if slot.grad.dtype != slot.target.dtype]
    if not mixed or on_cpu(mixed[0].weight):
        return [slot.grad_like_target for slot in slots]
    weight = mixed[0].weight
    zeros = nd.zeros((sum(slot.grad.size for slot in mixed),), ctx=weight.context)
    wide, start = [], 0
    for slot in mixed:
        wide.append(zeros[start : start + slot.grad.size].reshape(slot.grad.shape))
        start += slot.grad.size
    # Masters that are zero become the gradients in float32, which rounded are the same gradients.
    _update_masters([slot.grad for slot in mixed], wide, -1.0)
    found = iter(wide)
    return [next(found) if s.grad.dtype != s.target.dtype else s.grad for s in slots]


def set_weights(slots: List[Slot]) -> None:
    """Set the weights to their rounded masters; on a GPU with one operator for 60 of them."""
    slots = [slot for slot in slots if slot.master is not None]
    if slots and on_cpu(slots[0].weight):
        for slot in slots:
            slot.set_weight()
        return
    # With a learning rate of 0, the gradient may be any finite array: the weight itself.
    _update_masters([slot.weight for slot in slots], [slot.master for slot in slots], 0.0)


def _update_masters(arrays: List[nd.NDArray], masters: List[nd.NDArray], lr: float) -> None:
    """Update masters with `arrays` as their gradients, and set these to the rounded masters."""
    for chunk in chunks(list(zip(arrays, masters)), SGD_LIMIT):
        nd.multi_mp_sgd_update(
            *(each for array, master in chunk for each in (array, array, master)),
            out=[array for array, _ in chunk],
            num_weights=len(chunk),
            lrs=[lr] * len(chunk),
            wds=[0.0] * len(chunk),
        )


def chunks(items: Items, size: int) -> Iterator[Items]:
    """Return successive slices of at most `size` items of a list or vector."""
    return (items[start : start + size] for start in range(0, len(items), size))
