"""A cast block: its class is a subclass of its own class that runs the cast graph.

The subclass replaces the graph that Gluon traces by the cast graph, lowered for the device. No
class or module of MXNet and no other net changes, the structure of the net stays, and `release`
undoes it.
"""

import copy
import warnings
from typing import Any, Dict, FrozenSet, NamedTuple, Optional, Tuple

import numpy as np

from gluon_amp.casting import statistics
from gluon_amp.casting.classes import Mixin, cast_class, stock_class
from gluon_amp.casting.composing import compose, map_arrays
from gluon_amp.casting.parameters import (
    cast_parameter,
    dtype_of,
    frozen_names,
    saved_as_stored,
    unbind_parameter,
)
from gluon_amp.casting.tracing import Block, HybridBlock, hybrid_blocks, is_tracing, traced
from gluon_amp.dtypes import dtype_name
from gluon_amp.lowering import bfloat16, lower
from gluon_amp.mxnet_internals import flatten
from gluon_amp.policy import Policy, graph

import mxnet as mx
from mxnet import autograd
from mxnet.gluon import SymbolBlock

INPUT_DTYPES = ("float32", "float16")  # float dtypes of the data that a cast net accepts

# The attributes of a block in which Gluon keeps its one trace
TRACE = ("_cached_graph", "_cached_op", "_cached_op_args", "_in_format", "_out_format")


class TraceKey(NamedTuple):
    """The circumstances of a forward pass on which the graph that runs depends.

    A `hybrid_forward` may ask for autograd's mode, as those of detectors do. The lowered graph
    depends on the rest.
    """

    recording: bool
    training: bool
    device: str
    dtypes: Tuple[str, ...]
    frozen: FrozenSet[str]

    @property
    def inference(self) -> bool:
        return not (self.recording or self.training)


class Binding:
    """The policy of a cast block, and the graphs of its traces.

    Attributes
    ----------
    path : str
        The block's path in the net that was cast.
    policy : Policy
    graph : tuple of (list of Symbol, Symbol), or None
        Inputs and cast graph of the current trace, the one that ran last; None before the first.
    nodes : list of graph.Node, or None
        How each operator of that graph runs.
    """

    def __init__(self, block: HybridBlock, path: str, policy: Policy) -> None:
        self.path = path
        self.policy = policy
        # Not empty in a SymbolBlock, which has a graph without being traced
        self._untraced = {name: vars(block)[name] for name in TRACE}
        self.clear()

    def clear(self) -> None:
        """Forget all traces."""
        self.graph = None
        self.nodes = None
        self.lowered = None  # (inputs, lowered graph), only while Gluon builds a cached op from it
        self.key = None  # of the current trace
        self.traces: Dict[Optional[TraceKey], tuple] = {}  # all traces but the current one
        self._parameters = None

    def untraced(self) -> Dict[str, Any]:
        """Return the attributes `TRACE` of a block that has not been traced."""
        return {**self._untraced, "_cached_op_args": []}  # a new list, as Gluon changes it in place

    def parameters_of(self, block: HybridBlock) -> list:
        """Return the block's parameters, kept because `collect_params` takes a millisecond."""
        if self._parameters is None:
            self._parameters = list(block.collect_params().values())
        return self._parameters

    def select(self, block: HybridBlock, key: TraceKey) -> None:
        """Make the trace that belongs to `key` the current one.

        Gluon has room for one trace per block, in the attributes `TRACE`, and runs what is there.
        This exchanges them: the current trace moves to `traces`, and the trace of `key` moves from
        `traces` to the block. If there is none, the block's attributes become those of an untraced
        block, so that Gluon traces it again in the pass that follows.
        """
        if key == self.key:
            return
        # `graph` and `nodes` belong to the trace and move with it
        attributes = {name: vars(block)[name] for name in TRACE}
        self.traces[self.key] = attributes, self.graph, self.nodes
        # `pop`, as each trace has one place: a copy in `traces` would miss what Gluon adds later
        untraced = self.untraced(), None, None
        attributes, self.graph, self.nodes = self.traces.pop(key, untraced)
        vars(block).update(attributes)  # without `Block.__setattr__`
        self.key = key


class Cast(Mixin):
    """Mixed into the class of a cast block, whose attribute `_amp` is its binding."""

    def _get_graph(self, *args):
        binding = self._amp
        if binding.lowered is not None:
            return binding.lowered
        if binding.graph is None:
            inputs, symbol = traced(self, binding.path, lambda: super(Cast, self)._get_graph(*args))
            names = {s.name for s in inputs}
            dtypes = {p.name: dtype_of(p) for p in self.collect_params().values()}
            dtypes = {name: dtype for name, dtype in dtypes.items() if name not in names}
            cast, binding.nodes = graph.plan(symbol, binding.policy, dtypes)
            binding.graph = inputs, cast
            self._cached_graph = inputs, _plain(symbol)  # MXNet saves it
        return binding.graph

    def _build_cache(self, *args):
        binding = self._amp
        inputs, symbol = self._get_graph(*args)
        flat = [a for a in flatten(args, "input")[0] if a is not None]
        dtypes = {p.name: dtype_of(p) for p in self.collect_params().values()}
        dtypes.update({s.name: a.dtype for s, a in zip(inputs, flat)})
        device = flat[0].context.device_type
        frozen = frozen_names(binding.parameters_of(self))
        try:
            binding.lowered = inputs, lower(symbol, dtypes, device, frozen)
        except mx.base.MXNetError as error:
            received = ", ".join(dtype_name(a.dtype) for a in flat)
            raise TypeError(
                f"{name_of(self)} got {received} data, which its operators cannot take "
                f"({reason_of(error)}): pass float32 data, as in x.astype('float32')."
            ) from None
        plain = self._cached_graph
        try:
            super()._build_cache(*args)
        finally:
            binding.lowered = None
            self._cached_graph = plain  # `optimize_for` replaces it by the partitioned graph

    def _call_cached_op(self, *args):
        binding = self._amp
        flat = [a for a in flatten(args, "input")[0] if a is not None]
        dtypes = tuple(dtype_name(a.dtype) for a in flat)
        for array, dtype in zip(flat, dtypes):
            if dtype not in INPUT_DTYPES and not np.issubdtype(array.dtype, np.integer):
                raise TypeError(
                    f"{name_of(self)} got {dtype} data, expected float32 or float16 "
                    "(or integer ids): call .astype('float32') on it."
                )
        device = flat[0].context.device_type
        if binding.policy.compute_dtype == "bfloat16" and device == "gpu":
            bfloat16.check_device("gpu")
        frozen = frozen_names(binding.parameters_of(self))
        mode = autograd.is_recording(), autograd.is_training()
        binding.select(self, TraceKey(*mode, device, dtypes, frozen))
        return super()._call_cached_op(*args)

    def _clear_cached_op(self):
        if "_amp" in vars(self):
            self._amp.clear()
            vars(self).update(self._amp.untraced())
        super()._clear_cached_op()

    def __setattr__(self, name, value):
        child = vars(self).get(name)
        if isinstance(child, Cast) and isinstance(value, Block) and value is not child:
            # Gluon requires a new child to be of the old one's class, so the old one is released
            release(child)
        super().__setattr__(name, value)

    def forward(self, x, *args):
        if isinstance(x, mx.sym.Symbol) and not is_tracing():
            return compose(self, x, *args)
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
        binding = self._amp
        inference = [key for key in binding.traces if key and key.inference]
        if inference and not binding.key.inference:
            binding.select(self, inference[-1])  # rather than the graph of a training pass
        if remove_amp_cast:
            return super().export(path, epoch, True)
        plain = self._cached_graph
        try:
            self._cached_graph = binding.graph
            with saved_as_stored(self.collect_params().values()):
                return super().export(path, epoch, False)
        finally:
            self._cached_graph = plain

    def summary(self, *inputs):
        plain = copy.deepcopy(self)
        release(plain)
        plain.hybridize(False)
        plain.summary(*(map_arrays(x, lambda a: a.astype("float32")) for x in inputs))

    def reset_ctx(self, ctx):
        self._clear_cached_op()
        for param in self.collect_params().values():
            param.reset_ctx(ctx)

    def __reduce_ex__(self, protocol):
        # cached ops are handles into the C++ library, so a copy is traced again
        stock = object.__new__(stock_class(self))
        vars(stock).update({**vars(self), **self._amp.untraced()})
        del vars(stock)["_amp"]
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
    """Create a block as `pickle` and `copy` do, with the cast class."""
    block = make(*args)
    block.__class__ = cast_class(Cast, type(block))
    return block


def bind(block: HybridBlock, path: str, policy: Policy) -> None:
    """Change the class of a block to its cast class, and set its binding."""
    block._clear_cached_op()
    block.__class__ = cast_class(Cast, type(block))
    vars(block)["_amp"] = Binding(block, path, policy)


def unbind(block: HybridBlock) -> None:
    """Restore the class of a block; its parameters do not change."""
    if isinstance(block, Cast):
        block._clear_cached_op()
        block.__class__ = stock_class(block)
        del vars(block)["_amp"]


def release(net: Block) -> None:
    """Undo the cast of a net: restore its classes, and cast its parameters to float32.

    Parameters whose Trainer has float32 masters become equal to them, bit for bit.
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
    """Remove `amp_cast` from a graph that was exported with it, for other dtypes than float32."""
    inputs, symbol = block._cached_graph
    if any(node["op"] == "amp_cast" for node in graph.to_json(symbol)["nodes"]):
        block._cached_graph = inputs, mx.sym.load_json(symbol.tojson(remove_amp_cast=True))


def clear(block: Block) -> None:
    """Forget the traces of a block, without its children's."""
    if isinstance(block, HybridBlock):
        block._clear_cached_op()


def _plain(symbol: mx.sym.Symbol) -> mx.sym.Symbol:
    """Return a traced symbol without block labels and with float32 variables."""
    attrs = symbol.attr_dict()
    float16 = [n for n in symbol.list_inputs() if attrs.get(n, {}).get("__dtype__") == "2"]
    return graph.apply(symbol, Policy(), dict.fromkeys(float16, "float32"))


def name_of(block: Block) -> str:
    """Return the name of a block for error messages."""
    return f"{type(block).__name__} {block.name!r}" if block.name else type(block).__name__


def reason_of(error: Exception) -> str:
    """Return the first line of an error, without MXNet's stack and file names."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    line = lines[0] if lines else type(error).__name__
    return line.split("Check failed: ")[-1].split("MXNetError: ")[-1].strip().rstrip(".")
