"""The figure of a table, read back as pixels."""

from matplotlib.image import imread

from experiments.results.figure import draw
from experiments.results.table import tabulate
from tests.experiments.results.example_runs import ORDER, run, three_seeds


def test_the_figure_has_a_line_and_a_band_for_each_configuration(tmp_path):
    one = tabulate(three_seeds("float32-1024"), ORDER, 0.5)
    both = [*three_seeds("float32-1024"), *three_seeds("float16-1024", (90.0, 91.0, 92.0))]
    draw(one, tmp_path / "one.png")
    draw(tabulate(both, ORDER, 0.5), tmp_path / "two.png")
    small, large = (imread(tmp_path / f"{name}.png")[..., :3] for name in ("one", "two"))
    assert small.shape == large.shape == (600, 960, 3)
    orange = [213 / 255, 94 / 255, 0]  # the second line
    assert not (abs(small - orange).max(axis=2) < 0.02).any()
    assert (abs(large - orange).max(axis=2) < 0.02).sum() > 100


def test_a_long_title_is_not_cut_off(tmp_path):
    draw(tabulate([run(model="a network of a long name " * 5)], ORDER, 0.5), tmp_path / "one.png")
    picture = imread(tmp_path / "one.png")[..., :3]
    above = (picture[:20] < 0.5).any(axis=(0, 2))  # columns with ink
    assert above.sum() > 100
    assert not above[:4].any() and not above[-4:].any()
