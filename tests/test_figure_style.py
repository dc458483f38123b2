"""One style and one colour for each dtype, in every figure."""

import re
import subprocess
import sys

import matplotlib.pyplot as plt
import matplotlib.style

from gluon_amp.inspection import figures
from tests import ROOT

DRAWING = [
    path
    for folder in ("gluon_amp", "experiments", "notebooks")
    for path in (ROOT / folder).rglob("*.py")
    if re.search(r"matplotlib|styled", path.read_text(encoding="utf-8"))
]


def test_the_style_is_one_that_matplotlib_reads():
    with matplotlib.style.context(figures.STYLE):
        colours = plt.rcParams["axes.prop_cycle"].by_key()["color"]
        assert plt.rcParams["figure.dpi"] >= 120
    dtypes = [figures.COLOURS[name] for name in ("float32", "float16", "bfloat16")]
    assert colours[:3] == dtypes
    others = (figures.BROKEN, figures.OTHER, figures.SUPPORT, figures.BAND)
    assert len({*dtypes, *others}) == 7


def test_the_colours_need_no_mxnet():
    code = "from experiments.standalone import figures; import sys; print('mxnet' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert ran.stdout == "False\n", ran.stderr


def test_nothing_else_names_the_colour_of_a_dtype():
    """Shades of grey and of regions have no dtype; colours of dtypes are written down once."""
    assert len(DRAWING) > 8
    colours = {colour.lower() for colour in figures.COLOURS.values()}
    found = {
        (path.name, word)
        for path in DRAWING
        if path.name != "figures.py"
        for word in re.findall(r"#[0-9a-fA-F]{6}\b|rcParams", path.read_text())
        if word.lower() in colours or not word.startswith("#")
    }
    assert found == set()
