"""Run a batch again, record every call of a block, and restore the net.

A *probe* is an array of -0 that is added to an output. The gradient of the probe is the gradient
that the output receives in the backward pass.
"""

import contextlib
from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Tuple

from gluon_amp.base.array_kinds import zeros_like
from gluon_amp.base.mxnet_internals import flatten, regroup
from gluon_amp.casting.arguments import arrays_in
from gluon_amp.casting.binding import binding_of
from gluon_amp.casting.statistics import arrays_of
from gluon_amp.casting.tracing import named_blocks
from gluon_amp.inspection.operators import contains_cast
from gluon_amp.inspection.recording import Recording
from gluon_amp.inspection.unchanged import unchanged
from gluon_amp.inspection.values import is_float
from gluon_amp.optimizer.arrays import all_finite, head_gradients
from gluon_amp.optimizer.arrays import flatten as flattened
from gluon_amp.trainer import guards

import mxnet as mx
from mxnet import autograd, gluon, nd


class Call(NamedTuple):
    """One call of a block on arrays."""

    path: str
    block: gluon.Block
    inputs: List[nd.NDArray]
    outputs: List[nd.NDArray]
    probes: List[Optional[nd.NDArray]]  # one for each output; None for an output of integers
    # input symbols and symbol of the graph that the block ran; None for a block without one
    graph: Optional[tuple]

    @property
    def device(self) -> mx.Context:
        """The device of the call."""
        return self.inputs[0].context

    def output_gradients(self) -> List[nd.NDArray]:
        """Return the gradients that the outputs received in the last backward pass."""
        return [
            zeros_like(output) if probe is None else probe.grad
            for output, probe in zip(self.outputs, self.probes)
        ]


def inputs_of(data: object, function: str) -> Tuple[nd.NDArray, ...]:
    """Return the inputs of a net, of which a list or tuple holds several, or raise `TypeError`."""
    inputs = tuple(data) if isinstance(data, (list, tuple)) else (data,)
    for array in inputs:
        if not isinstance(array, nd.NDArray):
            raise TypeError(
                f"{function}() got data of type {type(array).__name__}, expected NDArrays as for "
                "net(data)."
            )
    return inputs


class Replay:
    """A forward pass and its backward passes, with gradient buffers of their own."""

    def __init__(self, net: gluon.Block) -> None:
        self.net = net
        # The initialized parameters by name
        self.parameters = {p.name: p for p in net.collect_params().values() if arrays_of([p])}
        # Of this replay, for each parameter that has a gradient
        self.gradients: Dict[str, List[nd.NDArray]] = {}
        self.calls: List[Call] = []  # in the order in which they returned
        self.outputs: List[nd.NDArray] = []  # of the net
        self.losses: List[nd.NDArray] = []

    def forward(self, loss_fn: Callable, data: tuple, label: object) -> None:
        """Run the forward pass in training mode, and record its calls, outputs and losses."""
        with autograd.record():
            output = self.net(*data)
            self.outputs = list(arrays_in(output))
            loss = loss_fn(output, label)
        self.losses = list(flattened(loss))
        guards.check_losses(self.losses)

    def backward(self, scale: float) -> bool:
        """Run a backward pass; return whether the gradients of all parameters are finite."""
        autograd.backward(self.losses, head_gradients(self.losses, scale), retain_graph=True)
        return all_finite(array for arrays in self.gradients.values() for array in arrays)


def record(
    blocks: Iterable[Tuple[str, gluon.Block]], calls: List[Call], graph_of: Callable
) -> Recording:
    """Append each call of blocks on arrays to a list, and add probes to its outputs.

    Probes are -0, the number whose sum with any other, 0 and -0 included, has the other's bits.
    """

    def called(path: str, block: gluon.Block, arguments: tuple, result: Any) -> Any:
        outputs, structure = flatten(result, "output")
        if not autograd.is_recording() or not all(isinstance(x, nd.NDArray) for x in outputs):
            return result  # nothing will run backward, or the block is being traced
        probes = [-zeros_like(output) if is_float(output) else None for output in outputs]
        sums = []
        for output, probe in zip(outputs, probes):
            if probe is not None:
                probe.attach_grad()
            sums.append(output if probe is None else output + probe)
        inputs = list(arrays_in(arguments))
        graph = graph_of(path, block, arguments)
        calls.append(Call(path, block, inputs, outputs, probes, graph))
        return regroup(sums, structure)

    return Recording(blocks, called)


def _graph_of(path: str, block: gluon.Block, arguments: tuple) -> Optional[tuple]:
    """Return inputs and symbol that a block has just run: the cast graph, or its own."""
    binding = binding_of(block)
    if binding is not None:
        return binding.graph
    hybridized = isinstance(block, gluon.SymbolBlock) or getattr(block, "_active", False)
    return (block._cached_graph or None) if hybridized and not contains_cast(block) else None


@contextlib.contextmanager
def replaying(function: str, net: gluon.Block, loss_fn: object = None) -> Iterator[Replay]:
    """Yield a `Replay` of a net, for a function of this name; restore the net and the loss."""
    with unchanged(function, net, loss_fn):
        replay = Replay(net)
        for parameter in replay.parameters.values():
            if parameter.grad_req != "null":
                gradients = list(map(zeros_like, parameter._grad or parameter._data))
                autograd.mark_variables(parameter._data, gradients, "write")
                replay.gradients[parameter.name] = gradients
        with contextlib.closing(record(named_blocks(net), replay.calls, _graph_of)):
            yield replay
