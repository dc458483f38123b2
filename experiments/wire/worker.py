"""A worker of a cluster: trains a network for some steps and reports what each step exchanges.

    python -m experiments.wire.worker NETWORK POLICY STEPS RESULT

The result has the elements of the gradients by dtype, their bytes, and the seconds of each step
after its backward pass: reduction, overflow check and update.
"""

import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Sequence

import numpy as np

from experiments.wire.networks import NETWORKS, batches, trained
from gluon_amp.training.workers.group import connect, leave

import mxnet as mx


def main(arguments: Sequence[str]) -> int:
    """Train; return the status of the process."""
    name, policy, steps, result = arguments
    network = NETWORKS[name]
    workers = connect("dist_sync", [mx.cpu()])
    training = trained(network, policy, workers.kvstore)
    seconds = []
    for images, labels in batches(network, seed=workers.rank, count=int(steps)):
        training.backward(images, labels)
        mx.nd.waitall()
        start = time.perf_counter()
        training.trainer.step(len(images))
        mx.nd.waitall()
        seconds.append(time.perf_counter() - start)
    elements: Counter = Counter()
    gradients = list(training.trainer.gradients())
    for gradient in gradients:
        elements[np.dtype(gradient.dtype).name] += gradient.size
    report = {
        "arrays": len(gradients),
        "elements": dict(elements),
        "bytes": sum(count * np.dtype(dtype).itemsize for dtype, count in elements.items()),
        "seconds": seconds,
    }
    Path(result).write_text(json.dumps(report))
    return 0


if __name__ == "__main__":
    leave(lambda: main(sys.argv[1:]))
