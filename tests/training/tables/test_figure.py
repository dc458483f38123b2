"""The figure of a table: its points, intervals and margin, and a layout without overlaps."""

import itertools

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.image import imread

from gluon_amp.inspection.figures import COLOURS
from gluon_amp.training.tables.figure import draw, plot
from gluon_amp.training.tables.record import Configuration
from gluon_amp.training.tables.table import tabulate
from tests.training.tables.example_runs import ORDER, run, three_seeds


def two_rows():
    runs = [*three_seeds("float32-1024"), *three_seeds("float16-1024", (97.4, 98.0, 98.3))]
    return tabulate(runs, ORDER, 0.5, 0.01)


def test_the_points_are_the_runs():
    (top1, _), (cross_entropy, _), _ = grid_of(plot(two_rows()))
    first, second = top1.collections[0], top1.collections[2]
    assert first.get_offsets()[:, 0].tolist() == [97.5, 98.0, 98.5]
    assert second.get_offsets()[:, 0].tolist() == [97.4, 98.0, 98.3]
    heights = first.get_offsets()[:, 1]
    assert (second.get_offsets()[:, 1] - heights).tolist() == pytest.approx([1.0, 1.0, 1.0])
    assert cross_entropy.collections[0].get_offsets()[:, 0].tolist() == [0.25, 0.2, 0.15]
    assert [text.get_text() for text in top1.get_yticklabels()] == ["float32", "float16"]


def grid_of(figure):
    """The panels, as rows of two."""
    axes = figure.get_axes()
    return list(zip(axes[::2], axes[1::2]))


def test_the_forest_has_the_intervals_and_the_margin():
    table = two_rows()
    for (_, forest), field, margin in zip(
        grid_of(plot(table)), ("top1", "cross_entropy"), (0.5, 0.01)
    ):
        comparison = getattr(table.rows[1].contrasts[0], field)
        (interval,) = forest.collections[0].get_segments()
        assert interval[:, 0].tolist() == [comparison.low, comparison.high]
        assert interval[0, 1] == 1  # beside the second row
        assert any(
            line.get_xdata()[0] == comparison.difference and line.get_marker() == "o"
            for line in forest.lines
            if len(line.get_xdata()) == 1
        )
        band = forest.patches[0].get_extents().transformed(forest.transData.inverted())
        assert (band.x0, band.x1) == pytest.approx((-margin, margin))
        low, high = forest.get_xlim()
        assert low < min(comparison.low, -margin) and high > max(comparison.high, margin)


def test_the_curves_are_those_of_every_run_and_their_distance_from_the_first_row():
    _, _, (curves, differences) = grid_of(plot(two_rows()))
    lines = [line.get_ydata().tolist() for line in curves.lines]
    assert lines[:3] == [[2.0, 0.25], [2.0, 0.2], [2.0, 0.15]]
    assert len(lines) == 6
    distances = [line.get_ydata().tolist() for line in differences.lines if len(line.get_xdata())]
    assert np.array(distances) == pytest.approx(np.array([[0, 0.01], [0, 0.0], [0, 0.02]]))


def eight_rows():
    dtypes = ("float32", "float16", "bfloat16", "mixed_float16")
    rows = [
        Configuration(f"{dtype}-{batch}", f"{dtype}, batch {batch}", dtype, batch)
        for batch in (64, 128)
        for dtype in dtypes
    ]
    runs = [
        run(seed=seed, top1=98 + number / 10 + seed * (0.1 + number / 50), configuration=row)
        for number, row in enumerate(rows)
        for seed in range(3)
    ]
    return tabulate(runs, [row.name for row in rows], 0.5)


def shown(labels, limits, axis):
    """The labels within the limits: matplotlib keeps hidden ones beyond them."""
    low, high = sorted(limits)
    return [text for text in labels if low <= text.get_position()[axis] <= high]


def test_no_text_overlaps_another_or_is_cut_off():
    figure = plot(eight_rows())
    figure.canvas.draw()
    renderer = figure.canvas.get_renderer()
    texts = [figure._suptitle]
    for points, forest in grid_of(figure):
        texts += shown(points.get_yticklabels(), points.get_ylim(), 1)
        for axes in (points, forest):
            texts += [*axes.texts, axes.xaxis.label]
            texts += shown(axes.get_xticklabels(), axes.get_xlim(), 0)
    boxes = [text.get_window_extent(renderer) for text in texts]
    width, height = figure.canvas.get_width_height()
    for box in boxes:
        assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= width and box.y1 <= height
    for one, other in itertools.combinations(boxes, 2):
        overlap = one.intersection(one, other)
        assert overlap is None or min(overlap.width, overlap.height) < 2
    for points, forest in grid_of(figure):
        assert points.get_window_extent().x1 <= forest.get_window_extent().x0


def test_one_run_without_cross_entropy_is_drawn_and_a_long_title_is_not_cut_off(tmp_path):
    long = run(cross_entropies=(), model="a network of a long name " * 5)
    table = tabulate([long], ORDER, 0.5)
    assert len(plot(table).get_axes()) == 2
    draw(table, tmp_path / "one.png")
    picture = imread(tmp_path / "one.png")[..., :3]
    assert (abs(picture - to_rgb(COLOURS["float32"])).max(axis=2) < 0.02).any()
    above = (picture[:20] < 0.5).any(axis=(0, 2))  # columns with ink
    assert above.sum() > 100
    assert not above[:4].any() and not above[-4:].any()
