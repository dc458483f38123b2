"""A graph and the dtypes of its tensors, which each pass of the lowering hands on to the next."""

from typing import Dict, List, Mapping, NamedTuple, Optional

from gluon_amp.graph import CASTS, Edge, Json, Rule, Writer, edge_dtypes, edge_of, pruned
from gluon_amp.graph import own_operators as own
from gluon_amp.policy.cast_pass import LOW_PRECISION


class TypedGraph(NamedTuple):
    """A symbol's JSON, and the dtype of every tensor that its nodes or outputs read."""

    json: Json
    edges: Dict[Edge, str]

    @classmethod
    def of(cls, json: Json, dtypes: Mapping[str, object]) -> "TypedGraph":
        """Infer the dtypes from those of the variables, as `graph.edge_dtypes` does."""
        return cls(json, edge_dtypes(json, dtypes))

    def by(self, rule: Rule, results: Optional[Mapping[Edge, str]] = None) -> "TypedGraph":
        """Return the graph that a rule writes, or the graph itself if it writes nothing.

        The rule may add dtypes of new tensors to `results`; the others are inferred.
        """
        out = Writer()
        if not out.rewrite(self.json, rule):
            return self
        return self.rewritten(out.graph(self.json), {**self.kept(out), **(results or {})})

    def rewritten(self, json: Json, kept: Mapping[Edge, str]) -> "TypedGraph":
        """Return a graph in place of this one, where the dtypes of some tensors are known."""
        known = dict(kept)
        for i, node in enumerate(json["nodes"]):
            if (i, 0) not in known:
                known[i, 0] = _dtype_of_result(node, known)
        read = [entry for node in json["nodes"] for entry in node["inputs"]] + json["heads"]
        edges = {(i, k): known.get((i, k), known[i, 0]) for i, k, *_ in read}
        return TypedGraph(json, edges)

    def kept(self, out: Writer) -> Dict[Edge, str]:
        """Return the dtypes of this graph's tensors, by their places in a graph being written."""
        return {edge_of(out.remap([*edge])): dtype for edge, dtype in self.edges.items()}

    def outputs(self) -> Dict[int, List[int]]:
        """Return the outputs of each node that are read."""
        found: Dict[int, List[int]] = {}
        for i, k in self.edges:
            found.setdefault(i, []).append(k)
        return found

    def stored(self, edge: Edge) -> Edge:
        """Return the tensor that a parameter is rounded from."""
        node = self.json["nodes"][edge[0]]
        while node["op"] in CASTS and self.edges.get(edge) in LOW_PRECISION:
            below = edge_of(node["inputs"][0])
            if self.edges.get(below) not in ("float32", "float16"):
                break
            edge, node = below, self.json["nodes"][below[0]]
        return edge

    def pruned(self) -> "TypedGraph":
        """Return the graph without the nodes that no output needs."""
        json, numbers = pruned(self.json)
        edges = {(numbers[i], k): d for (i, k), d in self.edges.items() if i in numbers}
        return TypedGraph(json, edges)


def _dtype_of_result(node: Json, known: Mapping[Edge, str]) -> str:
    if node["op"] in own.RESULTS:
        return own.RESULTS[node["op"]]
    dtype = node["attrs"].get("dtype")
    if dtype is not None or not node["inputs"]:
        return dtype or "float32"
    i, k, *_ = node["inputs"][0]
    return known.get((i, k), known[i, 0])
