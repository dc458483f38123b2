"""Makes sparse data dense where an operator of the C++ library reads them.

MXNet converts the sparse inputs of its own operators that read dense arrays only. It does not do so
for operators of a library, which raise.
"""

from typing import Container, List, Optional, Set

from gluon_amp.graph import Entry, Json, Writer, flag
from gluon_amp.graph.own_operators import is_own
from gluon_amp.lowering.typed_graph import TypedGraph


def make_dense(graph: TypedGraph, sparse: Container[str]) -> TypedGraph:
    """Return a graph that runs with sparse arrays of these variables.

    An operator between them and one of the library may return a sparse array or a dense one, which
    `cast_storage` returns as it is. The dense gradient of a matrix times transposed csr data cannot
    be written to a row_sparse array in a graph, but that of a copy of the matrix can.
    """
    maybe_sparse: Set[int] = set()

    def dense(out: Writer, i: int, node: Json, inputs: List[Entry]) -> Optional[Entry]:
        sources = [source in maybe_sparse for source, *_ in node["inputs"]]
        if not any(sources) and node["name"] not in sparse:
            return None
        if not is_own(node["op"]):
            maybe_sparse.add(i)
            if node["op"] != "dot" or not flag(node["attrs"], "transpose_a"):
                return None
            copy = out.emit("_mul_scalar", f"{node['name']}_copy", inputs[1], scalar="1")
            return out.copy(node, [inputs[0], copy])
        return out.copy(
            node,
            [
                out.emit("cast_storage", f"{node['name']}_input{k}_dense", entry, stype="default")
                if sources[k]
                else entry
                for k, entry in enumerate(inputs)
            ],
        )

    return graph.by(dense)
