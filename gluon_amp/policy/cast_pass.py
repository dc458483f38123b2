"""Apply a policy to a symbol: a pure function that inserts casts, independent of nets and devices.

The symbol's JSON is rewritten in Python, because MXNet's own `ReducePrecision` pass confuses the
dtype of a cast with the dtype of the tensor that it casts, and fails on
`concat(conv(x), conv(pool(x)))` (apache/mxnet 20983).
"""

from collections import Counter
from typing import Container, Dict, Iterable, List, NamedTuple, Optional, Tuple

from gluon_amp.graph import (
    ACCUMULATE_ATTR,
    ACCUMULATING,
    BLOCK_ATTR,
    FUSED_ATTR,
    MX_DTYPE_CODES,
    PINNED_ATTR,
    ROUNDING_ATTR,
    Entry,
    Json,
    Rounding,
    Writer,
    from_json,
    op_table,
    readers_of,
    source_of,
    to_json,
)
from gluon_amp.policy import FUSED, Decision, Policy, constants

import mxnet as mx

LOW_PRECISION = ("float16", "bfloat16")

# Norms whose kernels read low-precision data together with float32 parameters, and compute their
# statistics in float32 (src/operator/nn/batch_norm.cc). All other norms are wrapped in casts.
NATIVELY_MIXED = ("BatchNorm",)

# The ends of a net
ENDS = ("first", "last")

# How a product of sparse arrays runs, or of a weight with a row_sparse gradient: casts are dense
SPARSE = Decision("float32", "an array that it reads, or its gradient, is sparse")

# Dtype of a tensor of integers or booleans, of any width, while the casts are inserted
INTEGER = "integer"


class Node(NamedTuple):
    """One operator of a graph and how it runs."""

    name: str
    op: str
    block: str  # the path of its block, as in 'features.0'
    # What it runs in; None where that depends on the dtype of the data. For a product under a
    # policy that studies formats, that of its operands.
    dtype: Optional[str]
    gradient_dtype: Optional[str]  # another one only under a policy that studies formats
    params: Dict[str, str]  # what it reads, possibly through a cast, with storage dtypes
    decision: Decision


def apply(symbol: mx.sym.Symbol, policy: Policy, dtypes: Dict[str, str]) -> mx.sym.Symbol:
    """Return a symbol that computes as `policy` says; `symbol` itself does not change.

    `dtypes` are the storage dtypes of the parameters (see `parameter_dtypes`). All other variables
    are inputs: floats of any dtype, which are cast, or integers, which are not. All outputs are in
    the policy's output dtype, integers aside. Casts are `amp_cast` nodes, one per tensor and dtype.
    """
    return plan(symbol, policy, dtypes)[0]


def plan(
    symbol: mx.sym.Symbol,
    policy: Policy,
    dtypes: Dict[str, str],
    ends: Tuple[str, ...] = ENDS,
    sparse_gradients: Container[str] = (),
) -> Tuple[mx.sym.Symbol, List[Node]]:
    """Return the symbol that `apply` returns, and how each of its operators runs, in order.

    `ends` are those of the net which the graph has: a net may run as several graphs. The variables
    in `sparse_gradients` have row_sparse gradients.
    """
    rewriter = _Rewriter(policy, dtypes, ends, sparse_gradients)
    rewritten = rewriter.rewrite(to_json(symbol), policy.output_dtype if rewriter.casting else None)
    return from_json(rewritten, like=symbol), rewriter.nodes


def parameter_dtypes(
    symbol: mx.sym.Symbol,
    policy: Policy,
    inputs: Iterable[str],
    sparse_gradients: Container[str] = (),
) -> Dict[str, str]:
    """Return the storage dtype that a policy gives each parameter of a graph.

    A parameter is stored in the policy's `param_dtype` if only convolutions and matrix products
    read it, directly or through operators that move values (reshape, concatenate). All other
    parameters (of norms and embeddings, scales, running statistics) are stored in float32. `inputs`
    are the variables that are data, `sparse_gradients` as for `plan`.
    """
    graph = to_json(symbol)
    nodes, readers = graph["nodes"], readers_of(graph)
    decisions = _decisions(policy, graph, ENDS, sparse_gradients)

    def only_products_read(i: int) -> bool:
        for reader, position in readers[i]:
            if reader is None:
                return False
            node = nodes[reader]
            decision = decisions[reader]
            if decision.kind == "compute" and position not in op_table.rule(node["op"]).uncast:
                continue
            moves_values = op_table.has("moves", node["op"]) and not decision.pinned
            if not moves_values or not only_products_read(reader):
                return False
        return True

    inputs = set(inputs)
    return {
        node["name"]: policy.param_dtype if only_products_read(i) else "float32"
        for i, node in enumerate(nodes)
        if node["op"] == "null" and node["name"] not in inputs
    }


def _decide(policy: Policy, node: Json, end: str = "") -> Decision:
    attrs = node["attrs"]
    return policy.decide(node["op"], attrs.get(BLOCK_ATTR), node["name"], attrs, end)


def _decisions(
    policy: Policy, graph: Json, ends: Tuple[str, ...], sparse_gradients: Container[str]
) -> Dict[int, Decision]:
    """Return how each operator of a graph runs.

    An operator that a constant keeps in float32 also keeps in float32 the operators whose results
    only it reads, back to the last matrix product or norm. In `log(clip(sigmoid(x), 1e-12, 1))` a
    float16 sigmoid would be 0 long before the clip, and the slope of 1e12 would be infinite in the
    backward pass.
    """
    nodes = graph["nodes"]
    decisions = {i: _decide(policy, node) for i, node in enumerate(nodes) if node["op"] != "null"}
    if policy.studies:
        for end in ends:
            for i in _products_at(graph, decisions, end):
                decisions[i] = _decide(policy, nodes[i], end)
    sparse = {i for i, node in enumerate(nodes) if _is_sparse(node, sparse_gradients)}
    for i, decision in decisions.items():
        if decision.kind == "compute" and any(s in sparse for s, *_ in nodes[i]["inputs"]):
            decisions[i] = SPARSE
    if policy.compute_dtype != "float16":
        return decisions
    readers = readers_of(graph)
    wide = {
        i
        for i, decision in decisions.items()
        if decision.kind == "float32" and constants.unfit(nodes[i]["op"], nodes[i]["attrs"])
    }
    for i in sorted(decisions, reverse=True):  # from the outputs back
        only_wide_readers = all(reader in wide for reader, _ in readers[i])
        decision = decisions[i]
        if only_wide_readers and decision.kind in ("follow", "widest") and not decision.pinned:
            wide.add(i)
            decisions[i] = Decision("float32", "only leads to a constant that does not fit float16")
    return decisions


def _is_sparse(node: Json, sparse_gradients: Container[str]) -> bool:
    declared = node["attrs"].get("__storage_type__", "0")
    return node["op"] == "null" and (declared != "0" or node["name"] in sparse_gradients)


def _products_at(graph: dict, decisions: Dict[int, Decision], end: str) -> List[int]:
    """Return the products that no other one precedes, or that none follows."""
    nodes = graph["nodes"]
    neighbours = {i: [entry[0] for entry in node["inputs"]] for i, node in enumerate(nodes)}
    order = range(len(nodes))
    if end == "last":
        readers = readers_of(graph)
        neighbours = {i: [reader for reader, _ in readers.get(i, ())] for i in order}
        order = reversed(order)
    found, beyond = [], set()  # nodes from the first product on
    for i in order:
        is_beyond = any(neighbour in beyond for neighbour in neighbours[i])
        is_product = i in decisions and decisions[i].kind == "compute"
        if is_product and not is_beyond:
            found.append(i)
        if is_beyond or is_product or "subgraphs" in nodes[i]:
            beyond.add(i)
    return found


class _Rewriter:
    """Inserts the casts into one graph, and into the bodies of its loops and branches.

    It tracks the dtype of each tensor as the name of a float dtype, `INTEGER` or None. `INTEGER` is
    the dtype of results such as `mx.np.argmax`'s. These tensors are never cast, since `amp_cast`
    fails on int64 and bool on a CPU. None is a dtype that depends on the data, as that of a
    network's inputs. `_widest` counts it as float32. If an operator requires float32, a tensor of
    dtype None is still cast, since the data may be float16; if the data are integers, `amp_cast`
    returns them unchanged.
    """

    def __init__(
        self,
        policy: Policy,
        dtypes: Dict[str, str],
        ends: Tuple[str, ...],
        sparse_gradients: Container[str] = (),
        keys: Optional["Counter[str]"] = None,
    ) -> None:
        self.policy = policy
        self.param_dtypes = dtypes
        self.ends = ends
        self.sparse_gradients = sparse_gradients
        self.nodes: List[Node] = []
        self.casting = not policy.is_float32  # a float32 policy inserts no casts
        # of the products so far, see `Rounding`
        self.keys: Counter[str] = Counter() if keys is None else keys

    def rewrite(self, graph: Json, output_dtype: Optional[str]) -> Json:
        """Return the graph with casts, its outputs cast too; add its operators to `nodes`."""
        out = _Emitter()
        decisions = _decisions(self.policy, graph, self.ends, self.sparse_gradients)

        def with_casts(_: Writer, i: int, old: Json, inputs: List[Entry]) -> Entry:
            node = {**old, "attrs": dict(old["attrs"])}
            block = node["attrs"].pop(BLOCK_ATTR, "")
            if node["op"] == "null":
                return self._variable(node, out)
            return self._operator(i, node, block, inputs, decisions[i], out)

        out.rewrite(graph, with_casts)
        rewritten = out.graph(graph)
        if output_dtype:
            rewritten["heads"] = [out.cast(head, output_dtype) for head in rewritten["heads"]]
        return rewritten

    def _variable(self, node: Json, out: "_Emitter") -> Entry:
        dtype = self.param_dtypes.get(node["name"])
        if dtype in MX_DTYPE_CODES:
            node["attrs"]["__dtype__"] = MX_DTYPE_CODES[dtype]
        return out.add(node, [], dtype, dtype)

    def _operator(
        self,
        i: int,
        node: Json,
        block: str,
        inputs: List[Entry],
        decision: Decision,
        out: "_Emitter",
    ) -> Entry:
        """Add an operator with its inputs cast as its kind requires."""
        rule = op_table.rule(node["op"])
        castable = [k for k in range(len(inputs)) if k not in rule.uncast]
        input_dtypes = [out.dtype_of(inputs[k]) for k in castable]
        data_dtype = input_dtypes[0] if input_dtypes else None
        dtype = self._dtype(decision, input_dtypes)

        natively_mixed = decision.kind == "norm" and node["op"] in NATIVELY_MIXED
        if natively_mixed:
            # Only the data may be cast, and only by a pin: the parameters stay in float32.
            castable = castable[:1]
            dtype = self.policy.product_dtype if decision.pinned else data_dtype
        if self.casting and dtype is not None and dtype != INTEGER:
            for k in castable:
                inputs[k] = out.cast(inputs[k], dtype)
        if dtype == self.policy.accumulate_dtype == "float16" and node["op"] in ACCUMULATING:
            node["attrs"][ACCUMULATE_ATTR] = "float16"
        if decision.pinned and dtype == "float32" and self.policy.compute_dtype == "bfloat16":
            node["attrs"][PINNED_ATTR] = "float32"
        if decision.kind == "compute" and self.policy.compute_dtype == FUSED:
            node["attrs"][FUSED_ATTR] = "True"
        if "subgraphs" in node:
            # A loop or branch reads and returns float32; its body casts what it reads.
            float32 = dict.fromkeys(self.param_dtypes, "float32")
            inside = _Rewriter(self.policy, float32, (), keys=self.keys)
            node["subgraphs"] = [inside.rewrite(body, "float32") for body in node["subgraphs"]]
            self.nodes += inside.nodes

        dtypes = dtype, dtype
        if decision.kind == "compute" and self.policy.studies:
            node["attrs"][ROUNDING_ATTR] = self._rounding(node["op"], block, decision).to_text()
            dtypes = self.policy.compute_dtype, self.policy.gradient_dtype
        sources = {out.source_name(entry) for entry in inputs}
        params = {n: self.param_dtypes[n] for n in sorted(sources) if n in self.param_dtypes}
        self.nodes.append(Node(node["name"], node["op"], block, *dtypes, params, decision))

        if op_table.has("integers", node["op"]):
            output_dtype: Optional[str] = INTEGER
        else:
            output_dtype = _declared_dtype(node["attrs"], dtype)
        # The other outputs of a BatchNorm are its statistics.
        entry = out.add(node, inputs, output_dtype, "float32" if natively_mixed else output_dtype)
        if decision.kind == "norm" and not natively_mixed and data_dtype in LOW_PRECISION:
            # All later readers of the norm's output read a cast of it.
            out.replaced[i, 0] = out.cast(entry, data_dtype)
        return entry

    def _rounding(self, op: str, block: str, decision: Decision) -> Rounding:
        place, policy = f"{block}:{op}", self.policy
        self.keys[place] += 1
        key = f"{place}:{self.keys[place]}"
        return Rounding(key, policy.compute_dtype, policy.gradient_dtype, decision.wide)

    def _dtype(self, decision: Decision, input_dtypes: List[Optional[str]]) -> Optional[str]:
        """Return the dtype that an operator runs in, by its kind (see `op_table`)."""
        if decision.kind == "compute":
            return self.policy.product_dtype
        if decision.kind != "uncast" and "float64" in input_dtypes:
            return "float64"  # of a constant or a cast of the user's, who wants its digits
        if decision.kind in ("float32", "norm"):
            return "float32"
        if decision.kind == "follow":
            return input_dtypes[0] if input_dtypes else None
        if decision.kind == "widest":
            return _widest(input_dtypes)
        return None  # uncast


class _Emitter(Writer):
    """The graph being written, with the dtypes of its tensors."""

    def __init__(self) -> None:
        super().__init__()
        # by new node: dtype of its first output, dtype of its other outputs
        self.dtypes: List[Tuple[Optional[str], Optional[str]]] = []
        self.casts: Dict[Tuple[int, int, str], Entry] = {}  # of a tensor, by the cast's dtype

    def add(
        self, node: Json, inputs: List[Entry], first: Optional[str], others: Optional[str]
    ) -> Entry:
        """Append a node whose outputs have these dtypes; return its entry."""
        self.dtypes.append((first, others))
        return self.copy(node, inputs)

    def dtype_of(self, entry: Entry) -> Optional[str]:
        return self.dtypes[entry[0]][min(entry[1], 1)]

    def cast(self, entry: Entry, dtype: str) -> Entry:
        """Return `entry` in `dtype`; each tensor is cast to each dtype at most once."""
        if self.dtype_of(entry) in (dtype, INTEGER):
            return entry
        key = (entry[0], entry[1], dtype)
        if key not in self.casts:
            name = f"{self.nodes[entry[0]]['name']}_{entry[1]}_cast_{dtype}"
            self.casts[key] = self.emit("amp_cast", name, entry, dtype=dtype)
            self.dtypes.append((dtype, dtype))
        return self.casts[key]

    def source_name(self, entry: Entry) -> str:
        """Return the name of the node that a tensor comes from, before it was cast."""
        return str(self.nodes[source_of(self.nodes, entry[0], ("amp_cast",))]["name"])


def _widest(dtypes: List[Optional[str]]) -> Optional[str]:
    """Return the widest of several dtypes; integers beside floats do not count."""
    distinct = set(dtypes)
    if len(distinct) > 1:
        distinct.discard(INTEGER)
    if len(distinct) > 1:
        return "float32"  # the policy has one low precision, so another dtype is float32 or None
    return next(iter(distinct), None)


def _declared_dtype(attrs: Dict[str, str], default: Optional[str]) -> Optional[str]:
    """Return the dtype that an operator's own attribute gives its output."""
    declared = attrs.get("out_dtype", attrs.get("dtype", "None"))
    if declared in ("float64", "float32", *LOW_PRECISION):
        return declared
    return default if declared in ("None", "-1") else None
