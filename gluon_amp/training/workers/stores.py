"""Key-value stores for `amp.Trainer`: Horovod's sums, and sums in a fixed order."""

import contextlib
import re
from typing import Iterator, List, Optional, Union

import numpy as np

from gluon_amp.base.messages import UsageError
from gluon_amp.base.parameter_server import LostError

from mxnet import nd
from mxnet.base import MXNetError
from mxnet.kvstore import KVStoreBase
from mxnet.ndarray import NDArray

Arrays = Union[NDArray, List[NDArray]]

# What MXNet's errors contain when Horovod has lost a worker: its own SHUT_DOWN_ERROR
# (horovod/common/common.h), a source of Gloo, or an address in the errors of Gloo's
# transport/tcp/pair.cc, as in "Read error [127.0.0.1]", from which MXNet removes the source.
HOROVOD_LOST = re.compile(
    r"Horovod has been shut down|/gloo/|"
    r"(timeout|closed|writev|Read error|by peer|connect) \[[0-9a-f.:]+\]"
)

# Horovod reduces the gradients that are ready in one buffer. The order in which it adds those of
# three or more workers depends on their place in the buffer, and so on time. Without a buffer, at a
# threshold of 0, the sums repeat bit for bit.
FUSION = "HOROVOD_FUSION_THRESHOLD"

HOROVOD_MISSING = (
    "Horovod is not installed: run `HOROVOD_WITH_MXNET=1 HOROVOD_WITH_GLOO=1 pip install "
    "--no-build-isolation 'horovod==0.28.1'`, with numpy below 1.24 (docs/how_to/horovod.md), or "
    "use --kv-store dist_sync"
)

# The rows of a key are under another key, as they have another shape. Those of `group.Workers`
# begin at 10**6.
ROWS = 10**7


class _SummingStore(KVStoreBase):
    """A store that adds gradients, and leaves the update to the workers."""

    @staticmethod
    def is_capable(capability: str) -> bool:
        """Return whether it can update parameters: it cannot."""
        return False


def _copy(source: NDArray, targets: Arrays) -> None:
    for target in targets if isinstance(targets, list) else [targets]:
        source.as_nd_ndarray().copyto(target.as_nd_ndarray())


class HorovodStore(_SummingStore):
    """Horovod as a key-value store, which sums the gradients of one device in each process.

    A read of what it sums raises `MXNetError` if another worker is gone: see `naming_lost_workers`.
    """

    type = "horovod"

    def __init__(self) -> None:
        try:
            import horovod.mxnet as horovod
        except ImportError:
            raise UsageError(f"--kv-store horovod: {HOROVOD_MISSING}.") from None
        horovod.init()  # aborts the process after 30 s if the workers have not all met
        self._horovod = horovod

    @property
    def rank(self) -> int:
        return self._horovod.rank()

    @property
    def num_workers(self) -> int:
        return self._horovod.size()

    def broadcast(self, key: int, value: NDArray, out: Arrays, priority: int = 0) -> None:
        """Copy the first worker's value to all workers."""
        sent = self._horovod.broadcast(
            value.as_nd_ndarray(), root_rank=0, name=str(key), priority=priority
        )
        _copy(sent, out)

    def pushpull(
        self, key: int, value: Arrays, out: Optional[Arrays] = None, priority: int = 0
    ) -> None:
        """Replace a value by its sum over all workers, or copy the sum to `out`."""
        (array,) = value if isinstance(value, list) else [value]
        total = array if out is None else array.copy()
        self._horovod.allreduce_(total, op=self._horovod.Sum, name=str(key), priority=priority)
        if out is not None:
            _copy(total, out)


@contextlib.contextmanager
def naming_lost_workers() -> Iterator[None]:
    """Raise `LostError` for what MXNet raises, where an array is read, if Horovod lost a worker."""
    try:
        yield
    except MXNetError as error:
        if not HOROVOD_LOST.search(str(error)):
            raise
        raise LostError(
            "another worker has ended or cannot be reached, so this one ends too: see what it "
            "said, and start all of them again, with --resume auto if they have a --save-dir."
        ) from None


class OrderedStore(_SummingStore):
    """A store for three or more workers whose sums have the same bits in every run.

    MXNet's servers add gradients in the order in which they arrive. Sums of three or more
    floating-point numbers depend on that. Sums of two do not, and zeros change nothing. So each
    pair of workers has a row of its own, to which the others add zeros, and every worker then adds
    up the rows in their order, in float32 or wider. Workers send ``(N + 1) // 2`` times as many
    bytes.
    """

    def __init__(self, store: KVStoreBase, rank: int):
        self._store = store
        self._rank = rank

    @property
    def type(self) -> str:
        return self._store.type

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def num_workers(self) -> int:
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
        _copy(_sum([rows[number] for number in range(len(rows))]), value if out is None else out)

    def _rows(self, value: NDArray) -> NDArray:
        shape = (-(-self.num_workers // 2), *value.shape)
        return nd.zeros(shape, ctx=value.context, dtype=value.dtype)


def _sum(arrays: List[NDArray]) -> NDArray:
    """Return the sum in the order of the list, rounded once to the dtype of the arrays."""
    dtype = arrays[0].dtype
    wide = np.promote_types(dtype, np.float32)
    total = arrays[0].astype(wide)
    for array in arrays[1:]:
        total = total + array.astype(wide)
    return total.astype(dtype)
