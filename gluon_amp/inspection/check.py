"""What a net and its trainer do that costs speed or accuracy in float16, found before training.

Tensor Cores multiply blocks of 8 float16 numbers. Dimensions that are no multiples of 8 are padded
by cuBLAS 11 and cuDNN 7.6.3 and later, and computed without Tensor Cores by earlier ones ("Tensor
Core Requirements" in NVIDIA's Matrix Multiplication Background User's Guide).
"""

import os
import textwrap
from typing import Dict, Iterator, List, NamedTuple, Optional

import numpy as np

from gluon_amp.casting.binding import binding_of
from gluon_amp.casting.parameters import dtype_of
from gluon_amp.casting.statistics import is_statistic
from gluon_amp.casting.tracing import HybridBlock, named_blocks, roots, symbol_of
from gluon_amp.dtypes import dtype_name
from gluon_amp.messages import some
from gluon_amp.policy import Policy, graph
from gluon_amp.trainer import ScaledSteps

import mxnet as mx
from mxnet import autograd
from mxnet.gluon import nn
from mxnet.gluon.block import _flatten

MULTIPLE = 8  # of float16 numbers, which are 16 bytes
IMAGE_CHANNELS = 3
WIDTH = 80
SMALLEST = graph.FLOAT16_TINY

# Gluon's norm layers that net.cast('float16') takes along; BatchNorm stays float32 by itself.
NORM_LAYERS = (nn.LayerNorm, nn.GroupNorm, nn.InstanceNorm)


class Finding(NamedTuple):
    """Something that `check` found.

    Attributes
    ----------
    kind : str
        'dimension', 'epsilon', 'loss_head', 'norm', 'kvstore' or 'frozen'.
    block : str
        Path of the block, as in `'features.0'`; `''` is the net itself, or its trainer.
    problem, fix : str
        What is wrong, and what to do.
    """

    kind: str
    block: str
    problem: str
    fix: str

    def __str__(self) -> str:
        text = f"{self.block or 'net'}: {self.problem}: {self.fix}."
        return textwrap.fill(text, WIDTH, subsequent_indent="  ", break_on_hyphens=False)


class Findings(list):
    """A list of `Finding`, each a paragraph of its text."""

    def __str__(self) -> str:
        return "\n".join(map(str, self)) or "nothing found"

    __repr__ = __str__


def check(net, trainer=None, *inputs: mx.nd.NDArray) -> Findings:
    """Look for what makes a net slow or inexact in float16, and tell the fix of each.

    Layer by layer, dimensions of float16 products that are no multiples of 8, which Tensor Cores
    ask for (depthwise convolutions aside: they are no matrix products); float16 that reaches the
    loss; norm layers whose parameters are float16; and, of the trainer, an epsilon that is 0 in
    float16, updates on the kvstore, and parameters that are frozen.

    Parameters
    ----------
    net : Block
        Cast by `amp.cast`, or in MXNet's way, by `net.cast('float16')`.
    trainer : gluon.Trainer, optional
    inputs : NDArray
        Inputs as for `net(*inputs)`, whose first dimension is taken for the batch; not needed
        once the net has been called, but then batches are not looked at.

    Returns
    -------
    list of Finding
        In the order of the graph, then those of the trainer; empty where nothing was found.

    Raises
    ------
    ValueError
        Called without inputs on a net that has never run.

    Examples
    --------
    >>> import gluon_amp as amp, mxnet as mx
    >>> net = amp.cast(mx.gluon.nn.Dense(1001, in_units=64), 'float16')
    >>> net.initialize()
    >>> print(amp.check(net, None, mx.nd.ones((8, 64))))
    net: FullyConnected gives 1001 outputs, which is no multiple of 8 for Tensor
      Cores: make them 1008, and let no label name the 7 others.
    """
    outputs = []
    if inputs:
        with autograd.predict_mode():
            outputs = _flatten(net(*inputs), "output")[0]
    found = Findings()
    for path, block in roots(net):
        found += _dimensions(path, block, inputs if block is net else ())
    found += [*_loss_head(net, outputs), *_norms(net)]
    if trainer is not None:
        found += [*_epsilon(trainer), *_kvstore(trainer), *_frozen(net, trainer)]
    return found


# -------------------------------------------------------------------------------- dimensions


class _Dimension(NamedTuple):
    """A size that is to be a multiple of 8, what it counts, and where it comes from."""

    size: int
    what: str
    role: str


def _dimensions(path: str, block: HybridBlock, inputs) -> Iterator[Finding]:
    names, symbol = _graph(path, block)
    params = block.collect_params()
    shapes = {p.name: p.shape for p in params.values() if _known(p.shape)}
    shapes.update({name: a.shape for name, a in zip(names, _flatten(inputs, "input")[0])})
    low = {p.name for p in params.values() if dtype_of(p) == "float16"}
    binding = binding_of(block)
    nodes = {n.name: n for n in binding.nodes} if binding else {}
    paths = nodes or {n.name: n for n in graph.plan(symbol, Policy(), {})[1]}
    products = [n for n in _sized_nodes(symbol, shapes) if n["op"] in _SIZES and n["name"] in paths]
    for node in products:
        in_float16 = nodes[node["name"]].dtype == "float16" if nodes else low & node["variables"]
        if in_float16:
            for dimension in _SIZES[node["op"]](node):
                if dimension.size % MULTIPLE:
                    if dimension.role == "outputs" and node is products[-1]:
                        dimension = dimension._replace(role="head")
                    yield _dimension_finding(paths[node["name"]].block, node["op"], dimension)


def _graph(path: str, block: HybridBlock) -> tuple:
    """Names of the inputs, and symbol, of a block's cast graph, or of its own if it is not cast."""
    binding = binding_of(block)
    if binding:
        found = binding.graph and ([s.name for s in binding.graph[0]], binding.graph[1])
    elif all(_known(p.shape) for p in block.collect_params().values()):
        symbol, names = symbol_of(path, block)
        found = sorted(names), symbol
    else:
        found = None
    if not found:
        raise ValueError(
            f"check() needs inputs, since {type(block).__name__} {path or 'net'} has never run: "
            "call check(net, trainer, x) with x as for net(x)."
        )
    return found


def _known(shape) -> bool:
    return bool(shape) and min(shape) > 0


def _sized_nodes(symbol: mx.sym.Symbol, shapes: Dict[str, tuple]) -> Iterator[dict]:
    """Operators of a graph, with the shapes of what they read and all variables behind that."""
    nodes = graph.to_json(symbol)["nodes"]
    internals = symbol.get_internals()
    known = {name: shapes[name] for name in internals.list_inputs() if name in shapes}
    _, found, _ = internals.infer_shape_partial(**known)
    first, by_entry = {}, {}
    for output, shape in zip(internals.list_outputs(), found):
        first.setdefault(output, shape)
    for i, node in enumerate(nodes):
        names = (node["name"], f"{node['name']}_output", f"{node['name']}_output0")
        by_entry[i] = next((first[name] for name in names if name in first), ())
    for node in nodes:
        sources = [source for source, *_ in node["inputs"]]
        variables = {_variable(nodes, source) for source in sources}
        read = [by_entry[source] if k == 0 else () for source, k, *_ in node["inputs"]]
        yield {**node, "attrs": node.get("attrs", {}), "shapes": read, "variables": variables}


def _variable(nodes: list, i: int) -> str:
    """Name of the variable that a node is, or that it casts."""
    while nodes[i]["op"] in ("amp_cast", "Cast"):
        i = nodes[i]["inputs"][0][0]
    return nodes[i]["name"]


def _convolution(node: dict) -> List[_Dimension]:
    """Channels that one group reads and gives; the weight has shape (O, C / groups, ...)."""
    weight, groups = node["shapes"][1], int(node["attrs"].get("num_group", 1))
    if len(weight) < 2:
        return []
    if node["op"] == "Deconvolution":  # its weight has shape (C, O / groups, ...)
        weight = weight[1] * groups, weight[0] // groups
    if 1 < groups == weight[0]:  # depthwise
        return []
    each = f" in each of {groups} groups" if groups > 1 else ""
    role = "image" if weight[1] == IMAGE_CHANNELS and groups == 1 else "channels"
    return [
        _Dimension(weight[1], f"reads {weight[1]} channels{each}", role),
        _Dimension(weight[0] // groups, f"gives {weight[0] // groups} channels{each}", "outputs"),
    ]


def _fully_connected(node: dict) -> List[_Dimension]:
    """Rows, inputs and outputs; the weight has shape (outputs, inputs)."""
    data, weight = node["shapes"][:2]
    found = []
    if _known(data) and node["attrs"].get("flatten", "True") in ("True", "1"):
        found.append(_Dimension(data[0], f"multiplies {data[0]} rows", "batch"))
    if len(weight) == 2:
        found.append(_Dimension(weight[1], f"reads {weight[1]} inputs", "units"))
        found.append(_Dimension(weight[0], f"gives {weight[0]} outputs", "outputs"))
    return found


def _dot(node: dict) -> List[_Dimension]:
    left, right = node["shapes"][:2]
    if len(left) < 2 or len(right) < 2:
        return []
    flips = [node["attrs"].get(f"transpose_{k}") in ("True", "1") for k in "ab"]
    rows, depth = left[-2:][:: -1 if flips[0] else 1]
    columns = right[-2 if flips[1] else -1]
    return [
        _Dimension(rows, f"multiplies {rows} rows", "matrix"),
        _Dimension(depth, f"adds up {depth} products", "matrix"),
        _Dimension(columns, f"gives {columns} columns", "matrix"),
    ]


def _rnn(node: dict) -> List[_Dimension]:
    units, data = int(node["attrs"]["state_size"]), node["shapes"][0]
    found = [_Dimension(units, f"has {units} units", "outputs")]
    if len(data) == 3 and _known(data):  # (time, batch, features)
        found.insert(0, _Dimension(data[2], f"reads {data[2]} inputs", "units"))
        found.insert(0, _Dimension(data[1], f"multiplies {data[1]} rows", "batch"))
    return found


_SIZES = {
    "Convolution": _convolution,
    "Deconvolution": _convolution,
    "FullyConnected": _fully_connected,
    "dot": _dot,
    "batch_dot": _dot,
    "RNN": _rnn,
}

_FIXES = {
    "image": "pad images and weight with zeros to {more} channels, or leave it, as a first layer "
    "is a small part of a deep net",
    "channels": "make them {more}",
    "units": "let the layer before give {more}, or pad the data with zeros",
    "outputs": "make them {more}",
    "head": "make them {more}, and let no label name the {rest} others",
    "batch": "use a batch of {more}",
    "matrix": "pad them with zeros to {more}",
}


def _dimension_finding(block: str, op: str, dimension: _Dimension) -> Finding:
    more = -(-dimension.size // MULTIPLE) * MULTIPLE
    fix = _FIXES[dimension.role].format(more=more, rest=more - dimension.size)
    problem = f"{op} {dimension.what}, which is no multiple of {MULTIPLE} for Tensor Cores"
    return Finding("dimension", block, problem, fix)


# ------------------------------------------------------------------------- loss head and norms


def _loss_head(net, outputs) -> Iterator[Finding]:
    low = [x for x in outputs if dtype_name(x.dtype) == "float16"]
    for path, block in roots(net):
        binding = binding_of(block)
        if binding and binding.policy.output_dtype == "float16" and not outputs:
            low.append(path)
    if low:
        yield Finding(
            "loss_head",
            "",
            "its output is float16, in which a loss and its scale overflow past 65504",
            "leave output=float16 out of the policy, or give the loss out.astype('float32')",
        )


def _norms(net) -> Iterator[Finding]:
    for path, block in named_blocks(net):
        if isinstance(block, NORM_LAYERS) and any(
            dtype_of(param) == "float16" for param in block._reg_params.values()
        ):
            yield Finding(
                "norm",
                path,
                f"{type(block).__name__} has float16 parameters, whose small updates are lost",
                "use amp.cast in place of net.cast('float16'), or block.cast('float32')",
            )


# ------------------------------------------------------------------------------- the trainer


def _epsilon(trainer) -> Iterator[Finding]:
    """Without float32 masters the update kernels cast epsilon to float16."""
    optimizer = trainer._optimizer
    epsilon = getattr(optimizer, "epsilon", None)
    masters = optimizer.multi_precision
    low = any(dtype_of(p) == "float16" for p in trainer._params if p.grad_req != "null")
    if epsilon and low and not masters and np.float16(epsilon) < np.float16(SMALLEST):
        yield Finding(
            "epsilon",
            "",
            f"{type(optimizer).__name__}'s epsilon {epsilon:g} is 0 in float16, so the update "
            "divides by 0",
            "use amp.Trainer, which updates float32 masters, or multi_precision=True",
        )


def _kvstore(trainer) -> Iterator[Finding]:
    if isinstance(trainer, ScaledSteps):
        return
    config = trainer._kvstore_params
    asked = trainer._update_on_kvstore if trainer._kv_initialized else config["update_on_kvstore"]
    if asked is None:
        by_default = os.environ.get("MXNET_UPDATE_ON_KVSTORE", "1") != "0"
        several = len(_contexts(trainer)) > 1 or "dist" in str(config["kvstore"])
        asked = by_default and several and config["kvstore"] is not None
    if asked:
        yield Finding(
            "kvstore",
            "",
            "the trainer updates on the kvstore, before an overflow can be seen",
            "use amp.Trainer, or gluon.Trainer(..., update_on_kvstore=False)",
        )


def _contexts(trainer) -> list:
    ready = (p for p in trainer._params if p._data is not None)
    first: Optional[object] = next(ready, None)
    return first.list_ctx() if first is not None else []


def _frozen(net, trainer) -> Iterator[Finding]:
    frozen = [p.name for p in trainer._params if p.grad_req == "null" and not is_statistic(p)]
    if frozen:
        yield Finding(
            "frozen",
            "",
            f"the trainer holds {some(frozen, limit=2)} with grad_req='null', never updated",
            "set grad_req='write' to train them, or leave them out of the trainer",
        )
    held = {id(p) for p in trainer._params}
    left_out = [
        p.name for p in net.collect_params().values() if p.grad_req != "null" and id(p) not in held
    ]
    if left_out:
        yield Finding(
            "frozen",
            "",
            f"the trainer does not hold {some(left_out, limit=2)}, so they stay as they are",
            "give it net.collect_params(), or set grad_req='null' to freeze them on purpose",
        )
