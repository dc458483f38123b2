"""The traces of a cast block: which graph runs under which circumstances."""

import weakref
from typing import Any, Dict, FrozenSet, List, NamedTuple, Optional, Set, Tuple

from gluon_amp.base.dtypes import dtype_name
from gluon_amp.casting import statistics
from gluon_amp.casting.arguments import CONSTANTS, arrays_in, constants_of, is_sparse, value_of
from gluon_amp.casting.every_call import GLUONS, Attributes
from gluon_amp.casting.parameters import dtype_of, frozen_names, has_sparse_gradient
from gluon_amp.casting.sharing import add_user
from gluon_amp.casting.tracing import HybridBlock, TraceError, is_tracing, named_blocks, trace
from gluon_amp.lowering.study.delayed_scaling import Scales
from gluon_amp.policy import Policy, cast_pass

import mxnet as mx
from mxnet import autograd

# The attributes of a block in which Gluon keeps its one trace
TRACE = ("_cached_graph", "_cached_op", "_cached_op_args", "_in_format", "_out_format")

# How many combinations of constant arguments and attributes a block traces. More, as those of a
# number that counts steps, would cost a trace at each call, and memory.
MAX_CONSTANTS = 8

_last_change = object()  # a new object after each change of any cast block


# Path and name, and value, of attributes that the user changed after the cast
Attributed = Tuple[Tuple[Tuple[str, str], Any], ...]


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
    attributes: Attributed

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
        # Those of `study.ENDS`, the net's first and last product, that are in the block
        self.ends = ends
        self.child_paths = child_paths or {}  # by name, where they differ from it, as in a slice
        # Slices of containers that contain the block. Their casts end when its cast ends.
        self.slices: weakref.WeakSet = weakref.WeakSet()
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
        self.called: List[HybridBlock] = []  # by the last trace, in this order
        # All values of the attributes that were changed since then, and which one each has
        self._values: Dict[str, list] = {}
        self.attributes: Dict[str, int] = {}
        self.running = False  # as Python code, at this moment
        self.varying: Optional[str] = None  # why the block is not traced: an attribute varies
        self._combinations: Set[tuple] = set()  # of constants and attributes, of all traces
        self._parameters: Optional[list] = None
        # Of the last look at the blocks inside: when it was, and what it found
        self._seen: Any = None
        self._inside: Tuple[Binding, ...] = ()
        self._versions: Optional[List[object]] = None
        self._attributes: Attributed = ()
        # Blocks with a `forward` of their own, which are not cast, and their changed attributes
        self._others = Attributes(())
        self._others_changed: Dict[Tuple[str, str], Any] = {}
        self._changed()
        self.version = _last_change

    def untraced(self) -> Dict[str, Any]:
        """Return the attributes `TRACE` of a block that has not been traced."""
        return {**self._untraced, "_cached_op_args": []}  # a new list, as Gluon changes it in place

    def parameters_of(self, block: HybridBlock) -> list:
        """Return the block's parameters, kept because `collect_params` takes a millisecond."""
        if self._parameters is None:
            self._parameters = list(block.collect_params().values())
        return self._parameters

    def note(self, name: str, old: Any, new: Any) -> None:
        """Note that an attribute of the block was set, which its `hybrid_forward` may read."""
        if name in GLUONS or self.varying or is_tracing():
            return
        changed_in_place = old is new and not isinstance(new, CONSTANTS)
        first = object() if changed_in_place else value_of(old)
        values, value = self._values.setdefault(name, [first]), value_of(new)
        if value not in values:
            values.append(value)
        elif values.index(value) == self.attributes.get(name, 0):
            return
        self.attributes[name] = values.index(value)
        if self.running:
            self.varying = f"it changes its attribute {name!r} at each call"
        elif len(values) > MAX_CONSTANTS:
            self.varying = f"its attribute {name!r} had more than {MAX_CONSTANTS} values"
        self._changed()

    def _changed(self) -> None:
        global _last_change
        _last_change = object()

    def _look_inside(self, block: HybridBlock) -> None:
        """Find what changed inside the block; forget its traces if a child or parameter is new."""
        others = self._others.changed()
        if self._seen is _last_change and not others:
            return
        blocks = list(named_blocks(block, self.path, self.child_paths, live=True))
        self._inside = tuple(vars(b)["_amp"] for _, b in blocks if "_amp" in vars(b))
        versions = [binding.version for binding in self._inside if binding is not self]
        if self._versions not in (None, versions):
            block._clear_cached_op()
        self._seen, self._versions = _last_change, versions
        self._others = Attributes((path, b) for path, b in blocks if "_amp" not in vars(b))
        self._others_changed.update(((path, name), value_of(v)) for path, name, v in others)
        changed = [
            ((binding.path, name), value)
            for binding in self._inside
            for name, value in binding.attributes.items()
            if value != 0  # the first one
        ]
        self._attributes = (*changed, *self._others_changed.items())

    def select_for(self, block: HybridBlock, args: tuple) -> None:
        """Make the trace for a call with these arguments the current one; trace it if it is new.

        Raises `TraceError`.
        """
        self._look_inside(block)
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
            self._attributes,
        )
        combination, combinations = (key.constants, key.attributes), self._combinations
        reasons = [(binding.path, binding.varying) for binding in self._inside if binding.varying]
        if key.constants is None:
            what = "an argument is neither an array nor a constant, such as a number or a string"
            reasons.append((self.path, what))
        elif combination not in combinations and len(combinations) == MAX_CONSTANTS:
            what = "its Python arguments and the attributes inside it had more than"
            reasons.append((self.path, f"{what} {MAX_CONSTANTS} combinations of values"))
        if reasons:
            key = key._replace(constants=None, attributes=())
        self.select(block, key)
        if self.untraceable or reasons:
            raise TraceError(*(self.untraceable or reasons[0]))
        combinations.add(combination)
        if self.graph is None:
            self._trace(block, args, may_freeze=not arrays)
            # where the block's code assigned a child, Gluon has made it forget these
            self.key = key
            self._combinations.add(combination)

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

    def _trace(self, block: HybridBlock, args: tuple, may_freeze: bool) -> None:
        traced = trace(block, self.path, args, self.child_paths, may_freeze)
        inputs, symbol, block._in_format, block._out_format, self.called = traced
        names = {s.name for s in inputs}
        dtypes = {p.name: dtype_of(p) for p in block.collect_params().values()}
        dtypes = {name: dtype for name, dtype in dtypes.items() if name not in names}
        sparse = {p.name for p in self.parameters_of(block) if has_sparse_gradient(p)}
        cast, self.nodes = cast_pass.plan(symbol, self.policy, dtypes, self.ends, sparse)
        self.graph = inputs, cast
        statistics.look(self.parameters_of(block), symbol)
        block._cached_graph = inputs, traced.plain()  # MXNet saves it

    def path_in(self, error: Exception) -> str:
        """Return the path of the block whose operator an error of MXNet names, or the block's."""
        named = (n.block for n in self.nodes or () if f"in operator {n.name}:" in str(error))
        return next(named, self.path)

    def select_to_export(self, block: HybridBlock) -> bool:
        """Select a trace that has run, rather one of inference; return whether there is one."""
        self._look_inside(block)
        run = [key for key, (trace, *_) in self.traces.items() if trace["_cached_op"]]
        if block._cached_op:
            run.append(self.key)
        run = [key for key in run if key is None or key.attributes == self._attributes]
        if run:
            self.select(block, max(run, key=lambda key: key is not None and key.inference))
        return bool(run)
