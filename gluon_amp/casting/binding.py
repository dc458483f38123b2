"""What a cast block is: a subclass of its own class, made for it, that runs the cast graph.

The subclass replaces the graph that the block traces by the cast graph and, where the device needs
it, by the lowered one. No MXNet class, module or other net changes, the net's structure stays, and
`release` takes it off again.
"""

import copy
import warnings
from typing import Optional

import numpy as np

from gluon_amp.casting import statistics
from gluon_amp.casting.parameters import (
    cast_class,
    cast_parameter,
    contexts_of,
    dtype_of,
    saved_as_stored,
    stock_class,
    unbind_parameter,
)
from gluon_amp.casting.saving import saved_form, watch_tracing_parent
from gluon_amp.casting.tracing import Block, HybridBlock, hybrid_blocks, is_tracing, traced
from gluon_amp.dtypes import dtype_name
from gluon_amp.lowering import bfloat16, lower
from gluon_amp.policy import Policy, graph

import mxnet as mx
from mxnet import autograd
from mxnet.gluon import SymbolBlock
from mxnet.gluon.block import _flatten, _regroup

FED_DTYPES = ("float32", "float16")  # float dtypes that a cast net takes

# What Gluon keeps of one trace of a block
TRACE = ("_cached_graph", "_cached_op", "_cached_op_args", "_in_format", "_out_format")


class Binding:
    """What a bound block knows: its policy, its path in the net, and the graphs made of it.

    There is one trace for each combination of autograd's mode, device and fed dtypes, since a
    forward may ask for the mode (detectors do), and the emulation depends on the two others.
    """

    def __init__(self, block: HybridBlock, path: str, policy: Policy) -> None:
        self.path = path
        self.policy = policy
        self.blank = {name: vars(block)[name] for name in TRACE}
        self.clear()

    def clear(self) -> None:
        self.key = None
        self.graph = None  # (inputs, cast symbol)
        self.nodes = None
        self.lowered = None  # (inputs, lowered symbol), while a cached op is being built
        self.traces = {}
        self.parameters = None

    def parameters_of(self, block: HybridBlock) -> list:
        """Return the block's parameters; to collect them takes a millisecond a call."""
        if self.parameters is None:
            self.parameters = list(block.collect_params().values())
        return self.parameters

    def select(self, block: HybridBlock, key: tuple) -> None:
        """Let the block continue with the trace that belongs to `key`, or with none."""
        if key == self.key:
            return
        self.traces[self.key] = {n: vars(block)[n] for n in TRACE}, self.graph, self.nodes
        blank = {**self.blank, "_cached_op_args": []}
        trace, self.graph, self.nodes = self.traces.pop(key, (blank, None, None))
        vars(block).update(trace)
        self.key = key


class Cast:
    """Mixed into the class of a block that is cast; `self._amp` is its binding."""

    def __init_subclass__(cls):
        """Hide the class made of a user's class from whatever that registers its subclasses in."""

    def _get_graph(self, *args):
        amp = self._amp
        if amp.lowered is not None:
            return amp.lowered
        if amp.graph is None:
            inputs, symbol = traced(self, amp.path, lambda: super(Cast, self)._get_graph(*args))
            names = {s.name for s in inputs}
            dtypes = {p.name: dtype_of(p) for p in self.collect_params().values()}
            dtypes = {name: dtype for name, dtype in dtypes.items() if name not in names}
            cast, amp.nodes = graph.plan(symbol, amp.policy, dtypes)
            amp.graph = inputs, cast
            self._cached_graph = inputs, _plain(symbol)  # which MXNet saves
        return amp.graph

    def _build_cache(self, *args):
        amp = self._amp
        inputs, symbol = self._get_graph(*args)
        flat = [a for a in _flatten(args, "input")[0] if a is not None]
        dtypes = {p.name: dtype_of(p) for p in self.collect_params().values()}
        dtypes.update({s.name: a.dtype for s, a in zip(inputs, flat)})
        try:
            amp.lowered = (
                inputs,
                lower(
                    symbol, dtypes, flat[0].context.device_type, _frozen(amp.parameters_of(self))
                ),
            )
        except mx.base.MXNetError as error:
            fed = ", ".join(dtype_name(a.dtype) for a in flat)
            raise TypeError(
                f"{name_of(self)} got {fed} data, which its operators cannot take "
                f"({reason_of(error)}): pass float32 data, as in x.astype('float32')."
            ) from None
        plain = self._cached_graph
        try:
            super()._build_cache(*args)
        finally:
            amp.lowered = None
            self._cached_graph = plain  # a backend has put its partitioned graph there

    def _call_cached_op(self, *args):
        amp = self._amp
        flat = [a for a in _flatten(args, "input")[0] if a is not None]
        for array in flat:
            dtype = dtype_name(array.dtype)
            if dtype not in FED_DTYPES and not np.issubdtype(array.dtype, np.integer):
                raise TypeError(
                    f"{name_of(self)} got {dtype} data, expected float32 or float16 "
                    "(or integer ids): call .astype('float32') on it."
                )
        device = flat[0].context.device_type
        if amp.policy.compute_dtype == "bfloat16" and device == "gpu":
            bfloat16.check_device("gpu")
        mode = autograd.is_recording(), autograd.is_training()
        frozen = _frozen(amp.parameters_of(self))
        amp.select(self, (mode, device, *(np.dtype(a.dtype).name for a in flat), frozen))
        return super()._call_cached_op(*args)

    def _clear_cached_op(self):
        if "_amp" in vars(self):
            self._amp.clear()
            vars(self).update({**self._amp.blank, "_cached_op_args": []})
        super()._clear_cached_op()

    def __setattr__(self, name, value):
        child = vars(self).get(name)
        if isinstance(child, Cast) and isinstance(value, Block) and value is not child:
            # Gluon wants a child replaced by one of its class, so the old one leaves the cast
            release(child)
        super().__setattr__(name, value)

    def forward(self, x, *args):
        if isinstance(x, mx.sym.Symbol) and not is_tracing():
            return _compose(self, x, *args)
        return super().forward(x, *args)

    def hybridize(self, active=True, **kwargs):
        if not active:
            warnings.warn(
                f"{name_of(self)} is cast, and a cast net stays hybridized: "
                "undo the cast first with amp.cast(net, 'float32').",
                stacklevel=2,
            )
        super().hybridize(True, **kwargs)

    def cast(self, dtype):
        raise RuntimeError(
            f"{name_of(self)} is cast by gluon_amp, and its own .cast({dtype!r}) would undo the "
            "pins: call amp.cast(net, policy) instead."
        )

    def export(self, path, epoch=0, remove_amp_cast=True):
        if not self._cached_op:
            raise RuntimeError(f"Run {name_of(self)} on some data once before calling export().")
        amp = self._amp
        inference = [key for key in amp.traces if key and key[0] == (False, False)]
        if inference and amp.key[0] != (False, False):
            amp.select(self, inference[-1])  # rather than the graph of a training pass
        if remove_amp_cast:
            return super().export(path, epoch, True)
        plain = self._cached_graph
        try:
            self._cached_graph = amp.graph
            with saved_as_stored(self.collect_params().values()):
                return super().export(path, epoch, False)
        finally:
            self._cached_graph = plain

    def summary(self, *inputs):
        plain = copy.deepcopy(self)
        release(plain)
        plain.hybridize(False)
        plain.summary(*(_map_arrays(x, lambda a: a.astype("float32")) for x in inputs))

    def reset_ctx(self, ctx):
        self._clear_cached_op()
        for param in self.collect_params().values():
            param.reset_ctx(ctx)

    def __reduce_ex__(self, protocol):
        # cached ops are handles into the C++ library, so a copy traces anew
        stock = object.__new__(stock_class(self))
        vars(stock).update({**vars(self), **self._amp.blank, "_cached_op_args": []})
        del stock._amp
        make, args, *rest = stock.__reduce_ex__(protocol)
        state = rest[0] if rest else None
        return _new_block, (make, args), (state, self._amp.path, self._amp.policy)

    def __setstate__(self, copied):
        state, path, policy = copied
        if hasattr(stock_class(self), "__setstate__"):
            super().__setstate__(state)
        else:
            vars(self).update(state or {})
        self._amp = Binding(self, path, policy)


def binding_of(block: Block) -> Optional[Binding]:
    """Return the binding of a block that is cast, or None."""
    return vars(block).get("_amp")


def _new_block(make, args) -> Cast:
    """Rebuild a block as `pickle` and `copy` do, and give it the cast class."""
    block = make(*args)
    block.__class__ = cast_class(Cast, type(block))
    return block


def bind(block: HybridBlock, path: str, policy: Policy) -> None:
    """Make a block one of a cast net."""
    block._clear_cached_op()
    block.__class__ = cast_class(Cast, type(block))
    block._amp = Binding(block, path, policy)


def unbind(block: HybridBlock) -> None:
    """Give a block its own class back; its parameters stay as they are."""
    if isinstance(block, Cast):
        block._clear_cached_op()
        block.__class__ = stock_class(block)
        del block._amp


def release(net: Block) -> None:
    """Undo the cast of a net: its own classes, and float32 parameters.

    Parameters whose Trainer has float32 masters become these, bit for bit.
    """
    for param in net.collect_params().values():
        if dtype_of(param) == "float16":
            cast_parameter(param, "float32")
        unbind_parameter(param)
    statistics.unwatch(net.collect_params().values())
    for _, block in hybrid_blocks(net):
        unbind(block)
        if isinstance(block, SymbolBlock):
            _drop_casts(block)
    net.apply(clear)


def _drop_casts(block: SymbolBlock) -> None:
    """Take `amp_cast` out of a graph that was exported with it, whose dtypes are no longer ours."""
    inputs, symbol = block._cached_graph
    if any(node["op"] == "amp_cast" for node in graph.to_json(symbol)["nodes"]):
        block._cached_graph = inputs, mx.sym.load_json(symbol.tojson(remove_amp_cast=True))


def clear(block: Block) -> None:
    """Forget the graphs made of a block itself."""
    if isinstance(block, HybridBlock):
        block._clear_cached_op()


def _compose(block: HybridBlock, *args):
    """Call a bound block on symbols: its cast graph, read from them.

    A parent that is not cast gets the graph that the device runs, or, while it is being saved, the
    graph that the file holds.
    """
    # Gluon recognizes the NumPy interface by arrays alone
    inputs, symbol = block._get_graph(*_map_arrays(args, _array_for_numpy_symbol))
    form = saved_form()
    if form == "plain":
        symbol = block._cached_graph[1]
    elif form is None and watch_tracing_parent():
        params = block.collect_params().values()
        dtypes = {p.name: dtype_of(p) for p in params}
        devices = {ctx.device_type for p in params for ctx in contexts_of(p)}
        symbol = lower(symbol, {**dict.fromkeys((s.name for s in inputs), "float32"), **dtypes},
                       "gpu" if "gpu" in devices else "cpu", _frozen(params))  # fmt: skip
    elif form is None:
        symbol = _of_any_dtype(symbol)
    composed = copy.copy(symbol)
    flat = [a for a in _flatten(args, "input")[0] if a is not None]
    composed._compose(**{s.name: a for s, a in zip(inputs, flat)})
    outputs = list(composed.as_nd_ndarray())  # NumPy's symbols are not iterable
    if isinstance(composed, mx.symbol.numpy._Symbol):
        outputs = [output.as_np_ndarray() for output in outputs]
    return _regroup(outputs, block._out_format)


def _frozen(params) -> frozenset:
    """Return the names of the parameters that get no gradient in the pass that begins now."""
    if not autograd.is_recording():
        return frozenset()
    return frozenset(p.name for p in params if p.grad_req == "null")


def _array_for_numpy_symbol(argument):
    return mx.np.zeros(()) if isinstance(argument, mx.symbol.numpy._Symbol) else argument


def _plain(symbol: mx.sym.Symbol) -> mx.sym.Symbol:
    """Return a traced symbol without block labels and with float32 variables."""
    attrs = symbol.attr_dict()
    float16 = [n for n in symbol.list_inputs() if attrs.get(n, {}).get("__dtype__") == "2"]
    return graph.apply(symbol, Policy(), dict.fromkeys(float16, "float32"))


def _of_any_dtype(symbol: mx.sym.Symbol) -> mx.sym.Symbol:
    """Return a cast graph whose variables have no dtype of float16, so that it is inferred.

    `Symbol.save` removes the casts, which leaves a float32 graph.
    """
    nodes = graph.to_json(symbol)
    for node in nodes["nodes"]:
        if node["op"] == "null" and node.get("attrs", {}).get("__dtype__") == "2":
            del node["attrs"]["__dtype__"]
    return graph.from_json(nodes, like=symbol)


def name_of(block: Block) -> str:
    """Return what an error message calls a block."""
    return f"{type(block).__name__} {block.name!r}" if block.name else type(block).__name__


def reason_of(error: Exception) -> str:
    """Return the telling line of an error, without MXNet's stack and file names."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    line = lines[0] if lines else type(error).__name__
    return line.split("Check failed: ")[-1].split("MXNetError: ")[-1].strip().rstrip(".")


def _map_arrays(x, change):
    if isinstance(x, (list, tuple)):
        return type(x)(_map_arrays(item, change) for item in x)
    return change(x)
