"""One of three workers that add a small array through MXNet's server.

    python -m experiments.wire.probe DTYPE RESULT

DTYPE is 'float16', 'bfloat16', 'float32', or 'float16 in float32': float16 on the wire, where the
servers are told to add in float32, as MXNet's optimizers with masters do. The result has the sum,
or MXNet's error.
"""

import json
import sys
from pathlib import Path
from typing import Dict, List, Sequence

import numpy as np

from gluon_amp.distributed.workers import Workers, connect, leave

import mxnet as mx
from mxnet import nd

# A row for each worker. In float16, 2048 + 1 is 2048, so only a sum in float32 has 2050 in every
# element, in whichever order the summands arrive; in bfloat16, that is 256 + 1 and 258. The last
# sum is infinite in float16.
VALUES = (
    (2048.0, 1.0, 1.0, 256.0, 1.0, 1.0, 40000.0),
    (1.0, 2048.0, 1.0, 1.0, 256.0, 1.0, 40000.0),
    (1.0, 1.0, 2048.0, 1.0, 1.0, 256.0, 40000.0),
)
DTYPES = {"bfloat16": np.dtype([("bfloat16", np.uint16)])}  # MXNet's other dtypes are numpy's
SET_MULTI_PRECISION = 1  # CommandType::kSetMultiPrecision of src/kvstore/kvstore_dist_server.h


def main(arguments: Sequence[str]) -> int:
    """Push, pull, and write the result; return the status of the process."""
    name, result = arguments
    dtype, _, wide = name.partition(" in ")
    workers = connect("dist_sync", [mx.cpu()])
    report: Dict[str, object] = {}
    try:
        report["sum"] = _sum(workers, dtype, bool(wide))
    except (mx.MXNetError, TypeError, ValueError) as error:
        report["error"] = str(error).strip().splitlines()[-1]
    Path(result).write_text(json.dumps(report))
    return 0


def _sum(workers: Workers, name: str, wide: bool) -> List[float]:
    store, dtype = workers.kvstore, DTYPES.get(name, name)
    own = nd.array(VALUES[workers.rank]).astype(dtype)
    if wide and workers.rank == 0:
        store._send_command_to_servers(SET_MULTI_PRECISION, "")
    total = nd.zeros(own.shape, dtype=dtype)
    store.init(0, total)
    store.push(0, own)
    store.pull(0, out=total)
    return total.astype("float32").asnumpy().tolist()


if __name__ == "__main__":
    leave(lambda: main(sys.argv[1:]))
