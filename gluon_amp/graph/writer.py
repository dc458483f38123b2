"""A new graph in place of an old one."""

from typing import List

from gluon_amp.graph.symbol_json import needed


class Writer:
    """Collects the nodes of a new graph, which replaces an old one.

    New nodes come between the old ones, so a node has another number than in the old graph: `remap`
    translates the old graph's entries.
    """

    def __init__(self) -> None:
        self.nodes = []
        self.numbers = []  # of the old graph's nodes in the new one
        self.replaced = {}  # (old node, output) -> entry that is read in its place

    def remap(self, entry: list) -> list:
        """Return the entry in this graph of a tensor of the old graph."""
        old, k, *version = entry
        number, output, *_ = self.replaced.get((old, k)) or (self.numbers[old], k)
        return [number, output, *version]

    def graph(self, old: dict) -> dict:
        """Return the new graph with the outputs of the old one; later nodes are added to it too."""
        heads = [self.remap(entry) for entry in old["heads"]]
        return {**old, "nodes": self.nodes, "heads": heads}

    def copy(self, node: dict, inputs: List[list]) -> list:
        """Append a node of another graph with new inputs; return its first output's entry."""
        self.nodes.append({**node, "inputs": inputs})
        return [len(self.nodes) - 1, 0, 0]

    def emit(self, op: str, name: str, *inputs: list, **attrs: str) -> list:
        """Append a new node; return its first output's entry."""
        return self.copy({"op": op, "name": name, "attrs": attrs}, [list(e) for e in inputs])


def pruned(graph: dict) -> dict:
    """Return a graph without the nodes that no output needs."""
    kept, out = set(needed(graph)), Writer()
    for i, node in enumerate(graph["nodes"]):
        number = len(out.nodes)
        if i in kept:
            out.copy(node, [out.remap(entry) for entry in node["inputs"]])
        out.numbers.append(number)
    return out.graph(graph)
