"""A worker of a cluster.

    python -m experiments.wire.worker train NETWORK POLICY STEPS RESULT
    python -m experiments.wire.worker probe DTYPE RESULT

The first trains a network. Its result has the number and the bytes of the gradients, their elements
by dtype, and the seconds of each step after its backward pass: reduction, overflow check, update.
The second adds a small array of 'float32', 'float16' or 'bfloat16' with two others through MXNet's
server. Its result is the list of the sums.
"""

import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, Dict, List

import numpy as np

from experiments.wire.networks import NETWORKS, Training
from gluon_amp.training.workers.workers import connect, leave

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


def train(name: str, policy: str, steps: str) -> Dict[str, Any]:
    """Train for some steps; return what they exchange and how long it takes."""
    workers = connect("dist_sync", [mx.cpu()])
    training = Training(NETWORKS[name], policy, workers.kvstore)
    seconds = []
    for _, (images, labels) in zip(range(int(steps)), training.batches(seed=workers.rank)):
        training.backward(images, labels)
        nd.waitall()
        start = time.perf_counter()
        training.trainer.step(len(images))
        nd.waitall()
        seconds.append(time.perf_counter() - start)
    elements: Counter = Counter()
    gradients = list(training.trainer.gradients())
    for gradient in gradients:
        elements[np.dtype(gradient.dtype).name] += gradient.size
    return {
        "arrays": len(gradients),
        "elements": dict(elements),
        "bytes": sum(count * np.dtype(dtype).itemsize for dtype, count in elements.items()),
        "seconds": seconds,
    }


def probe(name: str) -> List[float]:
    """Push a row of `VALUES`, and return what is pulled."""
    dtype = DTYPES.get(name, name)
    workers = connect("dist_sync", [mx.cpu()])
    own = nd.array(VALUES[workers.rank]).astype(dtype)
    total = nd.zeros(own.shape, dtype=dtype)
    workers.kvstore.init(0, total)
    workers.kvstore.push(0, own)
    workers.kvstore.pull(0, out=total)
    return total.astype("float32").asnumpy().tolist()


def main() -> int:
    """Do the work and write its result; return the status of the process."""
    work, *arguments, result = sys.argv[1:]
    Path(result).write_text(json.dumps({"train": train, "probe": probe}[work](*arguments)))
    return 0


if __name__ == "__main__":
    leave(main)
