"""Walk a net's blocks and trace them into symbols, each node labelled with its block's path."""

import inspect
import re
import threading
from types import MappingProxyType
from typing import Callable, Dict, Iterator, List, Mapping, NamedTuple, Tuple

import numpy as np

from gluon_amp import graph
from gluon_amp.base.messages import reason_of
from gluon_amp.base.mxnet_internals import NumpySymbol, RNNLayer, check_same_symbol_type, flatten
from gluon_amp.casting import callers
from gluon_amp.casting.arguments import arrays_in, for_gluon, map_arrays
from gluon_amp.casting.classes import stock_class
from gluon_amp.casting.every_call import (
    CELL_STATES,
    FUNCTION,
    GLUONS,
    Attributes,
    WouldFreeze,
    watch,
)
from gluon_amp.casting.parameters import variable_of

import mxnet as mx
from mxnet import autograd
from mxnet.gluon import Block, HybridBlock
from mxnet.gluon.rnn.rnn_cell import RecurrentCell

NUMPY = (mx.np.ndarray, NumpySymbol)

# The `forward` methods that run the block's graph
GRAPH_FORWARDS = (HybridBlock.forward, mx.gluon.SymbolBlock.forward, RecurrentCell.forward)

CUSTOM = callers.codes(mx.sym.Custom)

_state = threading.local()


class Trace(NamedTuple):
    """What Gluon keeps of a trace: variables of the arrays, the graph, and their structures.

    `called` are the blocks in the order of their calls.
    """

    inputs: list
    symbol: mx.sym.Symbol
    in_format: object
    out_format: object
    called: List[Block]

    def plain(self) -> mx.sym.Symbol:
        """Return the graph without block labels, and in float32, the user's own casts too."""
        return graph.in_float32(graph.without_own_attributes(self.symbol))


class TraceError(ValueError):
    """A block has no graph, mostly because its `hybrid_forward` does not run on symbols.

    `path` is that of the innermost block that failed.
    """

    def __init__(self, path: str, reason: str) -> None:
        self.path, self.reason = path, reason
        super().__init__(
            f"Block {path or 'net'} cannot be traced ({reason}): use only operators of `F` in its "
            "hybrid_forward, no shapes, values or NumPy."
        )


def named_blocks(
    net: Block,
    path: str = "",
    child_paths: Mapping[str, str] = MappingProxyType({}),
    live: bool = False,
) -> Iterator[Tuple[str, Block]]:
    """Yield the path, such as `'features.0'`, and the block of a net and all its descendants.

    `child_paths` are those of children that their names do not give: see `Binding`. With `live`,
    those are left out that the user hybridized, with all inside them; the Python code of the others
    runs at each call if there is no cast.
    """
    binding = vars(net).get("_amp")
    if live and (binding.hybridized if binding else getattr(net, "_active", False)):
        return
    yield path, net
    for name, child in net._children.items():
        at = child_paths.get(name, f"{path}.{name}" if path else name)
        yield from named_blocks(child, at, live=live)


def hybrid_blocks(net: Block) -> Iterator[Tuple[str, HybridBlock]]:
    """Yield path and block, each block once, of all blocks in the net that can be traced."""
    seen = set()
    for path, block in named_blocks(net):
        if _traceable(block) and id(block) not in seen:
            seen.add(id(block))
            yield path, block


def roots(net: Block, path: str = "") -> Iterator[Tuple[str, HybridBlock]]:
    """Yield path and block of the outermost blocks that can be traced."""
    if _traceable(net):
        yield path, net
        return
    for name, child in net._children.items():
        yield from roots(child, f"{path}.{name}" if path else name)


def parameters_of_python_code(net: Block) -> Dict[str, List[mx.gluon.Parameter]]:
    """Return the float parameters that no traceable block has, by the path of their block."""
    inside = {id(p) for _, block in hybrid_blocks(net) for p in _own_parameters(block)}
    found: Dict[str, List[mx.gluon.Parameter]] = {}
    for path, block in named_blocks(net):
        for param in _own_parameters(block):
            if id(param) not in inside and np.dtype(param.dtype).kind == "f":
                inside.add(id(param))
                found.setdefault(path, []).append(param)
    return found


def _own_parameters(block: Block) -> list:
    return [*block._reg_params.values(), *block.params.values()]


def _traceable(block: Block) -> bool:
    """Return whether calling the block runs its graph: a HybridBlock without its own `forward`."""
    return isinstance(block, HybridBlock) and stock_class(block).forward in GRAPH_FORWARDS


class _Label(mx.AttrScope):
    """Labels new nodes with the path of their block, which are of one mode of autograd.

    A graph has no other one, unlike Python code. `mode` is None if the user hybridized the block.

    Nodes of `Custom` get no label, as MXNet passes each attribute of a `Custom` node to the
    constructor of the user's class, also one that is added to the finished node. MXNet calls `get`
    without the operator.
    """

    def __init__(self, path, mode):
        super().__init__(**{graph.BLOCK_ATTR: path})
        self.path, self.mode = path, mode

    def check_mode(self):
        if self.mode not in (None, _mode()):
            raise WouldFreeze("it changes the mode of autograd")

    def get(self, attr):
        self.check_mode()
        return attr or {} if callers.running(CUSTOM, within=1) else super().get(attr)


def _mode():
    return autograd.is_recording(), autograd.is_training()


def trace(
    block: HybridBlock,
    path: str,
    args: tuple,
    child_paths: Mapping[str, str] = MappingProxyType({}),
    may_freeze: bool = True,
) -> Trace:
    """Trace a block as Gluon does, but with arguments that are constants, such as flags.

    Each node has the path of its block as a label; `path` is that of `block` itself. Raises
    `TraceError`; unless it `may_freeze`, also if Python code of a block that the user did not
    hybridize has to run at each call. Then the attributes of the blocks are as before.
    """
    if isinstance(block, mx.gluon.SymbolBlock):
        inputs, symbol = block._cached_graph
        return Trace(inputs, symbol, block._in_format, block._out_format, [block])
    arrays = list(arrays_in(args))
    names = [f"data{k}" for k in range(len(arrays))] if len(arrays) > 1 else ["data"]
    inputs = [
        mx.sym.var(name).as_np_ndarray() if isinstance(a, NUMPY) else mx.sym.var(name)
        for name, a in zip(names, arrays)
    ]
    symbols = iter(inputs)
    arguments = map_arrays(args, lambda _: next(symbols))
    _, in_format = flatten(for_gluon(arguments), "input")
    called: List[Block] = []

    def run() -> Trace:
        params = {name: param.var() for name, param in block._reg_params.items()}
        with block.name_scope():
            out = block.hybrid_forward(mx.sym, *arguments, **params)
        out, out_format = flatten(out, "output")
        symbol = _with_unknown_sizes(mx.sym.Group(out, check_same_symbol_type(out)))
        return Trace(inputs, symbol, in_format, out_format, called)

    # In the mode of the data, also after `npx.reset_np()`: a cast net is traced again for inference
    numpy = any(isinstance(a, NUMPY) for a in arrays)
    shapes, kind = numpy or mx.util.is_np_shape(), numpy or mx.util.is_np_array()
    with mx.util.np_shape(shapes), mx.util.np_array(kind):
        return _labelled(block, path, run, called, child_paths, may_freeze)


def _with_unknown_sizes(symbol: mx.sym.Symbol) -> mx.sym.Symbol:
    """Return a symbol in which a size of 0 in an operator of mx.nd is unknown, as in mx.nd.

    RNN layers create their first states for a batch of size 0. With the shapes of NumPy, an unknown
    size is -1.
    """
    nodes = graph.to_json(symbol) if mx.util.is_np_shape() else {"nodes": []}
    unknown = [node for node in nodes["nodes"] if node["op"] == "_zeros"]
    for node in unknown:
        node["attrs"]["shape"] = re.sub(r"\b0\b", "-1", node["attrs"]["shape"])
    return graph.from_json(nodes, like=symbol) if unknown else symbol


def _labelled(
    block: HybridBlock,
    path: str,
    trace: Callable[[], Trace],
    called: List[Block],
    child_paths: Mapping[str, str],
    may_freeze: bool,
) -> Trace:
    """Return what `trace()` returns, which calls the block on symbols; see the function `trace`.

    The blocks inside it are appended to `called` when they are called.
    """
    for param in block.collect_params().values():
        variable_of(param)  # outside the scope, as a Parameter keeps its variable and its label
    live = [] if may_freeze else list(named_blocks(block, path, child_paths, live=True))
    for label, child in live:
        hooks = [*child._forward_hooks.values(), *child._forward_pre_hooks.values()]
        if child is not block and any(map(is_users, hooks)):
            raise TraceError(label.rpartition(".")[0], "a child has a hook, which gets its arrays")
    modes = {id(child): _mode() for _, child in live}
    ignored = GLUONS - CELL_STATES if isinstance(block, RecurrentCell) else GLUONS
    handles = []
    stack: List[_Label] = []  # of the blocks that are running

    def enter(label, child):
        called.append(child)
        if stack:
            stack[-1].check_mode()
        stack.append(_Label(label, modes.get(id(child))))
        stack[-1].__enter__()

    def leave(*_):
        stack.pop().__exit__(None, None, None)

    def notice(what):
        if what is FUNCTION or stack[-1].mode is not None:  # the user did not hybridize the block
            raise WouldFreeze(what)

    def run():
        before = Attributes(live, ignored)
        try:
            out = trace()
            changed = before.changed()
            if changed and not any(True for _ in arrays_in([value for *_, value in changed])):
                again = Attributes(live, ignored)  # does the next call change them, too?
                out = trace()
                changed = again.changed()
            for label, name, _ in changed:
                raise TraceError(label, f"it changes its attribute {name!r} at each call")
            return out
        except BaseException:
            before.restore()
            raise

    _state.depth = getattr(_state, "depth", 0) + 1
    try:
        for label, child in named_blocks(block, path, child_paths):
            if child is not block:
                before = child.register_forward_pre_hook(
                    lambda child, _, label=label: enter(label, child)
                )
                handles += [before, child.register_forward_hook(leave)]
        enter(path, block)
        with watch(notice):
            return run()
    except TraceError:
        raise
    except (Exception, WouldFreeze) as error:  # whatever the user's code raises
        raise TraceError(stack[-1].path, reason_of(error)) from error
    finally:
        _state.depth -= 1
        for handle in handles:
            handle.detach()
        while stack:  # of the block itself, and of children that raised
            leave()


def is_users(hook: Callable) -> bool:
    """Return whether a hook is not one of this package, whose hooks also get symbols."""
    module = getattr(hook, "__module__", None) or ""  # None for a method in C
    return not module.startswith("gluon_amp.")


def trace_alone(block: HybridBlock, path: str) -> Trace:
    """Trace a block by itself, with variables for its arguments. Raises `TraceError`."""
    try:
        args = _arguments(block)
    except Exception as error:  # whatever the user's code raises
        raise TraceError(path, reason_of(error)) from error
    return trace(block, path, args, may_freeze=False)


def _arguments(block: HybridBlock) -> tuple:
    """Return variables for the arguments of a block without a default, by its signature."""
    variable = mx.sym.var("data")
    variable = variable.as_np_ndarray() if mx.util.is_np_array() else variable
    if isinstance(block, (RecurrentCell, RNNLayer)):
        states = [variable] * len(block.state_info())
        if isinstance(block, RecurrentCell):
            return variable, states
        block.skip_states = False  # as `RNNLayer.__call__` sets it
        return (variable, states, *[variable] * block._use_sequence_length)
    signature = inspect.signature(block.hybrid_forward).parameters.values()
    needed = [p for p in signature if p.kind is p.POSITIONAL_OR_KEYWORD and p.default is p.empty]
    count = sum(p.name not in block._reg_params for p in needed) - 1  # without `F`
    return (variable,) * max(1, count)


def is_tracing() -> bool:
    """Return whether this thread is inside `trace`."""
    return getattr(_state, "depth", 0) > 0
