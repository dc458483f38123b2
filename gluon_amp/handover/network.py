"""What leaves MXNet: a net's float32 graph with the masters, which can be run at every edge.

The graph is that of inference, without casts. MXNet runs it on the CPU, and what is handed over has
to compute the same.
"""

from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

from gluon_amp import graph
from gluon_amp.base.dtypes import dtype_name
from gluon_amp.base.host import host_copy
from gluon_amp.base.messages import UsageError, first_few, reason_of
from gluon_amp.base.mxnet_internals import NumpySymbol, RNNLayer
from gluon_amp.casting.arguments import arrays_in
from gluon_amp.casting.parameters import contexts_of
from gluon_amp.casting.tracing import TraceError, trace
from gluon_amp.graph import Edge, op_table
from gluon_amp.handover.heads import in_inference
from gluon_amp.lowering import lower, regions
from gluon_amp.lowering.typed_graph import TypedGraph
from gluon_amp.optimizer.masters import master_of
from gluon_amp.policy import Policy, cast_pass

import mxnet as mx
from mxnet import autograd, gluon


class ShapeError(UsageError):
    """A graph does not accept inputs of these shapes."""


class Network(NamedTuple):
    """A float32 graph, as `graph.to_json` returns it, and the values of its variables."""

    json: dict
    inputs: Dict[str, np.ndarray]  # in the order of the call
    parameters: Dict[str, np.ndarray]  # masters, where there are any; statistics included
    numpy: bool  # whether the graph is one of mx.np
    paths: Dict[str, str]  # of the block that called each node, such as 'features.0', by its name
    cast: bool = False  # whether it has casts, which the CPU runs once they are lowered

    @property
    def nodes(self) -> List[dict]:
        """The graph's nodes, in topological order: the one in which Gluon called them."""
        return self.json["nodes"]

    @property
    def outputs(self) -> List[Edge]:
        """The edges that the net returns."""
        return list(map(graph.edge_of, self.json["heads"]))

    def path_of(self, i: int) -> str:
        """Return the path of the block that called a node; an empty one is the net itself."""
        return self.paths.get(self.nodes[i]["name"], "")

    def place_of(self, i: int) -> str:
        """Return the block and the operator of a node in words."""
        return f"block {self.path_of(i) or 'net'}, operator {self.nodes[i]['op']}"

    def inputs_of(self, i: int) -> List[Edge]:
        """Return the edges that a node reads."""
        return list(map(graph.edge_of, self.nodes[i]["inputs"]))

    def indices(self) -> Dict[str, bool]:
        """Return the inputs that are integers, or are read as indices, lengths or conditions.

        The value is whether an input's rows are regions, whose numbers belong together.
        """
        found = {name: False for name, value in self.inputs.items() if value.dtype.kind != "f"}
        origins: Dict[int, str] = {}
        for i, node in enumerate(self.nodes):
            if node["name"] in self.inputs and node["op"] == "null":
                origins[i] = node["name"]
            for position, (source, _) in enumerate(self.inputs_of(i)):
                name, op = origins.get(source), node["op"]
                regions = op_table.inputs("regions", op)
                if name and (op_table.has("moves", op) or op in graph.CASTS):
                    origins[i] = name
                elif name and position in (*regions, *op_table.inputs("uncast", op)):
                    found[name] = bool(regions)
                elif name and op == "one_hot":
                    found[name] = False
        return found

    def shapes(self, inputs: Dict[str, np.ndarray]) -> Dict[Edge, Tuple[int, ...]]:
        """Return the shape of every edge for inputs of these shapes.

        Raise `ShapeError` if the graph does not accept them, and `UsageError` if a shape depends on
        values.
        """
        edges = graph.edges_of(self.json)
        arrays = {**self.parameters, **inputs}
        symbol = self.symbol(edges)
        known = {name: arrays[name].shape for name in symbol.list_inputs() if name in arrays}
        try:
            with mx.util.np_shape(self.numpy):
                _, found, _ = symbol.infer_shape(**known)
        except (mx.MXNetError, ValueError) as error:
            raise ShapeError(reason_of(error)) from None
        if found is None:
            with mx.util.np_shape(self.numpy):
                _, found, _ = symbol.infer_shape_partial(**known)
            smallest = 0 if self.numpy else 1  # of a known size
            unknown = (e for e, s in zip(edges, found) if s is None or min(s, default=1) < smallest)
            raise UsageError(
                f"{self.place_of(next(unknown, edges[-1])[0])}, returns a shape that depends on "
                "values, not on shapes alone: replace it by other operators, or export the net up "
                "to that block."
            )
        shapes = dict(zip(edges, found))
        for i, node in enumerate(self.nodes):
            # MXNet infers the shape without the size, and the operator would end the process
            if graph.classic(node["op"]) == "Reshape" and (i, 0) in shapes:
                before, after = shapes[self.inputs_of(i)[0]], shapes[i, 0]
                if np.prod(before) != np.prod(after):
                    raise ShapeError(f"{node['name']} reshapes {before} to {after}")
        return shapes

    def dtypes(self) -> Dict[Edge, str]:
        """Return the dtype of every edge."""
        arrays = {**self.parameters, **self.inputs}
        known = {name: dtype_name(array.dtype) for name, array in arrays.items()}
        return graph.edge_dtypes(self.json, known)

    def symbol(self, edges: Optional[Sequence[Edge]] = None) -> mx.sym.Symbol:
        """Return the symbol of some edges, or of the outputs."""
        heads = self.json["heads"] if edges is None else [[*edge, 0] for edge in edges]
        symbol = graph.from_json({**self.json, "heads": heads})
        return symbol.as_np_ndarray() if self.numpy else symbol

    def run(
        self, inputs: Dict[str, np.ndarray], edges: Optional[Sequence[Edge]] = None
    ) -> List[np.ndarray]:
        """Return the values of some edges, or of the outputs, in inference."""
        values, symbol = {**self.parameters, **inputs}, self.symbol(edges)
        dtypes: Dict[str, object] = {name: dtype_name(x.dtype) for name, x in values.items()}
        if self.cast:
            symbol = lower(symbol, dtypes, "cpu")
        elif any(node["op"] == regions.ALIGN for node in self.nodes):
            typed = regions.mask_missing(TypedGraph.of(graph.to_json(symbol), dtypes))
            symbol = graph.from_json(typed.json, like=symbol)
        return run(graph.without_own_attributes(symbol), values)

    def under(self, policy: Policy) -> "Network":
        """Return the cast network, whose parameters have the dtypes that a policy gives them."""
        symbol = self.symbol()
        dtypes = cast_pass.parameter_dtypes(symbol, policy, self.inputs)
        json = graph.to_json(cast_pass.apply(symbol, policy, dtypes))
        values = {
            name: value.astype(np.float16) if dtypes[name] == "float16" else value
            for name, value in self.parameters.items()
        }
        return self._replace(json=json, parameters=values, cast=True)


def run(symbol: mx.sym.Symbol, values: Dict[str, np.ndarray]) -> List[np.ndarray]:
    """Return the outputs of a symbol, run on the CPU in inference with these values."""
    numpy = isinstance(symbol, NumpySymbol)
    plain = symbol.as_nd_ndarray() if numpy else symbol
    # MXNet plans gradients, for which it wants a variable, and operators that have them.
    plain = mx.sym.Group([*map(mx.sym.BlockGrad, plain), mx.sym.var("spare")])
    values = {"spare": np.zeros(1, np.float32), **values}
    with mx.util.np_shape(numpy), autograd.pause(train_mode=False):
        arrays = [mx.nd.array(values[n], dtype=values[n].dtype) for n in plain.list_inputs()]
        *outputs, _ = mx.nd.CachedOp(plain)(*arrays)
        return [host_copy(output) for output in outputs]


def network_of(
    net: Union[gluon.HybridBlock, mx.mod.BaseModule], arguments: tuple, function: str
) -> Network:
    """Return the network that a net computes for these inputs, in inference.

    `arguments` are those of a call, lists of arrays included, and `function` is named in the
    messages. Raise `TypeError` or `UsageError` for a net that has no graph or no values, and for
    inputs that it does not accept.
    """
    arrays = list(arrays_in(arguments))
    if not arrays or not all(isinstance(array, mx.nd.NDArray) for array in arrays):
        raise TypeError(f"{function}() needs the net's inputs, as NDArrays: pass a batch.")
    of = _of_module if isinstance(net, mx.mod.BaseModule) else _of_block
    symbol, names, parameters = of(net, arguments, function)
    if len(names) != len(arrays):
        raise UsageError(
            f"{function}() got {len(arrays)} inputs, expected {len(names)}: {first_few(names)}."
        )
    json = in_inference(graph.to_json(graph.in_float32(symbol)))
    read = [name for name in graph.variables(json) if name in parameters]
    values = {name: _wide(parameters[name]) for name in read}
    given = {name: _wide(array) for name, array in zip(names, arrays)}
    paths = {node["name"]: node["attrs"].get(graph.BLOCK_ATTR, "") for node in json["nodes"]}
    return Network(json, given, values, isinstance(symbol, NumpySymbol), paths)


# A symbol, the names of its inputs, and the arrays of its parameters by name
Graph = Tuple[mx.sym.Symbol, List[str], Dict[str, mx.nd.NDArray]]


def _of_block(net: gluon.Block, arguments: tuple, function: str) -> Graph:
    """Return the graph of a block, with its masters."""
    if not isinstance(net, gluon.HybridBlock):
        raise TypeError(
            f"{function}() got a {type(net).__name__}, expected a HybridBlock or a Module: a "
            "plain Block has no graph, so pass its HybridBlocks one by one."
        )
    _run_once(net, arguments, function)
    called = _Caller(net) if isinstance(net, RNNLayer) else net
    try:
        with autograd.pause(train_mode=False):
            inputs, symbol, *_ = trace(called, "", arguments)
    except TraceError as error:
        raise UsageError(f"{function}(): {error}") from None
    values = {}
    for param in net.collect_params().values():
        master = master_of(param)
        values[param.name] = param.list_data()[0] if master is None else master
    return symbol, [variable.name for variable in inputs], values


class _Caller(gluon.HybridBlock):
    """Calls an RNN layer, which creates its first states only when it is called."""

    def __init__(self, layer: gluon.HybridBlock) -> None:
        super().__init__()
        self.layer = layer

    def hybrid_forward(self, F, *arguments):
        return self.layer(*arguments)


def _run_once(net: gluon.HybridBlock, arguments: tuple, function: str) -> None:
    """Run the net, so that all shapes are known; refuse inputs that it does not accept."""
    missing = [name for name, param in net.collect_params().items() if not contexts_of(param)]
    if missing:
        raise UsageError(
            f"{function}() got a net whose parameters have no values ({first_few(missing)}): "
            "initialize it, or load them, first."
        )
    try:
        with autograd.pause(train_mode=False):
            mx.nd.waitall()
            for output in arrays_in(net(*arguments)):
                output.wait_to_read()
    except (mx.MXNetError, ValueError, TypeError, AssertionError) as error:
        raise UsageError(
            f"{function}(): the net does not accept these inputs ({reason_of(error)}): pass a "
            "batch as in training."
        ) from None


def _wide(array: mx.nd.NDArray) -> np.ndarray:
    value = host_copy(array)
    return value.astype(np.float32) if value.dtype == np.float16 else value


def _of_module(module: mx.mod.BaseModule, arguments: tuple, function: str) -> Graph:
    """Return the graph of a bound Module, whose labels are not among its inputs."""
    if not (module.binded and module.params_initialized):
        raise UsageError(f"{function}() got a Module without values: bind and initialize it first.")
    weights, states = module.get_params()
    symbol = graph.without_own_attributes(module.symbol)
    return symbol, list(module.data_names), {**weights, **states}
