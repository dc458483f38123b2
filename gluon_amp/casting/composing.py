"""Calls of a cast block on symbols, by a parent that is not cast or by a user.

Three kinds of callers need three graphs. A parent that is traced in order to run needs the graph
that the device can run, a parent that is saved needs the graph for the file (`saving.py`), and a
user gets the cast graph.
"""

import copy

from gluon_amp import graph
from gluon_amp.base.mxnet_internals import NumpySymbol, regroup
from gluon_amp.casting.arguments import arrays_in
from gluon_amp.casting.parameters import contexts_of, dtype_of, frozen_names
from gluon_amp.casting.saving import prepare_tracing_parent, saved_form
from gluon_amp.lowering import lower

import mxnet as mx
from mxnet.gluon import HybridBlock


def compose(block: HybridBlock, *args):
    """Return the outputs of a cast block for symbols: one of its graphs, with these as inputs."""
    inputs, symbol = block._get_graph(*args)
    form = saved_form()
    if form == "plain":
        symbol = block._cached_graph[1]
    elif form == "cast":
        symbol = graph.without_own_attributes(symbol)
    elif prepare_tracing_parent():
        symbol = _lowered(block, inputs, symbol)
    else:
        symbol = _without_float16_variables(symbol)
    # Copies of NumPy's symbols share their nodes, which composing changes, and are not iterable.
    composed = copy.copy(symbol.as_nd_ndarray())
    read = composed.list_inputs()
    composed._compose(**{s.name: a for s, a in zip(inputs, arrays_in(args)) if s.name in read})
    outputs = list(composed)
    if isinstance(symbol, NumpySymbol):
        outputs = [output.as_np_ndarray() for output in outputs]
    return regroup(outputs, block._out_format)


def _lowered(block: HybridBlock, inputs: list, symbol: mx.sym.Symbol) -> mx.sym.Symbol:
    """Return the graph that the block's device can run, for float32 inputs."""
    params = block.collect_params().values()
    dtypes = {s.name: "float32" for s in inputs}
    dtypes.update((p.name, dtype_of(p)) for p in params)
    devices = {ctx.device_type for p in params for ctx in contexts_of(p)}
    return lower(symbol, dtypes, "gpu" if "gpu" in devices else "cpu", frozen_names(params))


def _without_float16_variables(symbol: mx.sym.Symbol) -> mx.sym.Symbol:
    """Return a cast graph that casts the float16 variables, whose own dtype MXNet then infers.

    So it also runs with float32 values, which a block that is not cast reads of a shared parameter.
    `Symbol.save` removes the casts, so the saved graph is float32.
    """
    old, new = graph.to_json(symbol), graph.Writer()
    for i, node in enumerate(old["nodes"]):
        attrs = dict(node.get("attrs", {}))
        low = node["op"] == "null" and attrs.get("__dtype__") == graph.MX_DTYPE_CODES["float16"]
        if low:
            del attrs["__dtype__"]
        entry = new.copy({**node, "attrs": attrs}, [new.remap(e) for e in node["inputs"]])
        new.numbers.append(entry[0])
        if low:
            name = f"{node['name']}_cast_float16"
            new.replaced[i, 0] = new.emit("amp_cast", name, entry, dtype="float16")
    return graph.from_json(new.graph(old), like=symbol)
