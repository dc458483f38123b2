"""Which graph must not run backward twice, as a second backward pass has other gradients.

While the loss scale is searching, a backward pass that overflowed runs again at a lower scale. An
operator may have overwritten what that pass reads: the factors of a determinant, the flag of a
Dropout. `make operators` measures which operators do so. What was not measured counts as one.
"""

from typing import Optional

from gluon_amp.graph import op_table
from gluon_amp.graph.symbol_json import Json


def find_runs_once(graph: Json, device_type: str) -> Optional[str]:
    """Return an operator whose second backward pass in a graph differs, or may; None if none does.

    No gradient reaches what a BlockGrad reads, such as the masks of a cast net's dropout. The graph
    of a hybridized block stands under "subgraphs" if it is known.
    """
    reached = {entry[0] for entry in graph["heads"]}
    for i, node in reversed(list(enumerate(graph["nodes"]))):
        if i not in reached:
            continue
        bodies = node.get("subgraphs") if node["op"] == "_CachedOp" else None
        if bodies:
            found = next(filter(None, (find_runs_once(one, device_type) for one in bodies)), None)
        else:
            once = op_table.has("once", node["op"], node["attrs"], device_type)
            found = node["op"] if once else None
        if found:
            return found
        if node["op"] != "BlockGrad":
            reached.update(entry[0] for entry in node["inputs"])
    return None
