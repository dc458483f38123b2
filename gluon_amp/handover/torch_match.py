"""Match the parameters of a PyTorch module with those of a network, while the module runs.

Only `torch_state` imports this file, since it needs PyTorch.

When a layer of the module is about to run, all layers before it have their weights, so its input is
right. It gets the weights of a use in the network that has this input and these shapes. Where
several fit, the first in the order of execution is tried, and then the others.
"""

import inspect
from itertools import permutations
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from gluon_amp.base.messages import first_few
from gluon_amp.handover.network import Edge
from gluon_amp.handover.rounding import difference
from gluon_amp.handover.torch_uses import Layers, Source, Use, kind_of, stripped

ATTEMPTS = 100  # runs of the module, where several uses fit

_MODES = ("lstm", "gru", "rnn_tanh", "rnn_relu")
_STATISTICS = "input running_mean running_var weight bias"
# The kind of each function of PyTorch with parameters, and the names of its arguments
FUNCTIONS = {
    **{f"conv{n}d": ("conv", "input weight bias") for n in (1, 2, 3)},
    **{f"conv_transpose{n}d": ("conv_transpose", "input weight bias") for n in (1, 2, 3)},
    **{m: (m, "input hx flat biases layers dropout train both") for m in _MODES},
    **{f"{m}_cell": ("cell", "input hx w_ih w_hh b_ih b_hh") for m in _MODES},
    **{name: ("dense", "input columns") for name in ("matmul", "__matmul__", "mm")},
    "addmm": ("dense", "bias input columns"),
    "linear": ("dense", "input weight bias"),
    "batch_norm": ("batch_norm", f"{_STATISTICS} training momentum eps"),
    "instance_norm": ("instance_norm", f"{_STATISTICS} use_input_stats momentum eps"),
    "layer_norm": ("layer_norm", "input normalized_shape weight bias eps"),
    "group_norm": ("group_norm", "input num_groups weight bias eps"),
    "embedding": ("embedding", "input weight"),
    "prelu": ("prelu", "input weight"),
}
SLOTS = ("weight", "bias", "running_mean", "running_var")
# The weights of one recurrent cell, by their number
CELLS = {
    2: "weight_ih weight_hh",
    3: "weight_ih weight_hh weight_hr",
    4: "weight_ih weight_hh bias_ih bias_hh",
    5: "weight_ih weight_hh bias_ih bias_hh weight_hr",
}


class Target(NamedTuple):
    """A tensor of the module, or some of its rows."""

    tensor: torch.Tensor
    rows: slice = slice(None)
    transposed: bool = False

    @property
    def shape(self) -> Tuple[int, ...]:
        shape = tuple(self.tensor[self.rows].shape)
        return shape[::-1] if self.transposed else shape


class Need(NamedTuple):
    """A layer that is about to run."""

    kind: str
    input: torch.Tensor
    targets: Dict[str, Target]


class Mismatch(Exception):  # noqa: N818
    """This attempt failed; the message is one sentence for the user."""


class Reading(TorchFunctionMode):
    """Runs a module, and sees each function that reads its parameters."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module
        self.owners = {}  # path of the module and name, by the id of the tensor
        for path, child in module.named_modules():
            own = [*child.named_parameters(recurse=False), *child.named_buffers(recurse=False)]
            for name, tensor in own:
                self.owners.setdefault(id(tensor), (path, name))
        self.in_layers, self.elsewhere = set(), {}

    def run(self, arguments: Sequence[Any]) -> List[np.ndarray]:
        """Return the arrays that the module returns."""
        with torch.no_grad(), self:
            return arrays_of(self.module(*arguments))

    def bare(self) -> List[torch.nn.Parameter]:
        """Return the parameters that no layer reads, but other functions, in their order."""
        read = (x for key, x in self.elsewhere.items() if key not in self.in_layers)
        return [tensor for tensor in read if isinstance(tensor, torch.nn.Parameter)]

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "multi_head_attention_forward":
            return self.attend(func, inspect.signature(func).bind(*args, **kwargs).arguments)
        kind, names = FUNCTIONS.get(name, ("", "")) if func is getattr(F, name, func) else ("", "")
        arguments = {**dict(zip(names.split(), args)), **kwargs}
        needs = list(self.needs(kind, arguments)) if kind else []
        if needs:
            return self.layer(
                needs, lambda **new: func(**{**arguments, **new}) if new else func(*args, **kwargs)
            )
        if name != "__get__":  # of an attribute, such as the shape
            found = (x for x in tensors_in([args, kwargs]) if self.knows(x))
            self.elsewhere.update((id(tensor), tensor) for tensor in found)
        return func(*args, **kwargs)

    def knows(self, tensor: Any) -> bool:
        """Return whether this is a parameter or a buffer of the module."""
        return id(tensor) in self.owners

    def name(self, target: Target) -> str:
        """Return the name of a tensor, as in `state_dict`."""
        return ".".join(part for part in self.owners[id(target.tensor)] if part)

    def needs(self, kind: str, arguments: Dict[str, Any]) -> Iterator[Need]:
        """Yield what a call needs: one layer, or the two products of a recurrent cell."""
        data = arguments["input"]
        if kind == "cell":
            state = arguments["hx"]
            state = state if isinstance(state, torch.Tensor) else state[0]
            for x, part in ((data, "ih"), (state, "hh")):
                slots = {"weight": arguments[f"w_{part}"], "bias": arguments.get(f"b_{part}")}
                yield from self.need("dense", x, slots)
        elif "flat" in arguments:
            cells = arguments["layers"] * (1 + arguments["both"])
            names = CELLS[len(arguments["flat"]) // cells].split()
            slots = [f"{name}_{k}" for k in range(cells) for name in names]
            yield from self.need(kind, data, dict(zip(slots, arguments["flat"])))
        elif "columns" in arguments:
            slots = {"weight": arguments["columns"], "bias": arguments.get("bias")}
            yield from self.need(kind, data, slots, transposed=True)
        else:
            yield from self.need(kind, data, {slot: arguments.get(slot) for slot in SLOTS})

    def need(self, kind: str, data, slots: Dict[str, Any], transposed: bool = False):
        """Yield one layer if its weights are the module's own."""
        known = {slot: tensor for slot, tensor in slots.items() if self.knows(tensor)}
        if known and (slots.get("weight") is None or "weight" in known):
            targets = {
                slot: Target(tensor, transposed=transposed and slot == "weight")
                for slot, tensor in known.items()
            }
            self.in_layers.update(map(id, known.values()))
            yield Need(kind_of(kind, next(iter(targets.values())).shape), data, targets)

    def layer(self, needs: List[Need], call: Callable) -> Any:
        """Return what a call of a layer returns."""
        return call()

    def attend(self, func, arguments: Dict[str, Any]):
        """Run multi-head attention."""
        self.in_layers.update(id(x) for x in arguments.values() if self.knows(x))
        return func(**arguments)


class Attempt(Reading):
    """A run in which each layer gets the weights of a use in the network.

    `trail` says which use it takes where several fit.
    """

    def __init__(self, module: torch.nn.Module, layers: Layers, trail: List[int]) -> None:
        super().__init__(module)
        self.layers, self.trail = layers, trail
        self.choices: List[Tuple[int, int]] = []  # which one, of how many
        self.left = layers.uses
        self.placed = set()  # names of the network's parameters
        self.pieces: Dict[int, List[Tuple[slice, Source]]] = {}  # by the id of a tensor
        self.settings: Dict[str, Dict[str, float]] = {}  # of norms, by the path of a module
        self._sorted: Dict[Edge, np.ndarray] = {}

    def choose(self, options: list) -> Any:
        """Return the option that the trail says, or the first one."""
        k = len(self.choices)
        self.choices.append((self.trail[k] if k < len(self.trail) else 0, len(options)))
        return options[self.choices[-1][0]]

    def load(self, target: Target, source: Source) -> None:
        """Set a tensor, unless it was set before."""
        if source.edge is not None:
            self.placed.update(self.layers.names[source.edge])
        pieces = self.pieces.setdefault(id(target.tensor), [])
        if all(rows != target.rows for rows, _ in pieces):
            source = source.then(("transpose", (1, 0))) if target.transposed else source
            pieces.append((target.rows, source))
            part = target.tensor[target.rows]
            part.copy_(torch.from_numpy(placed(source.read(self.layers.values), part.shape)))

    def load_bare(self, parameters: List[torch.nn.Parameter]) -> None:
        """Set the parameters that no layer reads: by their shapes, in the order of their use."""
        layers = self.layers
        nodes = layers.network.nodes
        variables = [edge for edge in layers.names if nodes[edge[0]]["op"] == "null"]
        in_uses = {s.edge for use in layers.uses for s in use.sources.values()}
        for tensor in parameters:
            options = []
            for edge in sorted(variables, key=lambda edge: edge in in_uses):
                sizes, theirs = (_sizes(x.shape) for x in (layers.values[edge], tensor))
                if not self.placed.intersection(layers.names[edge]) and sizes == theirs:
                    options.append(Source(edge))
                elif sizes == theirs[::-1] and sizes != theirs and layers.values[edge].ndim == 2:
                    options.append(Source(edge, (("transpose", (1, 0)),)))
            if not options:
                raise Mismatch(
                    f"{self.name(Target(tensor))} has the shape {tuple(tensor.shape)}, and no "
                    "parameter of the net that is left has it"
                )
            self.load(Target(tensor), self.choose(options))

    # ------------------------------------------------------------------ layers

    def layer(self, needs: List[Need], call: Callable) -> Any:
        uses = [self.match(need) for need in needs]
        use, settings = uses[0], uses[0].settings if uses[0] else {}
        if settings:
            tensor = next(iter(needs[0].targets.values())).tensor
            self.settings[self.owners[id(tensor)][0]] = settings
        output = call(**({"eps": settings["eps"]} if settings else {}))
        if len(uses) == 1 and use is not None and use.output is not None:
            far = self.distance(use.output, arrays_of(output)[0])
            bound = self.layers.bounds[use.output]
            if not far <= bound:
                raise Mismatch(
                    f"{self.described(needs[0])} gets the input and the weights of "
                    f"{self.of_net(use)}, and its output differs by {far:.2g} where rounding "
                    f"explains {bound:.2g}: give both the same attributes, such as the stride"
                )
        return output

    def attend(self, func, arguments: Dict[str, Any]):
        """Match the products of attention; an identity instead of the last shows its input."""
        packed, biases = arguments["in_proj_weight"], arguments["in_proj_bias"]
        size = len(arguments["out_proj_weight"])
        parts = []
        for k, name in enumerate(("query", "key", "value")):
            rows, own = slice(k * size, (k + 1) * size), arguments.get(f"{name[0]}_proj_weight")
            targets = {"weight": Target(packed, rows) if own is None else Target(own)}
            if biases is not None:
                targets["bias"] = Target(biases, rows)
            parts.append(Need("dense", arguments[name], targets))
        if packed is not None and not self.options(parts[0])[0]:
            parts = self.need("dense", arguments["query"], {"weight": packed, "bias": biases})
        for part in parts:
            self.match(part)
        identity = {"out_proj_weight": torch.eye(size), "out_proj_bias": None}
        context, _ = func(**{**arguments, **identity})
        slots = {"weight": arguments["out_proj_weight"], "bias": arguments["out_proj_bias"]}
        needs = list(self.need("dense", context, slots))
        return self.layer(needs, lambda: func(**arguments))

    def match(self, need: Need) -> Optional[Use]:
        """Load the weights of a use that fits; return it, or None if several were joined."""
        self.in_layers.update(id(target.tensor) for target in need.targets.values())
        options, reasons = self.options(need)
        if not options:
            return self.match_rows(need, reasons)
        use = self.choose(options)
        self.left = [one for one in self.left if one is not use]
        for slot in {**use.sources, **need.targets}:
            source, target = use.sources.get(slot), need.targets.get(slot)
            if target is None:
                self.placed.update(self.layers.names[source.edge])
            else:
                source = source or Source(None, value=_neutral(use.kind, slot))
                if slot == "weight":
                    source = source.then(*self.columns(use, need))
                self.load(target, source)
        return use

    def match_rows(self, need: Need, reasons: list) -> None:
        """Match a dense layer with two or three of the network that have the same input."""
        rows = need.targets["weight"].shape[0] if need.kind == "dense" else 1
        for count in (3, 2):
            size = rows // count
            slices = [slice(k * size, (k + 1) * size) for k in range(count)]
            parts = [
                need._replace(
                    targets={slot: one._replace(rows=part) for slot, one in need.targets.items()}
                )
                for part in slices
            ]
            if rows % count == 0 and len(self.options(parts[0])[0]) >= count:
                for part in parts:
                    self.match(part)
                return
        nearest = "; none of its layers is of this kind"
        if reasons:
            *_, why, use = min(reasons, key=lambda reason: reason[:2])
            nearest = f"; the nearest is {self.of_net(use)}, {why}"
        raise Mismatch(f"no layer of the net fits {self.described(need)}{nearest}")

    def options(self, need: Need) -> Tuple[List[Use], list]:
        """Return the uses that fit; of others rank, distance, reason and use."""
        data, options, reasons = need.input.numpy(), [], []
        for use in self.left:
            if use.kind == need.kind:
                reason = self.why_not(use, need)
                if reason is None:
                    far, bound = self.distance(use.input, data), self.layers.bounds[use.input]
                    if far <= bound:
                        options.append(use)
                        continue
                    reason = 0, far, f"whose input differs by {far:.2g} (rounding: {bound:.2g})"
                reasons.append((*reason, use))
        return options, reasons

    def why_not(self, use: Use, need: Need) -> Optional[Tuple[int, float, str]]:
        """Return why a layer cannot have the weights of a use: rank, distance and reason."""
        for slot in {**use.sources, **need.targets}:
            source, target = use.sources.get(slot), need.targets.get(slot)
            value = None if source is None else source.read(self.layers.values)
            neutral = _neutral(use.kind, slot)
            if value is not None and target is not None:
                if stripped(value.shape) != stripped(target.shape):
                    return 2, 0, f"whose {slot} has the shape {value.shape}"
                pieces = self.pieces.get(id(target.tensor), ())
                if any(rows == target.rows and old.edge != source.edge for rows, old in pieces):
                    return 1, 0, f"whose {slot} is not the one that the module's layers share"
            elif neutral is None:
                return 2, 0, f"which has {'a' if target is None else 'no'} {slot}"
            elif target is None and (value != neutral).any():
                return 1, 0, f"whose {slot} is not {neutral:g}, which the module's has to be"
        return None

    def distance(self, edge: Edge, array: np.ndarray) -> float:
        """Return the largest difference of an edge, in any layout; above its bound maybe less."""
        own, bound = self.layers.values[edge], self.layers.bounds[edge]
        if own.shape == array.shape and difference(own, array) <= bound:
            return difference(own, array)
        ends = difference(*(np.array([x.min(initial=0), x.max(initial=0)]) for x in (own, array)))
        if not ends <= bound:
            return ends
        if edge not in self._sorted:
            self._sorted[edge] = np.sort(own, axis=None)
        return _apart(self._sorted[edge], np.sort(array, axis=None))

    def columns(self, use: Use, need: Need) -> tuple:
        """Return the layout of a weight whose input was flattened in another order here."""
        data, own = need.input.numpy(), self.layers.values[use.input]
        if use.flattened is None or data.ndim != 2 or data.size != own.size:
            return ()
        shape, rows = use.flattened, len(data)
        bound = self.layers.bounds[use.input]
        for order in permutations(range(1, len(shape) + 1)):
            moved = own.reshape(rows, *shape).transpose(0, *order).reshape(rows, -1)
            if difference(moved, data) <= bound:
                if order == tuple(sorted(order)):
                    return ()
                return (
                    ("reshape", (-1, *shape)),
                    ("transpose", (0, *order)),
                    ("reshape", (-1, data.shape[1])),
                )
        return ()

    # ------------------------------------------------------------------ the end of the run

    def check(self, outputs: List[np.ndarray]) -> None:
        """Raise `Mismatch` unless all parameters have a place and the outputs are equal."""
        network = self.layers.network
        left = [name for name in network.parameters if name not in self.placed]
        if left:
            raise Mismatch(f"the module has no place for the net's {first_few(left)}")
        check_outputs(self.layers, outputs)

    def described(self, need: Need) -> str:
        """Return a layer of the module in words."""
        slot, target = next(iter(need.targets.items()))
        path = self.owners[id(target.tensor)][0] or type(self.module).__name__
        return f"the module's {path} ({need.kind} with {slot} {target.shape})"

    def of_net(self, use: Use) -> str:
        """Return a use in words."""
        network = self.layers.network
        node = network.nodes[use.node]
        return f"the net's {network.path_of(use.node) or node['name']} ({node['op']})"


def check_outputs(layers: Layers, outputs: List[np.ndarray]) -> None:
    """Raise `Mismatch` unless these arrays are the network's outputs, axes moved or not."""
    own = layers.network.outputs
    if not outputs:
        raise Mismatch("the module returns no tensor")
    for k, (edge, array) in enumerate(zip(own, outputs)):
        value, bound = layers.values[edge], layers.bounds[edge]
        orders = [*permutations(range(array.ndim))] if array.ndim < 6 else [range(array.ndim)]
        moved = [array.transpose(order) for order in orders]
        moved = [one for one in moved if one.shape == value.shape]
        if not moved and array.size == value.size:
            moved = [array.reshape(value.shape)]
        far = min((difference(one, value) for one in moved), default=float("inf"))
        if not far <= bound:
            raise Mismatch(
                f"all layers fit, and output {k} differs by {far:.2g} where rounding explains "
                f"{bound:.2g} (shapes {value.shape} and {array.shape})"
            )


def matched(layers: Layers, reading: Reading, arguments: Sequence[Any]) -> Attempt:
    """Load a network's parameters into a module that ran once; return how, or raise `Mismatch`."""
    trail, best = [], None
    for _ in range(ATTEMPTS):
        attempt = Attempt(reading.module, layers, trail)
        try:
            with torch.no_grad():
                attempt.load_bare(reading.bare())
            attempt.check(attempt.run(arguments))
            return attempt
        except Mismatch as mismatch:
            if best is None or len(attempt.choices) > best[0]:
                best = len(attempt.choices), mismatch
        taken = attempt.choices
        while taken and taken[-1][0] + 1 == taken[-1][1]:
            taken.pop()
        if not taken:
            break
        trail = [k for k, _ in taken[:-1]] + [taken[-1][0] + 1]
    raise best[1]


def placed(values: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """Return values as a tensor of the module holds them; a constant fills it."""
    return np.array(np.broadcast_to(values, shape) if values.ndim == 0 else values.reshape(shape))


def arrays_of(outputs: Any) -> List[np.ndarray]:
    """Return the tensors in nested lists and dicts as arrays."""
    return [tensor.detach().numpy() for tensor in tensors_in(outputs)]


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in nested lists and dicts."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))


def _apart(one: np.ndarray, other: np.ndarray) -> float:
    """Return the largest difference of sorted values, some repeated or beside more zeros."""
    few, many = sorted((one, other), key=len)
    padded = np.sort(np.concatenate([few, np.zeros(many.size - few.size, few.dtype)]))
    times, rest = divmod(many.size, few.size)
    repeated = float("inf") if rest else difference(np.repeat(few, times), many)
    return min(repeated, difference(padded, many))


def _neutral(kind: str, slot: str) -> Optional[float]:
    """Return the value with which a tensor has no effect, or None."""
    if slot.startswith("bias") or slot == "running_mean":
        return 0.0
    return 1.0 if kind.endswith("norm") and slot in ("weight", "running_var") else None


def _sizes(shape: Sequence[int]) -> Tuple[int, ...]:
    return tuple(size for size in shape if size != 1)
