"""Find the operator that overflows first.

In the forward pass the graph of a block is evaluated tensor by tensor. In the backward pass each
operator gets a probe, a zero that is added to its input: the gradient of the probe is the gradient
that the operator sends back.
"""

from typing import Callable, Container, Dict, Iterator, List, NamedTuple, Optional, Tuple

from gluon_amp import graph
from gluon_amp.casting.binding import binding_of
from gluon_amp.casting.tracing import named_blocks
from gluon_amp.inspection.replay import Call, Replay
from gluon_amp.inspection.values import Range, is_finite, is_float, readable, value_range
from gluon_amp.lowering import lower
from gluon_amp.optimizer.arrays import all_finite
from gluon_amp.policy import cast_pass

import mxnet as mx
from mxnet import autograd, gluon, nd

FLOATS = ("float32", *cast_pass.LOW_PRECISION)  # dtypes of the tensors that are searched
# Attributes that a graph without casts does not have
FOR_LOW_PRECISION = ("__dtype__", *graph.OWN_ATTRS)
LOSS = "loss"  # the path of the loss function, which is in no block

Input = Tuple[int, int]  # numbers of a node and of its input


class Site(NamedTuple):
    """Where an overflow happens."""

    block: str  # its path
    op: Optional[str]  # None where only the block is known
    dtype: str  # that the operator computes in
    value_range: Range  # of its input (forward), or of the gradient that it received (backward)
    is_cast: bool = False  # the value overflows in the cast to `dtype` before the operator
    in_float32: bool = False  # it happens in a float32 net too


def forward_site(replay: Replay, call: Call) -> Site:
    """Return the first operator of a call whose result is not finite, or its block."""
    site = CallGraph(call, replay.parameters).first_overflow() if call.graph else None
    return site or Site(call.path, None, "float32", value_range(*call.inputs))


def hidden_site(replay: Replay) -> Optional[Site]:
    """Return the first operator whose result is not finite, in a net whose output is; or None.

    MXNet's relu returns 0 for NaN, and 1 / (1 + exp(x)) is 0 where exp(x) is infinite.
    """
    sites = (graph.first_overflow() for graph in graphs_of(replay))
    return next(filter(None, sites), None)


def backward_site(replay: Replay) -> Site:
    """Return the first operator that sends back a gradient that is not finite, or its block.

    The calls are searched in the order of the backward pass: the first to receive such a gradient
    got it from the call searched before it.
    """
    sender = Site(LOSS, None, "float32", value_range(*replay.losses))
    for call in reversed(replay.calls):
        received = call.output_gradients()
        if not all(map(is_finite, received)):
            return sender
        sender = Site(call.path, None, "float32", value_range(*received))
        if call.graph:
            site = CallGraph(call, replay.parameters).first_backward_overflow(received)
            if site is not None:
                return site
            continue
        own = (replay.gradients.get(p.name, ()) for p in call.block._reg_params.values())
        if not all_finite(array for arrays in own for array in arrays):
            return sender
    return sender


class CallGraph:
    """The graph that one call of a block ran, and the arrays that it read, as those of `mx.nd`."""

    def __init__(self, call: Call, parameters: Dict[str, gluon.Parameter]) -> None:
        assert call.graph is not None
        self.inputs, self.symbol = call.graph
        self.json = graph.to_json(self.symbol)
        self.nodes = self.json["nodes"]
        self.context = call.device
        self.arrays = {symbol.name: x for symbol, x in zip(self.inputs, call.inputs)}
        for name in set(self.symbol.list_inputs()) - set(self.arrays):
            self.arrays[name] = parameters[name].data(self.context)
        self.arrays = {name: array.as_nd_ndarray() for name, array in self.arrays.items()}
        dtypes = {name: array.dtype for name, array in self.arrays.items()}
        self.dtypes = graph.edge_dtypes(self.json, dtypes)  # by tensor
        self.block_of = _block_paths(call, self.nodes)

    def first_overflow(self) -> Optional[Site]:
        """Return the first operator whose result is not finite, or None."""
        tensors = self.evaluate()
        for i, output in sorted(self.dtypes):
            node = self.nodes[i]
            if node["op"] == "null" or is_finite(tensors[i, output]):
                continue
            is_cast = node["op"] in graph.CASTS
            place = self._reader(i) if is_cast else i
            data = [tensors[graph.edge_of(entry)] for entry in node["inputs"][:1]]
            in_float32 = not is_cast and self._overflows_in_float32([[i, output]])
            return self._site(place, (i, 0), data, in_float32, is_cast)
        return None

    def first_backward_overflow(self, head_gradients: List[nd.NDArray]) -> Optional[Site]:
        """Return the first operator, from the outputs, that sends back an overflow, or None."""
        sent = self.sent_gradients(self.evaluate(), head_gradients)
        for i, node in reversed(list(enumerate(self.nodes))):
            if all(is_finite(sent[i, k]) for k in range(len(node["inputs"])) if (i, k) in sent):
                continue
            heads = zip(self.json["heads"], head_gradients)
            received = [
                *(grad for (k, n), grad in sent.items() if self.nodes[k]["inputs"][n][0] == i),
                *(grad for (source, *_), grad in heads if source == i),
            ]
            in_float32 = self._overflows_in_float32(self.json["heads"], head_gradients)
            return self._site(*self._overflowing(i), received, in_float32)
        return None

    def _overflows_in_float32(
        self, heads: List[list], head_gradients: Optional[List[nd.NDArray]] = None
    ) -> bool:
        """Return whether tensors, or the gradients of variables, overflow without any cast."""
        plain = graph.Writer()
        plain.rewrite(self.json, _without_casts)
        symbol = graph.from_json(plain.graph({**self.json, "heads": heads}))
        wide = {
            name: array.astype("float32")
            for name, array in self.arrays.items()
            if is_float(array) and name not in self.symbol.list_auxiliary_states()
        }
        for array in wide.values():
            array.attach_grad()
        with autograd.record():
            results = self._run(symbol, wide)
        if head_gradients is not None:
            autograd.backward(results, [g.astype("float32") for g in head_gradients])
            results = [array.grad for array in wide.values()]
        return not all(map(is_finite, results))

    def _site(
        self, i: int, tensor: graph.Edge, read: list, in_float32: bool, is_cast: bool = False
    ) -> Site:
        """Return the site of an operator that read arrays and computes in the dtype of a tensor."""
        dtype, op = self.dtypes.get(tensor, "float32"), self.nodes[i]["op"]
        return Site(self.block_of(i), op, dtype, value_range(*read), is_cast, in_float32)

    def _overflowing(self, i: int) -> Tuple[int, graph.Edge]:
        """Return the operator that node `i` stands for, and the tensor that has its dtype.

        The gradient of a cast overflows because it does not fit the dtype of the cast's input. So
        the operator is the one that wrote this input, or the reader of the cast of a variable.
        """
        node = self.nodes[i]
        if node["op"] not in graph.CASTS:
            return i, (i, 0)
        source = graph.edge_of(node["inputs"][0])
        if self.nodes[source[0]]["op"] == "null":
            return self._reader(i), (i, 0)
        return source[0], source

    def _reader(self, i: int) -> int:
        """Return the first operator that reads a cast, directly or through further casts."""
        for k, node in enumerate(self.nodes):
            if any(source == i for source, *_ in node["inputs"]):
                return self._reader(k) if node["op"] in graph.CASTS else k
        return i

    def evaluate(self) -> Dict[graph.Edge, nd.NDArray]:
        """Return every tensor of the graph."""
        tensors = {
            (i, 0): self.arrays[node["name"]]
            for i, node in enumerate(self.nodes)
            if node["op"] == "null"
        }
        computed = [tensor for tensor in self.dtypes if tensor not in tensors]
        heads = [[*tensor, 0] for tensor in computed]
        symbol = graph.from_json({**self.json, "heads": heads})
        with autograd.train_mode():
            tensors.update(zip(computed, map(readable, self._run(symbol))))
        return tensors

    def sent_gradients(
        self,
        tensors: Dict[graph.Edge, nd.NDArray],
        head_gradients: List[nd.NDArray],
        places: Optional[Container[Input]] = None,
    ) -> Dict[Input, nd.NDArray]:
        """Return the gradient that each operator sends to each of its float inputs, in float32.

        `tensors` are from `evaluate`. `places` are the inputs of interest; all by default.
        """
        symbol, probes = self._with_probes(places)
        if not probes:
            return {}
        zeros = {}
        for (i, k), name in probes.items():
            tensor = graph.edge_of(self.nodes[i]["inputs"][k])
            zeros[name] = nd.zeros(tensors[tensor].shape, ctx=self.context, dtype="float32")
            zeros[name].attach_grad()
        with autograd.record():
            outputs = self._run(symbol, zeros)
        autograd.backward(outputs, head_gradients)
        return {place: zeros[name].grad for place, name in probes.items()}

    def _with_probes(
        self, places: Optional[Container[Input]]
    ) -> Tuple[mx.sym.Symbol, Dict[Input, str]]:
        """Return the graph with a probe at each of the float inputs, and the names of the probes.

        Every probe is a float32 variable. It is cast to the dtype of the input, so that its
        gradient is read in float32.
        """
        states = set(self.symbol.list_auxiliary_states())
        probes: Dict[Input, str] = {}

        def with_probes(
            out: graph.Writer, i: int, node: graph.Json, inputs: List[graph.Entry]
        ) -> None:
            for k, source in enumerate(map(graph.edge_of, node["inputs"])):
                dtype, is_wanted = self.dtypes[source], places is None or (i, k) in places
                if is_wanted and dtype in FLOATS and self.nodes[source[0]]["name"] not in states:
                    name = probes[i, k] = f"_probe_{i}_{k}"
                    zero = out.emit("null", name)
                    if dtype != "float32":
                        zero = out.emit("amp_cast", f"{name}_cast", zero, dtype=dtype)
                    inputs[k] = out.emit("elemwise_add", f"{name}_sum", inputs[k], zero)

        writer = graph.Writer()
        writer.rewrite(self.json, with_probes)
        return graph.from_json(writer.graph(self.json)), probes

    def _run(
        self, symbol: mx.sym.Symbol, zeros: Optional[Dict[str, nd.NDArray]] = None
    ) -> List[nd.NDArray]:
        """Return the outputs of a graph that reads the same variables and `zeros`."""
        arrays = {name: array.detach() for name, array in self.arrays.items()}
        for name in self.symbol.list_auxiliary_states():
            arrays[name] = arrays[name].copy()  # the pass writes them
        arrays.update(zeros or {})
        dtypes = {name: array.dtype for name, array in arrays.items()}
        lowered = lower(symbol, dtypes, self.context.device_type)
        outputs = nd.CachedOp(lowered)(*(arrays[name] for name in lowered.list_inputs()))
        return outputs if isinstance(outputs, list) else [outputs]


def _without_casts(
    out: graph.Writer, i: int, node: graph.Json, inputs: List[graph.Entry]
) -> graph.Entry:
    """Write an operator as in a graph that was not cast."""
    if node["op"] == "amp_cast":
        return inputs[0]
    attrs = {k: v for k, v in node["attrs"].items() if k not in FOR_LOW_PRECISION}
    return out.copy({**node, "attrs": attrs}, inputs)


def graphs_of(replay: Replay) -> Iterator[CallGraph]:
    """Yield the graph of each call of a replay that ran one."""
    return (CallGraph(call, replay.parameters) for call in replay.calls if call.graph)


def _block_paths(call: Call, nodes: List[dict]) -> Callable[[int], str]:
    """Return a function that maps a node's number to the path of its block."""
    binding = binding_of(call.block)
    if binding is not None:
        paths = {node.name: node.block for node in binding.nodes or ()}
        return lambda i: paths.get(nodes[i]["name"], call.path)
    blocks = list(named_blocks(call.block, call.path))

    def path(i: int) -> str:
        name, label = nodes[i]["name"], nodes[i]["attrs"].get(graph.BLOCK_ATTR)
        if label is not None:
            return label
        matches = [(len(block.prefix), at) for at, block in blocks if name.startswith(block.prefix)]
        return max(matches, key=lambda match: match[0], default=(0, call.path))[1]

    return path
