"""The fewest pins with which a net computes about what it computes in float32.

`suggest_policy` compares passes of the net under a policy with passes in float32. Where they are
too far apart, it pins a prefix of the blocks, in the order of the graph. Bisection finds the
shortest prefix that helps, whose last block has to be pinned. The search then goes on with the
blocks before it.
"""

import contextlib
import copy
import math
import random
import re
import sys
import warnings
from typing import Callable, Dict, FrozenSet, Iterator, List, NamedTuple, Sequence, Tuple, Union

import numpy as np

from gluon_amp.base.formats import FORMATS
from gluon_amp.casting.binding import binding_of, running_blocks
from gluon_amp.casting.cast import cast
from gluon_amp.casting.parameters import contexts_of
from gluon_amp.casting.tracing import named_blocks
from gluon_amp.graph import edge_of
from gluon_amp.inspection.diagnose import diagnose
from gluon_amp.inspection.format_effects import effect_of
from gluon_amp.inspection.graph_search import CallGraph, graphs_of
from gluon_amp.inspection.replay import Replay, inputs_of, replaying
from gluon_amp.inspection.unchanged import unchanged
from gluon_amp.inspection.values import is_float, paragraph, readable
from gluon_amp.policy import Policy
from gluon_amp.policy.cast_pass import Node
from gluon_amp.trainer import guards
from gluon_amp.trainer.first_scale import largest_power
from gluon_amp.trainer.loss_scale import FLOOR, DynamicLossScale

import mxnet as mx
from mxnet import autograd, gluon, nd

# Unit roundoffs by which an output may differ. A gradient may differ by the root of this share, as
# a rounding turns the slope of a few units of a ReLU on or off.
ROUNDOFFS = 32
# A pin has to lower a distance by this factor. In a deep net the roundings of all blocks add up,
# and no pin of one block lowers the distance by more than about 2.
GAIN = 3
# Share of the median norm of the gradients, against which a gradient with less is measured. Such a
# one is a sum of terms that cancel, as that of a bias before BatchNorm, and holds many roundings.
LEAST = 1 / 8

ROW = "{:26.26}{:>9}{:>10}  {}"
HEAD = ("pin", "outputs", "gradients", "values in float32")


class Unit(NamedTuple):
    """What one pin names."""

    kind: str  # 'blocks' or 'ops'
    name: str  # a block's path, or an operator

    def __str__(self) -> str:
        return self.name or "the net itself"

    def has(self, op: str, block: str) -> bool:
        """Return whether a pin of this unit pins an operator of a block."""
        return self.name == (op if self.kind == "ops" else block)


class Passes(NamedTuple):
    """Outputs, and gradients of the parameters, of a pass over each batch."""

    outputs: List[np.ndarray]
    gradients: List[np.ndarray]

    @property
    def finite(self) -> bool:
        """Whether no output and no gradient is infinite or NaN."""
        return all(np.isfinite(array).all() for arrays in self for array in arrays)


class Distance(NamedTuple):
    """‖x - y‖₂ / ‖y‖₂ of the worst output and gradient x, y in float32; inf after an overflow."""

    outputs: float
    gradients: float


def suggest_policy(
    net: gluon.Block,
    loss_fn: Callable,
    data: Union[nd.NDArray, Sequence],
    label: object,
    policy: Union[str, type, Policy] = "float16",
) -> Policy:
    """Return a policy with the fewest pins that keep a net close to float32, and print why.

    The net is close if each output, and the gradient of each parameter, differs from that of the
    net in float32 by at most a share of its norm, over the elements of a batch:

    ==========  =======  =========
    computes    outputs  gradients
    ==========  =======  =========
    float16     1/64     1/8
    bfloat16    1/8      0.35
    ==========  =======  =========

    These are 32 unit roundoffs, and their root. A gradient whose norm is below an eighth of the
    median one is measured against that eighth. A pin has to lower one of the distances at least
    threefold, so a deep net that is farther from float32 because the roundings of all its blocks
    add up gets no pins, and what is printed says so.

    A pin names a block, or an operator where that leaves matrix products in the low precision.
    The loss scale is the largest one with finite gradients, up to 2**24, so no pin stands for a
    loss scale. What Python code outside the HybridBlocks computes is in float32 and not pinned.

    It takes 3 passes where no pin is needed, 10 to 25 where none helps, and 15 to 40 for each pin,
    each with new traces, and the memory of three more copies of the net. The passes run in training
    mode on copies, so the net does not change. The random numbers of numpy and Python do not
    either. MXNet's are seeded, at the end with a number drawn before.

    Parameters
    ----------
    net : Block
        Initialized, cast or not. Of a net with float16 parameters, the float32 masters count.
    loss_fn : callable
        `loss_fn(net(data), label)` returns the loss, or a list of losses, in float32.
    data : NDArray, or list or tuple of them
        The net's input, on its device; a tuple holds several inputs. A list holds several batches
        if `label` is a list of the same length, and several inputs otherwise.
    label : any object that loss_fn accepts
        The second argument of `loss_fn`, or a list of one for each batch.
    policy : str, type or Policy
        That computes in float16 or bfloat16; its own pins stay.

    Returns
    -------
    Policy
        For `amp.cast`. What is printed is a table of the pins, with the distances without each of
        them, and the line of code that casts the net.

    Raises
    ------
    TypeError
        The data are not NDArrays or of a dtype that the net cannot take, `loss_fn` is no function,
        or the loss is float16.
    ValueError
        The policy is unknown, does not compute in float16 or bfloat16, or cannot run on the net's
        device; a parameter is not initialized; the net in float32 is not finite on these batches,
        or differs from pass to pass.

    Examples
    --------
    >>> import gluon_amp as amp, mxnet as mx
    >>> net = mx.gluon.nn.HybridSequential()
    >>> for weight in (300, 1e-3):
    ...     net.add(mx.gluon.nn.Dense(1, weight_initializer=mx.init.Constant(weight)))
    >>> net.initialize()
    >>> data, label = mx.nd.array([[200, 100]]), mx.nd.zeros((1, 1))
    >>> policy = amp.suggest_policy(net, mx.gluon.loss.L2Loss(), data, label)
    pin                         outputs gradients  values in float32
    0                          overflow  overflow  to 9e+04, above 65504
    1                          overflow  overflow  to 9e+04, above 65504
    with all of them                  0         0
    float16 with these pins is within 0.016 and 0.12 of float32. A row has the
    distances without its pin.
    amp.cast(net, amp.Policy('float16').pin(blocks=['^0$', '^1$']))
    """
    policy = Policy.parse(policy)
    if policy.product_dtype == "float32":
        raise ValueError(
            f"suggest_policy() got {policy!r}, which needs no pins: pass a policy that computes in "
            "float16 or bfloat16."
        )
    if not callable(loss_fn):
        raise TypeError(
            f"suggest_policy() got a loss_fn of type {type(loss_fn).__name__}, expected a function "
            "of output and label, such as gluon.loss.L2Loss()."
        )
    for parameter in net.collect_params().values():
        if not contexts_of(parameter):
            raise ValueError(
                f"suggest_policy() needs values of parameter {parameter.name}, which has none: "
                "call net.initialize() or load the parameters first."
            )
    pairs = [(data, label)]
    if isinstance(data, list) and isinstance(label, list) and len(data) == len(label):
        pairs = list(zip(data, label))
    batches = [(inputs_of(inputs, "suggest_policy"), one) for inputs, one in pairs]
    guards.check_own_weights(net.collect_params().values())
    looking = unchanged("suggest_policy", net)  # which the loss may read
    with looking, _continued_random_numbers(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of casts, which the user's own cast repeats
        search = _Search(net, loss_fn, batches, policy)
        pins = search.pins()
        print(search.report(pins))
    return search.pinned(pins)


@contextlib.contextmanager
def _continued_random_numbers() -> Iterator[None]:
    """Continue MXNet's random numbers, whose state cannot be read, from one drawn before."""
    drawn = int(nd.random.randint(0, 2**31 - 1, shape=(1,)).asscalar())
    try:
        yield
    finally:
        mx.random.seed(drawn)


def _seed() -> None:
    """Start all random numbers anew, so that passes have equal dropout masks."""
    for seed in (random.seed, np.random.seed, mx.random.seed):
        seed(0)


class _Search:
    """Passes of copies of a net under different pins, and the search for the fewest."""

    def __init__(
        self, net: gluon.Block, loss_fn: Callable, batches: List[tuple], policy: Policy
    ) -> None:
        graphs = (getattr(block, "_cached_op", None) for _, block in named_blocks(net))
        self.net = copy.deepcopy(net, {id(graph): None for graph in graphs})  # not copyable
        self.loss_fn, self.batches, self.policy = loss_fn, batches, policy
        self.wide = Policy(policy.name).pin(blocks=[""])  # everything in float32
        self.format = FORMATS[policy.compute_dtype]
        share = ROUNDOFFS * self.format.epsilon / 2
        self.bounds = Distance(share, math.sqrt(share))
        self.scale = 1.0  # the largest loss scale to try
        self.distances: Dict[FrozenSet[Unit], Distance] = {}
        cast(self.net, self.wide)
        with replaying("suggest_policy", self.net), autograd.pause():
            _seed()
            self.net(*batches[0][0])  # which initializes parameters whose shapes were unknown
        cast(self.net, "float32")
        self.reference, _ = self._passes(self.wide)
        self._check_reference()
        passes, nodes = self._passes(policy)
        self.distances[frozenset()] = self._compared(passes)
        # The operators that a pin can change, beside those that the policy's own pins name
        changing = (n for n in nodes if n.decision.kind not in ("float32", "uncast"))
        self.nodes = [node for node in changing if not node.decision.pinned]

    def _check_reference(self) -> None:
        """Raise if no comparison with float32 is possible; set the scale."""
        if not self.reference.finite:
            found = (diagnose(self.net, self.loss_fn, x, y, None) for x, y in self.batches)
            advice = next((one.advice for one in found if not one.ok), "look for NaN in it.")
            raise ValueError(f"The net is not finite in float32 either, so no pin helps: {advice}")
        largest = max((np.abs(g).max(initial=0) for g in self.reference.gradients), default=0)
        if self.policy.compute_dtype == "float16" and largest:
            # With which the gradients of float16 parameters are finite
            exponent = math.floor(math.log2(self.format.largest / largest))
            self.scale = min(max(2.0**exponent, FLOOR), DynamicLossScale().max_scale)
        again = self._compared(self._passes(self.wide)[0])
        if not self._within(again):
            raise ValueError(
                f"The net differs by {max(again):.2g} between two passes in float32, more than "
                "roundings do: seed the random numbers that it draws, or use a loss that does not "
                "ignore its head gradient, such as gluon.loss.SoftmaxCrossEntropyLoss."
            )

    # ------------------------------------------------------------------------- passes

    def _passes(self, policy: Policy) -> Tuple[Passes, List[Node]]:
        """Run the batches at the largest loss scale with finite gradients; return operators too."""
        net = cast(copy.deepcopy(self.net), policy)
        passes = Passes([], [])

        def fits(scale: float) -> bool:
            nonlocal passes
            passes = self._passes_at(net, scale)
            return passes.finite

        if not fits(self.scale) and self.scale > FLOOR and fits(FLOOR):
            fits(largest_power(FLOOR, self.scale / 2, fits) or FLOOR)
        bindings = [binding_of(block) for _, block in running_blocks(net)]
        return passes, [node for binding in bindings if binding for node in binding.nodes or ()]

    def _passes_at(self, net: gluon.Block, scale: float) -> Passes:
        passes = Passes([], [])
        for data, label in self.batches:
            with self._forward(net, data, label) as replay:
                replay.backward(scale)
                outputs = (readable(x).asnumpy() for x in replay.outputs if is_float(x))
                passes.outputs.extend(outputs)
                for arrays in replay.gradients.values():
                    total = sum(array.asnumpy().astype("float32") for array in arrays)
                    passes.gradients.append(total / np.float32(scale))
        return passes

    @contextlib.contextmanager
    def _forward(self, net: gluon.Block, data: tuple, label: object) -> Iterator[Replay]:
        """Yield the replay of a forward pass."""
        with replaying("suggest_policy", net, self.loss_fn) as replay:
            _seed()
            replay.forward(self.loss_fn, data, label)
            yield replay

    def _compared(self, passes: Passes) -> Distance:
        if not passes.finite:
            return Distance(math.inf, math.inf)
        norms = [float(np.linalg.norm(gradient)) for gradient in self.reference.gradients]
        least = LEAST * float(np.median([norm for norm in norms if norm] or [0.0]))
        return Distance(
            _farthest(passes.outputs, self.reference.outputs, 0),
            _farthest(passes.gradients, self.reference.gradients, least),
        )

    # ------------------------------------------------------------------------- search

    def pinned(self, units: Sequence[Unit]) -> Policy:
        """Return the policy with pins of these units."""
        ops = [unit.name for unit in units if unit.kind == "ops"]
        blocks = [f"^{re.escape(unit.name)}$" for unit in units if unit.kind == "blocks"]
        return self.policy.pin(ops=ops, blocks=blocks) if units else self.policy

    def distance(self, units: Sequence[Unit]) -> Distance:
        """Return the distance from float32 with pins of these units."""
        key = frozenset(units)
        if key not in self.distances:
            self.distances[key] = self._compared(self._passes(self.pinned(units))[0])
        return self.distances[key]

    def _within(self, distance: Distance) -> bool:
        return all(x <= bound for x, bound in zip(distance, self.bounds))

    def pins(self) -> List[Unit]:
        """Return the units to pin."""
        blocks = [Unit("blocks", path) for path in dict.fromkeys(n.block for n in self.nodes)]
        pins: List[Unit] = []
        for part, bound in enumerate(self.bounds):
            found = blocks
            while self.distance(pins)[part] > bound and found:
                found = self._fewest(blocks, pins, part)
                pins += found
        reached = zip(self.distance(pins), self.bounds)
        allowed = [bound if x <= bound else GAIN * x for x, bound in reached]

        def suffice(units: List[Unit]) -> bool:
            return all(x <= y for x, y in zip(self.distance(units), allowed))

        for pin in sorted(pins, key=blocks.index):
            others = [unit for unit in pins if unit != pin]
            if not suffice(others):
                others += self._narrowed(pin, others) or [pin]
            pins = others if suffice(others) else pins
        return pins

    def _narrowed(self, pin: Unit, others: List[Unit]) -> List[Unit]:
        """Return operators to pin in place of a block, if that leaves more in low precision."""
        ops = dict.fromkeys(node.op for node in self.nodes if pin.has(node.op, node.block))
        part = int(self.distance(others).outputs <= self.bounds.outputs)
        found = self._fewest([Unit("ops", op) for op in ops], others, part)
        return found if self._products(found) < self._products([pin]) or not pin.name else []

    def _products(self, units: Sequence[Unit]) -> int:
        products = (node for node in self.nodes if node.decision.kind == "compute")
        return sum(any(unit.has(node.op, node.block) for unit in units) for node in products)

    def _fewest(self, units: List[Unit], pins: List[Unit], part: int) -> List[Unit]:
        """Return the units to pin beside pins, early or late ones in the graph; or none."""
        early = self._needed(units, pins, part)
        late = early and self._needed(units[::-1], pins, part)
        return min(late or early, early, key=lambda found: (len(found), self._products(found)))

    def _needed(self, units: List[Unit], pins: List[Unit], part: int) -> List[Unit]:
        """Return units to pin beside pins, each of which lowers a distance `GAIN` times; or none.

        `part` is the place of the distance in `Distance`.
        """
        goal = min(self.distance(pins)[part] / GAIN, sys.float_info.max)
        found: List[Unit] = []

        def distance(count: int) -> float:
            return self.distance([*pins, *found, *units[:count]])[part]

        while distance(0) > goal:
            few, enough = 0, len(units)
            while enough - few > 1:
                middle = (few + enough) // 2
                few, enough = (middle, enough) if distance(middle) > goal else (few, middle)
            if distance(enough) > goal or distance(few) < GAIN * distance(enough):
                return []
            found.append(units[few])
            units = units[:few]
        return found

    # ------------------------------------------------------------------------- report

    def report(self, pins: List[Unit]) -> str:
        """Return the table of the pins, what it says, and the line that casts the net."""
        lines = [ROW.format(*HEAD)]
        for pin in pins:
            without = self.distance([one for one in pins if one != pin])
            lines.append(_line(str(pin), without, self._values(pin)))
        lines.append(_line("with all of them" if pins else "without pins", self.distance(pins)))
        bounds = "within {:.2g} and {:.2g} of float32".format(*self.bounds)
        text = f"{self.policy.name} {'with these pins ' if pins else ''}is"
        if self._within(self.distance(pins)):
            text += f" {bounds}."
        else:
            text += f" not {bounds}, and no other pin lowers a distance threefold."
        if pins:
            text += " A row has the distances without its pin."
        code = paragraph(f"amp.cast(net, amp.{self.pinned(pins)!r})", indent="    ")
        return "\n".join([*lines, paragraph(text), code])

    def _values(self, pin: Unit) -> str:
        """Return what the low precision does to the values that a unit reads and writes."""
        net = cast(copy.deepcopy(self.net), self.wide)
        arrays: List[np.ndarray] = []
        for data, label in self.batches:
            with self._forward(net, data, label) as replay:
                for graph in graphs_of(replay):
                    arrays += _tensors_of(graph, pin)
        largest = max((float(np.abs(array).max(initial=0)) for array in arrays), default=0)
        effects = [effect_of(array, self.format) for array in arrays]
        zeros = max((effect.underflow for effect in effects), default=0)
        if largest > self.format.largest:
            return f"to {largest:.3g}, above {self.format.largest:.5g}"
        if zeros > self.bounds.outputs:
            return f"{zeros:.0%} of one tensor becomes 0"
        rounding = self.format.epsilon / 2 * 2.0 ** math.floor(math.log2(largest or 1))
        return f"to {largest:.3g}, rounded by {rounding:.2g}"


def _line(name: str, distance: Distance, values: str = "") -> str:
    numbers = (f"{x:.2g}" if math.isfinite(x) else "overflow" for x in distance)
    return ROW.format(name, *numbers, values).rstrip()


def _tensors_of(graph: CallGraph, unit: Unit) -> Iterator[np.ndarray]:
    """Yield the floats that a unit's operators read and write in a graph."""
    tensors = graph.evaluate()
    own = {i for i, node in enumerate(graph.nodes) if unit.has(node["op"], graph.block_of(i))}
    read = {edge_of(entry) for i in own for entry in graph.nodes[i]["inputs"]}
    for tensor, array in tensors.items():
        if (tensor in read or tensor[0] in own) and is_float(array):
            yield array.asnumpy()


def _farthest(arrays: List[np.ndarray], wide: List[np.ndarray], least: float) -> float:
    """Return the largest of the arrays' distances from the wide ones, relative to their norms."""
    distances = [0.0]
    for array, reference in zip(arrays, wide):
        error = float(np.linalg.norm(array.astype("float64") - reference))
        norm = max(float(np.linalg.norm(reference.astype("float64"))), least)
        distances.append(error / norm if norm else math.inf if error else 0.0)
    return max(distances)
