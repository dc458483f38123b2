"""What runs in which dtype, as data, and the pass that applies it to a graph."""

from gluon_amp.policy.policy import PRESETS, Decision, Policy, near_preset

__all__ = ["PRESETS", "Decision", "Policy", "near_preset"]
