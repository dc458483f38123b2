"""Cast a net in place: decide each parameter's dtype, check all of it, and bind the blocks."""

import warnings
import weakref
from typing import Dict, NoReturn, Tuple, Union

from gluon_amp import graph, kernels
from gluon_amp.base.messages import first_few
from gluon_amp.casting.binding import (
    INPUT_DTYPES,
    bind,
    binding_of,
    clear,
    name_of,
    release,
    unbind,
)
from gluon_amp.casting.parameters import (
    bind_parameter,
    cast_parameter,
    contexts_of,
    dtype_of,
    has_sparse_gradient,
    to_plain_layout,
)
from gluon_amp.casting.sharing import not_shared
from gluon_amp.casting.stale_trainer import guard_trainers
from gluon_amp.casting.tracing import (
    Block,
    TraceError,
    hybrid_blocks,
    parameters_of_python_code,
    roots,
    trace_alone,
)
from gluon_amp.lowering import check_device
from gluon_amp.policy import Policy, cast_pass, study

import mxnet as mx
from mxnet import autograd


def cast(net: Block, policy: Union[str, type, Policy] = "float16", **others: NoReturn) -> Block:
    """Cast a net in place, so that it computes in the dtypes of a policy, and return it.

    Works before or after `initialize` and `hybridize`; a cast net is always hybridized. The net is
    a `HybridBlock`, a `SymbolBlock` or a plain `Block`. Of a plain Block, the outermost
    HybridBlocks are cast. Their outputs are in the policy's output dtype, so that the Block's
    Python code sees one dtype. Parameters of its own stay as they are, and a warning names them. A
    HybridBlock whose `hybrid_forward` needs shapes or values cannot be traced: it and the blocks
    that contain it run as Python code, with a warning, and the blocks inside them are cast. After a
    change of the net, or to change the policy, call `cast` again.
    `cast(net, 'float32')` undoes the cast: parameters whose Trainer has float32 masters become
    equal to them, bit for bit.

    A seed gives a cast net the weights that it gives the float32 net, rounded once.

    All functions that save or load the net's parameters write and read float32: the masters, or
    without a Trainer the parameters cast to float32. Copies by `copy.deepcopy` and `pickle` are
    cast too and have no Trainer.

    A parameter that another cast net shares keeps its dtype. A net that is not cast may share
    parameters with a cast one: it reads float16 parameters in float32.

    Parameters
    ----------
    net : Block
        The net to cast; it is changed.
    policy : str, type or Policy
        A preset (`'float16'`, `'mixed_float16'`, `'bfloat16'`, `'float32'`), a string such as
        `'params=float16,compute=float16'`, a type such as ``numpy.float16``, or a `Policy`.

    Returns
    -------
    Block
        `net`. Parameters that only matrix products read are in the policy's `param_dtype`, all
        others in float32. Inputs may be float32, float16, integer ids or booleans. Outputs are in
        the policy's output dtype.

    Raises
    ------
    TypeError
        `net` is not a Block, contains no HybridBlock, or has trainable parameters in float64 or
        of integers; or an argument is unknown.
    ValueError
        The policy is unknown or contradictory, bfloat16 was requested on a GPU, or 'float32' for a
        net whose own Python code casts to float16 what float32 parameters meet.
    RuntimeError
        Autograd is recording.

    An error leaves the net unchanged. A Trainer that was built before the cast raises a
    `RuntimeError` at its next step.

    Examples
    --------
    >>> import gluon_amp as amp
    >>> from mxnet.gluon import nn
    >>> net = amp.cast(nn.Dense(2, in_units=3), 'float16')
    >>> net.weight.dtype
    'float16'
    """
    for name in others:
        raise TypeError(
            f"cast() has no argument {name!r}: the policy stands second, amp.cast(net, 'float16')."
        )
    policy = Policy.parse(policy)
    if not isinstance(net, Block):
        raise TypeError(f"cast() got a {type(net).__name__}, expected a gluon Block.")
    if autograd.is_recording():
        raise RuntimeError(
            f"cast() was called inside autograd.record(), where {name_of(net)} would lose the "
            "gradients recorded so far: call amp.cast before the record scope."
        )
    hybrid = list(hybrid_blocks(net))
    if not hybrid:
        raise TypeError(
            f"{type(net).__name__} holds no HybridBlock, so it has no graph to cast: "
            "write its layers as HybridBlocks."
        )
    if policy.is_float32:
        _check_own_casts(net)
        release(net)
        return net
    params = list(net.collect_params().values())
    _check_parameters(params)
    _check_pins(policy, hybrid)
    _check_devices(policy, params)
    dtypes = _parameter_dtypes(policy, hybrid)
    own = not_shared(params, [block for _, block in hybrid])
    changed = [p for p in own if dtype_of(p) != dtypes.get(id(p), dtype_of(p))]

    # Nothing above changes the net, and nothing below raises. The order matters:
    # - `guard_trainers` records the dtypes from before the cast, so it comes first.
    # - All blocks are unbound before one is bound: the end of a block's cast also ends that of the
    #   slices which have the block, and these may be blocks of this net.
    guard_trainers(params)
    for param in changed:
        cast_parameter(param, dtypes[id(param)])
    for param in own:
        if policy.compute_dtype == "bfloat16":
            to_plain_layout(param)
        bind_parameter(param, policy.gradient_dtype)
    for _, block in hybrid:
        unbind(block)
    ends = _ends(hybrid)
    for path, block in hybrid:
        bind(block, path, policy, ends[path])
    net.apply(clear)
    # The whole net alone, not its blocks: a slice of a container is a block, and goes at each call.
    weakref.finalize(net, kernels.forget_weights).atexit = False
    outside = [p.name for params in parameters_of_python_code(net).values() for p in params]
    if outside:
        warnings.warn(
            f"The cast leaves out {first_few(outside)}, which Python code of plain Blocks "
            "uses: write these Blocks as HybridBlocks with a hybrid_forward.",
            stacklevel=2,
        )
    return net


def policy_of(net: Block) -> Policy:
    """Return the policy by which a net was cast; the float32 policy if it was not.

    Parameters
    ----------
    net : Block
        A net, on which `cast` was called or not.

    Raises
    ------
    TypeError
        `net` is not a Block.
    ValueError
        Parts of the net have different policies.

    Examples
    --------
    >>> import gluon_amp as amp
    >>> from mxnet.gluon import nn
    >>> amp.policy_of(amp.cast(nn.Dense(2), 'mixed_float16'))
    Policy('mixed_float16')
    """
    if not isinstance(net, Block):
        raise TypeError(f"policy_of() got a {type(net).__name__}, expected a gluon Block.")
    paths: Dict[Policy, str] = {}
    for path, block in hybrid_blocks(net):
        binding = binding_of(block)
        paths.setdefault(Policy() if binding is None else binding.policy, path or "the net itself")
    if len(paths) > 1:
        parts = " and ".join(f"{path} has {policy!r}" for policy, path in paths.items())
        raise ValueError(f"The net has no one policy: {parts}; ask for that of one part.")
    return next(iter(paths), Policy())


def _ends(hybrid: list) -> Dict[str, Tuple[str, ...]]:
    """Return which ends of the net each block contains, by its path: see `study.ENDS`.

    They are those of the first and the last block with a matrix, as a net may run as many graphs.
    """
    layers = [
        f"{path}."
        for path, block in hybrid
        if any(len(p.shape or ()) > 1 for p in block._reg_params.values())
    ] or [""]
    places = list(zip(study.ENDS, (layers[0], layers[-1])))
    return {
        path: tuple(end for end, at in places if at.startswith(f"{path}." if path else ""))
        for path, _ in hybrid
    }


def _parameter_dtypes(policy: Policy, hybrid: list) -> Dict[int, str]:
    """Return the new dtype of each parameter, by its id; parameters not in it do not change."""
    dtypes: Dict[int, str] = {}
    for path, block in hybrid:
        own = [p for p in block._reg_params.values() if dtype_of(p) in INPUT_DTYPES]
        if not own:
            continue
        stored = {}
        if policy.param_dtype != "float32":
            try:
                traced = trace_alone(block, path)
            except TraceError:
                pass  # float32 is always correct: a graph casts it, and Python code reads it
            else:
                inputs = {variable.name for variable in traced.inputs}
                sparse = {param.name for param in own if has_sparse_gradient(param)}
                stored = cast_pass.parameter_dtypes(traced.symbol, policy, inputs, sparse)
        for param in own:
            wanted = stored.get(param.name, "float32")
            # a parameter that two blocks share is float16 only if both read it in float16
            dtypes[id(param)] = wanted if dtypes.get(id(param), wanted) == wanted else "float32"
    return dtypes


def _check_parameters(params) -> None:
    for param in params:
        dtype = dtype_of(param)
        if param.grad_req != "null" and dtype not in INPUT_DTYPES:
            raise TypeError(
                f"Parameter {param.name} is {dtype}, expected float32, as it is trained: cast it "
                "first, as in param.cast('float32'), or set its grad_req to 'null'."
            )


def _check_own_casts(net: Block) -> None:
    """Raise if Python code of a net casts to float16 what would then meet float32 parameters."""
    for path, block in roots(net):
        binding = binding_of(block)
        dtypes = {p.name: dtype_of(p) for p in block.collect_params().values()}
        if binding.untraceable if binding else "float16" not in dtypes.values():
            continue
        try:
            symbol = trace_alone(block, path).symbol
        except TraceError:
            continue
        # Nodes without a label are those of a SymbolBlock, whose graph is changed.
        narrow = graph.narrow_nodes(graph.to_json(symbol))
        own = [n for n in narrow if n["op"] != "null" and graph.BLOCK_ATTR in n["attrs"]]
        if not own:
            continue
        dtypes = {name: graph.WIDE.get(dtype, dtype) for name, dtype in dtypes.items()}
        conflict = graph.type_conflict(graph.in_float32(symbol, kept=graph.BLOCK_ATTR), dtypes)
        if conflict and not graph.type_conflict(graph.in_float32(symbol), dtypes):
            raise ValueError(
                f"The Python code of block {own[0]['attrs'][graph.BLOCK_ATTR] or 'net'} asks for "
                f"float16 (node {own[0]['name']}), so the net cannot run in float32 ({conflict}): "
                "leave that to the policy, or save the float32 net by net.export()."
            )


def _check_pins(policy: Policy, hybrid: list) -> None:
    """Raise if a pattern matches no block, or a block is pinned to two dtypes."""
    labels = [(path, block.prefix) for path, block in hybrid]
    nodes = [
        (None, node["name"])
        for _, block in hybrid
        if isinstance(block, mx.gluon.SymbolBlock)
        for node in graph.to_json(block._cached_graph[1])["nodes"]
    ]
    policy.check_blocks([*labels, *nodes])


def _check_devices(policy: Policy, params) -> None:
    """Raise if a device cannot run the policy; load the C++ library if one is a CPU."""
    contexts = {mx.Context(ctx) for param in params for ctx in contexts_of(param)}
    kernels.prepare(contexts)
    for ctx in contexts or [mx.current_context()]:
        check_device(policy, ctx.device_type)
