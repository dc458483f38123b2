"""How long the products of a network take at least: their number, and the fastest rate."""

import json
import time
from math import prod
from typing import Callable, Dict, List, Tuple

from experiments.standalone import compat

compat.restore()  # as in `work`

import mxnet as mx
from mxnet import nd

SIDES, RUNS = (512, 1024, 2048), 12  # square matrices; the fastest product is the peak

Shape = Tuple[int, ...]

# The multiply-adds of an operator, from its attributes and the shapes that it reads and writes
PRODUCTS: Dict[str, Callable[[Dict[str, str], List[Shape], Shape], int]] = {
    "Convolution": lambda attrs, read, out: prod(out) * prod(read[1][1:]),
    "Deconvolution": lambda attrs, read, out: prod(read[0]) * prod(read[1][1:]),
    "FullyConnected": lambda attrs, read, out: prod(out) * read[1][1],
    "batch_dot": lambda attrs, read, out: (
        prod(out) * read[0][-2 if attrs.get("transpose_a") == "True" else -1]
    ),
    "RNN": lambda attrs, read, out: prod(out[:2]) * prod(read[1]),  # all parameters in one array
}


def count(net: mx.gluon.HybridBlock, data: nd.NDArray, trains: bool) -> int:
    """Return the multiply-adds of a forward pass, or of a training step.

    A step has three products for each of a forward pass: the result and two gradients. The data of
    the network have no gradient.
    """
    symbol, parameters = net(mx.sym.var("data")), net.collect_params()
    inside = symbol.get_internals()
    known = {name: parameters[name].shape for name in inside.list_inputs() if name in parameters}
    _, found, _ = inside.infer_shape(data=data.shape, **known)
    shapes = dict(zip(inside.list_outputs(), found))
    nodes, total = json.loads(symbol.tojson())["nodes"], 0

    def shape_of(source: int, output: int) -> Shape:
        name = nodes[source]["name"]
        names = (name, f"{name}_output", f"{name}_output{output}")
        return next(shapes[one] for one in names if one in shapes)

    for i, node in enumerate(nodes):
        if node["op"] in PRODUCTS:
            read = [shape_of(*entry[:2]) for entry in node["inputs"]]
            each = PRODUCTS[node["op"]](node.get("attrs", {}), read, shape_of(i, 0))
            first = nodes[node["inputs"][0][0]]["name"] == "data"
            total += each * ((2 if first else 3) if trains else 1)
    return total


def peak() -> float:
    """Return the multiply-adds in a second of the fastest float32 product of square matrices."""
    rates = []
    for side in SIDES:
        a, b = nd.random.uniform(shape=(side, side)), nd.random.uniform(shape=(side, side))
        for _ in range(RUNS):
            nd.waitall()
            start = time.perf_counter()
            nd.FullyConnected(a, b, no_bias=True, num_hidden=side).wait_to_read()
            rates.append(side**3 / (time.perf_counter() - start))
    return max(rates)


if __name__ == "__main__":
    print(peak())
