"""The loss scale in a symbol's loss heads.

A loss head (`SoftmaxOutput`, `MakeLoss`, ...) computes its own gradient, so there is no loss to
multiply. `scale_gradients` multiplies the gradient that leaves the head, in float32 and before any
cast to float16. The scale is an argument of the graph, so it can change between two steps without
a new bind.
"""

from typing import Dict, List, Optional, Set, Tuple

from gluon_amp import graph
from gluon_amp.graph import op_table
from gluon_amp.lowering.added_gradients import WRITTEN_ATTR
from gluon_amp.policy import Policy

import mxnet as mx

# The variable that holds the scale, float32, of shape (1,), in the graphs that executors run.
SCALE = "gluon_amp_loss_scale"

# Adds a term of its own to the gradient that passes through it. The scale of a head does not reach
# that term, and a scale of the sum would multiply the gradient of the head twice.
UNSCALABLE = "IdentityAttachKLSparseReg"

CASTS = ("amp_cast",)  # those of `convert`; a user's own Cast after a head is another output


def scale_gradients(
    symbol: mx.sym.Symbol, policy: Policy, input_names: Set[str]
) -> Tuple[mx.sym.Symbol, Set[int]]:
    """Multiply the gradients of the loss heads of a cast graph by the variable `SCALE`.

    The data x of each head is replaced by ``x - (sign(x) - sign_ste(x)) * scale``. The first two x
    are constants for the backward pass, and `sign_ste` is the sign function with gradient 1.
    In the forward pass the difference of the signs is 0 for every x, infinity included, so x keeps
    all its bits. In the backward pass the gradient is multiplied by the scale, which is exact, as
    the scale is a power of two. Simpler ways fail: with x in place of its sign, the -inf of masked
    logits becomes NaN; MXNet's `gradientmultiplier` accepts only a constant; a scale in the heads'
    `grad_scale` requires a new bind for every change.

    A Custom operator counts as a head where it is an output that no other operator reads. This is
    right whether or not it uses its head gradient: the scale multiplies the gradient that leaves
    it, and `Module.backward` does not scale its head gradient.

    `input_names` are those of data and labels. The numbers of the outputs that are heads are
    returned with the graph. Raise `ValueError` for a head that is pinned to float16, and for
    `UNSCALABLE`.
    """
    old = graph.to_json(symbol)
    _check_heads(old, policy)
    scaled_inputs = _scaled_inputs(old, input_names)
    out = graph.Writer()
    written = {WRITTEN_ATTR: "True"}
    dtype = graph.MX_DTYPE_CODES["float32"]
    scale = out.emit("null", SCALE, __shape__="(1,)", __dtype__=dtype, **written)

    def with_scale(out: graph.Writer, i: int, node: dict, inputs: List[list]) -> Optional[list]:
        for k in scaled_inputs.get(i, ()):
            name = f"{node['name']}_{k}_scale"
            constant = out.emit("BlockGrad", f"{name}_constant", inputs[k])
            sign = out.emit("sign", f"{name}_sign", constant)
            passing = out.emit("_contrib_sign_ste", f"{name}_passing", inputs[k])
            zero = out.emit("elemwise_sub", f"{name}_zero", sign, passing)
            product = out.emit("broadcast_mul", f"{name}_scaled", zero, scale)
            inputs[k] = out.emit("elemwise_sub", name, constant, product)
        return None

    out.rewrite(old, with_scale)
    outputs = [graph.source_of(old["nodes"], source, CASTS) for source, *_ in old["heads"]]
    scaled = {k for k, source in enumerate(outputs) if source in scaled_inputs}
    return graph.from_json(out.graph(old), like=symbol), scaled


def _scaled_inputs(old: dict, input_names: Set[str]) -> Dict[int, List[int]]:
    """Return the numbers of the inputs that get a scaled gradient, by the number of their head."""
    nodes = old["nodes"]
    scaled = {i: [0] for i, node in enumerate(nodes) if _is_head(node)}
    outputs = {graph.source_of(nodes, source, CASTS) for source, *_ in old["heads"]}
    read = {
        source
        for node in nodes
        for source, *_ in node["inputs"]
        if node["op"] not in ("BlockGrad", *CASTS)
    }
    for i in outputs - read:
        if nodes[i]["op"] == "Custom":
            sources = [graph.source_of(nodes, source, CASTS) for source, *_ in nodes[i]["inputs"]]
            scaled[i] = [k for k, s in enumerate(sources) if nodes[s]["name"] not in input_names]
    return scaled


def _is_head(node: dict) -> bool:
    return op_table.has("head", node["op"], node["attrs"])


def _check_heads(old: dict, policy: Policy) -> None:
    for node in old["nodes"]:
        name, op = node["name"], node["op"]
        if _is_head(node) and policy.decide(op, None, name).kind == "compute":
            raise ValueError(
                f"The loss head {name} is pinned to {policy.compute_dtype}, but a loss scale works "
                "on float32 gradients: remove the pin, or pass loss_scale=None."
            )
        if op == UNSCALABLE:
            raise ValueError(
                f"{name} adds a term of its own to the gradients, which cannot be scaled with "
                f"them: remove the {UNSCALABLE}, or pass loss_scale=None."
            )
