"""MXNet's parameter server: how a worker meets the others, compares itself with them, and leaves.

MXNet alone waits forever for a process that is missing, or for numbers that a worker did not send.
"""

import atexit
import contextlib
import os
import sys
import threading
from hashlib import sha256
from typing import Any, Dict, List, NoReturn

import numpy as np

from gluon_amp.base.messages import FINISHED, LAUNCHER, UsageError
from gluon_amp.base.mxnet_internals import LIB, check_call

import mxnet as mx
from mxnet import nd
from mxnet.base import KVStoreHandle, MXNetError

# If one of these is missing, MXNet waits forever for a scheduler that does not exist.
VARIABLES = ("DMLC_ROLE DMLC_PS_ROOT_URI DMLC_PS_ROOT_PORT DMLC_NUM_WORKER DMLC_NUM_SERVER").split()

MEETING = 300.0  # seconds in which scheduler, servers and workers have to meet

# A trainer uses the keys from 0 on, `training.workers.group` those from 10**6 on.
KEY = 10**6 - 1

# The stores of this process, and whether a trainer uses them
_STORES: Dict[mx.kvstore.KVStore, bool] = {}
SECOND = (
    "MXNet's servers cannot tell the parameters of two trainers apart: give all of them to one "
    "trainer, or use Horovod."
)


class LostError(RuntimeError):
    """The other workers cannot be reached; the message is one sentence."""


def connected(kvstore: Any, seconds: float = MEETING) -> Any:
    """Return the store of a parameter server for its name, and anything else as it is.

    This worker leaves the store when Python exits.
    """
    kinds = (str, mx.kvstore.KVStore)
    if not isinstance(kvstore, kinds) or "dist" not in getattr(kvstore, "type", kvstore):
        return kvstore
    named = isinstance(kvstore, str)
    if named:
        _check_launched(kvstore)
    if not _STORES:
        atexit.register(_leave)
    if named:
        kvstore = _create(kvstore, seconds)
    _STORES.setdefault(kvstore, False)
    return kvstore


def _check_launched(name: str) -> None:
    if not mx.runtime.Features().is_enabled("DIST_KVSTORE"):
        raise UsageError(f"kvstore {name}: this MXNet was built without a parameter server.")
    if _STORES:
        raise UsageError(SECOND)
    missing = [variable for variable in VARIABLES if not os.environ.get(variable)]
    if missing:
        raise UsageError(
            f"kvstore {name} needs servers, and {missing[0]} is not set: start with "
            "`gluon-amp launch -n WORKERS -- COMMAND`, or use kvstore device."
        )


def _create(name: str, seconds: float) -> mx.kvstore.KVStore:
    """Create MXNet's store, which waits until scheduler, servers and workers have connected."""
    results: List[Any] = []  # the store, or the error

    def create() -> None:
        try:
            results.append(mx.kv.create(name))
        except Exception as error:
            results.append(error)

    thread = threading.Thread(target=create, daemon=True)
    thread.start()
    thread.join(timeout=seconds)
    if not results:
        scheduler = f"{os.environ['DMLC_PS_ROOT_URI']}:{os.environ['DMLC_PS_ROOT_PORT']}"
        raise LostError(
            f"kvstore {name}: not all of {os.environ['DMLC_NUM_WORKER']} workers and "
            f"{os.environ['DMLC_NUM_SERVER']} servers have met at the scheduler {scheduler} within "
            f"{seconds:g} s: see whether it can be reached from here, and what they say."
        )
    (result,) = results
    if isinstance(result, Exception):
        raise result
    return result


def check_alike(store: Any, facts: Dict[str, Any]) -> None:
    """Raise `ValueError` in all workers of a parameter server that do not have the same facts.

    Each trainer calls it once; a second trainer is a `UsageError`.
    """
    if store not in _STORES:
        return
    if _STORES[store]:
        raise UsageError(SECOND)
    _STORES[store] = True
    rows = np.zeros((store.num_workers, len(facts)), dtype=np.float32)
    for column, fact in enumerate(facts.values()):  # 3 bytes of a digest, exact in float32
        rows[store.rank, column] = int.from_bytes(sha256(repr(fact).encode()).digest()[:3], "big")
    array = nd.array(rows)
    store.broadcast(KEY, nd.zeros_like(array), nd.zeros_like(array))
    store.pushpull(KEY, array)
    for name, (first, *others) in zip(facts, array.asnumpy().T):
        if any(other != first for other in others):
            raise ValueError(
                f"The workers differ in {name}: start all of them with the same command."
            )


def abandon(status: int) -> NoReturn:
    """End this process without waiting for the other workers, which may wait for it."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


def _leave() -> None:
    """Leave the parameter server, once all that this worker has to send was sent.

    When Python exits, MXNet's engine drops the exchanges of the last step that have not begun, and
    the other workers would wait for them forever.
    """
    if hasattr(sys, "last_type"):  # an error has ended the script
        abandon(1)
    if LAUNCHER in os.environ:
        with contextlib.suppress(OSError, ValueError):  # nobody reads it
            print(FINISHED, flush=True)
    with contextlib.suppress(MXNetError):  # errors that nobody has read would abort the process
        nd.waitall()
    for store in _STORES:  # waits for the other workers
        check_call(LIB.MXKVStoreFree(store.handle))
        store.handle = KVStoreHandle()
