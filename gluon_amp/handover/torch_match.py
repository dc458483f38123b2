"""Match the parameters of a PyTorch module with those of a network, while the module runs.

Only `torch_state` imports this file, since it needs PyTorch.

When a layer of the module is about to run, all layers before it have their weights, so its input is
right. It gets the weights of a use in the network that has this input and these shapes. Where
several fit, the first in the order of execution is tried, and then the others.
"""

from itertools import permutations
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from gluon_amp.base.messages import first_few
from gluon_amp.graph import Edge
from gluon_amp.handover.rounding import distance
from gluon_amp.handover.torch_uses import (
    NOWHERE,
    Layers,
    Source,
    Trial,
    Use,
    kind_of,
    neutral,
    stripped,
)

ATTEMPTS = 50  # runs of the module without progress, where several uses fit

_MODES = ("lstm", "gru", "rnn_tanh", "rnn_relu")
_STATISTICS = "input running_mean running_var weight bias"
# The kind of each function of PyTorch with parameters, and the names of its arguments
FUNCTIONS = {
    **{f"conv{n}d": ("conv", "input weight bias") for n in (1, 2, 3)},
    **{f"conv_transpose{n}d": ("conv_transpose", "input weight bias") for n in (1, 2, 3)},
    **{m: (m, "input hx flat biases layers dropout train both") for m in _MODES},
    **{f"{m}_cell": ("cell", "input hx w_ih w_hh b_ih b_hh") for m in _MODES},
    **dict.fromkeys(("matmul", "__matmul__", "mm"), ("dense", "input columns")),
    "addmm": ("dense", "bias input columns"),
    "linear": ("dense", "input weight bias"),
    "batch_norm": ("batch_norm", f"{_STATISTICS} training momentum eps"),
    "instance_norm": ("instance_norm", f"{_STATISTICS} use_input_stats momentum eps"),
    "layer_norm": ("layer_norm", "input normalized_shape weight bias eps"),
    "group_norm": ("group_norm", "input num_groups weight bias eps"),
    "embedding": ("embedding", "input weight"),
    "prelu": ("prelu", "input weight"),
    "multi_head_attention_forward": (
        "attention",
        "query key value embed_dim_to_check num_heads in_proj_weight in_proj_bias bias_k bias_v "
        "add_zero_attn dropout_p out_proj_weight out_proj_bias",
    ),
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
    """A tensor of the module, and a view of what a layer reads of it."""

    tensor: torch.Tensor
    view: torch.Tensor

    @classmethod
    def of(cls, tensor: torch.Tensor, rows: slice = slice(None)) -> "Target":
        """Return a tensor, or some of its rows, without a gradient."""
        return cls(tensor, tensor.detach()[rows] if tensor.ndim else tensor.detach())

    @property
    def shape(self) -> Tuple[int, ...]:
        return tuple(self.view.shape)

    @property
    def key(self) -> tuple:
        """What the views of the same elements have in common."""
        return self.view.data_ptr(), self.view.numel()

    def set(self, values: np.ndarray) -> None:
        """Set the elements; a scalar sets them all."""
        shape = self.shape if values.ndim else ()
        self.view.copy_(torch.from_numpy(np.ascontiguousarray(values)).reshape(shape))


class Need(NamedTuple):
    """A layer that is about to run."""

    kind: str
    input: torch.Tensor
    targets: Dict[str, Target]

    def rows(self, part: slice) -> "Need":
        """Return what some rows of the result need."""
        targets = {k: one._replace(view=one.view[part]) for k, one in self.targets.items()}
        return self._replace(targets=targets)


class Mismatch(Exception):  # noqa: N818
    """This run failed; the message is one sentence for the user."""


class Run(TorchFunctionMode):
    """Runs a module, and sees each function that reads its parameters."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module
        # Path of the module and name, by the id of the tensor
        self.owners: Dict[int, Tuple[str, str]] = {}
        for path, child in module.named_modules():
            own = [*child.named_parameters(recurse=False), *child.named_buffers(recurse=False)]
            for name, tensor in own:
                self.owners.setdefault(id(tensor), (path, name))
        self.in_layers: Set[int] = set()
        self.elsewhere: Dict[int, torch.Tensor] = {}

    def __call__(self, arguments: Sequence[Any]) -> List[np.ndarray]:
        """Return the arrays that the module returns."""
        with torch.no_grad(), self:
            return arrays_of(self.module(*arguments))

    def bare(self) -> List[torch.nn.Parameter]:
        """Return the parameters that no layer reads, but other functions, in their order."""
        read = (x for key, x in self.elsewhere.items() if key not in self.in_layers)
        return [tensor for tensor in read if isinstance(tensor, torch.nn.Parameter)]

    def knows(self, tensor: Any) -> bool:
        """Return whether this is a parameter or a buffer of the module."""
        return id(tensor) in self.owners

    # ------------------------------------------------------------------ what a function reads

    def __torch_function__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: Optional[dict] = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in FUNCTIONS and func is getattr(torch.nn.functional, name, func):
            kind, names = FUNCTIONS[name]
            arguments = {**dict(zip(names.split(), args)), **kwargs}
            if kind == "attention":
                self.in_layers.update(id(x) for x in arguments.values() if self.knows(x))
                return self.attend(func, arguments)
            needs = list(self.needs(kind, arguments))
            if needs:
                return self.layer(
                    needs,
                    lambda **new: func(**{**arguments, **new}) if new else func(*args, **kwargs),
                )
        if name != "__get__":  # of an attribute, such as the shape
            found = (x for x in tensors_in([args, kwargs]) if self.knows(x))
            self.elsewhere.update((id(tensor), tensor) for tensor in found)
        return func(*args, **kwargs)

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
            places = [f"{name}_{k}" for k in range(cells) for name in names]
            yield from self.need(kind, data, dict(zip(places, arguments["flat"])))
        elif "columns" in arguments:
            slots = {"weight": arguments["columns"], "bias": arguments.get("bias")}
            for need in self.need(kind, data, slots):
                weight = need.targets["weight"]
                need.targets["weight"] = weight._replace(view=weight.view.t())
                yield need
        else:
            yield from self.need(kind, data, {slot: arguments.get(slot) for slot in SLOTS})

    def need(self, kind: str, data: torch.Tensor, slots: Dict[str, Any]) -> Iterator[Need]:
        """Yield one layer if its weights are the module's own."""
        targets = {slot: Target.of(x) for slot, x in slots.items() if self.knows(x)}
        if targets and (slots.get("weight") is None or "weight" in targets):
            self.in_layers.update(id(target.tensor) for target in targets.values())
            yield Need(kind_of(kind, next(iter(targets.values())).shape), data, targets)

    # ------------------------------------------------------------------ calls

    def layer(self, needs: List[Need], call: Callable) -> Any:
        """Run a function that is a layer."""
        return call()

    def attend(self, func: Callable, arguments: Dict[str, Any]) -> Any:
        """Run multi-head attention."""
        return func(**arguments)


class Matching(Run):
    """A run in which each layer of the module gets the weights of one of a network's layers.

    `trail` says which one where several fit.
    """

    def __init__(self, module: torch.nn.Module, layers: Layers, trail: Sequence[int]) -> None:
        super().__init__(module)
        self.layers, self.trail = layers, trail
        self.choices: List[Tuple[int, int]] = []  # which one, of how many
        self.left = layers.uses
        self.placed: Set[str] = set()  # names of the network's parameters
        self.doubt = ""  # the first layer that several uses fit, in words
        self.loaded: Dict[tuple, Tuple[Target, Source]] = {}
        self.settings: Dict[str, Dict[str, float]] = {}  # of norms, by the path of a module
        self._sorted: Dict[Edge, np.ndarray] = {}

    def layer(self, needs: List[Need], call: Callable) -> Any:
        """Run a function that is a layer, with the weights of the network."""
        uses = [self.match(need) for need in needs]
        use, settings = uses[0], uses[0].settings if uses[0] else {}
        if settings:
            tensor = next(iter(needs[0].targets.values())).tensor
            self.settings[self.owners[id(tensor)][0]] = settings
        output = call(**({"eps": settings["eps"]} if settings else {}))
        if len(uses) == 1 and use is not None and use.output is not None:
            far = self.apart(use.output, arrays_of(output)[0])
            bound = self.layers.bounds[use.output]
            if not far <= bound:
                raise Mismatch(
                    f"{self.described(needs[0])} gets the input and the weights of "
                    f"{self.of_net(use)}, and its output differs by {far:.2g} where rounding "
                    f"explains {bound:.2g}: give both the same attributes, such as the stride"
                )
        return output

    def attend(self, func: Callable, arguments: Dict[str, Any]) -> Any:
        """Run multi-head attention: three products of its inputs, and one of the result."""
        packed, biases = arguments["in_proj_weight"], arguments["in_proj_bias"]
        size, parts = len(arguments["out_proj_weight"]), []
        for k, name in enumerate(("query", "key", "value")):
            rows = slice(k * size, (k + 1) * size)
            own = arguments.get(f"{name[0]}_proj_weight")
            targets = {"weight": Target.of(packed, rows) if own is None else Target.of(own)}
            if biases is not None:
                targets["bias"] = Target.of(biases, rows)
            parts.append(Need("dense", arguments[name], targets))
        if packed is not None and not self.options(parts[0])[0]:
            slots = {"weight": packed, "bias": biases}
            parts = list(self.need("dense", arguments["query"], slots))
        for part in parts:
            self.match(part)
        # With an identity in the place of the last product, its input is returned.
        identity = {"out_proj_weight": torch.eye(size), "out_proj_bias": None}
        context, _ = func(**{**arguments, **identity})
        slots = {"weight": arguments["out_proj_weight"], "bias": arguments["out_proj_bias"]}
        return self.layer(list(self.need("dense", context, slots)), lambda: func(**arguments))

    # ------------------------------------------------------------------ matching

    def choose(self, options: list) -> Any:
        """Return the option that the trail says, or the first one."""
        k = len(self.choices)
        self.choices.append((self.trail[k] if k < len(self.trail) else 0, len(options)))
        return options[self.choices[-1][0]]

    def load(self, target: Target, source: Source) -> None:
        """Set a tensor, unless it was set before."""
        self.placed.update(self.layers.names.get(source.edge, ()))
        if target.key not in self.loaded:
            self.loaded[target.key] = target, source
            target.set(source.read(self.layers.values))

    def load_bare(self, parameters: List[torch.nn.Parameter]) -> None:
        """Set the parameters that no layer reads: by their shapes, in the order of their use."""
        names, values = self.layers.names, self.layers.values
        nodes = self.layers.network.nodes
        variables = [edge for edge in names if nodes[edge[0]]["op"] == "null"]
        in_uses = {s.edge for use in self.layers.uses for s in use.sources.values()}
        variables.sort(key=lambda edge: edge in in_uses)
        for tensor in parameters:
            target, options = Target.of(tensor), []
            for edge in variables:
                sizes, theirs = _sizes(values[edge].shape), _sizes(target.shape)
                if sizes == theirs and not self.placed.intersection(names[edge]):
                    options.append(Source(edge))
                elif sizes == theirs[::-1] and len(sizes) == values[edge].ndim == 2:
                    options.append(Source(edge, (("transpose", (1, 0)),)))
            if not options:
                name = ".".join(filter(None, self.owners[id(tensor)]))
                raise Mismatch(f"no parameter of the net has the shape of {name}, {target.shape}")
            self.load(target, self.choose(options))

    def match(self, need: Need) -> Optional[Use]:
        """Load the weights of a use that fits; return it, or None if several were joined."""
        options, reasons = self.options(need)
        if not options:
            self.match_rows(need, reasons)
            return None
        use = self.choose(options)
        if len(options) > 1 and not self.doubt:
            one, other = map(self.of_net, options[:2])
            self.doubt = f"{self.described(need)} fits {one} and {other} alike, so "
        self.left = [one for one in self.left if one is not use]
        for slot in {**use.sources, **need.targets}:
            source, target = use.sources.get(slot), need.targets.get(slot)
            if source is not None and target is None:
                self.placed.update(self.layers.names[source.edge])
            elif target is not None:
                source = source or Source(NOWHERE, value=neutral(use.kind, slot))
                moves = self.columns(use, need) if slot == "weight" else ()
                self.load(target, source.then(*moves))
        return use

    def match_rows(self, need: Need, reasons: list) -> None:
        """Match a dense layer with two or three of the network that have the same input."""
        rows = need.targets["weight"].shape[0] if need.kind == "dense" else 1
        for count in (3, 2):
            size, rest = divmod(rows, count)
            if rest == 0:
                parts = [need.rows(slice(k * size, (k + 1) * size)) for k in range(count)]
                if len(self.options(parts[0])[0]) >= count:
                    for part in parts:
                        self.match(part)
                    return
        nearest = "none of its layers is of this kind"
        if reasons:
            *_, why, use = min(reasons, key=lambda reason: reason[:2])
            nearest = f"the nearest is {self.of_net(use)}, {why}"
        raise Mismatch(f"no layer of the net fits {self.described(need)}; {nearest}")

    def options(self, need: Need) -> Tuple[List[Use], list]:
        """Return the uses that fit; of others rank, distance, reason and use."""
        options, reasons = [], []
        for use in self.left:
            if use.kind == need.kind:
                reason = self.why_not(use, need)
                if reason is None:
                    far = self.apart(use.input, need.input.numpy())
                    bound = self.layers.bounds[use.input]
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
            without = neutral(use.kind, slot)
            if source is not None and target is not None:
                shape = source.read(self.layers.values).shape
                if stripped(shape) != stripped(target.shape):
                    return 2, 0, f"whose {slot} has the shape {shape}"
                if self.loaded.get(target.key, (target, source))[1].edge != source.edge:
                    return 1, 0, f"whose {slot} is not the one that the module's layers share"
            elif without is None:
                return 2, 0, f"which has {'a' if target is None else 'no'} {slot}"
            elif source is not None and (source.read(self.layers.values) != without).any():
                return 1, 0, f"whose {slot} is not {without:g}, which the module's has to be"
        return None

    def apart(self, edge: Edge, array: np.ndarray) -> float:
        """Return the largest difference of an edge, in any layout; above its bound maybe less.

        The values are compared in their order. Some may be repeated, or stand beside more zeros.
        """
        own, bound = self.layers.values[edge], self.layers.bounds[edge]
        if own.shape == array.shape and distance(own, array) <= bound:
            return distance(own, array)
        ends = distance(*(np.array([x.min(initial=0), x.max(initial=0)]) for x in (own, array)))
        if not ends <= bound:
            return ends
        if edge not in self._sorted:
            self._sorted[edge] = np.sort(own, axis=None)
        few, many = sorted((self._sorted[edge], np.sort(array, axis=None)), key=len)
        times, rest = divmod(many.size, few.size)
        padded = np.sort(np.append(few, np.zeros(many.size - few.size, few.dtype)))
        repeated = np.inf if rest else distance(np.repeat(few, times), many)
        return min(repeated, distance(padded, many))

    def columns(self, use: Use, need: Need) -> tuple:
        """Return the layout of a weight whose input was flattened in another order here."""
        data, own, shape = need.input.numpy(), self.layers.values[use.input], use.flattened
        if shape is None or data.ndim != 2 or data.size != own.size:
            return ()
        for order in permutations(range(1, len(shape) + 1)):
            moved = own.reshape(-1, *shape).transpose(0, *order).reshape(data.shape)
            if distance(moved, data) <= self.layers.bounds[use.input]:
                if [*order] == sorted(order):
                    break
                flat = "reshape", (-1, data.shape[1])
                return ("reshape", (-1, *shape)), ("transpose", (0, *order)), flat
        return ()

    # ------------------------------------------------------------------ words

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


def matched(layers: Layers, first: Run, arguments: Sequence[Any]) -> Matching:
    """Load a network's parameters into a module after its first run; return the run that did it.

    Raise `Mismatch` if no choice of uses leads to the network's outputs.
    """
    trail: List[int] = []
    best, failed = (-1, Mismatch()), 0  # the farthest run, and runs since then
    while failed < ATTEMPTS:
        run = Matching(first.module, layers, trail)
        try:
            with torch.no_grad():
                run.load_bare(first.bare())
            outputs = run(arguments)
            left = [name for name in layers.needed() if name not in run.placed]
            if left:
                raise Mismatch(f"the module has no place for the net's {first_few(left)}")
            check_outputs(layers, outputs)
            return run
        except Mismatch as mismatch:
            failed += 1
            if len(run.choices) > best[0]:
                best, failed = (len(run.choices), mismatch), 0
        taken = run.choices
        while taken and taken[-1][0] + 1 == taken[-1][1]:
            taken.pop()
        if not taken:
            break
        trail = [*(k for k, _ in taken[:-1]), taken[-1][0] + 1]
    raise best[1]


def check_outputs(layers: Layers, outputs: List[np.ndarray]) -> None:
    """Raise `Mismatch` unless these arrays are the network's outputs, axes moved or not."""
    if not outputs:
        raise Mismatch("the module returns no tensor")
    edges = layers.network.outputs
    values, bounds = [layers.values[e] for e in edges], [layers.bounds[e] for e in edges]
    _compare(values, bounds, outputs, "all")


def check_random(run: Matching, trial: Trial, outputs: List[np.ndarray]) -> None:
    """Raise `Mismatch` unless these arrays are the network's outputs for random inputs."""
    try:
        _compare(trial.outputs, trial.bounds, outputs, "for the given inputs alone all")
    except Mismatch as mismatch:
        raise Mismatch(
            f"{mismatch}; {run.doubt}pass random numbers, which tell layers apart"
        ) from None


def _compare(values: list, bounds: list, outputs: List[np.ndarray], which: str) -> None:
    for k, (value, bound, array) in enumerate(zip(values, bounds, outputs)):
        orders = permutations(range(array.ndim)) if array.ndim < 6 else [range(array.ndim)]
        moved = [one for one in map(array.transpose, orders) if one.shape == value.shape]
        if not moved and array.size == value.size:
            moved = [array.reshape(value.shape)]
        far = min((distance(one, value) for one in moved), default=np.inf)
        if not far <= bound:
            raise Mismatch(
                f"{which} layers fit, and output {k} differs by {far:.2g} where rounding explains "
                f"{bound:.2g} (shapes {value.shape} and {array.shape})"
            )


def arrays_of(outputs: Any) -> List[np.ndarray]:
    """Return the tensors in nested lists and dicts as arrays."""
    return [tensor.detach().numpy() for tensor in tensors_in(outputs)]


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in nested lists and dicts."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from tensors_in(item)


def _sizes(shape: Sequence[int]) -> Tuple[int, ...]:
    return tuple(size for size in shape if size != 1)
