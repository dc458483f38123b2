"""Turns a cast graph into one that a certain device can run.

A GPU has float16 kernels. A CPU has no float16 matrix product in MXNet, and bfloat16 kernels only
if oneDNN has them for it (`bfloat16`); otherwise a dtype is emulated (`emulation`). Some kernels of
oneDNN need a workaround (`deconvolution`, `onednn`, `frozen_weights`). On a CPU, images in float16
and in native bfloat16 have a layout of our own (`blocked`). Formats for study are emulated too
(`study`). On all devices, MXNet computes some gradients wrongly in place (`in_place`), and
gradients that are added to others need some more changes (`added_gradients`). Each of these modules
rewrites the graph as `graph.to_json` returns it, given the dtypes of its variables, and returns the
graph itself if nothing changes.
"""

from typing import Dict, FrozenSet, Optional

from gluon_amp import kernels
from gluon_amp.base import bfloat16
from gluon_amp.graph import ACCUMULATE_ATTR, from_json, to_json
from gluon_amp.lowering import (
    added_gradients,
    blocked,
    deconvolution,
    emulation,
    frozen_weights,
    in_place,
    onednn,
    sparse,
    study,
)
from gluon_amp.lowering.delayed_scaling import Scales
from gluon_amp.policy import Policy

import mxnet as mx


def check_device(policy: Policy, device_type: str) -> None:
    """Raise a ValueError if a device of this `Context.device_type` cannot run a policy."""
    if policy.studies:
        study.check_device(device_type)
    elif policy.compute_dtype == "bfloat16":
        bfloat16.check_device(device_type)


def lower(
    symbol: mx.sym.Symbol,
    dtypes: Dict[str, object],
    device_type: str,
    frozen: FrozenSet[str] = frozenset(),
    scales: Optional[Scales] = None,
    sparse_data: FrozenSet[str] = frozenset(),
) -> mx.sym.Symbol:
    """Return a symbol with the same inputs and outputs that runs on a device of `device_type`.

    Parameters
    ----------
    symbol : Symbol
        A graph as `graph.apply` returns it.
    dtypes : dict of str to dtype
        Dtypes of the arrays that its variables are bound to.
    device_type : {'cpu', 'cpu_pinned', 'cpu_shared', 'gpu'}
    frozen : frozenset of str
        Names of the variables that get no gradient.
    scales : Scales, optional
        Those of the net, whose policy studies 8-bit formats.
    sparse_data : frozenset of str
        Names of the variables that are bound to sparse arrays.

    Raises
    ------
    MXNetError
        The dtypes contradict each other.
    ValueError
        The policy accumulates in float16 or studies formats, and the device is a GPU.
    """
    graph = lowered = to_json(symbol)
    if device_type == "gpu":
        if any(ACCUMULATE_ATTR in attrs for attrs in symbol.attr_dict().values()):
            raise ValueError(
                "accumulate=float16 is for the emulation on a CPU, since on a GPU the kernel "
                "decides (see amp.accumulation_dtype(ctx)): leave it out of the policy."
            )
        if study.has_roundings(graph):
            study.check_device(device_type)
    else:
        kernels.prepare([mx.Context(device_type)])
        lowered = study.round_products(lowered, scales)
        lowered = blocked.use_blocked_layout(lowered, dtypes)
        lowered = emulation.emulate(lowered, dtypes)
        lowered = deconvolution.avoid_onednn(lowered, dtypes)
        lowered = onednn.apply_workarounds(lowered, dtypes)
        lowered = frozen_weights.separate_biases(lowered, dtypes, frozen)
    lowered = in_place.avoid_faults(lowered, frozen)
    lowered = added_gradients.make_addable(lowered, dtypes, device_type)
    lowered = sparse.make_dense(lowered, sparse_data)
    return symbol if lowered is graph else from_json(lowered, like=symbol)
