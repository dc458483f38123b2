"""Sums over workers that do not depend on the order in which their summands arrive."""

from typing import List, Optional, Union

import numpy as np

from mxnet import nd
from mxnet.kvstore import KVStoreBase
from mxnet.ndarray import NDArray

Arrays = Union[NDArray, List[NDArray]]

# The rows of a key are under another key, as they have another shape. Those of `Workers` begin at
# 10**6.
ROWS = 10**7


class OrderedStore(KVStoreBase):
    """A store for three or more workers whose sums have the same bits in every run.

    MXNet's servers add gradients in the order in which they arrive. Sums of three or more
    floating-point numbers depend on that. Sums of two do not, and zeros change nothing. So each
    pair of workers has a row of its own, to which the others add zeros, and every worker then adds
    up the rows in their order, in float32 or wider.

    With N workers, ``(N + 1) // 2`` times as many bytes are sent.

    Parameters
    ----------
    store : KVStoreBase
        It sums over all workers.
    rank : int
        Number of this worker.
    """

    def __init__(self, store: KVStoreBase, rank: int):
        self._store = store
        self._rank = rank

    @property
    def type(self) -> str:
        """The type of the store that it uses."""
        return self._store.type

    @property
    def rank(self) -> int:
        """The number of this worker."""
        return self._rank

    @property
    def num_workers(self) -> int:
        """The number of workers."""
        return self._store.num_workers

    def broadcast(self, key: int, value: NDArray, out: Arrays, priority: int = 0) -> None:
        """Copy the first worker's value to all workers."""
        self._store.broadcast(key, value, out, priority)
        rows = self._rows(value)
        self._store.broadcast(ROWS + key, rows, rows.copy(), priority)

    def pushpull(
        self, key: int, value: Arrays, out: Optional[Arrays] = None, priority: int = 0
    ) -> None:
        """Write the sum over all workers and their devices to `out`, by default to `value`."""
        first, *others = value if isinstance(value, list) else [value]
        rows = self._rows(first)
        pair = self._rank // 2
        rows[pair] = _sum([first, *(array.as_in_context(first.context) for array in others)])
        self._store.pushpull(ROWS + key, rows, priority=priority)
        total = _sum([rows[number] for number in range(len(rows))])
        out = value if out is None else out
        for array in out if isinstance(out, list) else [out]:
            total.copyto(array)

    def _rows(self, value: NDArray) -> NDArray:
        shape = (-(-self.num_workers // 2), *value.shape)
        return nd.zeros(shape, ctx=value.context, dtype=value.dtype)

    @staticmethod
    def is_capable(capability: str) -> bool:
        """Return whether it can update parameters: it cannot."""
        return False


def _sum(arrays: List[NDArray]) -> NDArray:
    """Return the sum in the order of the list, rounded once to the dtype of the arrays."""
    dtype = arrays[0].dtype
    wide = np.promote_types(dtype, np.float32)
    total = arrays[0].astype(wide)
    for array in arrays[1:]:
        total = total + array.astype(wide)
    return total.astype(dtype)
