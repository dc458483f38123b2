"""Cast networks and run them forward and backward on the stand-ins: `python -m ... NAME`.

Prints a JSON line for each policy: launches, and what computes in float16 sums, or the error.
"""

import json
import re
import sys

import numpy as np

import gluon_amp as amp
from experiments import zoo_coverage as zoo
from experiments.cuda_kernels.stand_in import Log

import mxnet as mx
from mxnet import autograd, nd

POLICIES = ("float32", "float16", "mixed_float16")


def main(name: str) -> None:
    """Run a network, named as in `zoo_coverage`, in float32 and under both float16 policies."""
    device = mx.gpu(0)
    net = zoo.untrained(name)
    net.initialize(mx.init.Zero(), ctx=device)
    net.collect_params().reset_ctx(device)  # some networks of GluonCV initialize parts on a CPU
    net.hybridize()
    pixels = zoo.pixels_of(name)
    x = nd.empty((1 if "rcnn" in name else 2, 3, pixels, pixels), ctx=device)
    train_mode = not re.search(zoo.NEED_GROUND_TRUTH, name)
    for policy in POLICIES:
        row = {"network": name, "policy": policy, "error": ""}
        try:
            amp.cast(net, policy)
            with Log() as log:
                with autograd.record(train_mode=train_mode):
                    outputs = [out for out in zoo.outputs_of(net, x) if out.dtype == np.float32]
                autograd.backward(outputs)
                nd.waitall()
            row["launches"] = log.launches()
            row["float16_sums"] = sorted({line for line in log.lines if "in float16" in line})
        except Exception as error:
            row["error"] = str(error).strip().splitlines()[-1]
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
