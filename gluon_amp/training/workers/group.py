"""The workers of a run: one process, or several that train one network together.

Several meet on MXNet's parameter server, as `gluon-amp launch` starts it, or through Horovod.
"""

import contextlib
import os
import sys
import traceback
from typing import Any, Callable, ContextManager, Dict, List, NoReturn, Optional, Sequence, Union

import numpy as np

from gluon_amp.base.messages import UsageError
from gluon_amp.base.parameter_server import MEETING, abandon, connected
from gluon_amp.training.workers.liveness import Liveness, connect_to_first
from gluon_amp.training.workers.stores import FUSION, HorovodStore, OrderedStore
from gluon_amp.training.workers.tasks import address

import mxnet as mx
from mxnet import nd
from mxnet.kvstore import KVStoreBase

ALONE = ("device", "local", "nccl")
PARAMETER_SERVER = ("dist_sync", "dist_device_sync")
KV_STORES = (*ALONE, *PARAMETER_SERVER, "horovod")

_LIVENESS: List[Liveness] = []

GOODBYE = 30.0  # seconds that MXNet has to end once all workers have finished

# Trainers use the keys from 0 on.
FIRST_KEY = 10**6
CHUNK = 2**22  # bytes in one message


class Workers:
    """All workers of a run, as seen by one of them; this class is for a single worker."""

    rank, count = 0, 1

    def __init__(self, kvstore: Union[str, KVStoreBase] = "device"):
        self.kvstore = kvstore

    @property
    def first(self) -> bool:
        """Whether this is the worker that logs and saves."""
        return self.rank == 0

    def step(self) -> ContextManager[None]:
        """Return the context of a training step, in which this worker may wait for others."""
        return contextlib.nullcontext()

    def total(self, values: Sequence[float]) -> np.ndarray:
        """Return the sums over all workers, in float64, once all have called it."""
        return self.every(values).sum(axis=0)

    def every(self, values: Sequence[float]) -> np.ndarray:
        """Return the values of all workers, float64, one row each, once all have called it."""
        return np.asarray([values], dtype=np.float64)

    def from_first(self, data: bytes) -> bytes:
        """Return the first worker's data; those of the others are ignored."""
        return data


class _Several(Workers):
    """Several workers, which sum by `KVStoreBase.pushpull`; if it `repeats`, with the same bits."""

    def __init__(self, store: KVStoreBase, rank: int, repeats: bool = False):
        several = repeats and store.num_workers > 2
        super().__init__(OrderedStore(store, rank) if several else store)
        self._store = store
        self.rank, self.count = rank, store.num_workers
        self.liveness: Optional[Liveness] = None
        self._keys: Dict[Any, int] = {}

    def step(self) -> ContextManager[None]:
        return self.liveness.step() if self.liveness else contextlib.nullcontext()

    def every(self, values: Sequence[float]) -> np.ndarray:
        # A parameter server sums in float32. To keep float64, each worker's bytes have their own
        # row, which is zero in all other workers.
        own = np.asarray(values, dtype=np.float64)
        rows = np.zeros((self.count, own.nbytes), dtype=np.float16)
        rows[self.rank] = np.frombuffer(own.tobytes(), dtype=np.uint8)
        data = self._sum(rows).astype(np.uint8).tobytes()
        return np.frombuffer(data, dtype=np.float64).reshape(self.count, -1)

    def from_first(self, data: bytes) -> bytes:
        length = int(self.total([len(data) if self.first else 0])[0])
        # A parameter server accepts only floating-point numbers; float16 represents bytes exactly.
        numbers = np.zeros(-(-length // CHUNK) * CHUNK, dtype=np.float16)
        if self.first:
            numbers[:length] = np.frombuffer(data, dtype=np.uint8)
        for start in range(0, length, CHUNK):
            numbers[start : start + CHUNK] = self._sum(numbers[start : start + CHUNK])
        return numbers[:length].astype(np.uint8).tobytes()

    def _sum(self, values: np.ndarray) -> np.ndarray:
        kind = (values.shape, values.dtype)
        array = nd.array(values, dtype=values.dtype)
        with self.liveness.exchange() if self.liveness else contextlib.nullcontext():
            if kind not in self._keys:
                self._keys[kind] = FIRST_KEY + len(self._keys)
                self._store.broadcast(self._keys[kind], nd.zeros_like(array), nd.zeros_like(array))
            self._store.pushpull(self._keys[kind], array)
            return array.asnumpy()


def connect(
    name: str,
    devices: Sequence[mx.Context],
    seconds: float = MEETING,
    repeats: bool = False,
    timeout: float = 0,
) -> Workers:
    """Connect to the other workers, if the store is for several.

    If it `repeats`, a parameter server sums the gradients of three or more workers in a fixed
    order; those of two have the same bits anyway. `timeout` bounds how long it may not answer.
    """
    if name in ALONE:
        _check_alone(name, devices)
        return Workers(name)
    if name == "horovod":
        if len(devices) > 1:
            raise UsageError(
                "--kv-store horovod trains on one device in each process: start as many processes "
                "as there are devices."
            )
        if all(device.device_type == "cpu" for device in devices):  # where all else repeats too
            os.environ.setdefault(FUSION, "0")
        store = HorovodStore()
        return _Several(store, store.rank)
    store = connected(name, seconds)
    # Our launcher sets the worker's number; MXNet's own ranks follow the addresses.
    workers = _Several(store, int(os.environ.get("DMLC_WORKER_ID", store.rank)), repeats)
    if timeout and workers.count > 1:
        host = os.environ.get("DMLC_NODE_HOST") or address(os.environ["DMLC_PS_ROOT_URI"])
        workers.liveness = connect_to_first(
            workers.rank, workers.count, host, workers.from_first, timeout
        )
        _LIVENESS.append(workers.liveness)
    return workers


def _check_alone(name: str, devices: Sequence[mx.Context]) -> None:
    for variable, others in (("DMLC_NUM_WORKER", "dist_sync"), ("HOROVOD_SIZE", "horovod")):
        count = os.environ.get(variable, "1")
        if count != "1":
            raise UsageError(
                f"--kv-store {name} trains alone, but {count} workers were started: use "
                f"--kv-store {others}."
            )
    if name == "nccl":
        if not mx.runtime.Features().is_enabled("NCCL"):
            raise UsageError(
                "--kv-store nccl: this MXNet was built without NCCL: use --kv-store device."
            )
        if any(device.device_type != "gpu" for device in devices):
            raise UsageError("--kv-store nccl needs GPUs: use --kv-store device.")


def average_statistics(params: Sequence[mx.gluon.Parameter], workers: Workers) -> None:
    """Average the running statistics of all workers, each of which saw other images."""
    if workers.count == 1 or not params:
        return
    own = [np.mean([array.asnumpy() for array in p.list_data()], axis=0) for p in params]
    mean = workers.total(np.concatenate([value.ravel() for value in own])) / workers.count
    for param, value in zip(params, np.split(mean, np.cumsum([v.size for v in own])[:-1])):
        param.set_data(nd.array(value.reshape(param.shape), dtype=param.dtype))


def leave(main: Callable[[], int]) -> NoReturn:
    """Run a script's main function and end the process with its status.

    When a worker exits, MXNet and Horovod wait for the others. One that fails must not wait.
    """
    try:
        status = main()
    except Exception:
        traceback.print_exc()
        status = 1
    several = os.environ.get("DMLC_ROLE") == "worker" or "HOROVOD_RANK" in os.environ
    if status in (1, 2) and several:
        abandon(status)
    for liveness in _LIVENESS:
        # Once all have left, MXNet waits for nothing but the scheduler.
        liveness.leave(status, GOODBYE)
    sys.exit(status)
