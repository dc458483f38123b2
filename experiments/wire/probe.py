"""One of three workers that add a small array through MXNet's server.

    python -m experiments.wire.probe DTYPE RESULT

DTYPE is 'float32', 'float16' or 'bfloat16'. The result is the list of the sums.
"""

import json
import sys
from pathlib import Path
from typing import Sequence

import numpy as np

from gluon_amp.training.workers.group import connect, leave

import mxnet as mx
from mxnet import nd

# A row for each worker. 2048 + 1 is 2048 in float16, so only a server that adds in float32 has 2050
# everywhere: whichever summand arrives last, some element adds it to 2048. The last sum is infinite
# in float16.
VALUES = (
    (2048.0, 1.0, 1.0, 40000.0),
    (1.0, 2048.0, 1.0, 40000.0),
    (1.0, 1.0, 2048.0, 40000.0),
)
DTYPES = {"bfloat16": np.dtype([("bfloat16", np.uint16)])}  # MXNet's other dtypes are numpy's


def main(arguments: Sequence[str]) -> int:
    """Push, pull, and write the result; return the status of the process."""
    name, result = arguments
    dtype = DTYPES.get(name, name)
    workers = connect("dist_sync", [mx.cpu()])
    own = nd.array(VALUES[workers.rank]).astype(dtype)
    total = nd.zeros(own.shape, dtype=dtype)
    workers.kvstore.init(0, total)
    workers.kvstore.push(0, own)
    workers.kvstore.pull(0, out=total)
    Path(result).write_text(json.dumps(total.astype("float32").asnumpy().tolist()))
    return 0


if __name__ == "__main__":
    leave(lambda: main(sys.argv[1:]))
