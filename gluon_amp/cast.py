"""Bind a policy to one Gluon net, let go again, and describe what runs in which dtype.

Each `HybridBlock` of the net gets a subclass of its own class, which replaces the graph that the
block traces by the cast graph and, where the device needs it, by the lowered one. No MXNet class,
module or other net changes, the net's structure stays, and `cast(net, 'float32')` takes it off.
"""

import contextlib
import copy
import inspect
import sys
import threading
import warnings
from collections import Counter
from typing import Dict, Iterator, List, NamedTuple, Optional, Tuple, Union

import numpy as np

from gluon_amp import graph
from gluon_amp.lowering import lower
from gluon_amp.policy import Policy

import mxnet as mx
from mxnet import autograd
from mxnet.gluon.block import _flatten
from mxnet.gluon.rnn.rnn_cell import RecurrentCell

Block = mx.gluon.Block
HybridBlock = mx.gluon.HybridBlock

FED_DTYPES = ("float32", "float16")  # float dtypes that a cast net takes

_tracing = threading.local()  # .depth > 0: symbols passing through bound blocks are not cast


class Row(NamedTuple):
    """How one operator of a cast net runs. See `describe`."""

    block: str
    node: str
    op: str
    compute_dtype: str
    param_dtypes: Dict[str, str]
    reason: str


class Description:
    """What `describe` returns: `.rows`, a list of `Row`, and a table as its text."""

    def __init__(self, policy: Policy, rows: List[Row]) -> None:
        self.policy = policy
        self.rows = rows

    def __str__(self) -> str:
        head = ("block", "op", "computes in", "parameters", "because")
        lines = [
            (row.block, row.op, row.compute_dtype, _counted(row.param_dtypes), row.reason)
            for row in self.rows
        ]
        widths = [max(len(line[k]) for line in [head, *lines]) for k in range(4)]
        table = [
            "  ".join([*(line[k].ljust(widths[k]) for k in range(4)), line[4]]).rstrip()
            for line in [head, tuple("-" * len(title) for title in head), *lines]
        ]
        ran = Counter(row.compute_dtype for row in self.rows)
        summary = ", ".join(f"{count} in {dtype}" for dtype, count in ran.most_common())
        return "\n".join([*table, f"{len(self.rows)} operators: {summary}"])


def cast(net: Block, policy: Union[str, Policy] = "float16") -> Block:
    """Let a net compute as a policy says, in place, and return it.

    Works before or after `initialize` and `hybridize`, on a `HybridBlock`, a `SymbolBlock`, or a
    plain `Block`, whose largest `HybridBlock` parts are cast, each with outputs in the policy's
    output dtype, so that the Block's own Python code sees one dtype. The net is hybridized. Cast
    again, after changing the net or to change the policy; `cast(net, 'float32')` undoes it, giving
    the parameters the float32 masters of their `amp.Trainer`, bit for bit, if they have one.

    Parameters
    ----------
    net : Block
    policy : str or Policy
        A preset (`'float16'`, `'mixed_float16'`, `'bfloat16'`, `'float32'`), a string such as
        `'params=float16,compute=float16'`, or a `Policy`.

    Returns
    -------
    Block
        `net`. Parameters that only matrix products read are in the policy's `param_dtype`, all
        others in float32. It takes float32 and float16 data (and integers for ids), and returns
        the policy's output dtype.

    Raises
    ------
    TypeError
        `net` is no Block, has no HybridBlock in it, or has float64 or trainable integer parameters.
    ValueError
        Unknown or contradictory policy; bfloat16 on a GPU; a forward that cannot be traced.
    RuntimeError
        A Trainer of these parameters is in use already.

    Nothing is changed where an error is raised.

    Examples
    --------
    >>> import gluon_amp as amp
    >>> from mxnet.gluon import nn
    >>> net = amp.cast(nn.Dense(2, in_units=3), 'float16')
    >>> net.weight.dtype
    'float16'
    """
    policy = Policy.parse(policy)
    if not isinstance(net, Block):
        raise TypeError(f"cast() got a {type(net).__name__}, expected a gluon Block.")
    hybrid = list(_hybrid_blocks(net))
    if not hybrid:
        raise TypeError(
            f"{type(net).__name__} holds no HybridBlock, so it has no graph to cast: "
            "write its layers as HybridBlocks."
        )
    params = list(net.collect_params().values())
    undo = policy.compute_dtype == "float32"
    _check_parameters(params)
    _check_pins(policy, hybrid)
    if policy.compute_dtype == "bfloat16":
        _check_bfloat16(params)
    dtypes = _parameter_dtypes(policy, hybrid)
    changed = [p for p in params if _dtype(p) != dtypes.get(id(p), _dtype(p))]
    if not undo:
        compute = {getattr(p, "_amp_compute_dtype", "float32") for p in params}
        if changed or compute != {policy.compute_dtype}:
            _check_no_trainer(params)
        for path, block in _roots(net):
            _try_trace(path, block)

    masters = _masters(params)
    for param in changed:
        _cast_parameter(param, dtypes[id(param)], masters)
    for param in params:
        if policy.compute_dtype == "bfloat16":
            _to_plain_layout(param)
        param._amp_compute_dtype = policy.compute_dtype
        if undo:
            del param._amp_compute_dtype
    for path, block in hybrid:
        _unbind(block)
        if not undo:
            _bind(block, path, policy)
    for _, block in _roots(net):
        if not undo and not block._active:
            block.hybridize()
        else:
            block.apply(_clear)
    return net


def describe(net: Block, *inputs: mx.nd.NDArray) -> Description:
    """Tell, operator by operator, what a net computes in, and why where it is not what was asked.

    Parameters
    ----------
    net : Block
        A net, cast or not.
    inputs : NDArray
        Inputs as for `net(*inputs)`; not needed once the net has been called.

    Returns
    -------
    Description
        `.rows` has, for each operator in the order of the graph, its block's path, its node's name,
        the operator, the dtype it computes in ('as fed' where only its inputs can tell, 'none'
        where nothing is ever cast), the dtypes of the parameters it reads, and the reason where a
        pin or the table keeps it from the policy's compute dtype. `str()` is a table.

    Raises
    ------
    ValueError
        Called without inputs on a net that has never run.
    """
    if inputs:
        with autograd.predict_mode():
            net(*inputs)
    rows, policy = [], Policy()
    for path, block in _roots(net):
        if isinstance(block, _Cast):
            policy = block._amp.policy
            nodes = block._amp.nodes
        else:
            nodes = _plain_nodes(path, block, inputs if block is net else ())
        if nodes is None:
            raise ValueError(
                f"describe() needs inputs, since {type(block).__name__} {path or 'net'} has never "
                "run: call describe(net, x) with x as for net(x)."
            )
        rows += [_row(node, policy) for node in nodes]
    return Description(policy, rows)


# ------------------------------------------------------------------------------------- binding


# What Gluon keeps of one trace of a block
TRACE = ("_cached_graph", "_cached_op", "_cached_op_args", "_in_format", "_out_format")


class _Binding:
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

    def select(self, block: HybridBlock, key: tuple) -> None:
        """Let the block continue with the trace that belongs to `key`, or with none."""
        if key == self.key:
            return
        self.traces[self.key] = {n: vars(block)[n] for n in TRACE}, self.graph, self.nodes
        blank = {**self.blank, "_cached_op_args": []}
        trace, self.graph, self.nodes = self.traces.pop(key, (blank, None, None))
        vars(block).update(trace)
        self.key = key


class _Cast:
    """Mixed into the class of a block that is cast; `self._amp` is its binding."""

    def _get_graph(self, *args):
        amp = self._amp
        if amp.lowered is not None:
            return amp.lowered
        if amp.graph is None:
            inputs, symbol = _traced(self, amp.path, lambda: super(_Cast, self)._get_graph(*args))
            names = {s.name for s in inputs}
            dtypes = {p.name: _dtype(p) for p in self.collect_params().values()}
            dtypes = {name: dtype for name, dtype in dtypes.items() if name not in names}
            symbol, amp.nodes = graph.plan(symbol, amp.policy, dtypes)
            amp.graph = inputs, symbol
        return amp.graph

    def _build_cache(self, *args):
        amp = self._amp
        inputs, symbol = self._get_graph(*args)
        flat = [a for a in _flatten(args, "input")[0] if a is not None]
        dtypes = {p.name: _dtype(p) for p in self.collect_params().values()}
        dtypes.update({s.name: a.dtype for s, a in zip(inputs, flat)})
        try:
            amp.lowered = inputs, lower(symbol, dtypes, flat[0].context.device_type)
        except mx.base.MXNetError as error:
            fed = ", ".join(graph.dtype_name(a.dtype) for a in flat)
            raise TypeError(
                f"{_name(self)} got {fed} data, which its operators cannot take "
                f"({_reason(error)}): pass float32 data, as in x.astype('float32')."
            ) from None
        try:
            super()._build_cache(*args)
        finally:
            amp.lowered = None

    def _call_cached_op(self, *args):
        amp = self._amp
        flat = [a for a in _flatten(args, "input")[0] if a is not None]
        for array in flat:
            dtype = graph.dtype_name(array.dtype)
            if dtype not in FED_DTYPES and not np.issubdtype(array.dtype, np.integer):
                raise TypeError(
                    f"{_name(self)} got {dtype} data, expected float32 or float16 "
                    "(or integer ids): call .astype('float32') on it."
                )
        if autograd.is_recording() and autograd.is_training():
            _tell_trainers(self)
        device = flat[0].context.device_type
        if amp.policy.compute_dtype == "bfloat16" and device == "gpu":
            _check_bfloat16_device("gpu")
        mode = autograd.is_recording(), autograd.is_training()
        amp.select(self, (mode, device, *(np.dtype(a.dtype).name for a in flat)))
        return super()._call_cached_op(*args)

    def _clear_cached_op(self):
        if "_amp" in vars(self):
            self._amp.clear()
            vars(self).update({**self._amp.blank, "_cached_op_args": []})
        super()._clear_cached_op()

    def __setattr__(self, name, value):
        child = vars(self).get(name)
        if isinstance(child, _Cast) and isinstance(value, Block) and value is not child:
            # Gluon wants a child replaced by one of its class, so the old one leaves the cast
            cast(child, "float32")
        super().__setattr__(name, value)

    def forward(self, x, *args):
        if isinstance(x, mx.sym.Symbol) and not getattr(_tracing, "depth", 0):
            return _compose(self, x, *args)
        return super().forward(x, *args)

    def hybridize(self, active=True, **kwargs):
        if not active:
            warnings.warn(
                f"{_name(self)} is cast, and a cast net stays hybridized: "
                "undo the cast first with amp.cast(net, 'float32').",
                stacklevel=2,
            )
        super().hybridize(True, **kwargs)

    def cast(self, dtype):
        raise RuntimeError(
            f"{_name(self)} is cast by gluon_amp, and its own .cast({dtype!r}) would undo the "
            "pins: call amp.cast(net, policy) instead."
        )

    def save_parameters(self, filename, deduplicate=False):
        with _widened(self.collect_params().values()):
            super().save_parameters(filename, deduplicate)

    def load_parameters(
        self, filename, ctx=None, allow_missing=False, ignore_extra=False, cast_dtype=True,
        dtype_source="current",
    ):  # fmt: skip
        super().load_parameters(
            filename, ctx, allow_missing, ignore_extra, cast_dtype, dtype_source
        )

    def export(self, path, epoch=0, remove_amp_cast=True):
        if not self._cached_op:
            raise RuntimeError(f"Run {_name(self)} on some data once before calling export().")
        amp = self._amp
        inference = [key for key in amp.traces if key and key[0] == (False, False)]
        if inference and amp.key[0] != (False, False):
            amp.select(self, inference[-1])  # rather than the graph of a training pass
        raw = self._cached_graph
        try:
            if remove_amp_cast:
                self._cached_graph = raw[0], _with_dtype_attrs(raw[1])
                with _widened(self.collect_params().values()):
                    return super().export(path, epoch, True)
            self._cached_graph = amp.graph
            return super().export(path, epoch, False)
        finally:
            self._cached_graph = raw

    def summary(self, *inputs):
        plain = cast(copy.deepcopy(self), "float32")
        plain.hybridize(False)
        plain.summary(*(_map_arrays(x, lambda a: a.astype("float32")) for x in inputs))

    def reset_ctx(self, ctx):
        self._clear_cached_op()
        for param in self.collect_params().values():
            param.reset_ctx(ctx)

    def __deepcopy__(self, memo):
        # cached ops are handles into the C++ library, and a Trainer belongs to one net
        for param in self.collect_params().values():
            memo[id(param._trainer)] = None
        twin = type(self).__new__(type(self))
        memo[id(self)] = twin
        for key, value in vars(self).items():
            if key != "_amp":
                value = self._amp.blank.get(key, value)
                object.__setattr__(twin, key, copy.deepcopy(value, memo))
        twin._amp = _Binding(twin, self._amp.path, self._amp.policy)
        return twin


_bound_classes = {}


def _bind(block: HybridBlock, path: str, policy: Policy) -> None:
    base = type(block)
    if base not in _bound_classes:
        members = {"__module__": base.__module__, "__doc__": base.__doc__}
        _bound_classes[base] = type(base.__name__, (_Cast, base), members)
    block._clear_cached_op()
    block.__class__ = _bound_classes[base]
    block._amp = _Binding(block, path, policy)


def _unbind(block: HybridBlock) -> None:
    if isinstance(block, _Cast):
        block._clear_cached_op()
        block.__class__ = type(block).__mro__[2]
        del block._amp


def _clear(block: Block) -> None:
    if isinstance(block, HybridBlock):
        block._clear_cached_op()


def _hybrid_blocks(net: Block) -> Iterator[Tuple[str, HybridBlock]]:
    """Yield path and block of everything in the net that a graph can be made of."""
    seen = set()
    for path, block in _named_blocks(net):
        if _traceable(block) and id(block) not in seen:
            seen.add(id(block))
            yield path, block


def _roots(net: Block, path: str = "") -> Iterator[Tuple[str, HybridBlock]]:
    """Yield path and block of the largest parts that a graph can be made of."""
    if _traceable(net):
        yield path, net
        return
    for name, child in net._children.items():
        yield from _roots(child, f"{path}.{name}" if path else name)


def _named_blocks(net: Block, path: str = "") -> Iterator[Tuple[str, Block]]:
    yield path, net
    for name, child in net._children.items():
        yield from _named_blocks(child, f"{path}.{name}" if path else name)


def _traceable(block: Block) -> bool:
    """Return whether calling the block runs its graph: a HybridBlock without its own `forward`."""
    return isinstance(block, HybridBlock) and type(block).forward in (
        HybridBlock.forward,
        mx.gluon.SymbolBlock.forward,
        RecurrentCell.forward,
        _Cast.forward,
    )


# ------------------------------------------------------------------------------------- tracing


def _traced(block: HybridBlock, path: str, trace):
    """Return what `trace` returns, each node labelled with the path of its block."""
    scope = mx.AttrScope._current
    outside = getattr(scope, "value", None)
    for param in block.collect_params().values():
        param.var()  # made outside the scope: a Parameter keeps its variable, and so its attributes
    handles = []
    stack = []

    def enter(label):
        attrs = mx.AttrScope(**{graph.BLOCK_ATTR: label})
        attrs.__enter__()
        stack.append(attrs)

    def leave(*_):
        stack.pop().__exit__(None, None, None)

    _tracing.depth = getattr(_tracing, "depth", 0) + 1
    try:
        for label, child in _named_blocks(block, path):
            if child is not block:
                before = child.register_forward_pre_hook(lambda *_, label=label: enter(label))
                handles += [before, child.register_forward_hook(leave)]
        enter(path)
        return trace()
    finally:
        _tracing.depth -= 1
        for handle in handles:
            handle.detach()
        if outside is not None:
            scope.value = outside
        elif hasattr(scope, "value"):
            del scope.value


def _symbol_of(path: str, block: HybridBlock) -> Optional[Tuple[mx.sym.Symbol, set]]:
    """Trace a block by itself; None where its inputs cannot be told from its signature."""
    if isinstance(block, mx.gluon.SymbolBlock):
        inputs, symbol = block._cached_graph
        return symbol, {s.name for s in inputs}
    args = _symbol_inputs(block)
    out = _traced(block, path, lambda: Block.__call__(block, *args))
    names = {s.name for s in _flatten(args, "input")[0]}
    return mx.sym.Group(_flatten(out, "output")[0]), names


def _symbol_inputs(block: HybridBlock) -> list:
    if isinstance(block, RecurrentCell):
        states = [mx.sym.var(f"_state{k}") for k in range(len(block.state_info()))]
        return [mx.sym.var("_data"), states]
    if isinstance(block, mx.gluon.rnn.rnn_layer._RNNLayer):
        states = [mx.sym.var(f"_state{k}") for k in range(len(block.state_info()))]
        block.skip_states = False  # set by the layer's own __call__
        return [mx.sym.var("_data"), states, *([mx.sym.var("_len")] * block._use_sequence_length)]
    signature = inspect.signature(block.hybrid_forward).parameters.values()
    needed = [
        p.name
        for p in signature
        if p.kind is p.POSITIONAL_OR_KEYWORD
        and p.default is p.empty
        and p.name not in block._reg_params
    ]
    return [mx.sym.var(f"_data{k}") for k in range(max(1, len(needed) - 1))]  # less `F`


def _try_trace(path: str, block: HybridBlock) -> None:
    """Refuse a forward that needs values, shapes or NumPy: it cannot become a graph."""
    try:
        _symbol_of(path, block)
    except (mx.base.NotImplementedForSymbol, AttributeError) as error:
        if isinstance(error, AttributeError) and "symbol" not in str(error).lower():
            return  # our guess of its inputs was wrong; its first call tells
        raise ValueError(
            f"{_name(block)} cannot be cast, because its hybrid_forward does not trace "
            f"({_reason(error)}): use only operators of `F` in it, no shapes, values or NumPy."
        ) from None
    except Exception:
        return  # likewise


def _compose(block: HybridBlock, *args):
    """Call a bound block on symbols: its cast graph, read from them."""
    inputs, symbol = block._get_graph(*args)
    composed = copy.copy(symbol)
    flat = [a for a in _flatten(args, "input")[0] if a is not None]
    composed._compose(**{s.name: a for s, a in zip(inputs, flat)})
    return mx.gluon.block._regroup(list(composed), block._out_format)[0]


def _plain_nodes(path: str, block: HybridBlock, inputs) -> Optional[list]:
    if not inputs and not block._cached_graph:
        return None
    _, symbol = _traced(block, path, lambda: HybridBlock._get_graph(block, *inputs))
    return graph.plan(symbol, Policy(), dict.fromkeys(block.collect_params(), "float32"))[1]


# ---------------------------------------------------------------------------------- parameters


def _parameter_dtypes(policy: Policy, hybrid: list) -> Dict[int, str]:
    """Return the dtype each parameter is to have, by its id; those that it leaves out stay."""
    dtypes = {}
    for path, block in hybrid:
        own = [p for p in block._reg_params.values() if _dtype(p) in FED_DTYPES]
        if not own:
            continue
        stored = {}
        if policy.param_dtype != "float32":
            # where tracing fails, float32 is always right: the graph casts it
            with contextlib.suppress(Exception):
                symbol, inputs = _symbol_of(path, block)
                stored = graph.parameter_dtypes(symbol, policy, inputs)
        for param in own:
            wanted = stored.get(param.name, "float32")
            # a parameter that two blocks share is float16 only where both read it so
            dtypes[id(param)] = wanted if dtypes.get(id(param), wanted) == wanted else "float32"
    return dtypes


def _cast_parameter(param, dtype: str, masters: Dict[str, mx.nd.NDArray]) -> None:
    param.cast(dtype)
    param._var = None  # a Parameter keeps its variable, with the old dtype
    if dtype == "float32" and param.name in masters:
        param.set_data(masters[param.name])


def _to_plain_layout(param) -> None:
    """Take a parameter out of oneDNN's own layout, in which float32 inference leaves weights.

    oneDNN cannot convert some of these layouts (depthwise convolutions') to bfloat16.
    """
    if param._data is None:
        return
    with autograd.pause():
        param._data = [mx.nd.array(d.asnumpy(), d.context, d.dtype) for d in param._data]
        if param._grad is not None:
            autograd.mark_variables(param._data, param._grad, param.grad_req)


def _masters(params) -> Dict[str, mx.nd.NDArray]:
    """Return the float32 masters that Trainers hold of these parameters, by name."""
    trainers = {id(p._trainer): p._trainer for p in params if p._trainer is not None}
    masters = {}
    for trainer in trainers.values():
        if hasattr(trainer, "master_params"):
            masters.update(trainer.master_params())
    return masters


@contextlib.contextmanager
def _widened(params):
    """Let the parameters be their float32 masters (or themselves in float32) for a while."""
    low = [p for p in params if _dtype(p) == "float16" and p._data is not None]
    masters = _masters(low)
    kept = [(p, p._data, p.dtype) for p in low]
    try:
        for p in low:
            wide = masters.get(p.name)
            p._data = [(d if wide is None else wide).astype("float32") for d in p._data]
            p._dtype = np.float32
        yield
    finally:
        for p, data, dtype in kept:
            p._data = data
            p._dtype = dtype


def _with_dtype_attrs(symbol: mx.sym.Symbol) -> mx.sym.Symbol:
    """Return the symbol without block labels and with float32 variables."""
    plain = Policy()
    names = symbol.list_inputs()
    marked = {n: "float32" for n in names if symbol.attr_dict().get(n, {}).get("__dtype__") == "2"}
    return graph.apply(symbol, plain, marked)


def _tell_trainers(block: HybridBlock) -> None:
    """Let Trainers keep the running statistics that this training pass is about to change."""
    params = list(block.collect_params().values())
    trainers = {id(p._trainer): p._trainer for p in params if p._trainer is not None}
    for trainer in trainers.values():
        if hasattr(trainer, "_before_forward"):
            trainer._before_forward([p for p in params if not p._differentiable])


# ---------------------------------------------------------------------------- checks and names


def _check_parameters(params) -> None:
    for param in params:
        dtype = _dtype(param)
        if dtype in FED_DTYPES or (param.grad_req == "null" and dtype != "float64"):
            continue
        raise TypeError(
            f"Parameter {param.name} is {dtype}, expected float32: "
            "cast it first, as in param.cast('float32')."
        )


def _check_pins(policy: Policy, hybrid: list) -> None:
    """Refuse patterns that match no block or pin one block both ways."""
    labels = [(path, block.prefix) for path, block in hybrid]
    nodes = [
        ("", node)
        for _, block in hybrid
        if isinstance(block, mx.gluon.SymbolBlock)
        for node in block._cached_graph[1].get_internals().list_outputs()
    ]
    policy.check_blocks([*labels, *nodes])


def _check_no_trainer(params) -> None:
    trainers = {id(p._trainer): p._trainer for p in params if p._trainer is not None}
    while trainers:
        _, trainer = trainers.popitem()
        held_by_params = sum(p._trainer is trainer for p in trainer._params)
        # the two others: the name `trainer` here and getrefcount's own argument
        if sys.getrefcount(trainer) > held_by_params + 2:
            raise RuntimeError(
                f"A {type(trainer).__name__} of these parameters was built before the cast: build "
                "it after amp.cast (and `del` the old one first if it has done its work)."
            )


def _check_bfloat16(params) -> None:
    for param in params:
        ctxs = param._ctx_list or (param._deferred_init[1] if param._deferred_init else [])
        for ctx in ctxs or [mx.current_context()]:
            _check_bfloat16_device(mx.Context(ctx).device_type)


def _check_bfloat16_device(device_type: str) -> None:
    if device_type == "gpu":
        raise ValueError(
            "bfloat16 cannot run on a GPU: MXNet 1.9.1 has no bfloat16 kernels there; "
            "use policy 'float16' or 'mixed_float16'."
        )
    if not _cpu_has_bfloat16():
        raise ValueError(
            "bfloat16 cannot run on this CPU: MXNet's oneDNN needs AVX512 for it; "
            "use policy 'float16', which is emulated on any CPU."
        )


def _cpu_has_bfloat16() -> bool:
    if not hasattr(_cpu_has_bfloat16, "answer"):
        # NDArray functions take MXNet's structured dtype; only graphs take the name 'bfloat16'
        bfloat16 = np.dtype([("bfloat16", np.uint16)])
        one = mx.nd.amp_cast(mx.nd.ones((2, 2), ctx=mx.cpu()), dtype=bfloat16)
        try:
            product = mx.nd.FullyConnected(one, one, no_bias=True, num_hidden=2)
            answer = float(mx.nd.amp_cast(product, dtype="float32").sum().asscalar()) == 8.0
        except mx.base.MXNetError:
            answer = False
        _cpu_has_bfloat16.answer = answer
    return _cpu_has_bfloat16.answer


def _dtype(param) -> str:
    return graph.dtype_name(param.dtype)


def _name(block: Block) -> str:
    return f"{type(block).__name__} {block.name!r}" if block.name else type(block).__name__


def _reason(error: Exception) -> str:
    """Return the telling line of an error, without MXNet's stack and file names."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    line = lines[0] if lines else type(error).__name__
    return line.split("Check failed: ")[-1].split("MXNetError: ")[-1].strip().rstrip(".")


def _counted(dtypes: Dict[str, str]) -> str:
    counts = Counter(dtypes.values())
    return " ".join(f"{count}×{dtype}" for dtype, count in sorted(counts.items()))


def _row(node: graph.Node, policy: Policy) -> Row:
    kind, reason, pinned = node.decision
    dtype = {"integer": "none", "norm": "float32"}.get(kind, node.dtype or "as fed")
    telling = pinned or (policy.compute_dtype != "float32" and kind in ("float32", "norm"))
    return Row(node.block, node.name, node.op, dtype, node.params, reason if telling else "")


def _map_arrays(x, change):
    if isinstance(x, (list, tuple)):
        return type(x)(_map_arrays(item, change) for item in x)
    return change(x)
