"""Products that a policy studies: what `policy/study.py` marked, as a CPU can run it.

They are rounded to a format (`rounding`), with a scale for each tensor in 8 bits
(`delayed_scaling`), or accumulate in float16 (`float16_sums`).
"""

import json
from typing import List, Optional

from gluon_amp.graph import STUDY_ATTR, Entry, Json, Writer, every_node
from gluon_amp.lowering.study import float16_sums, rounding
from gluon_amp.lowering.study.delayed_scaling import Scales
from gluon_amp.lowering.typed_graph import TypedGraph
from gluon_amp.policy.study import FLOAT16_SUMS, Rounding

ON_CPU_ALONE = (
    "tfloat32, float8 and policies with gradients=... are emulated for study on a CPU "
    "only: train on mx.cpu(), or use policy 'float16' on a GPU."
)


def refuse_on_gpu(graph: Json) -> None:
    """Raise `ValueError` for a graph with a marked product, in a body too."""
    marks = {node["attrs"].get(STUDY_ATTR) for node in every_node(graph)} - {None}
    if FLOAT16_SUMS in marks:
        raise ValueError(
            "accumulate=float16 is for the emulation on a CPU, since on a GPU the kernel "
            "decides (see amp.accumulation_dtype(ctx)): leave it out of the policy."
        )
    if marks:
        raise ValueError(ON_CPU_ALONE)


def replace_products(graph: TypedGraph, scales: Optional[Scales]) -> TypedGraph:
    """Return a graph in which operators of our own stand around or in place of marked products.

    Without the scales of its net, each tensor's scale follows the tensor itself.
    """

    def rule(out: Writer, i: int, node: Json, inputs: List[Entry]) -> Optional[Entry]:
        if STUDY_ATTR not in node["attrs"]:
            return None
        attrs = dict(node["attrs"])
        mark = attrs.pop(STUDY_ATTR)
        node = {**node, "attrs": attrs}
        if mark == FLOAT16_SUMS:
            return out.copy(float16_sums.replaced(node), inputs)
        return rounding.add_product(out, node, inputs, Rounding(*json.loads(mark)), scales)

    return graph.by(rule)
