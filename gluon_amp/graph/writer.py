"""A new graph in place of an old one."""

from typing import Callable, Dict, List, Optional, Tuple

from gluon_amp.graph.symbol_json import Edge, Entry, Json, needed

# Of a rewriting: gets the new graph, the number of a node, the node and its new inputs. It returns
# the entry that is read in the node's place, or None to copy the node. Where the node has more
# outputs, those of the entry's node are read, or what the rule puts in `Writer.replaced`.
Rule = Callable[["Writer", int, Json, List[Entry]], Optional[Entry]]


class Writer:
    """Collects the nodes of a new graph, which replaces an old one.

    New nodes come between the old ones, so a node has another number than in the old graph: `remap`
    translates the old graph's entries.
    """

    def __init__(self) -> None:
        self.nodes: List[Json] = []
        self.numbers: List[int] = []  # of the old graph's nodes in the new one
        self.replaced: Dict[Edge, Entry] = {}  # old tensor -> entry that is read in its place

    def remap(self, entry: Entry) -> Entry:
        """Return the entry in this graph of a tensor of the old graph."""
        old, k, *version = entry
        number, output, *_ = self.replaced.get((old, k)) or (self.numbers[old], k)
        return [number, output, *version]

    def graph(self, old: Json) -> Json:
        """Return the new graph with the outputs of the old one; later nodes are added to it too."""
        heads = [self.remap(entry) for entry in old["heads"]]
        return {**old, "nodes": self.nodes, "heads": heads}

    def rewrite(self, old: Json, rule: Rule) -> bool:
        """Append the nodes of the old graph, or what a rule writes; return whether it wrote any."""
        changed = False
        for i, node in enumerate(old["nodes"]):
            inputs = [self.remap(entry) for entry in node["inputs"]]
            entry = rule(self, i, node, inputs)
            if entry is not None:
                changed = True
                self.replaced.setdefault((i, 0), entry)
            self.numbers.append((entry or self.copy(node, inputs))[0])
        return changed

    def copy(self, node: Json, inputs: List[Entry]) -> Entry:
        """Append a node of another graph with new inputs; return its first output's entry."""
        self.nodes.append({**node, "inputs": inputs})
        return [len(self.nodes) - 1, 0, 0]

    def emit(self, op: str, name: str, *inputs: Entry, **attrs: str) -> Entry:
        """Append a new node; return its first output's entry."""
        return self.copy({"op": op, "name": name, "attrs": attrs}, [list(e) for e in inputs])


def pruned(graph: Json) -> Tuple[Json, Dict[int, int]]:
    """Return a graph without the nodes that no output needs, and the new numbers of the others."""
    numbers = {old: new for new, old in enumerate(sorted(needed(graph)))}

    def kept(entries: List[Entry]) -> List[Entry]:
        return [[numbers[i], *rest] for i, *rest in entries]

    nodes = [{**graph["nodes"][i], "inputs": kept(graph["nodes"][i]["inputs"])} for i in numbers]
    return {**graph, "nodes": nodes, "heads": kept(graph["heads"])}, numbers
