"""Translations of operators of detectors, whose boxes are computed in float32.

B is the batch, N the number of boxes, and K that of the boxes that compete, in the order of their
scores.
"""

from typing import Callable, Dict, Sequence, Tuple

import numpy as np

from gluon_amp.handover.to_onnx.writer import Node, UntranslatableError, Writer


def _column(value: str, place: int, w: Writer) -> str:
    """Return a place of the last axis, without the axis."""
    return w.add("Gather", value, w.scalar(place, "int64"), axis=-1)


def rows_at(value: str, places: str, w: Writer) -> str:
    """Return rows (B, K, …) of a tensor (B, N, …) at places (B, K)."""
    return w.add("GatherND", value, w.add("Unsqueeze", places, w.integers([2])), batch_dims=1)


def _ordered(scores: str, valid: str, count: int, w: Writer) -> Tuple[str, str]:
    """Return the places (B, K) of the largest valid scores (B, N), and which of them are valid."""
    lowest = w.scalar(-np.inf, "float32")
    scores = w.add("Where", valid, scores, lowest)
    values, places = w.several(2, "TopK", scores, w.integers([count]), axis=1)
    return places, w.add("Greater", values, lowest)


def _kept(
    boxes: str, ids: str, valid: str, count: int, threshold: float, center: bool, w: Writer
) -> str:
    """Return (B, K): 0 for a box that a better one suppresses, K, K - 1 … for the others.

    Boxes of different ids do not suppress each other; an empty name is one id for all.
    """
    ranks = w.constant(np.arange(count, 0, -1, dtype=np.float32)[None])
    ranks = w.add("Where", valid, ranks, w.scalar(0, "float32"))
    scores = w.add("Unsqueeze", ranks, w.integers([1]))
    if ids:
        ids = w.cast(ids, "int64")
        ids = w.add("Sub", ids, w.add("ReduceMin", ids, keepdims=0))
        depth = w.add("Add", w.add("ReduceMax", ids, keepdims=0), w.scalar(1, "int64"))
        off_on = w.constant(np.array([0, 1], np.float32))
        scores = w.add("Mul", scores, w.add("OneHot", ids, depth, off_on, axis=1))
    floats = (w.constant(np.array([one], np.float32)) for one in (threshold, 0))
    limits = w.integers([count]), *floats
    picked = w.add("NonMaxSuppression", boxes, scores, *limits, center_point_box=int(center))
    places = w.add("Gather", picked, w.integers([0, 2]), axis=1)
    nothing = w.add("Mul", ranks, w.scalar(0, "float32"))
    return w.add("ScatterND", nothing, places, w.add("GatherND", ranks, places))


def _or_minus_one(condition: str, rows: str, w: Writer) -> str:
    """Return rows (B, K, …) where a condition (B, K) holds, and -1 elsewhere."""
    condition = w.add("Unsqueeze", condition, w.integers([2]))
    return w.add("Where", condition, rows, w.scalar(-1, "float32"))


def box_nms(n: Node, w: Writer) -> str:
    """Boxes in the order of their scores, without those that a better one overlaps; then -1."""
    total, width = n.data.shape[-2:]
    count, ids = n.integer("topk", -1), n.integer("id_index", -1)
    count = min(count, total) if count >= 0 else total
    if not count:
        return w.add("Identity", n.data)
    start, center = n.integer("coord_start", 2), n.text("in_format", "corner") == "center"
    data = w.add("Reshape", w.as_dtype(n.data, "float32"), w.integers([-1, total, width]))
    scores = _column(data, n.integer("score_index", 1), w)
    valid = w.add("Greater", scores, w.scalar(n.number("valid_thresh"), "float32"))
    if ids >= 0:
        background = w.scalar(n.integer("background_id", -1), "float32")
        valid = w.add("And", valid, w.add("Not", w.add("Equal", _column(data, ids, w), background)))
    places, valid = _ordered(scores, valid, count, w)
    rows = rows_at(data, places, w)
    boxes = w.sliced(rows, 2, start, start + 4)
    of_ids = _column(rows, ids, w) if ids >= 0 and not n.flag("force_suppress") else ""
    kept = _kept(boxes, of_ids, valid, count, n.number("overlap_thresh", 0.5), center, w)
    places, valid = _ordered(kept, w.cast(kept, "bool"), count, w)
    out = _or_minus_one(valid, rows_at(rows, places, w), w)
    if n.text("out_format", "corner") != n.text("in_format", "corner"):
        out = _reencoded(out, start, width, center, w)
    if count < total:
        more = w.integers([0, 0, 0, 0, total - count, 0])
        out = w.add("Pad", out, more, w.scalar(-1, "float32"))
    return w.reshaped(w.back(out, n), n.out)


def _reencoded(rows: str, start: int, width: int, center: bool, w: Writer) -> str:
    """Return rows with boxes as corners, or as a center and a size; not where x is negative."""
    first, second = w.sliced(rows, 2, start, start + 2), w.sliced(rows, 2, start + 2, start + 4)
    half = w.scalar(0.5, "float32")
    if center:
        size = w.add("Mul", second, half)
        pair = [w.add("Sub", first, size), w.add("Add", first, size)]
    else:
        pair = [w.add("Mul", w.add("Add", first, second), half), w.add("Sub", second, first)]
    ends = [w.sliced(rows, 2, 0, start), w.sliced(rows, 2, start + 4, width)]
    parts = [ends[0]] * (start > 0) + pair + [ends[1]] * (start + 4 < width)
    negative = w.add("Less", w.sliced(first, 2, 0, 1), w.scalar(0, "float32"))
    return w.add("Where", negative, rows, w.add("Concat", *parts, axis=2))


def _decoded(
    offsets: str, anchors: str, scales: Sequence[float], corner: bool, clip: float, w: Writer
) -> str:
    """Return boxes as corners (B, N, 4) from offsets and from anchors (1, N, 4)."""
    half = w.scalar(0.5, "float32")
    place, size = w.sliced(anchors, 2, 0, 2), w.sliced(anchors, 2, 2, 4)
    if corner:
        both = w.add("Add", place, size)
        place, size = w.add("Mul", both, half), w.add("Sub", size, place)
    scaled = w.add("Mul", offsets, w.constant(np.array(scales, np.float32)))
    moved = w.add("Add", w.add("Mul", w.sliced(scaled, 2, 0, 2), size), place)
    growth = w.sliced(scaled, 2, 2, 4)
    if clip > 0:
        growth = w.add("Min", growth, w.scalar(clip, "float32"))
    reach = w.add("Mul", w.add("Mul", w.add("Exp", growth), size), half)
    return w.add("Concat", w.add("Sub", moved, reach), w.add("Add", moved, reach), axis=2)


def box_decode(n: Node, w: Writer) -> str:
    """Boxes as corners from offsets to anchors."""
    offsets, anchors = (w.as_dtype(one, "float32") for one in n.inputs)
    scales = [n.number(f"std{k}", 1) for k in range(4)]
    corner = n.text("format", "center") == "corner"
    return w.back(_decoded(offsets, anchors, scales, corner, n.number("clip", -1), w), n)


def multibox_detection(n: Node, w: Writer) -> str:
    """Ids, scores and boxes of SSD by score; those that a better one overlaps have the id -1."""
    if n.integer("background_id"):
        raise UntranslatableError("a background_id other than 0")
    count, threshold = n.data.shape[2], n.number("nms_threshold", 0.5)
    suppresses, most = 0 < threshold <= 1, n.integer("nms_topk", -1)
    classes, offsets, anchors = (w.as_dtype(one, "float32") for one in n.inputs)
    classes = w.sliced(classes, 1, 1, None)
    scores = w.add("ReduceMax", classes, axes=[1], keepdims=0)
    ids = w.cast(w.add("ArgMax", classes, axis=1, keepdims=0), "float32")
    valid = w.add("GreaterOrEqual", scores, w.scalar(n.number("threshold", 0.01), "float32"))
    offsets = w.add("Reshape", offsets, w.integers([0, -1, 4]))
    scales = n.numbers("variances", (0.1, 0.1, 0.2, 0.2))
    boxes = _decoded(offsets, anchors, scales, True, -1, w)
    if n.flag("clip", True):
        boxes = w.add("Clip", boxes, w.scalar(0, "float32"), w.scalar(1, "float32"))
    columns = [w.add("Unsqueeze", one, w.integers([2])) for one in (ids, scores)]
    rows = w.add("Concat", *columns, boxes, axis=2)
    as_they_are = w.constant(np.arange(count, 0, -1, dtype=np.float32)[None])
    places, inside = _ordered(scores if suppresses else as_they_are, valid, count, w)
    found = rows_at(rows, places, w)
    if suppresses:
        competes = inside
        if 0 < most < count:  # MXNet leaves those behind as they were
            rest = rows_at(rows, _ordered(as_they_are, valid, count, w)[0], w)
            parts = w.sliced(found, 1, 0, most), w.sliced(rest, 1, most, None)
            found = w.add("Concat", *parts, axis=1)
            competes = w.add("And", inside, w.constant(np.arange(count)[None] < most))
        ids = "" if n.flag("force_suppress") else _column(found, 0, w)
        just_below = np.nextafter(np.float32(threshold), np.float32(0))
        kept = _kept(w.sliced(found, 2, 2, 6), ids, competes, count, just_below, False, w)
        ids = _or_minus_one(w.cast(kept, "bool"), w.sliced(found, 2, 0, 1), w)
        found = w.add("Concat", ids, w.sliced(found, 2, 1, 6), axis=2)
    return w.back(_or_minus_one(inside, found, w), n)


def regions(n: Node, w: Writer) -> str:
    """Maxima over regions, or averages by bilinear interpolation.

    MXNet's results are 0 for a region of a negative image, as pyramids of features have it.
    onnxruntime would read memory before the images, so there the number is 0.
    """
    if n.flag("position_sensitive") or n.flag("aligned"):
        raise UntranslatableError("position_sensitive, or aligned, which opset 13 does not have")
    rows, size = w.as_dtype(n.inputs[1], n.wide), n.integers("pooled_size")
    numbers, zero = w.cast(_column(rows, 0, w), "int64"), w.scalar(0, "int64")
    exists = w.add("Unsqueeze", w.add("GreaterOrEqual", numbers, zero), w.integers([1, 2, 3]))
    corners, numbers = w.sliced(rows, 1, 1, 5), w.add("Max", numbers, zero)
    data, scale = w.as_dtype(n.data, n.wide), n.number("spatial_scale")
    if n.op == "ROIPooling":
        numbers = w.add("Unsqueeze", w.cast(numbers, n.wide), w.integers([1]))
        rows = w.add("Concat", numbers, corners, axis=1)
        value = w.add("MaxRoiPool", data, rows, pooled_shape=size, spatial_scale=scale)
    else:
        sizes = dict(zip(("output_height", "output_width"), size))
        ratio = max(0, n.integer("sample_ratio", -1))
        options = {"mode": "avg", "sampling_ratio": ratio, "spatial_scale": scale, **sizes}
        value = w.add("RoiAlign", data, corners, numbers, **options)
    return w.back(w.add("Where", exists, value, w.scalar(0, n.wide)), n)


TRANSLATIONS: Dict[str, Callable] = {
    "_contrib_box_nms": box_nms,
    "_contrib_box_decode": box_decode,
    "_contrib_MultiBoxDetection": multibox_detection,
    **dict.fromkeys(["_contrib_ROIAlign", "ROIPooling"], regions),
}
