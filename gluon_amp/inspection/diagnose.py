"""Why a step overflowed and what helps; and how far the gradients are from over- and underflow.

`diagnose` replays one batch and leaves the net as it was. Whether anything is wrong it asks the net
itself; where, it asks the graph, whose tensors it evaluates one by one, or whose inputs it gives
zeros to add, as the gradient of such a zero is the gradient that an operator sends back.
"""

import contextlib
import math
import random
import re
import textwrap
from dataclasses import dataclass
from typing import Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

import numpy as np

from gluon_amp.casting.binding import binding_of
from gluon_amp.casting.statistics import is_statistic
from gluon_amp.casting.tracing import named_blocks
from gluon_amp.dtypes import dtype_name
from gluon_amp.lowering import lower
from gluon_amp.policy import graph
from gluon_amp.trainer import ScaledSteps
from gluon_amp.trainer.arrays import all_finite, dense_part
from gluon_amp.trainer.loss_scale import LARGEST, SMALLEST, NoLossScale, resolve

import mxnet as mx
from mxnet import autograd, nd
from mxnet.gluon.block import _flatten, _regroup

FLOAT16_MAX = graph.FLOAT16_MAX
FLOAT16_NORMAL = 2.0**-14  # below it float16 loses digits, below 2**-24 everything
LOWEST_SCALE = 2.0**-24  # the search ends here: a scale that makes 1 the smallest subnormal
MARGIN_BITS = 3  # between the recommended scale's largest gradient and 65504
WIDTH = 80
CASTS = ("Cast", "amp_cast")
LOSS = "loss"

Range = Optional[Tuple[float, float]]


@dataclass(frozen=True)
class Diagnosis:
    """What `diagnose` found.

    Attributes
    ----------
    verdict : str
        'ok', 'bad_data', 'non_finite_parameter', 'forward_overflow' or 'backward_overflow'; the
        first of the causes, in this order, that explains what follows from it.
    block : str or None
        Path of the first block where it happens, as in `'features.3'`; `''` is the net itself,
        `'loss'` the loss function, and None no block.
    op : str or None
        The operator in it.
    value_range : (float, float) or None
        Least and greatest finite number of what went in there: of the data or the parameter that is
        not finite, of the block's input (forward), of the gradient that it got (backward). With
        'ok', of all gradients of parameters.
    loss_scale : float
        The scale of the replayed backward pass.
    recommended_scale : float or None
        After a backward overflow the largest power of two that gives finite gradients.
    advice : str
        One sentence: what to do.

    Examples
    --------
    >>> import gluon_amp as amp
    >>> print(amp.Diagnosis('bad_data', loss_scale=128, advice='Drop sample 3 of this batch.'))
    bad_data
      Drop sample 3 of this batch.
    """

    verdict: str
    block: Optional[str] = None
    op: Optional[str] = None
    value_range: Range = None
    loss_scale: float = 1.0
    recommended_scale: Optional[float] = None
    advice: str = ""

    def __str__(self) -> str:
        place = "" if self.block is None else f" in {self.block or 'the net itself'}"
        lines = [f"{self.verdict}{place}" + (f" ({self.op})" if self.op else "")]
        if self.value_range is not None:
            what = "gradients" if self.verdict == "ok" else "what went in"
            lines.append(
                f"  {what}: {_text(self.value_range)}, loss scale {_power(self.loss_scale)}"
            )
        lines.append(f"  {self.advice}")
        return "\n".join(
            textwrap.fill(line, WIDTH, subsequent_indent="  ", break_on_hyphens=False)
            for line in lines
        )


def diagnose(net, loss_fn: Callable, data, label, loss_scale="dynamic") -> Diagnosis:
    """Replay a batch and tell where it first stops being finite, and whether a lower scale helps.

    The batch runs in training mode. Parameters, gradients (`grad_req='add'` included), running
    statistics, the state of the Trainer and of numpy's and Python's random numbers are afterwards
    what they were; MXNet's random numbers go on, as their state cannot be read, and dropout masks
    are other ones than in the step that overflowed. A deferred net is initialized.

    Parameters
    ----------
    net : Block
        Cast or not. In parts that are neither cast nor hybridized, blocks are looked at as wholes.
    loss_fn : callable
        `loss_fn(net(data), label)` gives the loss, or a list of losses, in float32.
    data : NDArray or list of NDArray
        What the net takes, on its device; a list or tuple stands for several arguments.
    label : anything that loss_fn takes
    loss_scale : 'dynamic', number, LossScale or None
        The scale to try: for an object its present one, for 'dynamic' 65536, for None 1.

    Returns
    -------
    Diagnosis

    Raises
    ------
    TypeError
        Data that are not NDArrays, or a loss in float16.

    Examples
    --------
    >>> import gluon_amp as amp, mxnet as mx
    >>> net = amp.cast(mx.gluon.nn.Dense(1, in_units=2), 'float16')
    >>> net.initialize(mx.init.One())
    >>> data, label = mx.nd.array([[300, 1]]), mx.nd.zeros((1, 1))
    >>> found = amp.diagnose(net, mx.gluon.loss.L2Loss(), data, label, loss_scale=128)
    >>> found.verdict, found.op, found.recommended_scale
    ('backward_overflow', 'FullyConnected', 0.5)
    """
    scale = resolve(loss_scale).scale
    data = tuple(data) if isinstance(data, (list, tuple)) else (data,)
    for array in data:
        if not isinstance(array, nd.NDArray):
            raise TypeError(
                f"diagnose() got data of type {type(array).__name__}, expected NDArrays as for "
                "net(data)."
            )
    found = _bad_data(data, label) or _bad_parameter(net, data)
    if not found:
        with _replay(net) as replay:
            replay.run(loss_fn, data, label)
            found = _forward(replay) or _backward(replay, scale)
    return _completed(found, scale)


def _completed(found: dict, scale: float) -> Diagnosis:
    return Diagnosis(**{"loss_scale": scale, **found})


# ------------------------------------------------------------------------------- data, parameters


def _bad_data(data, label) -> Optional[dict]:
    arrays = [(f"data[{k}]" if len(data) > 1 else "data", a) for k, a in enumerate(data)]
    arrays += [("label", a) for a in _arrays(label)]
    for name, array in arrays:
        if not _finite(array):
            wrong = np.nonzero(~np.isfinite(array.asnumpy()))[0]
            return {
                "verdict": "bad_data",
                "value_range": _range(array),
                "advice": f"Fix or drop sample {wrong[0]} of this batch, since {name} holds "
                f"{_count(array)}: no dtype or loss scale helps against that.",
            }
    return None


def _bad_parameter(net, data) -> Optional[dict]:
    if any(param._data is None for param in net.collect_params().values()):
        with autograd.pause():
            net(*data)
    for path, block in named_blocks(net):
        for param in block._reg_params.values():
            for array in param.list_data() if param._data is not None else ():
                if not _finite(array):
                    return {
                        "verdict": "non_finite_parameter",
                        "block": path,
                        "value_range": _range(array),
                        "advice": f"Go back to a checkpoint in which {param.name} is finite, since "
                        f"it holds {_count(array)} now, and then lower the learning rate or clip "
                        "the gradients.",
                    }
    return None


# ------------------------------------------------------------------------------------- replaying


class _Call(NamedTuple):
    """One call of a block on arrays; `probes` are zeros that were added to its outputs."""

    path: str
    block: object
    inputs: List[nd.NDArray]
    outputs: List[nd.NDArray]
    probes: List[nd.NDArray]
    graph: Optional[tuple]  # (inputs, symbol), where the block runs one


class _Replay:
    """A forward pass and its backward passes, in gradient buffers of their own."""

    def __init__(self, net) -> None:
        self.net = net
        self.params = {p.name: p for p in net.collect_params().values() if p._data is not None}
        self.grads: Dict[str, List[nd.NDArray]] = {}
        self.calls: List[_Call] = []
        self.losses: List[nd.NDArray] = []

    def run(self, loss_fn, data, label) -> None:
        with autograd.record():
            loss = loss_fn(self.net(*data), label)
        self.losses = list(_arrays(loss))
        for one in self.losses:
            if np.dtype(one.dtype) == np.float16:
                raise TypeError(
                    "The loss is float16, in which its sum and the scale overflow: cast the "
                    "network's output to float32 before the loss."
                )

    def backward(self, scale: float) -> bool:
        """Run a backward pass; tell whether all gradients of parameters are finite."""
        heads = [nd.full(x.shape, scale, ctx=x.context, dtype=x.dtype) for x in self.losses]
        autograd.backward(self.losses, heads, retain_graph=True)
        return all_finite(grad for grads in self.grads.values() for grad in grads)

    def tap(self, path: str, block, forward: Callable) -> Callable:
        """Wrap a block's forward, so that each call on arrays is recorded."""

        def tapped(*args):
            out = forward(*args)
            flat, structure = _flatten(out, "output")
            if not all(isinstance(x, nd.NDArray) for x in flat):
                return out  # the block is being traced
            probes = [nd.zeros_like(x) if _is_float(x) else None for x in flat]
            for probe in filter(_is_array, probes):
                probe.attach_grad()
            shifted = [x if p is None else x + p for x, p in zip(flat, probes)]
            inputs = [x for x in _flatten(args, "input")[0] if x is not None]
            traced = _graph_of(block)
            self.calls.append(_Call(path, block, inputs, flat, probes, traced))
            return _regroup(shifted, structure)

        return tapped


def _is_array(value) -> bool:
    return value is not None


def _graph_of(block) -> Optional[tuple]:
    """Inputs and symbol that a block has just run: the cast graph, or its own if hybridized."""
    binding = binding_of(block)
    if binding:
        return binding.graph
    hybridized = isinstance(block, mx.gluon.SymbolBlock) or getattr(block, "_active", False)
    return (vars(block)["_cached_graph"] or None) if hybridized else None


@contextlib.contextmanager
def _replay(net) -> Iterator[_Replay]:
    """Lend a net's parameters to a replay and put everything back afterwards."""
    replay = _Replay(net)
    params = replay.params.values()
    states = random.getstate(), np.random.get_state()
    own = [(param, param._data, param._trainer) for param in params]
    tapped = []
    try:
        for param, arrays, _ in own:
            # Other arrays on the same memory, as a backward pass of the user's that is still to
            # come needs the marks on the present ones; statistics, which are written, are copied.
            lent = [a.copy() if is_statistic(param) else a.detach() for a in arrays]
            if param.grad_req != "null":
                grads = [
                    nd.zeros(g.shape, ctx=g.context, dtype=g.dtype, stype=g.stype)
                    for g in param.list_grad()
                ]
                autograd.mark_variables(lent, grads, "write")
                replay.grads[param.name] = grads
            param._data = lent
            param._trainer = None  # or a cast net tells it that a step has begun
        for path, block in named_blocks(net):
            if "forward" not in vars(block):  # a shared block comes once
                object.__setattr__(block, "forward", replay.tap(path, block, block.forward))
                tapped.append(block)
        yield replay
    finally:
        for block in tapped:
            object.__delattr__(block, "forward")
        for param, arrays, trainer in own:
            param._data = arrays
            param._trainer = trainer
        random.setstate(states[0])
        np.random.set_state(states[1])


# --------------------------------------------------------------------------------- forward


def _forward(replay: _Replay) -> Optional[dict]:
    for call in replay.calls:
        if not all(map(_finite, call.outputs)):
            return _forward_finding(replay, call)
    if not all(map(_finite, replay.losses)):
        outputs = replay.calls[-1].outputs
        return {
            "verdict": "forward_overflow",
            "block": LOSS,
            "value_range": _range(*outputs),
            "advice": "Check the labels and the loss function, which is not finite for outputs "
            f"from {_text(_range(*outputs))}: no loss scale and no policy can help.",
        }
    return None


def _hidden(replay: _Replay) -> Optional[dict]:
    """Find an infinity that the forward pass has hidden again, as in 1 / (1 + exp(x))."""
    for call in replay.calls:
        if call.graph and _Graph(replay, call).first_overflow() is not None:
            return _forward_finding(replay, call)
    return None


def _forward_finding(replay: _Replay, call: _Call) -> dict:
    """What to say of a call in which something is not finite."""
    site = _Graph(replay, call).first_overflow() if call.graph else None
    if site is None:
        site = _Site(call.path, None, "float32", _range(*call.inputs))
    dtype = site.dtype
    if dtype == "float16":
        advice = (
            f"Pin {_place(site)} to float32 and cast again, with {_pin(site)}: its result does not "
            "fit float16, and no lower loss scale can help in the forward pass."
        )
        if site.cast:
            advice = (
                f"Scale what goes in there, which does not fit float16 (at most {FLOAT16_MAX:g}), "
                f"or pin its reader to float32 with {_pin(site)}."
            )
    else:
        advice = (
            f"Look there for a division by 0, a log or root of what is not above 0, or diverged "
            f"weights: it computes in {dtype}, so neither a pin nor a lower loss scale can help."
        )
    return {
        "verdict": "forward_overflow",
        "block": site.block,
        "op": site.op,
        "value_range": site.value_range,
        "advice": advice,
    }


class _Site(NamedTuple):
    """Where something happens: block, operator, its dtype, what went in; `cast` before it."""

    block: str
    op: Optional[str]
    dtype: str
    value_range: Range
    cast: bool = False


def _place(site: _Site) -> str:
    return f"block {site.block}" if site.block else f"the operator {site.op}"


def _pin(site: _Site) -> str:
    if site.block:
        return f"policy.pin(blocks=[r'^{re.escape(site.block)}$'])"
    return f"policy.pin(ops=[{site.op!r}])"


class _Graph:
    """The graph of one call, to be evaluated tensor by tensor."""

    def __init__(self, replay: _Replay, call: _Call) -> None:
        self.call = call
        inputs, self.symbol = call.graph
        self.json = graph.to_json(self.symbol)
        self.nodes = self.json["nodes"]
        self.context = call.inputs[0].context
        self.arrays = {s.name: a for s, a in zip(inputs, call.inputs)}
        for name in set(self.symbol.list_inputs()) - set(self.arrays):
            self.arrays[name] = replay.params[name].data(self.context)
        dtypes = {name: array.dtype for name, array in self.arrays.items()}
        self.edges = graph.edge_dtypes(self.json, dtypes, self.symbol)
        self.labels = _labels(replay.net, call, self.nodes)

    def first_overflow(self) -> Optional[_Site]:
        """The first operator whose result is not finite."""
        values = self._values()
        for i, node in enumerate(self.nodes):
            results = [values[edge] for edge in self.edges if edge[0] == i]
            if node["op"] == "null" or all(map(_finite, results)):
                continue
            site = self._site(i, self._reader(i) if node["op"] in CASTS else i)
            fed = [values[tuple(entry[:2])] for entry in node["inputs"][:1]]
            return site._replace(value_range=_range(*fed))
        return None

    def first_backward_overflow(self, head_grads: List[nd.NDArray]) -> Optional[_Site]:
        """The first operator, from the output, that sends back gradients that are not finite."""
        sent = self._sent_back(head_grads)
        for i in reversed(range(len(self.nodes))):
            node = self.nodes[i]
            if all(_finite(sent[i, k]) for k in range(len(node["inputs"])) if (i, k) in sent):
                continue
            where = i
            if node["op"] in CASTS:
                # A gradient that does not fit the narrower dtype is the narrower operator's.
                source = node["inputs"][0][0]
                where = source if self.nodes[source]["op"] != "null" else self._reader(i)
            return self._site(i, where)._replace(value_range=self._received(i, sent, head_grads))
        return None

    def _site(self, i: int, where: int) -> _Site:
        """Name the place: node `where` for what happened in node `i`."""
        cast = self.nodes[i]["op"] in CASTS
        dtype = self.edges.get((i, 0), "float32")
        if cast and where < i:
            dtype = self.edges[tuple(self.nodes[i]["inputs"][0][:2])]
        return _Site(self.labels(where), self.nodes[where]["op"], dtype, None, cast)

    def _reader(self, i: int) -> int:
        """The first operator that reads a cast node, past further casts."""
        for k, node in enumerate(self.nodes):
            if any(source == i for source, *_ in node["inputs"]):
                return self._reader(k) if node["op"] in CASTS else k
        return i

    def _values(self) -> Dict[Tuple[int, int], nd.NDArray]:
        """Every tensor of the graph."""
        values = {
            (i, 0): self.arrays[node["name"]]
            for i, node in enumerate(self.nodes)
            if node["op"] == "null"
        }
        computed = [edge for edge in self.edges if edge not in values]
        heads = [[*edge, 0] for edge in computed]
        every = graph.from_json({**self.json, "heads": heads}, like=self.symbol)
        with autograd.train_mode():
            values.update(zip(computed, map(_readable, self._run(every, {}))))
        return values

    def _sent_back(self, head_grads) -> Dict[Tuple[int, int], nd.NDArray]:
        """The gradient that each operator sends to each of its inputs, by node and position."""
        values = self._values()
        aux = set(self.symbol.list_auxiliary_states())
        nodes, places, probes = [], {}, {}

        def emit(op, name, inputs=(), **attrs):
            nodes.append({"op": op, "name": name, "attrs": attrs, "inputs": list(inputs)})
            return [len(nodes) - 1, 0, 0]

        for i, node in enumerate(self.nodes):
            inputs = []
            for k, (source, output, *version) in enumerate(node["inputs"]):
                entry = [places[source], output, *version]
                dtype = self.edges[source, output]
                if dtype in ("float32", *graph.LOW_PRECISION) and (
                    self.nodes[source]["name"] not in aux
                ):
                    name = f"_probe_{i}_{k}"
                    probes[i, k] = name, values[source, output].shape
                    zero = emit("null", name)
                    if dtype != "float32":
                        zero = emit("amp_cast", f"{name}_cast", [zero], dtype=dtype)
                    entry = emit("elemwise_add", f"{name}_sum", [entry, zero])
                inputs.append(entry)
            places[i] = len(nodes)
            nodes.append({**node, "inputs": inputs})
        heads = [[places[i], *rest] for i, *rest in self.json["heads"]]
        probed = graph.from_json({**self.json, "nodes": nodes, "heads": heads}, like=self.symbol)
        zeros = {
            name: nd.zeros(shape, ctx=self.context, dtype="float32")
            for name, shape in probes.values()
        }
        for zero in zeros.values():
            zero.attach_grad()
        with autograd.record():
            outputs = self._run(probed, zeros)
        autograd.backward(outputs, head_grads)
        return {place: zeros[name].grad for place, (name, _) in probes.items()}

    def _run(self, symbol, zeros: Dict[str, nd.NDArray]) -> List[nd.NDArray]:
        """Outputs of a graph with the same variables and `zeros`, in training mode."""
        arrays = {name: array.detach() for name, array in self.arrays.items()}
        for name in self.symbol.list_auxiliary_states():
            arrays[name] = arrays[name].copy()  # as the pass writes it
        arrays.update(zeros)
        dtypes = {name: array.dtype for name, array in arrays.items()}
        lowered = lower(symbol, dtypes, self.context.device_type)
        out = nd.CachedOp(lowered)(*(arrays[name] for name in lowered.list_inputs()))
        return out if isinstance(out, list) else [out]

    def _received(self, i: int, sent, head_grads) -> Range:
        """Range of the gradient that node `i` got for its first output."""
        got = [
            sent[reader, k]
            for reader, node in enumerate(self.nodes)
            for k, (source, *_) in enumerate(node["inputs"])
            if source == i and (reader, k) in sent
        ]
        got += [grad for (source, *_), grad in zip(self.json["heads"], head_grads) if source == i]
        return _range(*got)


def _labels(net, call: _Call, nodes: List[dict]) -> Callable[[int], str]:
    """Return a function from a node's number to the path of its block."""
    binding = binding_of(call.block)
    if binding:
        planned = {node.name: node.block for node in binding.nodes}
        return lambda i: planned.get(nodes[i]["name"], call.path)
    prefixes = [(block.prefix, path) for path, block in named_blocks(call.block, call.path)]

    def by_name(i):
        fitting = [pair for pair in prefixes if nodes[i]["name"].startswith(pair[0])]
        return max(fitting, key=lambda pair: len(pair[0]), default=("", call.path))[1]

    return by_name


# --------------------------------------------------------------------------------- backward


def _backward(replay: _Replay, scale: float) -> dict:
    if replay.backward(scale):
        span = _range(*(grad for grads in replay.grads.values() for grad in grads))
        return {
            "verdict": "ok",
            "value_range": span,
            "advice": f"Nothing to do: everything is finite at loss scale {_power(scale)}.",
        }
    helps = _scale_that_helps(replay, scale)
    if helps is None:
        hidden = _hidden(replay)
        if hidden:
            return hidden
    replay.backward(scale)
    site = _first_backward_overflow(replay)
    if helps is not None:
        power = _power(helps)
        advice = f"Lower the loss scale to {power}, where this batch has finite gradients"
        if helps < 1:
            advice += f" (a dynamic scale goes that low with min_scale={power.replace('^', '**')})"
        advice += "."
    else:
        pin = f", or pin it to float32 with {_pin(site)}" if site.dtype == "float16" else ""
        advice = (
            f"Add an epsilon there{pin}: a derivative is infinite or NaN, as that of a root, log "
            "or norm at 0 (and float16 rounds to 0 what is below 3e-8), so no lower loss scale "
            "can help."
        )
    return {
        "verdict": "backward_overflow",
        "block": site.block,
        "op": site.op,
        "value_range": site.value_range,
        "recommended_scale": helps,
        "advice": advice,
    }


def _scale_that_helps(replay: _Replay, scale: float) -> Optional[float]:
    """The largest power of two below `scale` whose gradients are finite, by bisection."""
    low, high = int(math.log2(LOWEST_SCALE)), int(math.log2(scale))
    if high <= low or not replay.backward(2.0**low):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        if replay.backward(2.0**middle):
            low = middle
        else:
            high = middle
    return 2.0**low


def _first_backward_overflow(replay: _Replay) -> _Site:
    """Go through the calls from the last one, as the gradients do."""
    sender = _Site(LOSS, None, "float32", _range(*replay.losses))
    for call in reversed(replay.calls):
        grads = [
            nd.zeros_like(x) if p is None else p.grad for x, p in zip(call.outputs, call.probes)
        ]
        if not all(map(_finite, grads)):
            return sender
        sender = _Site(call.path, None, "float32", _range(*grads))
        own = [replay.grads.get(p.name, []) for p in call.block._reg_params.values()]
        if call.graph:
            site = _Graph(replay, call).first_backward_overflow(grads)
            if site is not None:
                return site
        elif not all_finite(grad for grads in own for grad in grads):
            return sender
    return sender


# ------------------------------------------------------------------------------ gradient report


class GradientRow(NamedTuple):
    """The gradient of one parameter, as it lies in its buffers, loss scale included.

    Attributes
    ----------
    name : str
    dtype : str
        What it was computed in: 'float16' also for a float32 buffer whose values passed float16.
    size : int
        Number of elements, over all devices.
    largest : float
        Greatest magnitude; inf or NaN after an overflow.
    zero, subnormal : float
        Shares of elements that are exactly 0, and that are not 0 but below 2**-14, where float16
        has less than its 11 bits.
    headroom : float
        Bits between `largest` and 65504: log2(65504 / largest). Below 0 after an overflow, inf for
        a gradient of zeros or one that was computed in float32.
    """

    name: str
    dtype: str
    size: int
    largest: float
    zero: float
    subnormal: float
    headroom: float


class GradientReport:
    """What `gradient_report` returns.

    Attributes
    ----------
    rows : list of GradientRow
        In the order of the net's parameters.
    loss_scale : float
        What the gradients carry.
    recommended_scale : float or None
        The largest power of two with which the largest float16 gradient stays 3 bits below 65504:
        NVIDIA's rule, scale * max|gradient| < 65504, with room for other batches and for gradients
        of activations, which are not looked at. None where nothing can be said: no float16
        gradient, only zeros, or an overflow.
    """

    def __init__(self, rows: List[GradientRow], loss_scale: float) -> None:
        self.rows = rows
        self.loss_scale = loss_scale

    @property
    def recommended_scale(self) -> Optional[float]:
        largest = max((row.largest for row in self._low), default=0.0)
        if self.overflowed or largest == 0:
            return None
        exponent = math.floor(math.log2(FLOAT16_MAX / largest * self.loss_scale)) - MARGIN_BITS
        return min(max(2.0**exponent, SMALLEST), LARGEST)

    @property
    def overflowed(self) -> List[str]:
        """Names of the parameters whose gradients are not finite."""
        return [row.name for row in self.rows if not math.isfinite(row.largest)]

    @property
    def _low(self) -> List[GradientRow]:
        return [row for row in self.rows if row.dtype == "float16"]

    def __str__(self) -> str:
        width = WIDTH - 41
        head = f"{'gradient of':{width}} {'dtype':>8} {'largest':>8} {'0':>6} {'<2^-14':>6}"
        lines = [f"{head} {'headroom':>8}"]
        for row in self.rows:
            name = row.name if len(row.name) <= width else f"…{row.name[1 - width :]}"
            bits = f"{row.headroom:.1f}" if math.isfinite(row.headroom) else "-"
            lines.append(
                f"{name:{width}} {row.dtype:>8} {row.largest:8.1e} {row.zero:6.1%} "
                f"{row.subnormal:6.1%} {bits:>8}"
            )
        lines.append(f"loss scale {_power(self.loss_scale)}, {self._conclusion()}")
        return "\n".join(lines)

    def _conclusion(self) -> str:
        if self.overflowed:
            return "which overflowed: lower it and look again"
        if self.recommended_scale is None:
            return "nothing to recommend: no float16 gradient but zeros"
        return f"recommended {_power(self.recommended_scale)}"


def gradient_report(net, trainer) -> GradientReport:
    """Tell how far the present gradients are from float16's limits; call it before the step.

    It looks at what lies in the gradient buffers, once, and runs nothing. A zero there may be a
    true zero (behind a ReLU that is off, an unused embedding) or one flushed to zero; only a pass
    with a larger scale could tell. So `zero` is an upper bound of what was flushed, and the share
    of subnormals tells whether there is reason to expect any: where gradients reach down to
    float16's floor, both are large.

    Parameters
    ----------
    net : Block
        After its backward pass.
    trainer : Trainer
        Of these parameters; only its loss scale is read.

    Returns
    -------
    GradientReport

    Raises
    ------
    TypeError
        A trainer without a loss scale.
    RuntimeError
        No scaled backward pass yet.

    Examples
    --------
    >>> import gluon_amp as amp, mxnet as mx
    >>> net = amp.cast(mx.gluon.nn.Dense(1, in_units=2), 'float16')
    >>> net.initialize(mx.init.One())
    >>> trainer = amp.Trainer(net.collect_params(), 'sgd', loss_scale=128)
    >>> with mx.autograd.record():
    ...     loss = net(mx.nd.array([[1, 2]]))
    >>> trainer.backward(loss)
    >>> amp.gradient_report(net, trainer).recommended_scale
    2048.0
    """
    if not isinstance(trainer, ScaledSteps):
        raise TypeError(
            f"gradient_report() takes an amp.Trainer, received a {type(trainer).__name__}: build "
            "one, or call amp.init_trainer(trainer) first."
        )
    scale = 1.0
    if not isinstance(trainer.loss_scale, NoLossScale):
        scale = trainer.loss_scale.backward_scale
    if scale is None:
        raise RuntimeError(
            "There are no gradients to report on: call trainer.backward(loss) first, and the "
            "report before trainer.step()."
        )
    low = _read_in_float16(net)
    rows = []
    for param in net.collect_params().values():
        if param.grad_req != "null" and param._data is not None:
            in_float16 = param.name in low or np.dtype(param.dtype) == np.float16
            rows.append(_row(param, "float16" if in_float16 else "float32"))
    return GradientReport(rows, scale)


def _read_in_float16(net) -> set:
    """Names of the parameters that some operator reads in float16, so that their gradients are."""
    names = set()
    for _, block in named_blocks(net):
        binding = binding_of(block)
        for node in (binding and binding.nodes) or ():
            if node.dtype == "float16" and node.decision.kind != "norm":
                names.update(node.params)
    return names


def _row(param, dtype: str) -> GradientRow:
    values = np.concatenate([dense_part(grad).asnumpy().ravel() for grad in param.list_grad()])
    size = sum(int(np.prod(grad.shape)) for grad in param.list_grad())
    magnitude = np.abs(values.astype(np.float32))
    largest = float(magnitude.max()) if magnitude.size else 0.0
    nonzero = int(np.count_nonzero(magnitude))
    small = int(np.count_nonzero(magnitude < FLOAT16_NORMAL)) - (magnitude.size - nonzero)
    headroom = math.inf
    if dtype == "float16" and largest != 0:
        headroom = math.log2(FLOAT16_MAX / largest) if math.isfinite(largest) else -math.inf
    # Rows that a row_sparse gradient does not hold are zeros.
    return GradientRow(
        param.name, dtype, size, largest, 1 - nonzero / max(size, 1), small / max(size, 1), headroom
    )


# ------------------------------------------------------------------------------------- numbers


def _arrays(value) -> Iterator[nd.NDArray]:
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _arrays(item)
    elif isinstance(value, nd.NDArray):
        yield value


def _readable(array) -> nd.NDArray:
    """The array, or in float32 what numpy cannot read."""
    wide = dtype_name(array.dtype) == "bfloat16"
    return nd.amp_cast(array, dtype="float32") if wide else array


def _is_float(array) -> bool:
    return np.dtype(array.dtype).kind == "f"


def _finite(array) -> bool:
    return not _is_float(array) or all_finite([array])


def _range(*arrays) -> Range:
    """Least and greatest finite number in these arrays."""
    found = []
    for array in arrays:
        values = array.asnumpy()
        values = values[np.isfinite(values)]
        if values.size:
            found += [float(values.min()), float(values.max())]
    return (min(found), max(found)) if found else None


def _count(array) -> str:
    values = array.asnumpy()
    nans, infs = int(np.isnan(values).sum()), int(np.isinf(values).sum())
    return f"{nans} NaN and {infs} infinite values among {values.size}"


def _text(span: Range) -> str:
    return "no finite number" if span is None else f"{span[0]:.4g} to {span[1]:.4g}"


def _power(scale: float) -> str:
    """A loss scale, which is a power of two, with all its digits or else as one: 65536, 2^38."""
    exact = f"{scale:g}"
    return exact if float(exact) == scale else f"2^{math.log2(scale):g}"
