"""Gives `ROIAlign` of a region of no image the value 0, as MXNet's GPU kernel does.

A region has the number of its image, which is negative for none: detectors with a pyramid of
features leave out the regions of other levels in this way, and add up the levels. On a CPU, MXNet
1.9.1 leaves such a result as it is in memory, and sets an element of another result to 0.
"""

from typing import List, Optional

from gluon_amp.graph import Entry, Json, Writer
from gluon_amp.lowering.typed_graph import TypedGraph

ALIGN = "_contrib_ROIAlign"


def mask_missing(graph: TypedGraph) -> TypedGraph:
    """Return a graph that reads image 0 for no image, and multiplies that result by 0.

    It is `graph` itself without such operators.
    """
    return graph.by(_masked)


def _masked(out: Writer, i: int, node: Json, inputs: List[Entry]) -> Optional[Entry]:
    if node["op"] != ALIGN:
        return None
    name, columns = node["name"], {"axis": "1"}
    number, corners = (
        out.emit("slice_axis", f"{name}_{part}", inputs[1], begin=begin, end=end, **columns)
        for part, begin, end in (("number", "0", "1"), ("corners", "1", "None"))
    )
    image = out.emit("_maximum_scalar", f"{name}_image", number, scalar="0")
    read = out.emit("Concat", f"{name}_regions", image, corners, dim="1", num_args="2")
    exists = out.emit("_greater_equal_scalar", f"{name}_exists", number, scalar="0")
    exists = out.emit("Reshape", f"{name}_mask", exists, shape="(-1, 1, 1, 1)")
    value = out.copy({**node, "name": f"{name}_aligned"}, [inputs[0], read])
    return out.emit("broadcast_mul", name, value, exists)
