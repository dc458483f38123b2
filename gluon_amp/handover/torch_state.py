"""A net's parameters as the state of a PyTorch module, matched and verified by running both."""

import copy
import importlib
import warnings
from typing import TYPE_CHECKING, Any, Dict, List, NamedTuple, Optional, Tuple, Union

import numpy as np

from gluon_amp import graph
from gluon_amp.base.messages import UsageError, first_few, reason_of
from gluon_amp.casting.arguments import arrays_in, map_arrays
from gluon_amp.graph import Edge, op_table
from gluon_amp.handover.network import network_of
from gluon_amp.handover.rounding import refuse_without_numbers
from gluon_amp.handover.torch_uses import Layers, Source, layers_of, trial_of

import mxnet as mx

if TYPE_CHECKING:
    import torch


class Handover(NamedTuple):
    """A copy of a module with a net's parameters, and where they came from."""

    layers: Layers
    module: Any
    pieces: list  # a target and its source
    sources: Dict[str, List[Source]]  # of a tensor, by its name in `state_dict`

    def state(self, tensors: Dict[Edge, np.ndarray]) -> Dict[str, np.ndarray]:
        """Return the module's state with other values of the edges: see `Layers.tensors`."""
        for target, source in self.pieces:
            target.set(source.read(tensors))
        return {name: tensor.numpy().copy() for name, tensor in self.module.state_dict().items()}


def torch_state_dict(
    net: Union[mx.gluon.HybridBlock, mx.mod.BaseModule],
    module: "torch.nn.Module",
    *inputs: mx.nd.NDArray,
    module_inputs: Optional[Tuple["torch.Tensor", ...]] = None,
) -> Dict[str, np.ndarray]:
    """Return a net's parameters as the state of a PyTorch module of the same architecture.

    The layers of both are matched as they run: each layer of the module gets the weights of the
    layer in the net that has the same input, and its output is compared. No names are compared.
    At the end the outputs are: they may differ as far as rounding explains, which is measured. They
    are compared for random inputs, too, unless `module_inputs` are given or the net sorts.

    Epsilon and momentum of norm layers are not part of a state, so they are set on `module`.
    Nothing else of it changes. PyTorch's running variance is unbiased and MXNet's is not: they are
    equal in inference, and in training PyTorch's grows by n / (n - 1) for n values of a channel.

    Parameters
    ----------
    net : HybridBlock or Module
        Cast or not; masters are used where there are any.
    module : torch.nn.Module
        In float32 on the CPU, with any weights, in either mode.
    *inputs : NDArray
        A batch, as for `net`. Random numbers are best, since layers are recognized by their inputs.
    module_inputs : tuple of torch.Tensor, optional
        The arguments of `module`, if they are not those of `net`: such as a batch with time first.

    Returns
    -------
    dict of str to numpy.ndarray
        The arrays of `module.state_dict()`, for `load_state_dict` with `torch.from_numpy`. Layers
        that do not run in inference, such as auxiliary classifiers, keep the values of `module`.

    Raises
    ------
    UsageError
        When a layer has no counterpart or another result; the message names both. When torch is
        missing, or when the net or the module cannot run.
    TypeError
        When an argument is not of these classes.

    Warns
    -----
    UserWarning
        When layers of the module do not run.

    Examples
    --------
    >>> import gluon_amp as amp, mxnet as mx, torch
    >>> net = mx.gluon.nn.Dense(1, in_units=2)
    >>> net.initialize(mx.init.One())
    >>> module = torch.nn.Linear(2, 1)
    >>> state = amp.torch_state_dict(net, module, mx.nd.array([[1, 2]]))
    >>> _ = module.load_state_dict({name: torch.from_numpy(a) for name, a in state.items()})
    >>> module.weight.tolist(), module.bias.tolist()
    ([[1.0, 1.0]], [0.0])
    """
    handed = hand_over(net, module, inputs, module_inputs, "torch_state_dict")
    state = handed.state(handed.layers.values)
    return {
        name: np.zeros_like(array) if name.endswith("num_batches_tracked") else array
        for name, array in state.items()
    }


def hand_over(
    net: Union[mx.gluon.HybridBlock, mx.mod.BaseModule],
    module: "torch.nn.Module",
    inputs: Tuple[mx.nd.NDArray, ...],
    module_inputs: Optional[Tuple["torch.Tensor", ...]],
    function: str,
) -> Handover:
    """Match a net and a module; set the norms of the module. Raise as `torch_state_dict` does."""
    torch = pytorch(function)
    from gluon_amp.handover import torch_match

    if not isinstance(module, torch.nn.Module) or isinstance(module, torch.jit.ScriptModule):
        raise TypeError(
            f"{function}() got a {type(module).__name__}, expected a torch.nn.Module with the "
            "architecture of the net, which is not compiled."
        )
    for name, tensor in module.state_dict(keep_vars=True).items():
        if torch.nn.parameter.is_lazy(tensor):
            raise UsageError(f"{function}(): {name} has no shape yet: run the module once.")
        usable = tensor.dtype == torch.float32 and tensor.device.type == "cpu"
        if tensor.is_floating_point() and not usable:
            raise UsageError(
                f"{function}() got a module whose {name} is {tensor.dtype} on {tensor.device}: "
                "pass module.float().cpu()."
            )
    layers = layers_of(network_of(net, inputs, function))
    refuse_without_numbers([layers.values[e] for e in layers.network.outputs], function)
    trial = None
    if module_inputs is None:
        module_inputs = _tensors(torch, layers, inputs, layers.network.inputs)
        trial = trial_of(layers.network)
    elif not isinstance(module_inputs, (tuple, list)):
        raise TypeError(f"{function}() expects a tuple of the module's arguments as module_inputs.")
    fast_path = torch.backends.mha.get_fastpath_enabled()
    try:
        torch.backends.mha.set_fastpath_enabled(False)
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            first = _run_once(torch_match, module, module_inputs, function)
            run = torch_match.matched(layers, first, module_inputs)
            copied = run.module
            _set_norms(copied, run.settings)
            torch_match.check_outputs(layers, torch_match.arrays_of(copied(*module_inputs)))
            if trial is not None:
                outputs = copied(*_tensors(torch, layers, inputs, trial.inputs))
                torch_match.check_random(run, trial, torch_match.arrays_of(outputs))
    except torch_match.Mismatch as mismatch:
        raise UsageError(f"{function}(): {mismatch}.") from None
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)
    sources = {
        name: [source for target, source in run.loaded.values() if target.tensor is tensor]
        for name, tensor in copied.state_dict(keep_vars=True).items()
    }
    kept = [name for name, _ in copied.named_parameters() if not sources[name]]
    if kept:
        warnings.warn(
            f"{function}(): {first_few(kept)} took no part in this run, and keep the values of the "
            "module.",
            stacklevel=3,  # the line that calls the public function
        )
    _set_norms(module, run.settings)
    return Handover(layers, copied, [*run.loaded.values()], sources)


def pytorch(function: str) -> Any:
    """Return the module torch, or raise `UsageError`."""
    try:
        return importlib.import_module("torch")
    except ImportError:
        raise UsageError(f"{function}() needs PyTorch: run `pip install torch`.") from None


def _run_once(torch_match, module, arguments, function: str):
    """Run a copy of the module in inference."""
    try:
        run = torch_match.Run(copy.deepcopy(module).eval())
        run(arguments)
    except Exception as error:  # whatever the user's module raises
        raise UsageError(
            f"{function}(): the module does not accept these inputs ({reason_of(error)}): pass "
            "what it expects as module_inputs."
        ) from error
    return run


def _set_norms(module, settings: Dict[str, Dict[str, float]]) -> None:
    for path, values in settings.items():
        for name, value in values.items():
            setattr(module.get_submodule(path), name, value)


def _tensors(torch, layers: Layers, inputs: tuple, arrays: Dict[str, np.ndarray]) -> tuple:
    """Return arrays as the net's inputs, whole numbers and those of an embedding as int64."""
    network, through = layers.network, (*op_table.named("moves"), *graph.CASTS)
    read = {
        network.nodes[graph.source_of(network.nodes, use.input[0], through)]["name"]
        for use in layers.uses
        if use.kind == "embedding"
    }
    names = dict(zip(map(id, arrays_in(inputs)), network.inputs))

    def convert(array):
        values = arrays[names[id(array)]]
        whole = values.dtype.kind in "iu" or names[id(array)] in read
        return torch.from_numpy(values.astype(np.int64 if whole else np.float32))

    return map_arrays(inputs, convert)
