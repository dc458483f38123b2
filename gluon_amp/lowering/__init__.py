"""Turns a cast graph into one that a certain device can run.

A GPU has float16 kernels. A CPU has no float16 matrix product in MXNet, and fast bfloat16 kernels
only if oneDNN has them for it (`bfloat16`); otherwise a dtype is emulated. `PASSES` lists what
rewrites the graph, in this order, and why. The dtypes of its tensors are inferred once: each pass
returns those of the graph that it writes (`typed_graph`), and the graph itself if nothing changes.
"""

from typing import Callable, Dict, FrozenSet, List, NamedTuple, Optional

from gluon_amp import kernels
from gluon_amp.graph import ACCUMULATE_ATTR, Entry, Json, Writer, from_json, to_json, with_bodies
from gluon_amp.lowering import (
    added_gradients,
    blocked,
    deconvolution,
    dropout,
    emulation,
    frozen_weights,
    in_place,
    onednn,
    recurrent,
    regions,
    sequences,
    sparse,
    study,
)
from gluon_amp.lowering.delayed_scaling import Scales
from gluon_amp.lowering.typed_graph import TypedGraph
from gluon_amp.policy import Policy

import mxnet as mx

# What a GPU cannot run, and what to do
ON_CPU_ALONE = {
    "bfloat16": (
        "bfloat16 cannot run on a GPU: MXNet 1.9.1 has no bfloat16 kernels there; "
        "use policy 'float16' or 'mixed_float16'."
    ),
    "study": (
        "tfloat32, float8 and policies with gradients=... are emulated for study on a CPU "
        "only: train on mx.cpu(), or use policy 'float16' on a GPU."
    ),
}


def check_device(policy: Policy, device_type: str) -> None:
    """Raise a ValueError if a device of this `Context.device_type` cannot run a policy."""
    kind = "study" if policy.studies else policy.compute_dtype
    if device_type == "gpu" and kind in ON_CPU_ALONE:
        raise ValueError(ON_CPU_ALONE[kind])


class Target(NamedTuple):
    """Where a graph runs, and what is known of its variables; see `lower`."""

    device_type: str
    frozen: FrozenSet[str] = frozenset()
    sparse_data: FrozenSet[str] = frozenset()
    is_body: bool = False  # of a loop or branch
    scaled: bool = False  # its gradients may overflow, so that a backward pass runs again


class Pass(NamedTuple):
    """A rewrite of graphs."""

    rewrite: Callable[[TypedGraph, Target], TypedGraph]
    reason: str
    on: str = "cpu"  # or "all" devices
    in_bodies: bool = False  # of loops and branches, too; others see to bodies by themselves


PASSES = (
    Pass(
        lambda graph, target: blocked.use_blocked_layout(graph),
        "Images in low precision have a layout of our own. It comes first, since it decides by the "
        "dtypes of the cast graph, which the emulation changes.",
    ),
    Pass(
        lambda graph, target: recurrent.replace_layers(graph),
        "MXNet's recurrent layers have no bfloat16. It decides by the cast graph's dtypes, too.",
        in_bodies=True,
    ),
    Pass(
        lambda graph, target: emulation.emulate(graph),
        "Dtypes without kernels are emulated in float32.",
        in_bodies=True,
    ),
    Pass(
        lambda graph, target: deconvolution.avoid_onednn(graph, target.is_body),
        "oneDNN's gradient of a deconvolution fails: in float32, too, so behind the emulation.",
        in_bodies=True,
    ),
    Pass(
        lambda graph, target: regions.mask_missing(graph),
        "MXNet's ROIAlign is wrong for regions of no image: in float32, so behind the emulation.",
        in_bodies=True,
    ),
    Pass(
        lambda graph, target: onednn.apply_workarounds(graph),
        "Two bfloat16 kernels of oneDNN are wrong, those of the blocked layout among them.",
        in_bodies=True,
    ),
    Pass(
        lambda graph, target: frozen_weights.separate_biases(graph, target.frozen),
        "oneDNN computes no gradient of a bias whose weight is frozen. The blocked layout's dense "
        "layers do, so it concerns those that are left.",
    ),
    Pass(
        lambda graph, target: sequences.use_row_kernels(graph),
        "MXNet is slow at what sequence models use beside products: on the tensors of the "
        "emulation, which are float32.",
    ),
    Pass(
        lambda graph, target: in_place.avoid_faults(graph, target.frozen),
        "MXNet computes some gradients wrongly in place; the operators that replace these are not "
        "rounded one by one, so behind the emulation.",
        on="all",
    ),
    Pass(
        lambda graph, target: dropout.make_repeatable(graph, target.frozen, target.scaled),
        "A backward pass that overflowed runs again, with the same masks; on the tensors of the "
        "emulation, so that masks are not rounded.",
        on="all",
    ),
    Pass(
        lambda graph, target: added_gradients.make_addable(graph, target.device_type),
        "Operators that fail to add gradients read copies of variables: all that read variables.",
        on="all",
    ),
    Pass(
        lambda graph, target: sparse.make_dense(graph, target.sparse_data),
        "Our operators read dense arrays: all of ours.",
        on="all",
    ),
)


def lower(
    symbol: mx.sym.Symbol,
    dtypes: Dict[str, object],
    device_type: str,
    frozen: FrozenSet[str] = frozenset(),
    scales: Optional[Scales] = None,
    sparse_data: FrozenSet[str] = frozenset(),
    scaled: bool = False,
) -> mx.sym.Symbol:
    """Return a symbol with the same inputs and outputs that runs on a device of `device_type`.

    `symbol` is a graph as `cast_pass.apply` returns it, and `dtypes` are those of the arrays that
    its variables are bound to. The variables in `frozen` get no gradient, and those in
    `sparse_data` are bound to sparse arrays. `scales` are those of a net that studies 8-bit
    formats. If `scaled`, gradients have a loss scale. A ValueError says what a GPU cannot run.
    """
    graph = rounded = to_json(symbol)
    if device_type == "gpu":
        if any(ACCUMULATE_ATTR in attrs for attrs in symbol.attr_dict().values()):
            raise ValueError(
                "accumulate=float16 is for the emulation on a CPU, since on a GPU the kernel "
                "decides (see amp.accumulation_dtype(ctx)): leave it out of the policy."
            )
        if study.has_roundings(graph):
            raise ValueError(ON_CPU_ALONE["study"])
    else:
        kernels.prepare([mx.Context(device_type)])
        # A product that is rounded for study is one in float32, which no other pass looks at.
        rounded = study.round_products(graph, scales)
    target = Target(device_type, frozen, sparse_data, scaled=scaled)
    lowered = _apply_passes(TypedGraph.of(rounded, dtypes), target)
    return symbol if lowered.json is graph else from_json(lowered.json, like=symbol)


def _apply_passes(graph: TypedGraph, target: Target) -> TypedGraph:
    passes = [p for p in PASSES if p.on == "all" or target.device_type != "gpu"]
    if any(p.in_bodies for p in passes):
        graph = _with_lowered_bodies(graph, target)
    for each in passes:
        if each.in_bodies or not target.is_body:
            graph = each.rewrite(graph, target)
    return graph


def _with_lowered_bodies(graph: TypedGraph, target: Target) -> TypedGraph:
    inside = Target(target.device_type, is_body=True)

    def lowered_body(body: Json) -> Json:
        # Its variables are all float32 or integers, which no pass tells apart.
        return _apply_passes(TypedGraph.of(body, {}), inside).json

    def lowered(out: Writer, i: int, node: Json, inputs: List[Entry]) -> Optional[Entry]:
        new = with_bodies(node, lowered_body)
        return None if new is node else out.copy(new, inputs)

    return graph.by(lowered)
