"""The float64 yardstick: how far losses and gradients of each dtype are from those in float64.

    python -m experiments.yardstick --output docs/results

`networks` has ten networks and their data, `measure` compares dtypes with float64 and outputs with
themselves, and `page` shows it.
"""
