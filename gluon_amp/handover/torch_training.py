"""The state of a training for PyTorch: of the optimizer, and of the loss scale."""

from typing import TYPE_CHECKING, Any, Dict, List, NamedTuple, Optional, Tuple

import numpy as np

from gluon_amp import graph
from gluon_amp.base.messages import UsageError, first_few
from gluon_amp.graph import Edge, op_table
from gluon_amp.handover.torch_state import Handover, hand_over, pytorch
from gluon_amp.handover.torch_uses import NOWHERE
from gluon_amp.optimizer import masters
from gluon_amp.trainer.loss_scale import DynamicLossScale, LossScale, NoLossScale

import mxnet as mx
from mxnet import gluon

if TYPE_CHECKING:
    import torch

# PyTorch's optimizer for each of ours
COUNTERPARTS = {"SGD": "SGD", "NAG": "SGD", "Adam": "Adam", "AdamW": "AdamW"}
GROWTH_INTERVAL = 2000  # GradScaler's own, for a scale that does not grow
# What a step of the trainer does and one of PyTorch does not, off in a group
OFF = {"maximize": False, "amsgrad": False, "dampening": 0}


class Trained(NamedTuple):
    """A trainer's rates and states, by the names of its parameters."""

    rates: Dict[str, Tuple[float, float]]  # learning rate and weight decay
    states: Dict[str, List[np.ndarray]]
    updates: Dict[str, int]


def torch_training_state(
    trainer: gluon.Trainer,
    net: gluon.HybridBlock,
    module: "torch.nn.Module",
    optimizer: "torch.optim.Optimizer",
    *inputs: mx.nd.NDArray,
    module_inputs: Optional[Tuple["torch.Tensor", ...]] = None,
) -> Dict[str, dict]:
    """Return the state of a training, so that PyTorch goes on where a trainer is.

    Load it after the module's own state: see `torch_state_dict`, which matches the parameters in
    the same way. The loss has to be the mean over the batch, as the trainer divides by the batch
    size in `step`.

    SGD and NAG: MXNet keeps the sum of steps and PyTorch that of gradients, so the buffers are the
    momenta divided by minus the present learning rate. Adam and AdamW: MXNet adds epsilon before
    the bias correction and PyTorch after it, so `eps` is epsilon / sqrt(1 - beta2**t), of the next
    update t; later updates differ as far as epsilon matters. The betas are rounded to float32, as
    in MXNet's kernels. Of a schedule, the present learning rate is handed over.

    Parameters
    ----------
    trainer : Trainer or gluon.Trainer
        With SGD, NAG, Adam or AdamW, and without `clip_gradient`.
    net, module, *inputs, module_inputs
        As for `torch_state_dict`, which sets epsilon and momentum of the norm layers, too.
    optimizer : torch.optim.Optimizer
        SGD (for SGD and NAG), Adam or AdamW, with any groups and values; it does not change.

    Returns
    -------
    dict
        ``"optimizer"``, for ``optimizer.load_state_dict``; and ``"scaler"``, for
        ``GradScaler.load_state_dict``. A static scale has factors of 1, and bounds of a dynamic one
        are lost. Without a scale ``"scaler"`` is empty: use ``GradScaler(enabled=False)``.

    Raises
    ------
    UsageError
        When PyTorch cannot go on in the same way: another optimizer, parameters that are trained on
        one side only, rates that differ within a group. And as `torch_state_dict` does.
    TypeError
        When an argument is not of these classes.

    Examples
    --------
    >>> import gluon_amp as amp, mxnet as mx, torch
    >>> net = mx.gluon.nn.Dense(1, in_units=2)
    >>> net.initialize()
    >>> module = torch.nn.Linear(2, 1)
    >>> optimizer = torch.optim.SGD(module.parameters(), lr=1)
    >>> trainer = amp.Trainer(net.collect_params(), 'sgd', {'learning_rate': 0.5}, loss_scale=128)
    >>> state = amp.torch_training_state(trainer, net, module, optimizer, mx.nd.ones((1, 2)))
    >>> state['optimizer']['param_groups'][0]['lr'], state['scaler']['scale']
    (0.5, 128.0)
    """
    torch, function = pytorch("torch_training_state"), "torch_training_state()"
    if not isinstance(trainer, gluon.Trainer) or not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(
            f"{function} got a {type(trainer).__name__} and a {type(optimizer).__name__}, expected "
            "a Trainer and a torch.optim.Optimizer: amp.torch_training_state(trainer, net, module, "
            "optimizer, data)."
        )
    _check_optimizers(trainer, optimizer, function)
    handed = hand_over(net, module, inputs, module_inputs, "torch_training_state")
    trained = _trained(trainer)
    names = _names(handed, module, optimizer, trained, function)
    states = _states(handed, trained)
    state, entries = optimizer.state_dict(), {}
    for group, saved in zip(optimizer.param_groups, state["param_groups"]):
        rates: Dict[tuple, List[str]] = {}
        for tensor, key in zip(group["params"], saved["params"]):
            name = names.get(id(tensor))
            if name is None:  # frozen, or it takes no part
                continue
            of_net = _parameters(handed, name)
            rates.setdefault(tuple({trained.rates[one] for one in of_net}), []).append(name)
            if any(trained.states.get(one) for one in of_net):
                arrays = [one[name] for one in states]
                rate, updates = trained.rates[of_net[0]][0], trained.updates[of_net[0]]
                entries[key] = _entry(trainer.optimizer, arrays, rate, updates)
        if len(rates) > 1 or any(len(one) > 1 for one in rates):
            *_, others = sorted(rates.values(), key=len, reverse=True)
            raise UsageError(
                f"{function}: learning rate or weight decay of {first_few(others)} differs from "
                "the others' of its group (lr_mult or wd_mult): give them a group of their own."
            )
        for ((rate, decay),) in rates:
            saved.update(_settings(trainer.optimizer, rate, decay, group, trained))
    scale = getattr(trainer, "loss_scale", NoLossScale())
    return {"optimizer": {**state, "state": entries}, "scaler": _scaler(scale)}


def _check_optimizers(trainer, optimizer, function: str) -> None:
    """Raise unless the optimizers make the same update."""
    own, rate = trainer.optimizer, trainer.learning_rate
    name, theirs = type(own).__name__, type(optimizer).__name__
    kind = COUNTERPARTS.get(name)
    for wrong, why in (
        (
            kind is None,
            f"PyTorch has no {name} that makes its update from its state: start a new optimizer "
            "there, or train here with SGD, NAG, Adam or AdamW",
        ),
        (
            kind != theirs or not type(optimizer).__module__.startswith("torch.optim."),
            f"{theirs} does not continue {name}: create a torch.optim.{kind}",
        ),
        (
            own.clip_gradient,
            f"torch.optim.{kind} has no clip_gradient: call torch.nn.utils.clip_grad_value_ there, "
            "and set trainer.optimizer.clip_gradient to None before this call",
        ),
        (
            trainer._update_on_kvstore,
            "the kvstore has the trainer's states: build it with update_on_kvstore=False",
        ),
        (not rate > 0, f"the learning rate is {rate:g}: make it positive"),
    ):
        if wrong:
            raise UsageError(f"{function}: {why}.")


def _trained(trainer) -> Trained:
    optimizer, rates, states, updates = trainer.optimizer, {}, {}, {}
    held = trainer._updaters[0].states if trainer._updaters else {}
    for index, param in enumerate(trainer._params):
        if param.grad_req == "null":
            continue
        rates[param.name] = trainer.learning_rate * param.lr_mult, optimizer.wd * param.wd_mult
        updates[param.name] = optimizer._index_update_count.get(index, 0)
        if index in held:
            rest = masters.split(optimizer, param.list_data()[0], held[index])[1]
            rest = rest if isinstance(rest, (list, tuple)) else [rest]
            states[param.name] = [x.asnumpy().astype(np.float32) for x in rest if x is not None]
    return Trained(rates, states, updates)


def _parameters(handed: Handover, name: str) -> List[str]:
    """Return the net's parameters from which a tensor is made."""
    edges = [source.edge for source in handed.sources[name]]
    return [one for edge in edges for one in handed.layers.names.get(edge, ())]


def _names(handed, module, optimizer, trained, function) -> Dict[int, str]:
    """Return the names of the optimizer's tensors that are trained; check that both train them."""
    named = {id(tensor): name for name, tensor in module.named_parameters()}
    found: Dict[int, str] = {}
    edges: Dict[Edge, str] = {}
    for tensor in (one for group in optimizer.param_groups for one in group["params"]):
        name = named.get(id(tensor))
        if name is None:
            raise UsageError(
                f"{function} got an optimizer with a parameter of {tuple(tensor.shape)} that is "
                "not the module's: build it with module.parameters()."
            )
        if not handed.sources[name] or not tensor.requires_grad:
            continue
        reason = _why_not_alike(handed, name, trained, edges)
        if reason:
            raise UsageError(
                f"{function}: {name} cannot be trained as here, since {reason}: change the module, "
                "or leave it out of the optimizer."
            )
        found[id(tensor)] = name
    taken = {p for name in found.values() for p in _parameters(handed, name)}
    left = sorted({*trained.rates} & {*handed.layers.network.parameters} - taken)
    if left:
        raise UsageError(
            f"{function}: {first_few(left)} of the net has no trained parameter in the optimizer: "
            "pass it all of module.parameters()."
        )
    return found


def _why_not_alike(handed: Handover, name: str, trained: Trained, edges: Dict[Edge, str]) -> str:
    """Return why a tensor has another gradient than the net's parameters, or an empty text."""
    nodes = handed.layers.network.nodes
    for source in handed.sources[name]:
        if source.edge == NOWHERE:
            return "the net has no such parameter"
        if source.value is not None:
            return "it is constant in the net"
        if any(method == "repeat" for method, _ in source.layout):
            return "the net has one value for each group of channels"
        if edges.setdefault(source.edge, name) != name:
            return f"the net has one parameter for it and {edges[source.edge]}"
        own = handed.layers.names[source.edge]
        frozen = [one for one in own if one not in trained.rates]
        if frozen:
            return f"the trainer does not train {frozen[0]}"
        needed = graph.needed({"nodes": nodes, "heads": [source.edge]})
        if not {nodes[i]["op"] for i in needed} <= op_table.named("moves") | {"null"}:
            return f"the net computes it from {first_few(own)}"
    return ""


def _states(handed: Handover, trained: Trained) -> List[Dict[str, np.ndarray]]:
    """Return each of the optimizer's states as a state of the module."""
    parameters = handed.layers.network.parameters
    zeros = {name: np.zeros_like(array) for name, array in parameters.items()}
    count = max(map(len, trained.states.values()), default=0)
    columns = [{name: a[k] for name, a in trained.states.items() if a} for k in range(count)]
    return [handed.state(handed.layers.tensors({**zeros, **one})) for one in columns]


def _entry(optimizer, arrays: List[np.ndarray], rate: float, updates: int) -> Dict[str, Any]:
    """Return PyTorch's state of one parameter."""
    import torch

    tensors = [torch.from_numpy(array) for array in arrays]
    if COUNTERPARTS[type(optimizer).__name__] == "SGD":
        return {"momentum_buffer": -tensors[0] / rate if rate else 0 * tensors[0]}
    return {"step": torch.tensor(float(updates)), "exp_avg": tensors[0], "exp_avg_sq": tensors[1]}


def _settings(
    optimizer, rate: float, decay: float, group: dict, trained: Trained
) -> Dict[str, Any]:
    """Return the values of a group."""
    settings = {"lr": rate, "weight_decay": decay, **{k: OFF[k] for k in OFF if k in group}}
    if COUNTERPARTS[type(optimizer).__name__] == "SGD":
        nesterov = type(optimizer) is mx.optimizer.NAG or getattr(optimizer, "nesterov", False)
        momentum = optimizer.momentum
        return {**settings, "momentum": momentum, "nesterov": bool(nesterov and momentum)}
    betas = tuple(float(np.float32(beta)) for beta in (optimizer.beta1, optimizer.beta2))
    updates = max(trained.updates.values(), default=0) + 1
    return {**settings, "betas": betas, "eps": optimizer.epsilon / (1 - betas[1] ** updates) ** 0.5}


def _scaler(scale: LossScale) -> Dict[str, Any]:
    """Return a loss scale as the state of a GradScaler."""
    if isinstance(scale, NoLossScale):
        return {}
    factors, growth = (1.0, 1.0), (GROWTH_INTERVAL, 0)
    if isinstance(scale, DynamicLossScale):
        factors = scale.growth_factor, scale.backoff_factor
        growth = scale.growth_interval, scale.finite_steps
    names = "scale growth_factor backoff_factor growth_interval _growth_tracker".split()
    return dict(zip(names, (scale.checked_scale(), *factors, *growth)))
