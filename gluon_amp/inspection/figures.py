"""The look of every figure: one style, and one colour for each dtype.

This module needs the standard library alone. `STYLE` is a style sheet of matplotlib::

    with matplotlib.style.context(figures.STYLE):
        axes.plot(losses, color=figures.COLOURS["float16"])
"""

from pathlib import Path

STYLE = Path(__file__).with_suffix(".mplstyle")

# Okabe and Ito's colours ("Color Universal Design", 2008), which colour-blind readers distinguish.
# A policy has the colour of the dtype that it computes in.
COLOURS = {
    "float32": "#0072B2",
    "fused_float32": "#0072B2",
    "float16": "#D55E00",
    "mixed_float16": "#D55E00",
    "bfloat16": "#009E73",
    "mixed_bfloat16": "#009E73",
    "tfloat32": "#56B4E9",
    "float8_e4m3": "#000000",
    "float8_e5m2": "#8C6D00",
}
BROKEN = "#CC79A7"  # a run that lacks what it needs
OTHER = "#E69F00"  # a policy that is not in COLOURS, or a quantity that is not of a dtype
SUPPORT = "#999999"  # what is there for comparison
BAND = "#E5E5E5"  # a margin
