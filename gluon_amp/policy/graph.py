"""Apply a policy to a symbol: a pure function that inserts casts. Knows nothing of nets or devices.

The symbol's JSON is rewritten in Python, because MXNet's own `ReducePrecision` pass takes the dtype
of a cast for the dtype of the tensor it read, and fails on `concat(conv(x), conv(pool(x)))`
(apache/mxnet 20983).
"""

import json
from typing import Dict, Iterable, List, NamedTuple, Optional, Tuple

from gluon_amp.dtypes import dtype_name
from gluon_amp.policy import Decision, Policy, constants, op_table

import mxnet as mx

# Attribute that tells a node's block; `cast` sets it while tracing, `apply` takes it off again.
BLOCK_ATTR = "__gluon_amp_block__"

# Attribute of the products of a cast graph that are to add up in float16, where it is emulated.
ACCUMULATE_ATTR = "__gluon_amp_accumulate__"
ACCUMULATING = ("Convolution", "FullyConnected", "dot", "batch_dot")

MX_DTYPE_CODES = {"float32": "0", "float16": "2"}
LOW_PRECISION = ("float16", "bfloat16")

VERSION = {"mxnet_version": ["int", 10901]}

FLOAT16_MAX = 65504.0
FLOAT16_TINY = 2.0**-24  # the smallest subnormal

# Norms whose kernels take low-precision data with float32 parameters; all others are wrapped in
# casts. Their statistics are float32 by construction (src/operator/nn/batch_norm.cc).
NATIVELY_MIXED = ("BatchNorm",)


class Node(NamedTuple):
    """One operator of a graph and how it runs; `dtype` is None where nothing is ever cast."""

    name: str
    op: str
    block: str
    dtype: Optional[str]
    params: Dict[str, str]
    decision: Decision


def apply(symbol: mx.sym.Symbol, policy: Policy, dtypes: Dict[str, str]) -> mx.sym.Symbol:
    """Return a symbol that computes as `policy` says; `symbol` is left as it is.

    Parameters
    ----------
    symbol : Symbol
        A network, or several outputs grouped.
    policy : Policy
    dtypes : dict of str to str
        Storage dtype of each parameter (see `parameter_dtypes`). Variables that are not in it are
        inputs: they may hold floats of any dtype, which are cast, or integers, which never are.

    Returns
    -------
    Symbol
        Same inputs, parameters and number of outputs. All outputs are in the policy's output
        dtype (integers aside). Casts are `amp_cast` nodes, one per tensor and dtype.
    """
    return plan(symbol, policy, dtypes)[0]


def plan(
    symbol: mx.sym.Symbol, policy: Policy, dtypes: Dict[str, str]
) -> Tuple[mx.sym.Symbol, List[Node]]:
    """Like `apply`, and also return how each operator runs, in the graph's order."""
    rewriter = _Rewriter(policy, dtypes)
    rewritten = rewriter.rewrite(to_json(symbol), policy.output_dtype if rewriter.casting else None)
    return from_json(rewritten, like=symbol), rewriter.nodes


def parameter_dtypes(
    symbol: mx.sym.Symbol, policy: Policy, inputs: Iterable[str]
) -> Dict[str, str]:
    """Return the storage dtype that a policy gives each parameter of a graph.

    A parameter is stored in the policy's `param_dtype` where only matrix products read it, possibly
    reshaped, concatenated or otherwise moved on the way; everything else (norms, embeddings,
    scales, running statistics) stays float32.

    Parameters
    ----------
    symbol : Symbol
    policy : Policy
    inputs : iterable of str
        Variables that are data, not parameters.
    """
    graph = to_json(symbol)
    nodes = graph["nodes"]
    readers = {}  # node -> [(reading node, input position)]
    for i, node in enumerate(nodes):
        for position, (source, *_) in enumerate(node["inputs"]):
            readers.setdefault(source, []).append((i, position))
    outputs = {source for source, *_ in graph["heads"]}

    def only_products_read(i: int) -> bool:
        if i in outputs or i not in readers:
            return False
        for reader, position in readers[i]:
            node = nodes[reader]
            decision = _decide(policy, node)
            if decision.kind == "compute" and position not in op_table.rule(node["op"]).uncast:
                continue
            moved = node["op"] in op_table.MOVES and not decision.pinned
            if not moved or not only_products_read(reader):
                return False
        return True

    inputs = set(inputs)
    return {
        node["name"]: policy.param_dtype if only_products_read(i) else "float32"
        for i, node in enumerate(nodes)
        if node["op"] == "null" and node["name"] not in inputs
    }


def edge_dtypes(graph: dict, dtypes: Dict[str, object], like: mx.sym.Symbol) -> Dict:
    """Return the dtype of every tensor that a graph's nodes read or return.

    Parameters
    ----------
    graph : dict
        A symbol's JSON.
    dtypes : dict of str to dtype
        Dtypes of the variables; those left out are float32.
    like : Symbol
        The symbol of which the JSON was made.

    Returns
    -------
    dict of (int, int) to str
        Node and output number to dtype name.

    Raises
    ------
    MXNetError
        The dtypes contradict each other.
    """
    edges = {tuple(entry[:2]) for node in graph["nodes"] for entry in node["inputs"]}
    edges.update(tuple(entry[:2]) for entry in graph["heads"])
    edges = sorted(edges)
    heads = [[i, out, 0] for i, out in edges]
    # the body of a loop has no version of its own, and a graph without one is taken for an old one
    every_edge = from_json({"attrs": VERSION, **graph, "heads": heads}, like=like)
    fed = {name: dtypes.get(name, "float32") for name in every_edge.list_inputs()}
    _, found, _ = every_edge.infer_type(**fed)
    return {edge: dtype_name(dtype) for edge, dtype in zip(edges, found)}


def to_json(symbol: mx.sym.Symbol) -> dict:
    """Return a symbol's graph as a dict, casts included."""
    return json.loads(symbol.tojson(remove_amp_cast=False))


def from_json(graph: dict, like: mx.sym.Symbol) -> mx.sym.Symbol:
    """Build a symbol from a dict as `to_json` returns it, of the same interface as `like`."""
    symbol = mx.sym.load_json(json.dumps(_indexed(graph)))
    numpy_interface = isinstance(like, mx.symbol.numpy._Symbol)
    return symbol.as_np_ndarray() if numpy_interface else symbol


def _indexed(graph: dict) -> dict:
    """Return a graph with its index of variables renewed, and so those of its nodes' bodies."""
    nodes = [
        {**node, "subgraphs": [_indexed(body) for body in node["subgraphs"]]}
        if "subgraphs" in node
        else node
        for node in graph["nodes"]
    ]
    variables = [i for i, node in enumerate(nodes) if node["op"] == "null"]
    kept = {key: value for key, value in graph.items() if key != "node_row_ptr"}
    return {**kept, "nodes": nodes, "arg_nodes": variables}


def _decide(policy: Policy, node: dict) -> Decision:
    attrs = node.get("attrs", {})
    return policy.decide(node["op"], attrs.get(BLOCK_ATTR, ""), node["name"], attrs)


def _decisions(policy: Policy, graph: dict) -> Dict[int, Decision]:
    """Return how each operator of a graph runs.

    An operator that a constant keeps in float32 also keeps in float32 the operators whose results
    only it reads, back to the last product or norm: in `log(clip(sigmoid(x), 1e-12, 1))` a sigmoid
    in float16 would be 0 long before the clip, and the slope of 1e12 would be infinite in the
    backward pass.
    """
    nodes = graph["nodes"]
    found = {i: _decide(policy, node) for i, node in enumerate(nodes) if node["op"] != "null"}
    if policy.compute_dtype != "float16":
        return found
    readers = {}
    for i, node in enumerate(nodes):
        for source, *_ in node["inputs"]:
            readers.setdefault(source, set()).add(i)
    outputs = {source for source, *_ in graph["heads"]}
    wide = {i for i in found if found[i].kind == "float32" and _unfit(nodes[i])}
    for i in sorted(found, reverse=True):
        led = i not in outputs and readers.get(i, {None}) <= wide
        if led and found[i].kind in ("follow", "widest") and not found[i].pinned:
            wide.add(i)
            found[i] = Decision("float32", "only leads to a constant that does not fit float16")
    return found


def _unfit(node: dict) -> Optional[str]:
    return constants.unfit(node["op"], node.get("attrs", {}))


class _Rewriter:
    """One rewriting of one graph (and of the bodies of its loops and branches).

    A tensor's dtype is None where only the data can tell: such a tensor is taken for float32, but
    is cast wherever a dtype is required, since the user may feed float16. `amp_cast` leaves
    integers alone; what an operator is known to return as 'integer' it does not even get to see,
    because on a CPU it knows no int64 and no bool.
    """

    def __init__(self, policy: Policy, dtypes: Dict[str, str]) -> None:
        self.policy = policy
        self.param_dtypes = dtypes
        self.nodes = []
        self.casting = policy.compute_dtype != "float32"  # else the network stays as it is

    def rewrite(self, graph: dict, output_dtype: Optional[str]) -> dict:
        out = _Emitter()
        decisions = _decisions(self.policy, graph)
        for i, old in enumerate(graph["nodes"]):
            node = {**old, "attrs": dict(old.get("attrs", {}))}
            block = node["attrs"].pop(BLOCK_ATTR, "")
            inputs = [out.moved(entry) for entry in old["inputs"]]
            if node["op"] == "null":
                self._variable(i, node, out)
            else:
                self._operator(i, node, block, inputs, decisions[i], out)
        heads = [out.moved(entry) for entry in graph["heads"]]
        if output_dtype:
            heads = [out.cast(head, output_dtype) for head in heads]
        return {**graph, "nodes": out.nodes, "heads": heads}

    def _variable(self, i: int, node: dict, out: "_Emitter") -> None:
        dtype = self.param_dtypes.get(node["name"])
        if dtype in MX_DTYPE_CODES:
            node["attrs"]["__dtype__"] = MX_DTYPE_CODES[dtype]
        out.place(i, node, [], dtype)

    def _operator(self, i, node, block, inputs, decision, out) -> None:
        rule = op_table.rule(node["op"])
        castable = [k for k in range(len(inputs)) if k not in rule.uncast]
        read = [out.dtype_of(inputs[k]) for k in castable]
        dtype = self._dtype(decision, read)
        data = read[0] if read else None
        natively_mixed = decision.kind == "norm" and node["op"] in NATIVELY_MIXED
        if natively_mixed:
            castable = castable[:1]
            dtype = self.policy.compute_dtype if decision.pinned else data
        if self.casting and dtype not in (None, "integer"):
            for k in castable:
                inputs[k] = out.cast(inputs[k], dtype)
        if dtype == self.policy.accumulate_dtype == "float16" and node["op"] in ACCUMULATING:
            node["attrs"][ACCUMULATE_ATTR] = "float16"
        if "subgraphs" in node:
            # a loop or branch reads and returns float32, and casts inside, its weights too
            inside = _Rewriter(self.policy, dict.fromkeys(self.param_dtypes, "float32"))
            node["subgraphs"] = [inside.rewrite(body, "float32") for body in node["subgraphs"]]
            self.nodes += inside.nodes

        sources = {out.source_name(entry) for entry in inputs}
        params = {n: self.param_dtypes[n] for n in sorted(sources) if n in self.param_dtypes}
        self.nodes.append(Node(node["name"], node["op"], block, dtype, params, decision))
        if node["op"] in op_table.RETURNS_INTEGERS:
            made = "integer"
        else:
            made = _declared_dtype(node["attrs"], dtype)
        out.place(i, node, inputs, made, natively_mixed)
        if decision.kind == "norm" and not natively_mixed and data in LOW_PRECISION:
            out.replace(i, data)

    def _dtype(self, decision: Decision, read: List[Optional[str]]) -> Optional[str]:
        """Return the dtype that an operator runs in; `read` are those of its castable inputs."""
        return {
            "compute": lambda: self.policy.compute_dtype,
            "float32": lambda: "float32",
            "norm": lambda: "float32",
            "follow": lambda: read[0] if read else None,
            "widest": lambda: _widest(read),
            "integer": lambda: None,
        }[decision.kind]()


class _Emitter:
    """The graph being written: its nodes, their dtypes, and where the old graph's tensors went."""

    def __init__(self) -> None:
        self.nodes = []
        self.dtypes = []  # of the first output of each node, and of the others
        self.casts = {}
        self.places = {}  # old node -> new node
        self.replaced = {}  # old node -> the cast that stands for its first output

    def place(self, old, node, inputs, dtype, others_float32=False) -> None:
        """Write the node that stands for node `old` of the old graph."""
        self.places[old] = self._emit(node, inputs, (dtype, "float32" if others_float32 else dtype))

    def replace(self, old: int, dtype: str) -> None:
        """Let readers of the old node's first output read it in `dtype` from here on."""
        self.replaced[old] = self.cast([self.places[old], 0], dtype)

    def moved(self, entry: list) -> list:
        """Return where a tensor of the old graph is now: node, output, version."""
        old, k, *version = entry
        if k == 0 and old in self.replaced:
            return list(self.replaced[old])
        return [self.places[old], k, *version]

    def dtype_of(self, entry: list) -> Optional[str]:
        return self.dtypes[entry[0]][min(entry[1], 1)]

    def cast(self, entry: list, dtype: str) -> list:
        """Return `entry` in `dtype`; each tensor is cast to each dtype at most once."""
        if self.dtype_of(entry) in (dtype, "integer"):
            return entry
        key = (entry[0], entry[1], dtype)
        if key not in self.casts:
            source = self.nodes[entry[0]]["name"]
            name = f"{source}_{entry[1]}_cast_{dtype}"
            node = {"op": "amp_cast", "name": name, "attrs": {"dtype": dtype}}
            self.casts[key] = [self._emit(node, [list(entry)], (dtype, dtype)), 0, 0]
        return self.casts[key]

    def source_name(self, entry: list) -> str:
        """Return the name of the node that made a tensor, behind the cast where there is one."""
        node = self.nodes[entry[0]]
        return (
            self.nodes[node["inputs"][0][0]]["name"] if node["op"] == "amp_cast" else node["name"]
        )

    def _emit(self, node: dict, inputs: list, dtypes: tuple) -> int:
        self.nodes.append({**node, "inputs": inputs})
        self.dtypes.append(dtypes)
        return len(self.nodes) - 1


def _widest(dtypes: list) -> Optional[str]:
    found = set(dtypes)
    if len(found) > 1:
        found.discard("integer")
    if len(found) > 1:
        return "float32"  # one of two is float32, or taken for it
    return next(iter(found), None)


def _declared_dtype(attrs: dict, default: Optional[str]) -> Optional[str]:
    """Return the dtype that an operator's own attribute gives its output."""
    declared = attrs.get("out_dtype", attrs.get("dtype", "None"))
    if declared in ("float32", *LOW_PRECISION):
        return declared
    return default if declared in ("None", "-1") else None
