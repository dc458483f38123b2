"""Workarounds for two kernels of oneDNN 2.4, the version in MXNet 1.9.1, in bfloat16 on a CPU.

1×1 convolutions have an AMX kernel that writes past the end of its result if the positions of an
image fill three tiles: 27, 33, 36, 39, 42, 45 or 48 positions, such as 6×6. Such convolutions are
dilated: that does not change the result of a 1×1 kernel, but selects another kernel, since the AMX
kernel does not support dilation.

The gradient of a convolution's weight is garbage if an image is narrower than the last stride, such
as a 1×1 image with a stride of 2. The shape is only known when the operator runs. An operator of
gluon_amp's C++ library therefore replaces each convolution with strides: it computes such gradients
in float32 and calls MXNet's kernels otherwise; see `kernels/src/convolutions.cc`. (Convolutions in
the blocked layout do so by themselves.) Without the library, all convolutions with strides run in
float32.
"""

from typing import List, Optional

from gluon_amp import kernels
from gluon_amp.base import hardware
from gluon_amp.graph import Entry, Json, Writer, integers
from gluon_amp.graph import own_operators as own
from gluon_amp.lowering.typed_graph import TypedGraph


def apply_workarounds(graph: TypedGraph) -> TypedGraph:
    """Return a graph of the same values that does not use these kernels.

    It is `graph` itself if it has no bfloat16 1×1 convolution or strided convolution.
    """

    def safe(out: Writer, i: int, node: Json, inputs: List[Entry]) -> Optional[Entry]:
        convolves = node["op"] in ("Convolution", own.BLOCKED_CONVOLUTION)
        if not convolves or graph.edges.get((i, 0)) != "bfloat16":
            return None
        convolution, name = _safe_convolution(node), node["name"]
        if kernels.available() or not _is_strided(node):
            return out.copy(convolution, inputs) if convolution is not node else None
        wide = [
            out.emit("amp_cast", f"{name}_input{k}", entry, dtype="float32")
            for k, entry in enumerate(inputs)
        ]
        entry = out.copy(convolution, wide)
        return out.emit("amp_cast", f"{name}_bfloat16", entry, dtype="bfloat16")

    return graph.by(safe)


def _safe_convolution(node: Json) -> Json:
    """Return a bfloat16 convolution that uses neither of the two wrong kernels."""
    attrs = node["attrs"]
    if hardware.has_amx() and set(integers(attrs, "kernel")) == {1}:
        node = {**node, "attrs": {**attrs, "dilate": attrs["kernel"].replace("1", "2")}}
    if node["op"] == "Convolution" and _is_strided(node) and kernels.available():
        node = {**node, "op": own.CONVOLUTION}
    return node


def _is_strided(node: Json) -> bool:
    return integers(node["attrs"], "stride")[-1:] > (1,)
