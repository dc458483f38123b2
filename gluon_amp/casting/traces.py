"""The traces of a cast block: which graph runs under which circumstances."""

import weakref
from typing import Any, Dict, FrozenSet, List, NamedTuple, Optional, Tuple

from gluon_amp import graph
from gluon_amp.base.dtypes import dtype_name
from gluon_amp.casting.arguments import arrays_in, constants_of, is_sparse
from gluon_amp.casting.parameters import dtype_of, frozen_names
from gluon_amp.casting.sharing import add_user
from gluon_amp.casting.tracing import HybridBlock, TraceError, trace
from gluon_amp.lowering.delayed_scaling import Scales
from gluon_amp.policy import Policy, cast_pass

import mxnet as mx
from mxnet import autograd

# The attributes of a block in which Gluon keeps its one trace
TRACE = ("_cached_graph", "_cached_op", "_cached_op_args", "_in_format", "_out_format")

# How many combinations of constant arguments a block traces. More, as those of a number that counts
# steps, would cost a trace at each call, and memory.
MAX_CONSTANTS = 8


class TraceKey(NamedTuple):
    """What the graph of a forward pass depends on.

    A `hybrid_forward` may ask for autograd's mode, as those of detectors do. The lowered graph
    depends on the rest. `device`, `dtypes` and `sparse` are those of the arrays; symbols have none.
    `constants` is None if the Python code runs, as no trace is kept for the arguments.
    """

    recording: bool
    training: bool
    device: str
    dtypes: Tuple[str, ...]
    sparse: Tuple[bool, ...]
    frozen: FrozenSet[str]
    constants: Optional[tuple]

    @property
    def inference(self) -> bool:
        return not (self.recording or self.training)


class Binding:
    """The policy of a cast block, and the graphs of its traces."""

    def __init__(
        self,
        block: HybridBlock,
        path: str,
        policy: Policy,
        ends: Tuple[str, ...],
        child_paths: Optional[Dict[str, str]] = None,
    ) -> None:
        self.path = path  # in the net that was cast
        self.policy = policy
        # Those of `cast_pass.ENDS`, the net's first and last product, that are in the block
        self.ends = ends
        self.child_paths = child_paths or {}  # by name, where they differ from it, as in a slice
        # Slices of containers that contain the block. Their casts end when its cast ends.
        self.slices = weakref.WeakSet()
        self.scales = Scales() if policy.studies else None
        self.hybridized = block._active  # before the cast, or by the user since then
        vars(block)["_active"] = True
        add_user(block)
        # Not empty in a SymbolBlock, which has a graph without being traced
        self._untraced = {name: vars(block)[name] for name in TRACE}
        self.clear()

    def clear(self) -> None:
        """Forget all traces."""
        # Of the current trace, the one that ran last: inputs and cast graph, and how each operator
        # runs; path and reason of the `TraceError` if the block ran as Python code
        self.graph: Optional[Tuple[list, mx.sym.Symbol]] = None
        self.nodes: Optional[List[cast_pass.Node]] = None
        self.untraceable: Optional[Tuple[str, str]] = None
        self.lowered = None  # (inputs, lowered graph), only while Gluon builds a cached op from it
        self.key: Optional[TraceKey] = None  # of the current trace
        self.traces: Dict[Optional[TraceKey], tuple] = {}  # all traces but the current one
        self.called = []  # by the last trace, in this order
        self._constants = set()  # those of all traces
        self._parameters = None

    def untraced(self) -> Dict[str, Any]:
        """Return the attributes `TRACE` of a block that has not been traced."""
        return {**self._untraced, "_cached_op_args": []}  # a new list, as Gluon changes it in place

    def parameters_of(self, block: HybridBlock) -> list:
        """Return the block's parameters, kept because `collect_params` takes a millisecond."""
        if self._parameters is None:
            self._parameters = list(block.collect_params().values())
        return self._parameters

    def select_for(self, block: HybridBlock, args: tuple) -> None:
        """Make the trace for a call with these arguments the current one; trace it if it is new.

        Raises `TraceError`.
        """
        arrays = [a for a in arrays_in(args) if isinstance(a, mx.nd.NDArray)]
        key = TraceKey(
            autograd.is_recording(),
            autograd.is_training(),
            arrays[0].context.device_type if arrays else "",
            tuple(dtype_name(a.dtype) for a in arrays),
            tuple(map(is_sparse, arrays)),
            frozen_names(self.parameters_of(block)),
            # `skip_states` is how an RNN layer passes on whether it was called with states
            constants_of((*args, getattr(block, "skip_states", None))),
        )
        reason = "an argument is neither an array nor a constant, such as a number or a string"
        if key.constants not in (None, *self._constants) and len(self._constants) == MAX_CONSTANTS:
            key = key._replace(constants=None)
            reason = f"its Python arguments had more than {MAX_CONSTANTS} combinations of values"
        self.select(block, key)
        if self.untraceable:
            raise TraceError(*self.untraceable)
        if key.constants is None:
            raise TraceError(self.path, reason)
        self._constants.add(key.constants)
        if self.graph is None:
            self._trace(block, args)

    def select(self, block: HybridBlock, key: Optional[TraceKey]) -> None:
        """Make the trace that belongs to `key` the current one.

        Gluon has room for one trace per block, in the attributes `TRACE`, and runs what is there.
        This exchanges them: the current trace moves to `traces`, and the trace of `key` moves from
        `traces` to the block. If there is none, the block's attributes become those of an untraced
        block.
        """
        if key == self.key:
            return
        # `graph` and the others belong to the trace and move with it
        attributes = {name: vars(block)[name] for name in TRACE}
        self.traces[self.key] = attributes, self.graph, self.nodes, self.untraceable
        # `pop`, as each trace has one place: a copy in `traces` would miss what Gluon adds later
        untraced = self.untraced(), None, None, None
        attributes, self.graph, self.nodes, self.untraceable = self.traces.pop(key, untraced)
        vars(block).update(attributes)  # without `Block.__setattr__`
        self.key = key

    def _trace(self, block: HybridBlock, args: tuple) -> None:
        inputs, symbol, *formats, self.called = trace(block, self.path, args, self.child_paths)
        block._in_format, block._out_format = formats
        names = {s.name for s in inputs}
        dtypes = {p.name: dtype_of(p) for p in block.collect_params().values()}
        dtypes = {name: dtype for name, dtype in dtypes.items() if name not in names}
        cast, self.nodes = cast_pass.plan(symbol, self.policy, dtypes, self.ends)
        self.graph = inputs, cast
        block._cached_graph = inputs, _plain(symbol)  # MXNet saves it

    def select_to_export(self, block: HybridBlock) -> bool:
        """Select a trace that has run, rather one of inference; return whether there is one."""
        run = [key for key, (trace, *_) in self.traces.items() if trace["_cached_op"]]
        if block._cached_op:
            run.append(self.key)
        if run:
            self.select(block, max(run, key=lambda key: key.inference))
        return bool(run)


def _plain(symbol: mx.sym.Symbol) -> mx.sym.Symbol:
    """Return a traced symbol without block labels, and in float32, the user's own casts too."""
    return graph.in_float32(graph.without_own_attributes(symbol))
