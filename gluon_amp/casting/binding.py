"""A cast block: its class is a subclass of its own class that runs the cast graph.

The subclass replaces the graph that Gluon traces by the cast graph, lowered for the device. No
class or module of MXNet and no other net changes, the structure of the net stays, and `release`
undoes it.
"""

import copy
import json
import logging
import warnings
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple, Union

import numpy as np

from gluon_amp import graph
from gluon_amp.base.dtypes import dtype_name
from gluon_amp.base.messages import reason_of
from gluon_amp.casting.arguments import arrays_in, for_gluon, is_sparse, map_arrays
from gluon_amp.casting.classes import Mixin, change_class, restore_class
from gluon_amp.casting.composing import check_types, compose, export_cast
from gluon_amp.casting.parameters import cast_parameter, dtype_of, frozen_names, unbind_parameter
from gluon_amp.casting.sharing import not_shared, remove_user
from gluon_amp.casting.traces import Binding
from gluon_amp.casting.tracing import (
    Block,
    HybridBlock,
    TraceError,
    hybrid_blocks,
    is_tracing,
    is_users,
    roots,
    trace,
)
from gluon_amp.lowering import check_device, lower
from gluon_amp.lowering.study import delayed_scaling
from gluon_amp.policy import Policy, study

import mxnet as mx
from mxnet.gluon import Parameter, SymbolBlock

logger = logging.getLogger("gluon_amp")

INPUT_DTYPES = ("float32", "float16")  # float dtypes of the data that a cast net accepts


class Cast(Mixin):
    """Mixed into the class of a cast block, whose attribute `_amp` is its binding."""

    def _get_graph(self, *args):
        binding = self._amp
        if binding.lowered is None:
            binding.select_for(self, args)
        return binding.lowered or binding.graph

    def _build_cache(self, *args):
        binding = self._amp
        inputs, symbol = binding.graph
        arrays = list(arrays_in(args))
        dtypes = {p.name: dtype_of(p) for p in self.collect_params().values()}
        dtypes.update({s.name: a.dtype for s, a in zip(inputs, arrays)})
        device = arrays[0].context.device_type
        frozen = frozen_names(binding.parameters_of(self))
        if binding.key.inference:  # nothing gets a gradient
            frozen = frozenset(symbol.list_inputs())
        delayed_scaling.register(binding.scales, binding.parameters_of(self))
        try:
            sparse = frozenset(s.name for s, a in zip(inputs, arrays) if is_sparse(a))
            scaled = binding.policy.needs_loss_scale
            lowered = lower(symbol, dtypes, device, frozen, binding.scales, sparse, scaled)
            binding.lowered = inputs, lowered
        except mx.base.MXNetError as error:
            received = ", ".join(dtype_name(a.dtype) for a in arrays)
            raise TypeError(
                f"{name_of(self)} got {received} data, which its operators cannot take "
                f"({reason_of(error)}): pass float32 data, as in x.astype('float32')."
            ) from None
        plain, backend = self._cached_graph, self._backend
        try:
            if not binding.key.inference:
                vars(self)["_backend"] = None  # the gradients of oneDNN's subgraphs are zero
            super()._build_cache(*arrays)
        finally:
            binding.lowered = None
            self._cached_graph = plain  # a backend replaces it by the partitioned graph
            vars(self)["_backend"] = backend

    def _infer_attrs(self, infer_fn, attr, *args, traced=None):
        # as HybridBlock's, but a parameter or input that this trace does not read is left out
        inputs, symbol = traced or self._get_graph(*args)
        read = symbol.list_inputs()
        known = zip((s.name for s in inputs), arrays_in(args))
        known = {name: getattr(a, attr) for name, a in known if name in read}
        with warnings.catch_warnings(record=True) as caught:
            arguments, _, states = getattr(symbol, infer_fn)(**known)
        if arguments is None:
            raise mx.base.MXNetError(caught[0].message)
        names = symbol.list_arguments() + symbol.list_auxiliary_states()
        inferred = dict(zip(names, arguments + states))
        for param in self.collect_params().values():
            if param.name in inferred:
                setattr(param, attr, inferred[param.name])

    def _deferred_infer_shape(self, *args):
        super()._deferred_infer_shape(*args)
        if not self._amp.hybridized:
            # in the order in which Gluon runs and initializes a net that is not hybridized; that of
            # the graph's inputs may differ
            for block in self._amp.called:
                for param in block.params.values():
                    param._finish_deferred_init()

    def _call_cached_op(self, *args):
        binding = self._amp
        args = map_arrays(args, _in_own_memory)
        arrays = list(arrays_in(args))
        for array in arrays:
            dtype = dtype_name(array.dtype)
            if dtype not in INPUT_DTYPES and np.dtype(array.dtype).kind not in "iub":
                raise TypeError(
                    f"{name_of(self)} got {dtype} data, expected float32 or float16 "
                    "(or integer ids, or a mask of booleans): call .astype('float32') on it."
                )
        check_device(binding.policy, arrays[0].context.device_type)
        try:
            binding.select_for(self, args)
            return super()._call_cached_op(*for_gluon(args))
        except TraceError as error:
            failed = error
        except mx.base.MXNetError as error:
            # such as shapes that MXNet cannot infer: arrays broadcast where symbols do not
            if binding.hybridized:
                raise
            failed = TraceError(binding.path_in(error), reason_of(error))
        return self._run_as_python(args, failed)

    def _run_as_python(self, args, error):
        """Call `hybrid_forward` on arrays, as Gluon does if a net is not hybridized.

        The children return the policy's output dtype, so the block's own code computes in it: its
        parameters are cast to it, and float data too.
        """
        binding = self._amp

        def in_output_dtype(array):
            name, wanted = dtype_name(array.dtype), binding.policy.output_dtype
            return array.astype(wanted) if "float" in name and name != wanted else array

        context = next(arrays_in(args)).context
        if any(p._deferred_init for p in self._reg_params.values()):
            self._initialize_own(args)
        own = {name: in_output_dtype(p.data(context)) for name, p in self._reg_params.items()}
        binding.running = True
        try:
            out = self.hybrid_forward(mx.nd, *map_arrays(args, in_output_dtype), **own)
        finally:
            binding.running = False
        # not before the call, which fails too where the user's code is wrong
        binding.untraceable = error.path, error.reason
        warnings.warn(
            f"Block {error.path or 'net'} cannot be traced ({error.reason}): it and the blocks "
            "that contain it run as Python code, and only their other children are cast. "
            "amp.describe(net) lists them.",
            stacklevel=2,
        )
        return out

    def _initialize_own(self, args):
        # as HybridBlock does in its `forward`, where the code runs once on symbols
        traced = trace(self, self._amp.path, args, self._amp.child_paths)
        self._infer_attrs("infer_shape", "shape", *args, traced=traced[:2])
        for param in self.params.values():
            param._finish_deferred_init()

    def _clear_cached_op(self):
        if "_amp" in vars(self):
            self._amp.clear()
            vars(self).update(self._amp.untraced())
        super()._clear_cached_op()

    def __setattr__(self, name: str, value: Any) -> None:
        old = vars(self).get(name)
        if isinstance(old, Cast) and isinstance(value, Block) and value is not old:
            # Gluon requires a new child to be of the old one's class, so the old one is released
            release(old)
        super().__setattr__(name, value)
        if isinstance(value, Parameter):
            self._clear_cached_op()  # as Gluon does for a block
        elif "_amp" in vars(self) and not isinstance(value, Block):
            self._amp.note(name, old, value)

    def __delattr__(self, name: str) -> None:
        old = vars(self).get(name)
        super().__delattr__(name)
        self._amp.note(name, old, object())

    def register_forward_hook(self, hook: Callable) -> Any:
        self._clear_for(hook)
        return super().register_forward_hook(hook)

    def register_forward_pre_hook(self, hook: Callable) -> Any:
        self._clear_for(hook)
        return super().register_forward_pre_hook(hook)

    def _clear_for(self, hook):
        if is_users(hook):
            self._clear_cached_op()  # and those of the blocks that contain this one

    def forward(self, *args: Any) -> Any:
        if not is_tracing() and any(isinstance(x, mx.sym.Symbol) for x in arrays_in(args)):
            return compose(self, *args)
        return super().forward(*args)

    def hybridize(self, active: bool = True, *args: Any, **kwargs: Any) -> None:
        self._amp.hybridized = bool(active)
        if active:
            super().hybridize(True, *args, **kwargs)
            return
        # Programs do so at the end of a training, and the net computes the same as before.
        logger.info(
            "%s stays hybridized while it is cast, and is not hybridized after "
            "amp.cast(net, 'float32').",
            name_of(self),
        )
        self._clear_cached_op()
        for child in self._children.values():
            child.hybridize(False)

    def optimize_for(
        self,
        x: mx.nd.NDArray,
        *args: Any,
        backend: Optional[str] = None,
        clear: bool = False,
        **options: Any,
    ) -> None:
        if not backend:
            raise ValueError("optimize_for() got no backend: name one, as in backend='MKLDNN'.")
        self.hybridize(True, backend=backend, clear=True, **options)  # one backend at a time
        self._get_graph(x, *args)
        self._build_cache(x, *args)

    def cast(self, dtype: Any) -> None:
        name = getattr(dtype, "__name__", dtype)
        raise RuntimeError(
            f"{name_of(self)} is cast by gluon_amp, and its own .cast({name!r}) would undo the "
            "pins: call amp.cast(net, policy) instead."
        )

    def export(self, path: str, epoch: int = 0, remove_amp_cast: bool = True) -> Tuple[str, str]:
        binding = self._amp
        if not binding.select_to_export(self):
            if binding.untraceable:
                raise TraceError(*binding.untraceable)
            raise RuntimeError(f"Run {name_of(self)} on some data once before calling export().")
        cast: Any = binding.graph
        if not remove_amp_cast:
            return export_cast(self, cast[1], path, epoch)
        check_types(self, self._cached_graph[1])
        return super().export(path, epoch, True)

    def summary(self, *inputs: mx.nd.NDArray) -> None:
        plain = copy.deepcopy(self)
        release(plain)
        plain.hybridize(False)
        plain.summary(*(map_arrays(x, lambda a: a.astype("float32")) for x in inputs))

    def reset_ctx(self, ctx: Union[mx.Context, List[mx.Context]]) -> None:
        self._clear_cached_op()
        for param in self.collect_params().values():
            param.reset_ctx(ctx)

    def _to_copy(self) -> Tuple[dict, Any]:
        # cached ops are handles into the C++ library, so a copy is traced again
        binding = self._amp
        attributes = {**vars(self), **binding.untraced(), "_active": binding.hybridized}
        del attributes["_amp"]
        return attributes, (binding.path, binding.policy, binding.ends, binding.child_paths)

    def _copied(self, state: tuple) -> None:
        self._amp = Binding(self, *state)


def _in_own_memory(array: mx.nd.NDArray) -> mx.nd.NDArray:
    """Return an array that a DataLoader's worker shares, or one in pinned memory, in plain memory.

    A graph refuses it beside parameters on a CPU, though operators that run one by one take it.
    """
    context = array.context
    if context.device_type not in ("cpu_shared", "cpu_pinned"):
        return array
    return array.as_in_context(mx.cpu(context.device_id))


class CastContainer(Cast):
    """Mixed into the class of a cast container, whose slices are cast as its layers are."""

    def __getitem__(self, key: Union[int, slice]) -> Block:
        found = super().__getitem__(key)
        is_new = isinstance(found, HybridBlock) and binding_of(found) is None
        if is_new and isinstance(key, slice):
            children = ((name, binding_of(child)) for name, child in found._children.items())
            bound = {name: binding for name, binding in children if binding}
            ends = tuple(e for e in study.ENDS if any(e in b.ends for b in bound.values()))
            paths = {name: binding.path for name, binding in bound.items()}
            bind(found, self._amp.path, self._amp.policy, ends, paths)
            for binding in bound.values():
                binding.slices.add(found)
        return found


def binding_of(block: Block) -> Optional[Binding]:
    """Return the binding of a block that is cast, or None."""
    return vars(block).get("_amp")


def running_blocks(net: Block, path: str = "") -> Iterator[Tuple[str, HybridBlock]]:
    """Yield path and block of the outermost blocks that can be traced.

    Those that have just run as Python code (see `Binding.untraceable`) are followed by the blocks
    inside them that have run.
    """
    for at, block in roots(net, path):
        yield at, block
        binding = binding_of(block)
        if binding and binding.untraceable:
            for name, child in block._children.items():
                for inside, inner in running_blocks(child, f"{at}.{name}" if at else name):
                    ran = binding_of(inner)
                    if ran and (ran.untraceable or ran.graph):
                        yield inside, inner


def bind(
    block: HybridBlock,
    path: str,
    policy: Policy,
    ends: Tuple[str, ...],
    child_paths: Optional[Dict[str, str]] = None,
) -> None:
    """Change the class of a block to its cast class, and set its binding."""
    block._clear_cached_op()
    change_class(block, CastContainer if hasattr(block, "__getitem__") else Cast)
    binding = vars(block)["_amp"] = Binding(block, path, policy, ends, child_paths)
    delayed_scaling.register(binding.scales, block.collect_params().values())


def unbind(block: HybridBlock) -> None:
    """Restore the class of a block; its parameters do not change."""
    if isinstance(block, Cast):
        block._clear_cached_op()
        restore_class(block)
        binding = block.__dict__.pop("_amp")
        block._active = binding.hybridized
        remove_user(block)
        for part in list(binding.slices):
            unbind(part)


def release(net: Block) -> None:
    """Undo the cast of a net: restore its classes, and cast its parameters to float32.

    Parameters whose Trainer has float32 masters become equal to them, bit for bit. Those that
    another cast net shares do not change.
    """
    for _, block in hybrid_blocks(net):
        unbind(block)
        if isinstance(block, SymbolBlock):
            _drop_casts(block)
    params = not_shared(net.collect_params().values())
    for param in params:
        if dtype_of(param) == "float16":
            cast_parameter(param, "float32")
        unbind_parameter(param)
    net.apply(clear)


def _drop_casts(block: SymbolBlock) -> None:
    """Remove the casts to 16 bits from a graph, and `amp_cast` for other dtypes than float32."""
    inputs, symbol = block._cached_graph
    if any(node["op"] == "amp_cast" for node in graph.to_json(symbol)["nodes"]):
        symbol = graph.from_json(json.loads(symbol.tojson(remove_amp_cast=True)), like=symbol)
    block._cached_graph = inputs, graph.in_float32(symbol)


def clear(block: Block) -> None:
    """Forget the traces of a block, without its children's."""
    if isinstance(block, HybridBlock):
        block._clear_cached_op()


def name_of(block: Block) -> str:
    """Return the name of a block for error messages."""
    return f"{type(block).__name__} {block.name!r}" if block.name else type(block).__name__
