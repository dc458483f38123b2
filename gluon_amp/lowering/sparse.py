"""Makes sparse data dense where an operator of the C++ library reads them.

MXNet converts the sparse inputs of its own operators that read dense arrays only. It does not do so
for operators of a library, which raise.
"""

from typing import Container

from gluon_amp.graph import Writer, flag
from gluon_amp.lowering.typed_graph import TypedGraph

OWN_PREFIX = "_gluon_amp_"


def make_dense(graph: TypedGraph, sparse: Container[str]) -> TypedGraph:
    """Return a graph that runs with sparse arrays of these variables.

    An operator between them and one of the library may return a sparse array or a dense one, which
    `cast_storage` returns as it is. The dense gradient of a matrix times transposed csr data cannot
    be written to a row_sparse array in a graph, but that of a copy of the matrix can.
    """
    if not sparse:
        return graph
    out, maybe_sparse = Writer(), set()
    for i, node in enumerate(graph.json["nodes"]):
        sources = {source for source, *_ in node["inputs"]}
        inputs = [out.remap(entry) for entry in node["inputs"]]
        if node["op"].startswith(OWN_PREFIX):
            for k, (source, *_) in enumerate(node["inputs"]):
                if source in maybe_sparse:
                    name = f"{node['name']}_input{k}_dense"
                    inputs[k] = out.emit("cast_storage", name, inputs[k], stype="default")
        elif node["name"] in sparse or sources & maybe_sparse:
            maybe_sparse.add(i)
            if node["op"] == "dot" and flag(node["attrs"], "transpose_a"):
                inputs[1] = out.emit("_mul_scalar", f"{node['name']}_copy", inputs[1], scalar="1")
        out.numbers.append(out.copy(node, inputs)[0])
    return graph.written(out)
