"""Which backward passes run only once on a kept graph, as a second one has other gradients.

While the loss scale is searching, a backward pass that overflowed runs again at a lower scale. An
operator may have overwritten what that pass reads: the factors of a determinant, the flag of a
Dropout. `make operators` measures which operators do so. What was not measured counts as one.
"""

from typing import Mapping, Optional

from gluon_amp.base import registry
from gluon_amp.graph.op_table import RUNS_CODE, RUNS_ONCE, is_known

# (operator, attribute, value): nodes whose attribute has this value run backward only once
_BY_ATTRIBUTE = {("LeakyReLU", "act_type", "rrelu")}  # crashes in it on a CPU, so not measured


def runs_once(op: str, attrs: Mapping[str, str], device_type: str) -> bool:
    """Return whether a node's second backward pass has other gradients, or may have them.

    Variables and operators of the C++ library can be repeated. cuDNN overwrites the reserve space
    of an RNN; torch copies it where a graph is kept (pytorch issue 703).
    """
    name = registry.canonical(op)
    if name == "null" or name.startswith("_gluon_amp_"):
        return False
    return (
        name in RUNS_ONCE
        or name.startswith("_backward_")
        or not is_known(name)
        or (name == "RNN" and device_type == "gpu")
        or any((name, *item) in _BY_ATTRIBUTE for item in attrs.items())
    )


def find_runs_once(graph: dict, device_type: str) -> Optional[str]:
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
            once = runs_once(node["op"], node.get("attrs", {}), device_type)
            found = node["op"] if once else None
        if found:
            return found
        if node["op"] != "BlockGrad":
            reached.update(entry[0] for entry in node["inputs"])
    return None


def is_measured(op: str) -> bool:
    """Return whether all that an operator does is known: it is no code of a user, and no loop."""
    return is_known(op) and registry.canonical(op) not in RUNS_CODE
