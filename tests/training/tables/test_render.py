"""Tables as Markdown and CSV."""

from gluon_amp.training.tables.record import read_all
from gluon_amp.training.tables.render import difference, duration, faq_table, markdown
from gluon_amp.training.tables.statistics import Comparison
from gluon_amp.training.tables.table import published, tabulate
from tests.training.tables.example_runs import ORDER, write_run

PUBLISHED = """\
| Batch size | Data type | Top-1 accuracy | Time to train | Speed-up |
|------------|-----------|----------------|---------------|----------|
| 1024       | float32   | 76.18 %        | 11.8 h        | 1        |
| 1024       | float16   | 76.34 %        | 7.3 h         | 1.62x    |
| 2048       | float16   | 76.29 %        | 6.5 h         | 1.82x    |"""


def test_published_figures_in_logs_give_exactly_the_published_table(tmp_path):
    write_run(tmp_path / "a", "float32-1024", 76.18, 11.8)
    write_run(tmp_path / "b", "float16-1024", 76.34, 7.3)
    write_run(tmp_path / "c", "float16-2048", 76.29, 6.5)
    table = tabulate(read_all(tmp_path), ORDER, 0.3)
    assert faq_table(table) == PUBLISHED
    assert faq_table(published(0.3)) == PUBLISHED
    assert "*Measured* on 8 × Tesla V100" in markdown(table)
    assert "*Published* on 8 NVIDIA V100" in markdown(published(0.3))


def test_duration_and_difference():
    assert difference(Comparison(-0.001, 0.5)) == "+0.00"  # and never -0.00
    texts = [duration(seconds) for seconds in (42480, 99.94, 100, 150, None)]
    assert texts == ["11.8 h", "99.9 s", "1.7 min", "2.5 min", "–"]
