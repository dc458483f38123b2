"""Calls of a cast block on symbols, what a parent that is not cast runs, and what both save.

Three kinds of callers of a cast block need three graphs. A user gets the cast graph. A parent that
is traced in order to run needs the graph that the device can run, with the operators of the float16
emulation. A parent that is saved needs the float32 graph.

MXNet saves a block (`export`, `save`, the estimator's checkpoints) from `_cached_graph`. So while a
parent has such a graph, its class is a subclass in which `_cached_graph` is that of another trace.
"""

import copy
from typing import Any, Dict, List, Optional, Tuple

from gluon_amp import graph
from gluon_amp.base.mxnet_internals import NumpySymbol, check_same_symbol_type, flatten, regroup
from gluon_amp.casting import callers
from gluon_amp.casting.arguments import arrays_in
from gluon_amp.casting.classes import Mixin, as_stock, change_class, restore_class
from gluon_amp.casting.parameters import contexts_of, dtype_of, frozen_names
from gluon_amp.casting.tracing import trace
from gluon_amp.lowering import lower

import mxnet as mx
from mxnet.gluon import HybridBlock

TRACES = callers.codes(HybridBlock._get_graph)  # where a block is traced in order to run


def compose(block: HybridBlock, *args: Any) -> Any:
    """Return the outputs of a cast block for symbols: one of its graphs, with these as inputs."""
    inputs, symbol = block._get_graph(*args)
    tracing = callers.running(TRACES)
    if tracing is None:
        symbol = _without_float16_variables(symbol)
    else:
        symbol = _lowered(block, inputs, symbol)
        parent = tracing["self"]
        change_class(parent, StockParent)
        vars(parent)["_amp_arguments"] = tracing["grouped_inputs"]
    # Copies of NumPy's symbols share their nodes, which composing changes, and are not iterable.
    composed = copy.copy(symbol.as_nd_ndarray())
    read = composed.list_inputs()
    composed._compose(**{s.name: a for s, a in zip(inputs, arrays_in(args)) if s.name in read})
    outputs = list(composed)
    if isinstance(symbol, NumpySymbol):
        outputs = [output.as_np_ndarray() for output in outputs]
    return regroup(outputs, block._out_format)


def export_cast(
    block: HybridBlock, symbol: mx.sym.Symbol, path: str, epoch: int
) -> Tuple[str, str]:
    """Export a cast graph of a block, with the parameters in their own dtypes."""
    kept, symbol = vars(block)["_cached_graph"], graph.without_own_attributes(symbol)
    check_types(block, symbol, low=True)
    with as_stock([block, *block.collect_params().values()]):
        block._cached_graph = kept[0], symbol
        try:
            return block.export(path, epoch, False)
        finally:
            block._cached_graph = kept


def check_types(block: HybridBlock, symbol: mx.sym.Symbol, low: bool = False) -> None:
    """Raise `TypeError` if stock MXNet cannot run a graph that is about to be written.

    The file has float32 parameters, or if `low` is true those of the block.
    """
    dtypes = {p.name: dtype_of(p) for p in block.collect_params().values()}
    if "_amp" in vars(block):
        inputs = (variable.name for variable in block._cached_graph[0])
        dtypes.update(zip(inputs, vars(block)["_amp"].key.dtypes))
    if not low:
        dtypes = {name: graph.WIDE.get(dtype, dtype) for name, dtype in dtypes.items()}
    conflict = graph.type_conflict(symbol, dtypes)
    if conflict:
        raise TypeError(f"export() wrote nothing, as stock MXNet cannot run the graph: {conflict}.")


def _lowered(block: HybridBlock, inputs: list, symbol: mx.sym.Symbol) -> mx.sym.Symbol:
    """Return the graph that the block's device can run, for float32 inputs."""
    params = block.collect_params().values()
    dtypes: Dict[str, object] = {s.name: "float32" for s in inputs}
    dtypes.update((p.name, dtype_of(p)) for p in params)
    devices = {ctx.device_type for p in params for ctx in contexts_of(p)}
    device = "gpu" if "gpu" in devices else "cpu"
    scaled = vars(block)["_amp"].policy.needs_loss_scale
    return lower(symbol, dtypes, device, frozen_names(params), scaled=scaled)


def _without_float16_variables(symbol: mx.sym.Symbol) -> mx.sym.Symbol:
    """Return a cast graph that casts the float16 variables, whose own dtype MXNet then infers.

    So it also runs with float32 values, which a block that is not cast reads of a shared parameter.
    `Symbol.save` removes the casts, so the saved graph is float32.
    """

    def cast(out: graph.Writer, i: int, node: dict, inputs: List[list]) -> Optional[list]:
        attrs = dict(node["attrs"])
        if node["op"] != "null" or attrs.get("__dtype__") != graph.MX_DTYPE_CODES["float16"]:
            return None
        del attrs["__dtype__"]
        entry = out.copy({**node, "attrs": attrs}, inputs)
        return out.emit("amp_cast", f"{node['name']}_cast_float16", entry, dtype="float16")

    old, new = graph.to_json(symbol), graph.Writer()
    new.rewrite(old, cast)
    return graph.from_json(new.graph(old), like=symbol)


class StockParent(Mixin):
    """Mixed into the class of a traced block that is not cast and contains a cast child.

    Its attribute `_amp_arguments` has the symbols of the call that was traced.
    """

    @property
    def _cached_graph(self):
        running = vars(self)["_cached_graph"]
        if not running or not self._cached_op:
            return running
        traced = trace(self, "", self._amp_arguments)
        symbol = traced.plain()
        check_types(self, symbol)
        return traced.inputs, symbol

    @_cached_graph.setter
    def _cached_graph(self, running):
        vars(self)["_cached_graph"] = running

    def _clear_cached_op(self):
        restore_class(self)
        del self._amp_arguments
        self._clear_cached_op()

    def export(self, path: str, epoch: int = 0, remove_amp_cast: bool = True) -> Tuple[str, str]:
        if remove_amp_cast or not self._cached_op:
            return super().export(path, epoch, remove_amp_cast)
        out, _ = flatten(self.forward(*self._amp_arguments), "output")
        return export_cast(self, mx.sym.Group(out, check_same_symbol_type(out)), path, epoch)
